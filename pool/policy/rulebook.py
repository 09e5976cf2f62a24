"""The policy's answer to one request at one moment, with the rule that gives it.

``rulebook(policy)`` compiles a policy once for each version; that is kept outside the table, and
is a pure function of it. What then costs little: which windows hold changes only at known
instants, and what applies to a user only with them.

Which rule counts: the most specific one, so a user's own before the class's, and that before
``[defaults]``; and at each of these places that of the last open window that has one. Limits of
``[pool]`` hold for all users together, those of a class for all of its members together, and
``..._per_user`` and ``[defaults]`` for each user alone. What counts against them is the usage of
leases (``usage_of``).
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from operator import attrgetter

from gpupool.pool.model.ids import GpuId, LeaseId, ServerId
from gpupool.pool.model.policy import (
    MILLI,
    MIN_RUN_MS,
    NO_LIMIT,
    UNIT,
    Policy,
    Reservation,
    Rule,
    Usage,
    Window,
)
from gpupool.pool.model.state import Gpu, Lease, Partition, PartStatus, PoolState, Server
from gpupool.pool.policy.policy_calendar import FOREVER, Phase, phase

RULEBOOK_COUNT_MAX = 8
USER_COUNT_MAX = 16_384
"""Users with remembered terms, at most."""

AHEAD_MAX = 64
"""Openings and closings looked at to say when a request will be allowed."""

DIMENSIONS = ("max_gpus", "max_memory", "max_leases")

Place = tuple[ServerId, GpuId]
Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Source:
    """A rule, and the window that it is part of."""

    rule: Rule
    window: Window | None = None

    def text(self, policy: Policy) -> str:
        """Return the rule's name: ``policy v7, line 12: [class.students] max_gpus``."""
        rule = self.rule
        table = f"{rule.target}.{rule.name}" if rule.name else rule.target
        where = f', in window "{self.window.name}"' if self.window is not None else ""
        return f"policy v{policy.version}, line {rule.line}: [{table}] {rule.key}{where}"


