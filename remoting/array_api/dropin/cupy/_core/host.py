"""Functions that need no device: helpers, and the table of all such functions."""

import functools
import platform
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from cupy._core.dispatch import make
from cupy._core.grids import GRIDS
from cupy._core.host_arrays import HOST_ARRAYS
from cupy._core.queries import QUERIES
from cupy._door import state


def memoize(for_each_device: bool = False) -> Callable[[Any], Any]:
    """Make a decorator that remembers a function's results."""

    def decorator(function: Any) -> Any:
        memo: dict[Any, Any] = {}
        _memos.append(memo)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            device = state.local.context[0] if for_each_device else -1
            key = (device, args, frozenset(kwargs.items()))
            if key not in memo:
                memo[key] = function(*args, **kwargs)
            return memo[key]

        return wrapper

    return decorator


_memos: list[dict[object, object]] = []


def clear_memo() -> None:
    """Clear the memos of all memoised functions."""
    for memo in _memos:
        memo.clear()


class RuntimeInfo:
    """Versions on this machine, and the devices of the session; ``str`` has a line for each."""

    def __init__(self) -> None:
        from cupy._door import pool

        self._lines = [
            ("OS", platform.platform()),
            ("Python Version", platform.python_version()),
            ("gpupool drop-in", pool.VERSION),
            ("NumPy Version", np.__version__),
        ]
        for index, session in enumerate(pool.devices()):
            name = session.devices[index - session.first_device]["name"]
            self._lines.append((f"Device {index} Name", name))

    def __str__(self) -> str:
        return "".join(f"{name:<28}: {value}\n" for name, value in self._lines)

    __repr__ = __str__


def show_config(*, _full: bool = False) -> None:
    """Print the servers and devices of the session."""
    sys.stdout.write(str(RuntimeInfo()))


HOST: dict[str, Any] = {
    **make.public(globals()),
    **HOST_ARRAYS,
    **QUERIES,
    **GRIDS,
    "base_repr": np.base_repr,
    "binary_repr": np.binary_repr,
    "format_float_positional": np.format_float_positional,
    "format_float_scientific": np.format_float_scientific,
    "s_": np.s_,
    "index_exp": np.index_exp,
    "DataSource": np.lib.npyio.DataSource,
}
