"""The ReplicatedLog on trio: proposals, barriers, joining, handing over, and a disk that fails."""

import random
import threading
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from raft_world import Register
from trio.testing import MockClock

from gpupool.consensus.core.library import NEVER
from gpupool.consensus.driver import RaftDriver
from gpupool.consensus.protocol.raft_settings import COMMAND_BYTES_MAX
from gpupool.consensus.storage.store import Storage, bootstrap
from gpupool.pool.errors import StorageError
from gpupool.pool.model.commands import CreatePool
from gpupool.pool.model.ids import Plain, ServerId
from gpupool.pool.model.state import PoolState
from gpupool.pool.ports import (
    Committed,
    NotCommitted,
    Outcome,
    PeerEvents,
    ReplicatedLog,
    Role,
    Unknown,
)
from gpupool.pool.table_clock import TableClock
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.remoting.server.committer import Committer
from gpupool.simulations.kernel.simulated_disk import SimulatedDisk


def check_types(replicated_log: RaftDriver) -> tuple[ReplicatedLog, PeerEvents]:
    """Let the type checker compare the two Protocols with their implementations."""
    return replicated_log, replicated_log


class TrioTime:
    def monotonic(self) -> float:
        return trio.current_time()

    def wall_ms(self) -> int:
        return int(1000 * trio.current_time())


