"""Checkers of the policy and of waiting: limits, places, terms, fairness and the ends of leases."""

from collections.abc import Iterable, Mapping
from fractions import Fraction

from gpupool.pool.model.ids import LeaseId, RequestId
from gpupool.pool.model.state import (
    WAITING_LAPSE_MS,
    Lease,
    PoolState,
    Request,
    Waiting,
)
from gpupool.simulations.checkers.policy_oracle import (
    HOLDERS,
    KINDS,
    Rules,
    RulesInForce,
    has_label,
    passes,
)
from gpupool.simulations.kernel.failure_reporter import FailureReporter
from gpupool.simulations.kernel.machines import Machine

NOTHING_LOST = Fraction(1, 10**6)
"""Shares are counted in integers, rounded down."""


class PolicyHolds:
    """Every grant is one that the policy of its moment allows, counted anew from all leases."""

    def __init__(self, failures: FailureReporter, in_force: RulesInForce) -> None:
        self._failures = failures
        self._in_force = in_force

    def granted(self, lease: Lease, state: PoolState, request: Request | None) -> None:
        """Judge a new lease; ``state`` is the table that has it."""
        if not state.policy.version:
            return
        rules = self._in_force.of(state)
        self._judge_limits(rules, lease, state)
        self._judge_places(rules, lease, state)
        self._judge_reservation(rules, lease, state)
        self._judge_terms(rules, lease, state, request)

    def _judge_limits(self, rules: Rules, lease: Lease, state: PoolState) -> None:
        for kind in KINDS:
            for holder in HOLDERS:
                limit = rules.limit(state.now, lease.user, kind, holder)
                if limit is None:
                    continue
                held = rules.held(state, lease.user, kind, holder)
                if held > limit + NOTHING_LOST:
                    text = f"{float(held):.3f} of {float(limit):.3f} {kind} are held ({holder})"
                    self._failures.fail("limits-hold", f"lease {lease.id} of {lease.user}: {text}")

    def _judge_places(self, rules: Rules, lease: Lease, state: PoolState) -> None:
        for part in lease.partitions:
            server = state.servers[part.server]
            if not rules.admits(state.now, lease.user, server, server.gpus[part.gpu]):
                text = f"{lease.user} may not use {part.gpu} of {server.name}"
                self._failures.fail("places-hold", f"lease {lease.id}: {text}")

    def _judge_reservation(self, rules: Rules, lease: Lease, state: PoolState) -> None:
        reservation = rules.reservation(state.now)
        if reservation is None or reservation["class"] == rules.group_of(lease.user):
            return
        matching = {
            (server.id, gpu.id)
            for server in state.servers.values()
            if server.grantable and has_label(server, reservation.get("servers"))
            for gpu in server.gpus.values()
            if not gpu.unfit
        }
        left = matching - {(part.server, part.gpu) for part in lease.partitions}
        if len(left) < min(reservation["count"], len(matching)):
            text = f"{len(left)} GPUs are left of {reservation['count']} that are kept"
            self._failures.fail("reservations-hold", f"lease {lease.id} of {lease.user}: {text}")

    def _judge_terms(
        self, rules: Rules, lease: Lease, state: PoolState, request: Request | None
    ) -> None:
        longest_s = rules.seconds(state.now, lease.user, "max_lease_time")
        ends_at = state.now + int(longest_s * 1000) if longest_s else 0
        timeouts = [rules.seconds(state.now, lease.user, "idle_timeout")]
        timeouts += [request.idle_timeout_s] if request is not None else []
        idle_s = min((each for each in timeouts if each), default=0.0)
        if lease.ends_at != ends_at or (request is not None and lease.idle_timeout_s != idle_s):
            text = f"it ends at {lease.ends_at}, and unused after {lease.idle_timeout_s} s"
            self._failures.fail(
                "terms-given", f"lease {lease.id}: {text}; not {ends_at}, {idle_s} s"
            )


class GrantedAsAsked:
    """A lease matches its request: the number, the size and the kind of its GPUs."""

    def __init__(self, failures: FailureReporter) -> None:
        self._failures = failures

    def granted(self, lease: Lease, state: PoolState, request: Request) -> None:
        """Judge a new lease."""
        places = {(part.server, part.gpu) for part in lease.partitions}
        if not len(places) == len(lease.partitions) == request.count:
            self._fail(lease, f"{len(places)} GPUs instead of {request.count}")
        if len(lease.parts) > 1 and not request.across:
            self._fail(lease, "several servers, which it did not ask for")
        gpus = [state.servers[part.server].gpus[part.gpu] for part in lease.partitions]
        smallest = min(int(gpu.capacity * request.fraction) >> 20 << 20 for gpu in gpus)
        if {part.memory for part in lease.partitions} != {request.memory or smallest}:
            self._fail(lease, f"{lease.partitions} for {request.fraction} or {request.memory}")
        for part, gpu in zip(lease.partitions, gpus, strict=True):
            server = state.servers[part.server]
            for wanted in request.filters:
                if not passes(wanted, server, gpu):
                    self._fail(lease, f"{gpu.id} of {server.name}, which {wanted} leaves out")

    def _fail(self, lease: Lease, text: str) -> None:
        self._failures.fail("granted-as-asked", f"lease {lease.id} of {lease.client}: {text}")


