"""Ufuncs of an emulated device where a kernel of CuPy gives another result than NumPy's loop.

A program that is tested here must see what it will see on a GPU, so these follow CuPy's formulas
at the points where the two differ. Each takes the arguments of the ufunc of its name, of which the
operands are arrays in the types of the loop.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

from collections.abc import Callable
from typing import Any

import numpy as np

from gpupool.remoting.devices.conventions.conversions import converted, fitted

Array = np.ndarray[Any, Any]


def _amend(made: Any, values: Any, places: Any, kwargs: dict[str, Any]) -> Array:
    """Return a result with other values at some places; it is new, or the call's `out`."""
    places = places & kwargs.get("where", True)
    values = np.asarray(values).astype(made.dtype)
    if not isinstance(made, np.ndarray):
        return np.where(places, values, made)
    np.copyto(made, values, where=places)  # in place, so that its strides stay
    return made


def _power(x: Array, y: Array, **kwargs: Any) -> Array:
    """Return powers; negative ones of integers are 0, or those of 1 and -1."""
    if x.dtype.kind not in "biu" or not np.any(y < 0):
        return np.power(x, y, **kwargs)
    places = y < 0  # asked first: the result may go into one of the operands
    below = np.where(x == 1, 1, np.where(x == -1, np.where(y % 2, x, 1), 0))
    return _amend(np.power(x, np.maximum(y, 0), **kwargs), below, places, kwargs)


def _is_float(x: Array) -> bool:
    return x.dtype.kind == "f"


def _floor_divide(x: Array, y: Array, **kwargs: Any) -> Array:
    """Return the floor of the quotient, also of infinite numbers, of which NumPy's is NaN."""
    if not _is_float(x):
        return np.floor_divide(x, y, **kwargs)
    return np.floor(np.divide(x, y), **kwargs)


_WIDER: dict[str, type[np.floating]] = {"e": np.float32, "f": np.float64, "d": np.longdouble}


def _remainder(x: Array, y: Array, **kwargs: Any) -> Array:
    """Return ``x - floor(x / y) * y``, rounded once; it is NaN if `y` is infinite."""
    if not _is_float(x):
        return np.remainder(x, y, **kwargs)
    wide, whole = _WIDER[x.dtype.char], np.floor(np.divide(x, y))
    return np.positive((x.astype(wide) - whole * y.astype(wide)).astype(x.dtype), **kwargs)


def _divmod(x: Array, y: Array, **kwargs: Any) -> object:
    """Return both; outputs come as a pair."""
    outs = kwargs.pop("out", (None, None))
    rest = _remainder(x, y)  # first: the floor may go into one of the operands
    whole = _floor_divide(x, y, out=outs[0], **kwargs)
    return whole, np.positive(rest, out=outs[1], **kwargs)


def _fmod(x: Array, y: Array, **kwargs: Any) -> Array:
    """Return the remainder; that of 64 bits is computed in float64."""
    if x.dtype.char not in "qQlL":
        return np.fmod(x, y, **kwargs)
    made = fitted(np.fmod(x.astype(float), np.where(y == 0, 1, y).astype(float)), x.dtype)
    return np.positive(made.astype(x.dtype), **kwargs)


def _shift(name: str) -> Callable[..., object]:
    """Return a shift by the lower 32 bits of a number."""
    function = getattr(np, name)
    low = 0xFFFFFFFF

    def call(x: Array, y: Array, **kwargs: object) -> object:
        return function(x, y & low if y.dtype.itemsize == 8 else y, **kwargs)

    return call


def _extreme(name: str) -> Callable[..., object]:
    """Return an extreme of pairs, of which 0 is more than -0."""
    function = getattr(np, name)

    def call(x: Array, y: Array, **kwargs: object) -> object:
        if not _is_float(x):
            return function(x, y, **kwargs)
        places = (x == 0) & (y == 0)
        values = x + y if "max" in name else -(-x - y)
        return _amend(function(x, y, **kwargs), values, places, kwargs)

    return call


