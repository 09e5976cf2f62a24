"""The closed table of an emulated device: CuPy's operations in terms of NumPy's."""

# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import operator
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gpupool.remoting.devices.base import UnsupportedError, address_of, owner_of
from gpupool.remoting.devices.conventions import device_properties
from gpupool.remoting.devices.conventions.conversions import (
    converted,
    converting,
    fitted,
    operands,
    stored,
)
from gpupool.remoting.devices.emulated_arithmetic import ARITHMETIC, FORMULAS, sinc
from gpupool.remoting.devices.emulated_random import random_operations
from gpupool.remoting.devices.extensions import emulated_extensions
from gpupool.remoting.devices.host_kernels.host_kernel_operations import host_kernel_operations
from gpupool.remoting.devices.object_families import emulated_objects
from gpupool.remoting.devices.operation_names import (
    FFT,
    FUNCTIONS,
    LINALG,
    METHODS,
    POLYNOMIAL,
    UFUNCS,
)

Operation = Callable[..., Any]
Array = np.ndarray[Any, Any]


def _getitem(a: Array, index: Any) -> Array:
    # An index that is complete would give a NumPy scalar, which is a copy; with an Ellipsis it
    # stays a view of no dimensions, as CuPy's is.
    items = index if isinstance(index, tuple) else (index,)
    return a[items] if any(item is Ellipsis for item in items) else a[(*items, Ellipsis)]


def _field(a: Any, name: str) -> Array:
    made = a[name]
    if not isinstance(a, np.ndarray) or made.dtype.char == "V" or not made.size:
        return made
    size = made.dtype.itemsize
    if any(step % size for step in made.strides) or address_of(made) % size:
        raise ValueError(
            f"result array with dtype {made.dtype} is not sufficiently aligned for GPU operations: "
            "numpy.dtype(fields, align=True) makes a structure that is"
        )
    return made


def _fill(a: Array, value: object) -> None:
    a[...] = fitted(value, a.dtype)  # of a structure each field, also from one of other types


def _gather(a: Array, index: tuple[Any, ...]) -> Array:
    return a[_wrapped(a, index)]


