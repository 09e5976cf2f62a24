"""Functions of `cupyx` that the worker's own CuPy runs whole: one call crosses.

`extension_names` declares them for both ends.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from cupy._core import convert as _convert
from cupy._core import poly as _poly
from cupy._core.dispatch import make as _make
from cupy._core.dispatch.arguments import is_array as _is_array
from cupy._core.dispatch.arguments import need as _need
from cupy._door import absent as _absent
from cupy._door.calls import Remote as _Remote


def declared(name: str) -> Any:
    """Return a module of declarations for both ends; its folder is not on this program's path."""
    path = Path(__file__).resolve().parents[3] / "devices" / f"{name}.py"
    spec: Any = importlib.util.spec_from_file_location(f"cupyx._{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_EXTENSIONS = declared("extension_names").EXTENSIONS
_OUTPUTS = ("out", "output")
"""Keywords by which a program names the array that takes the result."""
_WRITTEN = (*_OUTPUTS, "distances", "indices")
"""These, and the keywords of others that take results."""
_SEVERAL = ("return_sign", "return_indices", "return_distances", "retstep")
"""Keywords that decide by their truth the number of results, so that the worker must be asked."""
_SEVERAL_FROM = {
    "cupyx.scipy.ndimage.distance_transform_edt": (3, ()),
    "cupyx.scipy.ndimage.iterate_structure": (2, ("origin",)),
    "cupyx.signal.firfilter": (3, ("zi",)),
}
"""By function, the place of the first argument of that kind, and its own keywords of that kind."""
_OF_NUMBERS = frozenset(("axes", "axis", "kernel_size", "output_shape", "radius", "s", "shape"))
"""Keywords of whole numbers, for which CuPy takes an array of NumPy, and none of CuPy."""
_NUMBERS_FROM = {"fft": 1, "log_softmax": 1, "logsumexp": 1, "softmax": 1, "rotate": 2,
                 "affine_transform": 3, "fftconvolve": 3, "oaconvolve": 3}  # fmt: skip
"""By function or module, the place from which arguments are such numbers."""
_LEAVES_MAX = 1024
"""Elements of a sequence that can be separate arguments; more are an array."""
_AS_THEY_ARE = (_Remote, str, int, float, bytes, dict, np.generic, np.dtype, type)


def operand(value: Any) -> Any:
    """Return an argument as it travels: arrays of the host go up, other sequences are lists."""
    if value is None or isinstance(value, _AS_THEY_ARE):
        return value
    if isinstance(value, _poly.poly1d):
        return value.coeffs
    if any(hasattr(value, each) for each in _convert.ARRAY_PROTOCOLS):
        return _convert.array(value, copy=None)
    if type(value).__module__.startswith("scipy.sparse"):
        return importlib.import_module("cupyx.scipy.sparse._matrices").of_scipy(value)
    if hasattr(value, "__array__"):
        return _host(np.asarray(value))
    if isinstance(value, Iterable):
        items: Any = value if isinstance(value, (tuple, list)) else list(value)
        if len(items) > _LEAVES_MAX:
            return _convert.asarray(items)
        made = [operand(item) for item in items]
        return tuple(made) if isinstance(value, tuple) else made
    is_float = hasattr(value, "__float__") and not hasattr(value, "__index__")
    return float(value) if is_float else value


def _host(value: np.ndarray[Any, Any]) -> Any:
    if value.dtype.kind in "OU":
        return operand(value.tolist())
    return value[()] if value.ndim == 0 else _convert.asarray(value)


def _numbers(value: Any) -> Any:
    is_several = isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iu"
    return list(value) if is_several else operand(value)


def _refuse_host(output: object, name: str) -> None:
    """Raise for an array of the host: results would be written into its copy on the device."""
    if isinstance(output, np.ndarray):
        _need(output, name)


def _function(path: str, name: str, *, one: bool, place: int) -> Any:
    operation = f"{path}.{name}"
    last, own = _SEVERAL_FROM.get(operation, (1 << 30, ()))
    telling = (*_SEVERAL, *own)
    numbers = _NUMBERS_FROM.get(name, _NUMBERS_FROM.get(path.rpartition(".")[2], 1 << 30))

    def function(*args: object, **kwargs: object) -> Any:
        given = (*map(operand, args[:numbers]), *map(_numbers, args[numbers:]))
        keywords = {
            key: (_numbers if key in _OF_NUMBERS else operand)(value)
            for key, value in kwargs.items()
        }
        for key in _WRITTEN:
            _refuse_host(kwargs.get(key), key)
        outputs = [keywords.get(key) for key in _OUTPUTS]
        if 0 <= place < len(given):
            _refuse_host(args[place], "output")
            outputs.append(given[place])
        for output in outputs:
            if one and _is_array(output):
                _make.in_place(operation, given, keywords)
                return output
        if one and len(given) <= last and not any(key in kwargs for key in telling):
            return _make.lazy(operation, given, keywords)
        return _make.ask(operation, *given, **keywords)

    function.__name__ = function.__qualname__ = name
    function.__module__ = path
    function.__doc__ = f"Run `{operation}` of the server's CuPy."
    return function


def checked(function: Any, check: Any) -> Any:
    """Return a function that checks its arguments first; ``check`` raises or warns."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        check(*args, **kwargs)
        return function(*args, **kwargs)

    return call


def fill(module: dict[str, Any]) -> None:
    """Fill a module with its declared functions, and the advice about the names that it lacks."""
    path = module["__name__"]
    names = _EXTENSIONS[path.partition(".")[2]]
    for name, (waits, place) in names.items():
        module[name] = _function(path, name, one=not waits, place=place)
    module["__all__"] = sorted(names)
    module["__getattr__"] = _absent.lookup(path)
