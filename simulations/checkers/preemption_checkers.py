"""Checkers of preemption: permitted suspensions, their number, and the times of resumptions.

They follow the log, count anew what each request lacks, and read the policy by its own oracle.
"""

from gpupool.pool.model.commands import Envelope
from gpupool.pool.model.ids import LeaseId, RequestId
from gpupool.pool.model.state import Lease, PoolState, ServerStatus, Waiting, with_changes
from gpupool.pool.model.suspension import SuspendLease, SuspensionState
from gpupool.simulations.checkers.policy_oracle import Rules, RulesInForce, served
from gpupool.simulations.kernel.failure_reporter import FailureReporter

MIN_RUN_S = 600.0
"""Between two suspensions, where the policy does not say."""


class PreemptionHolds:
    """The pool suspends no lease that it may not, none too often, and none too many."""

    def __init__(self, failures: FailureReporter, in_force: RulesInForce) -> None:
        self._failures = failures
        self._in_force = in_force
        self._resumed_at: dict[LeaseId, int] = {}
        self._era = 0
        self._chains: dict[RequestId, tuple[object, object, list[LeaseId], set[LeaseId]]] = {}
        """Leases suspended for a request, one after the other, while nothing else has moved.

        By the servers and the policy of that time; and what was on its way for it before.
        """

    def applied(self, envelope: Envelope, before: PoolState, after: PoolState) -> None:
        """Look at the effect of a command on the suspensions."""
        if before.era != after.era:
            self._resumed_at.clear()
        for lease in before.leases.suspended().values():
            left = after.leases.get(lease.id)
            if left is None or not left.held or left.suspension is not None:
                continue
            if lease.suspension is not None and lease.suspension.by != lease.user:
                self._resumed_at[lease.id] = after.now
        command = envelope.command
        if not isinstance(command, SuspendLease) or command.by:
            return
        lease, was = after.leases.get(command.lease), before.leases.get(command.lease)
        if lease is None or was is None or lease is was or lease.suspension is None:
            return
        rules = self._in_force.of(after)
        self._judge_pause(rules, lease, after)
        entry = before.waiting.get(command.for_request) if command.for_request else None
        if entry is not None:
            self._judge_choice(rules, lease, entry, after)
            self._judge_need(rules, lease, entry, before, after)

    def _judge_pause(self, rules: Rules, lease: Lease, state: PoolState) -> None:
        resumed_at = self._resumed_at.get(lease.id)
        least_s = rules.seconds(state.now, lease.user, "min_run_time", MIN_RUN_S)
        if resumed_at is not None and state.now - resumed_at < least_s * 1000:
            ran_s = (state.now - resumed_at) / 1000
            text = f"lease {lease.id} is suspended {ran_s:.1f} s after it went on, not {least_s} s"
            self._failures.fail("no-thrashing", text)

    def _judge_choice(self, rules: Rules, lease: Lease, entry: Waiting, state: PoolState) -> None:
        now, user = state.now, lease.user
        if rules.priority(user) >= entry.priority:
            text = f"{rules.priority(user)}, for one of {entry.priority}"
            self._failures.fail("may-give-way", f"lease {lease.id} has priority {text}")
        if not (lease.preemptible or rules.is_preemptible(now, user)):
            self._failures.fail("may-give-way", f"lease {lease.id} is not preemptible")
        group = rules.group_of(user)
        least = rules.guarantee(now, group)
        if least is None:
            return
        kept = sum(
            sum(each.units.values())
            for each in state.leases.values()
            if each.held and rules.group_of(each.user) == group and _runs_on(each)
        )
        if kept < int(least * 10**12):
            text = f"class {group} is left with {kept / 10**12:g} of its {float(least):g} GPUs"
            self._failures.fail("guarantees-hold", text)

    def _judge_need(
        self, rules: Rules, lease: Lease, entry: Waiting, before: PoolState, after: PoolState
    ) -> None:
        request = entry.request.id
        # A window or a reservation may have begun since the command before this one.
        before = with_changes(before, now=after.now)
        coming = [each.id for each in _suspended_for(before, request)]
        if _can_begin(before, entry, rules, coming):
            text = f"lease {lease.id} is suspended for {entry.user}, who has enough without it"
            self._failures.fail("no-more-than-needed", text)
        servers, policy, chain, others = self._chains.get(request, (None, None, [], set()))
        # One that was refused, or is lost by its driver, leaves others that were needed then. It
        # may be on its way back (seed 10100917), and it may be of an earlier plan (seed 10292125).
        given = {
            each.id
            for each in before.leases.suspended().values()
            if each.held
            and each.suspension is not None
            and each.suspension.state is not SuspensionState.RESUMING
        }
        unmoved = servers is before.servers and policy is before.policy and given.issuperset(chain)
        lost = [each for each in others - given if each in before.leases]
        if not unmoved or (lost and _can_begin(before, entry, rules, [*coming, *lost])):
            chain, others = [], given.intersection(coming)
        chain = [*chain, lease.id]
        self._chains = {request: (after.servers, after.policy, chain, others)}
        coming = [each.id for each in _suspended_for(after, request)]
        if not _can_begin(after, entry, rules, coming):
            return
        for one in chain:
            rest = [each for each in coming if each != one]
            if one in coming and _can_begin(after, entry, rules, rest):
                text = f"lease {one} is suspended for {entry.user}, and need not be"
                self._failures.fail("no-more-than-needed", text)


