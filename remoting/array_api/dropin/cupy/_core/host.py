"""What needs no device: helpers, files and text, all on this machine."""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from cupy._core import make
from cupy._core.functions import FUNCTIONS
from cupy._core.reductions import need
from cupy._door import state
from cupy._door.meta import Meta


def _is_array(value: Any) -> bool:
    return isinstance(value, state.hooks["ndarray"])


# --- to and from arrays ---------------------------------------------------------------------------


def asarray(
    a: Any, dtype: Any = None, order: Any = None, *, copy: Any = None, blocking: bool = False
) -> Any:
    """Return an array on the device, the same one if nothing has to change."""
    return make.array(a, dtype, copy, order or "K", blocking=blocking)


def asarray_chkfinite(a: Any, dtype: Any = None, order: Any = None) -> Any:
    """Return an array; ValueError if it holds infinities or NaN."""
    made = asarray(a, dtype, order)
    if not bool(state.hooks["ufuncs"]["isfinite"](made).all()):
        raise ValueError("array must not contain Infs or NaNs")
    return made


def asfarray(a: Any, dtype: Any = np.float64) -> Any:
    """Return an array of floats."""
    if not np.issubdtype(dtype, np.inexact):
        dtype = np.float64
    return asarray(a, dtype)


def ascontiguousarray(a: Any, dtype: Any = None) -> Any:
    """Return an array in C order, of at least one dimension."""
    return make.array(a, dtype, None, "C", ndmin=1)


def asfortranarray(a: Any, dtype: Any = None) -> Any:
    """Return an array in Fortran order."""
    return make.array(a, dtype, None, "F", ndmin=1)


def asnumpy(
    a: Any, stream: Any = None, order: str = "C", out: Any = None, *, blocking: bool = True
) -> Any:
    """Return an array on the host."""
    if _is_array(a):
        return a.get(stream, order, out, blocking)
    if hasattr(a, "__cupy_get_ndarray__"):
        return a.__cupy_get_ndarray__().get(stream, order, out, blocking)
    host = np.asarray(a, order="A" if order == "A" else order)  # type: ignore[call-overload]
    if out is None:
        return host
    np.copyto(out, host)
    return out


def copy(a: Any, order: str = "K") -> Any:
    """Return a copy."""
    return need(a).copy(order) if _is_array(a) else make.array(a)


def astype(x: Any, dtype: Any, /, *, copy: bool = True) -> Any:
    """Return a converted array."""
    return need(x).astype(dtype, copy=copy)


def from_dlpack(array: Any, *, device: Any = None, copy: Any = None) -> Any:
    """Return a copy on the device of what another library exports on the host."""
    if _is_array(array):
        return array
    try:
        host = np.from_dlpack(array)
    except (BufferError, RuntimeError) as error:
        raise BufferError(
            "only memory of the host can be imported: the GPU is on another machine"
        ) from error
    return make.upload(np.array(host))


def from_dlpack_capsule(dltensor: Any) -> Any:
    """Raise: a bare capsule cannot be copied without knowing its device."""
    raise BufferError("fromDlpack is not possible on a remote GPU; use from_dlpack")


def frombuffer(*args: Any, **kwargs: Any) -> Any:
    """Return an array from a buffer."""
    return make.upload(np.frombuffer(*args, **kwargs))


def fromfile(*args: Any, **kwargs: Any) -> Any:
    """Return an array from a binary file of this machine."""
    return make.upload(np.fromfile(*args, **kwargs))


def fromfunction(*args: Any, **kwargs: Any) -> Any:
    """Return an array from a function of coordinates."""
    return make.array(np.fromfunction(*args, **kwargs))


def fromiter(*args: Any, **kwargs: Any) -> Any:
    """Return an array from an iterable."""
    return make.upload(np.fromiter(*args, **kwargs))


def fromstring(*args: Any, **kwargs: Any) -> Any:
    """Return an array from text."""
    return make.upload(np.fromstring(*args, **kwargs))


def genfromtxt(*args: Any, **kwargs: Any) -> Any:
    """Return an array from a text file of this machine."""
    return make.array(np.genfromtxt(*args, **kwargs))


def loadtxt(*args: Any, **kwargs: Any) -> Any:
    """Return an array from a text file of this machine."""
    return make.array(np.loadtxt(*args, **kwargs))


