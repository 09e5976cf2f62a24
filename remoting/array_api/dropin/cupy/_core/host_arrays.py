"""Arrays from and to the host: conversions, files and text of this machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from cupy._core import convert
from cupy._core.dispatch import make, transfers
from cupy._core.dispatch.arguments import able, is_array, need
from cupy._core.ufunc import UFUNCS

if TYPE_CHECKING:
    from cupy._core.array import ndarray


def asarray(
    a: object, dtype: object = None, order: Any = None, *, copy: Any = None, blocking: bool = False
) -> ndarray:
    """Return an array on the device, the same one if nothing has to change."""
    return convert.array(a, dtype, copy, order or "K", blocking=blocking)


def asarray_chkfinite(a: object, dtype: object = None, order: object = None) -> ndarray:
    """Return an array; ValueError if it holds infinities or NaN."""
    made = asarray(a, dtype, order)
    if not bool(UFUNCS["isfinite"](made).all()):
        raise ValueError("array must not contain Infs or NaNs")
    return made


def asfarray(a: object, dtype: Any = np.float64) -> ndarray:
    """Return an array of floats."""
    if not np.issubdtype(dtype, np.inexact):
        dtype = np.float64
    return asarray(a, dtype)


def ascontiguousarray(a: object, dtype: object = None) -> ndarray:
    """Return an array in C order, of at least one dimension."""
    return convert.array(a, dtype, None, "C", ndmin=1)


def asfortranarray(a: object, dtype: object = None) -> ndarray:
    """Return an array in Fortran order."""
    return convert.array(a, dtype, None, "F", ndmin=1)


def asnumpy(
    a: Any, stream: Any = None, order: str = "C", out: Any = None, *, blocking: bool = True
) -> Any:
    """Return an array on the host."""
    if is_array(a):
        return a.get(stream, order, out, blocking)
    if hasattr(a, "__cupy_get_ndarray__"):
        return a.__cupy_get_ndarray__().get(stream, order, out, blocking)
    if hasattr(a, "__cuda_array_interface__") and not hasattr(a, "__array__"):
        return convert.from_interface(a).get(stream, order, out, blocking)
    host = np.asarray(a, order="A" if order == "A" else order)  # type: ignore[call-overload]
    if out is None:
        return host
    np.copyto(out, host)
    return out


def copy(a: object, order: str = "K") -> Any:
    """Return a copy."""
    return able(a, "copy").copy(order=order)


def astype(x: object, dtype: object, /, *, copy: bool = True) -> ndarray:
    """Return a converted array."""
    return need(x).astype(dtype, copy=copy)


def from_dlpack(array: Any, *, device: object = None, copy: object = None) -> ndarray:
    """Return a copy on the device of an array that another library exports on the host."""
    if is_array(array):
        return array
    try:
        host = np.from_dlpack(array)
    except (BufferError, RuntimeError) as error:
        raise BufferError(
            "only memory of the host can be imported: the GPU is on another machine"
        ) from error
    return transfers.upload(np.array(host))


def _from_dlpack_capsule(dltensor: object) -> Any:
    """Raise: a bare capsule cannot be copied without knowing its device."""
    raise BufferError("fromDlpack is not possible on a remote GPU; use from_dlpack")


def _read(function: Any) -> Any:
    """Make a function that uploads an array; NumPy reads or computes it on this machine."""

    def read(*args: Any, **kwargs: Any) -> Any:
        return convert.array(function(*args, **kwargs))

    read.__name__ = read.__qualname__ = function.__name__
    read.__doc__ = f"Return an array of the device; see `numpy.{function.__name__}`."
    return read


class _Archive:
    """The arrays of an ``.npz`` file, uploaded when asked for."""

    def __init__(self, archive: Any) -> None:
        self.npz_file = archive

    def __enter__(self) -> _Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getitem__(self, key: str) -> ndarray:
        return convert.array(self.npz_file[key])

    def close(self) -> None:
        """Close the file."""
        self.npz_file.close()


def load(file: Any, mmap_mode: Any = None, allow_pickle: object = None) -> Any:
    """Return the arrays in a file of this machine; pickles only with ``allow_pickle``."""
    found = np.load(file, mmap_mode=mmap_mode, allow_pickle=bool(allow_pickle))
    if is_array(found):  # from a pickle of an array of the device
        return found
    return convert.array(found) if isinstance(found, np.ndarray) else _Archive(found)


def save(file: Any, arr: object, allow_pickle: object = None) -> None:
    """Write an array to a file of this machine."""
    np.save(file, asnumpy(arr), allow_pickle=bool(allow_pickle))


def savez(file: Any, *args: object, **kwargs: object) -> None:
    """Write arrays to an archive of this machine."""
    np.savez(file, *map(asnumpy, args), **{key: asnumpy(value) for key, value in kwargs.items()})


def savez_compressed(file: Any, *args: object, **kwargs: object) -> None:
    """Write arrays to a compressed archive of this machine."""
    given = {key: asnumpy(value) for key, value in kwargs.items()}
    np.savez_compressed(file, *map(asnumpy, args), **given)


def savetxt(fname: Any, X: object, *args: Any, **kwargs: object) -> None:
    """Write an array to a text file of this machine."""
    np.savetxt(fname, asnumpy(X), *args, **kwargs)


def _text(function: Callable[..., str]) -> Callable[..., str]:
    def formatted(a: object, *args: object, **kwargs: object) -> str:
        return function(asnumpy(a), *args, **kwargs)

    formatted.__doc__ = f"Format an array; see `numpy.{function.__name__}`."
    return formatted


HOST_ARRAYS = {
    **make.public(globals()),
    "asanyarray": asarray,
    **{
        each.__name__: _read(each)
        for each in (np.frombuffer, np.fromfile, np.fromfunction, np.fromiter, np.fromstring)
    },
    **{each.__name__: _read(each) for each in (np.genfromtxt, np.loadtxt)},
    "fromDlpack": _from_dlpack_capsule,
    "array2string": _text(np.array2string),
    "array_repr": _text(np.array_repr),
    "array_str": _text(np.array_str),
}
