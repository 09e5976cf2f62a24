"""Notices of the machine around the table to its server: events, and times to hash the table."""

import pytest
from tests.pool.policy_kit import Pool, upgraded

from gpupool.pool.invariants import InvariantSampler
from gpupool.pool.model import commands as c
from gpupool.pool.model.codec import TableHash, decode
from gpupool.pool.model.commands import wrap
from gpupool.pool.model.formats import OutdatedError
from gpupool.pool.model.ids import Incarnation, Milliseconds, TokenId
from gpupool.pool.model.results import Result
from gpupool.pool.model.state import Event, PoolState, with_changes
from gpupool.pool.transitions import kept_records
from gpupool.pool.transitions.apply import PoolMachine


def test_each_event_is_told_once_from_the_first_one_on() -> None:
    machine = PoolMachine(PoolState())
    told: list[Event] = []
    machine.on_events = told.extend
    commands: list[c.Command] = [c.CreatePool("c", "lab", "tls"), c.Tick(), c.Tick()]
    for index, command in enumerate(commands, start=1):
        machine.apply(index, wrap(command, at_ms=1000, ttl_ms=0))
    assert [event.kind for event in told] == ["pool-created"]
    machine.apply(4, wrap(c.CreatePool("c", "lab", "tls"), at_ms=1000, ttl_ms=0))
    assert len(told) == 1, "a refused command has no event"


@pytest.mark.parametrize("kept", [2, 4, 5, 256])
def test_of_a_command_with_more_events_than_are_kept_those_that_are_kept_are_told(
    monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    pool = Pool()
    for _ in range(3):
        pool.grant("ada")
    monkeypatch.setattr(kept_records, "EVENT_COUNT_MAX", kept)
    told: list[tuple[Event, ...]] = []
    pool.machine.on_events = told.append
    assert pool.do(c.RevokeToken(TokenId("ada"), "root")).ok
    [events] = told
    kinds = ["ended", "ended", "ended", "token-revoked"]
    assert [event.kind for event in events] == kinds[-min(kept, 4) :]


@pytest.mark.parametrize(
    ("now", "era", "mark"),
    [
        (0, 0, 0),
        (59_999, 0, 0),
        (60_000, 0, 1),
        (119_999, 0, 1),
        (120_000, 0, 2),
        (6_000_000, 0, 100),
        (6_000_000, 1, (1 << 48) + 100),
        (0, 3, 3 << 48),
    ],
)
def test_all_servers_hash_the_table_once_in_a_minute_of_its_own_time(
    now: int, era: int, mark: int
) -> None:
    state = PoolState(now=Milliseconds(now), era=era)
    assert PoolMachine(state).hash_mark() == mark


def test_nobody_is_told_of_nothing() -> None:
    machine = PoolMachine(PoolState())
    told: list[object] = []
    machine.on_acts = machine.on_records = machine.on_events = told.append
    calls: list[int] = []
    machine.on_apply = lambda: calls.append(machine.state.index)
    for index in (1, 2):
        machine.apply(index, wrap(c.Tick(), at_ms=1000, ttl_ms=0))
    assert (told, calls) == ([], [1, 2])
    assert machine.violations == ()
    machine.on_events = None
    machine.apply(3, wrap(c.CreatePool("c", "lab", "tls"), at_ms=1000, ttl_ms=0))
    assert told == [machine.state.acts]
    machine.apply(4, wrap(c.Tick(), at_ms=1000, ttl_ms=0))
    assert len(told) == 1


def test_what_is_no_command_is_refused_and_counted() -> None:
    machine = PoolMachine(PoolState(now=Milliseconds(1000)))
    result = decode(Result, machine.apply(7, {"v": 1}))
    assert result == Result(False, "invalid", "not an envelope")
    assert machine.state == PoolState(index=7, now=Milliseconds(1000))


def test_a_table_of_a_newer_version_is_not_taken() -> None:
    pool = Pool()
    upgraded(pool.machine, 9)
    for version, taken in ((8, False), (9, True), (10, True)):
        machine = PoolMachine(PoolState(), version=version)
        if taken:
            machine.restore(pool.machine.snapshot())
            assert machine.state == pool.state
        else:
            with pytest.raises(OutdatedError):
                machine.adopt(pool.state)
            assert machine.state == PoolState()


@pytest.mark.parametrize("version", [8, 9])
def test_a_machine_stops_once_all_servers_speak_what_it_cannot_read(version: int) -> None:
    """The command itself is one that it can read, and its answer is given."""
    pool = Pool()
    machine = PoolMachine(pool.state, version=version)
    for server in pool.state.servers:
        start = c.ServerUp(server, Incarnation(2), "x:1", "1", "", "", (), formats=9)
        plain = machine.apply(machine.state.index + 1, wrap(start, at_ms=pool.now_ms, ttl_ms=0))
        assert decode(Result, plain).ok
    assert machine.formats() == 9
    tick = wrap(c.Tick(), at_ms=pool.now_ms, ttl_ms=0)
    if version == 9:
        machine.apply(machine.state.index + 1, tick)
        return
    with pytest.raises(OutdatedError):
        machine.apply(machine.state.index + 1, tick)


@pytest.mark.parametrize("broken", [False, True])
def test_the_sampler_sees_each_table(broken: bool) -> None:
    pool = Pool()
    state = pool.state
    if broken:
        server = next(iter(state.servers.values()))
        gpu = next(iter(server.gpus.values()))
        gpus = server.gpus | {gpu.id: with_changes(gpu, memory_granted=1)}
        row = with_changes(server, gpus=gpus)
        state = with_changes(state, servers=state.servers.set(server.id, row))
    told: list[str] = []
    machine = PoolMachine(state, sampler=InvariantSampler(told.append))
    for _ in range(40):
        machine.apply(machine.state.index + 1, wrap(c.Tick(), at_ms=pool.now_ms, ttl_ms=0))
    assert bool(machine.violations) == broken
    assert told == list(machine.violations[:1])


def test_the_table_of_this_moment_is_hashed() -> None:
    assert isinstance(PoolMachine(PoolState()).hashing(), TableHash)
