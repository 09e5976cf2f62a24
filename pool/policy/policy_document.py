"""A policy's TOML document, read strictly: every mistake is found, and each names its line.

docs/policy.md describes the document for people. This makes a ``policy.Policy`` of it.

``tomllib`` does not report the line of a key. So headings and keys that begin a line are found,
dotted and quoted ones too, in a document that has been parsed before. A value inside of an array or
an inline table has the line of its key. A path is the keys down to a value, with an index in arrays
of tables: ``("window", 0, "class", "x")``.
"""

import difflib
import re
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, cast

from gpupool.pool.model.policy import (
    TEXT_SIZE_MAX,
    Membership,
    Policy,
    Reservation,
    Rule,
    Span,
    Window,
    Zone,
)
from gpupool.pool.policy.policy_values import (
    NAME_LENGTH_MAX,
    WrongValueError,
    contradictions,
    duration_ms,
    moment,
    rule_value,
    word_list,
)
from gpupool.pool.policy.prices import PRICE_COUNT_MAX, check_entry

Path = tuple[str | int, ...]

_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_NAME = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
_LINE = re.compile(rf"[ \t]*(?:(\[\[?)[ \t]*({_NAME})[ \t]*\]|({_NAME})[ \t]*=)")


def key_lines(text: str) -> dict[Path, int]:
    """Return the line, from 1, of every table and key of a valid document."""
    lines: dict[Path, int] = {}
    arrays: dict[Path, int] = {}
    table: Path = ()
    for number, line in enumerate(text.split("\n"), 1):
        if (found := _LINE.match(line)) is None:
            continue
        bracket, heading, key = found.groups()
        if bracket:
            *parents, last = _parts(heading)
            table = _resolve(parents, arrays)
            if bracket == "[[":
                arrays[*table, last] = arrays.get((*table, last), -1) + 1
            table = _resolve([last], arrays, table)
        path = table if bracket else (*table, *_parts(key))
        for length in range(1, len(path) + 1):
            lines.setdefault(path[:length], number)
    return lines


def _parts(name: str) -> list[str]:
    """Return the parts of a dotted key."""
    words: list[str] = re.findall(_PART, name)
    return [str(tomllib.loads(f"k={each}")["k"]) if each[0] in "\"'" else each for each in words]


def _resolve(keys: list[str], arrays: dict[Path, int], path: Path = ()) -> Path:
    """Return the path of a table's name: each array in it stands for its last element."""
    for key in keys:
        path = (*path, key)
        if path in arrays:
            path = (*path, arrays[path])
    return path


RULE_COUNT_MAX = 4096
WINDOW_COUNT_MAX = 512
RESERVATION_COUNT_MAX = 64
PROBLEM_COUNT_MAX = 50
PROBLEM_LENGTH_MAX = 300
ZONE_COUNT_MAX = 16
"""Time zones of one policy: each costs a few milliseconds to tabulate and a few KiB to keep."""

HINT_COUNT_MAX = 200
"""Names that a mistyped one is compared with: each comparison costs some microseconds."""

DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")

HELD = ("max_gpus", "max_memory", "max_leases")
HELD_PER_USER = tuple(f"{key}_per_user" for key in HELD)
TERMS = ("gpus", "servers", "idle_timeout", "max_lease_time", "data_encryption", "department")
GIVING_WAY = ("priority", "preemptible", "max_suspended", "min_run_time")
RULE_KEYS: dict[str, tuple[str, ...]] = {
    "defaults": (*HELD, *TERMS, *GIVING_WAY),
    "pool": HELD,
    "class": (*HELD, *HELD_PER_USER, *TERMS, *GIVING_WAY, "guarantee", "weight"),
    "user": (*HELD, *TERMS),
}
"""The rule keys of each table: for every user, for all together, for a class, for a user."""

SPAN_KEYS = ("from", "to", "days", "zone")
WINDOW_KEYS = ("name", *SPAN_KEYS, "leases", "grace", *RULE_KEYS)
RESERVATION_KEYS = ("name", "class", "count", "gpus", "servers", *SPAN_KEYS)
TOP_KEYS = ("zone", *RULE_KEYS, "window", "reservation", "prices")

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
    except RecursionError as error:
        raise PolicyTextError((Problem(0, "its arrays and tables nest too deep"),)) from error
    except ValueError as error:  # also an integer of more digits than Python converts
        raise PolicyTextError((_syntax_problem(str(error)),)) from error
    reader = _Reader(key_lines(text), zone_of)
    policy = None
    with suppress(_TooManyProblemsError):
        policy = reader.read(document)
    if policy is None or reader.problems:
        raise PolicyTextError(tuple(sorted(reader.problems, key=lambda problem: problem.line)))
    return policy


