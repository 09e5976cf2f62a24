"""Fourier transforms by the names of `scipy.fftpack`, and plans of transforms."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import cupy as _cupy
from cupy.cuda import cufft as _cufft

from cupyx import _extensions

_AXES_MAX = 3


def get_fft_plan(a: Any, shape: Any = None, axes: Any = None, value_type: str = "C2C") -> Any:
    """Return a plan for transforms of arrays like ``a``.

    Args:
        a: a contiguous array.
        shape: the points along each axis; by default the lengths of ``a``.
        axes: the axes; by default the last ones, as many as ``shape`` has.
        value_type: C2C, R2C or C2R.
    """
    if not (a.flags.c_contiguous or a.flags.f_contiguous):
        raise ValueError("a plan is for a contiguous array")
    shape = (shape,) if isinstance(shape, int) else shape
    axes = (axes,) if isinstance(axes, int) else axes
    if shape is not None and axes is not None and len(shape) != len(axes):
        raise ValueError(f"shape has {len(shape)} lengths, and axes names {len(axes)}")
    count = len(axes) if axes is not None else a.ndim if shape is None else len(shape)
    places = _places(a, axes, count)
    lengths = [a.shape[at] for at in places]
    if value_type == "C2R" and lengths:
        lengths[-1] = (lengths[-1] - 1) * 2
    for index, length in enumerate(shape or ()):
        if length is not None:
            lengths[index] = length
    fft_type = _cufft.type_of(a.dtype, value_type)
    if count == 1:
        devices = _cupy.fft.config.devices
        return _cufft.Plan1d(lengths[0], fft_type, _batch(a, places[0]), devices=devices)
    return _plan_nd(a, places, lengths, fft_type, value_type)


def _places(a: Any, axes: Any, count: int) -> list[int]:
    if axes is None:
        return list(range(a.ndim - count, a.ndim))
    if count > _AXES_MAX:
        raise ValueError(f"a plan is for at most {_AXES_MAX} axes")
    for axis in axes:
        if not -a.ndim <= axis < a.ndim:
            raise ValueError(f"axis {axis} is none of an array of {a.ndim} dimensions")
    return [axis % a.ndim for axis in axes]


def _batch(a: Any, axis: int) -> int:
    return math.prod(a.shape[:axis]) * math.prod(a.shape[axis + 1 :])


def _plan_nd(a: Any, places: list[int], lengths: list[int], fft_type: int, value_type: str) -> Any:
    order = _cufft.order_of(a)
    if value_type != "C2C" and a.flags.f_contiguous:
        raise ValueError("a plan over several axes of an array in order F is for C2C alone")
    inside = sorted(places)
    adjacent = inside == list(range(inside[0], inside[0] + len(inside)))
    if len(inside) > _AXES_MAX or not adjacent or (inside[0] and inside[-1] != a.ndim - 1):
        raise ValueError(
            f"cuFFT has no plan over axes {inside} of {a.ndim}: give up to {_AXES_MAX} that are "
            "neighbours, each once, the first or the last of the array among them"
        )
    inner = [length for _, length in sorted(zip(places, lengths))]
    along = tuple(inner[::-1] if order == "F" else inner)
    return _cufft.PlanNd(along, fft_type, order, inside[-1])


def with_plan(function: Any, plan: Any, *args: Any, **kwargs: Any) -> Any:
    """Transform with a plan that is an argument."""
    if plan is not None and _cufft.get_current_plan() is not None:
        raise RuntimeError(
            "Use the cuFFT plan either as an argument or as a block, not as both: here are two"
        )
    with contextlib.nullcontext() if plan is None else plan:
        return function(*args, **kwargs)


def _one(name: str) -> Any:
    def transform(
        x: Any, n: Any = None, axis: int = -1, overwrite_x: bool = False, plan: Any = None
    ) -> Any:
        return with_plan(getattr(_cupy.fft, name), plan, x, n, axis)

    transform.__name__ = transform.__qualname__ = name
    transform.__doc__ = f"Return `cupy.fft.{name}`, which may have a plan."
    return transform


def _several(name: str, default: Any) -> Any:
    def transform(
        x: Any,
        shape: Any = None,
        axes: Any = default,
        overwrite_x: bool = False,
        plan: Any = None,
    ) -> Any:
        return with_plan(getattr(_cupy.fft, name), plan, x, shape, axes)

    transform.__name__ = transform.__qualname__ = name
    transform.__doc__ = f"Return `cupy.fft.{name}`, which may have a plan."
    return transform


fft, ifft = _one("fft"), _one("ifft")
fft2, ifft2 = _several("fft2", (-2, -1)), _several("ifft2", (-2, -1))
fftn, ifftn = _several("fftn", None), _several("ifftn", None)


def _whole(name: str) -> Any:
    computed = globals()[name]

    def transform(*args: Any, plan: Any = None, **kwargs: Any) -> Any:
        return with_plan(computed, plan, *args, **kwargs)

    transform.__name__ = transform.__qualname__ = name
    transform.__doc__ = f"Return `{name}`: real and imaginary parts in turns."
    return transform


_extensions.fill(globals(), "irfft rfft")
irfft, rfft = _whole("irfft"), _whole("rfft")
