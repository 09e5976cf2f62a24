"""Polynomials, composed of array operations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cupy._core import convert, learned
from cupy._core.creation import zeros
from cupy._core.dispatch import arguments
from cupy._core.joining import atleast_1d, concatenate

if TYPE_CHECKING:
    from cupy._core.array import ndarray


def _padded(a: ndarray, size: int) -> ndarray:
    if a.size == size:
        return a
    return concatenate([zeros(size - a.size, a.dtype), a])


def _computed(name: str) -> Any:
    """Make a function of polynomials: of `poly1d` if one of its arguments is one."""
    row = getattr(learned, name)

    def function(a1: object, a2: object) -> Any:
        made = row(a1, a2)
        return poly1d(made) if any(isinstance(each, poly1d) for each in (a1, a2)) else made

    function.__name__ = function.__qualname__ = name
    return function


polyadd, polymul, polysub = _computed("polyadd"), _computed("polymul"), _computed("polysub")


def polyval(p: Any, x: Any) -> Any:
    """Evaluate a polynomial, by Horner's rule."""
    series = arguments.need(p.coeffs if isinstance(p, poly1d) else p, "p")
    if series.ndim != 1:
        raise (ValueError if series.ndim else TypeError)("p must be 1d array")
    if isinstance(x, poly1d):
        # A number of Python leaves the type of these coefficients as it is.
        total = poly1d(convert.array([0], np.result_type(x.coeffs.dtype.type(0), 1)))
        for at in range(series.size):
            total = polyadd(polymul(total, x), poly1d(series[at : at + 1]))
        return total
    return learned.polyval(series, x)


def _operator(function: Any, *, swapped: bool = False) -> Any:
    def apply(self: Any, other: Any) -> Any:
        return poly1d(function(other, self) if swapped else function(self, other))

    return apply


class poly1d:
    """A polynomial in one variable; see `numpy.poly1d`."""

    __hash__ = None  # type: ignore[assignment]
    __array_ufunc__ = None

    def __init__(self, c_or_r: Any, r: bool = False, variable: str | None = None) -> None:
        if hasattr(c_or_r, "coeffs"):
            coefficients = c_or_r.coeffs
            self._variable = c_or_r.variable if variable is None else variable
            self._coeffs = convert.asarray(coefficients)
            return
        array = convert.asarray(c_or_r)
        if r:
            array = learned.poly(array)
        array = atleast_1d(array)
        if array.ndim > 1:
            raise ValueError("Polynomial must be 1d only.")
        array = learned.trim_zeros(array, "f")
        self._coeffs = array if array.size else convert.array([0], dtype=array.dtype)
        self._variable = "x" if variable is None else variable

    @property
    def coeffs(self) -> ndarray:
        """Coefficients, the highest power first."""
        return self._coeffs

    @coeffs.setter
    def coeffs(self, value: object) -> None:
        if value is not self._coeffs:
            raise AttributeError("Cannot set attribute")

    c = coef = coefficients = coeffs

    @property
    def variable(self) -> str:
        """Name of the variable."""
        return self._variable

    @property
    def order(self) -> int:
        """Highest power."""
        return self._coeffs.size - 1

    o = order

    @property
    def roots(self) -> ndarray:
        """Zeros of the polynomial."""
        return learned.roots(self._coeffs)

    r = roots

    def __cupy_get_ndarray__(self) -> ndarray:
        return self._coeffs

    def get(self, stream: object = None, out: Any = None) -> np.poly1d:
        """Return the polynomial on the host."""
        if out is not None:
            self._coeffs.get(out=out.coeffs)
            return out
        return np.poly1d(self._coeffs.get(stream), variable=self._variable)

    def set(self, polyin: np.poly1d, stream: object = None) -> None:
        """Take over a polynomial of the host."""
        given: Any = polyin
        if not isinstance(given, np.poly1d):
            raise TypeError("Only numpy.poly1d can be set to cupy.poly1d")
        self._variable = polyin.variable
        self._coeffs.set(polyin.coeffs, stream)

    def __repr__(self) -> str:
        return f"poly1d({repr(self._coeffs)[6:-1]})"

    def __str__(self) -> str:
        return str(self.get())

    def __len__(self) -> int:
        return self.order

    def __call__(self, value: object) -> Any:
        return polyval(self, value)

    def __neg__(self) -> poly1d:
        return poly1d(-self._coeffs)

    def __pos__(self) -> poly1d:
        return self

    __add__, __radd__ = _operator(polyadd), _operator(polyadd, swapped=True)
    __sub__, __rsub__ = _operator(polysub), _operator(polysub, swapped=True)

    def __mul__(self, other: object) -> Any:
        if arguments.is_scalar(other):
            return poly1d(self._coeffs * other)
        return poly1d(polymul(self, other))

    __rmul__ = __mul__

    def __truediv__(self, other: object) -> Any:
        if not arguments.is_scalar(other):
            raise NotImplementedError("division of polynomials is not supported")
        return poly1d(self._coeffs / other)

    def __pow__(self, exponent: int) -> Any:
        if not arguments.is_scalar(exponent) or int(exponent) != exponent or exponent < 0:
            raise ValueError("Power to non-negative integers only.")
        if isinstance(exponent, (float, np.floating)):
            raise TypeError("Power must be an integer.")
        made = poly1d(convert.array([1]))
        for _ in range(int(exponent)):
            made = poly1d(polymul(made, self))
        return made

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, poly1d):
            raise NotImplementedError
        return self._coeffs.shape == other._coeffs.shape and bool(
            (self._coeffs == other._coeffs).all()
        )

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __getitem__(self, power: int) -> ndarray:
        if 0 <= power <= self.order:
            return self._coeffs[self.order - power]
        return convert.array(0, dtype=self._coeffs.dtype)

    def __setitem__(self, power: int, value: object) -> None:
        if power < 0:
            raise ValueError("Negative powers are not supported.")
        if power > self.order:
            self._coeffs = _padded(self._coeffs, power + 1)
        self._coeffs[self.order - power] = value

    def __iter__(self) -> Any:
        return iter(self._coeffs)


POLY = {each.__name__: each for each in (poly1d, polyadd, polymul, polysub, polyval)}
