"""Filters of images by a kernel of the program.

The windows of a padded image are the rows of a matrix, so a reduction runs along its rows, and a
raw kernel once for each. That needs room for as many elements as all windows have.
"""

from __future__ import annotations

import functools
import operator
import warnings
from typing import Any

import cupy
import numpy as np
from cupy._core.dispatch import arguments as _arguments
from cupy._core.dispatch.arguments import is_array as _is_array
from cupy.lib import stride_tricks as _stride_tricks

_MODES = {"constant": "constant", "mirror": "reflect", "nearest": "edge", "reflect": "symmetric",
          "wrap": "wrap", "grid-mirror": "symmetric", "grid-wrap": "wrap"}  # fmt: skip
"""NumPy's names for the modes of an image's border."""


def _each(value: Any, count: int, name: str, kind: Any) -> list[Any]:
    """Return a value for each axis, from one for all or from a sequence."""
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        return [kind(value)] * count
    values = [kind(item) for item in value]
    if len(values) != count:
        raise RuntimeError(f"{name} must have length equal to input rank")
    return values


def _mode(value: str) -> str:
    if value not in _MODES:
        raise RuntimeError(f"boundary mode not supported (actual: {value})")
    return _MODES[value]


def _axes(axes: Any, ndim: int) -> tuple[int, ...]:
    if axes is None:
        return tuple(range(ndim))
    given = axes if hasattr(axes, "__iter__") else (axes,)
    found = tuple(_arguments.axis_of(operator.index(axis), ndim) for axis in given)
    if len(set(found)) != len(found):
        raise ValueError("axes must be unique")
    return found


def _output(output: Any, image: Any) -> Any:
    """Return the array for the result: the one that was given, or a new one of its type."""
    if not _is_array(output):
        return cupy.empty(image.shape, image.dtype if output is None else cupy.dtype(output))
    if output.shape != image.shape:
        raise RuntimeError("output shape not correct")
    return output


def _window(ndim: int, size: Any, footprint: Any, axes: tuple[int, ...]) -> np.ndarray:
    """Return the mask of a window's counted elements, over all axes of the image."""
    if footprint is None:
        if size is None:
            raise RuntimeError("no footprint or filter size provided")
        counted = np.ones(_each(size, len(axes), "size", int), bool)
    else:
        if size is not None:
            warnings.warn("ignoring size because footprint is set", UserWarning, stacklevel=3)
        counted = np.asarray(cupy.asnumpy(footprint), bool)
        if not counted.any():
            raise ValueError("all-zero footprint is not supported")
    if counted.ndim != len(axes):
        raise RuntimeError("footprint array has incorrect shape")
    lengths = dict(zip(axes, counted.shape))
    return counted.transpose(np.argsort(axes)).reshape([lengths.get(at, 1) for at in range(ndim)])


def _padded(image: Any, lengths: Any, origins: Any, modes: Any, cval: Any) -> Any:
    """Return an image with the border that windows of these lengths reach."""
    for axis, (width, origin, mode) in enumerate(zip(lengths, origins, modes)):
        first = width // 2 + origin
        if not 0 <= first < width:
            raise ValueError("invalid origin")
        pads = [(0, 0)] * image.ndim
        pads[axis] = (first, width - 1 - first)
        more = {"constant_values": cval} if mode == "constant" else {}
        if width > 1 and image.size:
            image = cupy.pad(image, pads, mode, **more)
    return image


@functools.lru_cache(256)
def _row_kernel(name: str, code: str, options: Any, width: int, count: int, sizes: Any) -> Any:
    body = (
        f"gpupool_raw::{name}((double *)&x[i * {width}LL], {width}, "
        f"&y[i * {count}LL]{''.join(f', {size}' for size in sizes)});"
    )
    device = code.replace("__global__", "__device__")
    return cupy.ElementwiseKernel(
        *("raw float64 x", "raw float64 y", body, "generic_filter"),
        preamble=f"namespace gpupool_raw {{\n{device}\n}}\n",
        options=options,
    )


def _applied(function: Any, wide: Any, count: int, *sizes: int) -> Any:
    """Return the results of a raw kernel for each row of a matrix, ``count`` numbers a row."""
    described = function.name, function.code, tuple(function.options)
    results = cupy.empty((len(wide), count))
    kernel = _row_kernel(*described, wide.shape[1], count, sizes)
    kernel(cupy.ascontiguousarray(wide), results, size=len(wide))
    return results


