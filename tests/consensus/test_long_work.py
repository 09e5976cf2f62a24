"""Work too long for one step: snapshots of large tables, and long logs to apply."""

from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, TypeVar, cast

import pytest
import trio
from lone_node import ME, Lone
from tests.benchmarks import long_commands
from tests.benchmarks.full_table import full_machine, least_costs, measure

from gpupool.consensus.core.library import COMMAND_TYPE
from gpupool.consensus.driver import RaftDriver
from gpupool.consensus.followers import source_weight
from gpupool.consensus.protocol import closed_cbor
from gpupool.consensus.protocol.raft_settings import APPLIED_AT_ONCE_MAX, ConsensusSettings
from gpupool.consensus.snapshot_transfer import SnapshotTransfer, Work
from gpupool.consensus.storage.snapshot import (
    Snapshot,
    decode_in_pieces,
    decode_snapshot,
    encode_in_pieces,
    encode_snapshot,
)
from gpupool.consensus.storage.store import bootstrap, open_storage
from gpupool.pool.errors import StorageError
from gpupool.pool.model.commands import Tick, wrap
from gpupool.pool.model.ids import Plain, ServerId
from gpupool.pool.model.state import PoolState
from gpupool.pool.ports import Committed
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.remoting.transport.system_clock import SystemClock

T = TypeVar("T")


def run(steps: Generator[None, None, T]) -> tuple[T, int]:
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
        count += 1


def test_a_snapshot_in_pieces_is_the_snapshot() -> None:
    machine, voters = full_machine(servers=40, leases=150), (ServerId("a"), ServerId("b"))
    whole = encode_snapshot(Snapshot(7, 3, voters, machine.snapshot()))
    data, steps = run(encode_in_pieces(7, 3, voters, machine.snapshot_fields()))
    assert data == whole
    assert steps > 20
    (snapshot, state), steps = run(decode_in_pieces(data, PoolMachine(PoolState()).restoring()))
    assert snapshot == Snapshot(7, 3, voters, None)
    assert state == machine.state
    assert steps > 20
    assert closed_cbor.encode(PoolMachine(state).snapshot()) == closed_cbor.encode(
        machine.snapshot()
    )


def test_a_damaged_snapshot_is_refused_in_pieces_as_it_is_whole() -> None:
    machine = full_machine(servers=3, leases=20)
    data = encode_snapshot(Snapshot(7, 3, (ME,), machine.snapshot()))
    random = Random(5)
    for _ in range(200):
        damaged = bytearray(data)
        damaged[random.randrange(len(data))] ^= 1 << random.randrange(8)
        for broken in (bytes(damaged), data[: random.randrange(len(data))]):
            with pytest.raises(ValueError, match=r".+"):
                decode_snapshot(broken)
            with pytest.raises(ValueError, match=r".+"):
                run(decode_in_pieces(broken, machine.restoring()))


def test_what_a_snapshot_says_is_checked_in_pieces_as_well() -> None:
    """The checksum tells of damage only; the sender made it."""
    table = PoolMachine(PoolState()).snapshot()
    assert isinstance(table, dict)
    tables: list[Plain] = [
        {**table, "servers": 5},
        {**table, "servers": [["a"]]},
        {**table, "leases": [[1, {}]]},
        {**table, "closed": [[b"a", "x"], [b"a", "y"]]},
        {**table, "events": [1]},
        {**table, "name": []},
        {**table, "unknown": 1},
        [],
    ]
    for wrong in tables:
        data = encode_snapshot(Snapshot(7, 3, (ME,), wrong))
        with pytest.raises(ValueError, match=r".+"):
            run(decode_in_pieces(data, PoolMachine(PoolState()).restoring()))


def start(directory: Path, machine: PoolMachine, *, create: bool) -> RaftDriver:
    storage = open_storage(directory, create=create)
    if create:
        bootstrap(storage, ME)
    return RaftDriver(
        ME,
        storage=storage,
        machine=machine,
        clock=SystemClock(),
        randomness=Random(1),
        links=_NoLinks(),
        settings=ConsensusSettings(snapshot_entries=50, snapshots_per_rewrite=1),
    )


