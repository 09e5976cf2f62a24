"""Frames and records of the array API, on the worker's side.

The drop-in has the same constants in ``dropin/cupy/_door/wire.py``, because it runs where gpupool
may not be installed. A test compares the two files. The drop-in's file describes the formats.
"""

import io
import struct
from enum import IntEnum
from typing import Any, NamedTuple, TypeGuard

import cbor2

from gpupool.pool.errors import RemoteProtocolError

PROTOCOL = 1
HEADER = struct.Struct("<IBBHIIQ")
MAX_BODY = 1 << 20
MAX_BULK = 1 << 44
MAX_BATCH = 1 << 16
MAX_TEMPLATES = 1 << 14
MAX_METAS = 1 << 16
SHARED_SLOTS, SHARED_SLOT = 8, 4 << 20
MAX_NDIM = 64
MAX_DEPTH = 16

FREE, CONTEXT, TEMPLATE, META, INLINE_PUT, RESET, SEND, RECEIVE, GROUP = 0, 1, 2, 3, 4, 5, 6, 7, 8
FIRST_TEMPLATE = 16
META_OBJECT = 0
META_UNKNOWN = 1
FIRST_META = 16

FREE_RECORD = struct.Struct("<IQ")
CONTEXT_RECORD = struct.Struct("<IIQ")
SIZED_RECORD = struct.Struct("<II")
PUT_RECORD = struct.Struct("<IQII")
SEND_RECORD = struct.Struct("<IIQQ")
RECEIVE_RECORD = struct.Struct("<IIQQII")
DTYPES = "?bBhHiIlLqQefdFD"


class Kind(IntEnum):
    """Kinds of frames; below 16 from the client, others to it."""

    HELLO = 1
    CALLS = 2
    ASK = 3
    PUT = 4
    COLLECTED = 5
    BYE = 6
    WELCOME = 16
    REPLY = 17
    DESCRIBED = 18
    FAILED = 19
    COLLECT = 20
    NOTICE = 21


# A dictionary is faster than the enumeration, and every frame needs the kind.
_KINDS: dict[int, Kind] = {kind.value: kind for kind in Kind}
_HELLO, _BYE = Kind.HELLO.value, Kind.BYE.value


class Header(NamedTuple):
    """The decoded header of one frame from the client."""

    kind: Kind
    length: int  # of the body, in bytes
    request: int
    calls: int
    bulk: int  # bytes that follow the body


def decode_header(data: bytes | bytearray | memoryview) -> Header:
    """Return the header of a client's frame.

    Raises:
        RemoteProtocolError: it is not one, or announces more than the limits allow.
    """
    length, kind, flags, zero, request, calls, bulk = HEADER.unpack(data)
    if not _HELLO <= kind <= _BYE or flags or zero:
        raise RemoteProtocolError("not a frame of the array door", why=bytes(data).hex())
    if length > MAX_BODY or bulk > MAX_BULK or (bulk and kind != Kind.PUT):
        raise RemoteProtocolError("frame too large", why=f"{length} and {bulk} bytes")
    return Header(_KINDS[kind], length, request, calls, bulk)


def encode_frame(kind: Kind, body: bytes, *, request: int = 0, bulk: int = 0) -> bytes:
    """Return header and body of a frame to the client; ``bulk`` bytes must follow it."""
    return HEADER.pack(len(body), kind, 0, 0, request, 0, bulk) + body


def is_list(value: Any) -> TypeGuard[list[Any]]:
    """Say whether a decoded value is a list."""
    return type(value) is list


def _refuse(_decoder: Any, _tag: Any) -> Any:
    raise RemoteProtocolError("malformed message", why="tags are not allowed")


def decode_body(data: bytes | memoryview) -> Any:
    """Return the plain value that a body holds, by a strict decoder.

    Raises:
        RemoteProtocolError: the bytes are no CBOR, or more than our subset of it.
    """
    source = io.BytesIO(data)
    try:
        decoder = cbor2.CBORDecoder(
            source,
            max_depth=MAX_DEPTH + 2,
            allow_duplicate_keys=False,
            allow_indefinite=False,
            tag_hook=_refuse,
        )
        value: Any = decoder.decode()
    except (cbor2.CBORDecodeError, ValueError, OverflowError, MemoryError) as error:
        raise RemoteProtocolError("malformed message", why=str(error)) from error
    if source.tell() != len(data):
        raise RemoteProtocolError("malformed message", why="bytes are left over")
    check_plain(value, 0)
    return value


def check_plain(value: Any, depth: int) -> None:
    """Raise for anything but plain values: built-in tags get past the decoder's hook."""
    kind: Any = type(value)  # pyright: ignore[reportUnknownVariableType]
    if kind is int and not -(1 << 64) <= value < 1 << 64:
        raise RemoteProtocolError("malformed message", why="an integer of more than 64 bits")
    if value is None or kind in (bool, int, float, str, bytes):
        return
    if depth >= MAX_DEPTH:
        raise RemoteProtocolError("malformed message", why="nested too deeply")
    if kind is list:
        for item in value:
            check_plain(item, depth + 1)
    elif kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise RemoteProtocolError("malformed message", why="a key that is no text")
            check_plain(item, depth + 1)
    else:
        raise RemoteProtocolError("malformed message", why=f"a {kind.__name__}")


def encode_body(value: Any) -> bytes:
    """Return the CBOR of a plain value."""
    return cbor2.dumps(value)
