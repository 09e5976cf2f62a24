"""`fuse`: a function of arrays runs as it is, and its calls travel as one group.

The worker's CuPy makes one kernel of what works element by element in a group. The function is
called each time, where CuPy calls it once for each combination of types. As in CuPy, it must not
look at an element of a device's array: a branch would be taken once for all calls there.
"""

from __future__ import annotations

import functools
from typing import Any

from cupy._core.dispatch.arguments import is_array
from cupy._door import state


class Fusion:
    """A function that was given to `fuse`."""

    def __init__(self, func: Any, name: str | None = None) -> None:
        self.func = func
        self.name = name or func.__name__
        functools.update_wrapper(self, func)

    def __repr__(self) -> str:
        return f"<Fusion name={self.name}>"

    def __call__(self, *args: Any) -> Any:
        """Call the function.

        Raises:
            TypeError: it makes a Python number of a device's array, to branch by it for example.
        """
        if state.local.fuses or not any(is_array(arg) for arg in args):
            return self.func(*args)
        session = next(arg for arg in args if is_array(arg))._gp_session
        state.local.fuses = True
        try:
            if not session.takes_groups:  # a server of an older version
                return self.func(*args)
            with session.group():
                return self.func(*args)
        finally:
            state.local.fuses = False

    def clear_cache(self) -> None:
        """Do nothing: the kernels are the worker's."""


def fuse(*args: Any, **kwargs: Any) -> Any:
    """Return a function that may be fused; a decorator, with or without ``kernel_name``."""
    name = kwargs.pop("kernel_name", None)
    if kwargs:
        raise TypeError(f"fuse() got an unexpected keyword argument {next(iter(kwargs))!r}")
    if len(args) == 1 and callable(args[0]) and name is None:
        return Fusion(args[0])
    if args:
        raise TypeError("fuse() takes a function, or kernel_name by keyword")
    return lambda func: Fusion(func, name)


FUSION: dict[str, Any] = {"fuse": fuse}