class SuspensionsSettle:
    """No lease stays on its way: it lets go, goes on, or returns to the GPUs that it had."""

    LATE_S = 8.0
    """A server takes 2.4 s for each way; a lease takes two of them if its new GPU is refused."""

    def __init__(self, failures: FailureReporter) -> None:
        self._failures = failures
        self._since: dict[tuple[LeaseId, int, SuspensionState], float] = {}

    def observe(self, state: PoolState, now: float) -> None:
        """Look at the suspensions under way while nothing is disturbed."""
        ways = (SuspensionState.SUSPENDING, SuspensionState.RESUMING)
        on_way = {
            (each.id, each.suspension.number, each.suspension.state)
            for each in state.leases.suspended().values()
            if each.held and each.suspension is not None and each.suspension.state in ways
        }
        self._since = {each: self._since.get(each, now) for each in on_way}
        for (lease, _, way), since in self._since.items():
            if now - since > self.LATE_S:
                text = f"lease {lease} has been {way.value} for {now - since:.1f} s"
                self._failures.fail("suspensions-settle", text)


class SuspendedGoOn:
    """A suspended lease goes on soon once there is room, and ends when it was away for too long.

    While it waits, nobody of its priority or less gets what it lacks, once it has waited as long as
    a request that goes first.
    """

    LATE_S = 6.0
    """One lease goes on at a time, each after a commit and a look of the leader."""

    def __init__(self, failures: FailureReporter, in_force: RulesInForce) -> None:
        self._failures = failures
        self._in_force = in_force
        self._room_since: dict[LeaseId, float] = {}
        self._over_since: dict[LeaseId, float] = {}

    def granted(self, lease: Lease, before: PoolState, after: PoolState) -> None:
        """Judge a new lease; ``before`` is the table without it."""
        rules = self._in_force.of(after)
        if rules.reservation(after.now) is not None:
            return
        for waits in before.leases.suspended().values():
            since = waits.suspension.resume_since if waits.suspension is not None else 0
            starved = since and since <= after.now - after.starved_after_ms
            if not (waits.held and waits.is_away and starved and _allowed(after, waits, rules)):
                continue
            priority = rules.priority(waits.user)
            line = (each for each in before.waiting.values() if each.request.id == lease.request)
            ahead = any((-each.priority, each.since) < (-priority, since) for each in line)
            if ahead or rules.priority(lease.user) > priority:
                continue
            if _missing(after, waits) > _missing(before, waits):
                text = f"lease {lease.id} took what lease {waits.id} waits for to go on"
                self._failures.fail("suspended-go-on", text)

    def observe(self, state: PoolState, now_ms: int, now: float) -> None:
        """Look at the suspended leases while nothing is disturbed."""
        rules = self._in_force.of(state)
        away = [each for each in state.leases.suspended().values() if each.held and each.is_away]
        room = {each.id: now for each in away if self._has_room(state, each, rules)}
        self._room_since = {each: self._room_since.get(each, now) for each in room}
        over: set[LeaseId] = set()
        for lease in away:
            longest_s = rules.seconds(now_ms, lease.user, "max_suspended")
            since = lease.history.away_since if lease.history is not None else now_ms
            if longest_s and now_ms - since > longest_s * 1000:
                over.add(lease.id)
        self._over_since = {each: self._over_since.get(each, now) for each in over}
        for lease_id, since in self._room_since.items():
            if now - since > self.LATE_S:
                text = f"lease {lease_id} has had room for {now - since:.1f} s"
                self._failures.fail("suspended-go-on", text)
        for lease_id, since in self._over_since.items():
            if now - since > self.LATE_S:
                text = f"lease {lease_id} was to end {now - since:.1f} s ago"
                self._failures.fail("suspended-too-long", text)

    @staticmethod
    def _has_room(state: PoolState, lease: Lease, rules: Rules) -> bool:
        """Return whether nothing at all keeps a lease from going on."""
        if lease.suspension is None or not lease.suspension.resume_since:
            return False
        priority = rules.priority(lease.user)
        if any(each.priority >= priority for each in state.waiting.values()):
            return False
        return (
            rules.reservation(state.now) is None
            and _missing(state, lease) == 0
            and _allowed(state, lease, rules)
        )


