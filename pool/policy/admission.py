"""Whether the policy lets a request be granted now: the checks that ``apply`` and offers share.

A refusal is "denied" when waiting cannot help, and "busy" when it can: because leases that end
give way to it, or because a window opens that allows it.
"""

from collections.abc import Callable, Iterable

from gpupool.pool.model.policy import UNIT, Usage, Zone
from gpupool.pool.model.results import RefusalKind, Result, refuse
from gpupool.pool.model.state import Gpu, PoolState, Request, Server
from gpupool.pool.model.tables import Memo
from gpupool.pool.model.units import DAY_MS
from gpupool.pool.policy.policy_calendar import UTC, offset_ms
from gpupool.pool.policy.rulebook import NOTHING, USED, Cap, Moment, Source, Terms, rulebook, used

May = Callable[[Server, Gpu], bool]
NOUNS = {"max_gpus": "GPUs", "max_memory": "GiB", "max_leases": "leases"}
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
FIRST_DAY = 3
"""1970-01-01 was a Thursday."""


class Admission:
    """The policy's answers over one state of the table; make one, ask several times."""

    def __init__(self, state: PoolState) -> None:
        self.state = state
        self.book = rulebook(state.policy)
        self.moment = self.book.moment(state.now)
        self._members: dict[str, list[Usage]] = {}

    def terms(self, user: str) -> Terms:
        """Return the terms that apply to ``user`` now."""
        return self.moment.terms(user)

    # --- places ----------------------------------------------------------------------------------

    def usable(self, user: str) -> May:
        """Return a function that says whether ``user`` may take a GPU now, were it free."""
        terms = self.terms(user)
        reserved = self.book.reserved(self.state)
        if not terms.restricts_places and not reserved:
            return _anything

        def may(server: Server, gpu: Gpu) -> bool:
            kept = reserved.get((server.id, gpu.id))
            if kept is not None and kept.group != terms.group:
                return False
            return terms.misses(server, gpu) is None

        return may

    def allowed(self, user: str) -> May:
        """Return a function that says whether ``user``'s rules admit a GPU, reserved or not."""
        terms = self.terms(user)
        if not terms.restricts_places:
            return _anything
        return lambda server, gpu: terms.misses(server, gpu) is None

    def place_refusal(self, user: str, places: Iterable[tuple[Server, Gpu]]) -> Result | None:
        """Return why ``user`` may not take exactly these GPUs now, or None."""
        terms = self.terms(user)
        reserved = self.book.reserved(self.state)
        for server, gpu in places:
            kept = reserved.get((server.id, gpu.id))
            if kept is not None and kept.group != terms.group:
                version = self.state.policy.version
                rule = f'policy v{version}, line {kept.line}: [[reservation]] "{kept.name}"'
                return refuse(
                    RefusalKind.BUSY,
                    f"GPU {gpu.index} of {server.name} is kept for class {kept.group} ({rule})",
                )
            source = terms.misses(server, gpu)
            if source is not None:
                what = f"GPU {gpu.index} of {server.name} ({gpu.name})"
                why = f"{self._whose(terms)} may not use {what} ({self._name(source)})"
                return self._later(user, why, _admits(server, gpu))
        return None

    def fit_refusal(
        self, user: str, fits: Callable[[May], bool], largest: Callable[[May], str]
    ) -> Result | None:
        """Return why no GPU that ``user`` may use could ever serve a request, or None.

        ``fits`` says whether the GPUs that a predicate admits could serve it, and ``largest``, in
        words, what they could serve instead.
        """
        terms = self.terms(user)
        if not terms.restricts_places or fits(lambda s, g: terms.misses(s, g) is None):
            return None
        texts: list[str] = []
        for source, what in ((terms.gpus, "GPUs"), (terms.servers, "servers")):
            if source is not None:
                words = ", ".join(source.rule.words)
                texts.append(f"{self._whose(terms)} may use {what} {words} ({self._name(source)})")
        instead = largest(lambda s, g: terms.misses(s, g) is None)
        why = f"{' and '.join(texts)}; {instead}"
        return self._later(user, why, lambda t: fits(lambda s, g: t.misses(s, g) is None))

    # --- limits ----------------------------------------------------------------------------------

    def limit_refusal(self, user: str, need: Usage) -> Result | None:
        """Return why ``user`` may not hold ``need`` on top of everything now, or None."""
        terms = self.terms(user)
        busy: Result | None = None
        for cap in terms.caps:
            wanted = used(need, cap.dimension)
            if wanted > cap.limit:
                why = f"{self._limit_text(terms, cap)} and this takes {amount(wanted, cap)}"
                return self._later(user, why, lambda t: _fits_alone(t, need))
            if busy is None:
                held = self.usage_of(terms, cap)
                if held + wanted > cap.limit:
                    holder = {"user": f"{user} holds", "class": "its members hold"}
                    who = holder.get(cap.holder, "all users hold")
                    text = self._limit_text(terms, cap).removesuffix(",")
                    why = f"{text}; {who} {amount(held, cap)}, this takes {amount(wanted, cap)}"
                    busy = refuse(RefusalKind.BUSY, why)
        return busy

    def is_limited(self, user: str, need: Usage) -> bool:
        """Return whether ``limit_refusal`` has a reason, without putting it into words."""
        terms = self.terms(user)
        return any(
            self.usage_of(terms, cap) + used(need, cap.dimension) > cap.limit for cap in terms.caps
        )

    def usage_of(self, terms: Terms, cap: Cap) -> int:
        """Return the usage of all holders that a cap counts together."""
        usage = self.state.usage
        if cap.holder == "user":
            return used(usage.get(terms.user, NOTHING), cap.dimension)
        if cap.holder == "pool":
            return sum(map(USED[cap.dimension], usage.values()))
        members = self._members.get(terms.group)
        if members is None:
            pairs = zip(usage.values(), self.book.groups_of(usage), strict=True)
            members = [each for each, group in pairs if group == terms.group]
            self._members[terms.group] = members
        return sum(map(USED[cap.dimension], members))

    def _limit_text(self, terms: Terms, cap: Cap) -> str:
        who = {"user": terms.user, "class": f"class {terms.group}"}.get(cap.holder, "all users")
        together = " together" if cap.holder != "user" else ""
        limit = amount(cap.limit, cap)
        noun = NOUNS[cap.dimension]
        limit = f"{limit} {noun.removesuffix('s') if limit == '1' else noun}"
        return f"{who} may hold {limit}{together} ({self._name(cap.source)}),"

    # --- words -----------------------------------------------------------------------------------

    def _later(self, user: str, why: str, fits: Callable[[Terms], bool]) -> Result:
        """Return "busy" with the time from which it is allowed, or "denied" when that is never."""
        for moment in self.moment.later(user):
            if fits(moment.terms(user)):
                return refuse(RefusalKind.BUSY, f"{why}; allowed from {self._when(moment)} on")
        return refuse(RefusalKind.DENIED, why)

    def _when(self, moment: Moment) -> str:
        """Return when a moment begins, on the clock of the window that makes it begin."""
        policy = self.state.policy
        # The window that opens or closes just then.
        names = {
            window.span.zone: number
            for number, window in reversed(list(enumerate(policy.windows)))
            if self.book.phase(number, moment.start).since == moment.start
        }
        name = min(names, key=lambda each: names[each], default="UTC")
        return time_text(policy.zones.get(name, UTC), moment.start)

    def _name(self, source: Source) -> str:
        return source.text(self.state.policy)

    @staticmethod
    def _whose(terms: Terms) -> str:
        return f"{terms.user} of class {terms.group}" if terms.group else terms.user


