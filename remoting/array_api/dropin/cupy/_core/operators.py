"""Operators of arrays: the hot paths to ufuncs, and CuPy's rules of deferral."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from cupy._core import products
from cupy._core.dispatch import make
from cupy._core.ufunc import UFUNCS, ufunc
from cupy._door.arrays import Array

if TYPE_CHECKING:
    from cupy._core.array import ndarray

Operator = Callable[[Any, Any], "ndarray"]
_MISSING = object()
_NEGATIVE = UFUNCS["negative"]


def should_defer(x: object, y: object) -> bool:
    """Say whether ``x`` leaves the operation to ``y``: NEP 13, then ``__array_priority__``."""
    other = getattr(y, "__array_ufunc__", _MISSING)
    if other is not _MISSING:
        return other is None
    return getattr(x, "__array_priority__", 0) < getattr(y, "__array_priority__", 0)


def _binary(name: str, with_host: Operator) -> Operator:
    """Make an operator; ``with_host`` computes with an operand that is no device array."""
    function = UFUNCS[name]

    def operator(self: object, other: object) -> Any:
        kind = type(other)
        if kind is type(self):
            return function.pair(self, other)
        if kind is float or kind is int:
            return function.right(self, other)
        if isinstance(other, Array) or hasattr(other, "__cupy_get_ndarray__"):
            return function(self, other)
        if should_defer(self, other):
            return NotImplemented
        return with_host(self, other)

    return operator


def _reflected(name: str) -> Operator:
    function = UFUNCS[name]
    numpy_function = getattr(np, name)

    def operator(self: object, other: object) -> Any:
        kind = type(other)
        if kind is float or kind is int:
            return function.left(other, self)
        if should_defer(self, other):
            return NotImplemented
        return numpy_function(other, self)

    return operator


def _in_place(name: str) -> Operator:
    function = UFUNCS[name]

    def operator(self: object, other: object) -> Any:
        kind = type(other)
        if kind is float or kind is type(self):
            return function.into(self, other)
        return function(self, other, self)

    return operator


def _arithmetic(name: str) -> tuple[Operator, Operator, Operator]:
    """Return an operator, its form for an array on the right, and the one in place."""
    return _binary(name, getattr(np, name)), _reflected(name), _in_place(name)


def _comparison(name: str) -> Operator:
    numpy_function = getattr(np, name)

    def with_host(self: ndarray, other: object) -> Any:
        kind = type(other)
        if isinstance(other, np.ndarray) and other.ndim == 0:
            other = other.item()
        # Objects that only know identity can never equal an element.
        if name == "equal" and (kind.__eq__ is object.__eq__ or other is None):
            return make.full(self.shape, False, np.bool_)
        if name == "not_equal" and (
            (kind.__eq__ is object.__eq__ and kind.__ne__ is object.__ne__) or other is None
        ):
            return make.full(self.shape, True, np.bool_)
        return numpy_function(self, other)

    return _binary(name, with_host)


class Operators:
    """Arithmetic, comparisons and their in-place forms."""

    __slots__ = ()
    __hash__: Any = None
    __array_priority__ = 100

    __lt__ = _comparison("less")
    __le__ = _comparison("less_equal")
    __gt__ = _comparison("greater")
    __ge__ = _comparison("greater_equal")
    __eq__: Any = _comparison("equal")
    __ne__: Any = _comparison("not_equal")

    __add__, __radd__, __iadd__ = _arithmetic("add")
    __sub__, __rsub__, __isub__ = _arithmetic("subtract")
    __mul__, __rmul__, __imul__ = _arithmetic("multiply")
    __truediv__, __rtruediv__, __itruediv__ = _arithmetic("true_divide")
    __floordiv__, __rfloordiv__, __ifloordiv__ = _arithmetic("floor_divide")
    __mod__, __rmod__, __imod__ = _arithmetic("remainder")
    __lshift__, __rlshift__, __ilshift__ = _arithmetic("left_shift")
    __rshift__, __rrshift__, __irshift__ = _arithmetic("right_shift")
    __and__, __rand__, __iand__ = _arithmetic("bitwise_and")
    __or__, __ror__, __ior__ = _arithmetic("bitwise_or")
    __xor__, __rxor__, __ixor__ = _arithmetic("bitwise_xor")
    _gp_power, __rpow__, __ipow__ = _arithmetic("power")

    def __pow__(self, other: object, _modulo: object = None) -> Any:
        function, cast = _short_power(self, other)
        if function is not None:
            return function(self) if cast is None else function(self, dtype=cast)
        return self._gp_power(other)

    def __divmod__(self, other: object) -> Any:
        if should_defer(self, other):
            return NotImplemented
        return UFUNCS["divmod"](self, other)

    def __rdivmod__(self, other: object) -> Any:
        if should_defer(self, other):
            return NotImplemented
        return UFUNCS["divmod"](other, self)

    def __matmul__(self, other: object) -> Any:
        if isinstance(other, Array):
            return products.operator(self, other)
        if should_defer(self, other):
            return NotImplemented
        return np.matmul(self, other)  # type: ignore[arg-type]

    def __rmatmul__(self, other: object) -> Any:
        if should_defer(self, other):
            return NotImplemented
        return np.matmul(other, self)  # type: ignore[arg-type]

    def __neg__(self) -> ndarray:
        return _NEGATIVE(self)

    def __pos__(self: Any) -> ndarray:
        if self.dtype == np.bool_:
            warnings.warn(
                "Applying '+' to a non-numerical array is ill-defined. Returning a copy, but in "
                "the future this will error.",
                DeprecationWarning,
                stacklevel=2,
            )
            return self.copy()
        return UFUNCS["positive"](self)

    def __abs__(self) -> ndarray:
        return UFUNCS["absolute"](self)

    def __invert__(self) -> ndarray:
        return UFUNCS["invert"](self)


def _short_power(x: Any, y: Any) -> tuple[ufunc | None, np.dtype | None]:
    """Return the cheaper function that CuPy 14.2 takes for some exponents, and its dtype."""
    kind = type(y)
    if kind is int and y == 2:
        cast = (
            None
            if x.dtype.kind in "ifc"
            else np.result_type(x.dtype, np.int8 if x.dtype.kind == "b" else x.dtype)
        )
        return UFUNCS["square"], (np.dtype(np.int64) if x.dtype.kind == "b" else cast)
    if kind is float:
        name = {0.5: "sqrt", 2.0: "square", -1.0: "reciprocal"}.get(y)
        if name is not None:
            cast = None if x.dtype.kind in "fc" else np.dtype(np.float64)
            return UFUNCS[name], cast
    return None, None
