"""Preemption: suspension of leases so that a request of higher priority can begin.

The leader asks for it, and ``apply`` asks again, so that nothing is suspended that the table of
that moment does not need. A lease may be chosen when its priority is lower, when it or its class is
preemptible, when it has run for its minimum time since it was resumed last, and when its class
keeps its guarantee without it. Of all choices that let the request begin, that is taken which moves
the fewest bytes, then the one of the lowest priorities, then of the shortest time since the last
resumptions. No lease of a choice can be left out of it.

Choices among few leases are compared one by one. Among many, GPU after GPU is cleared, the cheapest
first, and what turns out not to be needed is left out: so a choice is never larger than needed, and
takes milliseconds.

A lease that was resumed is left alone for its minimum run time. So a request may have to wait for
that, and not for the end of any lease.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice

from gpupool.pool.model.formats import ALL_STARVED_SINCE
from gpupool.pool.model.ids import GpuId, LeaseId, Milliseconds, RequestId, ServerId
from gpupool.pool.model.policy import MILLI
from gpupool.pool.model.state import (
    Lease,
    PartStatus,
    PoolState,
    Request,
    Server,
    Waiting,
    with_changes,
)
from gpupool.pool.model.suspension import SuspendLease, SuspensionState
from gpupool.pool.model.tables import Memo
from gpupool.pool.policy.admission import Admission, number_text
from gpupool.pool.policy.giving_way import not_suspendable, pause_end, running_since, too_early
from gpupool.pool.scheduling import fairness
from gpupool.pool.scheduling.fairness import Place
from gpupool.pool.scheduling.filters import admitted, wanted_size

EXAMINED_MAX = 16
"""Waiting requests for which one pass looks for leases to suspend: half of them the first in the
line, half of them others in turn. Those for which leases are suspended already come besides."""

ALIKE_MAX = 4
"""Of these, requests of one user that ask for the same."""

TURN_MS = 5_000
"""After so long it is the turn of other requests behind the first ones."""

SERVERS_MAX, LOOKED_AT_MAX = 16, 256
"""Servers with leases to compare, those first that lack the least; and servers looked at for leases
that may give way at all."""

EXACT_MAX = 10
"""Leases of which all choices are compared, 1,024 at most."""

Cost = tuple[int, tuple[int, ...], int, tuple[LeaseId, ...]]
"""Bytes moved; priorities, the highest first; milliseconds since the resumptions; the ids."""


@dataclass(frozen=True, slots=True)
class Preemption:
    """The leases to suspend and the GPUs to keep for one request."""

    entry: Waiting
    leases: tuple[LeaseId, ...]  # none: what is free, or is being suspended for it, is enough
    gpus: frozenset[Place]  # that are kept for it


def due_preemptions(state: PoolState) -> tuple[SuspendLease, ...]:
    """Return the suspensions that the leader should propose, so that waiting requests begin."""
    # It looks far more often than anything changes, and may be late by a second.
    parts, second = _parts(state), state.now // 1000
    known = _planned.get(*parts)
    if known is None or known[0] != second:
        plan = tuple(
            SuspendLease(lease, reason_text(found.entry), for_request=found.entry.request.id)
            for found in preemptions(state)
            for lease in found.leases
        )
        known = _planned.put((second, plan), *parts)
    return known[1]


_planned: Memo[tuple[int, tuple[SuspendLease, ...]]] = Memo(4)


def _parts(state: PoolState) -> tuple[object, ...]:
    return (state.servers, state.leases, state.waiting, state.policy)


def reason_text(entry: Waiting) -> str:
    """Return why leases are suspended for an entry, for their owners."""
    return f"a request of {entry.user} with priority {entry.priority} goes first"


def is_due(state: PoolState, lease: LeaseId, request: RequestId) -> bool:
    """Return whether a lease is to be suspended for a request now."""
    found = (each for each in preemptions(state, request) if each.entry.request.id == request)
    return any(lease in each.leases for each in found)


def preemptions(state: PoolState, also: RequestId | None = None) -> tuple[Preemption, ...]:
    """Return the suspensions for each waiting request, the first in the line first.

    Not all requests are looked at each time, but ``also`` is.
    """
    if not state.waiting or not Admission(state).book.has_priorities:
        return ()
    return tuple(_find(state, also))


def _find(state: PoolState, also: RequestId | None) -> Iterator[Preemption]:
    rules = Rules(state)
    taken: frozenset[Place] = frozenset()
    for entry in _examined(rules, also):
        kept = fairness.kept_from(state, entry.request.id, entry.user)
        others = taken.union(*(each.gpus for each in kept))
        servers = fairness.with_memory_to_come(state, entry)
        gpus, is_ready = fairness.nearest(state, entry, others, servers)
        found = Preemption(entry, (), gpus) if is_ready else choose(rules, entry, others)
        if found is not None:
            taken |= found.gpus
            yield found


def _examined(rules: "Rules", also: RequestId | None) -> list[Waiting]:
    """Return the requests that are looked at now, in their turn.

    One whose user's priority has changed is renewed within seconds, and is not looked at before.
    """
    state, is_fair = rules.state, rules.is_fair
    suspensions = (lease.suspension for lease in state.leases.suspended().values())
    always = {also, *(found.for_request for found in suspensions if found is not None)} - {None}
    alike: Counter[tuple[str, Request]] = Counter()
    chosen: list[Waiting] = []
    line: list[Waiting] = []
    entries = state.waiting.in_turn(state.now)
    for entry in entries if is_fair else islice(entries, EXAMINED_MAX):
        if entry.priority <= rules.lowest:
            break
        key = (entry.user, fairness.shape_of(entry.request))
        alike[key] += 1
        is_first = not is_fair or alike[key] <= ALIKE_MAX or entry.request.id in always
        is_current = entry.priority == rules.admission.terms(entry.user).priority
        if is_first and is_current and not fairness.is_held_back(rules.admission, entry):
            (chosen if entry.request.id in always else line).append(entry)
    half = EXAMINED_MAX // 2
    others = line[2 * half :] and line[half:]
    if others:
        start = state.now // TURN_MS * half % len(others)
        line = line[:half] + (others + others)[start : start + half]
    return sorted([*chosen, *line], key=fairness.turn)


# --- what may be suspended ------------------------------------------------------------------------


class Rules:
    """The facts of the policy and the table about leases that could give way."""

    def __init__(self, state: PoolState) -> None:
        self.state = state
        self.admission = Admission(state)
        self.is_fair = state.formats() >= ALL_STARVED_SINCE
        terms = self.admission.terms
        self.priorities = {user: terms(user).priority for user in state.usage}
        self.lowest = min(self.priorities.values(), default=0)
        self._running: dict[str, int] | None = None

    def priority(self, lease: Lease) -> int:
        """Return the priority of a lease's user."""
        known = self.priorities.get(lease.user)
        return known if known is not None else self.admission.terms(lease.user).priority

    def cost(self, leases: Sequence[Lease]) -> Cost:
        """Return the cost of suspending these leases: the least is chosen."""
        now = self.state.now
        return (
            sum(part.memory for lease in leases for part in lease.partitions),
            tuple(sorted((self.priority(lease) for lease in leases), reverse=True)),
            sum(now - running_since(lease) for lease in leases),
            tuple(sorted(lease.id for lease in leases)),
        )

    def spare(self, group: str) -> int | None:
        """Return how many units of its leases a class can do without; None: all of them."""
        source = self.admission.moment.guarantee(group)
        if source is None:
            return None
        if self._running is None:
            self._running = self._running_units()
        return self._running.get(group, 0) - source.rule.number * MILLI

    def _running_units(self) -> dict[str, int]:
        """Return the GPU units of each class in leases that are neither over nor suspended."""
        found: dict[str, int] = {}
        group_of = self.admission.book.group_of
        for lease in self.state.leases.values():
            suspension = lease.suspension
            if lease.held and (suspension is None or suspension.state is SuspensionState.RESUMING):
                group = group_of(lease.user)
                found[group] = found.get(group, 0) + sum(lease.units.values())
        return found

    def keep_guarantees(self, leases: Iterable[Lease]) -> bool:
        """Return whether each class keeps its guarantee without these leases."""
        units: dict[str, int] = {}
        for lease in leases:
            group = self.admission.book.group_of(lease.user)
            units[group] = units.get(group, 0) + sum(lease.units.values())
        spares = ((self.spare(group), taken) for group, taken in units.items())
        return all(spare is None or taken <= spare for spare, taken in spares)

    def objection(self, lease: Lease, entry: Waiting) -> str:
        """Return why a lease may not be suspended for ``entry``, or nothing."""
        state, policy = self.state, self.state.policy
        if lease.suspension is not None:
            return f"it is {lease.suspension.state.value} already"
        if not lease.held or set(lease.parts.values()) != {PartStatus.HELD}:
            return "it ends"
        if (priority := self.priority(lease)) >= entry.priority:
            return f"its priority {priority} is not lower than {entry.priority}"
        terms = self.admission.terms(lease.user)
        rule = terms.preemptible
        if not lease.preemptible and (rule is None or not rule.rule.number):
            why = f" ({rule.text(policy)})" if rule is not None else ""
            return f"neither it nor its class is preemptible{why}"
        if why := not_suspendable(state, lease):
            return why
        if why := too_early(state, lease, terms.min_run_ms):
            return why
        source = self.admission.moment.guarantee(terms.group)
        if source is not None and not self.keep_guarantees([lease]):
            amount = number_text(source.rule.number / 1000)
            return f"class {terms.group} keeps {amount} GPUs ({source.text(policy)})"
        return ""