class _Archive:
    """The arrays of an ``.npz`` file, uploaded when asked for."""

    def __init__(self, archive: Any) -> None:
        self.npz_file = archive

    def __enter__(self) -> "_Archive":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getitem__(self, key: str) -> Any:
        return make.array(self.npz_file[key])

    def __contains__(self, key: str) -> bool:
        return key in self.npz_file

    def __iter__(self) -> Any:
        return iter(self.npz_file)

    def __len__(self) -> int:
        return len(self.npz_file)

    @property
    def files(self) -> list[str]:
        """Names of the arrays."""
        return self.npz_file.files

    def close(self) -> None:
        """Close the file."""
        self.npz_file.close()


def load(file: Any, mmap_mode: Any = None, allow_pickle: Any = None) -> Any:
    """Return what a file of this machine holds; pickles only where ``allow_pickle`` says so."""
    found = np.load(file, mmap_mode=mmap_mode, allow_pickle=bool(allow_pickle))
    return make.array(found) if isinstance(found, np.ndarray) else _Archive(found)


def save(file: Any, arr: Any, allow_pickle: Any = None) -> None:
    """Write an array to a file of this machine."""
    np.save(file, asnumpy(arr), allow_pickle=bool(allow_pickle))


def savez(file: Any, *args: Any, **kwargs: Any) -> None:
    """Write arrays to an archive of this machine."""
    np.savez(file, *map(asnumpy, args), **{key: asnumpy(value) for key, value in kwargs.items()})


def savez_compressed(file: Any, *args: Any, **kwargs: Any) -> None:
    """Write arrays to a compressed archive of this machine."""
    given = {key: asnumpy(value) for key, value in kwargs.items()}
    np.savez_compressed(file, *map(asnumpy, args), **given)


def savetxt(fname: Any, X: Any, *args: Any, **kwargs: Any) -> None:
    """Write an array to a text file of this machine."""
    np.savetxt(fname, asnumpy(X), *args, **kwargs)


def _text(function: Callable[..., str]) -> Callable[..., str]:
    def formatted(a: Any, *args: Any, **kwargs: Any) -> str:
        return function(asnumpy(a), *args, **kwargs)

    formatted.__doc__ = f"Format an array; see `numpy.{function.__name__}`."
    return formatted


# --- questions about arrays -----------------------------------------------------------------------


def get_array_module(*args: Any) -> Any:
    """Return `cupy` if any argument is on a device, else `numpy`."""
    for arg in args:
        if _is_array(arg) or hasattr(arg, "__cupy_get_ndarray__"):
            return state.hooks["module"]
    return np


def ndim(a: Any) -> int:
    """Return the number of axes."""
    return a.ndim if _is_array(a) else np.ndim(a)


def shape(a: Any) -> tuple[int, ...]:
    """Return the lengths of the axes."""
    return a.shape if _is_array(a) else np.shape(a)


def size(a: Any, axis: Any = None) -> int:
    """Return the number of elements, or the length of an axis."""
    array = need(a)
    if axis is None:
        return array.size
    if not -array.ndim <= axis < array.ndim:
        raise IndexError("index out of range")
    return array.shape[axis]


def isscalar(element: Any) -> bool:
    """Say whether it is a scalar; arrays of no dimensions are not."""
    return np.isscalar(element)


def isfortran(a: Any) -> bool:
    """Say whether it is Fortran-contiguous and not C-contiguous."""
    return need(a).flags.fnc


def iscomplexobj(x: Any) -> bool:
    """Say whether the type is complex."""
    return x.dtype.kind == "c" if _is_array(x) else np.iscomplexobj(x)


def isrealobj(x: Any) -> bool:
    """Say whether the type is not complex."""
    return not iscomplexobj(x)


def result_type(*arrays_and_dtypes: Any) -> Any:
    """Return the type that results from promotion."""
    if int(np.__version__.split(".")[0]) < 2:
        # Before NEP 50 NumPy looked at the values of scalars; CuPy 14 never does.
        strong = [
            x.dtype if hasattr(x, "dtype") else np.dtype(x)
            for x in arrays_and_dtypes
            if type(x) not in (int, float, complex)
        ]
        kinds = [type(x) for x in arrays_and_dtypes if type(x) in (int, float, complex)]
        if strong and kinds:
            from cupy._core.functions import _weak_result  # pyright: ignore[reportPrivateUsage]

            return _weak_result(np.result_type(*strong), kinds)
    return np.result_type(*[x.dtype if _is_array(x) else x for x in arrays_and_dtypes])


