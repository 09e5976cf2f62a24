"""Drives one ``RaftNode`` on trio, and offers it to others as the ``ReplicatedLog``.

How to use it (``remoting/daemon/compose.py`` wires these parts)::

    storage = open_storage(state_dir, create=identity_is_new)
    if this_is_the_first_server and storage.empty:
        bootstrap(storage, server_id)           # once; everybody else starts without a vote
    log = RaftDriver(server_id, storage=storage, machine=machine, clock=clock,
                        randomness=randomness, links=peer_links)
    log.set_servers(all_server_ids_known)    # again whenever the pool's list of servers changes
    peer_links.deliver_to(log)               # RaftDriver implements PeerEvents
    await nursery.start(log.run)             # raises StorageError when the disk fails

    outcome = await log.propose(command, timeout_s=2.0)
    log.submit(command, 2.0, callback)       # the same, without a task
    fresh = await log.barrier(timeout_s=1.0)
    health = log.health()
    log.reconcile_voters(desired)            # on every server, as often as you like
    await log.hand_over(timeout_s=1.0)       # before a leader stops on purpose
    log.close()                              # after run() ended

**Outcomes.** ``Committed``: applied here, durable on a majority. ``NotCommitted``: was not and will
not be applied, definitely. ``Unknown``: may be applied, now or later. ``propose`` makes a single
attempt; a caller that wants more drives a ``Proposer`` (``remoting/server/proposer.py``), so that
the rule for another attempt stands in one place. A command whose time is up is never appended
afterwards, neither here nor by a leader that gets it late. A barrier has no effect on the table,
so ``barrier`` tries again by itself.

**Joining.** A server with empty storage has no vote. It pulls committed entries from the voters
that ``set_servers`` tells it of, until the leader, by ``reconcile_voters``, gives it one. Links
accept connections from every server of the pool: one that was away may hear first from new voters.

**The loop.** Everything runs on the trio thread, but for long syncs, and for the steps of long
work: encoding a snapshot, or decoding one. Such steps pause after each millisecond or so, because
only one thread runs Python at a time. Others put events into the inbox and wake the loop::

    waiting --(an event, a proposal, or next_step_at)--> stepping --> syncing --> letting out --+
       ^                                                                                        |
       +----------------------------------------------------------------------------------------+

A frame or a command that comes alone does not wait for the loop's turn, which costs as much as a
step. While ``run`` is waiting, and a sync takes no other thread, ``received`` and ``submit`` go
around once by themselves; ``run`` raises their errors. Those that come together wake the loop: one
sync does for all. A command is alone if neither it nor the last one met another without outcome.

    stepping      all events of the inbox in order, then ``node.step`` once
    syncing       a leader's entries leave; then the journal, here or on another thread; nothing
                  else calls ``step`` meanwhile
    letting out   peers to connect to, outcomes, then frames: nobody learns of a vote, an
                  acknowledgement or an outcome earlier

Calls that do not wait for the loop: ``submit``, ``propose`` and ``barrier`` queue at once and
answer from "letting out"; ``set_servers`` and ``reconcile_voters`` note a wish for the next step.

**A full disk** does not end the server: the programs of its leases need no commit. It is as one
that hangs until it has room (``DiskRoom``). No step is done and nothing leaves, so that the server
neither votes nor leads, and the sync is tried again. What was proposed gets its outcome in time.

What is never true: that two steps overlap; that an outcome is handed out before the sync that
it rests on; that ``propose`` waits longer than its time and ``GRACE_S``, or ``submit`` longer than
its time and twice that; that the inbox holds more than ``INBOX_BYTES_MAX`` of frames; that
anything is proposed after ``run``.

**The place of a sync** is the event loop's thread, or another. A quick disk (0.1 ms) would lose
more by the change of threads than by the wait; a slow one would keep the loop waiting. The change
costs little on an idle machine. On a busy one the result of a thread waits for the interpreter,
for a processor and for the loop's next turn. A sync of 0.3 ms then took up to 240 ms, and commits
and heartbeats waited with it.

So both are measured, the sync itself and the change of threads::

    the sync takes, smoothed                          it is done
    less than ``INLINE_MAX_S``                        on the loop's thread
    less than a quarter of what the change takes      on the loop's thread, below ``BUSY_MAX_S``
    longer                                            on another thread

The change can be measured only when there is one, so its figure fades with each sync without one.

**The thread of long work** encodes a snapshot or decodes one. Its steps are short and have pauses
between them, because only one thread runs Python at a time.
"""

