"""Functions that need no device: helpers, and the table of all such functions."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from cupy._core.dispatch import make
from cupy._core.grids import GRIDS
from cupy._core.host_arrays import HOST_ARRAYS
from cupy._core.queries import QUERIES
from cupy._core.standard import STANDARD
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


_memos: list[dict[Any, Any]] = []


def clear_memo() -> None:
    """Clear the memos of all memoised functions."""
    for memo in _memos:
        memo.clear()


def fuse(*args: Any, **kwargs: Any) -> Any:
    """Return the function as it is: its calls are pipelined, which is where the time would go."""
    if len(args) == 1 and callable(args[0]) and not kwargs:
        return args[0]
    return lambda function: function


def show_config(*, _full: bool = False) -> None:
    """Print the servers and devices of the session."""
    import sys

    from cupy._door import pool

    lines = [f"{'gpupool drop-in':<28}: {pool.VERSION}", f"{'NumPy Version':<28}: {np.__version__}"]
    lines += [
        f"{f'Device {index} Name':<28}: {session.devices[index - session.first_device]['name']}"
        for index, session in enumerate(pool.devices())
    ]
    sys.stdout.write("\n".join(lines) + "\n")


HOST: dict[str, Any] = {
    **make.public(globals()),
    **HOST_ARRAYS,
    **QUERIES,
    **GRIDS,
    **STANDARD,
    "base_repr": np.base_repr,
    "binary_repr": np.binary_repr,
    "format_float_positional": np.format_float_positional,
    "format_float_scientific": np.format_float_scientific,
    "s_": np.s_,
    "index_exp": np.index_exp,
}
