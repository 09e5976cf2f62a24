"""A dataclass as plain values in pieces, and back: for tables too large to be coded at one go.

The pieces together are what ``codec`` makes of the whole, with the same checks. Between two of them
other work can go on.
"""

import dataclasses
import itertools
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gpupool.pool.model import codec
from gpupool.pool.model.codec import CodecError
from gpupool.pool.model.ids import Plain

T = TypeVar("T")

ROW_COUNT = 16
"""Rows of a piece: 1 ms for servers with eight GPUs, which are the largest."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A long list of plain values, in pieces."""

    length: int
    pieces: Iterator[list[Plain]]


Field = tuple[str, Callable[[], "Plain | Rows"]]


def fields_of(value: object) -> list[Field]:
    """Return the fields of a dataclass, each to be encoded by a call; nothing is encoded yet.

    ``value`` must not be changed before the last piece is taken.
    """
    hints = typing.get_type_hints(type(value))
    return [
        (f.name, _encoding(hints[f.name], getattr(value, f.name)))
        for f in dataclasses.fields(typing.cast(Any, value))
        if not f.metadata.get("optional") or getattr(value, f.name) != codec.default_of(f)
    ]


def _encoding(kind: Any, value: Any) -> Callable[[], "Plain | Rows"]:
    of_map = codec.map_types(kind)
    if of_map is not None and len(value) > ROW_COUNT:
        key, item = codec.encoder_of(of_map[1]), codec.encoder_of(of_map[2])
        return lambda: Rows(len(value), _pieces(value.items(), lambda p: [key(p[0]), item(p[1])]))
    if typing.get_origin(kind) is tuple and len(value) > ROW_COUNT:
        each = codec.encoder_of(typing.get_args(kind)[0])
        return lambda: Rows(len(value), _pieces(value, each))
    whole = codec.encoder_of(kind)
    return lambda: whole(value)


def _pieces(rows: Any, encode: Callable[[Any], Any]) -> Iterator[list[Plain]]:
    left = iter(rows)
    while piece := [encode(row) for row in itertools.islice(left, ROW_COUNT)]:
        yield piece


class PieceDecoder(Generic[T]):
    """Decodes one dataclass from its fields, long lists in pieces."""

    def __init__(self, kind: type[T]) -> None:
        """Begin without fields."""
        self._kind = kind
        self._hints = typing.get_type_hints(kind)
        self._arguments: dict[str, Any] = {}
        self._rows: dict[str, Any] = {}

    def field(self, name: str, plain: Plain) -> None:
        """Take a whole field; raises ``CodecError`` when it is not one, or comes again."""
        hint = self._hint(name)
        try:
            self._arguments[name] = codec.decoder_of(hint)(plain)
        except CodecError as error:
            raise CodecError(f"{self._kind.__name__}.{name}: {error}") from None

    def begin_rows(self, name: str, length: int) -> None:
        """Begin a field that is a list of ``length`` rows."""
        hint = self._hint(name)
        is_map = codec.map_types(hint) is not None
        if length > codec.ITEM_COUNT_MAX or not (is_map or typing.get_origin(hint) is tuple):
            raise CodecError(f"{self._kind.__name__}.{name}: it is no list of {length}")
        self._rows[name] = {} if is_map else []
        self._arguments[name] = None

    def rows(self, name: str, plain: list[Plain]) -> None:
        """Take some rows of a field that has begun."""
        hint, known = self._hints[name], self._rows[name]
        try:
            of_map = codec.map_types(hint)
            if of_map is None:
                known += codec.decoder_of(hint)(plain)
                return
            piece = codec.decoder_of(dict[of_map[1], of_map[2]])(plain)
        except CodecError as error:
            raise CodecError(f"{self._kind.__name__}.{name}: {error}") from None
        if not known.keys().isdisjoint(piece):
            raise CodecError(f"{self._kind.__name__}.{name}: duplicate key")
        known |= piece

    def finish(self) -> T:
        """Return the dataclass; raises ``CodecError`` when a field is missing."""
        for name, rows in self._rows.items():
            of_map = codec.map_types(self._hints[name])
            self._arguments[name] = tuple(rows) if of_map is None else of_map[0](rows)
        for each in dataclasses.fields(typing.cast(Any, self._kind)):
            has_default = (
                each.default is not dataclasses.MISSING
                or each.default_factory is not dataclasses.MISSING
            )
            if each.name not in self._arguments and not has_default:
                raise CodecError(f"{self._kind.__name__} lacks {each.name!r}")
        return self._kind(**self._arguments)

    def _hint(self, name: str) -> Any:
        if name not in self._hints:
            raise CodecError(f"{self._kind.__name__} has no field {name[:40]!r}")
        if name in self._arguments:
            raise CodecError(f"{self._kind.__name__}: {name} comes twice")
        return self._hints[name]