class _NoLinks:
    def set_peers(self, peers: object) -> None:
        del peers

    def send(self, peer: ServerId, frame: bytes) -> bool:
        del peer, frame
        return False

    def hang_up(self, peer: ServerId) -> None:
        del peer


async def propose(driver: RaftDriver, count: int) -> None:
    for _ in range(count):
        outcome = await driver.propose(wrap(Tick(), at_ms=1, ttl_ms=0), timeout_s=10.0)
        assert isinstance(outcome, Committed), outcome


async def test_snapshots_are_taken_beside_the_loop_and_found_again(tmp_path: Path) -> None:
    machine = full_machine(servers=10, leases=80)
    driver = start(tmp_path, machine, create=True)
    storage = driver.node.storage
    async with trio.open_nursery() as nursery:
        await nursery.start(driver.run)
        with trio.fail_after(30):
            assert await driver.barrier(timeout_s=20)
            while storage.journal.base_index == 1:  # two snapshots, and the log written anew
                await propose(driver, 20)
        nursery.cancel_scope.cancel()
    driver.close()
    again = PoolMachine(PoolState())
    restarted = start(tmp_path, again, create=False)
    assert restarted.node.storage.snapshots.latest is not None
    async with trio.open_nursery() as nursery:
        await nursery.start(restarted.run)
        with trio.fail_after(30):
            assert await restarted.barrier(timeout_s=20)
        assert again.state == machine.state
        nursery.cancel_scope.cancel()
    restarted.close()


async def test_a_snapshot_that_cannot_be_written_stops_the_server(tmp_path: Path) -> None:
    driver = start(tmp_path, full_machine(servers=2, leases=5), create=True)

    def write(index: int, data: bytes) -> None:
        raise StorageError("a snapshot cannot be written")

    driver.node.storage.snapshots.write = write
    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012 - the server is what raises
        async with trio.open_nursery() as nursery:
            await nursery.start(driver.run)
            with trio.fail_after(30):
                assert await driver.barrier(timeout_s=20)
                await propose(driver, 100)
                await trio.sleep_forever()
    assert caught.group_contains(StorageError)
    driver.close()


def test_one_step_applies_a_bounded_number_of_commands() -> None:
    count = 3 * APPLIED_AT_ONCE_MAX
    entries = [(COMMAND_TYPE + closed_cbor.encode(f"c{n}"), 3 + n, 1) for n in range(count)]
    lone = Lone(entries=entries)
    seen = [lone.node.core.applied_index]
    lone.append(2 + count, 1, [], term=1, commit=2 + count)
    while seen[-1] < 2 + count:
        seen.append(lone.node.core.applied_index)
        assert seen[-1] - seen[-2] <= APPLIED_AT_ONCE_MAX
        if seen[-1] < 2 + count:
            assert lone.node.next_step_at() <= lone.now
        lone.tick()
    assert lone.machine.log == [f"c{n}" for n in range(count)]


def test_a_step_ends_in_time_however_long_single_commands_take() -> None:
    """A follower that pulls gets many at once, and one may take as long as a hundred others."""
    count, now = 20, 0.0
    entries = [(COMMAND_TYPE + closed_cbor.encode(f"c{n}"), 3 + n, 1) for n in range(count)]

    def stopwatch() -> float:
        nonlocal now
        now += 0.002
        return now

    lone = Lone(entries=entries, stopwatch=stopwatch)
    seen = [lone.node.core.applied_index]
    lone.append(2 + count, 1, [], term=1, commit=2 + count)
    while seen[-1] < 2 + count:
        seen.append(lone.node.core.applied_index)
        assert seen[-1] - seen[-2] <= 3
        if seen[-1] < 2 + count:
            assert lone.node.next_step_at() <= lone.now
        lone.tick()
    assert lone.machine.log == [f"c{n}" for n in range(count)]


