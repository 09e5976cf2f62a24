"""Broken builds of the suspension of leases, and of preemption."""

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

from tests.simulations.mutations.patching import patched, patched_handler

from gpupool.pool import reconcile
from gpupool.pool.host_suspension import SuspensionPhase as P
from gpupool.pool.model.commands import EndLease
from gpupool.pool.model.ids import Incarnation, LeaseId, Milliseconds, ServerId
from gpupool.pool.model.results import Step
from gpupool.pool.model.state import Lease, PoolState, Waiting
from gpupool.pool.model.suspension import (
    ConfirmSuspended,
    ResumeLease,
    SuspendLease,
    Suspension,
    SuspensionState,
)
from gpupool.pool.scheduling import fairness, preemption
from gpupool.pool.scheduling.preemption import Rules
from gpupool.pool.transitions import lease_suspensions
from gpupool.remoting.server import reconciler


def given_back_at_once() -> AbstractContextManager[None]:
    """Give the memory back when a suspension is ordered, before any server has let go."""
    original = lease_suspensions.suspend_lease

    def suspend_lease(state: PoolState, command: SuspendLease) -> Step:
        state, result = original(state, command)
        lease = state.leases.get(command.lease)
        if result.ok and lease is not None and lease.suspension is not None:
            number = lease.suspension.number
            for server in lease.parts:
                incarnation = state.servers[server].incarnation
                said = ConfirmSuspended(lease.id, server, incarnation, number, 0)
                state, _ = lease_suspensions.confirm_suspended(state, said)
        return state, result

    return patched_handler(SuspendLease, suspend_lease)


def confirmed_too_early() -> AbstractContextManager[None]:
    """Let a server confirm as soon as its host has begun."""

    def _host_says(
        suspension: Suspension, told: Any, key: tuple[LeaseId, ServerId, Incarnation]
    ) -> list[ConfirmSuspended]:
        del told
        return [ConfirmSuspended(*key, suspension.number, 0)]

    return patched(reconcile, "_host_says", _host_says)


def goes_on_uncharged() -> AbstractContextManager[None]:
    """Let hosts resume a lease before its memory is charged to it again."""
    original = reconcile.plan_suspensions

    def plan_suspensions(
        state: PoolState, self_id: ServerId, incarnation: Any, hosted: Any, worker_count: Any
    ) -> reconcile.SuspensionPlan:
        plan = original(state, self_id, incarnation, hosted, worker_count)
        for lease in state.leases.at(self_id).values():
            found = lease.suspension
            if lease.held and found is not None and found.state is SuspensionState.SUSPENDED:
                plan.resume.append((lease.id, found.number))
        return plan

    return patched(reconciler, "plan_suspensions", plan_suspensions)


def resumed_uncharged() -> AbstractContextManager[None]:
    """Let a lease go on without taking its memory again."""
    original = lease_suspensions.resume_lease

    def resume_lease(state: PoolState, command: ResumeLease) -> Step:
        after, result = original(state, command)
        return after if not result.ok else _with_books_of(after, state), result

    return patched_handler(ResumeLease, resume_lease)


def _with_books_of(after: PoolState, before: PoolState) -> PoolState:
    return lease_suspensions.with_changes(after, servers=before.servers)


# --- moves ----------------------------------------------------------------------------------------


def moved_onto_others() -> AbstractContextManager[None]:
    """Let a lease go on with other GPUs without regard to their new holders."""
    original = lease_suspensions.confirm_suspended

    def confirm_suspended(state: PoolState, command: ConfirmSuspended) -> Step:
        with patched(lease_suspensions, "resume_refusal", _nothing):
            return original(state, command)

    return patched_handler(ConfirmSuspended, confirm_suspended)


def _nothing(state: PoolState, lease: Lease) -> None:
    del state, lease


