"""Settings of transforms: the plans that the server keeps, and transforms by several GPUs.

The server's CuPy makes a plan at the first transform of a kind, and keeps so many for each device.
What is here asks that cache, and sets its limits. All threads of a program share it.
"""

from __future__ import annotations

import contextvars
import warnings
from typing import Any

from cupy._door import absent, pool, state


class PlanCache:
    """The plans of one device, of which the server drops those that were not used for longest."""

    def __init__(self, dev: int) -> None:
        self.dev = dev

    def _ask(self, what: str, *args: object) -> Any:
        with state.on(self.dev):
            return pool.current().ask(f"fft.cache.{what}", args)

    def _numbers(self) -> list[int]:
        with state.on(self.dev):
            return pool.current().numbers("fft.cache.numbers", 4)

    def get_size(self) -> int:
        """Return how many plans are kept at most; -1 for any number."""
        return self._numbers()[0]

    def get_curr_size(self) -> int:
        """Return how many plans are kept now."""
        return self._numbers()[1]

    def get_memsize(self) -> int:
        """Return how many bytes all plans may have; -1 for any number."""
        return self._numbers()[2]

    def get_curr_memsize(self) -> int:
        """Return how many bytes all plans have now."""
        return self._numbers()[3]

    def set_size(self, size: int) -> None:
        """Set how many plans are kept at most: -1 any number, 0 none."""
        self._ask("set_size", int(size))

    def set_memsize(self, memsize: int) -> None:
        """Set how many bytes all plans may have: -1 any number, 0 none."""
        self._ask("set_memsize", int(memsize))

    def clear(self) -> None:
        """Drop all plans."""
        self._ask("clear")

    def __repr__(self) -> str:
        size, count, memsize, used = self._numbers()
        lines = [
            f"------------------- cuFFT plan cache (device {self.dev}) -------------------",
            f"cache enabled? {size != 0 and memsize != 0}",
            f"current / max size   : {count} / {_limit(size)} (counts)",
            f"current / max memsize: {used} / {_limit(memsize)} (bytes)",
        ]
        return "\n".join(lines) + "\n"

    def show_info(self) -> None:
        """Print the plan cache."""
        print(self)  # noqa: T201 - as CuPy does


def _limit(value: int) -> Any:
    return "(unlimited)" if value == -1 else value


def get_plan_cache() -> PlanCache:
    """Return the plans of the current device."""
    return PlanCache(state.local.context[0])


def clear_plan_cache() -> None:
    """Drop the plans of the current device."""
    get_plan_cache().clear()


def get_plan_cache_size() -> int:
    """Return how many plans the current device keeps at most."""
    return get_plan_cache().get_size()


def set_plan_cache_size(size: int) -> None:
    """Set how many plans the current device keeps at most."""
    get_plan_cache().set_size(size)


def get_plan_cache_max_memsize() -> int:
    """Return how many bytes the plans of the current device may have."""
    return get_plan_cache().get_memsize()


def set_plan_cache_max_memsize(size: int) -> None:
    """Set how many bytes the plans of the current device may have."""
    get_plan_cache().set_memsize(size)


def show_plan_cache_info() -> None:
    """Print the plans of all devices."""
    print("=============== cuFFT plan cache info (all devices) ===============")  # noqa: T201
    for device in range(len(pool.devices())):
        PlanCache(device).show_info()


class Config:
    """Settings of CuPy's transforms."""

    _enable_nd_planning = contextvars.ContextVar("cupy.fft.config.enable_nd_planning", default=True)
    _use_multi_gpus = contextvars.ContextVar("cupy.fft.config.use_multi_gpus", default=False)
    _devices: contextvars.ContextVar[object] = contextvars.ContextVar(
        "cupy.fft.config.devices", default=None
    )
    __getattr__ = absent.of_class("cupy.fft.config")
    get_plan_cache = staticmethod(get_plan_cache)
    clear_plan_cache = staticmethod(clear_plan_cache)
    get_plan_cache_size = staticmethod(get_plan_cache_size)
    set_plan_cache_size = staticmethod(set_plan_cache_size)
    get_plan_cache_max_memsize = staticmethod(get_plan_cache_max_memsize)
    set_plan_cache_max_memsize = staticmethod(set_plan_cache_max_memsize)
    show_plan_cache_info = staticmethod(show_plan_cache_info)

    def set_cufft_gpus(self, gpus: object) -> None:
        """Name the GPUs of a transform by several, or how many of the first ones."""
        if isinstance(gpus, int):
            devices = tuple(range(gpus))
        elif isinstance(gpus, (list, tuple)):
            devices = tuple([int(each) for each in gpus])
        else:
            raise ValueError("gpus must be an int or a list or tuple of int.")
        if len(devices) < 2:
            raise ValueError("Must use at least 2 GPUs.")
        self._devices.set(devices)

    @property
    def use_multi_gpus(self) -> bool:
        """Whether transforms over one axis are by several GPUs."""
        return self._use_multi_gpus.get()

    @use_multi_gpus.setter
    def use_multi_gpus(self, value: object) -> None:
        self._use_multi_gpus.set(bool(value))

    @property
    def devices(self) -> Any:
        """The GPUs of a transform, or None for the current one."""
        return self._devices.get() if self._use_multi_gpus.get() else None

    @property
    def enable_nd_planning(self) -> bool:
        """Whether several axes are transformed by one plan: an old setting, without effect."""
        _warn_of_planning()
        return self._enable_nd_planning.get()

    @enable_nd_planning.setter
    def enable_nd_planning(self, value: bool) -> None:
        _warn_of_planning()
        self._enable_nd_planning.set(value)


def _warn_of_planning() -> None:
    warnings.warn(
        "cupy.fft.config.enable_nd_planning is deprecated", DeprecationWarning, stacklevel=3
    )


config = Config()


def transform(name: str) -> tuple[str, tuple[object, ...]]:
    """Return the operation of a transform over one axis, and its leading arguments."""
    devices = config.devices
    if devices is None:
        return f"fft.{name}", ()
    session = pool.current()
    local = tuple([device - session.first_device for device in devices])
    if not all(0 <= at < len(session.devices) for at in local):
        raise ValueError(f"GPUs {devices} of one transform must be on the current GPU's server")
    return "fft.several", (local, name)
