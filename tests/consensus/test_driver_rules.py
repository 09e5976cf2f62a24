"""A driver at its bounds: room for frames, refusals, stopping, measures, and how often it steps."""

import math
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from raft_world import Register
from trio.testing import MockClock

from gpupool.consensus.driver import RaftDriver, SyncPlace
from gpupool.consensus.protocol.raft_settings import FRAME_BYTES_MAX, INBOX_BYTES_MAX
from gpupool.consensus.storage.store import Storage, bootstrap
from gpupool.pool.measures import Measures
from gpupool.pool.model.ids import ServerId
from gpupool.pool.ports import Committed, NotCommitted, Outcome, Refusal, Role, Unknown
from gpupool.simulations.kernel.simulated_disk import SimulatedDisk

ME, B, C = ServerId("me"), ServerId("b"), ServerId("c")
COMMITS, SYNCS = "raft_commit_duration_seconds", "raft_fsync_duration_seconds"
HANGING_S = 1000.0
"""A sync that takes so long has the next one run on a thread."""


class Time:
    def monotonic(self) -> float:
        return trio.current_time()

    def wall_ms(self) -> int:
        return int(1000 * trio.current_time())


class Links:
    """Links to nobody, which record the calls to them."""

    def __init__(self) -> None:
        self.peers: list[list[ServerId]] = []
        self.hung_up: list[ServerId] = []

    def set_peers(self, peers: Sequence[ServerId]) -> None:
        self.peers.append(sorted(peers))

    def send(self, peer: ServerId, frame: bytes) -> bool:
        del peer, frame
        return True

    def hang_up(self, peer: ServerId) -> None:
        self.hung_up.append(peer)


class Zeros(random.Random):
    """Draws nothing but zeros where bytes are asked for."""

    def randbytes(self, n: int) -> bytes:
        return bytes(n)


class Quick(SyncPlace):
    """A busy machine's syncs stay on the loop's thread: virtual time runs away from a thread."""

    def synced_inline(self, sync_s: float) -> None:
        if sync_s >= HANGING_S:
            super().synced_inline(sync_s)