# --- the choice -----------------------------------------------------------------------------------


class _Room:
    """The GPUs that one request may have, and the missing memory on each of them."""

    def __init__(self, rules: Rules, entry: Waiting, servers: Iterable[Server]) -> None:
        self.rules = rules
        self.request = entry.request
        self.missing: dict[Place, int] = {}
        self.card: dict[Place, tuple[ServerId, GpuId]] = {}
        usable = rules.admission.usable(entry.user)
        for server in servers:
            for gpu in admitted(self.request, server) if server.grantable else ():
                size = 0 if gpu.unfit else wanted_size(gpu, self.request)
                if 0 < size <= gpu.capacity and usable(server, gpu):
                    place = (server.id, gpu.id)
                    # More than the whole GPU where others use what is granted.
                    taken = gpu.memory_granted + gpu.memory_foreign
                    self.missing[place] = size + taken - gpu.capacity
                    self.card[place] = (server.id, gpu.parent or gpu.id)

    def without(self, taken: frozenset[Place]) -> None:
        """Leave out the GPUs that others have first."""
        for place in taken & self.missing.keys():
            del self.missing[place]

    def least(self) -> int | None:
        """Return the fewest bytes that must be given back; None: there are too few GPUs."""
        cards: dict[tuple[ServerId, GpuId], int] = {}
        for place, missing in self.missing.items():
            card = self.card[place]
            cards[card] = min(missing, cards.get(card, missing))
        if len(cards) < self.request.count:
            return None
        return sum(max(0, each) for each in sorted(cards.values())[: self.request.count])

    def lessened(self, leases: Iterable[Lease]) -> dict[Place, int]:
        """Return the missing memory once these leases have let go."""
        missing = dict(self.missing)
        for lease in leases:
            for part in lease.partitions:
                place = (part.server, part.gpu)
                if place in missing:
                    missing[place] -= part.memory
        return missing

    def fits(self, leases: Iterable[Lease]) -> bool:
        """Return whether the request can begin once these leases have let go."""
        return len(self.ready(leases)) >= self.request.count

    def ready(self, leases: Iterable[Lease]) -> set[tuple[ServerId, GpuId]]:
        """Return the cards that can serve it then."""
        missing = self.lessened(leases)
        return {self.card[place] for place, lack in missing.items() if lack <= 0}

    def gpus(self, leases: Iterable[Lease]) -> frozenset[Place]:
        """Return GPUs, one of each card, that serve it then: those that they leave, and others."""
        leases = list(leases)
        missing = self.lessened(leases)
        freed = {(part.server, part.gpu) for lease in leases for part in lease.partitions}
        found: dict[tuple[ServerId, GpuId], Place] = {}
        for place in sorted(missing, key=lambda each: (each not in freed, each)):
            if missing[place] <= 0:
                found.setdefault(self.card[place], place)
        return frozenset(list(found.values())[: self.request.count])


