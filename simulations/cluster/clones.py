"""Copies of state directories that run beside their originals, as a cloned machine does."""

from collections import Counter
from functools import partial

from gpupool.consensus.persisted_votes import PROBATION_S
from gpupool.consensus.storage.journal import JOURNAL
from gpupool.pool.model.ids import ServerId
from gpupool.simulations.cluster.run_context import Environment
from gpupool.simulations.cluster.server_process import ServerProcess
from gpupool.simulations.kernel.drifting_clock import DriftingClock
from gpupool.simulations.kernel.machines import Machine
from gpupool.simulations.kernel.process import Process
from gpupool.simulations.kernel.quiescence import between
from gpupool.simulations.kernel.simulated_network import Network

REFUSED_S = 8.0
"""A copy that can reach all others is refused within this: it connects, and the original again."""

AWAKE_S = PROBATION_S - 1.5
"""An original that is stopped goes on by then, or it may dial again too late: it takes 1.5 s."""


class Clones:
    """Starts one copy at a time, and demands that it ends and its original goes on."""

    def __init__(self, environment: Environment) -> None:
        """Begin without a copy."""
        self._environment = environment
        self._original: ServerProcess | None = None
        self._copy: ServerProcess | None = None
        self._started_at = -REFUSED_S
        self._disturbed_at = -REFUSED_S
        self._counts = Counter[str]()  # of each machine
        environment.stepped = self._stepped

    @property
    def active(self) -> bool:
        """Return whether a copy runs."""
        return self._copy is not None

    def disturbed(self, now: float) -> None:
        """Take note of a disturbance that may hide one of the two from the others.

        If the original has not been heard again, its copy may pass for its restart (seed 1151).
        """
        self._disturbed_at = now
        if self._copy is not None and now <= self._started_at + PROBATION_S:
            self._excuse(self._copy)

    def _excuse(self, copy: ServerProcess) -> None:
        self._environment.checkers.one_serves.excused.add(copy.machine)

    def start(self, original: ServerProcess) -> None:
        """Copy the state directory of a server that runs, and start it on another machine."""
        environment, scheduler = self._environment, self._environment.scheduler
        machine = environment.machines[original.machine]
        if JOURNAL not in machine.disk.names():
            return
        random = scheduler.random(f"clone/{machine.name}/{scheduler.now}")
        # By a name of its own its start draws another number than that of an earlier copy.
        self._counts[machine.name] += 1
        count = self._counts[machine.name]
        copy = Machine(
            f"{machine.name}-copy{count if count > 1 else ''}",
            machine.server,
            scheduler=scheduler,
            trace=environment.trace,
            random=random,
            clock=DriftingClock(scheduler, origin_s=1e6, rate=1.0, wall_error_ms=0),
            gpus_gib=[environment.options.gpu_gib[0]] * environment.options.gpus,
            idle=0.0,
            kill_s=environment.options.kill_s,
            workers_changed=environment.checkers.memory.changed,
        )
        copy.disk = machine.disk.clone(random)
        copy.disk.sync_latency_s = environment.options.sync_s
        # A copy shows its original's certificate: without it nobody would listen to it, or tell it.
        copy.authorities = machine.authorities.clone()
        copy.incarnation = machine.incarnation
        environment.checkers.promises.copied(machine.name, copy.name)
        environment.clones[copy.name] = copy
        environment.trace.note("nemesis", "clone", copy.name)
        self._original, self._started_at = original, scheduler.now
        self._copy = ServerProcess(environment, copy, died=self._ended, clone=True)
        copy.process = self._copy
        self._copy.start()
        scheduler.after(AWAKE_S, partial(self._look_at_original, self._copy))
        scheduler.after(REFUSED_S, partial(self._must_be_over, self._copy, scheduler.now))

    def _look_at_original(self, copy: ServerProcess) -> None:
        """Excuse a copy if its original was stopped before it, and cannot be heard in time.

        The others then take the copy for its restart, as they must (seeds 10030765 and 10031601).
        """
        if copy is self._copy and self._original is not None and self._original.paused:
            self._excuse(copy)

    def _ended(self, process: ServerProcess, reason: str) -> None:
        self._environment.trace.note(process.machine, "stopped", reason)
        if process is self._copy:
            self.stop()

    def _stepped(self, process: Process) -> None:
        """End an excused copy before it and its original have a majority each (seed 710357).

        No protocol among voters prevents that (ADR 0032). A copy without an excuse goes on: the
        servers must tell it from its original.
        """
        copy = self._copy
        if copy is None or process is copy:
            return
        excused = copy.machine in self._environment.checkers.one_serves.excused
        if excused and self._is_split(copy):
            self._environment.trace.note("nemesis", "split", f"{copy.machine} ends")
            self.stop()

    def _is_split(self, copy: ServerProcess) -> bool:
        """Return whether the copy could win a majority, and its original another one.

        The copy has the voters that are misled, its original the rest. Where the two majorities
        have to share a voter, that one remembers what it heard, and keeps them apart.
        """
        # The copy counts those of its own log: the original may have lost its vote (seed 10152319).
        known = copy.replicated_log
        voters = known.health().voters if known is not None else ()
        others = [each for each in voters if each != copy.server]
        misled = sum(self._is_misled(each, copy) for each in others)
        wanted = len(voters) // 2  # beside the server itself
        return copy.server in voters and min(misled, len(others) - misled) >= wanted

    def _is_misled(self, server: ServerId, copy: ServerProcess) -> bool:
        """Return whether a fault made a server take the copy for a restart of its original.

        One that does so undisturbed has a fault of its own, which the run is to find (seed 600103).
        """
        environment, original = self._environment, self._original
        name = environment.locate(server)
        if name is None or original is None:
            return False
        keys = (name, original.machine, between(name, original.machine))
        since_s = environment.scheduler.now - self._started_at
        if environment.quiescence.for_s(*keys) > since_s:
            return False
        process = environment.machines[name].process
        if not isinstance(process, ServerProcess) or process.server != server:
            return False
        if process.replicated_log is None or copy.replicated_log is None:
            return False
        known = process.replicated_log.node.storage.memory.of(copy.server)
        return known.start.boot == copy.replicated_log.node.storage.journal.boot

    def _must_be_over(self, copy: ServerProcess, since: float) -> None:
        if copy is self._copy and self._disturbed_at <= since:
            what = f"is not refused within {REFUSED_S:.0f} s"
            self._environment.checkers.one_serves.clone_acts(copy.machine, what)

    def stop(self) -> None:
        """End the copy."""
        copy, self._copy, self._original = self._copy, None, None
        if copy is not None:
            copy.kill()
            network: Network = self._environment.network
            network.process_died(copy)
            self._environment.clones.pop(copy.machine, None)
            self._environment.checkers.one_serves.excused.discard(copy.machine)

    def died(self, process: ServerProcess, reason: str) -> None:
        """Take note that a server ended; its copy cannot be told from it any more."""
        if process is not self._original:
            return
        if "may not take part" in reason and self._copy is not None:
            self._environment.checkers.one_serves.ended(process.machine, self._copy.machine)
        self.stop()
