"""Callbacks of transforms on an emulated GPU: functions on each element, before and after.

cuFFT calls a load callback for each element that it reads and a store callback for each that it
writes, by its place in dense memory. Here the elements are read into an array and written from one,
and NumPy transforms between. Neither is scaled between, as cuFFT leaves its results.
"""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpupool.remoting.devices.host_kernels import host_compiler, kernel_source
from gpupool.remoting.devices.host_kernels.typed_parameters import Memory
from gpupool.remoting.devices.sources import check_source

Array = np.ndarray[Any, Any]

_TYPES = {"f": "cufftReal", "d": "cufftDoubleReal", "F": "cufftComplex", "D": "cufftDoubleComplex"}
_TRANSFORMS = frozenset(
    f"{kind}{many}" for kind in ("fft", "ifft", "rfft", "irfft") for many in ("", "2", "n")
)
_NAME = re.compile(r"[A-Za-z_]\w*")
_LOAD, _STORE = "gpupool_load", "gpupool_store"
_BLOCK = 128


class Callbacks:
    """A load callback, a store callback, or both, with the data that a program gave them."""

    def __init__(
        self,
        load: Any,
        load_name: Any,
        load_data: Any,
        store: Any,
        store_name: Any,
        store_data: Any,
    ) -> None:
        self._load = _checked(load, load_name)
        self.store = _checked(store, store_name)
        self._load_data, self._store_data = load_data, store_data

    def read(self, array: Array) -> Array:
        """Return a dense array as cuFFT would read it."""
        if self._load is None:
            return array
        code, name = self._load
        kind = _type(array)
        body = (
            f"{kind} *out = *static_cast<{kind} **>(a[2]);\n"
            f"out[i] = {name}(*static_cast<void **>(a[0]), i, *static_cast<void **>(a[1]), "
            "gpupool::dynamic_shared);"
        )
        out = np.empty_like(array)
        _run(code, _LOAD, body, (array, self._load_data, out), array.size)
        return out

    def written(self, array: Array) -> Array:
        """Return a dense result as cuFFT would write it."""
        if self.store is None:
            return array
        code, name = self.store
        kind = _type(array)
        body = (
            f"{name}(*static_cast<void **>(a[2]), i, (*static_cast<{kind} **>(a[0]))[i], "
            "*static_cast<void **>(a[1]), gpupool::dynamic_shared);"
        )
        out = np.zeros_like(array)
        _run(code, _STORE, body, (array, self._store_data, out), array.size)
        return out


def _checked(code: Any, name: Any) -> tuple[str, str] | None:
    if code is None:
        return None
    if not isinstance(code, str) or not isinstance(name, str) or not _NAME.fullmatch(name):
        raise TypeError("a callback is a source and a name")
    check_source(code)
    return code, name


def _type(array: Array) -> str:
    try:
        return _TYPES[array.dtype.char]
    except KeyError:
        raise TypeError(f"no callback takes {array.dtype}") from None