def choose(
    rules: Rules, entry: Waiting, taken: frozenset[Place], among: Lease | None = None
) -> Preemption | None:
    """Return the cheapest leases to suspend for a request, or None when that would not help.

    Args:
        rules: of the table of now.
        entry: the request.
        taken: GPUs that others have first.
        among: a lease that has to be one of them, and not a needless one; None: none has to.
    """
    servers = fairness.with_memory_to_come(rules.state, entry).values()
    rooms: list[tuple[int, int, _Room]] = []
    groups = [list(servers)] if entry.request.across else [[each] for each in servers]
    if among is not None:
        groups = [each for each in groups if among.parts.keys() & {server.id for server in each}]
    for number, group in enumerate(groups):
        room = _Room(rules, entry, group)
        room.without(taken)
        if (least := room.least()) is not None:
            rooms.append((least, number, room))
    rooms.sort(key=lambda each: each[:2])
    best: tuple[Cost, list[Lease], _Room] | None = None
    compared = 0
    for least, _, room in rooms[: LOOKED_AT_MAX if rules.is_fair else SERVERS_MAX]:
        if compared >= SERVERS_MAX or (best is not None and least > best[0][0]):
            break  # more must be moved there than is moved here
        candidates = _candidates(room, entry)
        if rules.is_fair and not room.fits(candidates):
            continue
        compared += 1
        chosen = _cheapest(room, candidates, among)
        if chosen is not None and (best is None or rules.cost(chosen) < best[0]):
            best = (rules.cost(chosen), chosen, room)
    if best is None:
        return None
    _, leases, room = best
    return Preemption(entry, tuple(sorted(each.id for each in leases)), room.gpus(leases))


