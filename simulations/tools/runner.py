"""One run of the simulator: make a pool, let faults happen, heal, and report the verdict.

A run has two phases. In the safety phase faults happen, and nothing that is forbidden may ever be
seen. In the liveness phase everything is healed, and the pool must come right in time. The first
failure of a checker ends the run.

A run's log has a hundred kilobytes, and its table a few leases. The rules that begin with a
megabyte of log, or with many leases of one token, would never matter in
it: so bounds are scaled down for a run.
"""

import gc
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

from gpupool.consensus import followers
from gpupool.consensus.core import progress
from gpupool.consensus.core import raft_core as replication
from gpupool.consensus.protocol import raft_settings
from gpupool.consensus.storage import snapshot
from gpupool.pool.transitions import clock_setting, leases
from gpupool.pool.transitions.leases import ENDED_AT_ONCE_MAX
from gpupool.simulations.cluster.cluster import Cluster
from gpupool.simulations.cluster.cluster_faults import ClusterFaults
from gpupool.simulations.cluster.fault_schedule import Fault, happen, schedule
from gpupool.simulations.kernel.failure_reporter import Failure
from gpupool.simulations.kernel.scheduler import NoProgressError
from gpupool.simulations.kernel.swarm_options import Options
from gpupool.simulations.kernel.trace import Line
from gpupool.simulations.tools.liveness import OBSERVE_EVERY_S, LivenessPhase

BATCH_BYTES = 4 * 1024
PROBE_BYTES = 1024
IN_FLIGHT_BYTES = 16 * 1024
IN_FLIGHT_MESSAGES = 8
SNAPSHOT_CHUNK_BYTES = 2 * 1024

_SMALL: tuple[tuple[object, str, int], ...] = (
    (raft_settings, "BATCH_BYTES_MAX", BATCH_BYTES),
    (replication, "BATCH_BYTES_MAX", BATCH_BYTES),
    (replication, "PROBE_BYTES_MAX", PROBE_BYTES),
    (followers, "BATCH_BYTES_MAX", BATCH_BYTES),
    (progress, "IN_FLIGHT_BYTES_MAX", IN_FLIGHT_BYTES),
    (progress, "IN_FLIGHT_MESSAGES_MAX", IN_FLIGHT_MESSAGES),
    (raft_settings, "SNAPSHOT_CHUNK_BYTES", SNAPSHOT_CHUNK_BYTES),
    (snapshot, "SNAPSHOT_CHUNK_BYTES", SNAPSHOT_CHUNK_BYTES),
)


@contextmanager
def scaled(options: Options) -> Generator[None]:
    """Let servers send many messages where small ones are drawn, and end as many leases at once."""
    with ExitStack() as stack:
        stack.enter_context(_set(leases, "ENDED_AT_ONCE_MAX", options.ends_at_once))
        if options.ends_at_once < ENDED_AT_ONCE_MAX:
            moved = options.ends_at_once
            stack.enter_context(_set(clock_setting, "MOVED_AT_ONCE_MAX", moved))
        if options.small_messages:
            for module, name, value in _SMALL:
                stack.enter_context(_set(module, name, value))
        yield


@contextmanager
def _set(module: object, name: str, value: int) -> Generator[None]:
    usual = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, usual)


CREATE_S_MAX = 30.0
"""A pool without faults must be complete within this."""

_APART = frozenset({"clone", "recover", "revoke", "end-lease", "relabel", "worker-death"})
"""Faults that keep no server from hearing of another one."""


@dataclass(frozen=True, slots=True)
class Report:
    """The result of one run."""

    options: Options
    failure: Failure | None
    digest: str
    lines: tuple[Line, ...]
    faults: tuple[Fault, ...]
    virtual_s: float
    event_count: int
    granted: int
    applied: int
    converged_s: float
    histories: int
    histories_unknown: int

    def summary(self) -> str:
        """Return the results of a passed run, as a sentence."""
        return (
            f"{self.virtual_s:.0f} virtual seconds, {len(self.faults)} faults, "
            f"{self.granted} leases granted, {self.histories} histories checked, "
            f"healed within {self.converged_s:.1f} s"
        )