class Switchboard:
    """Links between replicated logs of one process: frames in order, 0.1 ms apart."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.replicated_logs: dict[ServerId, RaftDriver] = {}
        self.wanted: dict[ServerId, set[ServerId]] = {}
        self.up: set[frozenset[ServerId]] = set()
        self.cut: set[ServerId] = set()
        self.hung_up: list[frozenset[ServerId]] = []
        self.pipes: dict[tuple[ServerId, ServerId], trio.MemorySendChannel[bytes]] = {}

    def send(self, source: ServerId, peer: ServerId, frame: bytes) -> bool:
        if frozenset((source, peer)) not in self.up:
            return False
        pipe = self.pipes.get((source, peer))
        if pipe is None:
            pipe, received = trio.open_memory_channel[bytes](10_000)
            self.pipes[source, peer] = pipe
            self.nursery.start_soon(self._deliver, source, peer, received)
        pipe.send_nowait(frame)
        return True

    async def _deliver(
        self, source: ServerId, peer: ServerId, frames: trio.MemoryReceiveChannel[bytes]
    ) -> None:
        async for frame in frames:
            await trio.sleep(0.0001)
            if frozenset((source, peer)) in self.up:
                self.replicated_logs[peer].received(source, frame)

    def set_peers(self, source: ServerId, peers: Sequence[ServerId]) -> None:
        self.wanted[source] = set(peers)
        self.connect()

    def connect(self) -> None:
        for one in sorted(self.wanted):
            for other in sorted(self.wanted[one] & set(self.wanted)):
                pair = frozenset((one, other))
                if pair not in self.up and not pair & self.cut:
                    self.up.add(pair)
                    self.replicated_logs[one].connected(other)
                    self.replicated_logs[other].connected(one)

    def hang_up(self, source: ServerId, peer: ServerId) -> None:
        pair = frozenset((source, peer))
        if pair in self.up:
            self.up.discard(pair)
            self.hung_up.append(pair)
            self.replicated_logs[source].disconnected(peer)
            self.replicated_logs[peer].disconnected(source)
            self.nursery.start_soon(self._dial_again)

    async def _dial_again(self) -> None:
        await trio.sleep(0.05)
        self.connect()

    def isolate(self, server: ServerId) -> None:
        self.cut.add(server)
        for pair in [pair for pair in self.up if server in pair]:
            self.up.discard(pair)
            one, other = sorted(pair)
            self.replicated_logs[one].disconnected(other)
            self.replicated_logs[other].disconnected(one)

    def rejoin(self, server: ServerId) -> None:
        self.cut.discard(server)
        self.connect()


class PeerTransport:
    def __init__(self, board: Switchboard, server: ServerId) -> None:
        self.board, self.server = board, server

    def send(self, peer: ServerId, frame: bytes) -> bool:
        return self.board.send(self.server, peer, frame)

    def set_peers(self, peers: Sequence[ServerId]) -> None:
        self.board.set_peers(self.server, peers)

    def hang_up(self, peer: ServerId) -> None:
        self.board.hang_up(self.server, peer)


class Driver(RaftDriver):
    """A driver with a disk of no delay: on a busy machine a sync in memory seems slow."""

    def _timed_sync(self) -> float:
        super()._timed_sync()
        return 0.0


class Pool:
    def __init__(self, nursery: trio.Nursery, *, with_tables: bool = False) -> None:
        self.nursery = nursery
        self.board = Switchboard(nursery)
        self.with_tables = with_tables  # of a real pool, in place of registers
        self.machines: dict[ServerId, Register] = {}
        self.tables: dict[ServerId, PoolMachine] = {}
        self.disks: dict[ServerId, SimulatedDisk] = {}
        self.replicated_logs = self.board.replicated_logs

    async def start(self, name: str, *, first: bool = False) -> RaftDriver:
        server = ServerId(name)
        disk = self.disks[server] = SimulatedDisk(random.Random(name))
        storage = Storage(disk, create=True)
        if first:
            bootstrap(storage, server)
        register = self.machines[server] = Register()
        table = self.tables[server] = PoolMachine(PoolState())
        replicated_log = Driver(
            server,
            storage=storage,
            machine=table if self.with_tables else register,
            clock=TrioTime(),
            randomness=random.Random(name),
            links=PeerTransport(self.board, server),
        )
        self.replicated_logs[server] = replicated_log
        for other in self.replicated_logs.values():
            other.set_servers(list(self.replicated_logs))
        await self.nursery.start(replicated_log.run)
        return replicated_log

    def leader(self) -> RaftDriver:
        return next(x for x in self.replicated_logs.values() if x.health().role is Role.LEADER)

    async def reconcile(self, *names: str) -> None:
        desired = tuple(ServerId(name) for name in sorted(names))
        for replicated_log in self.replicated_logs.values():
            replicated_log.reconcile_voters(desired)
        with trio.fail_after(20):
            for name, replicated_log in self.replicated_logs.items():
                while name not in self.board.cut and replicated_log.health().voters != desired:  # noqa: ASYNC110
                    await trio.sleep(0.05)

    async def elected(self) -> None:
        with trio.fail_after(20):
            while all(x.health().role is not Role.LEADER for x in self.replicated_logs.values()):  # noqa: ASYNC110
                await trio.sleep(0.02)


async def patiently(replicated_log: RaftDriver, command: Plain, timeout_s: float) -> Outcome:
    """Make attempts until one is not refused: a driver makes one, and refuses without a leader."""
    outcome: Outcome = NotCommitted("no time")
    deadline = trio.current_time() + timeout_s
    while isinstance(outcome, NotCommitted) and trio.current_time() < deadline:
        outcome = await replicated_log.propose(command, timeout_s=deadline - trio.current_time())
        await trio.sleep(0.02)
    return outcome


@asynccontextmanager
async def pool_of(*names: str, with_tables: bool = False) -> AsyncGenerator[Pool]:
    async with trio.open_nursery() as nursery:
        pool = Pool(nursery, with_tables=with_tables)
        for position, name in enumerate(names):
            await pool.start(name, first=position == 0)
        await pool.elected()
        await pool.reconcile(*names)
        yield pool
        nursery.cancel_scope.cancel()


async def test_a_full_inbox_ends_the_connection_not_a_frame(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pool_of("a", "b", "c") as pool:
        leader = pool.leader()
        follower = next(x for x in pool.replicated_logs.values() if x is not leader)
        pair = frozenset((leader.node.server_id, follower.node.server_id))
        with monkeypatch.context() as patch:
            patch.setattr("gpupool.consensus.driver.INBOX_BYTES_MAX", 100)
            follower.received(leader.node.server_id, bytes(101))
        assert pool.board.hung_up == [pair]
        assert isinstance(await patiently(leader, "after", 5.0), Committed)
        with trio.fail_after(5):
            while pair not in pool.board.up:  # noqa: ASYNC110
                await trio.sleep(0.02)


async def test_a_frame_that_its_link_refuses_ends_the_connection(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pool_of("a", "b", "c") as pool:
        leader = pool.leader()
        follower = next(x for x in pool.replicated_logs.values() if x is not leader)
        me, other = leader.node.server_id, follower.node.server_id
        real, refused = pool.board.send, iter([True])

        def send(source: ServerId, peer: ServerId, frame: bytes) -> bool:
            lost = (source, peer) == (me, other) and next(refused, False)
            return not lost and real(source, peer, frame)

        monkeypatch.setattr(pool.board, "send", send)
        assert isinstance(await patiently(leader, "after", 5.0), Committed)
        assert pool.board.hung_up == [frozenset((me, other))]


@dataclass
class Held:
    """A follower, and the frames of a new entry that its leader has for it."""

    follower: RaftDriver
    leader: ServerId
    frames: list[bytes] = field(default_factory=list[bytes])
    answers: list[bytes] = field(default_factory=list[bytes])

    @property
    def last(self) -> int:
        return self.follower.node.storage.journal.last_index

    def deliver(self, *, more: bool = False) -> None:
        self.follower.received(self.leader, self.frames[0], more=more)


@asynccontextmanager
async def held_frames(pool: Pool) -> AsyncGenerator[Held]:
    """Hold back a leader's frames to a follower."""
    leader = pool.leader()
    follower = next(x for x in pool.replicated_logs.values() if x is not leader)
    held = Held(follower, leader.node.server_id)
    other = follower.node.server_id
    await trio.sleep(0.01)
    real = pool.board.send

    def send(source: ServerId, peer: ServerId, frame: bytes) -> bool:
        if (source, peer) == (held.leader, other):
            held.frames.append(frame)
            return True
        if source == other:
            held.answers.append(frame)
        return real(source, peer, frame)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool.board, "send", send)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(leader.propose, ["held"], timeout_s=5))
            while not held.frames:  # noqa: ASYNC110
                await trio.sleep(0.0001)
            held.answers.clear()
            yield held
            nursery.cancel_scope.cancel()


