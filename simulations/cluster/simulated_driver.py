"""Drives one real ``RaftNode`` under virtual time, as ``consensus.bridge`` does on trio."""

import math
from collections.abc import Callable
from functools import partial
from random import Random

from gpupool.consensus.driver import RETRY_FIRST_S, RETRY_MAX_S
from gpupool.consensus.node import RaftNode, Ready
from gpupool.consensus.protocol.raft_settings import ConsensusSettings
from gpupool.consensus.storage.store import Storage
from gpupool.pool.model.ids import Plain, ServerId
from gpupool.pool.ports import (
    Committed,
    NotCommitted,
    Outcome,
    RaftHealth,
    Role,
    StateMachine,
    Unknown,
)
from gpupool.simulations.cluster.simulated_links import SimulatedTransport
from gpupool.simulations.kernel.drifting_clock import DriftingClock
from gpupool.simulations.kernel.process import Process
from gpupool.simulations.kernel.simulated_disk import SimulatedDisk

STEP_DELAY_S = 0.0002
"""From the first event to the step that handles it: what one loop of the real driver takes."""

Callback = Callable[[Outcome], None]


class SimulatedDriver:
    """One server's consensus: ``PeerEvents``, proposals, and the loop around the node.

    ``after_step`` is called after every step, before anything leaves the server.
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
        self._timer_at = math.inf
        self._peers: tuple[ServerId, ...] | None = None
        self.node = RaftNode(
            server,
            storage=storage,
            machine=machine,
            randomness=random,
            now=clock.monotonic(),
            settings=settings,
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

    def received(self, peer: ServerId, frame: bytes) -> None:
        """Take one frame."""
        self._put(partial(self.node.receive, peer, frame))

    # --- proposals --------------------------------------------------------------------------------

    def propose(
        self, command: Plain, timeout_s: float, callback: Callback, *, idempotent: bool = False
    ) -> None:
        """Do what ``RaftDriver.propose`` does; ``callback`` gets exactly one outcome."""
        submit = partial(self.node.propose, command)
        _Repeated(self._process, self._clock, self, submit, timeout_s, callback, idempotent).start()

    def barrier(self, timeout_s: float, callback: Callable[[bool], None]) -> None:
        """Tell ``callback`` whether everything committed before this call is applied here."""

        def decided(outcome: Outcome) -> None:
            callback(isinstance(outcome, Committed))

        _Repeated(
            self._process, self._clock, self, self.node.barrier, timeout_s, decided, idempotent=True
        ).start()

    def submit(self, action: Callable[[float], None]) -> None:
        """Let ``action`` do something with the node at once, and step it soon."""
        action(self._clock.monotonic())
        self._wake()

    def health(self) -> RaftHealth:
        """Return what this server knows of the state of consensus."""
        return self.node.health(self._clock.monotonic())

    def majority_age_s(self) -> float:
        """Return the ``majority_age_s`` of ``health``, which asks nothing else."""
        return self.node.majority_age_s(self._clock.monotonic())

    def role(self) -> Role:
        """Return the ``role`` of ``health``, which asks nothing else."""
        return self.node.role

    # --- the loop ---------------------------------------------------------------------------------

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
        ready = self.node.ready()
        self._after_step(self)
        latency_s = self._disk.take_latency()
        if latency_s > 0:
            self._busy = True
            self._process.after(latency_s, partial(self._release_later, ready))
        else:
            self._release(ready)

    def _release_later(self, ready: Ready) -> None:
        self._busy = False
        self._release(ready)
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


class _Repeated:
    """One proposal until it is decided, repeated as ``RaftDriver`` repeats it."""

    def __init__(
        self,
        process: Process,
        clock: DriftingClock,
        driver: SimulatedDriver,
        submit: Callable[[float, Callback, float], None],
        timeout_s: float,
        callback: Callback,
        idempotent: bool,
    ) -> None:
        self._process = process
        self._clock = clock
        self._driver = driver
        self._submit = submit
        self._deadline = clock.monotonic() + timeout_s
        self._callback = callback
        self._idempotent = idempotent
        self._pause_s = RETRY_FIRST_S
        self._uncertain: Unknown | None = None
        self._last: Outcome = NotCommitted("the time was up at once")

    def start(self) -> None:
        """Try once; called again for every repetition."""
        remaining_s = self._deadline - self._clock.monotonic()
        if remaining_s <= 0:
            self._finish(self._last)
            return
        self._driver.submit(lambda now: self._submit(remaining_s, self._decided, now))

    def _decided(self, outcome: Outcome) -> None:
        self._last = outcome
        final = isinstance(outcome, NotCommitted) and outcome.reason.startswith("the command ")
        if isinstance(outcome, Committed) or final:
            self._finish(outcome)
            return
        if isinstance(outcome, Unknown):
            self._uncertain = outcome
            if not self._idempotent:
                self._finish(outcome)
                return
        remaining_s = max(self._deadline - self._clock.monotonic(), 0.0)
        self._process.after(min(self._pause_s, remaining_s), self.start)
        self._pause_s = min(2 * self._pause_s, RETRY_MAX_S)

    def _finish(self, outcome: Outcome) -> None:
        if isinstance(outcome, NotCommitted) and self._uncertain is not None:
            outcome = self._uncertain
        self._callback(outcome)
