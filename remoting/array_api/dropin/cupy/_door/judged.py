"""Calls that wait once for the worker's library to check their arguments.

The client checks the arguments of what programs call in loops, and sends those calls without
waiting. The functions here are called rarely and have many rules. The first call of each kind, with
arrays of the same shapes and types and the same other arguments, waits until the worker has run it,
so that a wrong argument is an error of that call. Later calls of that kind do not wait. A number
whose value no check reads is in the kind by its type alone, and a long list by a digest.
"""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import hashlib
import os
import sys
from typing import Any

import numpy as np

from cupy._door.calls import Remote
from cupy._door.meta import Meta

KINDS_MAX = 1 << 14

_TEXT = """
angle argpartition average bincount choose compress convolve copyto corrcoef correlate cov cross
cumprod cumsum delete diff digitize dot ediff1d einsum extract fill_diagonal gradient histogram
histogram2d histogramdd indices insert interp intersect1d isin lexsort median nancumprod
nancumsum nanmedian nanquantile ndarray.as_strided ndarray.field ndarray.gather
ndarray.partition ndarray.sort packbits pad
partition percentile place poly polyfit put put_along_axis putmask quantile ravel_multi_index
repeat roll roots searchsorted select setdiff1d setxor1d sort_complex take take_along_axis tile
trapezoid trim_zeros ufunc.at ufunc.reduceat union1d unique unpackbits unravel_index unwrap
vander
"""
_NAMES = frozenset(_TEXT.split())
_PREFIXES = ("cupyx.", "fft.", "interpolate.", "kernel.", "linalg.")

# CuPy itself waits for the device here, because the elements decide whether there is an error.
# Graphs and textures are made rarely, and what is wrong with one is not in the arguments alone.
_BY_ELEMENTS = frozenset(
    (
        *("bincount", "place", "random.logseries", "ravel_multi_index", "unravel_index"),
        *("cuda.array.create", "cuda.stream.end_capture", "cuda.surface.create"),
        "cuda.texture.create",
    )
)

# The same, where these arguments (by place or by name) are arrays.
_BY_ELEMENTS_OF: dict[str, tuple[int | str, ...]] = {
    "average": ("weights",),
    "cov": (5, 6),
    "percentile": (1,),
    "quantile": (1,),
    "random.choice": (4,),
    "repeat": (1,),
}

# Numbers of which no check reads the value. The client has checked those of `repeat` itself.
_BY_TYPE: dict[str, tuple[int | str, ...]] = {
    "interp": (3, 4, "left", "right"),
    "random.choice": (1,),
    "repeat": (1,),
    "roll": (1, "shift"),
}

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
    known = name in _NAMES or name in _BY_ELEMENTS or name in _BY_ELEMENTS_OF
    return known or name.startswith(_PREFIXES)


class Judged:
    """The kinds of calls of one session that the worker has accepted."""

    def __init__(self) -> None:
        self._kinds: set[Any] = set()

    def accept(self, kind: Any) -> None:
        """Remember the result of `must_wait`, for calls of that kind not to wait again."""
        if kind is not EACH:
            if len(self._kinds) >= KINDS_MAX:
                self._kinds.clear()
            self._kinds.add(kind)

    def must_wait(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the kind of a call that must wait, `EACH` if each of its kind must; else None.

        A call waits that is the first of its kind, or one that CuPy waits for too.
        """
        if name in _BY_ELEMENTS:
            return EACH
        for mode in (*args, kwargs.get("mode")):
            if type(mode) is str and mode == "raise":
                return EACH
        if linalg_raises and name.startswith(_OF_LINALG):
            return EACH
        for place in _BY_ELEMENTS_OF.get(name, ()):
            if isinstance(_argument(args, kwargs, place), Remote):
                return EACH
        try:
            kind = _kind(name, args, kwargs)
            return None if kind in self._kinds else kind
        except TypeError:  # what has no hash, or an array that only the worker can describe
            return EACH


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], place: int | str) -> Any:
    if isinstance(place, str):
        return kwargs.get(place)
    return args[place] if place < len(args) else None


def _kind(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if name == "kernel.launch":  # it is compiled once for its types
        looks = tuple([_dtype(arg) for arg in args[1:]])
        return name, args[0]._gp_handle, looks, kwargs.get("size") == 0
    if name == "kernel.launch_raw":  # and it is the program's, with whatever it is given
        return name, args[0]._gp_handle, len(args[3])
    places = _BY_TYPE.get(name, ())
    if name == "interp" and _kind_of_values(args) not in ("f", "c"):
        places = ()  # a number that the type of the values cannot hold is an error
    if not places:
        return name, _looks(args), tuple(kwargs), _looks(tuple(kwargs.values()))
    by_place = [_type(arg) if at in places else _looks(arg) for at, arg in enumerate(args)]
    by_name = [_type(arg) if key in places else _looks(arg) for key, arg in kwargs.items()]
    return name, tuple(by_place), tuple(kwargs), tuple(by_name)


def _kind_of_values(args: tuple[Any, ...]) -> str:
    """Return the letter for the dtype of the values that `interp` takes its numbers from."""
    meta = getattr(_argument(args, {}, 2), "_gp_known", None)
    return "" if meta is None else meta.dtype.kind


def _dtype(value: Any) -> Any:
    """Return the dtype of an array or number; for no element nothing is compiled."""
    known: Any = getattr(value, "_gp_known", None)
    if known is not None:
        return known.dtype, known.size == 0
    if isinstance(value, Remote):
        raise TypeError("not described yet")
    return value.dtype if isinstance(value, np.generic) else type(value)


def _type(value: Any) -> Any:
    """Return the look of a number, or of a list of ints; no check reads the value."""
    if type(value) is int or type(value) is float:
        return _ANY, type(value)
    if type(value) is list and all(type(item) is int for item in value):
        return _ANY, list, len(value)
    return _looks(value)


_ANY = object()


def _looks(value: Any, depth: int = 0) -> Any:
    """Return an argument's features that the checks read; TypeError where unknown."""
    if isinstance(value, Remote):
        known: Any = getattr(value, "_gp_known", value)
        if known is value:  # no array: it looks like no other object
            return Remote, known._gp_handle
        if known is None:
            raise TypeError("not described yet")
        return known
    kind = type(value)
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
    if type(value) is tuple:
        return f"({','.join([_told(item) for item in value])})"
    if isinstance(value, Meta):
        return f"{value.dtype.str}{value.shape}{value.strides}"
    if value is None or type(value) in _TOLD or isinstance(value, (type, np.generic, np.dtype)):
        return repr(value)
    raise TypeError("no text stands for it")


_TOLD = (bool, bytes, complex, float, int, str, type(Ellipsis))
