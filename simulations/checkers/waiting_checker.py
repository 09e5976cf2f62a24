"""The checker of waiting: a request begins in time where a server would have had room by then."""

from dataclasses import dataclass

from gpupool.pool.model.ids import LeaseId, RequestId, ServerId
from gpupool.pool.model.state import Lease, PoolState, Waiting
from gpupool.simulations.checkers.policy_oracle import Rules, RulesInForce, served
from gpupool.simulations.kernel.failure_reporter import FailureReporter

LOOK_EVERY_MS = 500
RENEWED_MS = 8_000
"""A client that waits renews its place every 5 s."""

GENERATIONS = 4
"""A request waits for so many times the longest lease that has ended in this run."""

SLACK_MS = 10_000
"""Commits, clients that ask every 5 s, and leases that are suspended, which takes 2.4 s each."""

Places = dict[ServerId, frozenset[str]]


@dataclass(slots=True)
class _Wait:
    """A request with no other claimant of the same GPUs before it."""

    began: int
    places: Places
    priority: int
    held: dict[ServerId, set[LeaseId]]  # by server, leases of when it began that are still there


class NobodyStarves:
    """A starved request begins within ``GENERATIONS`` times the longest of the leases that end.

    That is asked for where some server would have been empty by now, had nothing been granted on it
    since: all leases of then have ended there, or would give way to the request by its priority.
    For a request over several servers these count together. Exceptions, for which its time begins
    anew: another request, or a suspended lease that goes on, comes before it and could take the
    same; a limit holds it back; the servers and GPUs that may serve it are others than before; one
    of higher priority was granted there; a GPU is reserved; the time was set; its client is silent.
    """

    def __init__(self, failures: FailureReporter, in_force: RulesInForce) -> None:
        self._failures = failures
        self._in_force = in_force
        self._looked = self._era = self._longest = 0
        self._leases: dict[LeaseId, Lease] = {}
        self._waits: dict[RequestId, _Wait] = {}

    def applied(self, state: PoolState) -> None:
        """Look at the table after a command was applied, twice a second."""
        if 0 <= state.now - self._looked < LOOK_EVERY_MS:
            return
        self._looked = state.now
        living = {each.id: each for each in state.leases.values() if each.held}
        over = (each for key, each in self._leases.items() if key not in living)
        self._longest = max([self._longest, *(state.now - each.granted_at for each in over)])
        self._leases = living
        rules = self._in_force.of(state)
        is_other_time, self._era = state.era != self._era, state.era
        if is_other_time or rules.reservation(state.now) is not None:
            self._waits.clear()
            return
        before, self._waits = self._waits, {}
        line: list[tuple[Waiting, Places]] = []
        for entry in _starved(state):
            places = _places(state, entry, rules)
            if not places or rules.holds_back(state, entry.user, entry.request):
                continue
            wait = self._look(state, entry, places, rules, before.get(entry.request.id))
            if not self._comes_after(state, entry, places, rules, line):
                self._waits[entry.request.id] = wait
                self._judge(state, entry, wait)
            line.append((entry, places))

    def _look(
        self, state: PoolState, entry: Waiting, places: Places, rules: Rules, wait: _Wait | None
    ) -> _Wait:
        now = {
            server: {
                each.id
                for each in state.leases.at(server).values()
                if each.held and not each.is_away and any(p.gpu in gpus for p in each.partitions)
            }
            for server, gpus in places.items()
        }
        if (
            wait is None
            or (wait.places, wait.priority) != (places, entry.priority)
            or any(
                state.leases[each].granted_at > wait.began
                and rules.priority(state.leases[each].user) > entry.priority
                for each in set[LeaseId]().union(*now.values())
            )
        ):
            wait = _Wait(state.now, places, entry.priority, now)
        for server, held in wait.held.items():
            held &= {each for each in now[server] if not _gives_way(state, each, entry, rules)}
        return wait

    def _comes_after(
        self,
        state: PoolState,
        entry: Waiting,
        places: Places,
        rules: Rules,
        line: list[tuple[Waiting, Places]],
    ) -> bool:
        """Return whether another entry that could take a request's GPUs goes before it."""
        if any(places.keys() & others.keys() for _, others in line):
            return True
        turn = -entry.priority, entry.since
        return any(
            each.suspension is not None
            and (-rules.priority(each.user), each.suspension.resume_since) < turn
            and each.parts.keys() & places.keys()
            for each in state.leases.suspended().values()
            if each.held
        )

    def _judge(self, state: PoolState, entry: Waiting, wait: _Wait) -> None:
        left = list(wait.held.values())
        would_begin = not any(left) if entry.request.across else not all(left)
        waited = state.now - wait.began
        if would_begin and waited > GENERATIONS * self._longest + SLACK_MS:
            text = (
                f"{entry.user} could have begun, and has waited {waited / 1000:.0f} s at the head; "
                f"leases run for up to {self._longest / 1000:.1f} s"
            )
            self._failures.fail("nobody-starves", text)


def _starved(state: PoolState) -> list[Waiting]:
    found = (
        entry
        for entry in state.waiting.values()
        if entry.since <= state.now - state.starved_after_ms
        and entry.renewed >= state.now - RENEWED_MS
    )
    return sorted(found, key=lambda each: (-each.priority, each.since, each.request.id))


def _places(state: PoolState, entry: Waiting, rules: Rules) -> Places:
    """Return the GPUs that can serve a request, where there are enough."""
    request = entry.request
    found = {
        server.id: frozenset(
            gpu.id
            for gpu in server.gpus.values()
            if served(state, request, server, gpu, rules, entry.user) is not None
        )
        for server in state.servers.values()
        if server.grantable
        and (not request.servers or {server.id, server.name} & set(request.servers))
    }
    if request.across:
        enough = sum(map(len, found.values())) >= request.count
        return {key: gpus for key, gpus in found.items() if gpus} if enough else {}
    return {key: gpus for key, gpus in found.items() if len(gpus) >= request.count}


def _gives_way(state: PoolState, lease_id: LeaseId, entry: Waiting, rules: Rules) -> bool:
    lease = state.leases[lease_id]
    may = lease.preemptible or rules.is_preemptible(state.now, lease.user)
    return may and rules.priority(lease.user) < entry.priority
