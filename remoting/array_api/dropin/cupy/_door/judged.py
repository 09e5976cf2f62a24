"""Kinds of calls that the worker has accepted, and the looks of their results.

The client checks the arguments of what programs call in loops, and sends those calls without
waiting. Other functions have many rules. The first call of each kind, with arrays that look the
same and with the same other arguments, waits until the worker has run it, so that a wrong argument
is an error of that call. Later calls of that kind do not wait. `learned` keeps with a kind what its
results looked like. A long list is in the kind by a digest.
"""

from __future__ import annotations

import hashlib
import os
import sys
from typing import Any

import numpy as np

from cupy._door.calls import Remote
from cupy._door.meta import Meta

KINDS_MAX = 4096
_NAMES = frozenset(
    (
        *("copyto", "dot", "ndarray.as_strided", "ndarray.field", "ndarray.gather"),
        *("random.choice", "ufunc.at"),
    )
)
_PREFIXES = ("cupyx.", "fft.", "interpolate.", "kernel.")

# CuPy itself waits for the device here, because the elements decide whether there is an error.
# Textures are made rarely, and what is wrong with one is not in the arguments alone.
_BY_ELEMENTS = frozenset(
    (*("random.logseries", "cuda.array.create", "cuda.surface.create", "cuda.texture.create"),)
)

# A longer sequence or text is kept as a digest.
_LENGTH_MAX = 16
_NESTING_MAX = 2

# These solve systems of equations, whose errors a program can ask for.
_OF_LINALG = ("cupyx.scipy.linalg.", "interpolate.", "linalg.")

EACH = object()
"""The kind of calls of which each waits."""

linalg_raises = False
"""Whether a program asked for errors of `linalg` that only the elements show."""


def each_waits(devices: list[dict[str, Any]]) -> bool:
    """Say whether each call waits for its result, so that its error is told at once.

    Unless a variable says it, that is so on emulated GPUs, which are for tests, and under pytest,
    where an error would be a later test's.
    """
    if os.environ.get("CUDA_LAUNCH_BLOCKING", "") not in ("", "0"):
        return True
    asked = os.environ.get("GPUPOOL_BLOCKING", "")
    if asked:
        return asked != "0"
    return "pytest" in sys.modules or any(device.get("emulated") is True for device in devices)


def is_strict() -> bool:
    """Say whether the program asks for strict mode."""
    return os.environ.get("GPUPOOL_STRICT", "") not in ("", "0")


def is_judged(name: str) -> bool:
    """Say whether the worker's library checks arguments that the client does not."""
    return name in _NAMES or name in _BY_ELEMENTS or name.startswith(_PREFIXES)


class Judged:
    """The kinds of calls of one session that the worker has accepted, and their results' looks."""

    def __init__(self) -> None:
        self.known: dict[Any, Any] = {}

    def accept(self, kind: Any, looks: Any = None) -> None:
        """Let later calls of a kind not wait; keep the looks of its results."""
        if kind is not EACH:
            if len(self.known) >= KINDS_MAX:
                self.known.clear()
            self.known[kind] = looks

    def must_wait(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the kind of a call that must wait, `EACH` if each of its kind must; else None.

        A call waits that is the first of its kind, or one that CuPy waits for too.
        """
        kind = kind_of(name, args, kwargs)
        return None if kind in self.known else kind


def kind_of(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, free: frozenset[Any] = frozenset()
) -> Any:
    """Return the kind of a call; `EACH` if each of its kind waits.

    Args:
        name: of the operation.
        args: the arguments by place.
        kwargs: those by name.
        free: types of numbers of which only the type belongs to the kind.
    """
    if name in _BY_ELEMENTS or "raise" in [
        value for value in (*args, kwargs.get("mode")) if type(value) is str
    ]:
        return EACH
    if linalg_raises and name.startswith(_OF_LINALG):
        return EACH
    try:
        if name == "kernel.launch":  # it is compiled once for its types
            dtypes = tuple([_dtype(arg) for arg in args[1:]])
            return name, args[0]._gp_handle, dtypes, kwargs.get("size") == 0
        if name == "kernel.launch_raw":  # and it is the program's, with whatever it is given
            return name, args[0]._gp_handle, len(args[3])
        if name == "random.choice" and isinstance(args[4], Remote):
            return EACH  # its elements decide
        values = (*args, *kwargs.values())
        looks = tuple([each.__class__ if type(each) in free else _looks(each) for each in values])
        kind = name, looks, tuple(kwargs)
        hash(kind)
    except TypeError:  # what has no hash
        return EACH
    return kind


def _dtype(value: Any) -> Any:
    """Return the dtype of an array or number; for no element nothing is compiled."""
    known: Any = getattr(value, "_gp_known", None)
    if known is not None:
        return known.dtype, known.size == 0
    if isinstance(value, Remote):
        raise TypeError("not described yet")
    kind: Any = value.__class__
    return value.dtype if issubclass(kind, np.generic) else kind


def _looks(value: Any, depth: int = 0) -> Any:
    """Return an argument's features that the checks read; TypeError where unknown."""
    if isinstance(value, Remote):
        known: Any = getattr(value, "_gp_known", value)
        if known is value:  # no array: it looks like no other object
            return Remote, known._gp_handle
        return value._gp_meta if known is None else known  # type: ignore[attr-defined]
    kind: Any = value.__class__
    if kind is tuple or kind is list:
        made = tuple([_looks(item, depth + 1) for item in value])
        long = len(value) > _LENGTH_MAX or depth > _NESTING_MAX
        return (kind, len(value), _digest(made)) if long else (kind, made)
    if kind is slice:
        return slice, _looks((value.start, value.stop, value.step), depth)
    if (kind is str or kind is bytes) and len(value) > _LENGTH_MAX:
        return kind, len(value), _digest(value)
    # NaN is no equal of itself.
    return kind, value if value == value else repr(value)


def _digest(value: Any) -> bytes:
    """Return 16 bytes for a value of looks, the same for equal ones."""
    return hashlib.blake2b(_told(value).encode(), digest_size=16).digest()


def _told(value: Any) -> str:
    """Return looks as text; TypeError for an object with an ambiguous text."""
    if type(value) in (tuple,):
        return f"({','.join([_told(item) for item in value])})"
    if isinstance(value, Meta):
        return f"{value.dtype.str}{value.shape}{value.strides}"
    if value is None or type(value) in _TOLD or isinstance(value, (type, np.generic, np.dtype)):
        return f"{value!r}"
    raise TypeError("no text stands for it")


_TOLD = (bool, bytes, complex, float, int, str, type(Ellipsis))
