"""A server with a differing table leaves; the others report it."""

import logging
from dataclasses import replace

import pytest
from raft_world import Register, World

from gpupool.consensus.protocol.raft_settings import ConsensusSettings
from gpupool.consensus.table_comparison import RUNS_KEPT, ApplyError, DivergedError
from gpupool.pool.model.ids import Plain, ServerId

SETTINGS = ConsensusSettings(compare_entries=16, snapshot_entries=40)


def a_world(voters: int, learners: int = 0, *, snapshot_entries: int = 40) -> World:
    settings = replace(SETTINGS, snapshot_entries=snapshot_entries)
    world = World(4, voters=voters, learners=learners, settings=settings)
    world.run_until(lambda: world.leader() is not None)
    return world


def commit(world: World, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        leader = world.leader()
        assert leader is not None
        world.propose(leader, ["command", number])
        world.run(0.05)


def falsify(world: World, name: ServerId, number: int) -> None:
    """Let one server apply one command in another way."""
    machine = world.servers[name].machine
    real = machine.apply

    def apply(index: int, command: Plain) -> Plain:
        return real(index, "another" if command == ["command", number] else command) and (
            -1 if command == ["command", number] else len(machine.log)
        )

    machine.apply = apply  # type: ignore[method-assign]


def health(world: World, name: ServerId) -> tuple[ServerId, ...]:
    return world.node(name).health(world.local(world.servers[name])).diverged


@pytest.mark.parametrize(("voters", "learners", "who"), [(3, 0, 0), (3, 0, 2), (3, 1, 3)])
def test_a_server_that_differs_from_a_majority_stops_and_the_others_say_so(
    voters: int, learners: int, who: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = a_world(voters, learners)
    commit(world, 20)
    bad = world.names[who]
    falsify(world, bad, 40)
    with pytest.raises(DivergedError) as raised:
        commit(world, 60, first=20)
    assert "rejoin" in raised.value.hint
    assert world.node(bad).majority_age_s(0.0) == float("inf"), "it serves nobody"
    with pytest.raises(DivergedError):
        world.node(bad).step(world.local(world.servers[bad]))
    world.crash(bad)
    world.run(1.0)
    others = [name for name in world.names if name != bad]
    assert all(health(world, name) == (bad,) for name in others)
    assert f"server {bad}: another table" in caplog.text
    commit(world, 5, first=100)


def test_two_servers_that_differ_both_say_so(caplog: pytest.LogCaptureFixture) -> None:
    world = a_world(2)
    commit(world, 20)
    falsify(world, world.names[1], 30)
    commit(world, 60, first=20)
    for name in world.names:
        assert health(world, name) == tuple(sorted(world.names))
    assert "no majority has the same" in caplog.text


def test_servers_that_start_and_that_get_snapshots_agree() -> None:
    logging.disable(logging.WARNING)
    try:
        world = a_world(3, 1)
        for round_ in range(6):
            name = world.names[round_ % 4]
            world.crash(name)
            if world.leader() is None:
                world.run_until(lambda: world.leader() is not None)
            commit(world, 70 if round_ % 2 else 9, first=100 * round_)
            world.boot(name)
            world.run(1.0)
            commit(world, 25, first=100 * round_ + 70)
        assert all(health(world, name) == () for name in world.names)
        known = [world.node(name)._comparison._hashes for name in world.names]  # pyright: ignore[reportPrivateUsage]
        assert all(any(len(hashes) == 4 for hashes in each.values()) for each in known)
    finally:
        logging.disable(logging.NOTSET)


HASH_EVERY = 30


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tables be hashed after every so many commands."""

    def hash_mark(self: Register) -> int:
        return len(self.log) // HASH_EVERY

    monkeypatch.setattr(Register, "hash_mark", hash_mark)


def flip(world: World, name: ServerId, at: int) -> None:
    """Let a bit flip in a row that no result depends on."""
    world.servers[name].machine.log[at] = "flipped"


@pytest.mark.usefixtures("hashed")
@pytest.mark.parametrize(("voters", "learners", "who"), [(3, 0, 0), (3, 0, 2), (3, 1, 3)])
def test_a_flipped_row_that_no_result_depends_on_is_found(
    voters: int, learners: int, who: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = a_world(voters, learners, snapshot_entries=10_000)
    commit(world, 20)
    bad = world.names[who]
    flip(world, bad, 3)
    with pytest.raises(DivergedError, match="differs") as raised:
        commit(world, 80, first=20)
    assert "rows of it" in raised.value.why
    others = [name for name in world.names if name != bad]
    assert all(health(world, name) == (bad,) for name in others)
    assert f"server {bad}: another table" in caplog.text
    # It starts again from what its disk has, which is intact: the next hash clears its name.
    world.crash(bad)
    world.boot(bad)
    world.run(1.0)
    commit(world, 60, first=100)
    world.run(2.0)
    assert all(health(world, name) == () for name in world.names)


@pytest.mark.usefixtures("hashed")
def test_whole_tables_agree_through_starts_and_snapshots() -> None:
    logging.disable(logging.WARNING)
    try:
        world = a_world(3, 1)
        for round_ in range(2):
            name = world.names[1 + 2 * round_]  # a voter, and one without a vote
            world.crash(name)
            world.run_until(lambda: world.leader() is not None)  # it may have led
            commit(world, 70, first=200 * round_)
            world.boot(name)
            world.run(1.0)  # it catches up
            commit(world, 65, first=200 * round_ + 70)
        world.run(2.0)
        assert all(health(world, name) == () for name in world.names)
        for name in world.names:
            known = world.node(name)._comparison._hashes  # pyright: ignore[reportPrivateUsage]
            whole = [hashes for (shape, _), hashes in known.items() if shape]
            assert any(len(hashes) == 4 for hashes in whole)
            assert len(whole) <= RUNS_KEPT
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("hashed")
def test_hashes_of_other_shapes_say_nothing() -> None:
    world = a_world(3)
    commit(world, 40)
    world.run(2.0)
    [name, other, _] = world.names
    comparison = world.node(name)._comparison  # pyright: ignore[reportPrivateUsage]
    known = {at: dict(hashes) for at, hashes in comparison._hashes.items()}  # pyright: ignore[reportPrivateUsage]
    [(shape, index)] = [at for at in known if at[0]]
    for said in (
        {"index": index, "shape": shape + 1, "hash": bytes(16)},
        {"index": index, "shape": 0, "hash": bytes(16)},
        {"index": index, "shape": shape, "hash": bytes(15)},
        {"index": index + 10**6, "shape": shape, "hash": bytes(16)},
    ):
        comparison.on_whole_hash(other, {"type": "whole_hash", **said})
    assert comparison._hashes == known  # pyright: ignore[reportPrivateUsage]


def test_error_of_one_server_says_which_entry_and_why() -> None:
    error = ApplyError(7, MemoryError("no room"))
    assert error.what == "entry 7 of the pool's log could not be applied"
    assert error.why == "MemoryError: no room"
    assert ApplyError(7, MemoryError()).why == "MemoryError"
    assert "nothing is lost" in error.hint


@pytest.mark.parametrize(
    ("whole", "why"),
    [
        (False, "of the entries of the log up to 7, they have applied one in another way"),
        (True, "after entry 7 of the log, rows of it were not the same as theirs"),
    ],
)
def test_a_server_that_differs_says_whether_a_result_or_a_row_does(whole: bool, why: str) -> None:
    assert DivergedError(7, whole=whole).why == why
