"""Fourier transforms by the names of `scipy.fftpack`, and plans of transforms."""

from __future__ import annotations

import contextlib
from typing import Any

import cupy as _cupy
from cupy.cuda import cufft as _cufft
from cupy.cuda.cufft import get_fft_plan as get_fft_plan

from cupyx import _extensions


def with_plan(function: Any, plan: Any, *args: Any, **kwargs: Any) -> Any:
    """Transform with a plan that is an argument."""
    if plan is not None and _cufft.get_current_plan() is not None:
        raise RuntimeError(
            "Use the cuFFT plan either as an argument or as a block, not as both: here are two"
        )
    with contextlib.nullcontext() if plan is None else plan:
        return function(*args, **kwargs)


def _transform(
    name: str, function: object, *, lengths: str, axes: str, default: object = None
) -> Any:
    def transform(x: object, *args: object, **kwargs: object) -> Any:
        given = dict(zip((lengths, axes, "overwrite_x", "plan"), args), **kwargs)
        given.pop("overwrite_x", None)
        plan = given.pop("plan", None)
        places = given.pop(lengths, None), given.pop(axes, default)
        return with_plan(function, plan, x, *places, **given)

    transform.__name__ = transform.__qualname__ = name
    transform.__doc__ = f"Return the transform `scipy.fftpack.{name}`, which may have a plan."
    return transform


_extensions.fill(globals())
for _name in ("fft", "ifft", "rfft", "irfft"):
    _computed = globals().get(_name) or getattr(_cupy.fft, _name)
    globals()[_name] = _transform(_name, _computed, lengths="n", axes="axis", default=-1)
for _name in ("fft2", "ifft2", "fftn", "ifftn"):
    _axes = (-2, -1) if _name[-1] == "2" else None
    _computed = getattr(_cupy.fft, _name)
    globals()[_name] = _transform(_name, _computed, lengths="shape", axes="axes", default=_axes)
