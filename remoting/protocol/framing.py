"""Frames and strict CBOR: the bytes of every control connection and peer link, without any I/O.

A frame is a 4-byte big-endian length of its body, one byte that says what the body is, and the
body. CBOR (RFC 8949) is read in one canonical-enough form only: definite lengths, no tags, no
duplicate keys, text keys, nothing after the value, nesting of at most ``DEPTH_MAX``.
"""

import io
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import cbor2

from gpupool.pool.errors import LocalProtocolError, RemoteProtocolError
from gpupool.pool.model.ids import Plain

HEADER = struct.Struct(">IB")
DEPTH_MAX = 16
"""A view of the pool nests to 8; each level costs the decoder a C stack frame."""

UNAUTHENTICATED_SIZE_MAX = 4096
"""A stranger may make us keep this much: a certificate request with its token fits."""

REQUEST_SIZE_MAX = 64 * 1024
"""From an authenticated client; a claim of 256 partitions needs 25 KiB."""

ANSWER_SIZE_MAX = 32 * 1024 * 1024
"""From a server: the largest message is the view of a pool with 4096 servers."""


# cbor2 6 decodes these tags by itself, past ``tag_hook``: dates, bignums, regular expressions.
_BUILT_IN_TAGS = (
    *(0, 1, 2, 3, 4, 5, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100),
    *(256, 258, 260, 261, 1004, 43000, 55799),
)


def _refuse_tag(_value: object, _immutable: bool = False) -> NoReturn:
    raise RemoteProtocolError("malformed CBOR", why="a tag")


_REFUSED_TAGS = dict.fromkeys(_BUILT_IN_TAGS, _refuse_tag)


@dataclass(frozen=True, slots=True)
class Frame:
    """One whole frame as it was received."""

    kind: int
    body: bytes


class FrameTooLargeError(LocalProtocolError):
    """A frame is larger than the other side accepts; nothing has been sent."""


def frame_bytes(kind: int, *body: bytes, size_max: int) -> bytes:
    """Return one frame, ready to send; its body may come in pieces.

    Raises:
        FrameTooLargeError: when the other side would refuse it for its size.
    """
    size = sum(map(len, body))
    if size > size_max:
        raise FrameTooLargeError("frame too large", why=f"{size} bytes, at most {size_max}")
    return b"".join((HEADER.pack(size, kind), *body))


class FrameReader:
    """Cuts a stream of bytes into frames; holds at most one incomplete frame.

    ``size_max`` may be raised once the other side has said who it is.
    """

    def __init__(self, size_max: int) -> None:
        self.size_max = size_max
        self._buffer = bytearray()

    def __len__(self) -> int:
        """Return how many bytes wait for the rest of their frame."""
        return len(self._buffer)

    def feed(self, data: bytes) -> None:
        """Take received bytes; nothing is parsed before ``frames``."""
        self._buffer += data

    def next(self) -> Frame | None:
        """Return the next whole frame, or None when more bytes are needed.

        Raises:
            RemoteProtocolError: as soon as a header announces more than ``size_max`` bytes.
        """
        buffer = self._buffer
        if len(buffer) < HEADER.size:
            return None
        size, kind = HEADER.unpack_from(buffer)
        if size > self.size_max:
            raise RemoteProtocolError(
                "oversize frame", why=f"{size} bytes announced, at most {self.size_max} accepted"
            )
        end = HEADER.size + size
        if len(buffer) < end:
            return None
        body = bytes(memoryview(buffer)[HEADER.size : end])
        del buffer[:end]
        return Frame(kind, body)

    def frames(self) -> Iterator[Frame]:
        """Yield every whole frame that has arrived."""
        while (frame := self.next()) is not None:
            yield frame


def dump(value: Plain) -> bytes:
    """Return ``value`` as CBOR with definite lengths, map keys in canonical order.

    Raises:
        LocalProtocolError: for what ``load`` would refuse, so that the sender finds out.
    """
    try:
        return cbor2.dumps(check_plain(value), canonical=True)
    except (RemoteProtocolError, UnicodeError) as error:
        raise LocalProtocolError("this cannot be sent", why=str(error)[:100]) from error


def load(data: bytes) -> Plain:
    """Return the one value that ``data`` encodes.

    Raises:
        RemoteProtocolError: for everything but a single value of the closed set ``Plain``.
    """
    stream = io.BytesIO(data)
    decoder = cbor2.CBORDecoder(
        stream,
        tag_hook=_refuse_tag,
        semantic_decoders=_REFUSED_TAGS,
        max_depth=DEPTH_MAX,
        allow_duplicate_keys=False,
        allow_indefinite=False,
        strict_hashable_types=True,
    )
    try:
        value: Any = decoder.decode()
    except (cbor2.CBORError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise RemoteProtocolError("malformed CBOR", why=str(error)[:100]) from error
    if stream.tell() != len(data):
        raise RemoteProtocolError("malformed CBOR", why="bytes after the value")
    return check_plain(value)


_PLAIN_LEAVES = frozenset((type(None), bool, float, str, bytes))
_type_of: Callable[[object], type[object]] = type  # as pyright is to see it


def check_plain(value: Any) -> Plain:
    """Return ``value`` when it holds plain values only: no simple values, no bignums.

    It looks at one level of lists and maps after the other, for a call for each value takes longer.
    """
    level: list[Any] = [value]
    for _ in range(DEPTH_MAX + 1):
        below: list[Any] = []
        for each in level:
            kind = _type_of(each)
            if kind in _PLAIN_LEAVES or (kind is int and -(2**64) <= each < 2**64):
                continue
            if kind is list:
                below += each
            elif kind is dict:
                for key in each:
                    if type(key) is not str:
                        raise RemoteProtocolError("malformed CBOR", why="a key that is no text")
                below += each.values()
            else:
                raise RemoteProtocolError("malformed CBOR", why=f"a value of type {kind.__name__}")
        if not below:
            return value
        level = below
    raise RemoteProtocolError("malformed CBOR", why=f"more than {DEPTH_MAX} levels")