def _runs_on(lease: Lease) -> bool:
    """Return whether a lease has its GPUs, and keeps them."""
    found = lease.suspension
    return found is None or found.state is SuspensionState.RESUMING


def _suspended_for(state: PoolState, request: RequestId) -> list[Lease]:
    """Return the leases that are being suspended for a request."""
    return [
        each
        for each in state.leases.suspended().values()
        if each.held
        and each.suspension is not None
        and each.suspension.for_request == request
        and each.suspension.state is SuspensionState.SUSPENDING
        and all(
            server in each.suspension.confirmed
            or ((known := state.servers.get(server)) and known.status is ServerStatus.UP)
            for server in each.parts
        )
    ]


def _can_begin(state: PoolState, entry: Waiting, rules: Rules, coming: list[LeaseId]) -> bool:
    """Return whether a request surely has enough once some leases have let go.

    Nobody knows that while somebody may go before it, for whom GPUs are kept.
    """
    others = (each for each in state.waiting.values() if each.request.id != entry.request.id)
    away = (each for each in state.leases.suspended().values() if each.held and each.is_away)
    if rules.reservation(state.now) is not None:
        return False
    if any(each.priority >= entry.priority for each in others):
        return False
    if any(rules.priority(each.user) >= entry.priority for each in away):
        return False
    freed: dict[tuple[object, object], int] = {}
    for lease in (state.leases[each] for each in coming):
        for part in lease.partitions:
            place = (part.server, part.gpu)
            freed[place] = freed.get(place, 0) + part.memory
    counts = [
        sum(
            gpu.memory_free + freed.get((server.id, gpu.id), 0) >= size
            for gpu in server.gpus.values()
            if (size := served(state, entry.request, server, gpu, rules, entry.user)) is not None
        )
        for server in state.servers.values()
        if server.grantable
    ]
    most = sum(counts) if entry.request.across else max(counts, default=0)
    return most >= entry.request.count


def _missing(state: PoolState, lease: Lease) -> int:
    """Return how many bytes a suspended lease lacks on its GPUs."""
    missing = 0
    for part in lease.partitions:
        server = state.servers.get(part.server)
        gpu = server.gpus.get(part.gpu) if server is not None else None
        free = gpu.memory_free if gpu is not None and server is not None and server.grantable else 0
        missing += max(0, part.memory - free)
    return missing


def _allowed(state: PoolState, lease: Lease, rules: Rules) -> bool:
    """Return whether the policy lets a suspended lease have its memory again."""
    for part in lease.partitions:
        server = state.servers.get(part.server)
        gpu = server.gpus.get(part.gpu) if server is not None else None
        if server is None or gpu is None or not rules.admits(state.now, lease.user, server, gpu):
            return False
    return not rules.keeps_away(state, lease)
