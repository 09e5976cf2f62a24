"""Checkers of safety: each is an object that knows nothing of workloads and faults.

The cluster calls them as things happen; none of them changes anything. The *reference* is the log
as the first server to apply each command saw it: Raft promises that all others see the same.
"""

from collections.abc import Iterable

from gpupool.consensus.core.library import LEADER
from gpupool.consensus.core.raft_core import RaftCore
from gpupool.pool.invariants import violations
from gpupool.pool.model.ids import GpuId, LeaseId, Plain, ServerId
from gpupool.pool.model.state import (
    Lease,
    Partition,
    PartStatus,
    PoolState,
    ServerStatus,
)
from gpupool.pool.ports import Committed
from gpupool.simulations.checkers.history import History
from gpupool.simulations.kernel.failure_reporter import FailureReporter
from gpupool.simulations.kernel.machines import Machine, Worker

STATE_EVERY = 16
"""Whole tables are compared at every index that this divides, and at the end."""


class LogsAgree:
    """All servers apply the same commands at the same indices, and get the same tables."""

    def __init__(self, failures: FailureReporter, empty: PoolState) -> None:
        self._failures = failures
        self._commands: dict[int, tuple[Plain, Plain]] = {}
        self._previous: dict[int, int] = {}
        self._states: dict[int, PoolState] = {}
        self._at: dict[str, int] = {}
        self.newest = 0
        """The newest index that any server applied."""
        self.state = empty
        """The table there."""

    def began(self, server: str) -> None:
        """Take note that a server process begins with an empty table."""
        self._at[server] = 0

    def applied(
        self, server: str, index: int, command: Plain, result: Plain, state: PoolState
    ) -> bool:
        """Compare a command that a server applied; return True when it is the first one to."""
        before, self._at[server] = self._at[server], index
        known = self._commands.get(index)
        if known is None:
            if index <= self.newest:
                text = f"{server} applied a command at {index}, where others applied none"
                self._failures.fail("logs-agree", text)
                return False
            self._commands[index] = (command, result)
            self._previous[index] = self.newest
            self.newest, self.state = index, state
            if index % STATE_EVERY == 0:
                self._states[index] = state
        elif known != (command, result):
            text = f"{server} applied another command at {index} than others did"
            if known[0] == command:
                text = f"{server} got another result at {index} than others did"
            self._failures.fail("logs-agree", text)
        elif index in self._states and self._states[index] != state:
            self._failures.fail("logs-agree", f"{server} has another table after {index}")
        if before != self._previous[index]:
            text = f"{server} went from {before} to {index}, others from {self._previous[index]}"
            self._failures.fail("logs-agree", text)
        return known is None

    def restored(self, server: str, state: PoolState) -> None:
        """Compare a table that a server took from a snapshot."""
        if state.index not in self._commands and state.index != 0:
            text = f"{server} restored a table at {state.index}, where nobody applied anything"
            self._failures.fail("logs-agree", text)
        self._at[server] = state.index
        known = self._states.get(state.index)
        if known is not None and known != state:
            self._failures.fail("logs-agree", f"{server} restored another table at {state.index}")

    def acknowledged(self, server: str, command: Plain, outcome: Committed) -> None:
        """Compare the result that a proposer got with the log."""
        known = self._commands.get(outcome.index)
        if known is None:
            text = f"{server} acknowledged {outcome.index}, which nobody has applied"
            self._failures.fail("acknowledged-stays", text)
        elif known != (command, outcome.result):
            text = f"{server} acknowledged {outcome.index}, where another command is"
            self._failures.fail("acknowledged-stays", text)

    def end(self, states: Iterable[tuple[str, PoolState]]) -> None:
        """After healing: nothing is missing anywhere, and all tables are the same."""
        for server, state in states:
            if state.index != self.newest:
                text = f"{server} is at {state.index} after healing, others at {self.newest}"
                self._failures.fail("acknowledged-stays", text)
            elif state != self.state:
                self._failures.fail("logs-agree", f"{server} has another table in the end")


class OneLeader:
    """A term has at most one leader, and a server votes once in a term, restarts included."""

    def __init__(self, failures: FailureReporter) -> None:
        self._failures = failures
        self._leaders: dict[int, str] = {}
        self._votes: dict[tuple[str, int], str] = {}
        self._terms: dict[str, int] = {}

    def forgot(self, server: str) -> None:
        """Take note that a server's disk was replaced by an older copy, with older promises."""
        self._terms.pop(server, None)
        for known in [each for each in self._votes if each[0] == server]:
            del self._votes[known]

    def stepped(self, server: str, core: RaftCore, term: int, vote: str | None) -> None:
        """Look at a server after a step; ``term`` and ``vote`` are those of its journal."""
        if core.state == LEADER:
            leader = self._leaders.setdefault(core.term, server)
            if leader != server:
                self._failures.fail("one-leader", f"{leader} and {server} lead in term {core.term}")
        if term < self._terms.get(server, 0):
            text = f"{server} went back from term {self._terms[server]} to {term}"
            self._failures.fail("one-vote", text)
        self._terms[server] = term
        if vote is not None:
            before = self._votes.setdefault((server, term), vote)
            if before != vote:
                text = f"{server} voted for {before} and for {vote} in term {term}"
                self._failures.fail("one-vote", text)


