"""Dataclasses to plain values and back, strictly: the one way in and out of wire and log.

A dataclass becomes a dict of its fields, an enum its value, a tuple a list, and a dict a list of
pairs, because keys need not be strings. Decoding checks the type of every field, refuses unknown
and missing ones, and raises ``CodecError`` for whatever is not exactly right, so a decoder never
hands on a half-checked value. Only who reads what a newer program may have written asks to pass
over unknown fields; a field that is added for such readers has a default. A field with the metadata
``OPTIONAL`` is left out while it has its default, so that what was written before it was added, and
what does not use it, has the same bytes. A type with a ``Bound`` (``bounds``) is checked both ways.

``TableHash`` goes through the same fields for a hash, in pieces, by which servers compare their
tables. Two values that are equal have the same hash, in every process: rows are summed, so that the
order of a map does not matter; the maps within a row are sorted; an integer in a field of floats
counts as the float that a snapshot makes of it. The values themselves are read, row by row, and
nothing is remembered of earlier hashes: a bit that flipped in memory is seen.
"""

import dataclasses
import enum
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from hashlib import blake2b
from operator import attrgetter, itemgetter
from typing import Annotated, Any, TypeVar, cast

from gpupool.pool.errors import LocalProtocolError
from gpupool.pool.model.bounds import Bound
from gpupool.pool.model.ids import Plain
from gpupool.pool.model.tables import PersistentMap

T = TypeVar("T")
Decoder = Callable[[Any], Any]
Encoder = Callable[[Any], Any]

OPTIONAL = {"optional": True}
"""Metadata of a field that is left out while it has its default."""

INTEGER_MAX = 2**64
"""No integer of ours is larger; CBOR would carry bignums of any size otherwise."""

ITEM_COUNT_MAX = 1_000_000
"""Upper bound on any list or dict; each message and command has a separate size limit."""


class CodecError(ValueError):
    """A plain value does not match the type; the text names the place."""


def encode(value: object) -> Plain:
    """Return ``value``, a dataclass instance, as plain values.

    Raises:
        LocalProtocolError: when a field is beyond its bound.
    """
    return cast(Plain, _encoder(type(value))(value))


def decode(kind: type[T], plain: object, *, unknown_fields: bool = False) -> T:
    """Return the ``kind`` that ``plain`` stands for.

    Args:
        kind: a dataclass.
        plain: what ``encode`` returned, here or elsewhere.
        unknown_fields: pass over fields that ``kind`` and its parts do not have.

    Raises:
        CodecError: when any field is missing or of the wrong type, or unknown.
    """
    return cast(T, _decoder(kind, unknown_fields)(plain))


def encoder_of(kind: Any) -> Encoder:
    """Return the encoder of type ``kind``, as ``encode`` applies it inside a dataclass."""
    return _encoder(kind)


def decoder_of(kind: Any) -> Decoder:
    """Return the decoder of type ``kind``, as ``decode`` applies it inside a dataclass."""
    return _decoder(kind, False)


def _identity(value: Any) -> Any:
    return value


def default_of(field: "dataclasses.Field[Any]") -> object:
    """Return the default of a field, which must have one."""
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()


@lru_cache(maxsize=1024)
def _encoder(kind: Any) -> Encoder:
    kind = _strip(kind)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        names = [field.name for field in dataclasses.fields(kind)]
        optional = [
            (field.name, default_of(field))
            for field in dataclasses.fields(kind)
            if field.metadata.get("optional")
        ]
        # Most fields are plain already, and are taken all at once.
        encoders = [
            (name, encoder) for name in names if (encoder := _encoder(hints[name])) is not _identity
        ]
        values = attrgetter(*names) if len(names) > 1 else None

        def encode_dataclass(value: Any) -> Any:
            if values is None:
                plain: dict[str, Any] = {name: getattr(value, name) for name in names}
            else:
                plain = dict(zip(names, values(value), strict=True))
            for name, encoder in encoders:
                plain[name] = encoder(plain[name])
            for name, default in optional:
                if getattr(value, name) == default:
                    del plain[name]
            return plain

        return encode_dataclass
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return attrgetter("_value_")
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _bounded(_encoder(args[0]), args[1], sends=True)
    if origin is tuple:
        item = _encoder(args[0])
        if item is _identity:
            return list
        return lambda value: [item(each) for each in value]
    if (types_of := map_types(kind)) is not None:
        key, item = _encoder(types_of[1]), _encoder(types_of[2])
        return lambda value: [[key(k), item(v)] for k, v in value.items()]
    if origin in (typing.Union, types.UnionType):
        inner = [_encoder(arg) for arg in args if arg is not type(None)]
        if len(inner) == 1:
            only = inner[0]
            if only is _identity:
                return _identity
            return lambda value: None if value is None else only(value)
    return _identity


