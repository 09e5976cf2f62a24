"""`fuse`: a function of arrays runs as it is, one operation after another.

CuPy makes one kernel of such a function, which is faster and computes the same. Here the worker
gets the operations one by one, and none of them waits.
"""

from __future__ import annotations

import functools
from typing import Any


class Fusion:
    """A function that was given to `fuse`."""

    def __init__(self, func: Any, name: str | None = None) -> None:
        self.func = func
        self.name = name or func.__name__
        functools.update_wrapper(self, func)

    def __repr__(self) -> str:
        return f"<Fusion name={self.name}>"

    def __call__(self, *args: Any) -> Any:
        """Call the function."""
        return self.func(*args)

    def clear_cache(self) -> None:
        """Do nothing: no kernel is kept."""


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