def can_cast(from_: Any, to: Any, casting: str = "safe") -> bool:
    """Say whether a cast is allowed."""
    return np.can_cast(from_.dtype if _is_array(from_) else from_, to, casting)  # type: ignore[arg-type]


def min_scalar_type(a: Any) -> Any:
    """Return the smallest type that holds a scalar."""
    return (
        a.dtype
        if _is_array(a) and a.ndim
        else np.min_scalar_type(asnumpy(a) if _is_array(a) else a)
    )


def common_type(*arrays: Any) -> Any:
    """Return the float type that is common to arrays."""
    if not arrays:
        return np.float16
    kinds = [np.dtype(np.float64) if a.dtype.kind in "iu" else a.dtype for a in map(need, arrays)]
    if any(kind.kind == "b" for kind in kinds):
        raise TypeError("can't get common type for non-numeric array")
    return np.result_type(*kinds).type


def byte_bounds(a: Any) -> tuple[int, int]:
    """Return the first and the last address of an array's memory."""
    meta: Meta = need(a)._meta
    low = high = a.data.ptr
    for length, stride in zip(meta.shape, meta.strides, strict=True):
        if stride < 0:
            low += (length - 1) * stride
        else:
            high += (length - 1) * stride
    return low, high + meta.dtype.itemsize


def is_available() -> bool:
    """Say whether there is a GPU session with at least one device."""
    return state.hooks["module"].cuda.is_available()


# --- grids and helpers ----------------------------------------------------------------------------


class AxisConcatenator:
    """What ``r_`` and ``c_`` are: indexing that joins."""

    def __init__(self, axis: int = 0, ndmin: int = 1, trans1d: int = -1) -> None:
        self.axis = axis
        self.ndmin = ndmin
        self.trans1d = trans1d

    def __getitem__(self, key: Any) -> Any:
        items = key if isinstance(key, tuple) else (key,)
        if any(isinstance(item, (slice, str)) for item in items):
            raise NotImplementedError("slices and text are not supported")
        parts: list[Any] = []
        scalars: list[int] = []
        for at, item in enumerate(items):
            if isinstance(item, (int, float, complex, np.generic)):
                scalars.append(at)
                parts.append(make.array(item, ndmin=self.ndmin))
                continue
            array = make.asarray(item)
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
        return FUNCTIONS["concatenate"](parts, self.axis)

    def __len__(self) -> int:
        return 0


class Grid:
    """What ``mgrid`` and ``ogrid`` are: slices that become coordinates."""

    def __init__(self, sparse: bool) -> None:
        self._numpy: Any = np.ogrid if sparse else np.mgrid

    def __getitem__(self, key: Any) -> Any:
        made = self._numpy[key]
        if isinstance(made, np.ndarray):
            return make.upload(made)
        return [make.upload(part) for part in made]


class broadcast:
    """Arrays in their common shape; see `numpy.broadcast`."""

    def __init__(self, *arrays: Any) -> None:
        from cupy._core.ufunc import broadcast as common

        shapes = [need(a).shape for a in arrays if _is_array(a)]
        self.shape = common(*shapes) if shapes else ()
        self.values = tuple(
            FUNCTIONS["broadcast_to"](a, self.shape) if _is_array(a) else a for a in arrays
        )
        self.nd = len(self.shape)
        self.size = int(np.prod(self.shape, dtype=np.int64)) if self.shape else 1


class flatiter:
    """A 1-D view of the elements, for reading and writing."""

    def __init__(self, a: Any) -> None:
        self.base = a
        self._next = 0

    def __len__(self) -> int:
        return self.base.size

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, tuple):
            raise IndexError("unsupported iterator index")
        return self.base.ravel()[index].copy()

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(index, tuple):
            raise IndexError("unsupported iterator index")
        flat = self.base.ravel()
        ndarray: Any = state.hooks["ndarray"]
        if isinstance(index, slice) and isinstance(value, ndarray):
            # As in NumPy, values are repeated, and what is too much is ignored.
            value = FUNCTIONS["resize"](value.ravel(), (len(range(*index.indices(flat.size))),))
        flat[index] = value
        if not self.base.flags.c_contiguous:
            self.base[...] = flat.reshape(self.base.shape)

    def __iter__(self) -> "flatiter":
        self._next = 0
        return self

    def __next__(self) -> Any:
        place = self._next
        if place >= self.base.size:
            raise StopIteration
        self._next = place + 1
        return self.base[np.unravel_index(place, self.base.shape)]

    def copy(self) -> Any:
        """Return the elements as a 1-D array."""
        return self.base.flatten()