async def test_a_frame_is_answered_in_the_call_that_brings_it(autojump_clock: MockClock) -> None:
    async with pool_of("a", "b", "c") as pool, held_frames(pool) as held:
        last = held.last
        held.deliver()
        assert held.last == last + 1
        assert not held.follower.node.storage.journal.dirty
        assert len(held.answers) == 1


async def test_a_frame_with_others_behind_it_waits_for_them(autojump_clock: MockClock) -> None:
    async with pool_of("a", "b", "c") as pool, held_frames(pool) as held:
        last = held.last
        held.deliver(more=True)
        assert (held.last, held.answers) == (last, [])
        await trio.testing.wait_all_tasks_blocked()
        assert held.last == last + 1
        assert held.answers


@pytest.mark.parametrize("why", ["a slow disk", "a journal that is written anew"])
async def test_a_frame_that_needs_a_thread_is_answered_later(
    why: str, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, and not before the disk has it."""
    async with pool_of("a", "b", "c") as pool, held_frames(pool) as held:
        storage = held.follower.node.storage
        last, threads = held.last, list[int]()
        if why == "a slow disk":
            held.follower._sync_place.synced_inline(1.0)  # pyright: ignore[reportPrivateUsage]
        else:
            monkeypatch.setattr(Storage, "sync_is_long", property(lambda self: self is storage))
        real = storage.sync

        def sync() -> None:
            threads.append(threading.get_ident())
            real()

        monkeypatch.setattr(storage, "sync", sync)
        held.deliver()
        assert (threads, held.answers) == ([], [])
        while not held.answers:  # Without a sleep: virtual time would pass by a busy thread.
            await trio.lowlevel.checkpoint()
        assert held.last == last + 1
        assert not storage.journal.dirty
        assert threads[0] != threading.get_ident()


async def test_run_raises_what_a_frame_has_broken(autojump_clock: MockClock) -> None:
    async def break_a_disk() -> None:
        async with pool_of("a", "b", "c") as pool, held_frames(pool) as held:
            pool.disks[held.follower.node.server_id].broken = True
            held.deliver()
            assert not held.answers
            await trio.sleep(1)

    with pytest.raises(ExceptionGroup) as caught:
        await break_a_disk()
    assert caught.group_contains(StorageError)


async def test_one_server_is_a_pool(autojump_clock: MockClock) -> None:
    async with pool_of("a") as pool:
        replicated_log = pool.replicated_logs[ServerId("a")]
        assert isinstance(await replicated_log.propose(["x"], timeout_s=2), Committed)
        assert await replicated_log.barrier(timeout_s=1)
        assert pool.machines[ServerId("a")].log == [["x"]]
        assert replicated_log.health().role is Role.LEADER


async def test_every_server_proposes_and_gets_its_own_result(autojump_clock: MockClock) -> None:
    async with pool_of("a", "b", "c") as pool:
        results: list[object] = []
        for name, replicated_log in sorted(pool.replicated_logs.items()):
            outcome = await replicated_log.propose(name, timeout_s=2)
            assert isinstance(outcome, Committed)
            results.append(outcome.result)
            assert pool.machines[name].log[-1] == name
        assert results == [1, 2, 3]


async def test_many_proposals_at_once(autojump_clock: MockClock) -> None:
    async with pool_of("a", "b", "c") as pool:
        outcomes: list[object] = []

        async def propose(replicated_log: RaftDriver, number: int) -> None:
            outcomes.append(await replicated_log.propose([number], timeout_s=3))

        async with trio.open_nursery() as nursery:
            for number in range(200):
                replicated_log = list(pool.replicated_logs.values())[number % 3]
                nursery.start_soon(propose, replicated_log, number)
        assert len(outcomes) == 200
        assert all(isinstance(outcome, Committed) for outcome in outcomes)
        assert await pool.replicated_logs[ServerId("c")].barrier(timeout_s=1)
        assert len(pool.machines[ServerId("c")].log) == 200


async def test_a_minority_refuses_within_the_time(autojump_clock: MockClock) -> None:
    async with pool_of("a", "b", "c") as pool:
        leader = pool.leader()
        name = leader.node.server_id
        pool.board.isolate(name)
        began = trio.current_time()
        outcome = await leader.propose(["lost?"], timeout_s=2)
        assert isinstance(outcome, Unknown), "it was appended, and may be committed one day"
        assert trio.current_time() - began <= 2.3
        assert leader.health().role is not Role.LEADER
        outcome = await patiently(leader, ["never"], 1)
        assert isinstance(outcome, NotCommitted)
        assert not await leader.barrier(timeout_s=1)
        assert leader.health().majority_age_s > 2
        pool.board.rejoin(name)
        outcome = await patiently(leader, ["back"], 3)
        assert isinstance(outcome, Committed)
        assert ["never"] not in pool.machines[name].log
        assert ["lost?"] not in pool.machines[name].log


async def test_a_proposal_survives_the_loss_of_the_leader(autojump_clock: MockClock) -> None:
    async with pool_of("a", "b", "c", with_tables=True) as pool:
        leader = pool.leader()
        follower = next(x for x in pool.replicated_logs.values() if x is not leader)
        pool.board.isolate(leader.node.server_id)
        machine = pool.tables[follower.node.server_id]
        committer = Committer(
            follower,
            TableClock(lambda: machine.state, self_id=follower.node.server_id, clock=TrioTime()),
            random.Random(1),
        )
        decision = await committer.commit(CreatePool("again", "lab", "tls"), timeout_s=3)
        assert decision.result is not None and decision.result.ok
        assert machine.state.cluster_id == "again"


async def test_barriers_are_shared(autojump_clock: MockClock) -> None:
    async with pool_of("a", "b", "c") as pool:
        replicated_log = pool.replicated_logs[ServerId("b")]
        before = replicated_log.health().commit_index
        passed: list[bool] = []

        async def read() -> None:
            passed.append(await replicated_log.barrier(timeout_s=1))

        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(read)
        assert passed == [True] * 50
        assert replicated_log.health().commit_index - before <= 3


async def test_a_barrier_shows_what_was_committed_before(autojump_clock: MockClock) -> None:
    async with pool_of("a", "b", "c") as pool:
        for number in range(20):
            writer = list(pool.replicated_logs.values())[number % 3]
            name = list(pool.replicated_logs)[(number + 1) % 3]
            assert isinstance(await writer.propose([number], timeout_s=1), Committed)
            assert await pool.replicated_logs[name].barrier(timeout_s=1)
            assert pool.machines[name].log[-1] == [number]


async def test_joining_server_follows_without_a_vote(autojump_clock: MockClock) -> None:
    async with pool_of("a", "b", "c") as pool:
        await pool.replicated_logs[ServerId("a")].propose(["before"], timeout_s=1)
        newcomer = await pool.start("d")
        outcome = await patiently(newcomer, ["from d"], 3)
        assert isinstance(outcome, Committed)
        assert newcomer.health().role is Role.LEARNER
        assert newcomer.health().leader == pool.leader().node.server_id
        assert pool.machines[ServerId("d")].log == [["before"], ["from d"]]
        assert ServerId("d") not in pool.leader().health().voters
        await trio.sleep(2)
        assert pool.leader().health().contact_age_s[ServerId("d")] < 1.5


async def test_voters_are_exchanged_while_commands_flow(autojump_clock: MockClock) -> None:
    async with pool_of("a", "b", "c") as pool:
        for name in ("d", "e"):
            await pool.start(name)
        stop = trio.Event()
        outcomes: list[object] = []

        async def load() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                name = list(pool.replicated_logs)[number % 5]
                replicated_log = pool.replicated_logs[name]
                outcomes.append(await patiently(replicated_log, [number], 3))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(load)
            for desired in (("a", "d", "e"), ("b", "c"), ("d",), ("a", "b", "c", "d", "e")):
                await pool.reconcile(*desired)
            stop.set()
        assert len(outcomes) > 20
        # A leader that hands over refuses for a moment: attempts are repeated, and none is lost.
        assert all(isinstance(outcome, Committed) for outcome in outcomes)
        assert await pool.leader().barrier(timeout_s=1)
        applied = pool.machines[pool.leader().node.server_id].log
        assert applied == [[number] for number in range(1, len(outcomes) + 1)]


async def test_a_leader_hands_over_before_it_stops(autojump_clock: MockClock) -> None:
    async with pool_of("a", "b", "c") as pool:
        leader = pool.leader()
        began = trio.current_time()
        assert await leader.hand_over(timeout_s=1)
        assert trio.current_time() - began < 0.15
        assert isinstance(await leader.propose(["next"], timeout_s=1), Committed)
        assert pool.leader() is not leader


async def test_a_server_knows_of_connections_that_come_and_go(autojump_clock: MockClock) -> None:
    async with pool_of("a", "b", "c") as pool:
        driver = pool.leader()
        [peer, _] = others = driver.node.core.connected
        assert len(others) == 2
        # The driver takes it up at its next turn, which may come after work in a thread.
        driver.disconnected(peer)
        while driver.node.core.connected != others[1:]:  # noqa: ASYNC110 - the test has a limit
            await trio.sleep(0.001)
        driver.connected(peer)
        while set(driver.node.core.connected) != set(others):  # noqa: ASYNC110
            await trio.sleep(0.001)


async def test_a_server_whose_disk_is_full_waits_for_room(autojump_clock: MockClock) -> None:
    """It ended, and with it all programs, which need no commit."""
    async with pool_of("a") as pool:
        replicated_log, disk = pool.replicated_logs[ServerId("a")], pool.disks[ServerId("a")]
        assert isinstance(await replicated_log.propose([1], timeout_s=2), Committed)
        disk.full = True
        began = trio.current_time()
        assert isinstance(await replicated_log.propose([2], timeout_s=1), Unknown)
        assert trio.current_time() - began < 2
        health = replicated_log.health()
        assert health.majority_age_s == replicated_log.majority_age_s() == NEVER
        assert "is full (No space left on device)" in health.alarm
        await trio.sleep(3600)
        assert isinstance(await replicated_log.propose([3], timeout_s=1), Unknown)
        disk.repair()
        await trio.sleep(2)
        assert isinstance(await replicated_log.propose([4], timeout_s=2), Committed)
        assert (replicated_log.health().alarm, replicated_log.majority_age_s()) == ("", 0.0)
        log: Any = pool.machines[ServerId("a")].log
        assert [each for each in log if each != [3]] == [[1], [2], [4]]  # [3]'s time was up


async def test_the_others_go_on_without_a_server_whose_disk_is_full(
    autojump_clock: MockClock,
) -> None:
    async with pool_of("a", "b", "c") as pool:
        await pool.elected()
        [leader] = [each for each in pool.replicated_logs.values() if each.node.leads]
        me = leader.node.server_id
        pool.disks[me].full = True
        others = [each for name, each in pool.replicated_logs.items() if name != me]
        for number in range(50):
            if isinstance(await others[0].propose([number], timeout_s=2), Committed):
                break
            await trio.sleep(0.1)
        else:
            pytest.fail("nobody leads")
        assert me != others[0].health().leader
        pool.disks[me].repair()
        await trio.sleep(3)
        assert isinstance(await leader.propose(["again"], timeout_s=3), Committed)


async def test_a_stopped_ledger_answers_at_once(autojump_clock: MockClock) -> None:
    async with pool_of("a") as pool:
        replicated_log = pool.replicated_logs[ServerId("a")]
    began = trio.current_time()
    assert not await replicated_log.barrier(timeout_s=60)
    assert isinstance(await replicated_log.propose(["x"], timeout_s=60), NotCommitted)
    assert trio.current_time() - began < 1


async def test_a_slow_disk_does_not_stop_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Syncs move to another thread once they take longer than 2 ms."""
    monkeypatch.delattr(Driver, "_timed_sync")
    async with trio.open_nursery() as nursery:
        pool = Pool(nursery)
        replicated_log = await pool.start("a", first=True)
        await pool.elected()
        disk = pool.disks[ServerId("a")]
        threads: set[int] = set()
        sync = disk.sync

        def slow_sync(name: str) -> None:
            threads.add(threading.get_ident())
            time.sleep(0.01)
            sync(name)

        disk.sync = slow_sync
        for number in range(20):
            assert isinstance(await replicated_log.propose([number], timeout_s=5), Committed)
        assert threads - {threading.get_ident()}
        assert pool.machines[ServerId("a")].log == [[number] for number in range(20)]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "command", [{"x": b"y" * (COMMAND_BYTES_MAX + 1)}, {"x": (1, 2)}, {1: "x"}, 1 << 70]
)
async def test_commands_that_cannot_be_stored_are_refused(command: object) -> None:
    async with trio.open_nursery() as nursery:
        pool = Pool(nursery)
        replicated_log = await pool.start("a", first=True)
        propose = partial(replicated_log.propose, command)  # type: ignore[arg-type]
        outcome = await propose(timeout_s=5)
        assert isinstance(outcome, NotCommitted)
        nursery.cancel_scope.cancel()