def _candidates(room: _Room, entry: Waiting) -> list[Lease]:
    """Return the leases that may give way, and hold something that is missing."""
    lacking = {place for place, lack in room.missing.items() if lack > 0}
    leases = room.rules.state.leases
    found = {
        lease.id: lease
        for server in sorted({server for server, _ in lacking})
        for lease in leases.at(server).values()
        if any((part.server, part.gpu) in lacking for part in lease.partitions)
        and not room.rules.objection(lease, entry)
    }
    return sorted(found.values(), key=lambda each: room.rules.cost([each]))


def _cheapest(
    room: _Room, candidates: list[Lease], among: Lease | None = None
) -> list[Lease] | None:
    rules = room.rules
    if among is not None and among not in candidates:
        return None
    if len(candidates) > EXACT_MAX:
        found = _cleared(room, candidates, among)
        return found if found is None or _is_needed(room, found, among) else None
    sets = (list(s) for n in range(len(candidates) + 1) for s in combinations(candidates, n))
    suitable = (
        each
        for each in sets
        if (among is None or among in each)
        and room.fits(each)
        and rules.keep_guarantees(each)
        and _is_needed(room, each, among)
    )
    return min(suitable, key=rules.cost, default=None)


def _is_needed(room: _Room, leases: list[Lease], lease: Lease | None) -> bool:
    """Return whether a choice has a lease, and could not do without it; None: any choice."""
    if lease is None:
        return True
    return lease in leases and not room.fits(each for each in leases if each is not lease)


