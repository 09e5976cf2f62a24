"""The policy oracle: a second, simpler reading of a policy, from its text alone.

It shares no code with ``rulebook``, and knows what ``drawn_policies`` draws: classes, limits,
places, windows by the time of day in UTC, and reservations between two dates.
"""

import tomllib
from datetime import UTC
from fnmatch import fnmatchcase
from fractions import Fraction
from typing import Any

from gpupool.pool.model.state import (
    Filter,
    Gpu,
    Lease,
    Operator,
    PartStatus,
    PoolState,
    Request,
    Server,
)
from gpupool.pool.model.suspension import SuspensionState
from gpupool.pool.transitions.policy_versions import unpack_text

DAY_S = 86_400
KINDS = ("gpus", "memory", "leases")
HOLDERS = ("user", "class", "pool")


class Rules:
    """One version of the policy."""

    def __init__(self, text: str = "") -> None:
        """Read a document that has no mistakes."""
        self._document: dict[str, Any] = tomllib.loads(text, parse_float=Fraction)
        self._groups: dict[str, str] = {}
        # The last that is open counts first.
        windows = list(self._document.get("window", ()))[::-1]
        self._windows = [(_second(w["from"]), _second(w["to"]), w) for w in windows]

    def group_of(self, user: str) -> str:
        """Return the class of a user, or an empty string; their name counts before a glob."""
        known = self._groups.get(user)
        if known is None:
            classes = self._document.get("class", {})
            named = [g for g, each in classes.items() if user in each.get("users", ())]
            globbed = [
                group
                for group, each in classes.items()
                if any(fnmatchcase(user, glob) for glob in each.get("users", ()))
            ]
            known = self._groups[user] = next(iter([*named, *globbed]), "")
        return known

    def _value(self, now_ms: int, *places: tuple[str, str, str]) -> Any:
        """Return the limit in the first of these tables that has the key; None for no limit."""
        documents = [self._document]
        if self._windows:
            now_s = now_ms % (DAY_S * 1000) / 1000
            documents = [w for start, end, w in self._windows if _is_open(start, end, now_s)]
            documents.append(self._document)
        for target, name, key in places:
            for document in documents:
                table = document.get(target, {})
                table = table.get(name, {}) if target in ("class", "user") else table
                if key in table:
                    return None if table[key] == "none" else table[key]
        return None

    def limit(self, now_ms: int, user: str, kind: str, holder: str) -> Fraction | None:
        """Return how much a user, their class, or all users may hold: GPUs, bytes or leases."""
        key, group = f"max_{kind}", self.group_of(user)
        if holder == "user":
            value = self._own(now_ms, user, key, f"{key}_per_user")
        elif holder == "class":
            value = self._value(now_ms, ("class", group, key)) if group else None
        else:
            value = self._value(now_ms, ("pool", "", key))
        if value is None:
            return None
        return Fraction(value.removesuffix("GiB")) * 2**30 if kind == "memory" else Fraction(value)

    def _own(self, now_ms: int, user: str, key: str, group_key: str = "") -> Any:
        group = self.group_of(user)
        places = [("user", user, key), ("defaults", "", key)]
        if group:
            places.insert(1, ("class", group, group_key or key))
        return self._value(now_ms, *places)

    def priority(self, user: str) -> int:
        """Return the priority of a user's class, or of everybody."""
        table = self._document.get("class", {}).get(self.group_of(user), {})
        return int(table.get("priority", self._document.get("defaults", {}).get("priority", 0)))

    def seconds(self, now_ms: int, user: str, key: str, otherwise: float = 0.0) -> float:
        """Return an idle timeout or another time; 0 for none, ``otherwise`` if nothing is said."""
        value = self._own(now_ms, user, key)
        return float(value.removesuffix("s")) if value is not None else otherwise

    def is_preemptible(self, now_ms: int, user: str) -> bool:
        """Return whether the leases of a user's class may be suspended."""
        return bool(self._own(now_ms, user, "preemptible"))

    def guarantee(self, now_ms: int, group: str) -> Fraction | None:
        """Return how many GPUs the leases of a class keep."""
        value = self._value(now_ms, ("class", group, "guarantee")) if group else None
        return None if value is None else Fraction(value)

    def admits(self, now_ms: int, user: str, server: Server, gpu: Gpu) -> bool:
        """Return whether a user may use a GPU, were it free and kept for nobody."""
        gpus = self._own(now_ms, user, "gpus") or ["*"]
        servers = self._own(now_ms, user, "servers")
        return any(fnmatchcase(gpu.name, glob) for glob in gpus) and has_label(server, servers)

    def reservation(self, now_ms: int) -> dict[str, Any] | None:
        """Return the reservation for a class that is in force now."""
        for each in self._document.get("reservation", ()):
            start, end = (each[key].replace(tzinfo=UTC).timestamp() for key in ("from", "to"))
            if start * 1000 <= now_ms < end * 1000:
                return dict(each)
        return None

    def holds_back(self, state: PoolState, user: str, request: Request) -> bool:
        """Return whether a limit, rather than memory, keeps a request from being granted."""
        sizes = [gpu.capacity for server in state.servers.values() for gpu in server.gpus.values()]
        if request.fraction:
            share = Fraction(request.fraction).limit_denominator(1000)
            memory = min(sizes, default=0) * share
        else:
            memory = Fraction(request.memory)
            share = memory / max(sizes, default=1)
        needs = {"gpus": request.count * share, "memory": request.count * memory, "leases": 1}
        return any(
            (limit := self.limit(state.now, user, kind, holder)) is not None
            and self.held(state, user, kind, holder) + needs[kind] > limit
            for kind in KINDS
            for holder in HOLDERS
        )

    def keeps_away(self, state: PoolState, lease: Lease) -> bool:
        """Return whether a limit keeps a suspended lease from having its memory again."""
        memory = Fraction(sum(part.memory for part in lease.partitions))
        share = sum(
            Fraction(part.memory, state.servers[part.server].gpus[part.gpu].capacity)
            for part in lease.partitions
        )
        needs = {"gpus": share, "memory": memory, "leases": 0}
        return any(
            (limit := self.limit(state.now, lease.user, kind, holder)) is not None
            and self.held(state, lease.user, kind, holder) + needs[kind] > limit
            for kind in KINDS
            for holder in HOLDERS
        )

    def held(self, state: PoolState, user: str, kind: str, holder: str) -> Fraction:
        """Return the usage that counts against a limit, summed from all leases."""
        group = self.group_of(user)
        total = Fraction(0)
        for lease in state.leases.values():
            if holder == "user" and lease.user != user:
                continue
            if holder == "class" and self.group_of(lease.user) != group:
                continue
            live = {s for s, part in lease.parts.items() if part is not PartStatus.FREED}
            if kind == "leases":
                total += bool(live)
                continue
            if lease.relocation is not None:
                live.discard(lease.relocation.uncounted)  # it has two parts, and counts once
            found = lease.suspension
            if found is not None and found.state is SuspensionState.SUSPENDED:
                continue  # it counts as a lease alone
            for part in lease.partitions:
                server = state.servers.get(part.server) if part.server in live else None
                gpu = server.gpus.get(part.gpu) if server is not None else None
                if gpu is not None:
                    total += (
                        part.memory if kind == "memory" else Fraction(part.memory, gpu.capacity)
                    )
        return total


