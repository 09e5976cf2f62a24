"""Broken builds of the ends of leases, and of the effects of late or stale commands."""

# pyright: reportPrivateUsage=false
# A broken build replaces private functions.

from collections.abc import Mapping, Set
from contextlib import AbstractContextManager
from dataclasses import replace

from tests.simulations.mutations.patching import patched, patched_handler

from gpupool.pool import reconcile
from gpupool.pool.model.commands import (
    Command,
    DrainServer,
    EndLease,
    Envelope,
    FreeLease,
    GiveNotice,
    Grant,
    RemoveServer,
    RevokeToken,
    ServerContact,
    ServerUp,
)
from gpupool.pool.model.ids import Incarnation, LeaseId, Milliseconds, RequestId, ServerId
from gpupool.pool.model.results import Result, Step
from gpupool.pool.model.state import Lease, PartStatus, PoolState, with_changes
from gpupool.pool.policy import lease_ends
from gpupool.pool.policy.lease_ends import IdlePlan, idle_plan
from gpupool.pool.ports import RaftHealth
from gpupool.pool.reconcile import HostPlan, plan_host
from gpupool.pool.transitions import apply as state_machine
from gpupool.pool.transitions import apply as transitions
from gpupool.pool.transitions import clock_setting, leases
from gpupool.pool.transitions.apply import HANDLERS
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.server import reconciler
from gpupool.remoting.server.lease_service import LeaseService
from gpupool.remoting.server.reconciler import Reconciler
from gpupool.remoting.server.service_context import Client

# --- ends without a reason, or too early ----------------------------------------------------------


def ends_healthy_leases() -> AbstractContextManager[None]:
    def plan(
        state: PoolState,
        self_id: ServerId,
        incarnation: Incarnation,
        worker_count: Mapping[LeaseId, int],
        unattached_s: Mapping[LeaseId, float],
        gone: Mapping[LeaseId, str],
    ) -> HostPlan:
        unused = dict(unattached_s)
        for lease in state.leases.at(self_id).values():
            if lease.held and lease.id % 3 == 0 and state.now - lease.granted_at > 700:
                unused[lease.id] = 99.0
        return plan_host(state, self_id, incarnation, worker_count, unused, gone)

    return patched(reconciler, "plan_host", plan)


def unconnected_ends_at_once() -> AbstractContextManager[None]:
    return patched(reconcile, "UNATTACHED_MAX_S", 0.02)


def worker_death_ends_lease() -> AbstractContextManager[None]:
    def plan(
        state: PoolState,
        self_id: ServerId,
        incarnation: Incarnation,
        worker_count: Mapping[LeaseId, int],
        unattached_s: Mapping[LeaseId, float],
        gone: Mapping[LeaseId, str],
    ) -> HostPlan:
        real = plan_host(state, self_id, incarnation, worker_count, unattached_s, gone)
        ends = [
            EndLease(lease.id, "its worker has died")
            for lease in state.leases.at(self_id).values()
            if lease.held and not worker_count.get(lease.id) and lease.id not in unattached_s
        ]
        return HostPlan(real.kill, (*real.propose, *ends))

    return patched(reconciler, "plan_host", plan)


def release_ends_another() -> AbstractContextManager[None]:
    original = LeaseService._release

    def release(self: LeaseService, client: Client, call: int, message: m.Release) -> None:
        mine = [
            lease.id
            for lease in self._context.state.leases.values()
            if lease.user == client.user and lease.held and lease.id != message.lease
        ]
        original(self, client, call, replace(message, lease=mine[0]) if mine else message)

    return patched(LeaseService, "_release", release)


def _ends_at(state: PoolState, server: ServerId, reason: str) -> PoolState:
    for lease_id in state.leases.at(server):
        state = leases.end(state, lease_id, reason)
    return state


def lost_contact_ends_leases() -> AbstractContextManager[None]:
    original = HANDLERS[ServerContact]

    def contact(state: PoolState, command: ServerContact) -> Step:
        state, result = original(state, command)
        return _ends_at(state, command.server, "its server is away"), result

    return patched_handler(ServerContact, contact)


def drain_ends_leases() -> AbstractContextManager[None]:
    original = HANDLERS[DrainServer]

    def drain(state: PoolState, command: DrainServer) -> Step:
        state, result = original(state, command)
        return _ends_at(state, command.server, "its server is drained"), result

    return patched_handler(DrainServer, drain)


def revocation_ends_all_of_user() -> AbstractContextManager[None]:
    original = HANDLERS[RevokeToken]

    def revoke(state: PoolState, command: RevokeToken) -> Step:
        user = state.tokens[command.token].user if command.token in state.tokens else ""
        state, result = original(state, command)
        for lease in list(state.leases.values()):
            if lease.user == user:
                state = leases.end(state, lease.id, f"token {command.token} was revoked")
        return state, result

    return patched_handler(RevokeToken, revoke)


def revocation_left_undone() -> AbstractContextManager[None]:
    return _taken_up(RemoveServer)


def removal_left_undone() -> AbstractContextManager[None]:
    return _taken_up(RevokeToken)


def _taken_up(kind: type[Command]) -> AbstractContextManager[None]:
    """Let leaders take up one kind of commands only that are not done."""
    original = leases.unfinished

    def unfinished(state: PoolState) -> tuple[Command, ...]:
        return tuple(each for each in original(state) if isinstance(each, kind))

    return patched(reconcile, "unfinished", unfinished)


