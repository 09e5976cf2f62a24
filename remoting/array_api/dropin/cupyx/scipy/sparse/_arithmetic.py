"""Arithmetic, comparison and reductions of sparse matrices."""

from __future__ import annotations

import warnings
from operator import index
from typing import Any

import numpy as np
from cupy._core import convert
from cupy._core.dispatch import make
from cupy._door.meta import fresh

from cupyx.scipy.sparse import _wire

_NUMBERS = (bool, int, float, complex, np.generic)


def is_dense(value: Any) -> bool:
    """Say whether a value is an array on a device."""
    return isinstance(value, make.classes.ndarray)


def is_number(value: Any) -> bool:
    """Say whether a value is a number, or an array without axes."""
    return isinstance(value, _NUMBERS) or (is_dense(value) and value.ndim == 0)


class Arithmetic:
    """Arithmetic of all sparse matrices and arrays: each method is one operation of the worker."""

    _shape: tuple[int, ...]
    _dtype: np.dtype[Any]

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self._shape)

    def _take(self, other: Any) -> None:
        """Become another matrix, which is then of no use."""
        raise NotImplementedError

    # --- arithmetic -----------------------------------------------------------------------------

    def _operator(self, name: str, *args: Any) -> Any:
        for arg in args:
            known = is_number(arg) or is_dense(arg) or isinstance(arg, Arithmetic)
            if not known and not isinstance(arg, np.ndarray):
                return NotImplemented
        return _wire.ask(f"operator.{name}", *[_wire.operand(arg) for arg in args])

    def __abs__(self) -> Any:
        return _wire.ask("operator.abs", self)

    def __neg__(self) -> Any:
        if self._dtype.kind == "b":
            raise NotImplementedError("negating a boolean sparse array is not supported")
        return _wire.ask("operator.neg", self)

    def __round__(self: Any, ndigits: int = 0) -> Any:
        made = self.copy()
        made.data = made.data.round(ndigits)
        return made

    def __add__(self, other: Any) -> Any:
        return self._operator("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return self._operator("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return self._operator("sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return self._operator("sub", other, self)

    def __mul__(self, other: Any) -> Any:
        return self._operator("mul", self, other)

    def __rmul__(self, other: Any) -> Any:
        return self._operator("mul", other, self)

    def __truediv__(self, other: Any) -> Any:
        return self._operator("truediv", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return NotImplemented

    def __pow__(self, other: Any) -> Any:
        if isinstance(other, (list, tuple)):
            raise ValueError("the exponent of a sparse matrix is a number")
        return self._operator("pow", self, other)

    def __matmul__(self, other: Any) -> Any:
        if is_number(other):
            raise ValueError("Scalar operands are not allowed, use '*' instead")
        return self._product(other)

    def __rmatmul__(self, other: Any) -> Any:
        if is_number(other):
            raise ValueError("Scalar operands are not allowed, use '*' instead")
        return self._product_left(other)

    def _product(self, other: Any) -> Any:
        """Return a product; nothing waits for one with a dense array."""
        if is_dense(other) and other.ndim in (1, 2) and self.ndim == 2:
            if other.shape[0] != self._shape[1]:
                raise ValueError("dimension mismatch")
            kind = np.promote_types(self._dtype, other.dtype)
            if self._dtype.kind != "b" and kind.char in "fdFD":
                shape = (self._shape[0], *other.shape[1:])
                meta = fresh(kind, shape, "F" if other.ndim == 2 else "C")
                return make.forward("sparse.product", (self, other), {}, meta)
        return self._operator("matmul", self, other)

    def _product_left(self, other: Any) -> Any:
        if is_dense(other) and other.ndim in (1, 2) and self.ndim == 2:
            if other.shape[-1] != self._shape[0]:
                raise ValueError("dimension mismatch")
            kind = np.promote_types(self._dtype, other.dtype)
            if self._dtype.kind != "b" and kind.char in "fdFD":
                meta = fresh(kind, (*other.shape[:-1], self._shape[1]))
                return make.forward("sparse.product_left", (other, self), {}, meta)
        return self._operator("matmul", other, self)

    def __iadd__(self, other: Any) -> Any:
        return NotImplemented

    def __isub__(self, other: Any) -> Any:
        return NotImplemented

    def _scale(self: Any, other: Any, name: str) -> Any:
        if not is_number(other):
            return NotImplemented
        # Truth values times a number become float64, because cuSPARSE has no integers.
        kind = np.result_type(self.dtype, other if name == "mul" else 1.0)
        source = self if kind.char in _wire.DTYPES else self.astype(np.float64)
        self._take(self._operator(name, source, other))
        return self

    def __imul__(self, other: Any) -> Any:
        return self._scale(other, "mul")

    def __itruediv__(self, other: Any) -> Any:
        return self._scale(other, "truediv")

    def dot(self, other: Any) -> Any:
        """Return the product with a number, an array or another matrix."""
        return self * other if np.isscalar(other) else self @ other

    def multiply(self, other: Any) -> Any:
        """Return the product element by element."""
        return _wire.ask("multiply", self, _wire.operand(other))

    def power(self, n: Any, dtype: Any = None) -> Any:
        """Return the power element by element."""
        if not is_number(n):
            raise NotImplementedError("input is not scalar")
        if n == 0:
            raise NotImplementedError(
                "zero power is not supported as it would densify the matrix.\n"
                "Use cupy.ones(A.shape, dtype=A.dtype) for this case."
            )
        return _wire.ask("power", self, n, **({} if dtype is None else {"dtype": np.dtype(dtype)}))

    def maximum(self, other: Any) -> Any:
        """Return the larger elements."""
        return _wire.ask("maximum", self, _wire.operand(other))

    def minimum(self, other: Any) -> Any:
        """Return the smaller elements."""
        return _wire.ask("minimum", self, _wire.operand(other))

    # --- comparison -----------------------------------------------------------------------------

    def __eq__(self, other: object) -> Any:
        return self._compare("eq", other)

    def __ne__(self, other: object) -> Any:
        return self._compare("ne", other)

    def __lt__(self, other: Any) -> Any:
        return self._compare("lt", other)

    def __le__(self, other: Any) -> Any:
        return self._compare("le", other)

    def __gt__(self, other: Any) -> Any:
        return self._compare("gt", other)

    def __ge__(self, other: Any) -> Any:
        return self._compare("ge", other)

    __hash__ = None  # type: ignore[assignment]

    def _compare(self, name: str, other: Any) -> Any:
        found = self._operator(name, self, other)
        if found is NotImplemented:
            raise NotImplementedError
        if isinstance(other, Arithmetic) and name in ("eq", "le", "ge"):
            warnings.warn(
                "Comparing sparse matrices using ==, <=, and >= is inefficient, "
                "try using !=, <, or > instead.",
                _wire.warning(),
                3,
            )
        return found

    # --- reductions -----------------------------------------------------------------------------

    def _reduce(self, name: str, axis: Any, out: Any, **kwargs: Any) -> Any:
        given = {key: value for key, value in kwargs.items() if value is not None}
        if axis is not None:
            given["axis"] = axis if isinstance(axis, tuple) else index(axis)
        found = _wire.ask(name, self, **given)
        if out is None:
            return found
        if out.shape != found.shape:
            raise ValueError("dimensions do not match")
        out[...] = found
        return out

    def sum(self, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        """Return the sum of all elements, or along an axis."""
        return self._reduce("sum", axis, out, dtype=None if dtype is None else np.dtype(dtype))

    def mean(self, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        """Return the mean of all elements, or along an axis."""
        return self._reduce("mean", axis, out, dtype=None if dtype is None else np.dtype(dtype))

    def diagonal(self, k: int = 0) -> Any:
        """Return the elements of a diagonal."""
        return _wire.ask("diagonal", self, k=k)

    def trace(self, offset: int = 0) -> Any:
        """Return the sum of a diagonal."""
        return self.diagonal(k=offset).sum()

    def count_nonzero(self, axis: Any = None) -> Any:
        """Return how many elements are not zero."""
        found = _wire.ask("count_nonzero", self, **({} if axis is None else {"axis": axis}))
        return int(found) if axis is None else found

    def nonzero(self) -> Any:
        """Return the places of the elements that are not zero."""
        return _wire.ask("nonzero", self)

    def setdiag(self, values: Any, k: int = 0) -> None:
        """Set the elements of a diagonal."""
        if isinstance(values, (list, tuple, np.ndarray)):
            values = convert.array(values, dtype=self._dtype)
        if is_dense(values) and values.ndim > 1:
            raise ValueError("values must be 0-d or 1-d")
        _wire.ask("setdiag", self, values, k=k)
