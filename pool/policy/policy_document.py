"""A policy's TOML document, read strictly: every mistake is found, and each names its line.

docs/policy.md describes the document for people. This makes a ``policy.Policy`` of it.
"""

import difflib
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, cast

from gpupool.pool.model.policy import (
    NO_LIMIT,
    TEXT_SIZE_MAX,
    Membership,
    Policy,
    Reservation,
    Rule,
    Span,
    Window,
    Zone,
)
from gpupool.pool.model.sizes import parse_size
from gpupool.pool.policy.toml_lines import Path, key_lines

RULE_COUNT_MAX = 4096
WINDOW_COUNT_MAX = 512
RESERVATION_COUNT_MAX = 64
WORD_COUNT_MAX = 64
NAME_LENGTH_MAX = 64
PROBLEM_COUNT_MAX = 50

LIFETIME_MS_MIN = 2000
"""Of an idle timeout and of a lease; use is measured once a second."""

DAY_MS = 86_400_000
DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604_800}
DURATION = re.compile(r"(?:\d+[smhdw])+")
TIME = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")

HELD = ("max_gpus", "max_memory", "max_leases")
HELD_PER_USER = tuple(f"{key}_per_user" for key in HELD)
TERMS = ("gpus", "servers", "idle_timeout", "max_lease_time", "data_encryption")
RULE_KEYS: dict[str, tuple[str, ...]] = {
    "defaults": (*HELD, *TERMS, "priority"),
    "pool": HELD,
    "class": (*HELD, *HELD_PER_USER, *TERMS, "priority"),
    "user": (*HELD, *TERMS),
}
"""Which rules can be written where: for every user, for all together, for a class, for a user."""

SPAN_KEYS = ("from", "to", "days", "zone")
WINDOW_KEYS = ("name", *SPAN_KEYS, "leases", "grace", *RULE_KEYS)
RESERVATION_KEYS = ("name", "class", "count", "gpus", "servers", *SPAN_KEYS)
TOP_KEYS = ("zone", *RULE_KEYS, "window", "reservation")

ZoneOf = Callable[[str], Zone | None]
Table = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake, and its line; 0 when it is about the whole document."""

    line: int
    text: str

    def __str__(self) -> str:
        """Return it for people."""
        return f"line {self.line}: {self.text}" if self.line else self.text


class PolicyTextError(ValueError):
    """A document is no policy; every mistake of it is listed."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("; ".join(str(problem) for problem in problems))
        self.problems = problems


class _WrongError(ValueError):
    """A value makes no sense; the text says what to write instead."""


def parse_policy(text: str, zone_of: ZoneOf) -> Policy:
    """Return the policy that a document describes, with the zones that it names.

    Args:
        text: the document.
        zone_of: returns a time zone's offsets, or None for a name that is none.

    Raises:
        PolicyTextError: with every mistake that was found.
    """
    if len(text.encode(errors="replace")) > TEXT_SIZE_MAX:
        raise PolicyTextError((Problem(0, f"it is larger than {TEXT_SIZE_MAX >> 10} KiB"),))
    try:
        document = tomllib.loads(text, parse_float=Decimal)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise PolicyTextError((_syntax_problem(str(error)),)) from error
    reader = _Reader(key_lines(text), zone_of)
    policy = reader.read(document)
    if reader.problems:
        ordered = sorted(set(reader.problems), key=lambda problem: problem.line)
        raise PolicyTextError(tuple(ordered[:PROBLEM_COUNT_MAX]))
    return policy


def _syntax_problem(text: str) -> Problem:
    found = re.search(r"\(at line (\d+), column (\d+)\)", text)
    if found is None:
        return Problem(0, text[:200])
    what = text[: found.start()].strip()
    return Problem(int(found[1]), f"{what[:1].lower()}{what[1:]} (column {found[2]})")