def _lcm(x: Array, y: Array, **kwargs: Any) -> Array:
    """Return a multiple that is not negative, also where it does not fit."""
    return np.absolute(np.lcm(x, y), **kwargs)


def _reciprocal(x: Any, **kwargs: Any) -> Array:
    """Return one divided by the number; that of the whole number 0 is 0."""
    zero = (x == 0) & (x.dtype.kind in "iu")
    return _amend(np.reciprocal(x, **kwargs), 0, zero, kwargs)


def _expm1(x: Array, **kwargs: Any) -> Array:
    """Return ``exp(x) - 1``; so it is computed for complex numbers, also for infinite ones."""
    if x.dtype.kind != "c":
        return np.expm1(x, **kwargs)
    return np.subtract(np.exp(x), 1, **kwargs)


ARITHMETIC: dict[str, Callable[..., object]] = {
    **{name: _extreme(name) for name in ("fmax", "fmin", "maximum", "minimum")},
    **{name: _shift(name) for name in ("left_shift", "right_shift")},
    "divmod": _divmod,
    "expm1": _expm1,
    "floor_divide": _floor_divide,
    "fmod": _fmod,
    "lcm": _lcm,
    "power": _power,
    "reciprocal": _reciprocal,
    "remainder": _remainder,
}


def sinc(x: Array) -> Array:
    """Return the sine of pi x divided by that; it is 0 for whole numbers, and 1 for NaN."""
    if x.dtype.kind == "c":
        return np.sinc(x)
    x = x.astype(np.float64)
    made = np.where(np.remainder(x, 1) == 0, x == 0, np.sinc(x))
    return np.where(np.isnan(x), 1, made)


def _angle(z: Array, deg: Any = False) -> Array:
    made = np.angle(z, deg)
    if z.dtype.kind != "f":
        return made
    return np.where(z >= 0, 0, 180 if deg else np.pi).astype(made.dtype)


def _clip(a: Array, a_min: object = None, a_max: object = None, **kwargs: Any) -> Array:
    """Clip; a limit that is NaN is none."""
    low, high = _without_nan(a_min, -np.inf), _without_nan(a_max, np.inf)
    return np.clip(a, low, high, **kwargs)


def _without_nan(limit: Any, none: float) -> Any:
    kind = getattr(limit, "dtype", np.dtype(type(limit)))
    if kind.kind != "f" or not np.any(np.isnan(limit)):
        return limit
    return np.where(np.isnan(limit), none, limit).astype(kind) if np.ndim(limit) else none


def _mean(a: Array, *args: Any, dtype: Any = None, **kwargs: Any) -> Array:
    if dtype is None or np.dtype(dtype).kind not in "iu":
        return np.mean(a if dtype is None else fitted(a, dtype), *args, dtype=dtype, **kwargs)
    return converted(np.mean(a.real, *args, dtype=np.float64, **kwargs), dtype)


def _linspace(*args: Any, dtype: Any = None, retstep: bool = False, **kwargs: Any) -> object:
    values, step = np.linspace(*args, retstep=True, **kwargs)
    if dtype is not None:
        whole = np.issubdtype(dtype, np.integer)
        values = converted(np.floor(values) if whole else values, dtype)
    return (values, step) if retstep else values


def _quantile(name: str) -> Callable[..., object]:
    """Return a function that also takes its method by the name of NumPy before 2."""
    function: Callable[..., Any] = getattr(np, name)

    def call(*args: object, interpolation: object = None, **kwargs: object) -> Any:
        return function(*args, **kwargs, **({"method": interpolation} if interpolation else {}))

    return call


def _place(a: Array, mask: Array, vals: Array) -> None:
    np.place(a, mask, converted(vals, a.dtype))


FORMULAS: dict[str, Callable[..., object]] = {
    "angle": _angle,
    "clip": _clip,
    "linspace": _linspace,
    "mean": _mean,
    "percentile": _quantile("percentile"),
    "place": _place,
    "quantile": _quantile("quantile"),
}
"""Functions that are no ufuncs, and take the clients' arguments."""
