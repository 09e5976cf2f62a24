"""State shared by the C launcher and the worker's Python, as launcher.h declares it."""

import ctypes
from typing import TYPE_CHECKING


class Shared(ctypes.Structure):
    """Numbers that are read and written at any time."""

    _fields_ = [
        ("keeping", ctypes.c_uint32),
        ("failed", ctypes.c_uint32),
        ("capturing", ctypes.c_uint32),
        ("large", ctypes.c_uint32),
        ("small", ctypes.c_uint32),
    ]

    if TYPE_CHECKING:
        keeping: int
        """Calls of the driver that keep others while they free memory."""
        failed: int
        """A failure of which the client has not heard."""
        capturing: int
        """Streams of which a capture began that has not ended."""
        large: int
        """Downloads that Python has."""
        small: int
        """Downloads that the launcher has taken, and that are not sent."""


class Outcome(ctypes.Structure):
    """Result of a frame's records."""

    _fields_ = [
        ("status", ctypes.c_int32),
        ("issued", ctypes.c_uint32),
        ("ended", ctypes.c_uint32),
        ("body_size", ctypes.c_uint32),
        ("request", ctypes.c_uint64),
        ("waited_ns", ctypes.c_uint64),
        ("body", ctypes.c_uint64 * 2),
    ]

    if TYPE_CHECKING:
        status: int
        issued: int
        ended: int
        body_size: int
        request: int
        waited_ns: int
        body: ctypes.Array[ctypes.c_uint64]


NO_WAIT, OVER, GAVE_UP = range(3)
"""Of a wait that was asked for: ``Outcome.ended``."""