def _cleared(room: _Room, candidates: list[Lease], among: Lease | None) -> list[Lease] | None:
    """Clear GPU after GPU, the cheapest first; then leave out leases that are not needed."""
    rules = room.rules
    on: dict[Place, list[Lease]] = {}
    for lease in candidates:
        for part in lease.partitions:
            on.setdefault((part.server, part.gpu), []).append(lease)
    chosen: list[Lease] = [among] if among is not None else []
    for _ in range(room.request.count):
        if room.fits(chosen):
            break
        ready, missing = room.ready(chosen), room.lessened(chosen)
        ways = (
            way
            for place, lack in missing.items()
            if room.card[place] not in ready
            and (way := _way(rules, place, lack, on.get(place, []), chosen)) is not None
        )
        way = min(ways, key=rules.cost, default=None)
        if way is None:
            return None
        chosen += way
    if not room.fits(chosen):
        return None
    for lease in sorted(chosen, key=lambda each: rules.cost([each]), reverse=True):
        rest = [each for each in chosen if each is not lease]
        if lease is not among and room.fits(rest):
            chosen = rest
    return chosen


def _way(
    rules: Rules, place: Place, lack: int, leases: list[Lease], chosen: list[Lease]
) -> list[Lease] | None:
    """Return the cheapest leases that clear one GPU, besides those that are chosen already."""
    left = [each for each in leases if each not in chosen]

    def clears(some: Sequence[Lease]) -> bool:
        freed = (p.memory for each in some for p in each.partitions if (p.server, p.gpu) == place)
        return sum(freed) >= lack and rules.keep_guarantees([*chosen, *some])

    if len(left) <= EXACT_MAX - 2:
        sets = (list(s) for n in range(len(left) + 1) for s in combinations(left, n))
        return min(filter(clears, sets), key=rules.cost, default=None)
    some: list[Lease] = []
    for lease in left:
        if rules.keep_guarantees([*chosen, *some, lease]):
            some.append(lease)
        if clears(some):
            return some
    return None


LATER_MAX = 8
"""Instants at which a choice is looked for, besides now: each may take 20 ms."""


def suspendable_in_ms(state: PoolState, user: str, request: Request) -> int | None:
    """Return after how long the policy has leases suspended for a request; None: never, so far.

    Limits, guarantees and who goes first are as they are now, so this is no promise.
    """
    rules = Rules(state)
    if not rules.admission.book.has_priorities:
        return None
    entry = entry_of(rules, user, request)
    if fairness.is_held_back(rules.admission, entry) or entry.priority <= rules.lowest:
        return None
    _, taken = before_entry(rules, entry)
    ends = {
        pause_end(lease, rules.admission.terms(lease.user).min_run_ms)
        for lease in state.leases.values()
        if lease.held and rules.priority(lease) < entry.priority
    }
    later = sorted(each for each in ends if each > state.now)
    for at in (state.now, *later[:LATER_MAX]):
        then = with_changes(state, now=Milliseconds(at))
        if choose(Rules(then), entry, taken) is not None:
            return at - state.now
    return None


def entry_of(rules: Rules, user: str, request: Request) -> Waiting:
    """Return the place in line of a request, or the one that it would get now."""
    state = rules.state
    priority = rules.admission.terms(user).priority
    known = state.waiting.get(request.id)
    return known or Waiting(request, user, priority, state.now, state.now, "")


def before_entry(rules: Rules, entry: Waiting) -> tuple[list[Preemption], frozenset[Place]]:
    """Return the earlier preemptions, and all GPUs that others have first."""
    state, turn = rules.state, fairness.turn(entry)
    ahead = [each for each in preemptions(state) if fairness.turn(each.entry) < turn]
    kept = fairness.kept_from(state, entry.request.id, entry.user)
    return ahead, frozenset[Place]().union(*(each.gpus for each in (*kept, *ahead)))
