"""The policy's answers to a user and a request, in sentences that name their rules."""

from collections.abc import Iterable, Sequence

from gpupool.pool.model.ids import lease_name
from gpupool.pool.model.policy import UNIT
from gpupool.pool.model.results import RefusalKind
from gpupool.pool.model.state import Lease, PoolState, Request, Waiting
from gpupool.pool.policy.admission import (
    NOUNS,
    Admission,
    amount,
    duration_text,
    number_text,
    time_text,
)
from gpupool.pool.policy.giving_way import running_since
from gpupool.pool.policy.rulebook import NOTHING
from gpupool.pool.scheduling import fairness
from gpupool.pool.scheduling.fairness import Place
from gpupool.pool.scheduling.offers import NoOffer
from gpupool.pool.scheduling.placement import make_offer
from gpupool.pool.scheduling.preemption import Rules, before_entry, choose, entry_of

SPARED_MAX = 12
"""Leases of which is said why they are not suspended."""

COMPARED_MAX = 4
"""Of these, leases for which the best choice with them is looked for: each may take 20 ms."""


def explain(state: PoolState, user: str, request: Request | None) -> tuple[str, tuple[str, ...]]:
    """Return the kind of refusal, empty for none, and the lines that explain it."""
    lines = _terms_lines(state, user)
    if request is None:
        return "", tuple(lines)
    kind, line = verdict(state, user, request)
    more = explain_preemption(state, user, request) if kind == RefusalKind.BUSY else []
    return kind, (*lines, line, *more)


def verdict(state: PoolState, user: str, request: Request) -> tuple[str, str]:
    """Return the kind of refusal and why, for a request that would be made now."""
    answers = [make_offer(state, server, request, user) for server in state.servers.values()]
    refusals = [answer for answer in answers if isinstance(answer, NoOffer)]
    if len(refusals) < len(answers):
        return "", "allowed: it would be granted now"
    for kind in (RefusalKind.DENIED, RefusalKind.NEVER, RefusalKind.BUSY):
        found = next((each for each in refusals if each.kind == kind), None)
        if found is not None:
            return kind.value, f"{kind.value}: {found.why}"
    return RefusalKind.BUSY.value, "busy: the pool has no server"


def _terms_lines(state: PoolState, user: str) -> list[str]:
    if not state.policy.version:
        return ["the pool has no policy: nothing is limited"]
    admission = Admission(state)
    terms, policy = admission.terms(user), state.policy
    lines = [f"{user} is in class {terms.group}" if terms.group else f"{user} is in no class"]
    for cap in terms.caps:
        who = {"user": user, "class": f"class {terms.group}"}.get(cap.holder, "all users")
        held = amount(admission.usage_of(terms, cap), cap)
        limit = f"{held} of {amount(cap.limit, cap)} {NOUNS[cap.dimension]}"
        lines.append(f"{who}: {limit} held ({cap.source.text(policy)})")
    usage = state.usage.get(user, NOTHING)
    if not terms.caps:
        lines.append(f"no limit; {user} holds {usage.units / UNIT:.3g} GPUs")
    for source, what in ((terms.gpus, "GPUs"), (terms.servers, "servers with")):
        if source is not None:
            lines.append(f"may use {what} {', '.join(source.rule.words)} ({source.text(policy)})")
    if terms.priority:
        lines.append(f"priority {terms.priority}")
    if terms.weight is not None:
        weight = number_text(terms.weight.rule.number / 1000)
        lines.append(f"shares of computing time weigh {weight} ({terms.weight.text(policy)})")
    if terms.idle_timeout_ms:
        lines.append(f"a lease ends when unused for {duration_text(terms.idle_timeout_ms)}")
    if terms.max_lease is not None and terms.max_lease_ms:
        longest = duration_text(terms.max_lease_ms)
        lines.append(f"a lease lasts {longest} at most ({terms.max_lease.text(policy)})")
    if terms.data_encryption:
        lines.append(f"data encryption: {terms.data_encryption}")
    for number in sorted(admission.moment.active):
        window = policy.windows[number]
        until = admission.book.phase(number, state.now).until
        zone = policy.zones[window.span.zone]
        lines.append(f'window "{window.name}" is open until {time_text(zone, until)}')
    return lines


# --- preemption -----------------------------------------------------------------------------------


