"""Settings of transforms: limits of the plans that the server's CuPy keeps for each device.

CuPy makes a plan at the first transform of a kind. All threads of a program share its plans.
"""

from __future__ import annotations

import sys as _sys
import warnings as _warnings
from contextvars import ContextVar as _ContextVar
from types import ModuleType as _ModuleType
from typing import Any

from cupy._door import absent as _absent
from cupy._door import pool as _pool
from cupy._door import state as _state

_enable_nd_planning = _ContextVar("cupy.fft.config.enable_nd_planning", default=True)
_use_multi_gpus = _ContextVar("cupy.fft.config.use_multi_gpus", default=False)
_devices: _ContextVar[Any] = _ContextVar("cupy.fft.config.devices", default=None)


class _Config(_ModuleType):
    """The module, with settings of each thread that change no value: one GPU transforms."""

    @property
    def use_multi_gpus(self) -> bool:
        """Whether several GPUs transform in CuPy."""
        return _use_multi_gpus.get()

    @use_multi_gpus.setter
    def use_multi_gpus(self, value: object) -> None:
        _use_multi_gpus.set(bool(value))

    @property
    def enable_nd_planning(self) -> bool:
        """Whether one plan is for several axes in CuPy, which has no effect there either."""
        return _warned(_enable_nd_planning.get())

    @enable_nd_planning.setter
    def enable_nd_planning(self, value: bool) -> None:
        _enable_nd_planning.set(_warned(value))


def _warned(value: bool) -> bool:
    text = "cupy.fft.config.enable_nd_planning is deprecated"
    _warnings.warn(text, DeprecationWarning, stacklevel=3)
    return value


_sys.modules[__name__].__class__ = _Config


def set_cufft_gpus(gpus: object) -> None:
    """Note the GPUs of transforms; one GPU transforms an array, that of the current device."""
    _devices.set(gpus)


class PlanCache:
    """The plans of one device, of which the server drops those that were not used for longest.

    Sizes are numbers of plans, and memory is in bytes; -1 is any number, and 0 none.
    """

    def __init__(self, dev: int) -> None:
        self.dev = dev

    def _numbers(self) -> list[int]:
        with _state.on(self.dev):
            return _pool.current().numbers("fft.cache.numbers", 4)

    def _ask(self, what: str, *args: object) -> None:
        with _state.on(self.dev):
            _pool.current().ask(f"fft.cache.{what}", args)


def _getter(place: int) -> Any:
    return lambda self: self._numbers()[place]


def _setter(what: str) -> Any:
    return lambda self, *limit: self._ask(what, *map(int, limit))


def _of_current(method: str) -> Any:
    return lambda *limit: getattr(get_plan_cache(), method)(*limit)


for _place, _name in enumerate(("size", "curr_size", "memsize", "curr_memsize")):
    setattr(PlanCache, f"get_{_name}", _getter(_place))
for _name in ("set_size", "set_memsize", "clear"):
    setattr(PlanCache, _name, _setter(_name))


def get_plan_cache() -> PlanCache:
    """Return the plans of the current device."""
    return PlanCache(_state.local.context[0])


clear_plan_cache = _of_current("clear")
get_plan_cache_size, set_plan_cache_size = _of_current("get_size"), _of_current("set_size")
get_plan_cache_max_memsize = _of_current("get_memsize")
set_plan_cache_max_memsize = _of_current("set_memsize")


__getattr__ = _absent.lookup(__name__)
