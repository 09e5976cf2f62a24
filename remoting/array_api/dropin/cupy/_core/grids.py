"""Objects that index or walk arrays: `r_`, `mgrid`, `broadcast`, `flatiter`, index arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from cupy._core import convert
from cupy._core.creation import ones
from cupy._core.dispatch import arguments, transfers
from cupy._core.dispatch.arguments import is_array, need
from cupy._core.joining import concatenate
from cupy._core.learned import nonzero, resize
from cupy._core.manipulation import broadcast_to
from cupy._core.queries import result_type
from cupy._core.ufunc import broadcast as common_shape

if TYPE_CHECKING:
    from cupy._core.array import ndarray


class AxisConcatenator:
    """The type of ``r_`` and ``c_``: indexing that joins."""

    def __init__(self, axis: int = 0, ndmin: int = 1, trans1d: int = -1) -> None:
        self.axis = axis
        self.ndmin = ndmin
        self.trans1d = trans1d

    def __getitem__(self, key: object) -> ndarray:
        items = key if isinstance(key, tuple) else (key,)
        if any(isinstance(item, (slice, str)) for item in items):
            raise NotImplementedError("slices and text are not supported")
        parts: list[Any] = []
        scalars: list[int] = []
        for at, item in enumerate(items):
            if isinstance(item, (int, float, complex, np.generic)):
                scalars.append(at)
                parts.append(convert.array(item, ndmin=self.ndmin))
                continue
            array = convert.asarray(item)
            if array.ndim < self.ndmin:
                lead = (1,) * (self.ndmin - array.ndim)
                array = array.reshape(
                    array.shape + lead if self.trans1d == 0 else lead + array.shape
                )
            parts.append(array)
        kinds = [part.dtype for at, part in enumerate(parts) if at not in scalars]
        final = result_type(*kinds, *[items[at] for at in scalars])
        for at in scalars:
            parts[at] = parts[at].astype(final)
        return concatenate(parts, self.axis)

    def __len__(self) -> int:
        return 0


def _ends(key: object) -> tuple[object, ...]:
    return (key.start, key.stop, key.step) if isinstance(key, slice) else (key,)


def _on_host(key: object) -> Any:
    parts = [part.get() if is_array(part) else part for part in _ends(key)]
    return slice(*parts) if isinstance(key, slice) else parts[0]


class Grid:
    """The type of ``mgrid`` and ``ogrid``: slices that become coordinates."""

    def __init__(self, sparse: bool) -> None:
        self._numpy: Any = np.ogrid if sparse else np.mgrid

    def __getitem__(self, key: object) -> Any:
        keys = key if isinstance(key, tuple) else (key,)
        if any(is_array(part) for each in keys for part in _ends(each)):
            keys = tuple(_on_host(each) for each in keys)
            key = keys if isinstance(key, tuple) else keys[0]
        made = self._numpy[key]
        if isinstance(made, np.ndarray):
            return transfers.upload(made)
        return [transfers.upload(part) for part in made]


class broadcast:
    """Arrays in their common shape; see `numpy.broadcast`."""

    def __init__(self, *arrays: object) -> None:
        shapes = [need(a).shape for a in arrays if is_array(a)]
        self.shape = common_shape(*shapes) if shapes else ()
        self.values = tuple(broadcast_to(a, self.shape) if is_array(a) else a for a in arrays)
        self.nd = len(self.shape)
        self.size = int(np.prod(self.shape, dtype=np.int64)) if self.shape else 1


def _flat_index(index: Any) -> Any:
    """Return an integer or a slice, all that CuPy's flat iterators take; IndexError for others."""
    if index is Ellipsis:
        return slice(None)
    if isinstance(index, slice):
        return index
    if isinstance(index, bool) or not arguments.is_scalar(index):
        raise IndexError("unsupported iterator index")
    return int(index)


class flatiter:
    """A 1-D view of the elements, for reading and writing."""

    def __init__(self, a: ndarray) -> None:
        self.base = a
        self._next = 0

    def __len__(self) -> int:
        return self.base.size

    def __getitem__(self, index: object) -> ndarray:
        return self.base.ravel()[_flat_index(index)].copy()

    def __setitem__(self, index: object, value: object) -> None:
        index = _flat_index(index)
        flat = self.base.ravel()
        if isinstance(index, slice):
            # As in NumPy, values are repeated, and surplus ones are ignored.
            value = convert.array(value, dtype=self.base.dtype).ravel()
            value = resize(value, (len(range(*index.indices(flat.size))),))
        flat[index] = value
        if not self.base.flags.c_contiguous:
            self.base[...] = flat.reshape(self.base.shape)

    def __iter__(self) -> flatiter:
        self._next = 0
        return self

    def __next__(self) -> ndarray:
        place = self._next
        if place >= self.base.size:
            raise StopIteration
        self._next = place + 1
        return self.base[np.unravel_index(place, self.base.shape)]

    def copy(self) -> Any:
        """Return the elements as a 1-D array."""
        return self.base.flatten()


def mask_indices(n: int, mask_func: Callable[..., object], k: int = 0) -> tuple[ndarray, ...]:
    """Return the indices that a masking function keeps."""
    return nonzero(mask_func(ones((n, n), dtype="int8"), k) != 0)


GRIDS: dict[str, Any] = {
    "r_": AxisConcatenator(),
    "c_": AxisConcatenator(-1, 2, 0),
    "mgrid": Grid(False),
    "ogrid": Grid(True),
    "broadcast": broadcast,
    "flatiter": flatiter,
    "mask_indices": mask_indices,
}