@lru_cache(maxsize=1024)
def _decoder(kind: Any, unknown: bool) -> Decoder:
    kind = _strip(kind)
    if kind is Any or kind is object:
        return _identity
    if dataclasses.is_dataclass(kind):
        return _dataclass_decoder(kind, unknown)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _enum_decoder(kind)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _bounded(_decoder(args[0], unknown), args[1], sends=False)
    if origin is tuple:
        return _tuple_decoder(_decoder(args[0], unknown))
    if (types_of := map_types(kind)) is not None:
        decoder = _dict_decoder(_decoder(types_of[1], unknown), _decoder(types_of[2], unknown))
        make = types_of[0]
        return decoder if make is dict else lambda value: make(decoder(value))
    if origin in (typing.Union, types.UnionType):
        inner = [arg for arg in args if arg is not type(None)]
        if len(inner) == 1:
            decoder = _decoder(inner[0], unknown)
            return lambda value: None if value is None else decoder(value)
        return _identity  # only ``Plain`` itself is a wider union
    return _scalar_decoder(kind)


def _strip(kind: Any) -> Any:
    while isinstance(kind, typing.NewType):
        kind = kind.__supertype__
    return kind


def map_types(kind: Any) -> tuple[Callable[[Any], Any], Any, Any] | None:
    """Return the class of a map with the types of its keys and values; None for another kind."""
    origin: Any = typing.get_origin(kind)
    args = typing.get_args(kind)
    if origin is dict or origin is PersistentMap:
        return origin, args[0], args[1]
    if isinstance(origin, type) and issubclass(origin, PersistentMap):
        table = cast(Any, origin)
        base: Any = table.__orig_bases__[0]  # a table names its keys itself
        return table, typing.get_args(base)[0], args[0]
    return None


def _bounded(inner: Callable[[Any], Any], bound: Bound, *, sends: bool) -> Callable[[Any], Any]:
    least, most, is_plain = bound.least, bound.most, inner is _identity

    def within(value: Any) -> Any:
        found = value if is_plain else inner(value)
        if least <= (found if isinstance(found, int | float) else len(found)) <= most:
            return found
        if not sends:
            raise CodecError("beyond its bound")
        if not bound.trims:
            raise LocalProtocolError("this cannot be sent", why="a field is beyond its bound")
        return bound.trimmed(found)

    return within


def _scalar_decoder(kind: Any) -> Decoder:
    def decode_scalar(value: Any) -> Any:
        # bool is an int for Python, and must not be one for us.
        if type(value) is kind:
            if kind is int and not -INTEGER_MAX < value < INTEGER_MAX:
                raise CodecError("integer out of range")
            return value
        if kind is float and type(value) is int:
            return float(value)
        raise CodecError(f"expected {kind.__name__}, got {type(value).__name__}")

    return decode_scalar


def _enum_decoder(kind: type[enum.Enum]) -> Decoder:
    members = {each.value: each for each in kind}

    def decode_enum(value: Any) -> Any:
        try:
            return members[value]
        except (KeyError, TypeError):
            pass  # the type says what is wrong with it
        try:
            return kind(value)
        except ValueError as error:
            raise CodecError(f"unknown {kind.__name__}") from error

    return decode_enum


def _tuple_decoder(item: Decoder) -> Decoder:
    def decode_tuple(value: Any) -> Any:
        return tuple(item(each) for each in _list(value))

    return decode_tuple


def _dict_decoder(key: Decoder, item: Decoder) -> Decoder:
    def decode_dict(value: Any) -> Any:
        result: dict[Any, Any] = {}
        for pair in _list(value):
            if len(_list(pair)) != 2:
                raise CodecError("expected a pair")
            name = key(pair[0])
            if name in result:
                raise CodecError("duplicate key")
            result[name] = item(pair[1])
        return result

    return decode_dict


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise CodecError(f"expected list, got {type(value).__name__}")
    items = cast("list[Any]", value)
    if len(items) > ITEM_COUNT_MAX:
        raise CodecError("list too long")
    return items


