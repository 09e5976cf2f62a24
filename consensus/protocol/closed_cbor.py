"""A closed, strict CBOR codec: nothing but plain values, and nothing a peer sends is executed."""

from collections.abc import Callable
from functools import lru_cache
from io import BytesIO
from typing import Any, NoReturn

import cbor2

from gpupool.pool.errors import RemoteProtocolError
from gpupool.pool.model.ids import Plain

DEPTH_MAX = 24
INTEGER_MIN, INTEGER_MAX = -(1 << 63), (1 << 64) - 1

# cbor2 6.2.1 decodes these tags by itself, past ``tag_hook``: dates, numbers of any size, regular
# expressions, e-mail messages and so on. Each of them is refused here; a test tries all tags.
_BUILT_IN_TAGS = (
    *(0, 1, 2, 3, 4, 5, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100),
    *(256, 258, 260, 261, 1004, 43000, 55799),
)


def _refuse(_value: object, _immutable: bool = False) -> NoReturn:
    raise RemoteProtocolError("a CBOR value carries a tag", why="tags are not part of the format")


_REFUSED = dict.fromkeys(_BUILT_IN_TAGS, _refuse)
_type_of: Callable[[object], type[object]] = type  # as pyright is to see it
_SCALARS = frozenset((bytes, str, bool, float, type(None)))


def encode(value: Plain) -> bytes:
    """Return ``value`` as CBOR; raises ``TypeError`` for anything that is not plain."""
    _check_closed(value, TypeError)
    return cbor2.dumps(value)


def decode(data: bytes) -> Plain:
    """Return the one plain value in ``data``.

    Raises:
        RemoteProtocolError: for tags, indefinite lengths, duplicate or non-text keys, trailing
            bytes, too deep nesting, and everything else outside the closed set.
    """
    value = decode_unchecked(data)
    _check_closed(value, RemoteProtocolError)
    return value


@lru_cache(64)
def decode_command(data: bytes) -> Plain:
    """Return the decoded command, which callers must not change.

    A leader reads a command that was forwarded before it appends it, and once more to apply it;
    the servers of a simulation all read the same ones. Commands are small, see ``settings``.
    """
    return decode(data)


def decode_unchecked(data: bytes) -> Any:
    """Return the one value in ``data``, for a caller that checks the type of all that is in it.

    Raises:
        RemoteProtocolError: as ``decode``, except for keys, numbers and simple values that CBOR
            knows and this format does not.
    """
    stream = BytesIO(data)
    value = _decode_next(_decoder(stream))
    if stream.tell() != len(data):
        raise RemoteProtocolError("a CBOR value is followed by other bytes")
    return value


class SequenceDecoder:
    """Decodes values that follow each other, in part of some bytes."""

    def __init__(self, data: bytes) -> None:
        self._stream = BytesIO(data)

    def decode(self, start: int, count: int) -> tuple[list[Plain], int]:
        """Return the ``count`` values at ``start``, and the place behind them.

        Raises:
            RemoteProtocolError: as ``decode``.
        """
        self._stream.seek(start)
        decoder = _decoder(self._stream)
        values = [_decode_next(decoder) for _ in range(count)]
        _check_closed(values, RemoteProtocolError)
        return values, self._stream.tell()


def _decoder(stream: BytesIO) -> cbor2.CBORDecoder:
    return cbor2.CBORDecoder(
        stream,
        tag_hook=_refuse,
        semantic_decoders=_REFUSED,
        max_depth=DEPTH_MAX,
        allow_indefinite=False,
        allow_duplicate_keys=False,
        strict_hashable_types=True,
    )


def _decode_next(decoder: cbor2.CBORDecoder) -> Any:
    try:
        return decoder.decode()
    except (cbor2.CBORError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise RemoteProtocolError("a CBOR value cannot be read", why=str(error)) from error


def _check_closed(value: object, error: type[Exception]) -> None:
    """Raise ``error`` unless ``value`` is plain; by levels, which is cheaper than recursion."""
    level: list[Any] = [value]
    for depth in range(DEPTH_MAX + 1):
        inner: list[Any] = []
        for item in level:
            kind = _type_of(item)
            if kind in _SCALARS:
                continue
            if kind is int:
                if not INTEGER_MIN <= item <= INTEGER_MAX:
                    raise error("an integer does not fit into 64 bits")
            elif depth == DEPTH_MAX:
                raise error("a value is nested too deeply")
            elif kind is list:
                inner += item
            elif kind is dict:
                for key in item:
                    if type(key) is not str:
                        raise error("a key is not text")
                inner += item.values()
            else:
                raise error(f"a value of type {kind.__name__} is not plain")
        if not inner:
            return
        level = inner