@dataclass(frozen=True, slots=True)
class Cap:
    """One limit: of a user, of the members of a class together, or of all users together."""

    holder: str  # "user", "class" or "pool"
    dimension: str
    limit: int  # of ``Usage``: units of a GPU, bytes or leases
    source: Source


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of the policy for one user."""

    user: str
    group: str  # the class, or empty
    caps: tuple[Cap, ...]
    gpus: Source | None  # globs of the models that may be used
    servers: Source | None  # globs of the labels, one of which a server must have
    priority: int
    idle_timeout_ms: int  # 0: none
    max_lease_ms: int  # 0: none
    max_lease: Source | None
    data_encryption: str  # empty: as the pool has it
    department: str  # to which leases are accounted; empty: none
    preemptible: Source | None  # the rule that says whether its leases are
    max_suspended: Source | None
    min_run_ms: int  # between two suspensions of a lease
    weight: Source | None  # by what its leases' shares of computing time are multiplied

    @property
    def restricts_places(self) -> bool:
        """Return whether some GPUs may not be used."""
        return self.gpus is not None or self.servers is not None

    def misses(self, server: Server, gpu: Gpu) -> Source | None:
        """Return the rule that forbids a GPU, or None when it may be used."""
        if self.gpus is not None and not matches_any(gpu.name, self.gpus.rule.words):
            return self.gpus
        if self.servers is not None and not has_label(server, self.servers.rule.words):
            return self.servers
        return None


class Moment:
    """The rules between two instants at which a window opens or closes."""

    def __init__(self, book: "Rulebook", active: frozenset[int], start: int, end: int) -> None:
        self.active = active
        self.start = start
        self.end = end
        self._book = book
        self._terms: dict[str, Terms] = {}
        self._later: dict[str, list[Moment]] = {}
        self._open: dict[Key, Source] = {}
        """Rules of open windows that replace other rules."""
        for number in sorted(active):
            window = book.policy.windows[number]
            for rule in window.rules:
                self._open[(rule.target, rule.name, rule.key)] = Source(rule, window)

    def _rule(self, target: str, name: str, key: str) -> Source | None:
        place = (target, name, key)
        return self._open.get(place) or self._book.base.get(place)

    def terms(self, user: str) -> Terms:
        """Return the terms that apply to ``user``."""
        known = self._terms.get(user)
        if known is None:
            if len(self._terms) >= USER_COUNT_MAX:
                self._terms.clear()
            known = self._terms[user] = self._make_terms(user)
        return known

    def _make_terms(self, user: str) -> Terms:
        group = self._book.group_of(user)
        caps: list[Cap] = []
        for dimension in DIMENSIONS:
            scale = MILLI if dimension == "max_gpus" else 1
            for holder, found in (
                ("user", self._own(user, group, dimension, f"{dimension}_per_user")),
                ("class", self._rule("class", group, dimension) if group else None),
                ("pool", self._rule("pool", "", dimension)),
            ):
                if found is not None and found.rule.number != NO_LIMIT:
                    caps.append(Cap(holder, dimension, found.rule.number * scale, found))
        priority = self._own("", group, "priority", "priority")
        longest = self._own(user, group, "max_lease_time", "max_lease_time")
        encryption = self._own(user, group, "data_encryption", "data_encryption")
        least = self._own(user, group, "min_run_time", "min_run_time")
        return Terms(
            user=user,
            group=group,
            caps=tuple(caps),
            gpus=self._own(user, group, "gpus", "gpus"),
            servers=self._own(user, group, "servers", "servers"),
            priority=priority.rule.number if priority is not None else 0,
            idle_timeout_ms=_number(self._own(user, group, "idle_timeout", "idle_timeout")),
            max_lease_ms=_number(longest),
            max_lease=longest,
            data_encryption=_word(encryption),
            department=_word(self._own(user, group, "department", "department")),
            preemptible=self._own(user, group, "preemptible", "preemptible"),
            max_suspended=self._own(user, group, "max_suspended", "max_suspended"),
            min_run_ms=least.rule.number if least is not None else MIN_RUN_MS,
            weight=self._rule("class", group, "weight") if group else None,
        )

    def guarantee(self, group: str) -> Source | None:
        """Return the rule that says how many GPUs the leases of a class keep, or None."""
        return self._rule("class", group, "guarantee") if group else None

    def _own(self, user: str, group: str, key: str, group_key: str) -> Source | None:
        """Return the most specific rule for one user."""
        return (
            (self._rule("user", user, key) if user else None)
            or (self._rule("class", group, group_key) if group else None)
            or self._rule("defaults", "", key)
        )

    def later(self, user: str) -> "list[Moment]":
        """Return the next moments with other rules for ``user``, the soonest first.

        They hold only the windows that concern this user. Rules that were seen before, as those of
        the same hour on the next day, are left out.
        """
        known = self._later.get(user)
        if known is None:
            if len(self._later) >= USER_COUNT_MAX:
                self._later.clear()
            known = self._later[user] = list(self._book.moments_after(self, user))
        return known


class Rulebook:
    """One version of the policy, ready for questions."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.base = {(r.target, r.name, r.key): Source(r) for r in policy.rules}
        keys = {
            rule.key
            for rules in (policy.rules, *(window.rules for window in policy.windows))
            for rule in rules
        }
        self.has_caps = any(key.removesuffix("_per_user") in DIMENSIONS for key in keys)
        """Whether a request may have to wait for something else than memory."""
        self.has_priorities = "priority" in keys
        self.has_weights = "weight" in keys
        self.ends_leases = any(window.ends_leases for window in policy.windows)
        self.suspends_leases = any(window.suspends_leases for window in policy.windows)
        self._exact = {
            member.user: member.group for member in policy.members if not _is_glob(member.user)
        }
        self._globs = tuple(member for member in policy.members if _is_glob(member.user))
        self._groups = dict(self._exact)
        self._phases: list[Phase] = [Phase(False, 0, 0)] * len(policy.windows)
        self._moment = Moment(self, frozenset(), 0, FOREVER if not policy.windows else 0)
        self._reserved: tuple[object, object, object, dict[Place, Reservation]] | None = None
        self._held: tuple[Reservation, ...] = ()
        self._held_from = self._held_until = 0
        self._over: dict[frozenset[int], frozenset[LeaseId]] = {}
        self._over_of: tuple[object, object] = (None, None)  # the servers and leases of these

    def group_of(self, user: str) -> str:
        """Return the class of ``user``, or an empty string."""
        known = self._groups.get(user)
        if known is None:
            if len(self._groups) >= USER_COUNT_MAX:
                self._groups = dict(self._exact)
            found = (m.group for m in self._globs if fnmatchcase(user, m.user))
            known = self._groups[user] = next(found, "")
        return known

    def groups_of(self, users: Collection[str]) -> list[str]:
        """Return the class of each of ``users``, in their order: mostly all are known."""
        known = self._groups
        try:
            return [known[user] for user in users]
        except KeyError:
            return [self.group_of(user) for user in users]

    # --- time ------------------------------------------------------------------------------------

    def moment(self, now: int) -> Moment:
        """Return the rules that hold at ``now``."""
        moment = self._moment
        if not moment.start <= now < moment.end:
            moment = self._moment = self._make_moment(now)
        return moment

    def _make_moment(self, now: int) -> Moment:
        # Of hundreds of windows a few have changed; the others are known to be as they were.
        for number, known in enumerate(self._phases):
            if not known.since <= now < known.until:
                self._phases[number] = self.phase(number, now)
        active = frozenset(n for n, each in enumerate(self._phases) if each.holds)
        start = max((each.since for each in self._phases), default=0)
        end = min((each.until for each in self._phases), default=FOREVER)
        return Moment(self, active, start, end)

    def phase(self, number: int, now: int) -> Phase:
        """Return whether a window is open at ``now``, since when, and until when."""
        span = self.policy.windows[number].span
        return phase(span, self.policy.zones[span.zone], now)

    def toggled(self, moment: Moment, number: int) -> Moment:
        """Return ``moment`` as it would be if one window were open instead of closed, or closed."""
        return Moment(self, moment.active ^ {number}, moment.start, moment.end)

    def moments_after(self, moment: Moment, user: str) -> Iterator[Moment]:
        """Yield the moments that ``Moment.later`` remembers."""
        group = self.group_of(user)
        concerned = {("user", user), ("class", group), ("defaults", ""), ("pool", "")}
        numbers = [
            number
            for number, window in enumerate(self.policy.windows)
            if any((rule.target, rule.name) in concerned for rule in window.rules)
        ]
        phases = {number: self.phase(number, moment.start) for number in numbers}
        seen = {frozenset(number for number in numbers if phases[number].holds)}
        for _ in range(AHEAD_MAX):
            now = min((each.until for each in phases.values()), default=FOREVER)
            if now >= FOREVER:
                return
            for number, known in phases.items():
                if known.until <= now:
                    phases[number] = self.phase(number, now)
            active = frozenset(number for number in numbers if phases[number].holds)
            if active not in seen:
                seen.add(active)
                yield Moment(self, active, now, now + 1)

    # --- leases that are allowed no more ---------------------------------------------------------

    def over(self, state: PoolState, moment: Moment) -> frozenset[LeaseId]:
        """Return the leases that the rules of ``moment`` would not allow, the oldest kept first."""
        servers, leases = self._over_of
        if servers is not state.servers or leases is not state.leases:
            self._over, self._over_of = {}, (state.servers, state.leases)
        known = self._over.get(moment.active)
        if known is not None:
            return known
        sums: dict[tuple[str, str], Usage] = {}
        found: set[LeaseId] = set()
        for lease in sorted(state.leases.values(), key=lambda each: each.id):
            terms = moment.terms(lease.user)
            need = usage_of(lease)
            holders = {"user": lease.user, "class": terms.group, "pool": ""}
            fits = not any(
                used(sums.get((cap.holder, holders[cap.holder]), NOTHING), cap.dimension)
                + used(need, cap.dimension)
                > cap.limit
                for cap in terms.caps
            )
            if lease.held and not (fits and self._places_fit(state, terms, lease)):
                found.add(lease.id)
                continue
            for holder, name in holders.items():
                sums[(holder, name)] = plus(sums.get((holder, name), NOTHING), need)
        over = self._over[moment.active] = frozenset(found)
        return over

    @staticmethod
    def _places_fit(state: PoolState, terms: Terms, lease: Lease) -> bool:
        for part in lease.partitions:
            server = state.servers.get(part.server)
            gpu = server.gpus.get(part.gpu) if server is not None else None
            if server is not None and gpu is not None and terms.misses(server, gpu) is not None:
                return False
        return True

    # --- reservations ----------------------------------------------------------------------------

    def reserved(self, state: PoolState) -> dict[Place, Reservation]:
        """Return the GPUs that are reserved for a class now; other classes may not take them.

        Each reservation takes first the GPUs on which its class has leases, then those that others
        use least, so that the fewest leases of others have to end before it can be used.
        """
        if not self.policy.reservations:
            return _NOTHING_RESERVED
        holding = self._holding(state.now)
        known = self._reserved
        if (
            known is not None
            and known[0] is holding
            and known[1] is state.servers
            and known[2] is state.leases
        ):
            return known[3]
        found = self._choose_reserved(state, holding) if holding else {}
        self._reserved = (holding, state.servers, state.leases, found)
        return found

    def _holding(self, now: int) -> tuple[Reservation, ...]:
        """Return the reservations that hold now; the same object as long as they are the same."""
        if not self._held_from <= now < self._held_until:
            policy = self.policy
            phases = [
                phase(each.span, policy.zones[each.span.zone], now) for each in policy.reservations
            ]
            pairs = zip(policy.reservations, phases, strict=True)
            self._held = tuple(each for each, when in pairs if when.holds)
            self._held_from = max(when.since for when in phases)
            self._held_until = min(when.until for when in phases)
        return self._held

    def _choose_reserved(
        self, state: PoolState, holding: tuple[Reservation, ...]
    ) -> dict[Place, Reservation]:
        held = self._held_places(state, {reservation.group for reservation in holding})
        ranked = [
            (gpu.memory_granted, server.id, gpu.index, gpu, server)
            for server in state.servers.values()
            if server.grantable
            for gpu in server.gpus.values()
            if not gpu.unfit
        ]
        ranked.sort(key=_rank)
        found: dict[Place, Reservation] = {}
        for reservation in holding:
            own = held[reservation.group]
            # Where the class is already, what others have is less than what is granted.
            at_home = [
                (gpu.memory_granted - memory, sid, gpu.index, gpu, server)
                for (sid, gpu_id), memory in own.items()
                if (server := state.servers.get(sid)) is not None and server.grantable
                if (gpu := server.gpus.get(gpu_id)) is not None and not gpu.unfit
            ]
            at_home.sort(key=_rank)
            missing = reservation.gpu_count
            for _, server_id, _, gpu, server in (*at_home, *ranked):
                if not missing:
                    break
                place = (server_id, gpu.id)
                if (
                    place not in found
                    and matches_any(gpu.name, reservation.gpus)
                    and has_label(server, reservation.servers)
                ):
                    found[place] = reservation
                    missing -= 1
        return found

    def _held_places(self, state: PoolState, groups: set[str]) -> dict[str, dict[Place, int]]:
        """Return the bytes that classes hold on each GPU."""
        held: dict[str, dict[Place, int]] = {group: {} for group in groups}
        # There are far more leases than users with leases.
        groups_of_users = zip(state.usage, self.groups_of(state.usage), strict=True)
        users = {user: held[group] for user, group in groups_of_users if group in held}
        for lease in state.leases.values():
            places = users.get(lease.user)
            if places is not None:
                for part in lease.partitions:
                    if not lease.is_charged(part.server):
                        continue
                    place = (part.server, part.gpu)
                    places[place] = places.get(place, 0) + part.memory
        return held


