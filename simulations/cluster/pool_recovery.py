"""``gpupool recover`` after most servers were lost for good, and the return of one of them."""

from functools import partial
from random import Random

from gpupool.consensus import recovery
from gpupool.consensus.storage.store import Storage
from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.state import PoolState
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.pool.transitions.servers import removals_of_others
from gpupool.simulations.cluster.cluster import Cluster
from gpupool.simulations.cluster.server_process import ServerProcess
from gpupool.simulations.kernel.ca_files import trust_each_other
from gpupool.simulations.kernel.machines import Machine

TOLD_S = 8.0
"""A server that was left behind and can be reached is told so within this."""


class Recovery:
    """The operator's work, once in a run."""

    def __init__(self, cluster: Cluster) -> None:
        """Begin with nothing lost."""
        self._cluster = cluster
        self._done = False
        self._ghost = ""  # the machine of the server that returned as it was
        self._former: ServerId | None = None
        self.disturbed_at = -TOLD_S

    def happen(self, random: Random) -> None:
        """Stop all servers, and let the one that knows most go on alone.

        One of the others returns as it was, which must not last; the rest do ``gpupool rejoin``.
        The real order may go to any server that is left, and loses what that one lacks. The voter
        that knows most lacks nothing that was ever confirmed, so here nothing may be lost. One
        without the CA's key could let nobody in afterwards, of which the real order warns.
        """
        cluster, environment = self._cluster, self._cluster.environment
        if self._done:
            return
        voters = self._voters()
        keys = [environment.machines[name].authorities for name in voters]
        if not all(each.keys.issuperset(each.trusted) for each in keys):
            return
        disks = {name: environment.machines[name].disk for name in cluster.servers}
        if any("repair" in disk.names() for disk in disks.values()):
            return  # who knows most cannot be told from the logs
        if any(disk.power_fails_after is not None for disk in disks.values()):
            return  # and not while a disk is about to lose its power (seed 122)
        if any(disk.full or disk.broken for disk in disks.values()):
            return  # a server makes room for its log when it starts (seed 620080)
        self._done = True
        environment.trace.note("nemesis", "recover", "all servers stop")
        now, machines = cluster.scheduler.now, environment.machines.values()
        environment.checkers.authorities.look(machines, now)
        for process in list(cluster.servers.values()):
            cluster.end_process(process)
        known: list[tuple[int, int, str]] = []
        for name in voters:
            storage = Storage(disks[name], create=False)
            found = recovery.replay(storage, PoolMachine(PoolState()))
            known.append((found.last_term, found.last_index, name))
        survivor = max(known)[2]
        self._recover(survivor)
        cluster.restart_later(survivor, 0.1)
        others = [name for name in cluster.servers if name != survivor]
        ghost = random.choice(others)
        former = environment.machines[ghost].server
        later_s = 0.5 + 2.0 * random.random()
        environment.scheduler.after(later_s, partial(self._return, ghost, former))
        for name in others:
            if name != ghost:  # Together these would be the old pool (seed 9067).
                cluster.rejoin(name, at_once=True)

    def heal(self) -> None:
        """Let the operator do ``gpupool rejoin`` on the one that returned, if nobody can tell it.

        The pool may exchange its CA while that server is cut off: it is no member any more, so
        nothing waits for it, and then no link with it comes up (seed 7000000). Or the survivor that
        was to tell it has left the pool meanwhile (seed 1358), or has told it when its disk could
        write nothing (seed 1166): a real server tells it once more when it dials, as all that were
        removed.
        """
        ghost = self._cluster.environment.machines.get(self._ghost)
        if ghost is None or ghost.server != self._former:
            return
        if not any(map(partial(self._tells, ghost), self._cluster.servers.values())):
            self._cluster.rejoin(ghost.name)

    def _tells(self, ghost: Machine, process: ServerProcess) -> bool:
        """Return whether a server dials the one that was left behind, and a link can come up.

        Another one that trusts its CA is of no help: it tells nobody (seed 10170201).
        """
        replicated_log = process.replicated_log
        if replicated_log is None:
            return False
        machine = self._cluster.environment.machines[process.machine]
        is_to_tell = replicated_log.node.storage.memory.fenced.get(ghost.server) is False
        return is_to_tell and trust_each_other(ghost.authorities, machine.authorities)

    def _voters(self) -> list[str]:
        found: list[str] = []
        for name, process in self._cluster.servers.items():
            replicated_log = process.replicated_log
            if replicated_log is not None and process.server in replicated_log.health().voters:
                found.append(name)
        return found

    def _recover(self, survivor: str) -> None:
        machine = self._cluster.environment.machines[survivor]
        storage, table = Storage(machine.disk, create=False), PoolMachine(PoolState())
        found = recovery.replay(storage, table)
        state = table.state
        removals = removals_of_others(state, machine.server, at_ms=state.now)
        others: list[ServerId] = sorted({*state.servers, *found.voters} - {machine.server})
        recovery.recover(storage, machine.server, removals, others=others)
        self._cluster.trace.note(survivor, "recovered", f"from entry {found.last_index} on")

    def _return(self, ghost: str, former: ServerId) -> None:
        cluster = self._cluster
        cluster.start_again(ghost)
        process = cluster.servers.get(ghost)
        if process is None or process.server != former:
            return
        # Where its disk is broken it stops at once, and is started again (seed 10102400).
        self._ghost, self._former = ghost, former
        if process.alive:
            since = cluster.scheduler.now
            cluster.scheduler.after(TOLD_S, partial(self._must_be_over, process, since))

    def _must_be_over(self, ghost: ServerProcess, since: float) -> None:
        cluster = self._cluster
        if self.disturbed_at <= since and ghost.alive:
            checkers = cluster.environment.checkers
            checkers.one_serves.left_behind(ghost.machine)
