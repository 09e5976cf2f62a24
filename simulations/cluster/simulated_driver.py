"""Drives one real ``RaftNode`` under virtual time, as ``consensus.driver`` does on trio."""

import math
from collections.abc import Callable
from functools import partial
from random import Random

from gpupool.consensus.driver import ROOM_POLL_S, DiskRoom
from gpupool.consensus.node import RaftNode, Ready
from gpupool.consensus.protocol.raft_settings import ConsensusSettings
from gpupool.consensus.snapshot_transfer import Work
from gpupool.consensus.storage.store import Storage
from gpupool.pool.errors import NoRoomError
from gpupool.pool.model.commands import Command
from gpupool.pool.model.ids import Plain, ServerId
from gpupool.pool.ports import Outcome, RaftHealth, Randomness, Role, StateMachine
from gpupool.pool.table_clock import TableClock
from gpupool.remoting.server.proposer import Decision, Propose, Proposer
from gpupool.simulations.cluster.simulated_links import SimulatedTransport
from gpupool.simulations.kernel.drifting_clock import DriftingClock
from gpupool.simulations.kernel.process import Process
from gpupool.simulations.kernel.simulated_disk import SimulatedDisk

STEP_DELAY_S = 0.0002
"""From the first event to the step that handles it: the time of one loop of the real driver."""

WORK_S = 0.04
"""Seconds that encoding, decoding and writing a snapshot take beside the loop."""

Callback = Callable[[Outcome], None]