def goes_on_where_it_was() -> AbstractContextManager[None]:
    """Let hosts resume a lease that was moved where it was before."""
    original = reconcile.plan_suspensions

    def plan_suspensions(
        state: PoolState, self_id: ServerId, incarnation: Any, hosted: Any, worker_count: Any
    ) -> reconcile.SuspensionPlan:
        plan = original(state, self_id, incarnation, hosted, worker_count)
        plan.moves.clear()
        return plan

    return patched(reconciler, "plan_suspensions", plan_suspensions)


@contextmanager
def takes_the_way_back() -> Generator[None]:
    """Give a lease that cannot go on elsewhere its old GPUs, despite their new holders."""
    with (
        patched(lease_suspensions, "way_back_refusal", _nothing),
        patched(reconcile, "way_back_refusal", _nothing),
    ):
        yield


def stranded_for_ever() -> AbstractContextManager[None]:
    """Leave a lease where it cannot go on, and say nothing of it."""
    original = reconcile.plan_suspensions

    def plan_suspensions(
        state: PoolState, self_id: ServerId, incarnation: Any, hosted: Any, worker_count: Any
    ) -> reconcile.SuspensionPlan:
        plan = original(state, self_id, incarnation, hosted, worker_count)
        stranded = {each for each, told in hosted.items() if told.phase is P.STRANDED}
        plan.propose = [each for each in plan.propose if getattr(each, "lease", 0) not in stranded]
        return plan

    return patched(reconciler, "plan_suspensions", plan_suspensions)


def gives_up_the_way_back() -> AbstractContextManager[None]:
    """End a lease that cannot go on elsewhere, though its old GPUs are free."""

    def _back_from_move(state: PoolState, lease: Lease, told: Any, key: Any) -> EndLease:
        del state, key
        return EndLease(lease.id, f"it could not be moved: {told.reason}; and nobody asked")

    return patched(reconcile, "_back_from_move", _back_from_move)


# --- preemption -----------------------------------------------------------------------------------


def pauses_ignored() -> AbstractContextManager[None]:
    """Suspend leases again however short they have run since they were resumed."""

    def too_early(state: PoolState, lease: Lease, min_run_ms: int) -> str:
        del state, lease, min_run_ms
        return ""

    return patched(preemption, "too_early", too_early)


def anybody_gives_way() -> AbstractContextManager[None]:
    """Suspend leases that are not preemptible."""
    original = Rules.objection

    def objection(self: Rules, lease: Lease, entry: Waiting) -> str:
        why = original(self, lease, entry)
        return "" if "preemptible" in why else why

    return patched(Rules, "objection", objection)


def guarantees_ignored() -> AbstractContextManager[None]:
    """Suspend leases that their class keeps by its guarantee."""

    def spare(self: Rules, group: str) -> None:
        del self, group

    return patched(Rules, "spare", spare)


def suspends_too_many() -> AbstractContextManager[None]:
    """Suspend all leases that may give way on the chosen server."""

    def _cheapest(room: Any, candidates: list[Lease], among: Lease | None) -> list[Lease] | None:
        del among
        return candidates if room.fits(candidates) else None

    return patched(preemption, "_cheapest", _cheapest)


def overtakes_the_suspended() -> AbstractContextManager[None]:
    """Keep nothing for suspended leases that have long waited to go on."""

    def _is_starved(state: PoolState, lease: Lease) -> bool:
        del state, lease
        return False

    return patched(fairness, "_is_starved", _is_starved)


def away_for_a_moment() -> AbstractContextManager[None]:
    """End a suspended lease an hour before it has been suspended for too long."""
    original = reconcile.away_too_long

    def away_too_long(state: PoolState, lease: Lease) -> str:
        return original(replace(state, now=Milliseconds(state.now + 3_600_000)), lease)

    return patched(reconcile, "away_too_long", away_too_long)


def away_for_ever() -> AbstractContextManager[None]:
    """Never end a lease that was suspended for too long."""

    def away_too_long(state: PoolState, lease: Lease) -> str:
        del state, lease
        return ""

    return patched(reconcile, "away_too_long", away_too_long)