def ix_(*args: Any) -> tuple[Any, ...]:
    """Return index arrays that select a grid."""
    made: list[Any] = []
    for at, item in enumerate(args):
        array = make.asarray(item)
        if array.ndim != 1:
            raise ValueError("Cross index must be 1 dimensional")
        if array.size == 0:
            array = array.astype(np.intp)
        if array.dtype == np.bool_:
            (array,) = FUNCTIONS["nonzero"](array)
        made.append(array.reshape((1,) * at + (array.size,) + (1,) * (len(args) - at - 1)))
    return tuple(made)


def diag_indices(n: int, ndim: int = 2) -> tuple[Any, ...]:
    """Return the indices of a diagonal."""
    return (FUNCTIONS["arange"](n),) * ndim


def diag_indices_from(arr: Any) -> tuple[Any, ...]:
    """Return the indices of an array's diagonal."""
    array = need(arr)
    if array.ndim < 2:
        raise ValueError("input array must be at least 2-d")
    if len(set(array.shape)) != 1:
        raise ValueError("All dimensions of input must be of equal length")
    return diag_indices(array.shape[0], array.ndim)


def mask_indices(n: int, mask_func: Callable[..., Any], k: int = 0) -> tuple[Any, ...]:
    """Return the indices that a masking function keeps."""
    return FUNCTIONS["nonzero"](mask_func(FUNCTIONS["ones"]((n, n), dtype="int8"), k) != 0)


def _triangle_indices(name: str) -> Any:
    def function(n: int, k: int = 0, m: Any = None) -> tuple[Any, ...]:
        mask = FUNCTIONS["tri"](n, m, k if name == "tril" else k - 1, dtype=bool)
        return FUNCTIONS["nonzero"](mask if name == "tril" else ~mask)

    function.__doc__ = f"Return the indices of the triangle that `{name}` keeps."
    return function


tril_indices, triu_indices = _triangle_indices("tril"), _triangle_indices("triu")


def tril_indices_from(arr: Any, k: int = 0) -> tuple[Any, ...]:
    """Return the indices of an array's lower triangle."""
    if need(arr).ndim != 2:
        raise ValueError("input array must be 2-d")
    return tril_indices(arr.shape[0], k, arr.shape[1])


def triu_indices_from(arr: Any, k: int = 0) -> tuple[Any, ...]:
    """Return the indices of an array's upper triangle."""
    if need(arr).ndim != 2:
        raise ValueError("input array must be 2-d")
    return triu_indices(arr.shape[0], k, arr.shape[1])


def memoize(for_each_device: bool = False) -> Callable[[Any], Any]:
    """Make a decorator that remembers a function's results."""

    def decorator(function: Any) -> Any:
        memo: dict[Any, Any] = {}
        _memos.append(memo)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            device = state.local.context[0] if for_each_device else -1
            key = (device, args, frozenset(kwargs.items()))
            if key not in memo:
                memo[key] = function(*args, **kwargs)
            return memo[key]

        return wrapper

    return decorator


_memos: list[dict[Any, Any]] = []


def clear_memo() -> None:
    """Forget what all memoised functions returned."""
    for memo in _memos:
        memo.clear()


def fuse(*args: Any, **kwargs: Any) -> Any:
    """Return the function as it is: its calls are pipelined, which is where the time would go."""
    if len(args) == 1 and callable(args[0]) and not kwargs:
        return args[0]
    return lambda function: function


def show_config(*, _full: bool = False) -> None:
    """Print what is known of the session."""
    import sys

    from cupy._door import pool

    lines = [f"{'gpupool drop-in':<28}: {pool.VERSION}", f"{'NumPy Version':<28}: {np.__version__}"]
    lines += [
        f"{f'Device {index} Name':<28}: {session.devices[index - session.first_device]['name']}"
        for index, session in enumerate(pool.devices())
    ]
    sys.stdout.write("\n".join(lines) + "\n")


class UniqueAllResult(NamedTuple):
    """Result of `unique_all`."""

    values: Any
    indices: Any
    inverse_indices: Any
    counts: Any


class UniqueCountsResult(NamedTuple):
    """Result of `unique_counts`."""

    values: Any
    counts: Any


class UniqueInverseResult(NamedTuple):
    """Result of `unique_inverse`."""

    values: Any
    inverse_indices: Any