def sources(follower: int, voters: list[ServerId]) -> ServerId:
    """Return the first source of a follower."""
    me = ServerId(f"{follower:012x}")
    return min(voters, key=lambda voter: source_weight(me, voter))


def test_followers_share_the_voters_evenly_and_move_only_from_one_that_goes() -> None:
    voters = [ServerId(f"v{number}") for number in range(7)]
    chosen = {follower: sources(follower, voters) for follower in range(1000)}
    counts = Counter(chosen.values())
    assert max(counts.values()) < 1.35 * 1000 / 7
    assert min(counts.values()) > 0.65 * 1000 / 7
    gone = voters.pop(3)
    for follower, voter in chosen.items():
        assert sources(follower, voters) == voter or voter == gone


def test_the_measurement_of_long_commands_runs() -> None:
    found = {name: count for name, count, _, _ in long_commands.measure(3, 130, 5)}
    assert (found["revoke"], found["remove"], found["restart"]) == (5, 5, 5)


@pytest.mark.long
def test_the_measurement_of_a_full_table_runs() -> None:
    costs = measure(8, 20, rounds=3)
    assert costs.cycles_per_s > 0
    assert costs.snapshot_bytes > 10_000


# --- when the voters take snapshots ---------------------------------------------------------------

EVERY = 1_000


@dataclass
class TakesSnapshots:
    """The interface of a node and its storage for snapshots; the works are over at once."""

    server_id: ServerId
    voters: tuple[ServerId, ...]
    applied_index: int = 1
    bytes_since_rewrite: int = 0
    latest: None = None
    settings: ConsensusSettings = field(
        default_factory=lambda: ConsensusSettings(snapshot_entries=EVERY)
    )

    @property
    def core(self) -> "TakesSnapshots":
        return self

    storage = journal = snapshots = configurations = core

    def term_at(self, _index: int) -> int:
        return 1

    def at(self, _index: int) -> "TakesSnapshots":
        return self

    def saved(self, _snapshot: Snapshot, _data: bytes) -> None:
        """Forget it."""

    def taken(self, **_least: int) -> None:
        """Keep the journal."""


def indexes_of_snapshots(me: int, count: int, last: int) -> list[int]:
    """Return when one of ``count`` voters takes snapshots while it applies entries to ``last``."""
    voters = tuple(ServerId(f"s{number}") for number in range(count))
    context: Any = TakesSnapshots(voters[me], voters)
    taken: list[int] = []

    def run_work(work: Work) -> None:
        taken.append(context.applied_index)
        work.finish()

    machine, puller = PoolMachine(PoolState()), cast("Any", None)
    transfer = SnapshotTransfer(context, machine, puller, run_work)
    for index in range(2, last):
        context.applied_index = index
        transfer.take_if_due()
    return taken


@pytest.mark.parametrize("count", [3, 5, 7])
def test_voters_take_their_snapshots_one_after_the_other(count: int) -> None:
    taken = [indexes_of_snapshots(me, count, 5 * EVERY) for me in range(count)]
    for indexes in taken:
        gaps = [b - a for a, b in pairwise(indexes)]
        assert gaps
        assert set(gaps) == {EVERY}, "each as often as is set"
    together = sorted(index for indexes in taken for index in indexes)
    apart = [b - a for a, b in pairwise(together)]
    assert min(apart) >= EVERY // count - 1, "and no two at the same entries"


# --- the number of leases -------------------------------------------------------------------------


@pytest.mark.long
def test_a_lease_costs_the_same_however_many_there_are() -> None:
    """In pools of 10 and of 1,000 servers, each with ten leases; processor time."""
    few, many = least_costs(10, 100), least_costs(1_000, 10_000)
    for name, cost_ms in many.items():
        assert cost_ms < 4 * few[name], f"{name}: {few[name]:.3f} ms, and {cost_ms:.3f} ms"