def _wrapped(a: Array, index: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return an index with integer arrays wrapped into range, as CuPy does."""
    used = sum(
        item.ndim if _is_mask(item) else 1
        for item in index
        if item is not None and item is not Ellipsis
    )
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


def _is_mask(item: object) -> bool:
    return isinstance(item, np.ndarray) and item.dtype == np.bool_


def _setitem(a: Array, index: Any, value: object) -> None:
    if isinstance(index, tuple):
        # The ellipsis makes an element an array without axes, which takes one of axes of length 1.
        more = () if any(item is Ellipsis for item in index) else (...,)
        a[(*_wrapped(a, index), *more)] = fitted(value, a.dtype)
    elif isinstance(index, np.ndarray):
        a[_wrapped(a, (index,))] = fitted(value, a.dtype)
    else:
        a[index] = fitted(value, a.dtype)


def _float_of(dtype: np.dtype) -> np.dtype:
    """Return the float type of a function that NumPy computes in float64 and CuPy does not."""
    for char in "efd":
        if np.can_cast(dtype, char):
            return np.dtype(char)
    return dtype


_BY_FIELDS: dict[str, Operation] = {"equal": operator.eq, "not_equal": operator.ne}
_BOOL = np.dtype(np.bool_)
_COMPARE = frozenset(("equal", "not_equal", "greater", "greater_equal", "less", "less_equal"))


def _is_truth(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.bool_


def _wide(value: object) -> object:
    """Return an integer beyond NumPy's default type in a type that holds it."""
    if type(value) is not int:
        return value
    return np.uint64(value) if value >> 63 > 0 else np.int64(value)


def _ufunc(name: str) -> Operation:
    function = getattr(np, name)
    if not isinstance(function, np.ufunc):
        return _pseudo_ufunc(name, function)
    typed = ARITHMETIC.get(name)

    def call(*args: Any, _where: object = None, casting: object = None, **kwargs: Any) -> object:
        if _where is not None:
            kwargs["where"] = _where
        if name in _BY_FIELDS and getattr(args[0], "dtype", _BOOL).char == "V":
            # NumPy's ufuncs do not take structures, its operators do.
            return np.asarray(_BY_FIELDS[name](*args))
        if name in ("positive", "sign") and _is_truth(args[0]):
            args = (args[0].view(np.int8), *args[1:]) if name == "sign" else args
            return np.absolute(*args, **kwargs)  # of truth values the same
        if name in _COMPARE and any(_is_truth(arg) for arg in args):
            args = tuple([_wide(arg) for arg in args])
        if typed is not None or kwargs.get("dtype") is not None:
            args = tuple(operands(function, args, kwargs.pop("dtype", None)))
        # CuPy applies `casting` to outputs alone, and the client has.
        return (typed or function)(*args, casting="unsafe", **kwargs)

    return call


def _pseudo_ufunc(name: str, function: Operation) -> Operation:
    # i0, sinc and fix are ufuncs in CuPy, and Python functions in NumPy.
    def call(x: Array, out: object = None, dtype: Any = None, **_: object) -> object:
        value = np.asarray(x) if dtype is None else np.asarray(x, dtype)
        kind = value.dtype if name == "fix" else _float_of(value.dtype)
        if name == "i0" and value.dtype.kind == "f":  # that of infinity is infinite
            value = np.minimum(np.abs(value.astype(np.float64)), 1e300)
        made = np.asarray(sinc(value) if name == "sinc" else function(value)).astype(kind)
        return made if out is None else stored(out, made)

    return call


def _at(name: str, a: Array, index: object, value: object) -> None:
    if name not in UFUNCS:
        raise ValueError(f"no ufunc {name}")
    items = index if isinstance(index, tuple) else (index,)
    getattr(np, name).at(a, _wrapped(a, items), fitted(value, a.dtype))


def _copyto(target: Array, source: Array, casting: Any = "same_kind", where: Any = None) -> None:
    source = fitted(source, target.dtype) if casting == "unsafe" else source
    np.copyto(target, source, casting=casting, where=True if where is None else where)


def _take(a: Array, indices: Array, axis: Any = None, out: Any = None) -> Array:
    return np.take(a, indices, axis, out=out, mode="wrap")


def _put(a: Array, indices: Array, values: object, mode: Any = "wrap") -> None:
    np.put(a, indices, fitted(values, a.dtype), mode=mode)


def _argument(name: str) -> Operation:
    function = getattr(np, name)

    def call(a: Array, axis: Any = None, dtype: object = None, **kwargs: Any) -> object:
        if isinstance(axis, tuple):  # the place within these axes together
            axes = sorted(at % a.ndim for at in axis)
            moved = np.moveaxis(a, axes, range(-len(axes), 0))
            made = np.asarray(function(moved.reshape(*moved.shape[: -len(axes)], -1), -1))
            made = np.expand_dims(made, axes) if kwargs.get("keepdims") else made
        else:
            made = np.asarray(function(a, axis, **kwargs))
        return made if dtype is None else converted(made, dtype)

    return call


def _reduction(name: str) -> Operation:
    function = getattr(np, name)

    def call(a: Array, *args: object, dtype: Any = None, **kwargs: object) -> object:
        if dtype is None:
            return function(a, *args, **kwargs)
        kind = np.dtype(dtype)  # the client has warned of imaginary parts that are lost
        return function(fitted(a, kind), *args, dtype=kind, **kwargs)

    return call


def _raveled(places: Any, dims: Any, mode: Any = "wrap", order: Any = "C") -> object:
    return np.ravel_multi_index(places, dims, mode, order)


def _along(function: Operation) -> Operation:
    def call(a: Array, indices: Array, *rest: object, axis: Any = None, values: Any = None) -> Any:
        given = list(rest) if values is None else [values, *rest]
        if len(given) > (function is np.put_along_axis):
            axis = given.pop()
        length = a.size if axis is None else a.shape[axis]
        parts = [fitted(each, a.dtype) for each in given]
        return function(a, indices % length if length else indices, *parts, axis)

    return call


def _into(arrays: Sequence[Array], axis: int, out: Array, casting: Any) -> None:
    np.concatenate(fitted(arrays, out.dtype), axis, out, casting=casting)


def _concatenate(arrays: Any, axis: int = 0, dtype: Any = None, casting: Any = "same_kind") -> Any:
    if dtype is not None:
        arrays = fitted(arrays, dtype)
    return np.concatenate(arrays, axis, dtype=dtype, casting=casting)


def _transform(name: str) -> Operation:
    function = getattr(np.fft, name)
    is_inverse = name == "hfft" or name.startswith("irfft")

    def call(a: Any, *args: Any) -> object:
        if name[-1] == "n" and len(args) > 1 and args[0] is not None and args[1] is None:
            args = (args[0], tuple(range(-len(args[0]), 0)), *args[2:])  # as NumPy asks for
        if is_inverse and not a.size and len(args) > 1 and args[0] is not None:
            # NumPy's inverse of nothing has random values, and CuPy's has zeros.
            shape = list(a.shape)
            for axis in np.ravel(args[1]):
                shape[axis] = shape[axis] or 1
            a = np.zeros(shape, a.dtype)
        if isinstance(a, np.ndarray) and a.dtype == np.float16 and not name.endswith("shift"):
            # CuPy has no transform in half precision, but gives a real result over one axis so.
            axes = args[1] if name[-1] in "2n" and len(args) > 1 else ()
            back = name in ("irfft", "hfft") or (name[:5] == "irfft" and len(axes or ()) == 1)
            made = function(a.astype(np.float32), *args)
            return made.astype(np.float16) if back else made
        return function(a, *args)

    return call


def _einsum(text: Any, *arrays: Array, **kwargs: Any) -> Array:
    if not isinstance(text, str):
        return np.einsum(text, *arrays, **kwargs)
    if len(arrays) == 1:
        made = np.einsum(text, *arrays)
        if np.may_share_memory(made, arrays[0]):
            return made  # nothing is added: a view in its argument's dtype, as CuPy's
    # With ``optimize`` NumPy may drop an operand, and the type that it would have brought.
    # (A dtype without fields is false, so ``or`` would not do here.)
    dtype = kwargs["dtype"] if "dtype" in kwargs else np.result_type(*arrays)
    # The product of the first two in their own type could be too small for it.
    arrays = tuple([converted(a, dtype) for a in arrays])
    return np.asarray(np.einsum(text, *arrays, casting="unsafe", **kwargs)).astype(
        dtype, copy=False
    )


def _histogram(name: str) -> Operation:
    function, places = getattr(np, name), 4 if name == "histogram2d" else 3

    def call(*args: Any, **kwargs: Any) -> object:  # NumPy has the last two in the other order
        named = dict(zip(("weights", "density"), args[places:], strict=False))
        return function(*args[:places], **named, **kwargs)

    return call


def _solve(a: Array, b: Array) -> Array:
    kind = np.result_type(a, b, np.float32 if a.dtype.char in "fF" else np.float64)
    judged = b.size or b.shape[:-1] != a.shape[:-1]
    return np.linalg.solve(a, b) if judged else np.empty(b.shape, kind)


_SOLVERS = ("cholesky", "inv", "tensorinv", "tensorsolve")
_SINGULAR = ("Singular matrix", "Matrix is not positive definite")


def _solvers() -> dict[str, Operation]:
    """Return functions that give NaN for a singular matrix, or raise if the program asks for it."""
    raises = False

    def set_errors(raised: object) -> None:
        nonlocal raises
        raises = bool(raised)

    def solver(function: Operation) -> Operation:
        def solved(a: Array, *args: Any, **kwargs: Any) -> Array:
            try:
                return function(a, *args, **kwargs)
            except np.linalg.LinAlgError as error:
                if raises or str(error) not in _SINGULAR:
                    raise
            if a.ndim > 2 and "tensor" not in function.__name__:  # of several each by itself
                return np.stack([solved(*each) for each in zip(a, *args, strict=True)])
            quiet = np.linalg.inv if function is np.linalg.cholesky else function
            return quiet(a * np.nan, *args, **kwargs)

        return solved

    table = {f"linalg.{at}": solver(getattr(np.linalg, at)) for at in _SOLVERS}
    return table | {"linalg.solve": solver(_solve), "door.linalg_errors": set_errors}


def _eigh(a: Array, UPLO: Any = "L") -> object:
    if a.dtype != np.float16:
        return np.linalg.eigh(a, UPLO)
    return tuple(each.astype(a.dtype) for each in np.linalg.eigh(a.astype(np.float32), UPLO))


def _eigvalsh(a: Array, UPLO: Any = "L") -> Any:
    if a.dtype != np.float16:
        return np.linalg.eigvalsh(a, UPLO)
    return np.linalg.eigvalsh(a.astype(np.float32), UPLO).astype(a.dtype)


def _complex(made: Array, a: Array) -> Array:
    # NumPy gives real numbers where no imaginary part is left; cuSOLVER's are complex.
    if a.size:
        return made.astype(np.result_type(made, np.complex64))
    return made if np.iscomplexobj(a) else made.real  # NumPy 2.5 makes them complex


def _eig(a: Array) -> object:
    return tuple(_complex(each, a) for each in np.linalg.eig(a))


def _lstsq(a: Array, b: Array, rcond: Any = None) -> object:
    b = b.astype(np.result_type(a, b), copy=False)
    return np.linalg.lstsq(a, b, -1 if rcond == "warn" else rcond)


def _memory(a: Array, offset: int, shape: Any, dtype: Any, strides: Any) -> Array:
    """Return an array over the memory that ``a`` starts in; it must stay inside."""
    if 0 in shape:
        return np.empty(shape, dtype)  # of no element
    owner = owner_of(a)
    flat = owner.reshape(-1, order="A").view(np.uint8)
    start = address_of(a) - address_of(owner) + offset
    low = high = 0
    for length, stride in zip(shape, strides, strict=True):
        if length:
            low += min(0, (length - 1) * stride)
            high += max(0, (length - 1) * stride)
    if start + low < 0 or start + high + np.dtype(dtype).itemsize > flat.nbytes:
        raise ValueError("the array would reach outside its allocation")
    return np.ndarray(shape, dtype, flat, start, strides)


def _as_strided(a: Array, shape: object, strides: object) -> Array:
    return _memory(a, 0, shape, a.dtype, strides)


def _reshape_view(a: Array, shape: Any, order: Any = "C") -> Array:
    made = a.reshape(shape, order=order)
    if made.size and not np.may_share_memory(made, a):
        raise BufferError("reshape made a copy where the client inferred a view")
    return made


class Marker:
    """Stands for a stream or an event: an emulated device finishes every call at once."""

    def __init__(self, *_: object) -> None:
        self.time = time.perf_counter()


def _record(event: Marker, _stream: object) -> None:
    event.time = time.perf_counter()


def _done(*_arguments: object) -> None:
    """Wait for nothing: it is complete."""


def _no_textures(*_arguments: object) -> None:
    raise UnsupportedError("an emulated GPU has no textures and surfaces: a real one has them")


def _cuda(backend: Any) -> dict[str, Operation]:
    def current() -> Any:
        return backend.pools[backend.current]

    def set_limit(size: int) -> None:
        current().limit = min(size, current().memory)

    def properties() -> dict[str, object]:
        spec = backend.devices[backend.current]
        return device_properties.properties(spec.name, spec.uuid, spec.memory)

    return {
        **{f"cuda.{each}.create": _no_textures for each in ("array", "surface", "texture")},
        **{f"cuda.{each}.synchronize": _done for each in ("device", "event", "stream")},
        "cuda.mem_info": lambda: (current().free_memory(), current().memory),
        "cuda.properties": properties,
        "cuda.attributes": lambda: {name: value for name, _, value in device_properties.ATTRIBUTES},
        "cuda.attribute": lambda asked: next(
            (v for _, at, v in device_properties.ATTRIBUTES if at == asked), 0
        ),
        "cuda.versions": lambda: [0, 0],
        "cuda.pool.numbers": lambda: [
            current().used,
            current().total,
            current().limit,
            current().free_blocks(),
        ],
        "cuda.pool.set_limit": set_limit,
        "cuda.pool.free_all_blocks": lambda: current().free_all_blocks(),
        "cuda.stream.create": Marker,
        "cuda.stream.done": lambda _stream: True,
        "cuda.stream.wait_event": _done,
        "cuda.event.create": Marker,
        "cuda.event.record": _record,
        "cuda.event.done": lambda _event: True,
        "cuda.event.elapsed": lambda first, last: (last.time - first.time) * 1e3,
    }


_METHODS: dict[str, Operation] = {
    **{f"ndarray.{name}": getattr(np.ndarray, name) for name in METHODS},
    "ndarray.field": _field,
    "ndarray.getitem": _getitem,
    "ndarray.gather": _gather,
    "ndarray.setitem": _setitem,
    "ndarray.astype": converted,
    "ndarray.reshape": lambda a, shape, order="C": a.reshape(shape, order=order),
    "ndarray.reshape_view": _reshape_view,
    "ndarray.view": lambda a, dtype=None: a.view() if dtype is None else a.view(dtype),
    "ndarray.real": lambda a: a.real,
    "ndarray.imag": lambda a: a.imag,
    "ndarray.fill": _fill,
    "ndarray.sort": lambda a, axis=-1, kind=None: a.sort(axis, kind="stable"),
    "ndarray.as_strided": _as_strided,
    "ufunc.at": _at,
    "ufunc.reduceat": np.add.reduceat,
}


_PLANS = 16
"""Plans of transforms that CuPy keeps by default; an emulated GPU keeps none."""


def _plan_operations(devices: int, current: Callable[[], int]) -> dict[str, Operation]:
    """Return the operations on the limits of plans; ``current`` numbers the current device."""
    limits = [[_PLANS, -1] for _ in range(devices)]  # plans, and bytes; -1 for any number

    def limit(place: int, value: int) -> None:
        if value < -1:
            raise ValueError("invalid input")
        limits[current()][place] = value

    return {
        "fft.cache.numbers": lambda: [limits[current()][0], 0, limits[current()][1], 0],
        "fft.cache.set_size": lambda size: limit(0, size),
        "fft.cache.set_memsize": lambda size: limit(1, size),
        "fft.cache.clear": lambda: None,
    }


def operations(backend: Any) -> Mapping[str, Operation]:
    """Return name to callable; anything absent here is refused by name at the client."""
    table: dict[str, Operation] = {name: _ufunc(name) for name in UFUNCS}
    table |= {name: getattr(np, name) for name in FUNCTIONS}
    table |= {f"linalg.{name}": getattr(np.linalg, name) for name in LINALG}
    for name in POLYNOMIAL:
        table[f"polynomial.{name}"] = operator.attrgetter(name)(np.polynomial)
    transforms = {f"fft.{name}": _transform(name) for name in FFT}
    table |= transforms
    table |= _plan_operations(len(backend.devices), lambda: backend.current)
    table |= random_operations()
    table |= emulated_extensions()
    table |= _cuda(backend) | host_kernel_operations(backend) | emulated_objects(backend)
    table |= (
        FORMULAS
        | _METHODS
        | _solvers()
        | {
            "rsqrt": lambda x, **kwargs: np.reciprocal(np.sqrt(x), **kwargs),
            **{name: _histogram(name) for name in ("histogram", "histogram2d", "histogramdd")},
            **{name: _argument(name) for name in ("argmax", "argmin", "nanargmax", "nanargmin")},
            **{name: _reduction(name) for name in ("cumprod", "cumsum", "prod", "sum")},
            "argsort": lambda a, axis=-1, kind=None: np.argsort(a, axis, kind="stable"),
            "diag": lambda v, k=0: np.diag(v, k).copy(),
            "concatenate": _concatenate,
            "copyto": _copyto,
            "put": _put,
            "ravel_multi_index": _raveled,
            "put_along_axis": _along(np.put_along_axis),
            "sort": lambda a, axis=-1, kind=None: np.sort(a, axis, kind="stable"),
            "around": lambda a, decimals=0, out=None: np.around(
                a.astype("e") if a.dtype == _BOOL else a, decimals, out
            ),
            "bincount": lambda x, weights=None, minlength=None: np.bincount(
                x, weights, int(minlength or 0)
            ),
            "fft.fftfreq": lambda n, d=1.0: np.fft.fftfreq(max(n, 0), d * np.float64(1)),
            "choose": lambda a, *args, **kwargs: np.choose(a.astype(int), *args, **kwargs),
            "compress": lambda condition, a, axis=None, out=None: _take(
                a, condition.nonzero()[0], axis, out
            ),
            "extract": lambda condition, a: _take(a, condition.ravel().nonzero()[0]),
            "take": _take,
            "take_along_axis": _along(np.take_along_axis),
            "einsum": _einsum,
            "linalg.eig": _eig,
            "linalg.eigh": _eigh,
            "linalg.eigvalsh": _eigvalsh,
            "linalg.eigvals": lambda a: _complex(np.linalg.eigvals(a), a),
            "linalg.lstsq": _lstsq,
            "door.empty": np.zeros,
            "door.zeros": np.zeros,
            "door.arange": lambda first, count, step, dtype: converted(
                first + np.arange(count) * step, dtype
            ),
            "door.concatenate_into": _into,
            "door.pointer": address_of,
            "door.memory": _memory,
        }
    )
    return {name: converting(function) for name, function in table.items()}
