"""Shape, dtype and strides of arrays, known on this side without asking the worker."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from cupy._door.older import zip_strict

Shape = tuple[int, ...]
_ADDRESS = 1 << 40
_INTERNED_MAX = 1 << 16
NDIM_MAX = 64
BYTES_MAX = 1 << 62


class _NoMemory:
    """Carries an ``__array_interface__`` with an address that has no memory behind it."""

    def __init__(self, meta: Meta) -> None:
        self.__array_interface__ = {
            "shape": meta.shape,
            "typestr": f"|V{meta.dtype.itemsize}" if meta.dtype.char == "V" else meta.dtype.str,
            "data": (_ADDRESS, False),
            "strides": meta.strides,
            "version": 3,
        }


class Meta:
    """The dtype, shape and strides of an array. Equal ones are the same object, a key of plans."""

    __slots__ = ("_flags", "_shadow", "dtype", "nbytes", "ndim", "shape", "size", "strides")

    def __init__(self, dtype: np.dtype[Any], shape: Shape, strides: Shape) -> None:
        if len(shape) > NDIM_MAX:
            raise ValueError(
                f"maximum supported dimension for an ndarray is {NDIM_MAX}, found {len(shape)}"
            )
        # No worker takes other lengths, nor integers of NumPy: they would end the session.
        shape = tuple([operator.index(length) for length in shape])
        strides = tuple([operator.index(step) for step in strides])
        if any(length < 0 for length in shape):
            raise ValueError("Negative dimensions are not allowed")
        if any(abs(number) >= BYTES_MAX for number in (*shape, *strides)):
            raise ValueError("array is too big")
        self.dtype = dtype
        self.shape = shape
        self.strides = strides
        self.ndim = len(shape)
        size = 1
        for length in shape:
            size *= length
        self.size = size
        self.nbytes = size * dtype.itemsize
        if self.nbytes >= BYTES_MAX:
            raise ValueError("array is too big")
        self._shadow: np.ndarray[Any, Any] | None = None
        self._flags: tuple[bool, bool] | None = None

    @property
    def shadow(self) -> np.ndarray[Any, Any]:
        """A NumPy array without memory: for views only; computing with it would crash.

        NumPy derives shapes, strides and error messages of views from it, exactly and without
        touching an element. Indices must keep it an array: always end them with an Ellipsis.
        """
        if self._shadow is None:
            self._shadow = np.asarray(_NoMemory(self))
            if self.dtype.fields is not None:
                self._shadow = self._shadow.view(self.dtype)
        return self._shadow

    @property
    def contiguity(self) -> tuple[bool, bool]:
        """Whether it is C-contiguous, and whether it is Fortran-contiguous."""
        if self._flags is None:
            flags = self.shadow.flags
            self._flags = (flags.c_contiguous, flags.f_contiguous)
        return self._flags

    @property
    def extent(self) -> tuple[int, int]:
        """Where the memory begins and ends, in bytes from the first element; there is one."""
        steps = [(length - 1) * stride for length, stride in zip_strict(self.shape, self.strides)]
        low, high = sum(min(step, 0) for step in steps), sum(max(step, 0) for step in steps)
        return low, high + self.dtype.itemsize


_interned: dict[tuple[Any, Shape, Shape], Meta] = {}
_fresh: dict[tuple[Any, Shape, str], Meta] = {}


def intern(dtype: np.dtype[Any], shape: Shape, strides: Shape) -> Meta:
    """Return the one `Meta` of this dtype, shape and strides (bytes)."""
    key = (dtype, shape, strides)
    found = _interned.get(key)
    if found is None:
        if len(_interned) >= _INTERNED_MAX:
            # Forgetting is safe: a duplicate costs a plan that is not found, nothing else.
            _interned.clear()
            _fresh.clear()
        found = _interned[key] = Meta(dtype, shape, strides)
    return found


def contiguous_strides(shape: Shape, itemsize: int, order: str = "C") -> Shape:
    """Return the strides in bytes of a contiguous array."""
    if 0 in shape:
        return (0,) * len(shape)  # as NumPy and CuPy have it
    return _dense_strides(shape, itemsize, order)


def _dense_strides(shape: Shape, itemsize: int, order: str) -> Shape:
    strides: list[int] = []
    step = itemsize
    for length in reversed(shape) if order == "C" else shape:
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides)) if order == "C" else tuple(strides)


def fresh(dtype: Any, shape: Shape, order: str = "C") -> Meta:
    """Return the `Meta` of a new contiguous array."""
    key = (dtype, shape, order)
    found = _fresh.get(key)
    if found is None:
        kind = np.dtype(dtype)
        strides = contiguous_strides(shape, kind.itemsize, order)
        found = _fresh[key] = intern(kind, shape, strides)
    return found


def of_view(view: np.ndarray[Any, Any]) -> Meta:
    """Return the `Meta` of a view that was derived from a shadow."""
    return intern(view.dtype, view.shape, view.strides)


def keep_order(meta: Meta, dtype: np.dtype[Any], shape: Shape | None = None) -> Meta:
    """Return the `Meta` of a copy that keeps the order of axes in memory (NumPy's order K).

    ``shape`` is that of the copy, of as many axes; by default that of the original.
    """
    lengths = meta.shape if shape is None else shape
    c, f = meta.contiguity
    if c or f:
        return fresh(dtype, lengths, "C" if c else "F")
    axes = sorted(range(meta.ndim), key=lambda axis: -abs(meta.strides[axis]))
    strides = [0] * meta.ndim
    step = dtype.itemsize
    for axis in reversed(axes):
        strides[axis] = step
        step *= lengths[axis]
    return intern(dtype, lengths, tuple(strides))


def reshaped(meta: Meta, shape: Shape, order: str) -> tuple[Meta, bool]:
    """Return the result of ``reshape``, and whether it is a view; raise as NumPy does."""
    c, f = meta.contiguity
    if order == "A":
        order = "F" if f and not c else "C"
    total = 1
    unknown = -1
    for index, length in enumerate(shape):
        if length < 0:
            if unknown >= 0:
                raise ValueError("can only specify one unknown dimension")
            unknown = index
        else:
            total *= length
    if unknown >= 0:
        if total == 0 or meta.size % total:
            raise ValueError(f"cannot reshape array of size {meta.size} into shape {shape}")
        shape = (*shape[:unknown], meta.size // total, *shape[unknown + 1 :])
        total *= shape[unknown]
    if total != meta.size:
        raise ValueError(f"cannot reshape array of size {meta.size} into shape {shape}")
    if meta.size == 0:
        return intern(meta.dtype, shape, _dense_strides(shape, meta.dtype.itemsize, order)), True
    if (c and order == "C") or (f and order == "F"):
        return fresh(meta.dtype, shape, order), True
    strides = _strides_without_copy(meta, shape, order)
    if strides is None:
        return fresh(meta.dtype, shape, order), False
    return intern(meta.dtype, shape, strides), True


def _strides_without_copy(meta: Meta, shape: Shape, order: str) -> Shape | None:
    """Return the strides of a reshaped view, or None if the elements would have to move.

    NumPy's own test is no help here: before 2.1 it makes the copy to find out, and behind a
    shadow there is nothing to copy.
    """
    step = 1 if order == "C" else -1
    old = [pair for pair in zip_strict(meta.shape, meta.strides) if pair[0] != 1][::step]
    new = shape[::step]
    made = [0] * len(new)
    first_old = first_new = 0
    while first_old < len(old) and first_new < len(new):
        # The shortest runs of old and new axes that hold the same number of elements.
        next_old, next_new = first_old + 1, first_new + 1
        have, want = old[first_old][0], new[first_new]
        while have != want:
            if want < have:
                want *= new[next_new]
                next_new += 1
            else:
                have *= old[next_old][0]
                next_old += 1
        for at in range(first_old, next_old - 1):
            if old[at][1] != old[at + 1][0] * old[at + 1][1]:
                return None
        stride = old[next_old - 1][1]
        for at in reversed(range(first_new, next_new)):
            made[at] = stride
            stride *= new[at]
        first_old, first_new = next_old, next_new
    for at in range(first_new, len(new)):
        made[at] = made[at - 1] if at else meta.dtype.itemsize
    return tuple(made[::step])
