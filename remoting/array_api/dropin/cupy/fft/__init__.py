"""Discrete Fourier transforms, which the worker describes: a row for each."""

# ruff: noqa: D103

from __future__ import annotations

from typing import Any

from cupy._core.dispatch import arguments as _arguments
from cupy._core.dispatch import learning as _learning
from cupy._core.dispatch import make as _make
from cupy._core.dispatch.learning import Array, Like
from cupy._door import absent as _absent
from cupy.cuda import cufft as _cufft
from cupy.fft import _plans
from cupy.fft._plans import config as config

__all__ = ["fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifft2", "ifftn"]
__all__ += ["ifftshift", "ihfft", "irfft", "irfft2", "irfftn", "rfft", "rfft2", "rfftfreq", "rfftn"]


def _one(name: str, a: Any, n: Any, axis: Any, norm: Any) -> Any:
    """Check the program's plan; return the result if several GPUs transform."""
    _check_plan(name, a, None if n is None else (n,), (axis,))
    operation, first = _plans.transform(name)
    return _make.lazy(operation, (*first, a, n, axis, norm), {}) if first else None


def _many(name: str, a: Any, s: Any, axes: Any) -> Any:
    """Check the program's plan; return the array if there is nothing to transform."""
    _check_plan(name, a, s, axes)
    return a if axes is not None and not len(axes) and "r" not in name else None


def _is_special() -> bool:
    """Say whether this thread has a plan, or several GPUs transform."""
    return _cufft.get_current_plan() is not None or config.use_multi_gpus


def _check_plan(name: str, a: Any, s: Any, axes: Any) -> None:
    """Raise if the program's plan is for another transform; with no plan do nothing."""
    if _cufft.get_current_plan() is None:
        return
    back = name.startswith("irfft") or name == "hfft"
    kind = "C2R" if back else "R2C" if name[0] == "r" or name == "ihfft" else "C2C"
    given = range(-a.ndim if s is None else -len(s), 0) if axes is None else axes
    places = [_arguments.axis_of(axis, a.ndim) for axis in given]
    shape = list(a.shape)
    for at, length in zip(places, s or ()):
        shape[at] = shape[at] if length is None else length
    lengths = [shape[at] for at in places]
    if back and (s is None or s[-1] is None):
        lengths[-1] = (a.shape[places[-1]] - 1) * 2
    _cufft.check_current(a, kind, places, lengths, shape if len(places) > 1 else list(a.shape))


def fft(a: Array, n: Any = None, axis: int = -1, norm: Any = None) -> Any:
    return _one("fft", a, n, axis, norm)


def ifft(a: Array, n: Any = None, axis: int = -1, norm: Any = None) -> Any:
    return _one("ifft", a, n, axis, norm)


def rfft(a: Array, n: Any = None, axis: int = -1, norm: Any = None) -> Any:
    return _one("rfft", a, n, axis, norm)


def irfft(a: Array, n: Any = None, axis: int = -1, norm: Any = None) -> Any:
    return _one("irfft", a, n, axis, norm)


def hfft(a: Array, n: Any = None, axis: int = -1, norm: Any = None) -> Any:
    return _one("hfft", a, n, axis, norm)


def ihfft(a: Array, n: Any = None, axis: int = -1, norm: Any = None) -> Any:
    return _one("ihfft", a, n, axis, norm)


def fft2(a: Array, s: Any = None, axes: Any = (-2, -1), norm: Any = None) -> Any:
    return _many("fft2", a, s, axes)


def ifft2(a: Array, s: Any = None, axes: Any = (-2, -1), norm: Any = None) -> Any:
    return _many("ifft2", a, s, axes)


def rfft2(a: Array, s: Any = None, axes: Any = (-2, -1), norm: Any = None) -> Any:
    return _many("rfft2", a, s, axes)


def irfft2(a: Array, s: Any = None, axes: Any = (-2, -1), norm: Any = None) -> Any:
    return _many("irfft2", a, s, axes)


def fftn(a: Array, s: Any = None, axes: Any = None, norm: Any = None) -> Any:
    return _many("fftn", a, s, axes)


def ifftn(a: Array, s: Any = None, axes: Any = None, norm: Any = None) -> Any:
    return _many("ifftn", a, s, axes)


def rfftn(a: Array, s: Any = None, axes: Any = None, norm: Any = None) -> Any:
    return _many("rfftn", a, s, axes)


def irfftn(a: Array, s: Any = None, axes: Any = None, norm: Any = None) -> Any:
    return _many("irfftn", a, s, axes)


def fftfreq(n: Any, d: Any = 1.0) -> Any: ...
def fftshift(x: Like, axes: Any = None) -> Any: ...
def ifftshift(x: Like, axes: Any = None) -> Any: ...
def rfftfreq(n: Any, d: Any = 1.0) -> Any: ...


_learning.rows(globals(), "fft.", _is_special)
__getattr__ = _absent.lookup(__name__)
