"""Linear operators on vectors, made of matrices or of a program's own functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import cupy as _cupy
import numpy as np

from cupyx.scipy.sparse._matrices import is_dense, is_number, issparse

_Function = Callable[[Any], Any]
_KINDS = ("matvec", "rmatvec", "matmat", "rmatmat")
"""Products with a vector or a matrix, and those of the adjoint."""


def _product_of(kind: str) -> Any:
    """Return the method of a kind of product, which checks and gives back the operand's form."""
    is_vector = kind.endswith("vec")

    def method(self: LinearOperator, x: Any) -> Any:
        rows, columns = self.shape[::-1] if kind[0] == "r" else self.shape
        if not is_vector and x.ndim != 2:
            raise ValueError(f"expected 2-d ndarray or matrix, not {x.ndim}-d")
        if x.shape not in ((columns,), (columns, 1)) if is_vector else x.shape[0] != columns:
            raise ValueError(f"dimension mismatch: {self.shape!r}, {x.shape!r}")
        made = getattr(self, f"_{kind}")(x)
        return made.reshape((rows, 1)[: x.ndim]) if is_vector else made

    method.__name__ = kind
    method.__doc__ = f"Return the product; see `scipy.sparse.linalg.LinearOperator.{kind}`."
    return method


class LinearOperator:
    """A matrix that is known by its products; see `scipy.sparse.linalg.LinearOperator`."""

    ndim = 2
    __array_priority__ = 100

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make an operator of functions, or one of a class that a program derived."""
        del args, kwargs
        if cls is LinearOperator:
            return object.__new__(_Functions)  # whose __init__ Python calls next
        if cls._matvec is LinearOperator._matvec and cls._matmat is LinearOperator._matmat:
            raise TypeError("a LinearOperator has at least one of _matvec and _matmat")
        return object.__new__(cls)

    def __init__(self, dtype: Any, shape: Any) -> None:
        self.dtype = None if dtype is None else np.dtype(dtype)
        self.shape = tuple([length.__index__() for length in shape])
        if len(self.shape) != 2:
            raise ValueError(f"invalid shape {shape!r} (must be 2-d)")

    # --- what a program's class gives ------------------------------------------------------------

    def _matvec(self, x: Any) -> Any:
        return self.matmat(x.reshape(-1, 1))

    def _matmat(self, X: Any) -> Any:
        return _cupy.hstack([self.matvec(column.reshape(-1, 1)) for column in X.T])

    def _rmatvec(self, x: Any) -> Any:
        if type(self)._adjoint is LinearOperator._adjoint:
            raise NotImplementedError("rmatvec is not defined")
        return self.H.matvec(x)

    def _rmatmat(self, X: Any) -> Any:
        if type(self)._adjoint is not LinearOperator._adjoint:
            return self.H.matmat(X)
        return _cupy.hstack([self.rmatvec(column.reshape(-1, 1)) for column in X.T])

    def _swapped(self, turned: Callable[[_Function], _Function]) -> Any:
        functions = (self._rmatvec, self._matvec, self._rmatmat, self._matmat)
        return _made(self.shape[::-1], self.dtype, *map(turned, functions))

    def _adjoint(self) -> Any:
        return self._swapped(lambda function: function)

    def _transpose(self) -> Any:
        return self._swapped(lambda function: lambda x: function(x.conj()).conj())

    # --- products -------------------------------------------------------------------------------

    matvec, rmatvec, matmat, rmatmat = map(_product_of, _KINDS)

    def dot(self, x: Any) -> Any:
        """Return the product with a number, a vector, a matrix or another operator."""
        if isinstance(x, LinearOperator):
            return _product(self, x)
        if is_number(x):
            return _scaled(self, x)
        if x.ndim == 1 or (x.ndim == 2 and x.shape[1] == 1):
            return self.matvec(x)
        if x.ndim == 2:
            return self.matmat(x)
        raise ValueError(f"expected 1-d or 2-d array, got {x.ndim}-d")

    __call__ = __mul__ = dot

    def __rmul__(self, x: Any) -> Any:
        return _scaled(self, x) if is_number(x) else NotImplemented

    def __matmul__(self, other: Any) -> Any:
        if is_number(other):
            raise ValueError("Scalar operands are not allowed, use '*' instead")
        return self.dot(other)

    def __rmatmul__(self, other: Any) -> Any:
        if is_number(other):
            raise ValueError("Scalar operands are not allowed, use '*' instead")
        return NotImplemented

    def __pow__(self, p: Any) -> Any:
        if self.shape[0] != self.shape[1] or not isinstance(p, (int, np.integer)) or p < 0:
            raise ValueError("a power is of a square operator, and not below 0")
        return functools.reduce(_product, [self] * int(p), identity(self))

    def __add__(self, x: Any) -> Any:
        return _sum(self, x) if isinstance(x, LinearOperator) else NotImplemented

    def __neg__(self) -> Any:
        return _scaled(self, -1)

    def __sub__(self, x: Any) -> Any:
        return self + (-x)

    def __repr__(self) -> str:
        kind = "unspecified dtype" if self.dtype is None else f"dtype={self.dtype}"
        return f"<{self.shape[0]}x{self.shape[1]} {type(self).__name__} with {kind}>"

    def adjoint(self) -> Any:
        """Return the adjoint."""
        return self._adjoint()

    def transpose(self) -> Any:
        """Return the transpose."""
        return self._transpose()

    H = property(adjoint)
    T = property(transpose)


class _Functions(LinearOperator):
    """An operator of a program's functions."""

    def __init__(
        self,
        shape: Any,
        matvec: _Function,
        rmatvec: Any = None,
        matmat: Any = None,
        dtype: Any = None,
        rmatmat: Any = None,
    ) -> None:
        super().__init__(dtype, shape)
        for kind, function in zip(_KINDS, (matvec, rmatvec, matmat, rmatmat)):
            if function is not None:
                setattr(self, f"_{kind}", function)
        if self.dtype is None:
            self.dtype = self.matvec(_cupy.zeros(self.shape[1])).dtype

    def _matvec(self, x: Any) -> Any:
        raise NotImplementedError("matvec is not defined")


