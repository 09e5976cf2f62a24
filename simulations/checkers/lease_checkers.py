"""Checkers of ends: a lease ends for a reason that the rules give, not early, and is freed once.

They follow the log as the first server to apply each command saw it, and compare each change of a
lease with the command that made it and with the facts in ``LeaseCauses``.
"""

from collections.abc import Mapping
from math import inf

from gpupool.pool.model.commands import (
    CancelRequest,
    Command,
    EndLease,
    Envelope,
    FreeLease,
    GiveNotice,
    RemoveServer,
    RestoreBackup,
    RevokeToken,
    ServerUp,
    SetClock,
)
from gpupool.pool.model.ids import LeaseId, ServerId
from gpupool.pool.model.state import Lease, PartStatus, PoolState
from gpupool.pool.model.suspension import SuspensionState
from gpupool.pool.policy.lease_ends import idle_reason
from gpupool.pool.policy.policy_values import duration_ms
from gpupool.pool.reconcile import UNATTACHED_MAX_S
from gpupool.pool.transitions import clock_setting
from gpupool.simulations.checkers.lease_causes import LeaseCauses, longest_rests
from gpupool.simulations.kernel.failure_reporter import FailureReporter
from gpupool.simulations.kernel.machines import Machine

SPEED_MAX = 2.1
"""Of a monotonic clock against virtual time: the fastest of the faults, with its drift."""

SLACK_S = 0.25
"""Tolerance for the measurement of a rest: a look at the host, a message."""

IN_FLIGHT_S = 6.0
"""From a server's decision until its command is applied, attempts and forwarding included."""

CLIENT_GONE = "its client disconnected"
NEVER_CONNECTED = "its client never connected"
AWAY_TOO_LONG = "it was suspended for "
NOT_MOVED = "it could not be moved: "
NOBODY_WAITS = "nobody waits for it any more"

_RESUMING = SuspensionState.RESUMING


class BatchesGoOn:
    """Once nothing is disturbed, commands that end leases in batches come to their end."""

    LATE_S = 2.0
    """As many commits as a run has leases."""

    def __init__(self, failures: FailureReporter) -> None:
        self._failures = failures
        self._left_since: dict[LeaseId | ServerId | None, float] = {}

    def observe(self, state: PoolState, now: float) -> None:
        """Check the leases of revoked tokens, removed servers, and a time that was set."""
        revoked = {token.id for token in state.tokens.values() if token.revoked_at}
        held = {each.id for each in state.leases.values() if each.held and each.token in revoked}
        leaving = {each for each in state.removed if each in state.servers}
        moving = [None] if state.moving is not None else []
        left = self._left_since
        self._left_since = {each: left.get(each, now) for each in (*held, *leaving, *moving)}
        for each, since in self._left_since.items():
            late_s = now - since
            if late_s <= self.LATE_S:
                continue
            if each is None:
                text = f"leases are not moved {late_s:.1f} s after the time was set"
                self._failures.fail("set-time-moves", text)
            elif each in held:
                text = f"lease {each} is held {late_s:.1f} s after its token was revoked"
                self._failures.fail("revoked-ends", text)
            else:
                text = f"server {each} is in the table {late_s:.1f} s after it was removed"
                self._failures.fail("removed-goes", text)