class TableSound:
    """Every table satisfies ``pool.invariants``: no GPU memory is granted twice by the books."""

    _CHECKED = ("leases", "servers", "usage", "by_request", "closed", "acts")
    """Fields that the invariants depend on; a command that changes none cannot break one."""

    def __init__(self, failures: FailureReporter) -> None:
        self._failures = failures
        self._checked: tuple[object, ...] = (None,) * len(self._CHECKED)

    def applied(self, index: int, state: PoolState) -> None:
        """Check the table after a command was applied for the first time."""
        checked = tuple(getattr(state, name) for name in self._CHECKED)
        if all(now is before for now, before in zip(checked, self._checked, strict=True)):
            return
        self._checked = checked
        if found := violations(state):
            self._failures.fail("table-sound", f"after {index}: {found[0]}")


class MemoryTruth:
    """Workers on one GPU fit into it, and a freed part of a lease has none.

    A part is free on a GPU that the table has. It may have those of a copy, which passed for a
    restart while the original was cut off: nobody gets the original's GPUs then (seed 1151).
    """

    def __init__(self, failures: FailureReporter) -> None:
        self._failures = failures

    def changed(self, machine: Machine) -> None:
        """Check a machine where a worker was started or is gone."""
        capacity = {gpu.id: gpu.capacity for gpu in machine.gpus()}
        for gpu, occupied in machine.occupied().items():
            if occupied > capacity[gpu]:
                leases = sorted({w.lease for w in machine.workers})
                text = f"workers of leases {leases} occupy {occupied} of {capacity[gpu]} on {gpu}"
                self._failures.fail("memory-truth", text)

    def applied(self, index: int, state: PoolState, machines: Iterable[Machine]) -> None:
        """Check that a command applied for the first time has not freed memory in use."""
        for machine in machines:
            server = state.servers.get(machine.server) if machine.workers else None
            if server is None or server.freeing:
                continue  # nothing is granted there
            for worker in machine.workers:
                # A machine that joins anew must have swept before it offers its GPUs again.
                anew = worker.server != machine.server
                shown = any(part.gpu in server.gpus for part in worker.partitions)
                if (
                    server.status is ServerStatus.UP
                    if anew
                    else shown and freed(state, worker.lease, machine.server)
                ):
                    text = f"lease {worker.lease} is freed at {index}, its worker on "
                    self._failures.fail("freed-is-gone", f"{text}{machine.name} lives")
                lease = None if anew or worker.away else state.leases.get(worker.lease)
                if lease is not None and lease.is_away and lease.parts.get(machine.server):
                    text = f"lease {worker.lease} has given its memory back at {index}, and its "
                    text += f"worker on {machine.name} still occupies it"
                    self._failures.fail("suspended-is-away", text)
                if lease is not None and lease.held and not _has_all(lease, worker):
                    text = f"lease {worker.lease} has other GPUs at {index} than its worker on "
                    self._failures.fail("moved-is-gone", f"{text}{machine.name} occupies")


class DeadClientsLeave:
    """Every lease of a client that is gone comes to its end, and so do its workers."""

    def __init__(self, failures: FailureReporter) -> None:
        self._failures = failures

    def left_over(
        self, state: PoolState, living: set[bytes], machines: Iterable[Machine]
    ) -> set[str]:
        """Return the leases and workers left over from clients that are gone.

        Args:
            state: the newest table.
            living: the requests whose client lives and wants its lease.
            machines: all of them.
        """
        found: set[str] = set()
        for lease in state.leases.values():
            if lease.request not in living:
                found.add(f"lease {lease.id}")
        for machine in machines:
            for worker in machine.workers:
                if worker.lease not in state.leases:
                    found.add(f"worker of lease {worker.lease} on {machine.name}")
        return found

    def end(self, before: set[str], after: set[str]) -> None:
        """Judge the remains of clients when all should have been gone, and a while later."""
        for what in sorted(before & after):
            self._failures.fail("dead-clients-leave", f"{what}, of a client that is gone, is there")