class _Reader:
    def __init__(self, lines: dict[Path, int], zone_of: ZoneOf) -> None:
        self.problems: list[Problem] = []
        self._lines = lines
        self._zone_of = zone_of
        self._zones: dict[str, Zone] = {}
        self._zone = "UTC"
        self._classes: set[str] = set()

    def read(self, document: Table) -> Policy:
        self._known((), document, TOP_KEYS)
        self._zone = self._zone_name(("zone",), document.get("zone", "UTC"))
        self._classes = set(self._table(("class",), document.get("class", {})))
        rules = self._scopes((), document)
        windows = tuple(
            window
            for path, table in self._tables("window", document, WINDOW_COUNT_MAX)
            if (window := self._window(path, table)) is not None
        )
        reservations = tuple(
            reservation
            for path, table in self._tables("reservation", document, RESERVATION_COUNT_MAX)
            if (reservation := self._reservation(path, table)) is not None
        )
        if len(rules) + sum(len(w.rules) for w in windows) > RULE_COUNT_MAX:
            self._problem((), f"it has more than {RULE_COUNT_MAX} rules")
        return Policy(
            rules=rules,
            windows=windows,
            reservations=reservations,
            members=self._members(document),
            zones=self._zones,
        )

    # --- rules -----------------------------------------------------------------------------------

    def _scopes(self, path: Path, table: Table) -> tuple[Rule, ...]:
        """Return the rules of ``[defaults]``, ``[pool]``, ``[class.*]`` and ``[user.*]``."""
        rules: list[Rule] = []
        for target in RULE_KEYS:
            if target not in table:
                continue
            below = (*path, target)
            found = self._table(below, table[target])
            named = target in ("class", "user")
            for name, scope in found.items() if named else [("", found)]:
                where = (*below, name) if named else below
                if named and not 0 < len(name) <= NAME_LENGTH_MAX:
                    self._problem(where, f"a name has 1 to {NAME_LENGTH_MAX} characters")
                if target == "class" and name not in self._classes:
                    self._unknown_class(where, name)
                rules += self._rules(where, target, name, self._table(where, scope), bool(path))
        return tuple(rules)

    def _rules(
        self, path: Path, target: str, name: str, scope: Table, in_window: bool
    ) -> list[Rule]:
        member_keys = {"class": ("users",), "user": ("class",), "defaults": ("class",)}
        also = () if in_window else member_keys.get(target, ())
        self._known(path, scope, (*RULE_KEYS[target], *also))
        rules: list[Rule] = []
        for key in RULE_KEYS[target]:
            if key not in scope:
                continue
            where = (*path, key)
            try:
                number, words = _rule_value(key, scope[key])
            except _WrongError as error:
                self._problem(where, f"{key}: {error}")
            else:
                rules.append(Rule(target, name, key, self._line(where), number, words))
        return rules

    def _members(self, document: Table) -> tuple[Membership, ...]:
        """Return who is in which class: users by name first, then globs, then everybody else."""
        exact: dict[str, Membership] = {}
        globs: list[Membership] = []
        groups = self._table(("class",), document.get("class", {}))
        for group, scope in groups.items():
            path: Path = ("class", group, "users")
            names = self._peek(scope, "users", [])
            for index, name in enumerate(self._words(path, names)):
                member = Membership(name, group, self._line((*path, index)))
                if set(name) & set("*?["):
                    globs.append(member)
                else:
                    self._join(exact, member, (*path, index))
        for user, scope in self._table(("user",), document.get("user", {})).items():
            if (name := self._peek(scope, "class", None)) is not None:
                path = ("user", user, "class")
                group = self._class_name(path, name)
                self._join(exact, Membership(user, group, self._line(path)), path)
        defaults = self._table(("defaults",), document.get("defaults", {}))
        if "class" in defaults:
            path = ("defaults", "class")
            group = self._class_name(path, defaults["class"])
            globs.append(Membership("*", group, self._line(path)))
        return (*exact.values(), *globs)

    def _join(self, exact: dict[str, Membership], member: Membership, path: Path) -> None:
        known = exact.setdefault(member.user, member)
        if known.group != member.group:
            where = f"class {known.group} (line {known.line})"
            self._problem(path, f"user {member.user} is in {where} already; each has one class")

    # --- windows and reservations ----------------------------------------------------------------

    def _window(self, path: Path, table: Table) -> Window | None:
        self._known(path, table, WINDOW_KEYS)
        name = self._text((*path, "name"), table.get("name", ""))
        span = self._span(path, table)
        leases = table.get("leases", "keep")
        if leases not in ("keep", "end"):
            self._problem((*path, "leases"), 'leases is "keep" or "end"')
        grace_ms = 0
        if "grace" in table:
            if leases != "end":
                self._problem((*path, "grace"), 'grace is for leases = "end"')
            try:
                grace_ms = _duration_ms(table["grace"])
            except _WrongError as error:
                self._problem((*path, "grace"), f"grace: {error}")
        elif leases == "end":
            self._problem((*path, "leases"), 'leases = "end" takes a grace, such as "15m"')
        rules = self._scopes(path, table)
        if not rules:
            self._problem(path, "the window has no rules; write [window.class.NAME] below it")
        if span is None:
            return None
        line = self._line(path)
        return Window(name or f"line {line}", line, span, rules, leases == "end", grace_ms)

    def _reservation(self, path: Path, table: Table) -> Reservation | None:
        self._known(path, table, RESERVATION_KEYS)
        span = self._span(path, table)
        group = ""
        if "class" in table:
            group = self._class_name((*path, "class"), table["class"])
        else:
            self._problem(path, "the reservation says for no class: class = NAME")
        count = table.get("count")
        if type(count) is not int or not 0 < count <= 65536:
            where = (*path, "count") if "count" in table else path
            self._problem(where, "count is the whole number of GPUs that are kept")
            return None
        words: dict[str, tuple[str, ...]] = {}
        for key in ("gpus", "servers"):
            try:
                words[key] = _rule_value(key, table[key])[1] if key in table else ()
            except _WrongError as error:
                self._problem((*path, key), f"{key}: {error}")
        name = self._text((*path, "name"), table.get("name", ""))
        if span is None:
            return None
        line = self._line(path)
        return Reservation(
            name=name or f"line {line}",
            line=line,
            group=group,
            gpu_count=count,
            span=span,
            gpus=words.get("gpus", ()),
            servers=words.get("servers", ()),
        )

    def _span(self, path: Path, table: Table) -> Span | None:
        zone = self._zone
        if "zone" in table:
            zone = self._zone_name((*path, "zone"), table["zone"])
        moments: list[tuple[int, bool]] = []
        for key in ("from", "to"):
            where = (*path, key) if key in table else path
            try:
                moment, once, at_zone = _moment(table.get(key), zone)
            except _WrongError as error:
                self._problem(where, f"{key}: {error}")
            else:
                moments.append((moment, once))
                zone = at_zone
        days: list[int] = []
        for index, day in enumerate(self._words((*path, "days"), table.get("days", []))):
            number = next((n for n, d in enumerate(DAYS) if day.lower() in (d[:3], d)), None)
            if number is None:
                known = ", ".join(each[:3] for each in DAYS)
                self._problem((*path, "days", index), f"{day!r} is no day: write {known}")
            else:
                days.append(number)
        if len(moments) < 2:
            return None
        (start, once), (end, once_too) = moments
        if once != once_too:
            self._problem((*path, "to"), "from and to are both times of day, or both dates")
            return None
        if once and (days or end <= start):
            text = "days are for times of day" if days else "it ends before it begins"
            self._problem((*path, "days" if days else "to"), text)
            return None
        if start == end:
            self._problem((*path, "to"), "it ends when it begins; a whole day is 00:00 to 24:00")
            return None
        return Span(zone, start, end, tuple(sorted(set(days))), once)

    def _zone_name(self, path: Path, value: object) -> str:
        name = self._text(path, value)
        zone = self._zone_of(name) if name else None
        if zone is None:
            if name:
                self._problem(path, f"{name!r} is no time zone; write one such as Europe/Berlin")
            return "UTC"
        self._zones[name] = zone
        return name

    # --- the shape of things ---------------------------------------------------------------------

    def _known(self, path: Path, table: Table, keys: tuple[str, ...]) -> None:
        for key in table:
            if key in keys:
                continue
            near = difflib.get_close_matches(key, keys, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(keys)}"
            self._problem((*path, key), f"unknown key {key!r}{_where(path)}; {hint}")

    def _unknown_class(self, path: Path, name: str) -> None:
        near = difflib.get_close_matches(name, sorted(self._classes), n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; write [class.{name}]"
        self._problem(path, f"there is no class {name!r}{hint}")

    def _class_name(self, path: Path, value: object) -> str:
        name = self._text(path, value)
        if name and name not in self._classes:
            self._unknown_class(path, name)
        return name

    def _table(self, path: Path, value: object) -> dict[str, Any]:
        if isinstance(value, dict):
            return cast("dict[str, Any]", value)
        self._problem(path, f"{path[-1]} is a table: write it as [{_dotted(path)}]")
        return {}

    @staticmethod
    def _peek(scope: object, key: str, default: object) -> object:
        """Return one value of what should be a table."""
        return (
            cast("dict[str, object]", scope).get(key, default)
            if isinstance(scope, dict)
            else default
        )

    def _tables(self, key: str, document: Table, count_max: int) -> list[tuple[Path, Table]]:
        value = document.get(key, [])
        if not isinstance(value, list):
            self._problem((key,), f"write it with two brackets: [[{key}]]")
            return []
        items = cast("list[object]", value)
        if len(items) > count_max:
            self._problem((key,), f"there are more than {count_max} of [[{key}]]")
        found = list(enumerate(items[:count_max]))
        return [((key, n), self._table((key, n), each)) for n, each in found]

    def _words(self, path: Path, value: object) -> list[str]:
        try:
            return list(_word_list(value))
        except _WrongError as error:
            self._problem(path, f"{path[-1]}: {error}")
            return []

    def _text(self, path: Path, value: object) -> str:
        if isinstance(value, str) and len(value) <= NAME_LENGTH_MAX:
            return value
        self._problem(path, f"{path[-1]} is a name of at most {NAME_LENGTH_MAX} characters")
        return ""

    def _line(self, path: Path) -> int:
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 0)

    def _problem(self, path: Path, text: str) -> None:
        self.problems.append(Problem(self._line(path), text))


