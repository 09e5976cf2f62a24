"""Broken builds of policies, filters, fairness and the ends of leases."""

# pyright: reportPrivateUsage=false
# A broken build replaces private functions.

from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import islice

from tests.simulations.mutations.patching import patched, patched_handler

from gpupool.pool.model.commands import ApplyPolicy, Wait
from gpupool.pool.model.ids import GpuId, RequestId, ServerId
from gpupool.pool.model.policy import Usage
from gpupool.pool.model.results import Result
from gpupool.pool.model.state import Filter, Gpu, Lease, PoolState, Server, Waiting
from gpupool.pool.policy import lease_ends
from gpupool.pool.policy.admission import Admission
from gpupool.pool.policy.lease_ends import IdlePlan
from gpupool.pool.policy.policy_calendar import FOREVER
from gpupool.pool.policy.rulebook import Moment, Rulebook, Terms
from gpupool.pool.scheduling import fairness, filters, preemption
from gpupool.pool.scheduling.fairness import _Line, starved
from gpupool.pool.scheduling.soonest import Span
from gpupool.pool.transitions import leases, policy_versions
from gpupool.remoting.client.negotiation import Negotiation
from gpupool.remoting.server import reconciler


def limits_unchecked() -> AbstractContextManager[None]:
    """Let a grant be applied without regard to its user's limits."""

    def limit_refusal(self: Admission, user: str, need: Usage) -> Result | None:
        del self, user, need
        return None

    return patched(Admission, "limit_refusal", limit_refusal)


def windows_ignored() -> AbstractContextManager[None]:
    """Let rules be the same at all times."""

    def moment(self: Rulebook, now: int) -> Moment:
        del now
        return Moment(self, frozenset(), 0, FOREVER)

    return patched(Rulebook, "moment", moment)


def places_unchecked() -> AbstractContextManager[None]:
    """Let everybody use every GPU."""

    def misses(self: Terms, server: Server, gpu: Gpu) -> None:
        del self, server, gpu

    return patched(Terms, "misses", misses)


def reservations_ignored() -> AbstractContextManager[None]:
    """Let GPUs that are kept for a class be granted to others."""

    def reserved(self: Rulebook, state: PoolState) -> dict[object, object]:
        del self, state
        return {}

    return patched(Rulebook, "reserved", reserved)


def terms_forgotten() -> AbstractContextManager[None]:
    """Let leases get no end and no idle timeout from the policy."""

    def with_terms(state: PoolState, lease: Lease) -> Lease:
        del state
        return lease

    return patched(leases, "with_terms", with_terms)


def policy_not_kept() -> AbstractContextManager[None]:
    """Let every policy but the first be confirmed, and forgotten."""
    original = policy_versions.apply_policy

    def apply_policy(state: PoolState, command: ApplyPolicy) -> tuple[PoolState, Result]:
        return original(state, command) if command.base < 1 else (state, Result(ok=True))

    return patched(policy_versions, "apply_policy", apply_policy)


def filters_ignored() -> AbstractContextManager[None]:
    """Let any GPU do, without regard to a request's filters."""

    def first_mismatch(filters: tuple[Filter, ...], server: Server, gpu: Gpu) -> None:
        del filters, server, gpu

    @contextmanager
    def broken() -> Generator[None]:
        with (
            patched(filters, "first_mismatch", first_mismatch),
            patched(leases, "first_mismatch", first_mismatch),
        ):
            yield

    return broken()


def keeps_what_is_free() -> AbstractContextManager[None]:
    """Keep GPUs for a waiting request only once it could have all of them at once."""
    original = fairness.needed_by

    def needed_by(
        state: PoolState,
        entry: Waiting,
        taken: frozenset[tuple[ServerId, GpuId]] = fairness.NO_PLACE,
        servers: fairness.Servers | None = None,
    ) -> frozenset[tuple[ServerId, GpuId]]:
        found = original(state, entry, taken, servers)
        request = entry.request
        for server, gpu_id in found:
            gpu = state.servers[server].gpus[gpu_id]
            size = request.memory or filters.partition_size(gpu.capacity, request.fraction)
            if gpu.memory_free < size:
                return frozenset()
        return found

    return patched(fairness, "needed_by", needed_by)


def keeps_one_server() -> AbstractContextManager[None]:
    """Keep for a request over several servers the GPUs of one that could serve it, or nothing."""
    original = fairness.needed_by

    def needed_by(
        state: PoolState,
        entry: Waiting,
        taken: frozenset[tuple[ServerId, GpuId]] = fairness.NO_PLACE,
        servers: fairness.Servers | None = None,
    ) -> frozenset[tuple[ServerId, GpuId]]:
        alone = replace(entry, request=replace(entry.request, across=False))
        return original(state, alone, taken, servers)

    return patched(fairness, "needed_by", needed_by)


def outlives_its_time() -> AbstractContextManager[None]:
    """Let leases outlive the end of their time."""

    def due(state: PoolState, now: int) -> tuple[()]:
        del state, now
        return ()

    return patched(lease_ends, "due", due)


def never_idle() -> AbstractContextManager[None]:
    """Let leases that are not used go on."""

    def idle_plan(*_: object) -> IdlePlan:
        return IdlePlan(frozenset(), ())

    return patched(reconciler, "idle_plan", idle_plan)


def _nothing_kept(*_: object) -> None:
    return None


def overtakes() -> AbstractContextManager[None]:
    """Let small requests take the GPUs needed by a request that has waited for long."""
    return patched(fairness, "reserved_for_others", _nothing_kept)


def waits_anew() -> AbstractContextManager[None]:
    """Let the wait begin anew whenever a client renews its place."""
    original = leases.wait

    def wait(state: PoolState, command: Wait) -> tuple[PoolState, Result]:
        others = state.waiting.without(command.request.id)
        return original(replace(state, waiting=others), command)

    return patched_handler(Wait, wait)


def has_no_place() -> AbstractContextManager[None]:
    """Let clients wait without a place in the table."""

    def keep_place(self: Negotiation, now: float) -> None:
        del self, now

    return patched(Negotiation, "_keep_place", keep_place)


def head_alone() -> AbstractContextManager[None]:
    """Keep GPUs for the first starved request alone, even if nothing can serve it."""

    def line(self: _Line) -> Iterator[Waiting]:
        yield from islice(starved(self._state), 1)

    return patched(_Line, "__iter__", line)


def first_sixteen() -> AbstractContextManager[None]:
    """Look at the first sixteen requests of the line for leases that may give way, and no other."""
    original = preemption._examined

    def examined(rules: preemption.Rules, also: RequestId | None) -> list[Waiting]:
        first = {each.request.id for each in islice(rules.state.waiting.in_turn(2**62), 16)}
        return [each for each in original(rules, also) if each.request.id in first]

    return patched(preemption, "_examined", examined)


def nothing_lasts() -> AbstractContextManager[None]:
    """Keep the GPUs of the nearest server, without regard to the holders of its rest."""

    def span_for(state: PoolState, since: int) -> Span:
        del state, since
        return Span(0, 0)

    return patched(fairness, "span_for", span_for)