def explain_preemption(state: PoolState, user: str, request: Request) -> list[str]:
    """Return sentences on leases to suspend for a request, and on the reasons to spare others."""
    rules = Rules(state)
    if not rules.admission.book.has_priorities:
        return []
    entry = entry_of(rules, user, request)
    priority = entry.priority
    if fairness.is_held_back(rules.admission, entry):
        return ["it waits for a limit of the policy, so no lease gives way to it"]
    if priority <= rules.lowest:
        return [f"no lease gives way to it: none has a priority below {priority}"]
    ahead, taken = before_entry(rules, entry)
    before = {lease: each for each in ahead for lease in each.leases}
    case = _Case(rules, entry, taken)
    chosen = [state.leases[each] for each in case.found.leases] if case.found is not None else []
    lines = [case.chosen_text(lease) for lease in chosen]
    if len(chosen) > 1:
        text = f"these {len(chosen)} leases move {_gib(chosen)}, and none of them can be left out"
        lines.append(text)
    others = [
        lease
        for lease in state.leases.values()
        if lease.held and lease not in chosen and rules.priority(lease) < priority
    ]
    for lease in others[:SPARED_MAX]:
        earlier = before.get(lease.id)
        why = f"a request of {earlier.entry.user} gets its memory" if earlier is not None else ""
        why = why or case.spared_text(lease, chosen)
        lines.append(f"lease {lease_name(lease.id)} of {lease.user} would not: {why}")
    if len(others) > SPARED_MAX:
        more = len(others) - SPARED_MAX
        lines.append(f"nor would {more} more lease{'s' * (more > 1)} of lower priority")
    equals = sum(
        lease.held and rules.priority(lease) >= priority for lease in state.leases.values()
    )
    if equals:
        lines.append(f"priority {priority} or more protects {equals} of the leases")
    return lines


class _Case:
    """The choice for one request, and sentences about the leases that are in it or not."""

    def __init__(self, rules: Rules, entry: Waiting, taken: frozenset[Place]) -> None:
        self._rules = rules
        self._entry = entry
        self._taken = taken
        self._compared_count = 0
        self.found = choose(rules, entry, taken)

    def chosen_text(self, lease: Lease) -> str:
        """Return the sentence about a lease that would be suspended."""
        what = f"{_gib([lease])}, priority {self._rules.priority(lease)}, {self._ran(lease)}"
        who = f"lease {lease_name(lease.id)} of {lease.user}"
        return f"{who} would be suspended for it: {what}"

    def spared_text(self, lease: Lease, chosen: Sequence[Lease]) -> str:
        """Return why a lease is not suspended: a rule, or how the best choice with it compares."""
        if why := self._rules.objection(lease, self._entry):
            return why
        if self.found is None:
            return "that would not suffice"
        self._compared_count += 1
        if self._compared_count > COMPARED_MAX:
            return "others come first: fewest bytes, then lowest priority, then shortest run"
        instead = choose(self._rules, self._entry, self._taken, lease)
        if not chosen or instead is None:
            return "the request does not need its memory"
        return self._compared([self._rules.state.leases[each] for each in instead.leases], chosen)

    def _compared(self, instead: Sequence[Lease], chosen: Sequence[Lease]) -> str:
        """Return in which of the four steps of the cost the choice with a lease loses."""
        theirs, ours = self._rules.cost(instead), self._rules.cost(chosen)
        if theirs[0] != ours[0]:
            return f"{_gib(instead)} would be moved with it, and {_gib(chosen)} are without it"
        if theirs[1] != ours[1] and theirs[1][: len(ours[1])] == ours[1]:
            return f"the same memory is moved, of {len(instead)} leases instead of {len(chosen)}"
        if theirs[1] != ours[1]:
            return (
                f"the same memory is moved; priorities are higher: {_numbers(theirs[1])} "
                f"instead of {_numbers(ours[1])}"
            )
        if theirs[2] != ours[2]:
            return (
                "the same memory is moved; it would end a longer run: "
                f"{duration_text(theirs[2])} instead of {duration_text(ours[2])}"
            )
        return "it would do as well, and lower numbers are taken first"

    def _ran(self, lease: Lease) -> str:
        ran = duration_text(self._rules.state.now - running_since(lease))
        was_away = lease.history is not None and lease.history.resumed_at
        return f"resumed {ran} ago" if was_away else f"runs for {ran}, never suspended"


def _gib(leases: Iterable[Lease]) -> str:
    size = sum(part.memory for lease in leases for part in lease.partitions)
    return f"{number_text(size / 2**30)} GiB"


def _numbers(priorities: Iterable[int]) -> str:
    return ", ".join(map(str, priorities))