class _TooManyProblemsError(Exception):
    """A document has ``PROBLEM_COUNT_MAX`` mistakes: nobody reads on."""


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
        self._check_prices(document)
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
        for base, over in ((rules, ()), *((rules, w.rules) for w in windows)):
            for line, text in contradictions(base, over):
                self._problem_at(line, text)
        return Policy(
            rules=rules,
            windows=windows,
            reservations=reservations,
            members=self._members(document),
            zones=self._zones,
        )

    def _check_prices(self, document: Table) -> None:
        """Refuse prices that are none; they stay in the text alone (``policy.prices``)."""
        table = self._table(("prices",), document.get("prices", {}))
        if len(table) > PRICE_COUNT_MAX:
            self._problem(("prices",), f"it has more than {PRICE_COUNT_MAX} prices")
        for key, value in table.items():
            try:
                check_entry(key, value)
            except WrongValueError as error:
                self._problem(("prices", key), f"{key}: {error}")

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
                number, words = rule_value(key, scope[key])
            except WrongValueError as error:
                self._problem(where, f"{key}: {error}")
            else:
                rules.append(Rule(target, name, key, self._line(where), number, words))
        return rules

    def _members(self, document: Table) -> tuple[Membership, ...]:
        """Return the class members in order: users by name, then globs, then everybody else."""
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
        if leases not in ("keep", "end", "suspend"):
            self._problem((*path, "leases"), 'leases is "keep", "end" or "suspend"')
        grace_ms = 0
        if "grace" in table:
            if leases != "end":
                self._problem((*path, "grace"), 'grace is for leases = "end"')
            try:
                grace_ms = duration_ms(table["grace"])
            except WrongValueError as error:
                self._problem((*path, "grace"), f"grace: {error}")
        elif leases == "end":
            self._problem((*path, "leases"), 'leases = "end" takes a grace, such as "15m"')
        rules = self._scopes(path, table)
        if not rules:
            self._problem(path, "the window has no rules; write [window.class.NAME] below it")
        if span is None:
            return None
        line = self._line(path)
        name = name or f"line {line}"
        return Window(name, line, span, rules, leases == "end", grace_ms, leases == "suspend")

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
                words[key] = rule_value(key, table[key])[1] if key in table else ()
            except WrongValueError as error:
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
                at, once, at_zone = moment(table.get(key), zone)
            except WrongValueError as error:
                self._problem(where, f"{key}: {error}")
            else:
                moments.append((at, once))
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
        if name not in self._zones and len(self._zones) >= ZONE_COUNT_MAX:
            self._problem(path, f"it has more than {ZONE_COUNT_MAX} time zones")
            return "UTC"
        zone = self._zone_of(name) if name else None
        if zone is None:
            if name or value == "":  # of other values it was said already what is wrong
                self._problem(path, f"{name!r} is no time zone; write one such as Europe/Berlin")
            return "UTC"
        self._zones[name] = zone
        return name

    # --- the shape of things ---------------------------------------------------------------------

    def _known(self, path: Path, table: Table, keys: tuple[str, ...]) -> None:
        for key in table:
            if key in keys:
                continue
            near = difflib.get_close_matches(key[:NAME_LENGTH_MAX], keys, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(keys)}"
            self._problem((*path, key), f"unknown key {key!r}{_where(path)}; {hint}")

    def _unknown_class(self, path: Path, name: str) -> None:
        known = sorted(self._classes)[:HINT_COUNT_MAX]
        near = difflib.get_close_matches(name[:NAME_LENGTH_MAX], known, n=1)
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
        """Return one value of an object that should be a table."""
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
            return list(word_list(value))
        except WrongValueError as error:
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
        self._problem_at(self._line(path), text)

    def _problem_at(self, line: int, text: str) -> None:
        problem = Problem(line, text[:PROBLEM_LENGTH_MAX])
        if problem not in self.problems:
            self.problems.append(problem)
        if len(self.problems) >= PROBLEM_COUNT_MAX:
            raise _TooManyProblemsError


def _where(path: Path) -> str:
    name = _dotted(path)
    if not name:
        return ""
    return f" in [[{name}]]" if isinstance(path[-1], int) else f" in [{name}]"


def _dotted(path: Path) -> str:
    return ".".join(part for part in path if isinstance(part, str))