_NOTHING_RESERVED: dict[Place, Reservation] = {}
"""The same object each time, so that caches see that nothing has changed."""


def _rank(found: tuple[int, ServerId, int, Gpu, Server]) -> tuple[int, ServerId, int]:
    return found[:3]


EMPTY = Rulebook(Policy())
_books: dict[tuple[int, bytes], Rulebook] = {}


def rulebook(policy: Policy) -> Rulebook:
    """Return the rulebook of ``policy``, compiled at the first call for it."""
    if not policy.version:
        return EMPTY
    key = (policy.version, policy.digest)
    known = _books.get(key)
    # A restored backup says its own digest, which need not be true.
    if known is None or (known.policy is not policy and known.policy != policy):
        if len(_books) >= RULEBOOK_COUNT_MAX and key not in _books:
            del _books[next(iter(_books))]
        known = _books[key] = Rulebook(policy)
    return known


# --- words ----------------------------------------------------------------------------------------


def _word(found: Source | None) -> str:
    return found.rule.words[0] if found is not None else ""


@lru_cache(maxsize=1024)
def matches_any(name: str, globs: tuple[str, ...]) -> bool:
    """Return whether a GPU's name matches a glob in any case; without globs, any name does."""
    return not globs or any(fnmatchcase(name.lower(), each.lower()) for each in globs)


