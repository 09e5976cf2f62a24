"""The values of a policy document: sizes, durations, times, words and the value of a rule.

A value of the wrong kind raises ``WrongValueError``; ``policy_document`` adds the line to it.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import cast

from gpupool.pool.model.policy import NO_LIMIT, DataEncryption, Rule
from gpupool.pool.model.sizes import parse_size
from gpupool.pool.model.units import DAY_MS

WORD_COUNT_MAX = 64
NAME_LENGTH_MAX = 64

WEIGHT_MIN, WEIGHT_MAX = 100, 10_000
"""In thousandths. A class that weighed next to nothing beside others would starve."""

LIFETIME_MS_MIN = 2000
"""Of an idle timeout and of a lease; use is measured once a second."""

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604_800}
DURATION = re.compile(r"(?:\d+[smhdw])+")
TIME = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")


class WrongValueError(ValueError):
    """A value is not valid; the text describes a valid one."""


def rule_value(key: str, value: object) -> tuple[int, tuple[str, ...]]:
    """Return the number and the words of a rule; a rule uses one of the two."""
    kind = key.removesuffix("_per_user")
    if kind in ("gpus", "servers"):
        words = word_list(value)
        if not words:
            raise WrongValueError("the list is empty, which would allow nothing")
        if kind == "servers" and not all("=" in word for word in words):
            raise WrongValueError('write labels as "key=value", or "name=server-*"')
        return 0, words
    if kind == "data_encryption":
        if value not in tuple(DataEncryption):
            raise WrongValueError('write "tls" or "off"')
        return 0, (str(value),)
    if kind == "department":
        if not isinstance(value, str) or not 0 < len(value) <= NAME_LENGTH_MAX:
            raise WrongValueError(f"write a name of 1 to {NAME_LENGTH_MAX} characters")
        if not value.isprintable():
            raise WrongValueError("write a name without control characters")
        return 0, (value,)
    if kind == "priority":
        if type(value) is not int or not -1000 <= value <= 1000:
            raise WrongValueError("write a whole number from -1000 to 1000")
        return value, ()
    if kind == "preemptible":
        if not isinstance(value, bool):
            raise WrongValueError("write true or false")
        return int(value), ()
    if kind == "min_run_time":
        return duration_ms(value), ()
    if kind == "guarantee":
        return _thousandths(value, or_none=""), ()
    if kind == "weight":
        return _weight(value), ()
    if value == "none":
        return NO_LIMIT, ()
    if kind == "max_gpus":
        return _thousandths(value), ()
    if kind == "max_memory":
        return _size(value), ()
    if kind == "max_leases":
        if type(value) is not int or not 0 <= value <= 10**6:
            raise WrongValueError('write a whole number, or "none"')
        return value, ()
    milliseconds = duration_ms(value)
    if milliseconds < LIFETIME_MS_MIN:
        raise WrongValueError('write at least 2s, or "none"')
    return milliseconds, ()


def _weight(value: object) -> int:
    sentence = f"write a number from {WEIGHT_MIN / 1000:g} to {WEIGHT_MAX // 1000}, such as 2.5"
    thousandths = _thousandths(value, sentence=sentence)
    if not WEIGHT_MIN <= thousandths <= WEIGHT_MAX:
        raise WrongValueError(sentence)
    return thousandths


def _thousandths(value: object, or_none: str = ', or "none"', sentence: str = "") -> int:
    number = Decimal(value) if type(value) is int else value
    if not isinstance(number, Decimal) or not number.is_finite() or not 0 <= number <= 10**6:
        raise WrongValueError(sentence or f"write a number of GPUs such as 2.5{or_none}")
    thousandths = number * 1000
    if thousandths != thousandths.to_integral_value():
        raise WrongValueError("write three decimals at most")
    return int(thousandths)


def _size(value: object) -> int:
    if not isinstance(value, str):
        raise WrongValueError('write a size such as "80GiB", "80GB" or "512M", or "none"')
    try:
        return parse_size(value)
    except ValueError as error:
        raise WrongValueError(f'{error}; or "none"') from error


def duration_ms(value: object) -> int:
    """Return a duration such as "1h30m" in milliseconds."""
    if not isinstance(value, str) or len(value) > 20 or not DURATION.fullmatch(value):
        raise WrongValueError('write a duration such as "30m", "1h30m" or "7d"')
    seconds = sum(int(n) * SECONDS[unit] for n, unit in re.findall(r"(\d+)([smhdw])", value))
    if seconds > 366 * 100 * SECONDS["d"]:
        raise WrongValueError("that is longer than a hundred years")
    return seconds * 1000


def word_list(value: object) -> tuple[str, ...]:
    """Return the words of a list, or the one word that stands without brackets."""
    given = cast("list[object]", value) if isinstance(value, list) else [value]
    if len(given) > WORD_COUNT_MAX:
        raise WrongValueError(f"at most {WORD_COUNT_MAX} can be listed")
    words = tuple(word for word in given if isinstance(word, str) and 0 < len(word) <= 200)
    if len(words) != len(given):
        raise WrongValueError('write a list of words, such as ["a", "b*"]')
    return words


def moment(value: object, zone: str) -> tuple[int, bool, str]:
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
        raise WrongValueError('write a time of day such as "08:00", or a date: 2026-12-01T08:00:00')
    hours, minutes, seconds = int(found[1]), int(found[2]), int(found[3] or 0)
    ms = ((hours * 60 + minutes) * 60 + seconds) * 1000
    if minutes > 59 or seconds > 59 or ms > DAY_MS:
        raise WrongValueError(f"{value} is no time of day")
    return ms, False, zone


def _naive_ms(value: datetime) -> int:
    seconds = int((value - datetime(1970, 1, 1)).total_seconds())
    return max(0, seconds * 1000)


def contradictions(rules: Sequence[Rule], window: Sequence[Rule]) -> Iterator[tuple[int, str]]:
    """Yield the line and a sentence for each guarantee that other rules do not let anybody have.

    Args:
        rules: those that always hold.
        window: those of one window, which take their place; only what it brings is judged then.
    """
    in_force = {(each.target, each.name, each.key): each for each in (*rules, *window)}
    guarantees = [each for each in in_force.values() if each.key == "guarantee" and each.number]
    together = sum(each.number for each in guarantees)
    for rule in guarantees:
        limit = in_force.get(("class", rule.name, "max_gpus"))
        if limit is not None and 0 <= limit.number < rule.number and _brings(window, rule, limit):
            what = f"class {rule.name} may hold {limit.number / 1000:g} GPUs (line {limit.line})"
            yield rule.line, f"guarantee: it is {rule.number / 1000:g} GPUs, and {what}"
    limit = in_force.get(("pool", "", "max_gpus"))
    if limit is None or not 0 <= limit.number < together or not guarantees:
        return
    if _brings(window, limit, *guarantees):
        what = f"all users may hold {limit.number / 1000:g} (line {limit.line})"
        last = max(each.line for each in guarantees)
        yield last, f"guarantee: all classes together have {together / 1000:g} GPUs, and {what}"


def _brings(window: Sequence[Rule], *rules: Rule) -> bool:
    return not window or any(each in rules for each in window)
