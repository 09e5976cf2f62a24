"""Interpolation: functions, and classes with objects in the worker."""

from __future__ import annotations

from typing import Any

from cupy._core.dispatch import arguments as _arguments

from cupyx import _extensions, _objects

_extensions.fill(globals())
_one_pchip = globals()["pchip_interpolate"]


def pchip_interpolate(xi: Any, yi: Any, x: Any, der: Any = 0, axis: int = 0) -> Any:
    """Return values or a derivative between points, or a list for a list of derivatives."""
    if _arguments.is_scalar(der):
        return _one_pchip(xi, yi, x, der=der, axis=axis)
    return [_one_pchip(xi, yi, x, der=each, axis=axis) for each in der]


_objects.fill(globals(), "interpolate")
pchip = globals()["PchipInterpolator"]


def _fast(cls: Any, *parts: Any, axis: int = 0, **kwargs: Any) -> Any:
    """Make one of knots and coefficients; they are checked nevertheless."""
    if axis != 0:
        raise NotImplementedError("construct_fast is for the first axis alone here")
    return cls(*parts, **kwargs)


for _name in ("BPoly", "BSpline", "NdPPoly", "PPoly"):
    globals()[_name].construct_fast = classmethod(_fast)
