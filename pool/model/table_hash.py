"""A hash of a dataclass with all its rows, computed in pieces, to compare tables.

Two values that are equal have the same hash, in every process: rows are summed, so that the order
of a map does not matter; the maps within a row are sorted; an integer in a field of floats counts
as the float that a snapshot makes of it. The values themselves are read, row by row, and nothing is
remembered of earlier hashes: a bit that flipped in memory is seen.
"""

import dataclasses
import enum
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from hashlib import blake2b
from operator import attrgetter, itemgetter
from typing import Any, cast

from gpupool.pool.model import codec

HASH_BYTES = 16

PIECE_BYTES = 8 * 1024
"""Of rows as text: a tenth of a millisecond or two."""

BLOB_BYTES = 64
"""Longer bytes stand in a row as their hash: as text they would take four times as many."""

VERSION = 1
"""Of how rows are written and summed. Another one is another shape."""

_MASK = (1 << 8 * HASH_BYTES) - 1
Plain = Callable[[Any], Any]


class TableHash:
    """The hash of one value, which must not be changed before its last piece is done."""

    def __init__(self, value: object) -> None:
        """Begin; nothing is read yet."""
        self.shape = shape_of(type(value))
        self._rows = _rows("", type(value), value)
        self._sum = 0

    def step(self) -> bytes | None:
        """Hash one piece; return the hash once all are done."""
        size, total = 0, self._sum
        for row in self._rows:
            text = ascii(row).encode()
            total += int.from_bytes(blake2b(text, digest_size=HASH_BYTES).digest())
            size += len(text)
            if size >= PIECE_BYTES:
                self._sum = total
                return None
        self._sum = total
        return (total & _MASK).to_bytes(HASH_BYTES)


@lru_cache(maxsize=16)
def shape_of(kind: type[object]) -> int:
    """Return a number for the fields of a dataclass and of all within: builds may differ in them.

    It is never 0.
    """
    text = f"{VERSION} {_described(kind)}".encode()
    return int.from_bytes(blake2b(text, digest_size=4).digest()) or 1


def _rows(path: str, kind: Any, value: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the hashed items: a row of each map and tuple, and each other field."""
    kind = _stripped(kind)
    if (inner := _optional(kind)) is not None:
        if value is None:
            yield path, None
            return
        kind = _stripped(inner)
    if dataclasses.is_dataclass(kind):
        hints = _hints(kind)
        for name in hints:
            yield from _rows(f"{path}.{name}", hints[name], getattr(value, name))
    elif (of_map := codec.map_types(kind)) is not None:
        of_key, of_value = _plain(of_map[1]), _plain(of_map[2])
        for key, each in cast("Mapping[Any, Any]", value).items():
            yield path, of_key(key), of_value(each)
    elif typing.get_origin(kind) is tuple:
        of_item = _plain(typing.get_args(kind)[0])
        for at, item in enumerate(value):
            yield path, at, of_item(item)
    else:
        yield path, _plain(kind)(value)


@lru_cache(maxsize=1024)
def _plain(kind: Any) -> Plain:
    """Return a function that converts a value for its row: equal values become the same text."""
    kind = _stripped(kind)
    if dataclasses.is_dataclass(kind):
        return _plain_dataclass(_hints(kind))
    if (inner := _optional(kind)) is not None:
        of_value = _plain(inner)
        return lambda value: None if value is None else of_value(value)
    if (of_map := codec.map_types(kind)) is not None:
        return _plain_map(_plain(of_map[1]), _plain(of_map[2]))
    if typing.get_origin(kind) is tuple:
        of_item = _plain(typing.get_args(kind)[0])
        return list if of_item is _same else lambda value: [of_item(each) for each in value]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return attrgetter("value")
    if kind is float:
        return lambda value: float(value) + 0.0  # and no negative zero
    return _blob if kind is bytes else _same


def _plain_dataclass(hints: dict[str, Any]) -> Plain:
    own = [(at, of) for at, hint in enumerate(hints.values()) if (of := _plain(hint)) is not _same]
    fields = attrgetter(*hints) if len(hints) > 1 else None
    only = next(iter(hints))

    def plain_dataclass(value: Any) -> Any:
        row = [getattr(value, only)] if fields is None else list(fields(value))
        for at, of in own:
            row[at] = of(row[at])
        return row

    return plain_dataclass


def _plain_map(of_key: Plain, of_value: Plain) -> Plain:
    def plain_map(value: Any) -> Any:
        pairs = [(of_key(key), of_value(item)) for key, item in value.items()]
        if len(pairs) > 1:
            pairs.sort(key=itemgetter(0))
        return pairs

    return plain_map


def _same(value: Any) -> Any:
    return value


def _blob(value: bytes) -> bytes:
    return value if len(value) <= BLOB_BYTES else blake2b(value, digest_size=HASH_BYTES).digest()


def _described(kind: Any) -> str:
    kind = _stripped(kind)
    if dataclasses.is_dataclass(kind):
        return _listed(f"{name} {_described(hint)}" for name, hint in _hints(kind).items())
    if (inner := _optional(kind)) is not None:
        return f"{_described(inner)}?"
    if (of_map := codec.map_types(kind)) is not None:
        return f"map of {_described(of_map[1])} to {_described(of_map[2])}"
    if typing.get_origin(kind) is tuple:
        return f"list of {_described(typing.get_args(kind)[0])}"
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return "enum"
    return cast("type[object]", kind).__name__


def _listed(texts: Iterable[str]) -> str:
    return f"({', '.join(texts)})"


def _optional(kind: Any) -> Any:
    """Return the type of ``kind`` other than None, or None when it cannot be None."""
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return None
    inner = [each for each in typing.get_args(kind) if each is not type(None)]
    if len(inner) != 1:
        raise TypeError(f"a table has no field of type {kind}")
    return inner[0]


def _stripped(kind: Any) -> Any:
    while isinstance(kind, typing.NewType):
        kind = kind.__supertype__
    return kind


@lru_cache(maxsize=256)
def _hints(kind: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}
