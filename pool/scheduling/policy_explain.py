"""What the policy says to a user and a request, in sentences that name their rules."""

from gpupool.pool.model.policy import UNIT
from gpupool.pool.model.results import RefusalKind
from gpupool.pool.model.state import PoolState, Request
from gpupool.pool.policy.admission import NOUNS, Admission, amount, duration_text, time_text
from gpupool.pool.policy.usage import NOTHING
from gpupool.pool.scheduling.offers import NoOffer
from gpupool.pool.scheduling.placement import make_offer
from gpupool.pool.scheduling.preemption import explain_preemption


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
