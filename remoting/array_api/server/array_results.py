"""Results of calls: how the client inferred them, how they fail, and how they travel in answers."""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.array_api.server import array_wire
from gpupool.remoting.array_api.server.element_types import dtype_of, is_sendable, told
from gpupool.remoting.devices.base import Backend

ANSWER_OBJECTS_MAX = 64
"""How many arrays and other objects one answer may hold; the client reserves as many handles."""
_NUMBERS = "?bBhHiIlLqQefdFD"
"""Characters of the types of which an answer may have single numbers."""


class MismatchError(Exception):
    """A result differs from the client's inference: a bug, which must not give a wrong array."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Stands for the result of a call that failed; a call that uses it fails without a report."""

    error: BaseException


class DependsOnFailureError(Exception):
    """An argument is the result of a call that failed, which has been reported already."""


@dataclass(frozen=True, slots=True)
class Meta:
    """Type, shape and strides of a result, as the client inferred them."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    nbytes: int


class Download:
    """A result with elements that travel as bulk bytes."""

    def __init__(self, array: Any, order: str) -> None:
        self.array = array
        self.order = order


def same_layout(value: Any, meta: Meta) -> bool:
    """Say whether strides differ only along axes where they make no difference."""
    if 0 in meta.shape:
        return True
    return all(
        found == inferred
        for length, found, inferred in zip(meta.shape, value.strides, meta.strides, strict=True)
        if length > 1
    )


_KNOWN_AS = {
    "DeviceMemoryError": "OutOfMemoryError",
    "PeerFailedError": "RuntimeError",
    "PeerLostError": "CUDARuntimeError",
    "UFuncTypeError": "TypeError",
    "UnmovableError": "RuntimeError",
    "UnsupportedError": "NotImplementedError",
}
"""By the name of an error here, the name that a program knows."""


def describe_error(name: str, error: BaseException) -> tuple[str, str, Any]:
    """Return the class name, message and details of an error as plain values."""
    kind = type(error).__name__
    message = str(error)
    details: Any = None
    status = getattr(error, "status", None)
    if isinstance(status, int):
        details = status
    if kind == "PeerFailedError":
        message = f"the array could not be copied from its server: {message}"
    elif kind == "KeyError":
        message = str(error.args[0]) if error.args else ""
    if isinstance(error, MemoryError):
        kind = "OutOfMemoryError"
    elif kind.startswith("_UFunc"):
        kind = "TypeError"
    kind = _KNOWN_AS.get(kind, kind)
    return kind, message or f"{name} failed ({kind})", details


def decode_meta(value: Any) -> tuple[int, Meta]:
    """Return the number and the meta that one META record defines.

    Raises:
        RemoteProtocolError: it is not of the form ``[id, dtype, [shape], [strides]]``.
    """
    if not array_wire.is_list(value) or len(value) != 4:
        raise RemoteProtocolError("malformed meta")
    number, dtype, shape, strides = value
    for part in (shape, strides):
        if not array_wire.is_list(part) or len(part) > array_wire.MAX_NDIM:
            raise RemoteProtocolError("malformed meta", why="shape or strides")
        items: list[Any] = part
        if not all(type(item) is int and abs(item) < 1 << 62 for item in items):
            raise RemoteProtocolError("malformed meta", why="shape or strides")
    if type(number) is not int or not array_wire.FIRST_META <= number < array_wire.MAX_METAS:
        raise RemoteProtocolError("malformed meta", why=f"id {number!r}")
    if len(shape) != len(strides) or any(length < 0 for length in shape):
        raise RemoteProtocolError("malformed meta", why="shape or strides")
    kind = dtype_of(dtype)
    nbytes = kind.itemsize
    for length in shape:
        nbytes *= length
    return number, Meta(kind, tuple(shape), tuple(strides), nbytes)


def array_of(value: Any) -> Any:
    """Return the one array that a call makes of a number.

    Raises:
        TypeError: the call gave several results, or an object.
    """
    if isinstance(value, (list, tuple)):
        raise TypeError("it gave several results, where its client waits for one array")
    made: np.ndarray[Any, Any] = np.asarray(value)
    if made.dtype.hasobject or made.dtype.kind in "SU":
        raise TypeError(f"it gave an object of type {type(value).__name__}, and no array")
    return made


class Answer:
    """One answer as a plain value; its arrays and other objects get handles.

    A value that has no form raises TypeError: the program must not get a number in its place.
    """

    def __init__(
        self,
        backend: Backend,
        store: Callable[[int, Any], None],
        forget: Callable[[int], Any],
        *,
        first: int = 0,
        objects: bool = False,
    ) -> None:
        self._backend = backend
        self._store = store
        self._forget = forget
        self._first = first  # of the handles that the client has reserved
        self._used = 0
        self._objects = objects  # the operation's client knows how to read handles of objects

    def encode(self, value: Any) -> Any:
        """Return a result as a plain value.

        Raises:
            TypeError: a part of it has no form; nothing of it is kept then.
        """
        try:
            return self._encode(value)
        except BaseException:
            for index in range(self._used):
                self._forget(self._first + index)
            raise

    def _encode(self, value: Any) -> Any:
        if value is None or type(value) in (bool, int, float, str, bytes):
            return value
        if self._backend.is_array(value) and is_sendable(value.dtype):
            handle = self._keep(value)
            strides = list(value.strides)
            device = self._backend.device_of(value)
            return ["h", handle, told(value.dtype), list(value.shape), strides, device]
        if type(value) in (tuple, list):
            items: Any = value
            code = "t" if type(value) is tuple else "l"
            return [code, *(self._encode(item) for item in items)]
        if type(value) in (dict,):
            pairs: Any = value
            return {str(key): self._encode(item) for key, item in pairs.items()}
        return self._encode_rare(value)

    def _encode_rare(self, value: Any) -> Any:
        kind: Any = value.__class__
        if issubclass(kind, np.generic) and value.dtype.char in _NUMBERS:
            return ["n", value.dtype.str, value.tobytes()]
        if issubclass(kind, complex):
            return ["c", value.real, value.imag]
        if issubclass(kind, np.dtype):
            return value.str
        if kind is slice:
            ends = (value.start, value.stop, value.step)
            return ["s", *(None if end is None else operator.index(end) for end in ends)]
        if not self._objects or self._backend.is_array(value):
            raise TypeError(f"a result of type {kind.__name__} cannot be sent")
        return ["o", self._keep(value)]

    def _keep(self, value: Any) -> int:
        """Store an object under the next handle; return its place among the reserved ones."""
        if self._used >= ANSWER_OBJECTS_MAX:
            raise ValueError("too many results in one answer")
        index = self._used
        self._store(self._first + index, value)
        self._used += 1
        return index
