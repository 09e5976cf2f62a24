"""The part of CuPy's extensions that the drop-in offers."""

import contextlib
from collections.abc import Generator
from typing import Any

import numpy as np
from cupy._core.ufunc import UFUNCS as _UFUNCS
from cupy._core.ufunc import ufunc as _ufunc
from cupy._door import absent as _absent
from cupy._door import judged as _judged
from cupy._door import pool as _pool
from cupy._door import state as _state
from cupy._door.state import DeviceSynchronized as DeviceSynchronized

from cupyx import profiler as profiler

rsqrt = _ufunc("rsqrt", ["e->e", "f->f", "d->d", "F->F", "D->D"])


def _scatter(name: str, does: str) -> Any:
    def scatter(a: object, slices: object, value: object) -> None:
        _UFUNCS[name].at(a, slices, value)

    scatter.__doc__ = f"{does} in place at indices, repeated ones as often as they occur."
    return scatter


scatter_add = _scatter("add", "Add")
scatter_max = _scatter("maximum", "Take the maximum")
scatter_min = _scatter("minimum", "Take the minimum")


def _pinned(make: Any, how: str) -> tuple[Any, Any]:
    """Return functions for host memory of a shape and like an array; pinning it has no use here."""

    def of_shape(shape: object, dtype: object = float, order: object = "C") -> Any:
        return make(shape, dtype, order)

    def like(
        a: Any, dtype: object = None, order: object = "K", subok: object = None, shape: Any = None
    ) -> Any:
        return make(a.shape if shape is None else shape, dtype or a.dtype)

    of_shape.__doc__ = f"Return {how} host memory; pinning would be of no use for a far device."
    like.__doc__ = f"Return {how} host memory for an array like another."
    return of_shape, like


empty_pinned, empty_like_pinned = _pinned(np.empty, "uninitialised")
zeros_pinned, zeros_like_pinned = _pinned(np.zeros, "zeroed")


def get_runtime_info(*, full: bool = True) -> Any:
    """Return versions and devices, as a text or to be printed."""
    del full
    from cupy._core.host import RuntimeInfo

    return RuntimeInfo()


@contextlib.contextmanager
def allow_synchronize(allow: bool) -> Generator[None]:
    """Say for a block whether this thread may wait for a device: a copy to the host does."""
    before = _state.local.may_wait
    _state.local.may_wait = allow
    try:
        yield
    finally:
        _state.local.may_wait = before


_settings: dict[str, Any] = {"divide": None, "over": None, "under": None, "invalid": None,
                             "linalg": None, "fallback_mode": None}  # fmt: skip


def _set(changed: dict[str, Any]) -> None:
    _settings.update(changed)
    raises = _settings["linalg"] == "raise"
    if raises != _judged.linalg_raises:
        _judged.linalg_raises = raises
        for session in _pool.sessions():
            _pool.tell_of_linalg(session)


def geterr() -> dict[str, Any]:
    """Return how errors are handled."""
    return dict(_settings)


def seterr(**kwargs: object) -> dict[str, Any]:
    """Set how errors are handled; devices ignore floating-point errors."""
    before = geterr()
    unknown = set(kwargs) - set(_settings)
    if unknown:
        raise TypeError(f"seterr() got unexpected arguments {sorted(unknown)}")
    _set(kwargs)
    return before


@contextlib.contextmanager
def errstate(**kwargs: object) -> Generator[None]:
    """Set how errors are handled within a block."""
    before = seterr(**kwargs)
    try:
        yield
    finally:
        _set(before)


_LATER = ("scipy", "signal")
__getattr__ = _absent.lookup(__name__, *_LATER)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
