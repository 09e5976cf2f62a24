"""The storage of an array on this side, and the array objects for handles.

Functions are above it, and the operators and methods of `cupy.ndarray` above these.
"""

from __future__ import annotations

from typing import Any

from cupy._door import dtypes
from cupy._door.calls import Remote
from cupy._door.meta import Meta, intern

_new = object.__new__


class Array(Remote):
    """An array of a device. All modules below the methods of `cupy.ndarray` know this class."""

    __slots__ = ("_gp_address", "_gp_base", "_gp_device", "_gp_known")
    _gp_address: int
    """Where it is on the server; set once a program has asked for it."""
    _gp_base: Any
    _gp_device: int
    _gp_known: Meta | None

    @property
    def _gp_meta(self) -> Meta:
        known = self._gp_known
        if known is None:
            self._gp_session.describe(self)
            known = self._gp_known
            assert known is not None
        return known


def result(
    session: Any,
    handle: int,
    meta: Meta | None,
    device: int,
    kind: Any = None,
    base: Any = None,
    source: Any = None,
) -> Any:
    """Return the array for a handle; ``meta`` is None while only the worker knows it."""
    array: Any = _new(kind or classes.ndarray)
    array._gp_handle = handle
    array._gp_session = session
    array._gp_known = meta
    array._gp_device = device
    array._gp_base = base
    if kind is None or kind is classes.ndarray:
        return array
    array.__array_finalize__(base if source is None else source)
    return array


def plain(session: Any, handle: int, meta: Meta, device: int) -> Any:
    """Return the base-class array for a handle: the shortest way, for calls in loops."""
    array: Any = _new(classes.ndarray)
    array._gp_handle = handle
    array._gp_session = session
    array._gp_known = meta
    array._gp_device = device
    array._gp_base = None
    return array


class classes:
    """The array class, which imports this module."""

    ndarray: Any = None


# --- answers of the worker ------------------------------------------------------------------------


def _told(dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Meta:
    """Return the worker's description of an array; ValueError for an impossible shape."""
    numbers = all(type(one) is int for one in (*shape, *strides))
    if not numbers or any(length < 0 for length in shape) or len(shape) != len(strides):
        raise ValueError("an array of no shape")
    return intern(dtypes.read(dtype), shape, strides)


def adopt(
    session: Any,
    handle: int,
    dtype: Any,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    device: int,
) -> Any:
    """Return the array that an answer of the worker contains."""
    meta = _told(dtype, shape, strides)
    if device not in range(len(session.devices)):
        raise ValueError(f"an array on device {device}")
    return result(session, handle, meta, session.first_device + device)


def describe(target: Any, dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    """Fill in the type, shape and strides of an array, once the worker has sent them."""
    target._gp_known = _told(dtype, shape, strides)
