"""The closed table of real GPUs: names that a client may use, and CuPy's callables for them."""

# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import importlib
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gpupool.remoting.devices.cuda_kernels import kernel_operations
from gpupool.remoting.devices.cuda_objects.counted_textures import CudaTextures
from gpupool.remoting.devices.extensions import real_extensions
from gpupool.remoting.devices.object_families import real_objects
from gpupool.remoting.devices.operation_names import (
    BIT_GENERATORS,
    FFT,
    FUNCTIONS,
    GENERATOR,
    LINALG,
    METHODS,
    POLYNOMIAL,
    RANDOM_STATE,
    UFUNCS,
)

Operation = Callable[..., Any]
_SPECIAL = ("choice", "permutation", "randint", "seed", "shuffle", "tomaxint")
_TYPED = ("random", "standard_exponential", "standard_gamma", "standard_normal")


def _arange(cupy: Any) -> Operation:
    ranges = importlib.import_module("cupy._creation.ranges")

    def arange(first: object, count: int, step: object, dtype: Any) -> object:
        # The client has counted the elements; CuPy's own count could differ by rounding.
        made = cupy.empty((count,), dtype)
        if count:
            kind = np.dtype(dtype).type
            ranges._arange_ufunc(kind(first), kind(step), made, dtype=dtype)
        return made

    return arange


def _memory(cupy: Any) -> Operation:
    def memory(a: Any, offset: int, shape: Any, dtype: Any, strides: Any) -> Any:
        low = high = 0
        for length, stride in zip(shape, strides, strict=True):
            if length:
                low += min(0, (length - 1) * stride)
                high += max(0, (length - 1) * stride)
        start = a.data.ptr - a.data.mem.ptr + offset
        size = a.data.mem.size
        if size and (start + low < 0 or start + high + np.dtype(dtype).itemsize > size):
            raise ValueError("the array would reach outside its allocation")
        return cupy.ndarray(tuple(shape), dtype, a.data + offset, tuple(strides))

    return memory


# --- random ---------------------------------------------------------------------------------------


def _drawn(name: str, *, typed: bool = True) -> Operation:
    def draw(source: object, shape: tuple[int, ...], dtype: object, *values: Any) -> object:
        if name in ("dirichlet", "multivariate_normal"):
            shape = shape[: len(shape) - values[0].ndim]
        if typed:
            return getattr(source, name)(*values, size=shape, dtype=dtype)
        return getattr(source, name)(*values, size=shape).astype(dtype, copy=False)

    return draw


def _random(cupy: Any) -> dict[str, Operation]:
    makers = {name: getattr(cupy.random, name) for name in BIT_GENERATORS}

    table: dict[str, Operation] = {
        "random.state": lambda seed, _method: cupy.random.RandomState(seed),
        "random.generator": lambda kind, seed: cupy.random.Generator(makers[kind](seed)),
        "random.seed": lambda source, seed: source.seed(seed),
        "random.randint": lambda source, shape, dtype, low, high: source.randint(
            low, high, shape, dtype
        ),
        "random.choice": lambda source, *args: source.choice(*args),
        "random.permutation": lambda source, a: source.permutation(a),
        "random.shuffle": lambda source, a: source.shuffle(a),
        "random.tomaxint": lambda source, shape, dtype: source.tomaxint(shape).astype(dtype),
        "random.multinomial": lambda source, n, weights, shape: cupy.random.multinomial(
            n, weights, shape[:-1]
        ),
        "generator.integers": lambda source, shape, dtype, low, high: source.integers(
            low, high, shape, dtype
        ),
    }
    table |= {f"random.{name}": _drawn(name) for name in RANDOM_STATE if name not in _SPECIAL}
    generated = [name for name in GENERATOR if name != "integers"]
    table |= {f"generator.{name}": _drawn(name, typed=name in _TYPED) for name in generated}
    return table


# --- cupy.cuda ------------------------------------------------------------------------------------


def _plain(value: object) -> object:
    """Return a device property as a plain value."""
    if isinstance(value, bytes):
        return value.rstrip(b"\0").decode("utf-8", "replace")
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (bool, int, float, str)) else str(value)


