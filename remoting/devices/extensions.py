"""Functions of ``cupyx.scipy`` as operations, which are imported at the first call."""

import importlib
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from gpupool.remoting.devices.base import UnsupportedError
from gpupool.remoting.devices.extension_names import EXTENSIONS

Operation = Callable[..., Any]

PREFIX = "cupyx."
"""Before a function's dotted name in the table of operations."""

NO_SCIPY = (
    "an emulated GPU runs it by SciPy, which its server lacks: install scipy where gpupool is"
)


def real_extensions() -> dict[str, Operation]:
    """Return the operations of a real GPU: CuPy's own functions."""
    return _table(lambda path, name: _late(PREFIX + path, name, "this CuPy lacks it"))


def emulated_extensions() -> dict[str, Operation]:
    """Return the operations of an emulated GPU: SciPy's functions of the same names."""
    return _table(lambda path, name: _as_arrays(_late(path, name, NO_SCIPY)))


def _table(make: Callable[[str, str], Operation]) -> dict[str, Operation]:
    return {
        f"{PREFIX}{path}.{name}": make(path, name)
        for path, names in EXTENSIONS.items()
        for name in names
    }


def _late(module: str, name: str, otherwise: str) -> Operation:
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            function = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            raise UnsupportedError(f"{module}.{name}: {otherwise}") from None
        return function(*args, **kwargs)

    return call


def _as_arrays(function: Operation) -> Operation:
    """Return a function whose numbers are arrays without axes, as CuPy's are."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return _array(function(*args, **kwargs))

    return call


def _array(value: Any) -> Any:
    if isinstance(value, np.generic):
        number: Any = cast("Any", value)
        return np.asarray(number)
    if type(value) in (tuple, list):
        items: Any = value
        return type(items)(_array(item) for item in items)
    return value