def _reduced(function: Any, wide: Any, wished: Any) -> Any:
    """Return a reduction of each row of a matrix, in its own type or else in the wished one."""
    x, y = function.in_params[0], function.out_params[0]
    kind = y.dtype if y.dtype is not None else wide.dtype if y.ctype == x.ctype else wished
    return function(wide, cupy.empty(len(wide), kind), axis=1)


def _store(results: Any, made: Any) -> Any:
    """Return an array with results as its elements: negative ones of no sign as SciPy has them."""
    if made.dtype.kind in "ub" and results.dtype.kind in "fi":
        kind = made.dtype
        results = cupy.where(results < 0, -(-results).astype(kind), results.astype(kind))
    made[...] = results
    return made


def _checked(function: Any) -> bool:
    """Say whether it is a raw kernel, else a reduction that may run along rows."""
    if isinstance(function, cupy.RawKernel):
        return True
    if isinstance(function, cupy.ElementwiseKernel):
        raise TypeError("only ReductionKernel allowed (not ElementwiseKernel)")
    if not isinstance(function, cupy.ReductionKernel):
        raise TypeError("bad function type")
    if function.nin != 1 or function.nout != 1:
        raise TypeError("ReductionKernel must have 1 input and output")
    texts = (function.map_expr, function.reduce_expr, function.post_map_expr)
    if any(name in text for text in texts for name in ("_raw_", "_in_ind", "_out_ind")):
        raise NotImplementedError(
            "a reduction reads its own window by names of CuPy's code (_raw_x, _in_ind): pass a "
            "RawKernel; on Linux, where CuPy is installed, `gpupool run --door cuda` runs it"
        )
    return False


def generic_filter(
    input: Any,  # noqa: A002 - SciPy's name
    function: Any,
    size: Any = None,
    footprint: Any = None,
    output: Any = None,
    mode: Any = "reflect",
    cval: Any = 0.0,
    origin: Any = 0,
    *,
    axes: Any = None,
) -> Any:
    """Apply a `RawKernel` or a `ReductionKernel` to the window around each element.

    Raises:
        TypeError: the function is no kernel, which CuPy does not take either.
        RuntimeError, ValueError: sizes, modes or origins do not fit the image.
    """
    over = _axes(axes, input.ndim)
    window = _window(input.ndim, size, footprint, over)
    modes = dict(zip(over, _each(mode, len(over), "mode", _mode)))
    origins = dict(zip(over, _each(origin, len(over), "origin", int)))
    raw, made = _checked(function), _output(output, input)
    if raw and input.dtype.kind == "c":
        raise TypeError("Complex type not supported")
    every = range(input.ndim)
    border = [origins.get(at, 0) for at in every], [modes.get(at, "constant") for at in every]
    image = input.astype(np.float64) if raw else input
    padded = _padded(image, window.shape, *border, cval)
    if input.size == 0:
        return made
    windows = _stride_tricks.sliding_window_view(padded, window.shape)
    wide = cupy.ascontiguousarray(windows).reshape(-1, window.size)
    if not window.all():
        wide = wide[:, cupy.asarray(np.flatnonzero(window))]
    results = _applied(function, wide, 1) if raw else _reduced(function, wide, made.dtype)
    return _store(results.reshape(input.shape), made)


def generic_filter1d(
    input: Any,  # noqa: A002 - SciPy's name
    function: Any,
    filter_size: Any,
    axis: int = -1,
    output: Any = None,
    mode: Any = "reflect",
    cval: Any = 0.0,
    origin: Any = 0,
) -> Any:
    """Apply a `RawKernel` to each line of an image along an axis.

    Raises:
        TypeError: the function is no raw kernel, or the image is complex.
        RuntimeError, ValueError: the size, the mode or the origin does not fit.
    """
    if input.dtype.kind == "c":
        raise TypeError("Complex type not supported")
    if not isinstance(function, cupy.RawKernel):
        raise TypeError("bad function type")
    if filter_size < 1:
        raise RuntimeError("invalid filter size")
    along = _arguments.axis_of(axis, input.ndim)
    moved = cupy.moveaxis(input, along, -1)
    lines = moved.reshape(-1, input.shape[along]).astype(np.float64)
    wide = _padded(lines, (1, filter_size), (0, int(origin)), ("wrap", _mode(mode)), cval)
    made = _output(output, input)
    if input.size == 0:
        return made
    results = _applied(function, wide, lines.shape[1], lines.shape[1])
    return _store(cupy.moveaxis(results.reshape(moved.shape), -1, along), made)