def unique_all(x: Any) -> Any:
    """Return distinct elements, their places, the inverse and the counts."""
    values, index, inverse, counts = FUNCTIONS["unique"](x, True, True, True, equal_nan=False)
    return UniqueAllResult(values, index, inverse.reshape(x.shape), counts)


def unique_counts(x: Any) -> Any:
    """Return distinct elements and their counts."""
    return UniqueCountsResult(*FUNCTIONS["unique"](x, return_counts=True, equal_nan=False))


def unique_inverse(x: Any) -> Any:
    """Return distinct elements and the inverse."""
    values, inverse = FUNCTIONS["unique"](x, return_inverse=True, equal_nan=False)
    return UniqueInverseResult(values, inverse.reshape(x.shape))


def unique_values(x: Any) -> Any:
    """Return distinct elements."""
    return FUNCTIONS["unique"](x, equal_nan=False)


def _cumulative(name: str, start: int) -> Any:
    def function(
        x: Any,
        /,
        *,
        axis: Any = None,
        dtype: Any = None,
        out: Any = None,
        include_initial: bool = False,
    ) -> Any:
        array = need(x)
        if array.ndim == 0:
            raise ValueError("For arrays which have no dimensions, the axis argument is required.")
        if axis is None:
            if array.ndim > 1:
                raise ValueError(
                    "For arrays which have more than one dimension ``axis`` argument is required."
                )
            axis = 0
        if out is not None and include_initial:
            raise NotImplementedError("include_initial with out is not supported")
        made = FUNCTIONS[name](array, axis, dtype, out)
        if include_initial:
            at = make.axis_of(axis, array.ndim)
            edge = FUNCTIONS["full"](
                (*made.shape[:at], 1, *made.shape[at + 1 :]), start, made.dtype
            )
            made = FUNCTIONS["concatenate"]([edge, made], at)
        return made

    return function


HOST: dict[str, Any] = {
    "asarray": asarray,
    "asanyarray": asarray,
    "asarray_chkfinite": asarray_chkfinite,
    "asfarray": asfarray,
    "ascontiguousarray": ascontiguousarray,
    "asfortranarray": asfortranarray,
    "asnumpy": asnumpy,
    "copy": copy,
    "astype": astype,
    "from_dlpack": from_dlpack,
    "fromDlpack": from_dlpack_capsule,
    "frombuffer": frombuffer,
    "fromfile": fromfile,
    "fromfunction": fromfunction,
    "fromiter": fromiter,
    "fromstring": fromstring,
    "genfromtxt": genfromtxt,
    "loadtxt": loadtxt,
    "load": load,
    "save": save,
    "savez": savez,
    "savez_compressed": savez_compressed,
    "savetxt": savetxt,
    "array2string": _text(np.array2string),
    "array_repr": _text(np.array_repr),
    "array_str": _text(np.array_str),
    "get_array_module": get_array_module,
    "ndim": ndim,
    "shape": shape,
    "size": size,
    "isscalar": isscalar,
    "isfortran": isfortran,
    "iscomplexobj": iscomplexobj,
    "isrealobj": isrealobj,
    "result_type": result_type,
    "can_cast": can_cast,
    "min_scalar_type": min_scalar_type,
    "common_type": common_type,
    "byte_bounds": byte_bounds,
    "is_available": is_available,
    "r_": AxisConcatenator(),
    "c_": AxisConcatenator(-1, 2, 0),
    "mgrid": Grid(False),
    "ogrid": Grid(True),
    "broadcast": broadcast,
    "flatiter": flatiter,
    "ix_": ix_,
    "diag_indices": diag_indices,
    "diag_indices_from": diag_indices_from,
    "mask_indices": mask_indices,
    "tril_indices": tril_indices,
    "triu_indices": triu_indices,
    "tril_indices_from": tril_indices_from,
    "triu_indices_from": triu_indices_from,
    "memoize": memoize,
    "clear_memo": clear_memo,
    "fuse": fuse,
    "show_config": show_config,
    "unique_all": unique_all,
    "unique_counts": unique_counts,
    "unique_inverse": unique_inverse,
    "unique_values": unique_values,
    "cumulative_sum": _cumulative("cumsum", 0),
    "cumulative_prod": _cumulative("cumprod", 1),
    "base_repr": np.base_repr,
    "binary_repr": np.binary_repr,
    "format_float_positional": np.format_float_positional,
    "format_float_scientific": np.format_float_scientific,
    "s_": np.s_,
    "index_exp": np.index_exp,
}
state.hooks["flatiter"] = flatiter