def _cuda(backend: Any) -> dict[str, Operation]:
    cupy, pool = backend.cupy, backend.pool
    runtime = cupy.cuda.runtime
    null = cupy.cuda.Stream.null

    def device() -> Any:
        return cupy.cuda.Device(backend.devices[backend.current].ordinal)

    def properties() -> dict[str, object]:
        spec = backend.devices[backend.current]
        found = {k: _plain(v) for k, v in runtime.getDeviceProperties(spec.ordinal).items()}
        # The partition is the device: programs size their work by this.
        found |= {"name": spec.name, "uuid": spec.uuid, "totalGlobalMem": spec.memory}
        return found

    def attribute(number: int) -> int:
        return int(runtime.deviceGetAttribute(number, backend.devices[backend.current].ordinal))

    def stream(non_blocking: bool, priority: object) -> object:
        given = {} if priority is None else {"priority": priority}
        return cupy.cuda.Stream(non_blocking=non_blocking, **given)

    def event(block: bool, disable_timing: bool) -> object:
        return cupy.cuda.Event(block=block, disable_timing=disable_timing)

    def record(made: Any, where: Any) -> None:
        made.record(cupy.cuda.get_current_stream() if where is None else where)

    return {
        "cuda.device.synchronize": lambda: device().synchronize(),
        "cuda.mem_info": backend.memory_info,
        "cuda.properties": properties,
        "cuda.attributes": lambda: {k: int(v) for k, v in device().attributes.items()},
        "cuda.attribute": attribute,
        "cuda.versions": lambda: [runtime.runtimeGetVersion(), runtime.driverGetVersion()],
        "cuda.pool.numbers": lambda: [
            pool.used_bytes(),
            pool.total_bytes(),
            backend.limit(backend.current),
            pool.n_free_blocks(),
        ],
        "cuda.pool.set_limit": backend.set_limit,
        "cuda.pool.free_all_blocks": lambda: pool.free_all_blocks(),
        "cuda.stream.create": stream,
        "cuda.stream.synchronize": lambda made: (made or null).synchronize(),
        "cuda.stream.done": lambda made: bool((made or null).done),
        "cuda.stream.wait_event": lambda made, what: (made or null).wait_event(what),
        "cuda.event.create": event,
        "cuda.event.record": record,
        "cuda.event.done": lambda made: bool(made.done),
        "cuda.event.synchronize": lambda made: made.synchronize(),
        "cuda.event.elapsed": lambda first, last: cupy.cuda.get_elapsed_time(first, last),
    }


# --- arrays ---------------------------------------------------------------------------------------


def _arrays(cupy: Any) -> dict[str, Operation]:
    ufuncs = {name: getattr(cupy, name) for name in UFUNCS}

    def assign(a: Any, index: object, value: object) -> None:
        a[index] = value

    def reshape_view(a: Any, shape: Any, order: str = "C") -> object:
        made = a.reshape(shape, order=order)
        if made.size and made.data.mem.ptr != a.data.mem.ptr:
            raise BufferError("reshape made a copy where the client inferred a view")
        return made

    def concatenate_into(arrays: Any, axis: int, out: Any, casting: str) -> None:
        cupy.concatenate(arrays, axis, out, casting=casting)

    return {
        **{f"ndarray.{name}": getattr(cupy.ndarray, name) for name in (*METHODS, "fill")},
        "ndarray.field": lambda a, name: a[name],
        "ndarray.getitem": lambda a, index: a[index],
        "ndarray.gather": lambda a, index: a[index],
        "ndarray.setitem": assign,
        "ndarray.astype": lambda a, dtype, order="K": a.astype(dtype, order=order),
        "ndarray.reshape": lambda a, shape, order="C": a.reshape(shape, order=order),
        "ndarray.reshape_view": reshape_view,
        "ndarray.view": lambda a, dtype=None: a.view() if dtype is None else a.view(dtype),
        "ndarray.real": lambda a: a.real,
        "ndarray.imag": lambda a: a.imag,
        "ndarray.sort": lambda a, axis=-1, kind=None: a.sort(axis, kind),
        "ndarray.as_strided": cupy.lib.stride_tricks.as_strided,
        "ufunc.at": lambda name, a, index, value: ufuncs[name].at(a, index, value),
        "ufunc.reduceat": lambda a, indices, **kw: cupy.add.reduceat(a, indices, **kw),
        "door.empty": cupy.empty,
        "door.zeros": cupy.zeros,
        "door.arange": _arange(cupy),
        "door.concatenate_into": concatenate_into,
        "door.linalg_errors": linalg_errors,
        "door.pointer": lambda a: int(a.data.ptr),
        "door.memory": _memory(cupy),
        "rsqrt": importlib.import_module("cupyx").rsqrt,
    }


def linalg_errors(raised: object) -> None:
    """Let CuPy raise, in this thread, errors seen in the elements; by default it ignores them."""
    importlib.import_module("cupyx").seterr(linalg="raise" if raised else "ignore")


def _plans(cupy: Any) -> dict[str, Operation]:
    """Return the operations on the plans of transforms that CuPy keeps, in this one thread."""

    def cache() -> Any:
        return cupy.fft.config.get_plan_cache()

    def numbers() -> list[int]:
        found = cache()
        sizes = (found.get_size(), found.get_curr_size())
        return [*sizes, found.get_memsize(), found.get_curr_memsize()]

    return {
        "fft.cache.numbers": numbers,
        "fft.cache.set_size": lambda size: cache().set_size(size),
        "fft.cache.set_memsize": lambda memsize: cache().set_memsize(memsize),
        "fft.cache.clear": lambda: cache().clear(),
    }


def operations(backend: Any) -> Mapping[str, Operation]:
    """Return name to callable; the names are ours, never the client's."""
    cupy = backend.cupy
    table: dict[str, Operation] = {}
    for name in (*UFUNCS, *FUNCTIONS):
        table[name] = getattr(cupy, name)
    table |= {f"linalg.{name}": getattr(cupy.linalg, name) for name in LINALG}
    table |= {f"fft.{name}": getattr(cupy.fft, name) for name in FFT}
    for name in POLYNOMIAL:
        table[f"polynomial.{name}"] = operator.attrgetter(name)(cupy.polynomial)
    table |= real_extensions() | _plans(cupy) | real_objects(backend)
    table |= CudaTextures(backend).operations()
    return table | _random(cupy) | kernel_operations(cupy) | _cuda(backend) | _arrays(cupy)