def _run(code: str, entry: str, body: str, arrays: Sequence[Any], count: int) -> None:
    """Run a callback for each of so many elements."""
    text = "\n".join(
        (
            code,
            f'extern "C" void {entry}(void **a) {{',
            "  size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;",
            "  if (i >= *static_cast<size_t *>(a[3])) return;",
            f"  {body}",
            "}",
        )
    )
    made = host_compiler.compiled(kernel_source.unit(text, ("cufftXt.h",)), (), every=False)
    memory = Memory()
    for array in arrays:
        memory.address(array)
    memory.number(count, np.dtype(np.uint64))
    if count:
        grid = (-(-count // _BLOCK), 1, 1)
        made.library.launch(made.library.address(entry), grid, (_BLOCK, 1, 1), memory.pointers)


def called(callbacks: Callbacks, name: Any, a: Any, lengths: Any, axes: Any, norm: Any) -> Array:
    """Return one of the transforms that programs call, with callbacks.

    Args:
        callbacks: what the elements go through.
        name: of the transform, over one axis or over several.
        a: what is transformed.
        lengths: points along each axis; None: all.
        axes: one axis, or several; None: the last ones, or all.
        norm: as NumPy's.
    """
    if name not in _TRANSFORMS or not isinstance(a, np.ndarray) or not a.ndim:
        raise ValueError(f"no callbacks go with {name!r}")
    if norm not in (None, "backward", "ortho", "forward"):
        raise ValueError(f"Invalid norm value {norm}")
    over = (axes,) if isinstance(axes, int) else axes
    wanted = (lengths,) if lengths is None or isinstance(lengths, int) else tuple(lengths)
    if over is None:
        over = range(a.ndim) if lengths is None else range(a.ndim - len(wanted), a.ndim)
    places = np.lib.array_utils.normalize_axis_tuple(tuple(over), a.ndim)
    if wanted == (None,):
        wanted = (None,) * len(places)
    if len(wanted) != len(places) or not places:
        raise ValueError("Shape and axes have different lengths.")
    many = name.rstrip("2n") + "n"
    points = [a.shape[at] if length is None else length for at, length in zip(places, wanted)]  # noqa: B905
    if many == "irfftn" and wanted[-1] is None:
        points[-1] = (a.shape[places[-1]] - 1) * 2
    if not all(type(length) is int and 0 < length < 1 << 40 for length in points):
        raise ValueError(f"Invalid number of FFT data points ({points}) specified.")
    return transformed(callbacks, many, a, points, places, norm)


def transformed(
    callbacks: Callbacks, name: str, a: Array, lengths: Any, axes: Any, norm: Any
) -> Array:
    """Return a transform with callbacks.

    Args:
        callbacks: what the elements go through.
        name: of the transform over several axes, such as ``rfftn``.
        a: what is transformed.
        lengths: points along each axis; for ``irfftn`` of the result.
        axes: the axes, the last one of which is halved by real transforms.
        norm: as NumPy's.
    """
    places = [axis % a.ndim for axis in axes]
    read = list(lengths)
    if name == "irfftn":
        read[-1] = lengths[-1] // 2 + 1
    kind = np.result_type(a, np.float32)
    if name != "rfftn":
        kind = np.result_type(kind, np.complex64)
    shape = list(a.shape)
    for at, length in zip(places, read, strict=True):
        shape[at] = length
    # What cuFFT reads: cut or padded, and dense with the transformed axes last.
    held = np.zeros(shape, kind)
    common = tuple(slice(min(mine, other)) for mine, other in zip(a.shape, shape, strict=True))
    held[common] = a[common]
    rest = [at for at in range(a.ndim) if at not in places]
    order = [*rest, *(sorted(places) if name in ("fftn", "ifftn") else places)]
    dense = np.ascontiguousarray(held.transpose(order))
    last = tuple(range(len(rest), a.ndim))
    wanted = [lengths[places.index(at)] for at in order[len(rest) :]]
    forward = name in ("fftn", "rfftn")
    function: Callable[..., Array] = getattr(np.fft, name)
    if not callbacks.store:
        # As without callbacks: a scale of its own would be rounded otherwise.
        done = function(callbacks.read(dense), wanted, last, norm)
        return np.ascontiguousarray(done.transpose(np.argsort(order)))
    raw = function(callbacks.read(dense), wanted, last, "backward" if forward else "forward")
    done = callbacks.written(np.ascontiguousarray(raw))
    scale = _scale(norm, math.prod(lengths), forward=forward)
    if scale != 1:
        done = (done * scale).astype(done.dtype)
    return np.ascontiguousarray(done.transpose(np.argsort(order)))


def _scale(norm: Any, count: int, *, forward: bool) -> float:
    if norm == "ortho":
        return 1 / math.sqrt(count)
    divides = (norm == "forward") == forward
    return 1 / count if divides else 1.0
