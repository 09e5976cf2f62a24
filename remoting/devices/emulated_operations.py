"""The closed table of an emulated device: CuPy's operations in terms of NumPy's."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gpupool.remoting.arrays.names import FFT, FUNCTIONS, LINALG, UFUNCS
from gpupool.remoting.devices.base import UnsupportedError

if TYPE_CHECKING:
    from gpupool.remoting.devices.emulated import EmulatedBackend

Operation = Callable[..., Any]
Array = np.ndarray[Any, Any]


def _getitem(a: Array, index: Any) -> Array:
    # An index that is complete would give a NumPy scalar, which is a copy; with an Ellipsis it
    # stays a view of no dimensions, as CuPy's is.
    if isinstance(index, tuple):
        if any(isinstance(item, np.ndarray) for item in index):
            return a[_wrapped(a, index)]
        return a[index] if any(item is Ellipsis for item in index) else a[(*index, Ellipsis)]
    if isinstance(index, np.ndarray):
        return a[_wrapped(a, (index,))]
    return a[index] if index is Ellipsis else a[index, ...]


def _wrapped(a: Array, index: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return an index whose integer arrays are wrapped into range, as CuPy does."""
    used = sum(item.ndim if _is_mask(item) else 1 for item in index if item is not None and item is not Ellipsis)
    axis = 0
    made: list[Any] = []
    for item in index:
        if item is None:
            made.append(item)
            continue
        if item is Ellipsis:
            axis += a.ndim - used
        elif _is_mask(item):
            axis += item.ndim
        else:
            if isinstance(item, np.ndarray) and axis < a.ndim and a.shape[axis]:
                # Truncation is harmless: the modulus has the same type as the index.
                item = item.astype(np.int64) % a.shape[axis]
            axis += 1
        made.append(item)
    return tuple(made)


def _is_mask(item: Any) -> bool:
    return isinstance(item, np.ndarray) and item.dtype == np.bool_


def _setitem(a: Array, index: Any, value: Any) -> None:
    if isinstance(index, tuple):
        a[_wrapped(a, index)] = _cast(value, a.dtype)
    elif isinstance(index, np.ndarray):
        a[_wrapped(a, (index,))] = _cast(value, a.dtype)
    else:
        a[index] = _cast(value, a.dtype)


def _cast(value: Any, dtype: np.dtype[Any]) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind == "c" and dtype.kind != "c":
        return value.real
    return value


def _astype(a: Array, dtype: Any, order: str = "K") -> Array:
    if a.dtype.kind == "c" and np.dtype(dtype).kind not in "cb":
        return a.real.astype(dtype, order=order)  # pyright: ignore
    return a.astype(dtype, order=order)  # pyright: ignore


def operations(backend: "EmulatedBackend") -> Mapping[str, Operation]:
    """Return name to callable; anything absent here is refused by name at the client."""
    table: dict[str, Operation] = {}
    for name in (*UFUNCS, *FUNCTIONS):
        found = getattr(np, name, None)
        if found is not None:
            table[name] = found
    table |= {f"linalg.{name}": getattr(np.linalg, name) for name in LINALG}
    table |= {f"fft.{name}": getattr(np.fft, name) for name in FFT}
    table |= {
        "ndarray.getitem": _getitem,
        "ndarray.setitem": _setitem,
        "ndarray.astype": _astype,
        "ndarray.copy": lambda a, order="C": a.copy(order),
        "ndarray.reshape": lambda a, shape, order="C": a.reshape(shape, order=order),
        "ndarray.transpose": lambda a, axes=None: a.transpose(axes),
        "ndarray.swapaxes": lambda a, i, j: a.swapaxes(i, j),
        "ndarray.view": lambda a, dtype=None: a.view() if dtype is None else a.view(dtype),
        "ndarray.real": lambda a: a.real,
        "ndarray.imag": lambda a: a.imag,
        "ndarray.squeeze": lambda a, axis=None: a.squeeze(axis),
        "ndarray.diagonal": lambda a, *args: np.diagonal(a, *args),
        "ndarray.fill": lambda a, value: a.fill(_cast(value, a.dtype)),
        "ndarray.flatten": lambda a, order="C": a.flatten(order),
        "ndarray.sort": lambda a, axis=-1: a.sort(axis, kind="stable"),
        "ndarray.partition": lambda a, kth, axis=-1: a.partition(kth, axis),
        "ndarray.byteswap": lambda a: a.byteswap(),
        "ndarray.as_strided": lambda a, shape, strides: np.lib.stride_tricks.as_strided(a, shape, strides),
        "door.zeros": lambda shape, dtype, order="C": np.zeros(shape, dtype, order=order),
        "door.arange": lambda start, count, step, dtype: (start + np.arange(count) * step).astype(dtype),
        "door.empty": lambda shape, dtype, order="C": np.zeros(shape, dtype, order=order),
    }
    return table