Sizes = tuple[int, int]
"""Capacities in bytes of the smallest and the largest of some GPUs; zeros when there are none."""


def least_need(request: Request, sizes: Sizes) -> Usage:
    """Return the least that ``request`` can count as on one GPU of these; never too much."""
    smallest, largest = sizes
    if request.fraction:
        units = round(request.fraction * UNIT)
        memory = int(smallest * request.fraction) >> 20 << 20
    else:
        units = request.memory * UNIT // largest if largest else 0
        memory = request.memory
    return Usage(request.count * units, request.count * memory, 1)


def sizes_of(gpus: Iterable[Gpu]) -> Sizes:
    """Return the sizes of the smallest and the largest of ``gpus``."""
    capacities = [gpu.capacity for gpu in gpus]
    return (min(capacities), max(capacities)) if capacities else (0, 0)


def sizes_of_all(state: PoolState) -> Sizes:
    """Return the sizes of the smallest and the largest GPU of the pool."""
    known = _sizes.get(state.servers)
    if known is None:
        gpus = (gpu for server in state.servers.values() for gpu in server.gpus.values())
        known = _sizes.put(sizes_of(gpus), state.servers)
    return known


_sizes: Memo[Sizes] = Memo(8)


def amount(number: int, cap: Cap) -> str:
    """Return the amount of a cap for people: ``1.5``, ``80``, ``4``."""
    if cap.dimension == "max_gpus":
        return number_text(number / UNIT)
    return number_text(number / 2**30) if cap.dimension == "max_memory" else str(number)


def number_text(number: float) -> str:
    """Return a number with three decimals at most."""
    return f"{number:.3f}".rstrip("0").rstrip(".")


def time_text(zone: Zone, utc_ms: int) -> str:
    """Return an instant on a zone's clock, such as ``Mon 22:00 (Europe/Berlin)``."""
    local = utc_ms + offset_ms(zone, utc_ms)
    minutes = local % DAY_MS // 60_000
    day = DAYS[(local // DAY_MS + FIRST_DAY) % 7]
    return f"{day} {minutes // 60:02d}:{minutes % 60:02d} ({zone.name})"


def duration_text(ms: float) -> str:
    """Return a duration with two units at most: ``10m``, ``1h30m``, ``7d``."""
    seconds = max(0, round(ms / 1000))
    for size, unit, small, small_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "m")):
        if seconds >= size:
            rest = seconds % size // small
            return f"{seconds // size}{unit}" + (f"{rest:02d}{small_unit}" if rest else "")
    if seconds >= 60:
        return f"{seconds // 60}m" + (f"{seconds % 60:02d}s" if seconds % 60 else "")
    return f"{seconds}s"


def _fits_alone(terms: Terms, need: Usage) -> bool:
    return all(used(need, cap.dimension) <= cap.limit for cap in terms.caps)


def _admits(server: Server, gpu: Gpu) -> Callable[[Terms], bool]:
    return lambda terms: terms.misses(server, gpu) is None


def _anything(_server: Server, _gpu: Gpu) -> bool:
    return True
