"""A closed, strict CBOR codec: nothing but plain values, and nothing a peer sends is executed."""

from io import BytesIO
from typing import Any, NoReturn, cast

import cbor2

from gpupool.pool.errors import RemoteProtocolError
from gpupool.pool.ids import Plain

DEPTH_MAX = 24

# cbor2 6.2.1 decodes these tags by itself, past ``tag_hook``: dates, numbers of any size, regular
# expressions, e-mail messages and so on. Each of them is refused here; a test tries all tags.
_BUILT_IN_TAGS = (
    *(0, 1, 2, 3, 4, 5, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100),
    *(256, 258, 260, 261, 1004, 43000, 55799),
)


def _refuse(_value: object, _immutable: bool = False) -> NoReturn:
    raise RemoteProtocolError("a CBOR value carries a tag", why="tags are not part of the format")


_REFUSED = dict.fromkeys(_BUILT_IN_TAGS, _refuse)


def encode(value: Plain) -> bytes:
    """Return ``value`` as CBOR; raises ``TypeError`` for anything that is not plain."""
    _check_closed(value, DEPTH_MAX, TypeError)
    return cbor2.dumps(value)


def decode(data: bytes) -> Plain:
    """Return the one plain value in ``data``.

    Raises:
        RemoteProtocolError: for tags, indefinite lengths, duplicate or non-text keys, trailing
            bytes, too deep nesting, and everything else outside the closed set.
    """
    stream = BytesIO(data)
    decoder = cbor2.CBORDecoder(
        stream,
        tag_hook=_refuse,
        semantic_decoders=_REFUSED,
        max_depth=DEPTH_MAX,
        allow_indefinite=False,
        allow_duplicate_keys=False,
        strict_hashable_types=True,
    )
    try:
        value: Any = decoder.decode()
    except (cbor2.CBORError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise RemoteProtocolError("a CBOR value cannot be read", why=str(error)) from error
    if stream.tell() != len(data):
        raise RemoteProtocolError("a CBOR value is followed by other bytes")
    _check_closed(value, DEPTH_MAX, RemoteProtocolError)
    return value


def _check_closed(value: object, depth: int, error: type[Exception]) -> None:
    kind = type(value)
    if kind in (int, bytes, str, bool, float) or value is None:
        if kind is int and not -(1 << 63) <= cast("int", value) < 1 << 64:
            raise error("an integer does not fit into 64 bits")
        return
    if depth == 0:
        raise error("a value is nested too deeply")
    if kind is list:
        for item in cast("list[object]", value):
            _check_closed(item, depth - 1, error)
    elif kind is dict:
        for key, item in cast("dict[object, object]", value).items():
            if type(key) is not str:
                raise error("a key is not text")
            _check_closed(item, depth - 1, error)
    else:
        raise error(f"a value of type {kind.__name__} is not plain")