import gc
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import trio

from gpupool.consensus.core.library import NEVER
from gpupool.consensus.node import RaftNode
from gpupool.consensus.protocol.raft_settings import (
    FRAME_BYTES_MAX,
    INBOX_BYTES_MAX,
    ConsensusSettings,
)
from gpupool.consensus.snapshot_transfer import Work
from gpupool.consensus.storage.store import Storage
from gpupool.pool.errors import NoRoomError
from gpupool.pool.measures import Measures
from gpupool.pool.model.ids import Plain, ServerId
from gpupool.pool.ports import (
    Clock,
    Committed,
    NotCommitted,
    Outcome,
    PeerLinks,
    RaftHealth,
    Randomness,
    Refusal,
    Role,
    StateMachine,
    Unknown,
)

ROOM_POLL_S = 1.0
"""How often a full disk is tried again."""

_log = logging.getLogger(__name__)


class DiskRoom:
    """Whether the last sync of a driver found disk space."""

    def __init__(self) -> None:
        """Assume that the disk has room."""
        self._lacks = ""

    def refused(self, error: NoRoomError) -> None:
        """Take note of a sync that found none."""
        if not self._lacks:
            _log.error("%s: %s; %s", error.what, error.why, UNTIL_ROOM)
        self._lacks = error.why

    def found(self) -> None:
        """Take note of a sync that was done."""
        if self._lacks:
            _log.warning("the disk has room again: this server takes part again")
            self._lacks = ""

    def age_s(self, majority_age_s: float) -> float:
        """Return for how long this server has not been in touch with a majority."""
        return NEVER if self._lacks else majority_age_s

    def shown(self, health: RaftHealth) -> RaftHealth:
        """Return the health of consensus, with an alarm while the disk is full."""
        if not self._lacks:
            return health
        text = f"the disk of the state directory is full ({self._lacks}): {UNTIL_ROOM}"
        return replace(health, majority_age_s=NEVER, alarm=health.alarm or text)


UNTIL_ROOM = "this server grants nothing and does not vote until there is room; programs go on"


WORK_PAUSE_S = 0.0005
"""Between two steps of long work; as long as the steps themselves, so that half is left."""


class WorkThread:
    """Runs one ``Work`` after the other, each on a separate thread."""

    def __init__(
        self,
        put: Callable[[Callable[[float], None]], None],
        done: Callable[[Work, float], None],
        after_work: Callable[[], None],
    ) -> None:
        """Start without any work.

        Args:
            put: takes an event of the node, on the trio thread.
            done: is that event, with the instant, when the steps of a work have all run.
            after_work: is called on the thread when a work has ended.
        """
        self._put, self._done, self._after_work = put, done, after_work
        self._is_stopped = False
        self._over = trio.Event()
        self._over.set()

    def run(self, work: Work) -> None:
        """Start ``work``; its end is an event of the node, which raises an exception of a step."""
        self._over = trio.Event()
        token = trio.lowlevel.current_trio_token()
        failure: list[Exception] = []

        def steps() -> None:
            gc.disable()  # rows by the hundred thousand would all be visited, for nothing
            try:
                for _ in work.steps:
                    if self._is_stopped:
                        return
                    # To sleep, even so shortly, lets the loop have the interpreter.
                    time.sleep(WORK_PAUSE_S)
            except Exception as error:  # noqa: BLE001 - the loop raises it
                failure.append(error)
            finally:
                self._after_work()
                gc.enable()

        def ended(_: object) -> None:
            token.run_sync_soon(self._ended, work, failure)

        trio.lowlevel.start_thread_soon(steps, ended, "snapshot")

    async def stop(self) -> None:
        """Begin no other step, and wait for the one that runs; it may be writing a file."""
        self._is_stopped = True
        with trio.CancelScope(shield=True):
            await self._over.wait()

    def _ended(self, work: Work, failure: list[Exception]) -> None:
        self._over.set()

        def done(now: float) -> None:
            if failure:
                raise failure[0]
            self._done(work, now)

        if not self._is_stopped:
            self._put(done)


