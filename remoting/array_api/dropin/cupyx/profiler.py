"""Times of a program's functions, on its own machine and on the device."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Generator
from typing import Any

import cupy as _cupy
import numpy as np
from cupy._door import absent as _absent

WARMUP, REPEATS = 10, 10000


class Times:
    """Times measured by `benchmark`, in seconds."""

    def __init__(self, name: str, cpu: list[float], gpu: list[list[float]], devices: Any) -> None:
        self.name = name
        self.cpu_times = np.asarray(cpu)
        self.gpu_times = np.asarray(gpu).T.reshape(len(devices), len(cpu))
        self._devices = devices

    def to_str(self, show_gpu: bool = False) -> str:
        """Return the mean of the times, with their spread."""
        parts = [_told("CPU", self.cpu_times)]
        if show_gpu:
            parts += [
                _told(f"GPU-{device}", times)
                for device, times in zip(self._devices, self.gpu_times)
            ]
        return f"{self.name:20s}:{' '.join(parts)}"

    def __repr__(self) -> str:
        return self.to_str(show_gpu=True)


def _told(name: str, times: np.ndarray[Any, Any]) -> str:
    us = times * 1e6
    text = f"    {name}: {us.mean():9.03f} us"
    if us.size > 1:
        text += f"   +/- {us.std():6.03f} (min: {us.min():9.03f} / max: {us.max():9.03f}) us"
    return text


def benchmark(
    func: Callable[..., Any],
    args: object = (),
    kwargs: dict[str, Any] | None = None,
    n_repeat: int = REPEATS,
    *,
    name: str | None = None,
    n_warmup: int = WARMUP,
    max_duration: float = math.inf,
    devices: Any = None,
) -> Times:
    """Return how long calls of a function take: here until it returns, and on the device.

    Args:
        func: what is called.
        args: its arguments.
        kwargs: its keyword arguments.
        n_repeat: calls that are measured.
        name: of the function.
        n_warmup: calls before these.
        max_duration: seconds after which no further call is made.
        devices: numbers of the devices that are waited for; by default the current one.
    """
    if not callable(func):
        raise ValueError("`func` should be a callable object.")
    if not isinstance(args, tuple):
        raise ValueError("`args` should be of tuple type.")
    keywords = {} if kwargs is None else kwargs
    numbers = (_cupy.cuda.get_device_id(),) if devices is None else tuple(devices)
    events: list[tuple[Any, Any, Any]] = []
    for number in numbers:
        with _cupy.cuda.Device(number) as device:
            events.append((device, _cupy.cuda.Event(), _cupy.cuda.Event()))
    for _ in range(n_warmup):
        func(*args, **keywords)
    _record(events, 2)
    cpu: list[float] = []
    gpu: list[list[float]] = []
    spent = 0.0
    for _ in range(n_repeat):
        _record(events, 1)
        began = time.perf_counter()
        func(*args, **keywords)
        ended = time.perf_counter()
        _record(events, 2)
        cpu.append(ended - began)
        gpu.append([_cupy.cuda.get_elapsed_time(*pair) * 1e-3 for _, *pair in events])
        spent += time.perf_counter() - began
        if spent >= max_duration:
            break
    return Times(name or getattr(func, "__name__", repr(func)), cpu, gpu, numbers)


def _record(events: list[tuple[Any, Any, Any]], which: int) -> None:
    """Record each device's first or last event; wait for the last one."""
    for each in events:
        with each[0]:
            each[which].record()
    for *_, last in events if which == 2 else ():
        last.synchronize()


@contextlib.contextmanager
def profile() -> Generator[None]:
    """Do nothing: a profiler of CUDA runs on the server, not here."""
    yield


class time_range(contextlib.ContextDecorator):
    """A named range of a program, which only a profiler of CUDA would show."""

    def __init__(
        self,
        message: object = None,
        color_id: object = None,
        argb_color: object = None,
        sync: bool = False,
    ) -> None:
        del message
        if color_id is not None and argb_color is not None:
            raise ValueError("Only either color_id or argb_color can be specified")
        self._sync = sync

    def __enter__(self) -> time_range:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._sync:
            _cupy.cuda.get_current_stream().synchronize()


__getattr__ = _absent.lookup(__name__)