class LeasesEndRightly:
    """No lease ends but for a reason that the rules give and the history has; none ends early."""

    def __init__(self, failures: FailureReporter, causes: LeaseCauses) -> None:
        self._failures = failures
        self._causes = causes
        self._no_way_back: set[LeaseId] = set()
        """Leases that lost their old GPUs to others at some time since they were moved."""

    def applied(
        self,
        envelope: Envelope,
        before: PoolState,
        after: PoolState,
        machines: Mapping[ServerId, Machine],
        now: float,
    ) -> None:
        """Judge the effect on leases of a command applied for the first time at ``now``."""
        for lease_id in after.leases.keys() - before.leases.keys():
            self._causes.granted_at[lease_id] = now
        arriving = (each for each in after.leases.suspended().values() if _is_arriving(each))
        self._no_way_back |= {each.id for each in arriving if _is_taken(after, each)}
        if before.leases is after.leases or isinstance(envelope.command, RestoreBackup):
            return
        for lease in before.leases.values():
            left = after.leases.get(lease.id)
            if left is lease:
                continue
            if before.moving is not None:
                # The command is about the lease as the setting of the time leaves it.
                lease = clock_setting.moved_ahead(before, lease.id).leases[lease.id]
            if lease.held and (left is None or not left.held):
                self._judge_end(envelope.command, lease, before, after, machines, now)
            elif left is not None:
                self._judge_terms(envelope.command, lease, left, after)
            self._judge_frees(envelope.command, lease, left, before)

    def _judge_end(
        self,
        command: Command,
        lease: Lease,
        before: PoolState,
        after: PoolState,
        machines: Mapping[ServerId, Machine],
        now: float,
    ) -> None:
        causes, why = self._causes, ""
        servers = [machines[each].name for each in lease.parts if each in machines]
        match command:
            case EndLease(reason=reason, by=by) if command.lease == lease.id:
                if by == lease.user and lease.id not in causes.released:
                    why = f"{by} did not give it back"
                elif by and by != lease.user and lease.id not in causes.ordered:
                    why = f"{by} did not order it"
                elif not by and lease.id not in causes.released:
                    why = self._objection(reason, lease, after, machines, now)
            case CancelRequest(request=request, user=user) if request == lease.request:
                since = causes.claimed_at.get(request, inf)
                if user and request not in causes.cancelled:
                    why = f"{user} did not cancel its request"
                elif not user and not causes.lost_since(lease.client, servers, since):
                    why = "no server of it lost its client"
            case RevokeToken(token=token):
                why = "" if token == lease.token else "its token is another one"
            case RemoveServer(server=server):
                why = "" if server in lease.parts else "the server has no part of it"
            case ServerUp(server=server, incarnation=incarnation):
                later = incarnation > before.servers[server].incarnation
                if server not in lease.parts or not (later or before.servers[server].freeing):
                    why = "no server of it has restarted"
            case _:
                why = "no rule says so"
        if why:
            text = f"lease {lease.id} of {lease.client} was ended by {command}: {why}"
            self._failures.fail("ends-for-a-reason", text)

    def _objection(
        self,
        reason: str,
        lease: Lease,
        after: PoolState,
        machines: Mapping[ServerId, Machine],
        now: float,
    ) -> str:
        """Return why the pool itself may not end this lease for this reason; empty if it may."""
        causes, granted_at = self._causes, self._causes.granted_at[lease.id]
        mine = [machines[each] for each in lease.parts if each in machines]
        servers = [machine.name for machine in mine]
        if lease.ends_at and reason == lease.ends_why:
            if after.now < lease.ends_at:
                self._early(lease, f"{(lease.ends_at - after.now) / 1000:.3f} s before its end")
            return ""
        if lease.idle_timeout_s and reason == idle_reason(lease.idle_timeout_s):
            coming = lease.relocation.target if lease.relocation is not None else None
            here = [machines[each] for each in lease.parts if each in machines and each != coming]
            others = [each for each in machines.values() if each not in here]
            rests = longest_rests(lease.id, here, now, granted_at, IN_FLIGHT_S, others)
            rest_s = min(rests, default=0.0) + SLACK_S
            if rest_s < lease.idle_timeout_s / SPEED_MAX:
                self._early(lease, f"unused for {rest_s:.1f} of {lease.idle_timeout_s} s")
            return ""
        if reason.startswith(AWAY_TOO_LONG):
            if lease.history is None or not lease.is_away:
                return "it is not suspended"
            longest_ms = duration_ms(reason.removeprefix(AWAY_TOO_LONG).partition(",")[0])
            away_ms = after.now - lease.history.away_since
            if away_ms < longest_ms:
                self._early(lease, f"suspended for {away_ms} of {longest_ms} ms")
            return ""
        if reason.startswith(NOT_MOVED):
            if not any(lease.id in machine.stranded for machine in mine):
                return "its server could have had it go on"
            if len(lease.parts) == 1:
                return "it could have been suspended"
            return "" if lease.id in self._no_way_back else "its old GPUs were free"
        if reason == NEVER_CONNECTED:
            if now - granted_at < UNATTACHED_MAX_S / SPEED_MAX:
                return f"it was granted {now - granted_at:.1f} s ago"
            attached = not causes.unattached_at(lease.id, lease.client, servers)
            return "its client is connected with all its servers" if attached else ""
        if reason in (CLIENT_GONE, NOBODY_WAITS):
            claimed_at = causes.claimed_at.get(lease.request, inf)
            since = claimed_at if reason == NOBODY_WAITS else granted_at
            lost = causes.lost_since(lease.client, servers, since)
            return "" if lost else "no server of it lost its client"
        return "no rule gives this reason"

    def _early(self, lease: Lease, text: str) -> None:
        self._failures.fail("ends-in-time", f"lease {lease.id} ended too early: {text}")

    def _judge_terms(self, command: Command, lease: Lease, left: Lease, after: PoolState) -> None:
        """Demand that a lease keeps the terms of its grant, but for a window's notice."""
        terms = (lease.ends_at, lease.idle_timeout_s)
        if terms == (left.ends_at, left.idle_timeout_s) or isinstance(command, SetClock):
            return
        graces = {each.grace_ms for each in after.policy.windows if each.ends_leases}
        notice = isinstance(command, GiveNotice) and command.lease == lease.id
        if (
            not notice
            or left.idle_timeout_s != lease.idle_timeout_s
            or left.ends_at - after.now not in graces
        ):
            text = f"lease {lease.id} has its end moved to {left.ends_at} by {command}"
            self._failures.fail("ends-in-time", text)

    def _judge_frees(
        self, command: Command, lease: Lease, left: Lease | None, before: PoolState
    ) -> None:
        """Demand that each part is freed by its own server as it is now, or with it."""
        for server, part in lease.parts.items():
            after = left.parts.get(server, PartStatus.FREED) if left else PartStatus.FREED
            if part is PartStatus.FREED or after is not PartStatus.FREED:
                continue
            incarnation = before.servers[server].incarnation
            match command:
                case FreeLease():
                    mine = (command.lease, command.server) == (lease.id, server)
                    right = mine and command.incarnation == incarnation
                case ServerUp():
                    later = command.incarnation > incarnation or before.servers[server].freeing
                    right = command.server == server and later
                case RemoveServer():
                    right = command.server == server
                case _:
                    right = False
            if not right:
                text = f"the part of lease {lease.id} on {server} was freed by {command}"
                self._failures.fail("incarnation-current", text)


def _is_arriving(lease: Lease) -> bool:
    """Return whether a lease has the GPUs that it is moved to, and does not run there yet."""
    found = lease.suspension
    return lease.held and found is not None and _RESUMING is found.state and bool(found.moves)


def _is_taken(state: PoolState, lease: Lease) -> bool:
    """Return whether a lease that is moved could not have one of its old GPUs again."""
    assert lease.suspension is not None, "it is being moved"
    size = {(part.server, part.gpu): part.memory for part in lease.partitions}
    for move in lease.suspension.moves:
        server = state.servers.get(move.server)
        gpu = server.gpus.get(move.gpu) if server is not None else None
        # Where it goes to a GPU that another of its partitions leaves, that one has its memory.
        mine = size.get((move.server, move.gpu), 0)
        wanted = size[move.server, move.to]
        if (
            gpu is None
            or gpu.memory_total - gpu.memory_reserved - gpu.memory_granted + mine < wanted
        ):
            return True
    return False