INLINE_MAX_S = 0.002
"""A tenth of the time that a step of the event loop may take."""

BUSY_MAX_S = 0.02
"""Limit for inline syncs of a loop with far longer turns: the time that a step may take."""

CHANGE_SHARE = 0.25
SMOOTHING = 1 / 8
FADING = 0.98


class SyncPlace:
    """Chooses where the next sync runs."""

    def __init__(self) -> None:
        """Begin on the loop's thread."""
        self._sync_s = self._change_s = 0.0

    @property
    def is_inline(self) -> bool:
        """True while the loop's own thread syncs."""
        busy_s = min(CHANGE_SHARE * self._change_s, BUSY_MAX_S)
        return self._sync_s < max(INLINE_MAX_S, busy_s)

    def synced_inline(self, sync_s: float) -> None:
        """Note a sync on the loop's thread."""
        self._sync_s += SMOOTHING * (sync_s - self._sync_s)
        self._change_s *= FADING

    def synced_beside(self, sync_s: float, whole_s: float) -> None:
        """Note a sync on another thread: how long it took there, and until the loop went on."""
        self._sync_s += SMOOTHING * (sync_s - self._sync_s)
        self._change_s += SMOOTHING * (max(whole_s - sync_s, 0.0) - self._change_s)


Callback = Callable[[Outcome], None]


@dataclass(eq=False, slots=True)
class Submitted:
    """One attempt that has no outcome yet; ``decided`` gets it."""

    decided: Callable[["Submitted", Outcome], None]
    callback: Callback
    began: float
    until: float

    def resolve(self, outcome: Outcome) -> None:
        """Hand the outcome on."""
        self.decided(self, outcome)


@dataclass(eq=False, slots=True)
class Waiter:
    """One outcome on its way to one task."""

    event: trio.Event = field(default_factory=trio.Event)
    outcome: Outcome | None = None

    def resolve(self, outcome: Outcome) -> None:
        """Wake the task."""
        self.outcome = outcome
        self.event.set()


@dataclass(eq=False, slots=True)
class SharedBarrier:
    """One barrier entry and the tasks that wait for it."""

    leader_task: bool = False
    passed: bool = False
    done: trio.Event = field(default_factory=trio.Event)


BARRIER_PAUSE_S = 0.05
"""Pause before another barrier: an election takes several times as long."""
HAND_OVER_POLL_S = 0.02
"""How often ``hand_over`` looks whether another server leads."""
GRACE_S = 0.25
"""How much longer than its time a proposal waits for the driver before it says Unknown."""

STOPPED = NotCommitted("this server is stopping", Refusal.STOPPED)