class Alone:
    """The driver of one server with links to nobody; alone in its pool, or without a vote."""

    def __init__(self, *, votes: bool = True, randomness: random.Random | None = None) -> None:
        self.links, self.machine, self.measures = Links(), Register(), Measures()
        self.storage = Storage(SimulatedDisk(random.Random(7)), create=True)
        if votes:
            bootstrap(self.storage, ME)
        self.driver = RaftDriver(
            ME,
            storage=self.storage,
            machine=self.machine,
            clock=Time(),
            randomness=randomness or random.Random(7),
            links=self.links,
            measures=self.measures,
        )
        self.inside: Any = self.driver
        self.inside._sync_place = Quick()

    def counted(self, name: str) -> int:
        found = self.measures.histograms().get(name)
        return sum(found.counts) if found else 0

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[trio.CancelScope]:
        """Let it run until the block, or the scope that it gets, ends."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.driver.run)
            if self.storage.journal.term:
                with trio.fail_after(20):
                    while self.driver.role() is not Role.LEADER:  # noqa: ASYNC110
                        await trio.sleep(0.02)
            yield nursery.cancel_scope
            nursery.cancel_scope.cancel()


def counted_calls(owner: Any, name: str, patch: pytest.MonkeyPatch) -> list[None]:
    """Return a list that each later call of a method makes longer by one."""
    calls: list[None] = []
    real = getattr(owner, name)

    def call(*given: Any, **named: Any) -> Any:
        calls.append(None)
        return real(*given, **named)

    patch.setattr(owner, name, call)
    return calls


# --- frames ----------------------------------------------------------------------------------


async def test_the_inbox_takes_frames_up_to_its_bound_and_then_hangs_up() -> None:
    alone, frame = Alone(), bytes(FRAME_BYTES_MAX)
    for _ in range(INBOX_BYTES_MAX // FRAME_BYTES_MAX):
        alone.driver.received(B, frame)
        assert alone.links.hung_up == []
    alone.driver.received(C, b"x")
    assert alone.links.hung_up == [C]


async def test_room_for_frames_is_counted_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpupool.consensus.driver.INBOX_BYTES_MAX", 100)
    alone = Alone()
    for size in (50, 30, 20):
        alone.driver.received(B, bytes(size))
    assert alone.links.hung_up == []
    alone.driver.received(B, b"x")
    assert alone.links.hung_up == [B]


@pytest.mark.parametrize("beyond", [0, 1])
async def test_a_frame_longer_than_any_may_be_ends_its_connection(
    beyond: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpupool.consensus.driver.FRAME_BYTES_MAX", 100)
    alone = Alone()
    alone.driver.received(B, bytes(100 + beyond))
    assert alone.links.hung_up == [B] * beyond


async def test_room_is_free_again_once_the_frames_are_taken(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpupool.consensus.driver.INBOX_BYTES_MAX", 100)
    alone = Alone()
    for _ in range(3):
        alone.driver.received(B, bytes(100), more=True)
        alone.links.hung_up.clear()
        alone.inside._begin_step()
        alone.links.hung_up.clear()
    alone.driver.received(B, bytes(100), more=True)
    assert alone.links.hung_up == []


async def test_links_hear_of_the_peers_once_for_each_change(autojump_clock: MockClock) -> None:
    alone = Alone()
    async with alone.running():
        assert alone.links.peers == [[]]
        alone.driver.set_servers([ME, B])
        await trio.sleep(2)
        assert alone.links.peers == [[], [B]]
        alone.driver.set_servers([ME, B, C])
        await trio.sleep(2)
        assert alone.links.peers == [[], [B], [B, C]]


async def test_a_loop_that_always_has_something_to_do_lets_others_run(
    autojump_clock: MockClock,
) -> None:
    alone, seen = Alone(), list[int]()
    turns = 0

    def again(_now: float) -> None:
        nonlocal turns
        turns += 1
        if turns < 500:
            alone.inside._put(again)

    async with alone.running():
        alone.inside._put(again)
        while turns < 500:
            await trio.lowlevel.checkpoint()
            seen.append(turns)
    assert len(set(seen)) > 100


async def test_a_start_is_told_apart_from_none_whatever_is_drawn() -> None:
    assert Alone(randomness=Zeros(7)).inside.node._persisted_votes._start.incarnation > 0


# --- how often it steps ----------------------------------------------------------------------


def submit_as_one_of_many(
    alone: Alone, callback: Callable[[Outcome], None] = lambda _outcome: None
) -> None:
    """Submit a command behind one that met others, so that it waits for the loop."""
    alone.inside._is_alone = False
    alone.driver.submit("x", 5.0, callback)


@pytest.mark.parametrize(
    "name",
    ["set_servers", "reconcile_voters", "submit", "connected", "disconnected", "received"],
)
async def test_each_call_from_outside_wakes_the_loop_for_one_step(
    name: str, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    del mock_clock  # time stands still
    alone = Alone(votes=False)
    driver = alone.driver
    async with alone.running():
        await trio.testing.wait_all_tasks_blocked()
        steps = counted_calls(driver.node, "step", monkeypatch)
        calls: dict[str, Callable[[], None]] = {
            "set_servers": lambda: driver.set_servers([ME]),
            "reconcile_voters": lambda: driver.reconcile_voters([ME]),
            "submit": lambda: submit_as_one_of_many(alone),
            "connected": lambda: driver.connected(B),
            "disconnected": lambda: driver.disconnected(B),
            "received": lambda: driver.received(B, b"x", more=True),
        }
        await trio.testing.wait_all_tasks_blocked()
        assert steps == []
        calls[name]()
        assert steps == [], "not within the call"
        await trio.testing.wait_all_tasks_blocked()
        assert len(steps) == 1


async def test_a_hand_over_begins_at_once(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = Alone()
    async with alone.running(), trio.open_nursery() as nursery:
        autojump_clock.autojump_threshold = math.inf
        await trio.testing.wait_all_tasks_blocked()
        steps = counted_calls(alone.driver.node, "step", monkeypatch)
        nursery.start_soon(partial(alone.driver.hand_over, timeout_s=1.0))
        await trio.testing.wait_all_tasks_blocked()
        assert len(steps) == 1
        nursery.cancel_scope.cancel()


async def test_a_frame_that_comes_alone_costs_one_step(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    del mock_clock  # time stands still
    alone = Alone(votes=False)
    async with alone.running():
        await trio.testing.wait_all_tasks_blocked()
        steps = counted_calls(alone.driver.node, "step", monkeypatch)
        for number in (1, 2, 3):
            alone.driver.received(B, b"x")
            assert len(steps) == number
            await trio.testing.wait_all_tasks_blocked()
            assert len(steps) == number


async def test_a_frame_whose_sync_is_long_costs_one_step_and_one_sync(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    del mock_clock  # time stands still
    alone = Alone(votes=False)
    async with alone.running():
        await trio.testing.wait_all_tasks_blocked()
        node = alone.driver.node
        steps = counted_calls(node, "step", monkeypatch)
        syncs = counted_calls(alone.driver, "_timed_sync", monkeypatch)
        ends = counted_calls(node, "ready", monkeypatch)
        monkeypatch.setattr(Storage, "sync_is_long", property(lambda _self: True))
        alone.driver.received(B, b"x")
        assert (len(steps), len(syncs), len(ends)) == (1, 0, 0)
        await _until(lambda: ends)
        await trio.testing.wait_all_tasks_blocked()
        assert (len(steps), len(syncs), len(ends)) == (1, 1, 1)


# --- outcomes --------------------------------------------------------------------------------


async def test_how_long_a_commit_takes_is_measured_for_what_is_committed_only(
    autojump_clock: MockClock,
) -> None:
    alone = Alone()
    async with alone.running():
        before = alone.counted(COMMITS)
        await trio.sleep(10)
        assert isinstance(await alone.driver.propose("x", timeout_s=5), Committed)
        assert alone.counted(COMMITS) == before + 1
        assert alone.measures.histograms()[COMMITS].sum < 0.01, "alone, it takes no time"
        refused = await alone.driver.propose("x" * 40_000, timeout_s=5)
        assert isinstance(refused, NotCommitted)
        assert alone.counted(COMMITS) == before + 1


async def test_what_waits_when_a_server_stops_may_or_may_not_be_applied(
    autojump_clock: MockClock,
) -> None:
    alone, outcomes = Alone(), list[Outcome]()
    async with alone.running():
        submit_as_one_of_many(alone, outcomes.append)
    assert outcomes == [Unknown("this server is stopping")]


async def test_a_server_that_leads_alone_hands_over_to_nobody(autojump_clock: MockClock) -> None:
    alone = Alone()
    async with alone.running():
        began = trio.current_time()
        assert not await alone.driver.hand_over(timeout_s=0.5)
        assert trio.current_time() - began == pytest.approx(0.5)
        assert alone.driver.role() is Role.LEADER


async def test_a_server_that_does_not_lead_need_not_hand_over(autojump_clock: MockClock) -> None:
    alone = Alone(votes=False)
    async with alone.running():
        began = trio.current_time()
        assert await alone.driver.hand_over(timeout_s=0.5)
        assert trio.current_time() == began


# --- barriers --------------------------------------------------------------------------------


async def wait_for_a_barrier(alone: Alone, passed: list[bool]) -> None:
    passed.append(await alone.driver.barrier(timeout_s=1.0))


async def test_a_barrier_wakes_the_loop_and_takes_no_time_alone(autojump_clock: MockClock) -> None:
    alone = Alone()
    async with alone.running():
        await trio.sleep(1)
        for _ in range(3):
            began = trio.current_time()
            assert await alone.driver.barrier(timeout_s=5)
            assert trio.current_time() - began < 0.001
            await trio.sleep(0.013)


async def test_a_barrier_tries_again_while_there_is_no_leader_yet(
    autojump_clock: MockClock,
) -> None:
    alone = Alone()
    async with trio.open_nursery() as nursery:
        await nursery.start(alone.driver.run)
        assert alone.driver.role() is not Role.LEADER
        assert await alone.driver.barrier(timeout_s=1.0)
        nursery.cancel_scope.cancel()


async def test_a_barrier_without_a_leader_ends_with_its_time(autojump_clock: MockClock) -> None:
    alone = Alone(votes=False)
    async with alone.running():
        began = trio.current_time()
        assert await alone.driver.barrier(timeout_s=1.0) is False
        assert trio.current_time() - began == pytest.approx(1.0)


async def test_a_barrier_that_nobody_answers_has_not_passed(autojump_clock: MockClock) -> None:
    """The loop does not run, as while a disk hangs."""
    alone = Alone()
    began = trio.current_time()
    assert await alone.driver.barrier(timeout_s=1.0) is False
    assert trio.current_time() - began == pytest.approx(1.0)


async def test_a_barrier_that_wakes_far_behind_its_time_has_not_passed(
    mock_clock: MockClock,
) -> None:
    alone, passed = Alone(), list[bool]()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_for_a_barrier, alone, passed)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(5.0)
        await trio.testing.wait_all_tasks_blocked()
        assert passed == [False]


async def test_a_barrier_of_a_server_that_stops_meanwhile_has_not_passed(
    autojump_clock: MockClock,
) -> None:
    alone, passed = Alone(), list[bool]()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_for_a_barrier, alone, passed)
        await trio.testing.wait_all_tasks_blocked()
        alone.inside._stopped = True
    assert passed == [False]
    assert await alone.driver.barrier(timeout_s=1.0) is False


async def test_a_barrier_that_a_stopped_server_is_asked_for_is_refused_at_once(
    autojump_clock: MockClock,
) -> None:
    alone, outcomes = Alone(), list[Outcome]()
    async with alone.running():
        pass
    alone.inside._submit_barrier(1.0, outcomes.append)
    assert outcomes == [NotCommitted("this server is stopping", Refusal.STOPPED)]


async def test_a_barrier_that_is_on_its_way_is_not_joined(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A barrier covers no entry committed after its append."""
    alone = Alone()
    entries = counted_calls(alone.driver.node, "barrier", monkeypatch)

    async def wait() -> None:
        await alone.driver.barrier(timeout_s=0.2)

    async with trio.open_nursery() as nursery:
        for number in (1, 2, 3):
            for _ in range(10):
                nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            assert len(entries) == number