class SimulatedDriver:
    """One server's consensus: ``PeerEvents``, proposals, and the loop around the node.

    ``after_step`` is called after every step and its sync, before anything leaves the server but
    the entries of a leader. These leave first, and the sync is over only after its latency: a
    crash in between loses what the others have heard of.
    """

    def __init__(
        self,
        server: ServerId,
        *,
        process: Process,
        clock: DriftingClock,
        disk: SimulatedDisk,
        storage: Storage,
        machine: StateMachine,
        random: Random,
        links: SimulatedTransport,
        settings: ConsensusSettings,
        clock_refusal: Callable[[Plain], str | None],
        incarnation: Random,
        after_step: Callable[["SimulatedDriver"], None],
        guard: Callable[[Callable[[], None]], None],
    ) -> None:
        """Start the node.

        Args:
            server: its id.
            process: in which everything here happens.
            clock: of the machine.
            disk: whose latency holds back what leaves.
            storage: opened on ``disk``.
            machine: the state machine.
            random: for elections.
            links: to the peers; they report here.
            settings: of consensus.
            clock_refusal: why a leader must not append a command for its time.
            incarnation: from which this start's number is drawn, as the real driver draws it.
            after_step: for checkers.
            guard: runs a step, and ends the process when the disk or the power fails.
        """
        self._process = process
        self._clock = clock
        self._disk = disk
        self._links = links
        self._after_step = after_step
        self._guard = guard
        self._inbox: list[Callable[[float], None]] = []
        self._step_scheduled = False
        self._busy = False
        self._room = DiskRoom()
        self._timer_at = math.inf
        self._peers: tuple[ServerId, ...] | None = None
        self.node = RaftNode(
            server,
            storage=storage,
            machine=machine,
            randomness=random,
            now=clock.monotonic(),
            settings=settings,
            run_work=self._run_work,
            clock_refusal=clock_refusal,
            incarnation=1 + int.from_bytes(incarnation.randbytes(7), "little"),
        )
        links.events = self
        disk.take_latency()

    # --- PeerEvents -------------------------------------------------------------------------------

    def connected(self, peer: ServerId) -> None:
        """Say that a connection with ``peer`` is up."""
        self._put(partial(self.node.connected, peer))

    def disconnected(self, peer: ServerId) -> None:
        """Say that the connection with ``peer`` is gone."""
        self._put(partial(self.node.disconnected, peer))

    def received(self, peer: ServerId, frame: bytes, *, more: bool = False) -> None:
        """Take one frame; a simulated one comes alone."""
        self._put(partial(self.node.receive, peer, frame))

    # --- proposals --------------------------------------------------------------------------------

    def propose(self, command: Plain, timeout_s: float, callback: Callback) -> None:
        """Make one attempt, as ``RaftDriver.propose`` does; ``callback`` gets one outcome."""
        self.submit(partial(self.node.propose, command, timeout_s, callback))

    def submit(self, action: Callable[[float], None]) -> None:
        """Let ``action`` do something with the node at once, and step it soon."""
        action(self._clock.monotonic())
        self._wake()

    def health(self) -> RaftHealth:
        """Return this server's view of consensus."""
        return self._room.shown(self.node.health(self._clock.monotonic()))

    def majority_age_s(self) -> float:
        """Return the ``majority_age_s`` of ``health``, which asks nothing else."""
        return self._room.age_s(self.node.majority_age_s(self._clock.monotonic()))

    def role(self) -> Role:
        """Return the ``role`` of ``health``, which asks nothing else."""
        return self.node.role

    # --- the loop ---------------------------------------------------------------------------------

    def _run_work(self, work: Work) -> None:
        """Run long work at once, and report its end later: others go on meanwhile."""
        for _ in work.steps:
            pass
        self._process.after(WORK_S, partial(self._put, partial(self.node.work_done, work)))

    def start(self) -> None:
        """Make the first step."""
        self._wake()

    def _put(self, event: Callable[[float], None]) -> None:
        self._inbox.append(event)
        self._wake()

    def _wake(self) -> None:
        if not self._step_scheduled and not self._busy:
            self._step_scheduled = True
            self._process.after(STEP_DELAY_S, self._step)

    def _step(self) -> None:
        self._step_scheduled = False
        if not self._busy:
            self._guard(self._step_now)

    def _step_now(self) -> None:
        now = self._clock.monotonic()
        inbox, self._inbox = self._inbox, []
        for event in inbox:
            event(now)
        self.node.step(now)
        early = self.node.early()
        for peer, frame in early:
            self._links.send(peer, frame)
        wait_s = self._disk.sync_latency_s if early else 0.0
        if wait_s > 0:
            self._busy = True
            self._process.after(wait_s, partial(self._guard, partial(self._sync, wait_s)))
        else:
            self._sync(0.0)

    def _sync(self, waited_s: float) -> None:
        """Sync, and let the rest out once the disk has taken its time, of which some is over."""
        try:
            ready = self.node.ready()
        except NoRoomError as error:
            self._room.refused(error)
            self._busy = True
            again = partial(self._guard, partial(self._sync, waited_s))
            self._process.after(ROOM_POLL_S, again)
            return
        self._room.found()
        self._busy = False
        self._after_step(self)
        latency_s = self._disk.take_latency() - waited_s
        if latency_s > 0:
            self._busy = True
            self._process.after(latency_s, partial(self._release_later, ready))
        else:
            self._release(ready)
            if self._inbox:
                self._wake()

    def _release_later(self, ready: Ready) -> None:
        self._busy = False
        self._guard(partial(self._release, ready))
        if self._inbox:
            self._wake()

    def _release(self, ready: Ready) -> None:
        if (peers := self.node.peers()) != self._peers:
            self._peers = peers
            self._links.set_peers(peers)
        for peer, frame in ready.frames:
            self._links.send(peer, frame)
        for callback, outcome in ready.resolved:
            callback(outcome)
        self._set_timer()

    def _set_timer(self) -> None:
        due = self.node.next_step_at()
        if due == math.inf:
            return
        when = self._clock.world_time(due)
        if when < self._timer_at - 1e-6:
            self._timer_at = when
            self._process.scheduler.at(when, partial(self._process.run, partial(self._timer, when)))

    def _timer(self, when: float) -> None:
        if when != self._timer_at:
            return
        self._timer_at = math.inf
        if self._busy:
            return
        if self.node.next_step_at() <= self._clock.monotonic() + 1e-6:
            if not self._step_scheduled:
                self._step_scheduled = True
                self._step()
        else:
            self._set_timer()


class SimulatedCommitter:
    """Commits commands of a server without a controller, as ``Committer`` does on trio."""

    def __init__(
        self,
        process: Process,
        table_clock: TableClock,
        *,
        clock: DriftingClock,
        rng: Randomness,
        propose: Callable[[Plain, float, Callback], None],
    ) -> None:
        self._process = process
        self._clock = clock
        self._propose = propose
        self._proposer = Proposer(table_clock, rng, emit=self._attempt)

    def commit(
        self, command: Command, timeout_s: float, decided: Callable[[Decision], None]
    ) -> None:
        """Get ``command`` committed within ``timeout_s``; ``decided`` gets one decision."""
        self._proposer.propose(command, decided, timeout_s=timeout_s, bounded=False)

    def _attempt(self, attempt: Propose) -> None:
        ended = partial(self._ended, attempt.number)
        self._propose(attempt.command, attempt.timeout_s, ended)

    def _ended(self, number: int, outcome: Outcome) -> None:
        self._proposer.outcome(number, outcome)
        due = self._proposer.wake_at()
        if due != math.inf:
            wait_s = self._clock.world_time(due) - self._process.scheduler.now
            self._process.after(max(wait_s, 0.0) + STEP_DELAY_S, self._proposer.poll)