def run(
    options: Options,
    *,
    broken: Callable[[], AbstractContextManager[None]] = nullcontext,
    only: str = "",
    begin_phase: Callable[[str], None] = lambda _name: None,
) -> Report:
    """Run one seed.

    Args:
        options: of the run.
        broken: a deliberately broken build, in force during the run.
        only: the one checker whose failures count; empty for all. A run that cannot go on ends
            all the same, with the failure that says why.
        begin_phase: called with the name of each phase as it begins.
    """
    # Nothing of a run is garbage before its end, and collecting takes a tenth of the time.
    gc.collect()
    gc.disable()
    try:
        with scaled(options), broken():
            simulation = _Simulation(options, only)
            try:
                simulation.create()
                begin_phase("safety")
                simulation.safety_phase()
                begin_phase("liveness")
                simulation.liveness_phase()
            except NoProgressError as error:
                simulation.cluster.failures.fail("no-progress", str(error), hopeless=True)
            return simulation.report()
    finally:
        gc.enable()


def simulate(options: Options, write: Callable[[str], None]) -> Report:
    """Run one seed; write its options, phases and verdict, and the transcript of a failure."""
    for line in options.lines():
        write(line)
    report = run(options, begin_phase=lambda phase: write(f"{phase} phase"))
    if report.failure is None:
        write(f"PASSED: {report.summary()}")
    else:
        for event in report.lines:
            write(str(event))
        write(f"FAILED: {report.failure}")
    write(f"trace {report.digest}")
    return report


class _Simulation:
    def __init__(self, options: Options, only: str) -> None:
        self._options = options
        self._faults = schedule(options)
        self.cluster = Cluster(options, only=only)
        self._target = ClusterFaults(self.cluster)
        self._liveness = LivenessPhase(self.cluster, self._target)

    def create(self) -> None:
        """Let the pool be made, without faults, and the clients come."""
        cluster, scheduler = self.cluster, self.cluster.scheduler
        cluster.create()
        while not cluster.complete and not scheduler.stopped:
            scheduler.run_until(scheduler.now + OBSERVE_EVERY_S)
            if scheduler.now > CREATE_S_MAX:
                text = f"no complete pool after {CREATE_S_MAX} s"
                cluster.failures.fail("creates", text, hopeless=True)
        cluster.trace.note("nemesis", "begin", "the pool is complete")
        cluster.start_clients()

    def safety_phase(self) -> None:
        """Let faults happen; the checkers fail the run for anything that is forbidden."""
        options, scheduler = self._options, self.cluster.scheduler
        begin = scheduler.now
        for fault in self._faults:
            if options.keep is None or fault.number in options.keep:
                scheduler.at(begin + fault.at, partial(self._happen, fault))
        scheduler.run_until(begin + options.fault_s)

    def _happen(self, fault: Fault) -> None:
        random = fault.random(self._options.seed)
        if fault.kind.startswith("client") and not self.cluster.client_names():
            return
        if not fault.kind.startswith("client") and fault.kind not in _APART:
            self._target.disturbed()
        happen(fault, self._target, random)

    def liveness_phase(self) -> None:
        """Heal everything; the run fails if it does not recover in time."""
        self._liveness.run()

    def report(self) -> Report:
        """Return the result."""
        cluster = self.cluster
        checkers = cluster.environment.checkers
        return Report(
            options=self._options,
            failure=cluster.failures.failure,
            digest=cluster.trace.digest(),
            lines=tuple(cluster.trace.lines),
            faults=tuple(self._faults),
            virtual_s=cluster.scheduler.now,
            event_count=cluster.scheduler.event_count,
            granted=cluster.counters.granted,
            applied=checkers.logs.newest,
            converged_s=self._liveness.converged_s,
            histories=checkers.linearizable.checked,
            histories_unknown=checkers.linearizable.unknown,
        )
