"""Sparse matrices of the worker: how they are asked for, and how answers name them.

A matrix here is a handle with a format, a shape and a dtype; its elements are on the server. What
an operation gives is known when the worker has answered, except for products with dense arrays,
conversions and copies, which nothing waits for: their looks follow from the operands, and the
worker compares them.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from cupy._core import convert
from cupy._core.dispatch import make
from cupy._door import pool, state
from cupy._door.calls import Remote

DTYPES = "?fdFD"
"""Types of the elements of a sparse matrix: those of cuSPARSE, and truth values."""

_ELEMENTWISE = """
arcsin arcsinh arctan arctanh ceil deg2rad expm1 floor log1p rad2deg rint sign sin sinh sqrt tan
tanh trunc
"""
ELEMENTWISE = tuple(_ELEMENTWISE.split())
"""Functions of numbers that give zero for zero, which are methods of matrices."""

FORMATS = ("coo", "csc", "csr", "dia")
classes: dict[tuple[str, bool], Any] = {}
"""The classes by their format, and by whether they are arrays: their module imports this one."""


class Factors(Remote):
    """A factorisation on the server; see `cupyx.scipy.sparse.linalg.splu`."""

    shape: tuple[int, ...]

    def solve(self, rhs: Any, trans: str = "N") -> Any:
        """Return the solution of the system with these right-hand sides."""
        if not isinstance(rhs, make.classes.ndarray):
            raise TypeError("ojb must be cupy.ndarray")
        if rhs.shape[0] != self.shape[0]:
            raise ValueError(f"shape mismatch (self.shape: {self.shape}, rhs.shape: {rhs.shape})")
        if trans not in ("N", "T", "H"):
            raise ValueError("trans must be 'N', 'T', or 'H'")
        return ask("factors.solve", self, rhs, trans)


def _object(kind: Any, session: Any, handle: int) -> Any:
    made: Any = object.__new__(kind)
    made._gp_handle = handle
    made._gp_session = session
    made._gp_device = state.local.context[0]
    return made


def adopt(
    session: Any, handle: int, form: Any, is_array: Any, shape: Any, dtype: Any, cls: Any = None
) -> Any:
    """Return the matrix that an answer describes."""
    kind = classes[form, is_array] if cls is None else cls
    if not all(type(length) is int and length >= 0 for length in shape) or len(shape) > 2:
        raise ValueError("a sparse matrix of no shape")
    made = _object(kind, session, handle)
    made._shape = tuple(shape)
    made._dtype = np.dtype(dtype)
    if made._dtype.char not in DTYPES:
        raise ValueError(f"a sparse matrix of {made._dtype}")
    return made


def read(session: Any, value: Any) -> Any:
    """Return an answer with its matrices; several results are a tuple."""
    if not isinstance(value, (list, tuple)):
        return value
    items: list[Any] = list(value)
    mark = items[0] if items and isinstance(items[0], str) else ""
    if len(items) == 6 and mark == "sparse":
        return adopt(session, *items[1:])
    if len(items) == 3 and mark == "factors":
        made = _object(Factors, session, items[1])
        made.shape = tuple(items[2])
        return made
    return tuple([read(session, item) for item in items])


def ask(name: str, *args: Any, **kwargs: Any) -> Any:
    """Run an operation on sparse matrices, and wait for its result."""
    session = make.session_of(*args, *kwargs.values())
    return read(session, session.ask(f"sparse.{name}", args, kwargs))


def send(name: str, args: tuple[Any, ...], cls: Any, shape: Any, dtype: Any, **kwargs: Any) -> Any:
    """Run an operation that returns a matrix of known format and shape; nothing waits."""
    from cupy._door import wire

    session = make.session_of(*args)
    expected = (cls.format, cls.is_array, tuple(shape), np.dtype(dtype))
    kwargs["_expected"] = expected
    handle, _ = session.call(f"sparse.{name}", args, kwargs, wire.META_OBJECT)
    return adopt(session, handle, *expected, cls=cls)


def change(name: str, *args: Any) -> None:
    """Run an operation that changes a matrix in place; nothing waits."""
    make.session_of(*args).call(f"sparse.{name}", args, {})


def operand(value: Any) -> Any:
    """Return an operand as the worker takes it: arrays of the host among them are sent."""
    if isinstance(value, np.ndarray):
        return convert.array(value)
    if isinstance(value, (list, tuple)) and any(isinstance(each, np.ndarray) for each in value):
        return type(value)([operand(each) for each in value])
    return value


def session() -> Any:
    """Return the session of the current device."""
    return pool.current()


def scipy_sparse() -> Any:
    """Return `scipy.sparse` of this machine; RuntimeError if it has none."""
    try:
        return importlib.import_module("scipy.sparse")
    except ImportError:
        raise RuntimeError("scipy is not available") from None


def warning() -> Any:
    """Return the class of warnings about operations that are slow for sparse matrices."""
    return importlib.import_module("cupyx.scipy.sparse").SparseEfficiencyWarning


def is_of_scipy(value: Any) -> bool:
    """Say whether a value is a sparse matrix of this machine's SciPy."""
    return type(value).__module__.startswith("scipy.sparse") and hasattr(value, "tocsr")
