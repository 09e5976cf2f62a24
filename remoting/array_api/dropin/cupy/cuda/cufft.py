"""Plans of Fourier transforms: a program's advance description of the arrays to come.

The server's CuPy makes and keeps the plans that compute. A plan here says which arrays it is for,
and is checked as CuPy checks it, so that a program that reuses its plans runs as it is.
"""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np

from cupy._door import pool

CUFFT_FORWARD, CUFFT_INVERSE = -1, 1
CUFFT_R2C, CUFFT_C2R, CUFFT_C2C = 0x2A, 0x2C, 0x29
CUFFT_D2Z, CUFFT_Z2D, CUFFT_Z2Z = 0x6A, 0x6C, 0x69
_TYPES = {
    "C2C": (CUFFT_C2C, CUFFT_Z2Z),
    "R2C": (CUFFT_R2C, CUFFT_D2Z),
    "C2R": (CUFFT_C2R, CUFFT_Z2D),
}


OTHER_TYPE = "the plan is for another type of numbers or of transform"


def getVersion() -> int:
    """Return the version of the server's cuFFT; with 11303 came callbacks that CUDA compiles."""
    return int(pool.current().ask("cuda.cufft_version"))


class _Local(threading.local):
    def __init__(self) -> None:
        self.plan: Any = None
        self.outer: list[Any] = []  # plans of the blocks around it; a plan may be in many threads


_local = _Local()
"""The settings of transforms; their module imports this one."""


def get_current_plan() -> Any:
    """Return the plan of the innermost ``with`` of this thread, or None."""
    return _local.plan


class _Plan:
    """A plan as a context: transforms in the block must be those that it is for."""

    fft_type: int
    gpus: Any = None
    work_area: Any = None

    def __enter__(self) -> Any:
        _local.outer.append(_local.plan)
        _local.plan = self
        return self

    def __exit__(self, *_error: object) -> None:
        _local.plan = _local.outer.pop()


class Plan1d(_Plan):
    """A plan for transforms over one axis."""

    def __init__(self, nx: int, fft_type: int, batch: int, *, devices: Any = None) -> None:
        given = range(devices) if isinstance(devices, int) else devices
        self.gpus = None if given is None else [int(each) for each in given]
        self.nx, self.fft_type, self.batch = int(nx), int(fft_type), int(batch)

    def check(self, fft_type: int, length: int, batch: int) -> None:
        """Raise if it is not for such a transform."""
        if fft_type != self.fft_type:
            raise ValueError(OTHER_TYPE)
        if length != self.nx:  # a beginning that CuPy's own tests look for
            raise ValueError("Target array size does not match the plan.", length, self.nx)
        from cupy.fft._plans import config

        if config.use_multi_gpus != (self.gpus is not None):
            raise ValueError("the plan and cupy.fft.config.use_multi_gpus disagree")
        if batch != self.batch:
            raise ValueError(f"the plan is for {self.batch} transforms at once, and not {batch}")


class PlanNd(_Plan):
    """A plan for transforms over several axes; `cupyx.scipy.fftpack.get_fft_plan` makes it."""

    def __init__(self, shape: tuple[int, ...], fft_type: int, order: str, last_axis: int) -> None:
        self.shape, self.fft_type, self.order = shape, fft_type, order
        self.last_axis, self.last_size = last_axis, shape[0 if order == "F" else -1]

    def check(self, fft_type: int, lengths: tuple[int, ...], order: str, last_axis: int) -> None:
        """Raise if it is not for such a transform."""
        if order != self.order:
            raise ValueError(f"the plan is for an array in order {self.order}, and not {order}")
        expected = lengths[::-1] if order == "F" else lengths
        if expected != self.shape:
            raise ValueError(  # a beginning that CuPy's own tests look for
                f"The cuFFT plan and a.shape do not match: {self.shape} and {expected}"
            )
        if fft_type != self.fft_type:
            raise ValueError(OTHER_TYPE)
        if fft_type not in _TYPES["C2C"] and last_axis != self.last_axis:
            raise ValueError(f"the plan's last axis is {self.last_axis}, and not {last_axis}")


def type_of(dtype: np.dtype[Any], value_type: str) -> int:
    """Return cuFFT's number of a transform of an array; ValueError for an unknown kind."""
    if value_type not in _TYPES:
        raise ValueError(f"value_type must be C2C, R2C or C2R, not {value_type}")
    return _TYPES[value_type][0 if dtype.char in "efF" else 1]


def order_of(array: Any) -> str:
    """Return the order of an array in memory as transforms see it."""
    return "F" if array.flags.fnc else "C"


def check_current(
    array: Any, value_type: str, axes: list[int], lengths: list[int], shape: list[int]
) -> None:
    """Raise if a transform is not that of the current plan.

    Args:
        array: what is transformed.
        value_type: C2C, R2C or C2R.
        axes: the axes, in the order in which the program named them.
        lengths: the points along each of them.
        shape: of the array, once it is cut or padded.
    """
    plan = _local.plan
    fft_type = type_of(array.dtype, value_type)
    if isinstance(plan, Plan1d):
        for at, length in zip(axes, lengths):
            plan.check(fft_type, length, math.prod(shape) // max(shape[at], 1))
        return
    if len(axes) == 1:
        raise ValueError("a transform over one axis takes a plan over one")
    pairs = sorted(zip(axes, lengths))
    plan.check(fft_type, tuple([n for _, n in pairs]), order_of(array), pairs[-1][0])