def set_time_left_undone() -> AbstractContextManager[None]:
    return _taken_up(RemoveServer)


def moved_ahead_of_nothing() -> AbstractContextManager[None]:
    """Let a command change a lease that is not moved: the next batch takes its end for older."""

    def moved_ahead(state: PoolState, lease_id: LeaseId | None) -> PoolState:
        del lease_id
        return state

    return patched(clock_setting, "moved_ahead", moved_ahead)


def ends_5s_early() -> AbstractContextManager[None]:
    original = lease_ends.due

    def due(state: PoolState, now: int) -> tuple[EndLease | GiveNotice, ...]:
        return original(state, now + 5000)

    return patched(lease_ends, "due", due)


def notice_without_grace() -> AbstractContextManager[None]:
    original = HANDLERS[GiveNotice]

    def give_notice(state: PoolState, command: GiveNotice) -> Step:
        state, result = original(state, command)
        if result.ok:
            lease = with_changes(state.leases[command.lease], ends_at=Milliseconds(state.now + 1))
            state = with_changes(state, leases=state.leases.set(lease.id, lease))
        return state, result

    return patched_handler(GiveNotice, give_notice)


def idle_counts_tenfold() -> AbstractContextManager[None]:
    def plan(
        state: PoolState,
        self_id: ServerId,
        incarnation: Incarnation,
        idle_s: Mapping[LeaseId, float],
        nearly_s: Mapping[LeaseId, float],
    ) -> IdlePlan:
        longer = {lease: 10 * seconds for lease, seconds in idle_s.items()}
        return idle_plan(state, self_id, incarnation, longer, nearly_s)

    return patched(reconciler, "idle_plan", plan)


# --- late, repeated and stale commands ------------------------------------------------------------


def expiry_ignored() -> AbstractContextManager[None]:
    original = transitions.apply

    def apply(state: PoolState, index: int, envelope: Envelope) -> Step:
        return original(state, index, replace(envelope, expires=Milliseconds(0)))

    return patched(state_machine, "apply", apply)


def revocation_unchecked() -> AbstractContextManager[None]:
    def token_refusal(state: PoolState, command: Grant) -> Result | None:
        del state, command
        return None

    return patched(leases, "_token_refusal", token_refusal)


def grant_ignores_incarnation() -> AbstractContextManager[None]:
    original = leases._shape_refusal

    def shape_refusal(state: PoolState, command: Grant) -> Result | None:
        servers = {part.server for part in command.partitions} & state.servers.keys()
        current = {each: state.servers[each].incarnation for each in servers}
        return original(state, replace(command, incarnations=current))

    return patched(leases, "_shape_refusal", shape_refusal)


def free_ignores_incarnation() -> AbstractContextManager[None]:
    original = HANDLERS[FreeLease]

    def free(state: PoolState, command: FreeLease) -> Step:
        server = state.servers.get(command.server)
        if server is not None:
            command = replace(command, incarnation=server.incarnation)
        return original(state, command)

    return patched_handler(FreeLease, free)


def former_incarnation_is_up() -> AbstractContextManager[None]:
    original = HANDLERS[ServerUp]

    def server_up(state: PoolState, command: ServerUp) -> Step:
        server = state.servers.get(command.server)
        if server is not None and command.incarnation < server.incarnation:
            former = with_changes(server, incarnation=command.incarnation)
            state = with_changes(state, servers=state.servers.set(server.id, former))
        return original(state, command)

    return patched_handler(ServerUp, server_up)


def starting_worker_not_counted() -> AbstractContextManager[None]:
    original = Reconciler.reconcile

    def look(
        self: Reconciler,
        health: RaftHealth | None,
        attached: Mapping[LeaseId, Set[int]],
        lost: Mapping[LeaseId, str],
        starting: Mapping[LeaseId, int],
    ) -> None:
        del starting
        original(self, health, attached, lost, {})

    return patched(Reconciler, "reconcile", look)


def free_twice_counts_twice() -> AbstractContextManager[None]:
    original = leases.free_part

    def free_part(state: PoolState, lease: Lease, server: ServerId) -> PoolState:
        if lease.parts[server] is PartStatus.FREED:
            mine = tuple(p for p in lease.partitions if p.server == server)
            return leases.charge(state, mine, sign=-1)
        return original(state, lease, server)

    return patched(leases, "free_part", free_part)


def closed_forgets_leases() -> AbstractContextManager[None]:
    original = leases._close

    def close(state: PoolState, request: RequestId, why: str) -> PoolState:
        return state if why.startswith("its lease") else original(state, request, why)

    return patched(leases, "_close", close)


def closed_table_of_3() -> AbstractContextManager[None]:
    return patched(leases, "CLOSED_REQUEST_COUNT_MAX", 3)


def grant_not_idempotent() -> AbstractContextManager[None]:
    original = HANDLERS[Grant]

    def grant(state: PoolState, command: Grant) -> Step:
        by_request = state.by_request.without(command.request.id)
        return original(with_changes(state, by_request=by_request), command)

    return patched_handler(Grant, grant)


def drain_undone_by_restart() -> AbstractContextManager[None]:
    original = HANDLERS[ServerUp]

    def server_up(state: PoolState, command: ServerUp) -> Step:
        state, result = original(state, command)
        server = state.servers.get(command.server)
        if server is not None:
            undone = with_changes(server, drain_reason=None)
            state = with_changes(state, servers=state.servers.set(server.id, undone))
        return state, result

    return patched_handler(ServerUp, server_up)