def _where(path: Path) -> str:
    name = _dotted(path)
    if not name:
        return ""
    return f" in [[{name}]]" if isinstance(path[-1], int) else f" in [{name}]"


def _dotted(path: Path) -> str:
    return ".".join(part for part in path if isinstance(part, str))


# --- values --------------------------------------------------------------------------------------


def _rule_value(key: str, value: object) -> tuple[int, tuple[str, ...]]:
    """Return the number and the words of a rule; one of the two says nothing."""
    kind = key.removesuffix("_per_user")
    if kind in ("gpus", "servers"):
        words = _word_list(value)
        if not words:
            raise _WrongError("the list is empty, which would allow nothing")
        if kind == "servers" and not all("=" in word for word in words):
            raise _WrongError('write labels as "key=value", or "name=server-*"')
        return 0, words
    if kind == "data_encryption":
        if value not in ("tls", "off"):
            raise _WrongError('write "tls" or "off"')
        return 0, (str(value),)
    if kind == "priority":
        if type(value) is not int or not -1000 <= value <= 1000:
            raise _WrongError("write a whole number from -1000 to 1000")
        return value, ()
    if value == "none":
        return NO_LIMIT, ()
    if kind == "max_gpus":
        return _thousandths(value), ()
    if kind == "max_memory":
        return _size(value), ()
    if kind == "max_leases":
        if type(value) is not int or not 0 <= value <= 10**6:
            raise _WrongError('write a whole number, or "none"')
        return value, ()
    milliseconds = _duration_ms(value)
    if milliseconds < LIFETIME_MS_MIN:
        raise _WrongError('write at least 2s, or "none"')
    return milliseconds, ()