def _made(shape: Any, dtype: Any, vec: Any, rvec: Any, mat: Any, rmat: Any) -> Any:
    return LinearOperator(shape, vec, rvec, mat, dtype, rmat)


def _of(shape: Any, dtype: Any, function: Any) -> Any:
    """Return an operator of a function of the kind of a product and its operand."""
    return _made(shape, dtype, *[functools.partial(function, kind) for kind in _KINDS])


def _result_type(*values: Any) -> Any:
    kinds = [value.dtype if hasattr(value, "dtype") else np.dtype(type(value)) for value in values]
    return np.result_type(*kinds)


def _product(a: Any, b: Any) -> Any:
    if a.shape[1] != b.shape[0]:
        raise ValueError(f"cannot multiply {a!r} and {b!r}: shape mismatch")

    def both(kind: str, x: Any) -> Any:
        first, second = (a, b) if kind[0] == "r" else (b, a)
        return getattr(second, kind)(getattr(first, kind)(x))

    return _of((a.shape[0], b.shape[1]), _result_type(a, b), both)


def _sum(a: Any, b: Any) -> Any:
    if a.shape != b.shape:
        raise ValueError(f"cannot add {a!r} and {b!r}: shape mismatch")
    dtype = _result_type(a, b)
    return _of(a.shape, dtype, lambda kind, x: getattr(a, kind)(x) + getattr(b, kind)(x))


def _scaled(a: Any, by: Any) -> Any:
    other = np.conj(by) if isinstance(by, (complex, np.complexfloating)) else by

    def scaled(kind: str, x: Any) -> Any:
        return (other if kind[0] == "r" else by) * getattr(a, kind)(x)

    return _of(a.shape, _result_type(a, by), scaled)


def identity(like: LinearOperator) -> Any:
    """Return an operator that returns its operand, of the looks of another one."""
    return _of(like.shape, like.dtype, lambda kind, x: x)


def aslinearoperator(A: Any) -> Any:
    """Return a matrix, or an object with ``shape`` and ``matvec``, as an operator."""
    if isinstance(A, LinearOperator):
        return A
    if issparse(A) or is_dense(A):
        if A.ndim > 2:
            raise ValueError("array must have ndim <= 2")
        matrix = _cupy.atleast_2d(A) if is_dense(A) else A
        adjoint = functools.cache(lambda: matrix.T.conj())
        return _of(
            matrix.shape,
            matrix.dtype,
            lambda kind, x: (adjoint() if kind[0] == "r" else matrix).dot(x),
        )
    if hasattr(A, "shape") and hasattr(A, "matvec"):
        named = {name: getattr(A, name, None) for name in ("rmatvec", "matmat", "rmatmat", "dtype")}
        return LinearOperator(A.shape, A.matvec, **named)
    raise TypeError("type not understood")
