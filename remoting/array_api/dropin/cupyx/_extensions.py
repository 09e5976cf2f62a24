"""Functions of `cupyx` that the worker's own CuPy runs whole: one call crosses.

Their names are in the table of the worker too; a test compares the two.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from cupy._core import convert as _convert
from cupy._core import poly as _poly
from cupy._core.dispatch import make as _make
from cupy._core.dispatch.arguments import is_array as _is_array
from cupy._door import absent as _absent

from cupyx._output_places import OUTPUT_PLACES

_OUTPUTS = ("out", "output")
"""Keywords by which a program names the array that takes the result."""
_SEVERAL = ("return_sign", "return_indices", "return_distances", "retstep")
"""Keywords whose truth decides how many results there are, so that the worker must be asked."""
_SEVERAL_FROM = {
    "cupyx.scipy.ndimage.distance_transform_edt": (3, ()),
    "cupyx.scipy.ndimage.iterate_structure": (2, ("origin",)),
    "cupyx.signal.firfilter": (3, ("zi",)),
}
"""By function, the place of the first argument of that kind, and its own keywords of that kind."""


def _operand(value: Any) -> Any:
    """Upload an array of the host among the arguments, as these functions do in CuPy."""
    if isinstance(value, _poly.poly1d):
        return value.coeffs
    return _convert.asarray(value) if isinstance(value, np.ndarray) else value


def _function(path: str, name: str, *, one: bool) -> Any:
    operation = f"{path}.{name}"
    place = OUTPUT_PLACES.get(operation, -1)
    last, own = _SEVERAL_FROM.get(operation, (1 << 30, ()))
    telling = (*_SEVERAL, *own)

    def function(*args: Any, **kwargs: Any) -> Any:
        given = tuple(_operand(value) for value in args)
        keywords = {key: _operand(value) for key, value in kwargs.items()}
        outputs = [keywords.get(key) for key in _OUTPUTS]
        if 0 <= place < len(given):
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
    """Return a function whose arguments are looked at first; ``check`` raises or warns."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        check(*args, **kwargs)
        return function(*args, **kwargs)

    return call


def fill(module: dict[str, Any], one: str, several: str = "") -> None:
    """Fill a module with functions, and with the advice about the names that it lacks.

    Args:
        module: its ``globals()``.
        one: names of the functions whose result is one array; nothing waits for these.
        several: of those with another result, which is known when the worker has answered.
    """
    path = module["__name__"]
    for names, alone in ((one, True), (several, False)):
        for name in names.split():
            module[name] = _function(path, name, one=alone)
    module["__all__"] = sorted([*one.split(), *several.split()])
    module["__getattr__"] = _absent.lookup(path)