async def test_a_barrier_that_is_given_up_leaves_the_next_ones_alone(
    autojump_clock: MockClock,
) -> None:
    alone = Alone()
    async with alone.running():
        with trio.CancelScope() as scope:
            scope.cancel()
            await alone.driver.barrier(timeout_s=1.0)
        assert scope.cancelled_caught
        assert await alone.driver.barrier(timeout_s=1.0)


# --- syncs on a thread -----------------------------------------------------------------------


async def _until(is_so: Any) -> None:
    """Turn the loop without a sleep, by which virtual time would pass beside a busy thread."""
    while not is_so():
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("inline", [True, False])
async def test_syncs_that_wrote_something_are_measured_wherever_they_run(inline: bool) -> None:
    alone = Alone()
    if not inline:
        alone.inside._sync_place.synced_inline(HANGING_S)
    await alone.inside._sync()
    before = alone.counted(SYNCS)
    await alone.inside._sync()
    assert alone.counted(SYNCS) == before
    alone.storage.journal.set_vote(alone.storage.journal.term + 1, None)
    await alone.inside._sync()
    assert alone.counted(SYNCS) == before + 1
    assert not alone.storage.journal.dirty
    await alone.inside._sync()
    assert alone.counted(SYNCS) == before + 1


async def test_a_leader_that_is_the_only_voter_takes_a_step_a_second_and_is_in_touch_all_the_time(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = Alone()
    async with alone.running():
        await alone.driver.propose("x", timeout_s=1.0)
        await trio.sleep(1.5)  # it seals its journal
        steps = counted_calls(alone.driver.node, "step", monkeypatch)
        await trio.sleep(59.9)
        assert len(steps) == 60
        assert alone.driver.health().majority_age_s == 0.0
        began = trio.current_time()
        assert isinstance(await alone.driver.propose("y", timeout_s=1.0), Committed)
        assert trio.current_time() == began
