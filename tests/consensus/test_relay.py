"""Connections through a third server: when they begin and end, and what they carry."""

import itertools
from typing import Any

import pytest
from lone_node import Lone
from raft_world import World

from gpupool.pool.model.ids import ServerId

SECONDS = 15.0
"""A link that is silent for 10 s ends; one second later its server is missed, and asked for."""


def cut(world: World, *pairs: tuple[ServerId, ServerId], one_way: bool = False) -> None:
    for one, other in pairs:
        world.network.block(one, other)
        if not one_way:
            world.network.block(other, one)


def is_whole(world: World) -> bool:
    """Return whether each server is connected to all that it wants, by a link or not."""
    return all(
        set(world.node(name).peers()) == set(world.node(name).core.connected)
        for name in world.names
    )


def carriers(world: World, name: ServerId) -> dict[ServerId, ServerId]:
    server = world.servers[name]
    return dict(world.node(name).health(world.local(server)).carried)


def decided(world: World, name: ServerId) -> bool:
    """Return whether a command of this server is committed.

    It is tried again, as a ``Proposer`` does: an entry may come sooner than the word of its place.
    """
    before = len(world.acknowledged)
    for _ in range(3):
        world.propose(name, ["by", name, world.now])
        world.run(1.0)
        if len(world.acknowledged) > before:
            return True
    return False


@pytest.mark.parametrize("one_way", [False, True], ids=["both ways", "one way"])
@pytest.mark.parametrize(("voters", "learners"), [(3, 0), (4, 0), (5, 0), (7, 0), (3, 2)])
def test_who_hears_a_majority_that_hears_it_takes_part(
    voters: int, learners: int, one_way: bool
) -> None:
    """Whoever leads: pairs are cut as long as each server keeps a majority of the voters."""
    for seed in range(3):
        world = World(seed, voters=voters, learners=learners)
        world.run_until(lambda world=world: world.leader() is not None)
        names = list(world.names)
        world.rng.shuffle(names)
        cuts_left = dict.fromkeys(names, (voters - 1) // 2)
        pairs: list[tuple[ServerId, ServerId]] = []
        for one, other in itertools.combinations(names, 2):
            if cuts_left[one] and cuts_left[other]:
                pairs.append((one, other))
                cuts_left[one] -= 1
                cuts_left[other] -= 1
        cut(world, *pairs, one_way=one_way)
        world.run(SECONDS)
        assert all(decided(world, name) for name in world.names), pairs
        assert is_whole(world)
        world.settle()
        world.run(4.0)
        assert not any(carriers(world, name) for name in world.names)


def cut_pair() -> tuple[World, ServerId, ServerId, list[ServerId]]:
    """Return four servers of which two are carried for, and those that can carry."""
    world = World(3, voters=4)
    one, other, *rest = world.names
    world.run_until(lambda: world.leader() is not None)
    cut(world, (one, other))
    world.run(SECONDS)
    assert is_whole(world)
    return world, one, other, rest


def test_when_the_one_in_between_ends_another_one_carries() -> None:
    world, one, other, rest = cut_pair()
    carrier = carriers(world, one)[other]
    assert carriers(world, other) == {one: carrier}
    world.crash(carrier)
    world.run(4.0)
    (left,) = set(rest) - {carrier}
    assert carriers(world, one) == {other: left}
    assert decided(world, one)
    assert decided(world, other)


def test_who_starts_again_is_carried_for_anew() -> None:
    for name in (0, 1):
        world, *pair, _ = cut_pair()
        world.restart(pair[name], after_s=0.2)
        world.run(4.0)
        assert is_whole(world)
        assert all(decided(world, each) for each in pair)


def test_a_link_that_comes_back_takes_the_place_of_the_carried_one() -> None:
    world, one, other, _ = cut_pair()
    world.heal()
    world.run(4.0)
    assert is_whole(world)
    assert not carriers(world, one)
    assert not carriers(world, other)


def carries(sent: list[tuple[str, dict[str, Any]]]) -> list[tuple[str, str, str, int]]:
    """Return what was said of carrying: to whom, source, target and number."""
    return [
        (peer, each["source"], each["target"], each["number"])
        for peer, each in sent
        if each["type"] == "carry" and not (each["number"] == 0 and each["frame"])
    ]


def ticks(lone: Lone, seconds: int) -> list[tuple[str, str, str, int]]:
    return [each for _ in range(seconds * 5) for each in carries(lone.tick(0.2))]


def carry(source: str, number: int, *, target: str = "me", frame: bytes = b"") -> dict[str, object]:
    return {"source": source, "target": target, "number": number, "frame": frame}


def carried(lone: Lone) -> dict[ServerId, ServerId]:
    return dict(lone.node.health(lone.now).carried)


def test_nothing_is_said_while_nobody_is_missed() -> None:
    assert ticks(Lone(("me", "b", "z")), 20) == []


def test_voters_are_asked_for_who_is_missed_by_the_server_with_the_smaller_id() -> None:
    lone = Lone(("me", "b", "c", "z"), peers=("b", "c"))
    asked = ticks(lone, 2)
    assert [each[:3] for each in asked[:2]] == [("b", "me", "z"), ("c", "me", "z")]
    number = asked[-1][3]
    lone.take("b", "carry", **carry("z", number - 1))
    assert carried(lone) == {}, "an answer to an earlier question"
    lone.take("c", "carry", **carry("z", number))
    lone.take("b", "carry", **carry("z", number))
    assert carried(lone) == {"z": "c"}
    assert ticks(Lone(("me", "b", "c", "z"), peers=("c", "z")), 20) == []


def test_the_first_who_asks_on_behalf_of_another_carries() -> None:
    lone = Lone(("me", "b", "c", "d"), peers=("c", "d"))
    assert carries(lone.take("c", "carry", **carry("b", 7))) == [("c", "me", "b", 7)]
    assert carries(lone.take("d", "carry", **carry("b", 7))) == []
    assert carries(lone.take("d", "carry", **carry("x", 8))) == [], "a stranger"
    assert carried(lone) == {"b": "c"}
    lone.take("d", "carry", **carry("b", 0))
    assert carried(lone) == {"b": "c"}, "another one carries"
    lone.take("c", "carry", **carry("b", 0))
    assert carried(lone) == {}


def test_who_asks_anew_gets_a_new_connection() -> None:
    lone = Lone(("me", "b", "c", "d"), peers=("c", "d"))
    lone.take("c", "carry", **carry("b", 7))
    sent = [each for each in lone.take("d", "carry", **carry("b", 9)) if each[1]["type"] == "carry"]
    assert [(peer, each["number"], bool(each["frame"])) for peer, each in sent] == [
        ("d", 9, False),
        ("d", 0, True),
    ], "the answer, then the hello"
    assert carried(lone) == {"b": "d"}


def test_a_server_carries_for_two_that_it_is_connected_to_and_tells_of_the_end() -> None:
    lone = Lone(("me", "b", "c"))
    to_c = carry("b", 0, target="c", frame=b"any")
    assert ("c", {"type": "carry", **to_c}) in lone.take("b", "carry", **to_c)
    forged = carry("c", 0, target="c", frame=b"any")
    assert carries(lone.take("b", "carry", **forged)) == []
    lone.node.disconnected(ServerId("c"), lone.now)
    assert carries(lone.tick()) == [("b", "c", "b", 0)]
    assert carries(lone.take("b", "carry", **to_c)) == []