class GrantedIsWanted:
    """A client gets the lease it claimed, and none for a request that it abandoned."""

    def __init__(self, failures: FailureReporter) -> None:
        self._failures = failures

    def granted(self, lease: LeaseId, client: str, *, wanted: bool) -> None:
        """Judge a new lease; ``wanted`` is whether its client still waits for it."""
        if not wanted:
            text = f"lease {lease} was granted to {client}, which has gone on to another offer"
            self._failures.fail("granted-is-wanted", text)

    def answered(self, lease: Lease | None, claimed: tuple[Partition, ...]) -> None:
        """Judge the answer to a claim of these partitions; None for a lease long over."""
        if lease is not None and lease.history is not None and lease.history.moved_at:
            return  # It was granted what was claimed, and has other GPUs since.
        if lease is not None and (lease.relocation is not None or lease.here_since):
            return  # The same: on another server.
        if lease is not None and lease.partitions != claimed:
            text = f"lease {lease.id} was the answer to a claim of other partitions than it has"
            self._failures.fail("granted-is-wanted", text)


class AnswersInTime:
    """A server that runs and can be reached answers a claim, if only to refuse it."""

    WITHIN_S = 2.0
    QUIESCENT_S = 10.0
    """For so long nothing must have disturbed server, client or the network between: the kernels
    send again the data that a cut held back, and that takes as long as the cut."""

    def __init__(self, failures: FailureReporter) -> None:
        self._failures = failures

    def answered(self, client: str, server: str, took_s: float, quiescent_s: float) -> None:
        """Judge one claim."""
        if took_s > self.WITHIN_S and quiescent_s > self.QUIESCENT_S:
            text = f"{server} left a claim of {client} without an answer for {took_s:.2f} s"
            self._failures.fail("answers-in-time", text)


class RevokedMeansRevoked:
    """After a confirmed revocation, no later claim with that token is granted."""

    def __init__(self, failures: FailureReporter) -> None:
        self._failures = failures
        self._revoked_at: dict[str, float] = {}
        self._drained: dict[ServerId | tuple[ServerId, GpuId], float] = {}
        self._version = 0

    def revoked(self, token: str, at: float) -> None:
        """Take note of a revocation that was confirmed to its operator."""
        self._revoked_at.setdefault(token, at)

    def drained(self, place: ServerId | tuple[ServerId, GpuId], at: float | None) -> None:
        """Take note that a drain was confirmed, or with None, that somebody begins to undo it."""
        if at is None:
            self._drained.pop(place, None)
        else:
            self._drained[place] = at

    def put(self, version: int) -> None:
        """Take note that a version of the policy was confirmed to its operator."""
        self._version = max(self._version, version)

    def applied(self, lease: Lease, state: PoolState) -> None:
        """Judge a new lease: the policy that was confirmed, or a later one, is in force."""
        if state.policy.version < self._version:
            text = f"version {state.policy.version} of the policy, not {self._version}"
            self._failures.fail("policy-stays", f"lease {lease.id} was granted by {text}")

    def granted(
        self, token: str, lease: LeaseId, partitions: Iterable[Partition], called_at: float
    ) -> None:
        """Judge a claim that was made at ``called_at`` and granted."""
        if called_at > self._revoked_at.get(token, called_at):
            text = f"lease {lease} was granted to token {token} after it was revoked"
            self._failures.fail("revoked-stays", text)
        gpus = {(part.server, part.gpu) for part in partitions}
        for place in (*sorted({server for server, _ in gpus}), *sorted(gpus)):
            if called_at > self._drained.get(place, called_at):
                text = f"lease {lease} was granted on {place} after it was drained"
                self._failures.fail("policy-stays", text)


class Linearizable:
    """The clients' observations could have come from one copy of everything."""

    def __init__(self, failures: FailureReporter) -> None:
        self._failures = failures
        self.unknown = 0
        """Histories for which the search gave up."""
        self.checked = 0

    def end(self, history: History) -> None:
        """Check all histories."""
        for name, verdict in history.verdicts():
            self.checked += 1
            if verdict.linearizable is None:
                self.unknown += 1
            elif not verdict.linearizable:
                self._failures.fail("linearizable", f"the history of {name} has no valid order")


def _has_all(lease: Lease, worker: Worker) -> bool:
    """Return whether the table has a lease on all GPUs that one of its workers occupies."""
    places = {(part.server, part.gpu) for part in lease.partitions}
    return all((part.server, part.gpu) in places for part in worker.partitions)


def freed(state: PoolState, lease_id: LeaseId, server: ServerId) -> bool:
    """Return whether the table says that nothing of this lease lives on this server."""
    lease = state.leases.get(lease_id)
    return lease is None or lease.parts.get(server, PartStatus.FREED) is PartStatus.FREED