class PlacesInLine:
    """A client that waits has a place in the table, and its wait counts from its first place.

    With this, ``nobody-starves`` and ``everything-granted``, no request is overtaken for ever.
    """

    WITHIN_S = 12.0
    """A client enters a lost entry anew after 5 s, with its next try, which comes within another 5
    s. The swarm heals for 10 s only, so this takes longer runs."""

    def __init__(self, failures: FailureReporter) -> None:
        self._failures = failures
        self._before: Mapping[RequestId, Waiting] = {}
        self._without_since: dict[RequestId, float] = {}
        self._era = 0

    def applied(self, state: PoolState) -> None:
        """Check the places after a command was applied, in spite of any faults."""
        before, self._before = self._before, state.waiting
        era, self._era = self._era, state.era
        # An operator who sets the table's time moves the entries with it, in their order.
        if era != state.era:
            self._check_order(before, state.waiting)
            return
        if before is state.waiting:
            return
        for request, entry in state.waiting.items():
            known = before.get(request)
            lapsed = known is not None and known.renewed < state.now - WAITING_LAPSE_MS
            if known is not None and not lapsed and entry.since != known.since:
                text = f"{entry.user} has waited since {known.since}, and now since {entry.since}"
                self._failures.fail("keeps-its-place", text)

    def _check_order(
        self, before: Mapping[RequestId, Waiting], after: Mapping[RequestId, Waiting]
    ) -> None:
        stayed = sorted(before.keys() & after.keys(), key=lambda each: before[each].since)
        since = [after[each].since for each in stayed]
        if since != sorted(since):
            self._failures.fail("keeps-its-place", "setting the time has changed the line's order")

    def observe(self, waiting: Iterable[RequestId], state: PoolState, now: float) -> None:
        """Look at the requests of clients that wait while nothing is disturbed."""
        self._without_since = {
            each: self._without_since.get(each, now)
            for each in waiting
            if each not in state.waiting
        }
        for request, since in self._without_since.items():
            if now - since > self.WITHIN_S:
                text = f"request {request.hex()} has waited {now - since:.1f} s without a place"
                self._failures.fail("keeps-its-place", text)


class LeasesEnd:
    """Once nothing is disturbed any more, a lease ends when its time is over, or nobody uses it."""

    LATE_S = 2.0
    """Four observations of the table, and a commit or two."""

    def __init__(self, failures: FailureReporter) -> None:
        self._failures = failures
        self._over_since: dict[LeaseId, float] = {}
        self._unused_since: dict[LeaseId, float] = {}

    def observe(
        self, state: PoolState, now_ms: int, machines: Iterable[Machine], now: float
    ) -> None:
        """Check all leases; ``now_ms`` is the table's time as the leader has it."""
        rests: dict[LeaseId, float] = {}
        for machine in machines:
            for worker in machine.workers:
                since = worker.rested_since[0] if worker.rested_since is not None else now
                rests[worker.lease] = max(since, rests.get(worker.lease, since))
        held = {lease.id: lease for lease in state.leases.values() if lease.held}
        over = {each.id: now for each in held.values() if 0 < each.ends_at <= now_ms}
        self._over_since = {each: self._over_since.get(each, now) for each in over}
        self._unused_since = {
            each: max(rests.get(each, 0.0), self._unused_since.get(each, now))
            for each in held
            if held[each].suspension is None  # what is away is not unused
        }
        for lease in held.values():
            late_s = now - self._over_since.get(lease.id, now)
            if late_s > self.LATE_S:
                text = f"lease {lease.id} is held {late_s:.1f} s after its time was over"
                self._failures.fail("time-is-over", text)
            unused_s = now - self._unused_since.get(lease.id, now)
            if lease.idle_timeout_s and unused_s > 1.1 * lease.idle_timeout_s + self.LATE_S:
                text = f"unused for {unused_s:.1f} s, its idle timeout is {lease.idle_timeout_s} s"
                self._failures.fail("unused-ends", f"lease {lease.id} is {text}")
