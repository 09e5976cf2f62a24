"""bfloat16 on an emulated GPU: NumPy computes with it by the package ml_dtypes, where that is.

CuPy adds and multiplies matrices in float32 and rounds once; ml_dtypes rounds each step, and lacks
some functions. So these compute in float32 here too.
"""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Callable
from typing import Any

import numpy as np

Operation = Callable[..., Any]
_FLOAT32 = np.dtype(np.float32)
_LETTER: str = "E"  # of NumPy for it, which others may have too

_WIDE = """
average convolve correlate cumprod cumsum dot einsum i0 inner interp matmul mean median
nan_to_num nancumprod nancumsum nanmax nanmean nanmedian nanmin nanprod nanstd nansum nanvar outer
percentile prod quantile sinc std sum tensordot trace var vdot door.arange around
"""
WIDE = tuple(_WIDE.split())
"""Operations that compute in float32 and round their results."""


def _is_narrow(dtype: object) -> bool:
    return isinstance(dtype, np.dtype) and dtype.char == _LETTER and dtype.name == "bfloat16"


def _narrow_of(value: Any) -> Any:
    """Return bfloat16 if a value has or names it, in a list too; None for any other."""
    if _is_narrow(value):
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        found: Any = value.dtype
        return found if _is_narrow(found) else None
    if type(value) in (tuple, list):
        return next((each for each in map(_narrow_of, value) if each is not None), None)
    return None


def _widened(value: Any) -> Any:
    if _is_narrow(value):
        return _FLOAT32
    if isinstance(value, (np.ndarray, np.generic)):
        narrow: Any = value
        return narrow.astype(_FLOAT32) if _is_narrow(narrow.dtype) else narrow
    if type(value) in (tuple, list):
        return type(value)([_widened(each) for each in value])
    return value


def _has_float32(value: Any) -> bool:
    if type(value) in (tuple, list):
        return any(map(_has_float32, value))
    return getattr(value, "dtype", value) == _FLOAT32


def _rounded(value: Any, kind: Any) -> Any:
    if type(value) in (tuple, list):
        return type(value)([_rounded(each, kind) for each in value])
    return value.astype(kind) if getattr(value, "dtype", None) == _FLOAT32 else value


def with_numbers(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return operands of a ufunc, of which Python's numbers give way to bfloat16."""
    for arg in args:
        if type(arg) is np.ndarray and _is_narrow(arg.dtype):
            number = arg.dtype.type
            return tuple([number(each) if type(each) in (int, float) else each for each in args])
    return args


def in_float32(function: Operation) -> Operation:
    """Return an operation that computes with bfloat16 in float32."""

    def call(*args: object, out: Any = None, **kwargs: object) -> Any:
        given = [*args, *kwargs.values()]
        kind = _narrow_of(given)
        if kind is None:
            return function(*args, **kwargs) if out is None else function(*args, out=out, **kwargs)
        wide = {key: _widened(value) for key, value in kwargs.items()}
        made = function(*map(_widened, args), **wide)
        if not _has_float32(given):
            made = _rounded(made, kind)
        if out is None:
            return made
        np.copyto(out, made, "unsafe")  # the client has checked the cast
        return out

    return call
