"""Chirp transforms as objects that hold their functions' arguments, and extrema by any comparison.

CuPy's objects keep chirps of their own; these send the parameters with each call, and the worker
computes the chirps again.
"""

from __future__ import annotations

import cmath
from math import pi
from numbers import Integral
from typing import Any

import cupy as _cupy
import numpy as _np


def _validated(n: Any, m: Any) -> int:
    for count, what in ((n, "n"), (n if m is None else m, "m")):
        if not isinstance(count, Integral) or count < 1:
            kind = "data" if what == "n" else "output"
            raise ValueError(
                f"Invalid number of CZT {kind} points ({count}) specified. "
                f"{what} must be positive and integer type."
            )
    return n if m is None else m


def _run(name: str, *args: Any, **kwargs: Any) -> Any:
    signal: Any = __import__("cupyx.scipy.signal", fromlist=[name])
    return getattr(signal, name)(*args, **kwargs)


class CZT:
    """A chirp z-transform of signals of one length."""

    def __init__(self, n: int, m: Any = None, w: Any = None, a: Any = 1 + 0j) -> None:
        self.m, self.n = _validated(n, m), n
        self._given_w = w
        self.w = cmath.exp(-2j * pi / self.m) if w is None else w
        self.a = 1.0 * a

    def __call__(self, x: Any, *, axis: int = -1) -> Any:
        """Return the transform along an axis."""
        x = self._checked(x, axis)
        return _run("czt", x, m=self.m, w=self._given_w, a=self.a, axis=axis)

    def _checked(self, x: Any, axis: int) -> Any:
        x = _cupy.asarray(x)
        if x.shape[axis] != self.n:
            raise ValueError(f"CZT defined for length {self.n}, not {x.shape[axis]}")
        return x

    def points(self) -> Any:
        """Return the points at which the transform is computed."""
        return _run("czt_points", self.m, self.w, self.a)


class ZoomFFT(CZT):
    """A Fourier transform of signals of one length to a part of the frequencies."""

    def __init__(
        self, n: int, fn: Any, m: Any = None, *, fs: Any = 2, endpoint: bool = False
    ) -> None:
        self.m, self.n = _validated(n, m), n
        ends = _cupy.asnumpy(_cupy.asarray(fn)).ravel()
        if ends.size not in (1, 2):
            raise ValueError("fn must be a scalar or 2-length sequence")
        self.f1, self.f2 = (0.0, ends[0]) if ends.size == 1 else (ends[0], ends[1])
        self.fs, self._endpoint = fs, endpoint
        scale = (self.f2 - self.f1) / fs
        if endpoint:
            scale = scale * self.m / (self.m - 1)
        self.a = cmath.exp(2j * pi * self.f1 / fs)
        self.w = cmath.exp(-2j * pi / self.m * scale)

    def __call__(self, x: Any, *, axis: int = -1) -> Any:
        """Return the transform along an axis."""
        x = self._checked(x, axis)
        ends = [float(self.f1), float(self.f2)]
        return _run("zoom_fft", x, ends, self.m, fs=self.fs, endpoint=self._endpoint, axis=axis)


def argrelextrema(
    data: Any, comparator: Any, axis: int = 0, order: int = 1, mode: str = "clip"
) -> Any:
    """Return where each element compares so with its neighbours; the comparison runs here."""
    if int(order) != order or order < 1:
        raise ValueError("Order must be an int >= 1")
    if mode == "raise":
        raise NotImplementedError("CuPy `take` doesn't support `mode='raise'`.")
    data = _cupy.asarray(data)
    length = data.shape[axis]
    places = _np.arange(length)
    found = _cupy.ones(data.shape, bool)
    for shift in range(1, order + 1):
        for step in (shift, -shift):
            near = places + step
            near = near % length if mode == "wrap" else _np.clip(near, 0, length - 1)
            found &= comparator(data, _cupy.take(data, near, axis=axis))
    return _cupy.nonzero(found)
