"""JSON objects, one a line: how the processes of one machine speak of a lease."""

import json
from collections.abc import Mapping
from typing import cast

import trio

from gpupool.pool.errors import ExitCode, GpupoolError


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


def words_of(error: GpupoolError) -> dict[str, object]:
    """Return an error as the fields of an object."""
    return {"code": error.code, "what": error.what, "why": error.why, "hint": error.hint}


def error_of(body: Mapping[str, object]) -> GpupoolError:
    """Return the error that an object reports."""
    what, why, hint = (str(body.get(each, "")) for each in ("what", "why", "hint"))
    error = GpupoolError(what or "the holder refuses", why=why, hint=hint)
    error.code = str(body.get("code", error.code))
    error.exit_code = ExitCode(cast("int", body.get("exit_code", error.exit_code)))
    return error


class LineTooLongError(ValueError):
    """The other end has sent more than it may before the end of a line."""


class LineReader:
    """Cuts the bytes of a stream into lines."""

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
