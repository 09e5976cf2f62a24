"""Functions that make sparse matrices, or put them together."""

from __future__ import annotations

from typing import Any

import numpy as np

from cupyx import _extensions
from cupyx.scipy.sparse import _wire
from cupyx.scipy.sparse._base import SparseBase, issparse


def _operand(value: Any) -> Any:
    """Return an argument as the worker takes it: this machine's arrays and matrices are sent."""
    if _wire.is_of_scipy(value):
        kind = "array" if type(value).__name__.endswith("_array") else "matrix"
        form = value.format if value.format in _wire.FORMATS else "csr"
        return _wire.classes[form, kind == "array"](value)
    if isinstance(value, (list, tuple)) or (
        isinstance(value, np.ndarray) and value.dtype.hasobject
    ):
        items: Any = list(value)
        made = [_operand(item) for item in items]
        return tuple(made) if isinstance(value, tuple) else made
    if isinstance(value, (type, np.dtype)):
        return np.dtype(value)
    return _extensions.operand(value)


def _function(name: str, documentation: str) -> Any:
    def function(*args: Any, **kwargs: Any) -> Any:
        given = [_operand(arg) for arg in args]
        named = {key: _operand(value) for key, value in kwargs.items()}
        return _wire.ask(name, *given, **named)

    function.__name__ = function.__qualname__ = name
    function.__module__ = "cupyx.scipy.sparse"
    function.__doc__ = documentation
    return function


block_array = _function("block_array", "Return a sparse array of blocks.")
_block_diag = _function("block_diag", "Return a matrix with blocks on its diagonal.")
bmat = _function("bmat", "Return a sparse matrix of blocks.")
diags = _function("diags", "Return a sparse matrix with the given diagonals.")
diags_array = _function("diags_array", "Return a sparse array with the given diagonals.")
eye = _function("eye", "Return a sparse matrix with ones on a diagonal.")
eye_array = _function("eye_array", "Return a sparse array with ones on a diagonal.")
find = _function("find", "Return the rows, columns and values of the elements other than zero.")
hstack = _function("hstack", "Put sparse matrices side by side.")
identity = _function("identity", "Return the identity as a sparse matrix.")
kron = _function("kron", "Return the Kronecker product.")
kronsum = _function("kronsum", "Return the Kronecker sum.")
rand = _function("rand", "Return a sparse matrix of random numbers between 0 and 1.")
random_array = _function("random_array", "Return a sparse array of random numbers.")
spdiags = _function("spdiags", "Return a sparse matrix with the given diagonals.")
tril = _function("tril", "Return the elements at and below a diagonal.")
triu = _function("triu", "Return the elements at and above a diagonal.")
vstack = _function("vstack", "Put sparse matrices one above the other.")


def block_diag(mats: Any, format: Any = None, dtype: Any = None) -> Any:  # noqa: A002
    """Return a matrix with blocks on its diagonal; a tuple of numbers is a row."""
    blocks = [list(each) if isinstance(each, tuple) else each for each in mats]
    return _block_diag(blocks, format=format, dtype=dtype)


def random(
    m: int,
    n: int,
    density: float = 0.01,
    format: str = "coo",  # noqa: A002
    dtype: Any = None,
    random_state: Any = None,
    data_rvs: Any = None,
) -> Any:
    """Return a sparse matrix of random numbers."""
    if data_rvs is None:
        kind = None if dtype is None else np.dtype(dtype)
        if kind is not None and kind.char not in "fd":
            raise NotImplementedError(f"random numbers of {kind} are not supported")
        if hasattr(random_state, "bit_generator"):
            raise NotImplementedError("a Generator is not supported here: pass a seed")
        return _wire.ask("random", m, n, density, format, kind, random_state)
    made = random(m, n, density, "coo", dtype, random_state)
    made.data = data_rvs(made.nnz).astype(made.dtype, copy=False)
    return made.asformat(format)


def _need(A: Any) -> SparseBase:
    if not issparse(A):
        raise TypeError("a sparse array is needed")
    return A


def matrix_transpose(A: Any) -> Any:
    """Return the transpose of the last two axes."""
    return _need(A).mT


def swapaxes(A: Any, axis1: int, axis2: int) -> Any:
    """Return a matrix with two axes exchanged."""
    ndim = _need(A).ndim
    for axis in (axis1, axis2):
        if not -ndim <= axis < ndim:
            raise ValueError("Invalid axis")
    return A.copy() if axis1 % ndim == axis2 % ndim else A.transpose(copy=True)


def permute_dims(A: Any, axes: Any = None, copy: bool = False) -> Any:
    """Return a matrix with its axes in another order."""
    ndim = _need(A).ndim
    if axes is None:
        return A.transpose(copy=copy)
    order = tuple([axis.__index__() for axis in axes])
    if len(order) != ndim:
        raise ValueError("Incorrect number of axes")
    if not all(-ndim <= axis < ndim for axis in order):
        raise ValueError("Invalid axes")
    places = tuple([axis % ndim for axis in order])
    if len(set(places)) != ndim:
        raise ValueError("Repeated axes")
    if places == tuple(range(ndim)):
        return A.copy() if copy else A
    return A.transpose(copy=copy)