def _dataclass_decoder(kind: Any, unknown: bool) -> Decoder:
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = dataclasses.fields(kind)
    decoders = {f.name: _decoder(hints[f.name], unknown) for f in fields}
    # What is of the right type already needs no more of a check, unless it is an integer.
    hinted = {f.name: _strip(hints[f.name]) for f in fields}
    exact = {name: each for name, each in hinted.items() if each in (str, bytes, bool)}
    required = {
        f.name
        for f in fields
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    }

    def decode_dataclass(value: Any) -> Any:
        if not isinstance(value, dict):
            raise CodecError(f"expected {kind.__name__}, got {type(value).__name__}")
        given = cast("dict[Any, Any]", value)
        arguments: dict[str, Any] = {}
        for name, each in given.items():
            if type(each) is exact.get(name):
                arguments[name] = each
                continue
            decoder = decoders.get(name)
            if decoder is None:
                if unknown:
                    continue
                raise CodecError(f"{kind.__name__} has no field {str(name)[:40]!r}")
            try:
                arguments[name] = decoder(each)
            except CodecError as error:
                raise CodecError(f"{kind.__name__}.{name}: {error}") from None
        if len(arguments) < len(decoders) and (missing := required - arguments.keys()):
            raise CodecError(f"{kind.__name__} lacks {sorted(missing)[0]!r}")
        return kind(**arguments)

    return decode_dataclass


# --- a hash of all rows ---------------------------------------------------------------------------

HASH_BYTES = 16

PIECE_BYTES = 8 * 1024
"""Of rows as text: a tenth of a millisecond or two."""

BLOB_BYTES = 64
"""Longer bytes stand in a row as their hash: as text they would take four times as many."""

HASH_VERSION = 1
"""Of how rows are written and summed. Another one is another shape."""

_MASK = (1 << 8 * HASH_BYTES) - 1


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
    text = f"{HASH_VERSION} {_described(kind)}".encode()
    return int.from_bytes(blake2b(text, digest_size=4).digest()) or 1


def _rows(path: str, kind: Any, value: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the hashed items: a row of each map and tuple, and each other field."""
    kind = _strip(kind)
    if (inner := _optional(kind)) is not None:
        if value is None:
            yield path, None
            return
        kind = _strip(inner)
    if dataclasses.is_dataclass(kind):
        hints = _hints(kind)
        for name in hints:
            yield from _rows(f"{path}.{name}", hints[name], getattr(value, name))
    elif (of_map := map_types(kind)) is not None:
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
def _plain(kind: Any) -> Encoder:
    """Return a function that converts a value for its row: equal values become the same text."""
    kind = _strip(kind)
    if dataclasses.is_dataclass(kind):
        return _plain_dataclass(_hints(kind))
    if (inner := _optional(kind)) is not None:
        of_value = _plain(inner)
        return lambda value: None if value is None else of_value(value)
    if (of_map := map_types(kind)) is not None:
        return _plain_map(_plain(of_map[1]), _plain(of_map[2]))
    if typing.get_origin(kind) is tuple:
        of_item = _plain(typing.get_args(kind)[0])
        return list if of_item is _identity else lambda value: [of_item(each) for each in value]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return attrgetter("value")
    if kind is float:
        return lambda value: float(value) + 0.0  # and no negative zero
    return _blob if kind is bytes else _identity


def _plain_dataclass(hints: dict[str, Any]) -> Encoder:
    own = [
        (at, of) for at, hint in enumerate(hints.values()) if (of := _plain(hint)) is not _identity
    ]
    fields = attrgetter(*hints) if len(hints) > 1 else None
    only = next(iter(hints))

    def plain_dataclass(value: Any) -> Any:
        row = [getattr(value, only)] if fields is None else list(fields(value))
        for at, of in own:
            row[at] = of(row[at])
        return row

    return plain_dataclass


def _plain_map(of_key: Encoder, of_value: Encoder) -> Encoder:
    def plain_map(value: Any) -> Any:
        pairs = [(of_key(key), of_value(item)) for key, item in value.items()]
        if len(pairs) > 1:
            pairs.sort(key=itemgetter(0))
        return pairs

    return plain_map


def _blob(value: bytes) -> bytes:
    return value if len(value) <= BLOB_BYTES else blake2b(value, digest_size=HASH_BYTES).digest()


def _described(kind: Any) -> str:
    kind = _strip(kind)
    if dataclasses.is_dataclass(kind):
        return _listed(f"{name} {_described(hint)}" for name, hint in _hints(kind).items())
    if (inner := _optional(kind)) is not None:
        return f"{_described(inner)}?"
    if (of_map := map_types(kind)) is not None:
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


@lru_cache(maxsize=256)
def _hints(kind: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}
