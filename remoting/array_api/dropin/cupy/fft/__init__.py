"""Discrete Fourier transforms; lengths and types follow from the arguments."""

from typing import Any

import numpy as np

from cupy._core import convert as _convert
from cupy._core.dispatch import arguments as _arguments
from cupy._core.dispatch import make
from cupy._core.dispatch.arguments import need
from cupy._door import absent as _absent
from cupy._door.meta import fresh
from cupy.cuda import cufft as _cufft
from cupy.fft import _plans
from cupy.fft._plans import config as config

__all__ = ["fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifft2", "ifftn"]
__all__ += ["ifftshift", "ihfft", "irfft", "irfft2", "irfftn", "rfft", "rfft2", "rfftfreq", "rfftn"]


def _complex(kind: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.complex64) if kind.char in "efF" else np.dtype(np.complex128)


def _real(kind: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of a real result over one axis: CuPy and NumPy keep float16."""
    return np.result_type(np.dtype(kind.char.lower()) if kind.kind == "c" else kind, 1.0)


def _norm(norm: Any) -> None:
    if norm not in (None, "backward", "ortho", "forward"):
        raise ValueError(f'Invalid norm value {norm}, should be "backward", "ortho", or "forward".')


def _checked(length: Any) -> int:
    length = _arguments.integer(length)
    if length < 1:
        raise ValueError(f"Invalid number of FFT data points ({length}) specified.")
    return length


def _check_plan(
    name: str, array: Any, axes: list[int], lengths: list[int], shape: list[int]
) -> None:
    back = name.startswith("irfft") or name == "hfft"
    value_type = "C2R" if back else "R2C" if name[0] == "r" or name == "ihfft" else "C2C"
    _cufft.check_current(array, value_type, axes, lengths, shape)


def _one(name: str) -> Any:
    def function(a: Any, n: Any = None, axis: int = -1, norm: Any = None) -> Any:
        array = need(a)
        _norm(norm)
        at = _arguments.axis_of(axis, array.ndim)
        source = array.shape[at]
        length = n if n is not None else (source - 1) * 2 if name in ("irfft", "hfft") else source
        length = _checked(length)
        if _cufft.get_current_plan() is not None:
            _check_plan(name, array, [at], [length], list(array.shape))
        if name in ("rfft", "ihfft"):
            length = length // 2 + 1
        kind = _complex(array.dtype)
        if name in ("irfft", "hfft"):
            kind = _real(array.dtype)
        shape = (*array.shape[:at], length, *array.shape[at + 1 :])
        operation, first = _plans.transform(name)
        return make.forward(operation, (*first, array, n, axis, norm), {}, fresh(kind, shape))

    return function


def _many(name: str, default: Any) -> Any:
    def function(a: Any, s: Any = None, axes: Any = default, norm: Any = None) -> Any:
        array = need(a)
        _norm(norm)
        axes = axes if axes is None else _arguments.integers(axes)
        s = s if s is None else [n if n is None else _arguments.integer(n) for n in s]
        if s is not None and axes is not None and len(s) != len(axes):
            raise ValueError("Shape and axes have different lengths.")
        over = axes
        if over is None:
            over = range(array.ndim) if s is None else range(array.ndim - len(s), array.ndim)
        places = [_arguments.axis_of(axis, array.ndim) for axis in over]
        shape = list(array.shape)
        for index, at in enumerate(places):
            if s is not None and s[index] is not None:
                shape[at] = _checked(s[index])
        if not places:
            if name in ("fft2", "ifft2", "fftn", "ifftn"):
                return array  # as CuPy does
            raise IndexError("at least one axis must be given")
        last = places[-1]
        if _cufft.get_current_plan() is not None:
            lengths = [shape[at] for at in places]
            if name.startswith("irfft") and (s is None or s[-1] is None):
                lengths[-1] = (array.shape[last] - 1) * 2
            _check_plan(name, array, places, lengths, shape)
        kind = _complex(array.dtype)
        if name.startswith("rfft"):
            shape[last] = shape[last] // 2 + 1
        elif name.startswith("irfft"):
            one = axes is not None and len(places) == 1
            kind = _real(array.dtype) if one else np.dtype(kind.char.lower())
            if s is None or s[-1] is None:
                shape[last] = _checked((array.shape[last] - 1) * 2)
        return make.forward(f"fft.{name}", (array, s, axes, norm), {}, fresh(kind, tuple(shape)))

    return function


fft, ifft, rfft, irfft, hfft, ihfft = (
    _one(name) for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
)
fft2, ifft2, rfft2, irfft2 = (
    _many(name, (-2, -1)) for name in ("fft2", "ifft2", "rfft2", "irfft2")
)
fftn, ifftn, rfftn, irfftn = (_many(name, None) for name in ("fftn", "ifftn", "rfftn", "irfftn"))


def fftfreq(n: Any, d: Any = 1.0) -> Any:
    """Return the frequencies of a transform."""
    if type(n) is int and n > 0 and type(d) in (int, float):
        return make.forward("fft.fftfreq", (n, d), {}, fresh(np.dtype(np.float64), (n,)))
    up, down = np.arange(0, (n - 1) // 2 + 1.0), np.arange(-(n // 2) + 0.0, 0)
    return _convert.array(np.hstack((up, down))) / (n * d)


def rfftfreq(n: Any, d: Any = 1.0) -> Any:
    """Return the frequencies of a transform of real data."""
    if type(n) is int and n > 0 and type(d) in (int, float):
        return make.forward("fft.rfftfreq", (n, d), {}, fresh(np.dtype(np.float64), (n // 2 + 1,)))
    return _convert.array(np.arange(0, n // 2 + 1.0)) / (n * d)


def _shifted(name: str, x: Any, axes: Any) -> Any:
    over = axes if axes is None else _arguments.plain(axes)
    array = _convert.asarray(x)
    return make.forward(name, (array, over), {}, fresh(array.dtype, array.shape))


def fftshift(x: Any, axes: Any = None) -> Any:
    """Move the zero frequency to the middle."""
    return _shifted("fft.fftshift", x, axes)


def ifftshift(x: Any, axes: Any = None) -> Any:
    """Undo `fftshift`."""
    return _shifted("fft.ifftshift", x, axes)


__getattr__ = _absent.lookup(__name__)
