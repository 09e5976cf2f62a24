"""Plans of Fourier transforms: a program's advance description of the arrays to come.

The server's CuPy makes and keeps the plans that compute. A plan here says which arrays it is for.
A transform in its block makes its own plan, and the two are compared, so that a program that reuses
its plans runs as it is.
"""

from __future__ import annotations

import math
import threading
from typing import Any

from cupy._core.dispatch.arguments import axis_of
from cupy._door import pool

CUFFT_FORWARD, CUFFT_INVERSE = -1, 1
CUFFT_R2C, CUFFT_C2R, CUFFT_C2C = 0x2A, 0x2C, 0x29
CUFFT_D2Z, CUFFT_Z2D, CUFFT_Z2Z = 0x6A, 0x6C, 0x69
_TYPES = {
    "C2C": (CUFFT_C2C, CUFFT_Z2Z),
    "R2C": (CUFFT_R2C, CUFFT_D2Z),
    "C2R": (CUFFT_C2R, CUFFT_Z2D),
}
_AXES_MAX = 3

_UNLIKE = {  # two begin as CuPy's own tests look for
    "nx": "Target array size does not match the plan.",
    "shape": "The cuFFT plan and a.shape do not match",
    "fft_type": "the plan is for another type of numbers or of transform",
    "batch": "the plan is for another number of transforms at once",
    "order": "the plan is for an array in another order",
    "last_axis": "the plan has another last axis",
}


def getVersion() -> int:
    """Return the version of the server's cuFFT; with 11303 came callbacks that CUDA compiles."""
    return int(pool.current().ask("cuda.cufft_version"))


class _Local(threading.local):
    def __init__(self) -> None:
        self.plan: Any = None
        self.outer: list[Any] = []  # plans of the blocks around it; a plan may be in many threads


_local = _Local()


def get_current_plan() -> Any:
    """Return the plan of the innermost ``with`` of this thread, or None."""
    return _local.plan


class _Plan:
    """A plan as a context: transforms in the block must be those that it is for."""

    def __enter__(self) -> Any:
        _local.outer.append(_local.plan)
        _local.plan = self
        return self

    def __exit__(self, *_error: object) -> None:
        _local.plan = _local.outer.pop()

    def check(self, other: _Plan) -> None:
        """Raise a ValueError if it is not for the transforms of another plan."""
        if type(other) is not type(self):
            raise ValueError("a transform over one axis takes a plan over one")
        for name, value in vars(other).items():
            own = getattr(self, name)
            if own != value:
                raise ValueError(f"{_UNLIKE[name]}: {own} and {value}")


class Plan1d(_Plan):
    """A plan for transforms over one axis."""

    def __init__(self, nx: int, fft_type: int, batch: int, *, devices: object = None) -> None:
        del devices  # one GPU transforms
        self.fft_type, self.nx, self.batch = int(fft_type), int(nx), int(batch)


class PlanNd(_Plan):
    """A plan for transforms over several axes; `get_fft_plan` makes it."""

    def __init__(self, shape: Any, fft_type: int, order: str, last_axis: int) -> None:
        self.order = order
        self.shape = tuple(shape[::-1] if order == "F" else shape)
        self.fft_type = fft_type
        self.last_axis = None if fft_type in _TYPES["C2C"] else last_axis


def _plans(a: Any, shape: Any, axes: Any, value_type: str, *, each: bool) -> list[_Plan]:
    """Return the plan of a transform, or with ``each`` one for each of its axes."""
    if value_type not in _TYPES:
        raise ValueError(f"value_type must be C2C, R2C or C2R, not {value_type}")
    fft_type = _TYPES[value_type][0 if a.dtype.char in "efF" else 1]
    given = range(-a.ndim if shape is None else -len(shape), 0) if axes is None else axes
    places = [axis_of(axis, a.ndim) for axis in given]
    lengths: list[int] = [a.shape[at] for at in places]
    if value_type == "C2R":
        lengths[-1] = (lengths[-1] - 1) * 2
    for at, length in enumerate(shape or ()):
        lengths[at] = lengths[at] if length is None else length
    if len(places) > 1 and not each:
        return [_plan_nd(a, places, lengths, fft_type)]
    whole: list[int] = list(a.shape)
    for at, length in zip(places, lengths):
        whole[at] = length
    others = [math.prod([*whole[:at], *whole[at + 1 :]]) for at in places]
    return [Plan1d(length, fft_type, batch) for length, batch in zip(lengths, others)]


def _plan_nd(a: Any, places: list[int], lengths: list[int], fft_type: int) -> PlanNd:
    order = "F" if a.flags.fnc else "C"
    if fft_type not in _TYPES["C2C"] and a.flags.f_contiguous:
        raise ValueError("a plan over several axes of an array in order F is for C2C alone")
    inside = sorted(places)
    adjacent = inside == list(range(inside[0], inside[0] + len(inside)))
    if len(inside) > _AXES_MAX or not adjacent or (inside[0] and inside[-1] != a.ndim - 1):
        raise ValueError(
            f"cuFFT has no plan over axes {inside} of {a.ndim}: give up to {_AXES_MAX} that are "
            "neighbours, each once, the first or the last of the array among them"
        )
    inner = [length for _, length in sorted(zip(places, lengths))]
    return PlanNd(inner, fft_type, order, inside[-1])


def get_fft_plan(a: Any, shape: Any = None, axes: Any = None, value_type: str = "C2C") -> Any:
    """Return a plan for transforms of arrays like ``a``.

    Args:
        a: a contiguous array.
        shape: the points along each axis; by default the lengths of ``a``.
        axes: the axes; by default the last ones, as many as ``shape`` has.
        value_type: C2C, R2C or C2R.

    Raises:
        ValueError: cuFFT has no such plan.
    """
    if not a.flags.forc:
        raise ValueError("a plan is for a contiguous array")
    shape = (shape,) if isinstance(shape, int) else shape
    axes = (axes,) if isinstance(axes, int) else axes
    if shape is not None and axes is not None and len(shape) != len(axes):
        raise ValueError(f"shape has {len(shape)} lengths, and axes names {len(axes)}")
    return _plans(a, shape, axes, value_type, each=False)[0]


def check_current(a: object, value_type: str, shape: object, axes: object) -> None:
    """Raise a ValueError if a transform is not that of the current plan; without one do nothing."""
    plan = _local.plan
    if plan is None:
        return
    for each in _plans(a, shape, axes, value_type, each=isinstance(plan, Plan1d)):
        plan.check(each)
