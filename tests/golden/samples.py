"""Sample values made from types alone, so that no class can be forgotten or half filled.

A sample follows from the type and a label, which says where on the wire the value stands. It does
not depend on names of classes, nor on anything that differs between two processes.
"""

import dataclasses
import enum
import types
import typing
from hashlib import sha256
from typing import Any, TypeVar

from gpupool.pool.model.codec import map_types
from gpupool.pool.model.state import TokenKind

T = TypeVar("T")

ADDED: set[enum.Enum] = {TokenKind.VIEWER}
"""Members that came after the first records: older records are of values without them."""


def full(kind: type[T], label: str) -> T:
    """Return a ``kind`` with every field set, but optional ones, to values that differ."""
    made: Any = _full(kind, label)
    return typing.cast(T, made)


def bare(kind: type[T]) -> T:
    """Return a ``kind`` with the defaults of its fields, and the least that the others take."""
    made: Any = _bare(kind)
    return typing.cast(T, made)


def enums_of(kind: Any, label: str) -> dict[str, type[enum.Enum]]:
    """Return the enumerations in a ``kind``, by where they stand."""
    kind = _strip(kind)
    if _is_enum(kind):
        return {label: kind}
    found: dict[str, type[enum.Enum]] = {}
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        for field in dataclasses.fields(kind):
            found |= enums_of(hints[field.name], f"{label}.{field.name}")
        return found
    for arg in typing.get_args(kind):
        found |= enums_of(arg, label)
    return found


def _strip(kind: Any) -> Any:
    while isinstance(kind, typing.NewType):
        kind = kind.__supertype__
    return kind


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(typing.cast("type[object]", kind), enum.Enum)


def _inner(kind: Any) -> Any:
    """Return an optional type's member besides None; None for another type."""
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return None
    inner = [arg for arg in typing.get_args(kind) if arg is not type(None)]
    assert len(inner) == 1, f"no sample of {kind}"
    return inner[0]


def _members(kind: type[enum.Enum]) -> list[enum.Enum]:
    """Return the members that samples are made of: without those that were added since."""
    known = (member for member in kind if member not in ADDED)
    return sorted(known, key=lambda member: str(member.value))


def _full(kind: Any, label: str) -> Any:
    kind = _strip(kind)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        fields = dataclasses.fields(kind)
        make: Any = kind
        # What is left out when unset was added later: older records are of values without it.
        fields = tuple(f for f in fields if not f.metadata.get("optional"))
        return make(**{f.name: _full(hints[f.name], f"{label}.{f.name}") for f in fields})
    if _is_enum(kind):
        members = _members(kind)
        return members[_number(label) % len(members)]
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        assert args[1:] == (Ellipsis,), f"no sample of {kind}"
        return tuple(_full(args[0], f"{label}.{n}") for n in range(2))
    if (of_map := map_types(kind)) is not None:
        # The larger key first: an order that sorting would change.
        make_map, key_kind, item = of_map
        keys = sorted((_full(key_kind, f"{label}.key{n}") for n in range(2)), reverse=True)
        return make_map({key: _full(item, f"{label}.{n}") for n, key in enumerate(keys)})
    if (inner := _inner(kind)) is not None:
        return _full(inner, label)
    return _scalar(kind, label)


def _scalar(kind: Any, label: str) -> Any:
    match kind():
        case bool():
            return True
        case int():
            return _number(label)
        case float():
            return 0.5 + _number(label) % 1000
        case str():
            return label
        case bytes():
            return sha256(label.encode()).digest()[:16]
        case _:
            raise AssertionError(f"no sample of {kind}")


def _number(label: str) -> int:
    """Return a number that takes two, four or eight bytes, by chance of the label."""
    digest = sha256(label.encode()).digest()
    size = (2, 4, 7)[digest[0] % 3]
    return int.from_bytes(digest[1 : 1 + size], "big") | 1


def _bare(kind: Any) -> Any:
    kind = _strip(kind)
    if dataclasses.is_dataclass(kind):
        make: Any = kind
        hints = typing.get_type_hints(kind)
        required = [
            f.name
            for f in dataclasses.fields(kind)
            if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        ]
        return make(**{name: _bare(hints[name]) for name in required})
    if _is_enum(kind):
        return _members(kind)[0]
    if _inner(kind) is not None:
        return None
    return (typing.get_origin(kind) or kind)()