def has_label(server: Server, globs: tuple[str, ...]) -> bool:
    """Return whether a server has one of these labels; its name counts as label ``name``."""
    if not globs:
        return True
    for each in globs:
        key, _, pattern = each.partition("=")
        value = server.name if key == "name" else server.labels.get(key)
        if value is not None and fnmatchcase(value, pattern):
            return True
    return False


def _number(source: Source | None) -> int:
    return max(0, source.rule.number) if source is not None else 0


def _is_glob(user: str) -> bool:
    return bool(set(user) & set("*?["))


# --- usage ----------------------------------------------------------------------------------------

NOTHING = Usage()


def units_of(partition: Partition, gpu: Gpu) -> int:
    """Return the share of a GPU that a partition counts as, in units of ``policy.UNIT``."""
    return partition.memory * UNIT // gpu.capacity if gpu.capacity else 0


def usage_of(lease: Lease) -> Usage:
    """Return the usage of a lease: the parts not freed yet; a suspended one counts as a lease.

    One that goes to another server has memory on both, and counts one of them.
    """
    if lease.relocation is None and lease.parts and PartStatus.FREED not in lease.parts.values():
        if lease.is_away:
            return Usage(leases=1)
        return Usage(sum(lease.units.values()), sum([p.memory for p in lease.partitions]), 1)
    live = {server for server, part in lease.parts.items() if part is not PartStatus.FREED}
    leases = 1 if live else 0
    if lease.is_away:
        return Usage(leases=leases)
    if lease.relocation is not None:
        live.discard(lease.relocation.uncounted)
    return Usage(
        units=sum(lease.units.get(server, 0) for server in live),
        memory=sum(part.memory for part in lease.partitions if part.server in live),
        leases=leases,
    )


def plus(one: Usage, other: Usage, sign: int = 1) -> Usage:
    """Return the sum of two, or with ``sign`` -1 the difference."""
    return Usage(
        one.units + sign * other.units,
        one.memory + sign * other.memory,
        one.leases + sign * other.leases,
    )


USED: dict[str, Callable[[Usage], int]] = {
    "max_gpus": attrgetter("units"),
    "max_memory": attrgetter("memory"),
    "max_leases": attrgetter("leases"),
}
"""The usage with which a cap of each dimension is compared."""


def used(usage: Usage, dimension: str) -> int:
    """Return the usage with which a cap of this dimension is compared."""
    return USED[dimension](usage)
