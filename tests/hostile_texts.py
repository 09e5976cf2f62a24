"""Values of a server that lies: each text in them would command a terminal."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, TypeVar, cast

T = TypeVar("T")

MARK = "hostile"
SEQUENCES = (
    "\x1b]0;own\x07", "\x1b[2J", "\x9b31m", "\x9d0;own\x9c", "\x7f", "\x00", "\x08", "\r", "\x85",
    "\u202e", "\u2066", "\u200f", "\u2028",
)  # fmt: skip
LARGE = 1 << 40
HOSTILE = MARK + "".join(SEQUENCES)
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def hostile(value: T) -> T:
    """Return a value with all of its texts, at any depth, made hostile; kinds stay."""
    return cast(T, _hostile(value))


def _hostile(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changes = {
            field.name: _hostile(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if field.init
        }
        return dataclasses.replace(value, **changes)
    if type(value) is str:
        return f"{HOSTILE}{value}\nline"
    if type(value) is int:
        return cast(int, value) % LARGE  # a time that a calendar has
    if isinstance(value, tuple):
        return tuple(_hostile(each) for each in cast("tuple[Any, ...]", value))
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        make = cast(Any, type(cast(object, value)))
        return make({_hostile(key): _hostile(each) for key, each in items})
    return value


def texts_in(value: Any) -> list[str]:
    """Return all texts in a value, at any depth."""
    if type(value) is str:
        return [value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts: list[Any] = [getattr(value, f.name) for f in dataclasses.fields(value)]
    elif isinstance(value, Mapping):
        parts = [each for item in cast("Mapping[Any, Any]", value).items() for each in item]
    elif isinstance(value, tuple | list):
        parts = list(cast("list[Any]", value))
    else:
        parts = []
    return [text for each in parts for text in texts_in(each)]