def _thousandths(value: object) -> int:
    number = Decimal(value) if type(value) is int else value
    if not isinstance(number, Decimal) or not number.is_finite() or not 0 <= number <= 10**6:
        raise _WrongError('write a number of GPUs such as 2.5, or "none"')
    thousandths = number * 1000
    if thousandths != thousandths.to_integral_value():
        raise _WrongError("write three decimals at most")
    return int(thousandths)


def _size(value: object) -> int:
    if not isinstance(value, str):
        raise _WrongError('write a size such as "80GiB", "80GB" or "512M", or "none"')
    try:
        return parse_size(value)
    except ValueError as error:
        raise _WrongError(f'{error}; or "none"') from error


def _duration_ms(value: object) -> int:
    if not isinstance(value, str) or len(value) > 20 or not DURATION.fullmatch(value):
        raise _WrongError('write a duration such as "30m", "1h30m" or "7d"')
    seconds = sum(int(n) * SECONDS[unit] for n, unit in re.findall(r"(\d+)([smhdw])", value))
    if seconds > 366 * 100 * SECONDS["d"]:
        raise _WrongError("that is longer than a hundred years")
    return seconds * 1000


def _word_list(value: object) -> tuple[str, ...]:
    given = cast("list[object]", value) if isinstance(value, list) else [value]
    if len(given) > WORD_COUNT_MAX:
        raise _WrongError(f"at most {WORD_COUNT_MAX} can be listed")
    words = tuple(word for word in given if isinstance(word, str) and 0 < len(word) <= 200)
    if len(words) != len(given):
        raise _WrongError('write a list of words, such as ["a", "b*"]')
    return words


def _moment(value: object, zone: str) -> tuple[int, bool, str]:
    """Return the time, whether it is a date rather than a time of day, and its zone."""
    if isinstance(value, datetime):
        if value.tzinfo is not None:
            return _naive_ms(value.astimezone(UTC).replace(tzinfo=None)), True, "UTC"
        return _naive_ms(value), True, zone
    if isinstance(value, date):
        return _naive_ms(datetime(value.year, value.month, value.day)), True, zone
    if isinstance(value, time):
        value = f"{value.hour}:{value.minute:02d}:{value.second:02d}"
    found = TIME.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise _WrongError('write a time of day such as "08:00", or a date: 2026-12-01T08:00:00')
    hours, minutes, seconds = int(found[1]), int(found[2]), int(found[3] or 0)
    ms = ((hours * 60 + minutes) * 60 + seconds) * 1000
    if minutes > 59 or seconds > 59 or ms > DAY_MS:
        raise _WrongError(f"{value} is no time of day")
    return ms, False, zone


def _naive_ms(value: datetime) -> int:
    seconds = int((value - datetime(1970, 1, 1)).total_seconds())
    return max(0, seconds * 1000)
