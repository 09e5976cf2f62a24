"""The device and stream of each thread, and whether it may wait."""

import contextlib
import threading
from collections.abc import Generator
from typing import Any

Context = tuple[int, int]
"""A device's number in this program, and the handle of a stream there (0: the default one)."""

DEFAULT: Context = (0, 0)


class DeviceSynchronized(RuntimeError):
    """A synchronisation happened where it is not allowed."""


class _Local(threading.local):
    context: Context = DEFAULT
    may_wait: bool = True
    """This thread's setting of `cupyx.allow_synchronize`."""
    fuses: bool = False
    """Whether this thread runs a function that was given to `fuse`."""

    def __init__(self) -> None:
        # The current stream of each device that has another than its default one.
        self.streams: dict[int, Any] = {}
        # What `with` has to go back to: devices, and the streams that it has entered on each.
        self.devices: list[int] = []
        self.entered: dict[int, list[Any]] = {}


local = _Local()
_contexts: dict[Context, Context] = {DEFAULT: DEFAULT}


def use(device: int) -> None:
    """Make this thread use a device, with the stream that is current there.

    Equal contexts are one object, so that the hot path compares identities.
    """
    stream = local.streams.get(device)
    key = (device, 0 if stream is None else stream.handle)
    local.context = _contexts.setdefault(key, key)


def use_stream(device: int, stream: Any) -> None:
    """Make a stream current on a device; the current device stays."""
    local.streams[device] = stream
    use(local.context[0])


@contextlib.contextmanager
def on(device: int) -> Generator[None]:
    """Make this thread use a device for a while."""
    before = local.context
    use(device)
    try:
        yield
    finally:
        local.context = before


def waits() -> None:
    """Raise where `cupyx.allow_synchronize` forbids that this thread waits for a device."""
    if not local.may_wait:
        raise DeviceSynchronized("Device was synchronized")


def check_scalar() -> None:
    """Raise where CuPy's fusion would: it has no element of an array that it only traces."""
    if local.fuses:
        raise TypeError("Cannot convert to Python scalar in cupy.fuse")


def reset() -> None:
    """Use the first device's default stream again."""
    local.context = DEFAULT
    local.streams.clear()