class RulesInForce:
    """The rules of a table's policy, read once for each version."""

    def __init__(self) -> None:
        self._known = (b"", Rules())

    def of(self, state: PoolState) -> Rules:
        """Return the rules that are in force in a table."""
        packed = state.policies[-1].packed if state.policies else b""
        if packed != self._known[0]:
            self._known = (packed, Rules(unpack_text(packed) if packed else ""))
        return self._known[1]


def _is_open(start: int, end: int, now: float) -> bool:
    """Return whether a window is open at a second of the day."""
    return start <= now < end if start < end else now >= start or now < end


def _second(text: str) -> int:
    hours, minutes, seconds = (int(part) for part in text.split(":"))
    return (hours * 60 + minutes) * 60 + seconds


def has_label(server: Server, globs: list[str] | None) -> bool:
    """Return whether a server has one of these labels; its name is one."""
    labels = {**server.labels, "name": server.name}
    pairs = [glob.split("=", 1) for glob in globs or ()]
    return not pairs or any(fnmatchcase(labels.get(key, "\0"), glob) for key, glob in pairs)


def passes(wanted: Filter, server: Server, gpu: Gpu) -> bool:
    """Return whether a GPU matches one of the filters that ``drawn_requests`` draws."""
    if wanted.key == "gpu.memory":
        limit = int(wanted.values[0])
        return (
            gpu.memory_total >= limit
            if wanted.operator is Operator.AT_LEAST
            else (gpu.memory_total < limit)
        )
    label = wanted.key.removeprefix("server.labels.")
    texts = {"server.name": server.name, "gpu.name": gpu.name}
    text = texts.get(wanted.key, server.labels.get(label, "\0")).lower()
    found = any(fnmatchcase(text, value.lower()) for value in wanted.values)
    return found is (wanted.operator is Operator.EQUAL)


def served(
    state: PoolState, request: Request, server: Server, gpu: Gpu, rules: Rules, user: str
) -> int | None:
    """Return the bytes that a request would take of a GPU, or None when it cannot be had there."""
    size = request.memory or int(gpu.capacity * request.fraction) >> 20 << 20
    if gpu.unfit or size > gpu.capacity or not rules.admits(state.now, user, server, gpu):
        return None
    return size if all(passes(each, server, gpu) for each in request.filters) else None
