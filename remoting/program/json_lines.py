"""JSON objects, one a line: how the processes of one machine speak of a lease."""

import json
from collections.abc import Mapping
from typing import cast

import trio


def line_of(body: Mapping[str, object]) -> bytes:
    """Return an object as a line."""
    return json.dumps(body, separators=(",", ":")).encode() + b"\n"


def object_of(line: bytes | str) -> dict[str, object]:
    """Return the object in a line.

    Raises:
        ValueError: when it is none.
    """
    try:
        body: object = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("is not JSON") from None
    if not isinstance(body, dict):
        raise ValueError("is not a JSON object")
    return cast("dict[str, object]", body)


class LineTooLongError(ValueError):
    """The other end has sent more than it may before the end of a line."""


class LineReader:
    """Cuts what a stream receives into lines."""

    def __init__(self, stream: trio.abc.ReceiveStream, length_max: int) -> None:
        self._stream, self._length_max = stream, length_max
        self._buffer = bytearray()

    async def next(self) -> bytes | None:
        """Return the next line; None at the end.

        Raises:
            LineTooLongError: when it has no end.
        """
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > self._length_max:
                raise LineTooLongError
            piece = await self._stream.receive_some()
            if not piece:
                return None
            self._buffer += piece
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line
