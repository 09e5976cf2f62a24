"""Every server shows the refusals of any server, and no vote depends on them."""

from typing import Any

import pytest
from lone_node import Lone
from test_forgotten_promises import ForgetfulWorld

from gpupool.consensus.gossip import GOSSIP_S, HEARD_MAX, TELL_EVERY_S
from gpupool.pool.model.ids import ServerId
from gpupool.pool.ports import RefusedBy

B, C, D = ServerId("b"), ServerId("c"), ServerId("d")


class TalkativeWorld(ForgetfulWorld):
    """Three voters and two followers without a vote."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, learners=2)
        self.healthy()
        self.run(1.0)

    def shown(self, name: ServerId, victim: ServerId) -> str:
        """Return why ``victim`` does not count, as ``name`` shows it."""
        server = self.servers[name]
        health = self.node(name).health(self.local(server))
        gossip = health.refused_by.get(victim)
        return health.unfit.get(victim) or (gossip.reason if gossip else "")


@pytest.mark.parametrize("refuser", [0, 1, 2, 3])
def test_every_server_shows_whom_any_server_refuses(refuser: int) -> None:
    world = TalkativeWorld(3)
    leader = world.leader()
    assert leader is not None
    victim = next(name for name in world.names[:3] if name != leader)
    others = [name for name in world.names if name != victim]
    world.crash(victim)
    old = world.servers[victim].disk.image()
    world.boot(victim)
    world.run(1.0)
    world.crash(victim)
    world.run(0.2)
    world.servers[victim].disk.restore(old)
    met = others[refuser]
    world.block([[victim, met], others])
    world.boot(victim)
    world.run(3.0)
    assert f"server {met} says" in str(world.ended[victim].why), "it met one server only"
    world.heal()
    world.run(1.0)
    for name in others:
        assert "old copy" in world.shown(name, victim), name
    # It lasts as long as the refusal does, and a server that comes back hears of it.
    again = next(name for name in others[::-1] if name != met)
    world.crash(again)
    world.boot(again)
    world.run(GOSSIP_S + 2 * TELL_EVERY_S)
    for name in others:
        assert "old copy" in world.shown(name, victim), name
    for name in others:
        world.node(name).set_servers([each for each in others if each not in world.names[:3]])
    world.crash(met)
    world.run(GOSSIP_S + 2 * TELL_EVERY_S)
    assert not any(world.shown(name, victim) for name in others if name != met)


def told(sent: list[tuple[str, dict[str, Any]]]) -> list[tuple[str, str, str]]:
    """Return the receiver, the server and the reason of each refusal."""
    refusals = [(peer, message) for peer, message in sent if message["type"] == "refusal"]
    return [(peer, message["server"], message["reason"]) for peer, message in refusals]


def hello(lone: Lone, peer: str, boot: int) -> list[tuple[str, dict[str, Any]]]:
    start = {"boot": boot, "incarnation": 0, "term": 1, "last_index": 2, "repairing": False}
    return lone.take(peer, "hello", **start)


def say(lone: Lone, peer: str, server: str, reason: str) -> list[tuple[str, dict[str, Any]]]:
    """Let a peer report its refusal of a server; without a reason, the refusal ends."""
    for_ms = 10**9 if reason else 0
    return lone.take(peer, "refusal", server=server, reason=reason, for_ms=for_ms)


def refused_by(lone: Lone) -> dict[ServerId, RefusedBy]:
    return dict(lone.node.health(lone.now).refused_by)


def test_a_refusal_is_told_when_it_begins_and_ends_and_to_new_connections() -> None:
    lone = Lone(("me", "b", "c"))
    assert not told(hello(lone, "b", 5))
    begun = told(hello(lone, "b", 4))
    assert [(peer, server) for peer, server, _ in begun] == [("b", "b"), ("c", "b")]
    assert "an old copy" in begun[0][2]
    assert not told(lone.tick(TELL_EVERY_S / 2)), "once is enough for a while"
    lone.node.disconnected(C, lone.now)
    lone.node.connected(C, lone.now)
    assert told(lone.tick()) == [begun[1]]
    assert told(lone.tick(TELL_EVERY_S)) == begun, "what was not listened to is said again"
    assert told(hello(lone, "b", 5)) == [("b", "b", ""), ("c", "b", "")]
    assert not told(lone.tick(2 * TELL_EVERY_S))


def test_gossip_is_shown_and_changes_nothing_else() -> None:
    lone = Lone(("me", "b", "c"))
    say(lone, "c", "b", "an old copy")
    say(lone, "c", "me", "an old copy")
    both = {B: RefusedBy(C, "an old copy"), ServerId("me"): RefusedBy(C, "an old copy")}
    assert refused_by(lone) == both
    health = lone.node.health(lone.now)
    assert (dict(health.unfit), health.alarm) == ({}, "")
    lone.win("b")
    lone.propose("counts")
    lone.tick()
    lone.acknowledge("b", lone.journal.last_index)
    assert lone.node.core.commit_index == lone.journal.last_index


def test_gossip_ends_when_it_is_taken_back_or_not_repeated() -> None:
    lone = Lone(("me", "b", "c"))
    say(lone, "c", "b", "an old copy")
    say(lone, "c", "b", "")
    assert not refused_by(lone)
    say(lone, "c", "b", "an old copy")
    lone.node.disconnected(C, lone.now)
    lone.tick(GOSSIP_S - 1)
    assert refused_by(lone), "a short silence is nothing"
    lone.tick(1)
    assert not refused_by(lone)


def test_gossip_is_bounded_and_only_of_servers_of_the_pool() -> None:
    lone = Lone(("me", "b", "c"))
    for number in range(2 * HEARD_MAX):
        say(lone, "c", f"s{number}", "x" * 9999)
    assert not refused_by(lone), "it knows none of them"
    lone.node.set_servers([ServerId(f"s{number}") for number in range(2 * HEARD_MAX)])
    shown = refused_by(lone)
    assert len(shown) == HEARD_MAX
    assert all(len(refusal.reason) == 500 for refusal in shown.values())
    lone.node.set_servers([ServerId("s1")])
    assert set(refused_by(lone)) == {"s1"}


def test_what_a_refused_server_says_of_others_is_not_heard() -> None:
    lone = Lone(("me", "b", "c"))
    hello(lone, "b", 5)
    hello(lone, "b", 4)
    say(lone, "b", "c", "an old copy")
    assert not refused_by(lone)


def test_a_voter_passes_on_what_followers_say_and_nothing_of_voters() -> None:
    lone = Lone(("me", "b", "c"), peers=("b", "c", "d"))
    lone.node.set_servers([B, C, D])
    assert not told(say(lone, "b", "c", "of a voter"))
    passed = told(say(lone, "d", "c", "of a follower"))
    assert passed == [(peer, "c", "of a follower") for peer in ("b", "c", "d")]
    assert told(say(lone, "d", "c", "")) == [(peer, "c", "") for peer in ("b", "c", "d")]


def test_gossip_that_is_over_leaves_no_trace_in_what_is_told_later() -> None:
    """A refusal is repeated as long after it was told as if nothing had ever been heard."""
    times: list[list[float]] = []
    for hears in (False, True):
        lone = Lone(("me", "b", "c"))
        if hears:
            say(lone, "c", "b", "an old copy")
            say(lone, "c", "b", "")
        for _ in range(3):
            assert not told(lone.tick(TELL_EVERY_S / 2))
        hello(lone, "b", 5)
        began = lone.now
        assert told(hello(lone, "b", 4))
        times.append([])
        for _ in range(40):
            if told(lone.tick(TELL_EVERY_S / 8)):
                times[-1].append(lone.now - began)
    assert times[0]
    assert times[0] == times[1]


def test_three_repetitions_of_what_is_told_may_be_lost() -> None:
    assert 4 * TELL_EVERY_S <= GOSSIP_S


@pytest.mark.parametrize("for_ms", [1, 500, 1500, 10_000])
def test_gossip_is_believed_for_as_long_as_the_teller_says(for_ms: int) -> None:
    lone = Lone(("me", "b", "c"))
    lone.take("c", "refusal", server="b", reason="an old copy", for_ms=for_ms)
    until = lone.now + for_ms / 1000
    assert lone.node.health(until - 0.0005).refused_by
    assert not lone.node.health(until).refused_by


def test_one_that_is_taken_back_makes_room_for_another() -> None:
    lone = Lone(("me", "b", "c"))
    names = [f"s{number}" for number in range(HEARD_MAX + 1)]
    lone.node.set_servers([ServerId(name) for name in names])
    for name in names[:-1]:
        say(lone, "c", name, "an old copy")
    for name, for_ms in ((names[0], 0), (names[-1], 1000)):
        frame = lone.frame("c", "refusal", server=name, reason="an old copy", for_ms=for_ms)
        lone.node.receive(C, frame, lone.now)
    assert set(refused_by(lone)) == set(names[1:])


def test_news_do_not_put_off_the_repetition_of_the_rest() -> None:
    lone = Lone(("me", "b", "c", "d"), peers=("b", "c", "d"))
    lone.tick(1.0)
    hello(lone, "b", 5)
    hello(lone, "c", 5)
    lone.tick(2 * TELL_EVERY_S)
    assert {server for _, server, _ in told(hello(lone, "b", 4))} == {"b"}
    lone.tick(TELL_EVERY_S - 1)
    assert {server for _, server, _ in told(hello(lone, "c", 4))} == {"c"}
    assert {server for _, server, _ in told(lone.tick(1.0))} == {"b", "c"}


def test_nothing_is_told_of_servers_that_are_not_of_the_pool() -> None:
    lone = Lone(("me", "b", "c"), peers=("b", "c", "d"))
    lone.node.set_servers([B, C, D])
    assert not told(say(lone, "d", "gone", "of one that was removed"))
    passed = told(say(lone, "d", "c", "of a member"))
    assert passed == [(peer, "c", "of a member") for peer in ("b", "c", "d")]


def test_a_refusal_is_to_be_believed_for_twenty_seconds_and_its_end_for_none() -> None:
    lone = Lone(("me", "b", "c"))
    hello(lone, "b", 5)
    for boot, for_ms in ((4, 20_000), (5, 0)):
        messages = [message for _, message in hello(lone, "b", boot)]
        said = [each["for_ms"] for each in messages if each["type"] == "refusal"]
        assert said == [for_ms, for_ms]
