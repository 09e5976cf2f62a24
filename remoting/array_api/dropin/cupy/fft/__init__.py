"""Discrete Fourier transforms, which the worker describes: a row for each."""

# ruff: noqa: D103

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cupy._core.dispatch import learning as _learning
from cupy._core.dispatch.learning import Array, Like, Number
from cupy._door import absent as _absent
from cupy.cuda import cufft as _cufft
from cupy.fft import config as config

if TYPE_CHECKING:
    from cupy._core.array import ndarray

__all__ = ["fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifft2", "ifftn"]
__all__ += ["ifftshift", "ihfft", "irfft", "irfft2", "irfftn", "rfft", "rfft2", "rfftfreq", "rfftn"]


def _is_special() -> bool:
    """Say whether this thread has a plan."""
    return _cufft.get_current_plan() is not None


def _check_plan(name: str, a: object, s: object, axes: object) -> None:
    """Raise if the program's plan is for another transform; with no plan do nothing."""
    back = name.startswith("irfft") or name == "hfft"
    kind = "C2R" if back else "R2C" if name[0] == "r" or name == "ihfft" else "C2C"
    _cufft.check_current(a, kind, s, axes)


def _one(name: str) -> Any:
    def row(a: Array, n: object = None, axis: int = -1, norm: object = None) -> Any:
        _check_plan(name, a, None if n is None else (n,), (axis,))

    return row


def _many(name: str, default: object = None) -> Any:
    def row(a: Array, s: object = None, axes: object = default, norm: object = None) -> Any:
        _check_plan(name, a, s, axes)
        return a if axes == () and "r" not in name else None

    return row


fft, ifft, rfft, irfft = _one("fft"), _one("ifft"), _one("rfft"), _one("irfft")
hfft, ihfft = _one("hfft"), _one("ihfft")
fft2, ifft2 = _many("fft2", (-2, -1)), _many("ifft2", (-2, -1))
rfft2, irfft2 = _many("rfft2", (-2, -1)), _many("irfft2", (-2, -1))
fftn, ifftn, rfftn, irfftn = _many("fftn"), _many("ifftn"), _many("rfftn"), _many("irfftn")


def fftfreq(n: Number, d: object = 1.0) -> ndarray: ...
def fftshift(x: Like, axes: object = None) -> ndarray: ...
def ifftshift(x: Like, axes: object = None) -> ndarray: ...
def rfftfreq(n: Number, d: object = 1.0) -> ndarray: ...


_learning.rows(globals(), "fft.", special=_is_special)
__getattr__ = _absent.lookup(__name__)