class RaftDriver:
    """One server's ``ReplicatedLog`` and ``PeerEvents``; see the module's docstring."""

    def __init__(
        self,
        server_id: ServerId,
        *,
        storage: Storage,
        machine: StateMachine,
        clock: Clock,
        randomness: Randomness,
        links: PeerLinks,
        settings: ConsensusSettings | None = None,
        after_work: Callable[[], None] = lambda: None,
        clock_refusal: Callable[[Plain], str | None] = lambda _command: None,
        measures: Measures | None = None,
    ) -> None:
        """Start the node; ``after_work`` is called when a snapshot was encoded or decoded."""
        self._clock = clock
        self._links = links
        self._storage = storage
        self._inbox: deque[Callable[[float], None]] = deque()
        self._inbox_bytes = 0
        self._wake = trio.Event()
        self._peers: tuple[ServerId, ...] | None = None
        self._barrier: SharedBarrier | None = None
        self._outcomes: deque[tuple[Callback, Outcome]] = deque()
        self._stopped = False
        self._waits_until: float | None = None  # while ``run`` waits; else None
        self._is_half_done = False  # a step that is to be synced on another thread
        self._failure: Exception | None = None  # of a step outside of ``run``
        self._room = DiskRoom()
        self._submitted: dict[Submitted, None] = {}
        self._is_alone = True  # the newest of them had no other beside it
        self._sync_place = SyncPlace()
        self._measures = measures or Measures()
        self._work = WorkThread(self._put, lambda w, now: self.node.work_done(w, now), after_work)
        self.node = RaftNode(
            server_id,
            storage=storage,
            machine=machine,
            randomness=randomness,
            now=clock.monotonic(),
            settings=settings,
            incarnation=1 + int.from_bytes(randomness.randbytes(7), "little"),
            run_work=self._work.run,
            clock_refusal=clock_refusal,
            stopwatch=clock.monotonic,
        )

    # --- ReplicatedLog ----------------------------------------------------------------------------

    async def propose(self, command: Plain, *, timeout_s: float) -> Outcome:
        """Make one attempt to replicate a command; never raises for a lost leader.

        Args:
            command: plain values, at most 32 KiB as CBOR.
            timeout_s: after this the outcome is ``Unknown`` at worst.
        """
        return await self._attempt(partial(self.submit, command), timeout_s)

    def submit(self, command: Plain, timeout_s: float, callback: Callback) -> None:
        """Make one attempt as ``propose`` does, without a separate task.

        ``callback`` gets exactly one outcome, on the trio thread and never from within this call;
        ``Unknown`` after ``timeout_s`` (seconds) and twice ``GRACE_S`` at worst. It must not raise.
        """
        if self._stopped:
            trio.lowlevel.current_trio_token().run_sync_soon(callback, STOPPED)
            return
        began = self._clock.monotonic()
        submitted = Submitted(self.decided, callback, began, began + timeout_s + GRACE_S)
        self._submitted[submitted] = None
        self.node.propose(command, timeout_s, submitted.resolve, began)
        was_alone, self._is_alone = self._is_alone, len(self._submitted) == 1
        if not (was_alone and self._is_alone and self._step_at_once(keep=True)):
            self._wake.set()

    def decided(self, submitted: Submitted, outcome: Outcome) -> None:
        """Call back with the outcome of a submission, unless it was given up before."""
        if submitted not in self._submitted:
            return
        del self._submitted[submitted]
        if isinstance(outcome, Committed):
            took_s = self._clock.monotonic() - submitted.began
            self._measures.observe("raft_commit_duration_seconds", took_s)
        submitted.callback(outcome)

    async def barrier(self, *, timeout_s: float) -> bool:
        """Return True once everything committed before this call is applied here.

        All that call while no barrier is on its way share the next one: an entry that was
        appended before a call says nothing about what was committed in between.
        """
        deadline = trio.current_time() + timeout_s
        while (remaining := deadline - trio.current_time()) > 0 and not self._stopped:
            shared = self._barrier
            if shared is None:
                shared = self._barrier = SharedBarrier()
            with trio.move_on_after(remaining):
                if shared.leader_task:
                    await shared.done.wait()
                else:
                    shared.leader_task = True
                    await self._run_barrier(shared, remaining)
            if shared.passed:
                return True
            left_s = max(deadline - trio.current_time(), 0.0)
            await trio.sleep(0 if self._stopped else min(BARRIER_PAUSE_S, left_s))
        return False

    def health(self) -> RaftHealth:
        """Return this server's view of consensus; never blocks."""
        return self._room.shown(self.node.health(self._clock.monotonic()))

    def majority_age_s(self) -> float:
        """Return the ``majority_age_s`` of ``health``, which asks nothing else."""
        return self._room.age_s(self.node.majority_age_s(self._clock.monotonic()))

    def role(self) -> Role:
        """Return the ``role`` of ``health``, which asks nothing else."""
        return self.node.role

    # --- PeerEvents --------------------------------------------------------------------------

    def connected(self, peer: ServerId) -> None:
        """Say that a connection with ``peer`` is up."""
        self._put(partial(self.node.connected, peer))

    def disconnected(self, peer: ServerId) -> None:
        """Say that the connection with ``peer`` is gone."""
        self._put(partial(self.node.disconnected, peer))

    def received(self, peer: ServerId, frame: bytes, *, more: bool = False) -> None:
        """Take one frame, and step if it has come alone; when too much waits already, hang up.

        A connection carries all frames in order or none: the rules of Raft's core rest on it.
        """
        if self._inbox_bytes + len(frame) > INBOX_BYTES_MAX or len(frame) > FRAME_BYTES_MAX:
            _log.warning("hung up on server %s: no room for a frame of %d bytes", peer, len(frame))
            self._links.hang_up(peer)
            return
        self._inbox_bytes += len(frame)
        self._inbox.append(partial(self.node.receive, peer, frame))
        if more or not self._step_at_once():
            self._wake.set()

    # --- the rest of the server --------------------------------------------------------------

    def set_servers(self, servers: Sequence[ServerId], *, removed: bool = False) -> None:
        """Set the servers of the pool, voters or not, to which connections are kept.

        ``removed`` says that this one does not any more, for good.
        """
        self.node.set_servers(servers, removed=removed)
        self._wake.set()

    def reconcile_voters(
        self, desired: Sequence[ServerId], *, stopgaps: Collection[ServerId] = ()
    ) -> None:
        """Whenever this server leads, bring the voters nearer to ``desired``, one at a time.

        A server is given a vote once it is connected and has nearly the whole log; a leader that
        is not among ``desired`` hands over first. One of ``stopgaps`` leads only while no other
        voter can. Call it on every server with the same lists.
        """
        self.node.reconcile_voters(desired, stopgaps=stopgaps)
        self._wake.set()

    async def hand_over(self, *, timeout_s: float) -> bool:
        """Let another voter lead, before stopping on purpose; True once this one does not."""
        with trio.move_on_after(timeout_s):
            while self.node.leads:
                self.node.hand_over(self._clock.monotonic())
                self._wake.set()
                await trio.sleep(HAND_OVER_POLL_S)
        return not self.node.leads

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Drive the node until cancelled.

        Raises:
            StorageError: when the journal or a snapshot cannot be written. The server must stop.
            SafetyError: when an invariant of Raft would be broken. The server must stop.
            ApplyError: when this server alone could not apply a command. It must stop.
        """
        try:
            await self._step()
            task_status.started()
            while True:
                await self._wait()
                self._wake = trio.Event()
                await self._step()
        finally:
            self._stopped = True
            await self._work.stop()
            for submitted in list(self._submitted):
                self.decided(submitted, Unknown("this server is stopping"))

    def close(self) -> None:
        """Seal the journal and let the state directory go; after ``run`` has ended."""
        self._storage.close()

    # --- inside ------------------------------------------------------------------------------

    def _put(self, event: Callable[[float], None]) -> None:
        self._inbox.append(event)
        self._wake.set()

    async def _wait(self) -> None:
        """Wait until a step is due."""
        due = self.node.next_step_at()
        wait_s = due - self._clock.monotonic()
        if wait_s <= 0 or self._inbox:
            await trio.lowlevel.checkpoint()
            return
        self._waits_until = due
        try:
            with trio.move_on_after(wait_s):
                await self._wake.wait()
        finally:
            self._waits_until = None

    def _step_at_once(self, *, keep: bool = False) -> bool:
        """Step in the caller's task; False when something is left for the loop to do."""
        until = self._waits_until
        if until is None or self._wake.is_set() or not self._sync_place.is_inline:
            return False
        self._waits_until = None  # what this step causes goes the usual way
        try:
            self._begin_step()
            if self.node.storage.sync_is_long:
                self._is_half_done = True
                return False
            self._sync_inline()
            self._end_step(keep=keep)
        except NoRoomError:
            self._is_half_done = True
            return False
        except Exception as error:  # noqa: BLE001 - ``run`` raises it
            self._failure = error
            return False
        self._waits_until = until
        return not self._inbox and not self._outcomes and self.node.next_step_at() >= until

    async def _step(self) -> None:
        """Handle all that arrived, sync once, and let frames and results out, in this order."""
        if self._failure is not None:
            raise self._failure
        if not self._is_half_done:
            self._begin_step()
        self._is_half_done = False
        await self._sync_with_room()
        self._end_step()

    def _begin_step(self) -> None:
        """Handle all that arrived."""
        now = self._clock.monotonic()
        for _ in range(len(self._inbox)):
            self._inbox.popleft()(now)
        self._inbox_bytes = 0
        self.node.step(now)
        self._send(self.node.early())  # The followers' disks work beside the leader's.

    def _end_step(self, *, keep: bool = False) -> None:
        """Send frames and outcomes after a sync; with ``keep`` the loop hands out the outcomes."""
        ready = self.node.ready()
        if (peers := self.node.peers()) != self._peers:
            self._peers = peers
            self._links.set_peers(peers)
        self._outcomes += ready.resolved
        while self._outcomes and not keep:
            callback, outcome = self._outcomes.popleft()
            callback(outcome)
        self._send(ready.frames)  # They tell others what is committed; our client hears first.

    def _send(self, frames: list[tuple[ServerId, bytes]]) -> None:
        for peer, frame in frames:
            if not self._links.send(peer, frame):
                self._links.hang_up(peer)  # What comes after a lost frame must not arrive.

    async def _sync_with_room(self) -> None:
        """Sync, as soon as there is room on the disk."""
        while True:
            try:
                await self._sync()
            except NoRoomError as error:
                self._room.refused(error)
                with trio.move_on_after(ROOM_POLL_S):
                    await self._give_up_late()
            else:
                self._room.found()
                return

    async def _sync(self) -> None:
        """Sync on this thread or on another, as ``SyncPlace`` says."""
        if self.node.storage.sync_is_long:
            await self._sync_on_thread()
            return
        if self._sync_place.is_inline:
            self._sync_inline()
            return
        began, writes = self._clock.monotonic(), self.node.storage.journal.dirty
        took_s = await self._sync_on_thread()
        if writes:
            self._measures.observe("raft_fsync_duration_seconds", took_s)
        self._sync_place.synced_beside(took_s, self._clock.monotonic() - began)

    def _sync_inline(self) -> None:
        writes, took_s = self.node.storage.journal.dirty, self._timed_sync()
        if writes:
            self._measures.observe("raft_fsync_duration_seconds", took_s)
        self._sync_place.synced_inline(took_s)

    def _timed_sync(self) -> float:
        """Sync on the thread that calls; return for how long a real disk kept it."""
        began = time.perf_counter()
        self.node.sync()
        return time.perf_counter() - began

    async def _sync_on_thread(self) -> float:
        failure, took_s = None, 0.0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._give_up_late)
            try:
                took_s = await trio.to_thread.run_sync(self._timed_sync)
            except Exception as error:  # noqa: BLE001 - raised below, outside of a group
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return took_s

    async def _give_up_late(self) -> None:
        """Answer in time while a disk hangs, for which the node's loop waits."""
        while True:
            for submitted in list(self._submitted):
                if submitted.until <= self._clock.monotonic():
                    self.decided(submitted, Unknown("no answer in time"))
            await trio.sleep(GRACE_S)

    def _submit_barrier(self, timeout_s: float, callback: Callback) -> None:
        if self._stopped:
            callback(STOPPED)
            return
        self.node.barrier(timeout_s, callback, self._clock.monotonic())
        self._wake.set()

    async def _attempt(
        self, submit: Callable[[float, Callback], None], timeout_s: float
    ) -> Outcome:
        waiter = Waiter()
        submit(timeout_s, waiter.resolve)
        with trio.move_on_after(timeout_s + GRACE_S):
            await waiter.event.wait()
        return waiter.outcome or Unknown("no answer in time")

    async def _run_barrier(self, shared: SharedBarrier, timeout_s: float) -> None:
        """Commit one barrier for all waiting tasks; tasks that come later share the next one."""
        try:
            # Let everything that is ready to run join before the entry is appended.
            await trio.lowlevel.checkpoint()
            if self._barrier is shared:
                self._barrier = None
            outcome = await self._attempt(self._submit_barrier, timeout_s)
            shared.passed = isinstance(outcome, Committed)
        finally:
            if self._barrier is shared:
                self._barrier = None
            shared.done.set()
