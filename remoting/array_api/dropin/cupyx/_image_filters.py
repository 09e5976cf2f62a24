"""Filters of images by a kernel or a function of the program.

A window's elements are found by tables that the host makes, one for each axis: the place of an
element in the image, or -1 where the filter has a constant. So the kernel has no boundary modes
in it, and the program's own code is all that differs between two filters.
"""

from __future__ import annotations

import operator
import warnings
from typing import Any

import cupy
import numpy as np
from cupy._core.dispatch import arguments as _arguments
from cupy._core.dispatch.arguments import is_array as _is_array
from cupy._util import TYPENAMES as _TYPES

_KERNELS_MAX = 256
_kernels: dict[Any, Any] = {}
_PARAMETERS = "raw X x, raw int64 table, raw int64 places, raw int64 shape, float64 outside"
_WINDOW = """
const int gp_axes = %(axes)d;
long long gp_at[gp_axes], gp_rest = i;
for (int axis = gp_axes - 1; axis >= 0; --axis) {
  gp_at[axis] = gp_rest %% shape[axis];
  gp_rest /= shape[axis];
}
%(element)s gp_values[%(size)d];
for (int k = 0; k < %(size)d; ++k) {
  long long gp_from = 0;
  bool gp_inside = true;
  for (int axis = 0; axis < gp_axes; ++axis) {
    const long long gp_place =
        table[shape[gp_axes + axis] + gp_at[axis] + places[k * gp_axes + axis]];
    gp_inside = gp_inside && gp_place >= 0;
    gp_from = gp_from * shape[axis] + gp_place;
  }
  if (gp_inside) {
    gp_values[k] = (%(element)s)x[gp_from];
  } else {
    gp_values[k] = %(constant)s;
  }
}
%(result)s gp_made;
%(call)s
y = %(cast)s;
"""
_REDUCTION = """
namespace gpupool_reduction {
struct Places {
  long long at, length;
  __device__ long long size() const { return length; }
  __device__ const long long *get() const { return &at; }
};
%(types)s
%(preamble)s
#define REDUCE(a, b) (%(reduce)s)
#define POST_MAP(a) (%(post)s)
typedef %(kind)s _type_reduce;
__device__ void run(const %(input)s *_raw_%(x)s, int gp_size, %(output)s &%(y)s) {
  Places _in_ind = {0, gp_size}, _out_ind = {0, 1};
  _type_reduce _s = _type_reduce(%(identity)s);
  for (int _j = 0; _j < gp_size; ++_j) {
    _in_ind.at = _j;
    const %(input)s &%(x)s = _raw_%(x)s[_j];
    _type_reduce _a = static_cast<_type_reduce>(%(map)s);
    _s = REDUCE(_s, _a);
  }
  (void)_out_ind;
  POST_MAP(_s);
}
#undef REDUCE
#undef POST_MAP
}
"""


# --- arguments ------------------------------------------------------------------------------------


def _each(value: Any, count: int, name: str, kind: Any) -> list[Any]:
    """Return a value for each axis, from one for all or from a sequence."""
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        return [kind(value)] * count
    values = [kind(item) for item in value]
    if len(values) != count:
        raise RuntimeError(f"{name} must have length equal to input rank")
    return values


def _mode(value: Any) -> str:
    names = {"grid-mirror": "reflect", "grid-wrap": "wrap"}
    mode = names.get(value, value)
    if mode not in ("reflect", "constant", "nearest", "mirror", "wrap"):
        raise RuntimeError(f"boundary mode not supported (actual: {value})")
    return mode


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
    if output is None:
        return cupy.empty(image.shape, image.dtype)
    if not _is_array(output):
        return cupy.empty(image.shape, cupy.dtype(output))
    if output.shape != image.shape:
        raise RuntimeError("output shape not correct")
    return output


def _window(image: Any, size: Any, footprint: Any, axes: tuple[int, ...]) -> np.ndarray[Any, Any]:
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
    order = np.argsort(axes)
    lengths = [1] * image.ndim
    for axis, length in zip(axes, counted.shape):
        lengths[axis] = length
    return counted.transpose(tuple(order)).reshape(lengths)


def _origin(value: int, width: int) -> int:
    """Return the place of a window's first element, counted from its own element."""
    if not 0 <= width // 2 + value < width:
        raise ValueError("invalid origin")
    return width // 2 + value


def _table(length: int, width: int, before: int, mode: str) -> np.ndarray[Any, Any]:
    """Return the element indices of the windows along an axis; -1 is outside."""
    at = np.arange(length + width - 1) - before
    if mode == "constant":
        return np.where((at < 0) | (at >= length), -1, at)
    if mode == "nearest":
        return at.clip(0, length - 1)
    if mode == "wrap":
        return at % length
    if mode == "mirror":
        period = max(2 * length - 2, 1)
        return np.minimum(at % period, period - at % period) if length > 1 else at * 0
    return np.minimum(at % (2 * length), 2 * length - 1 - at % (2 * length))


# --- kernels --------------------------------------------------------------------------------------


def _cast(name: str, dtype: Any, value: str) -> str:
    """Return how a number becomes an element: negative ones of no sign as SciPy has them."""
    if dtype.kind in "ub":
        return f"{value} >= 0 ? ({name})({value}) : ({name})-({name})(-({value}))"
    return f"({name})({value})"


def _remembered(key: Any, make: Any) -> Any:
    found = _kernels.get(key)
    if found is None:
        if len(_kernels) >= _KERNELS_MAX:
            _kernels.clear()
        found = _kernels[key] = make()
    return found


def _of_raw(kernel: Any) -> str:
    """Return the source of a raw kernel as a function that another kernel calls."""
    return "namespace gpupool_raw {\n" + kernel.code.replace("__global__", "__device__") + "\n}\n"


def _type_name(parameter: Any, letters: dict[str, str], own: str) -> str:
    if parameter.dtype is not None:
        return _TYPES[parameter.dtype.char]
    return letters.setdefault(parameter.ctype, own)


def _of_reduction(kernel: Any) -> tuple[str, str]:
    """Return the source of a reduction as a function, and the type of its result."""
    x, y = kernel.in_params[0], kernel.out_params[0]
    letters: dict[str, str] = {}
    taken, made = _type_name(x, letters, "::X"), _type_name(y, letters, "::Y")
    types = "".join(f"typedef {own} {letter};\n" for letter, own in letters.items())
    kind = kernel.reduce_type if kernel.reduce_type != y.ctype else made
    parts = {"types": types, "preamble": kernel.preamble, "kind": kind, "x": x.name, "y": y.name}
    parts |= {"input": taken, "output": made, "identity": kernel.identity}
    parts |= {"reduce": kernel.reduce_expr, "post": kernel.post_map_expr, "map": kernel.map_expr}
    return _REDUCTION % parts, made


def _windowed(function: Any, image: Any, output: Any, axes: int, size: int) -> Any:
    """Return the kernel that applies a function to each window of an image."""
    parts: dict[str, Any] = {"axes": axes, "size": size}
    if isinstance(function, cupy.RawKernel):
        if image.dtype.kind == "c":
            raise TypeError("Complex type not supported")
        preamble = _of_raw(function)
        call = f"gpupool_raw::{function.name}(gp_values, {size}, &gp_made);"
        parts |= {"element": "double", "constant": "outside", "result": "double", "call": call}
        parts["cast"] = _cast("Y", output.dtype, "gp_made")
    else:
        preamble, made = _of_reduction(function)
        call = f"gpupool_reduction::run(gp_values, {size}, gp_made);"
        constant = _cast("X", image.dtype, "outside")
        parts |= {"element": "X", "constant": constant, "result": made, "call": call}
        same = made in ("::Y", "::X") and image.dtype == output.dtype
        plain = same or made == "::Y" or made == _TYPES[output.dtype.char]
        parts["cast"] = "gp_made" if plain else _cast("Y", output.dtype, "gp_made")
    options = tuple(getattr(function, "options", ()))
    operation = _WINDOW % parts
    return _remembered(
        (operation, preamble, options),
        lambda: cupy.ElementwiseKernel(
            _PARAMETERS, "Y y", operation, "generic_filter", preamble=preamble, options=options
        ),
    )


def _checked(function: Any) -> None:
    if isinstance(function, cupy.RawKernel):
        return
    if isinstance(function, cupy.ElementwiseKernel):
        raise TypeError("only ReductionKernel allowed (not ElementwiseKernel)")
    if not isinstance(function, cupy.ReductionKernel):
        raise TypeError("bad function type")
    if function.nin != 1 or function.nout != 1:
        raise TypeError("ReductionKernel must have 1 input and output")


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
    window = _window(input, size, footprint, over)
    modes, origins = ["constant"] * input.ndim, [0] * input.ndim
    given = (_each(mode, len(over), "mode", _mode), _each(origin, len(over), "origin", int))
    for axis, one, at in zip(over, *given):
        modes[axis], origins[axis] = one, at
    before = [_origin(at, width) for at, width in zip(origins, window.shape)]
    _checked(function)
    made = _output(output, input)
    kernel = _windowed(function, input, made, input.ndim, int(window.sum()))
    if input.size == 0:
        return made
    tables = [_table(*each) for each in zip(input.shape, window.shape, before, modes)]
    starts = np.cumsum([0, *(len(table) for table in tables)])[:-1]
    shape = np.asarray([*input.shape, *starts], np.int64)
    into = cupy.empty_like(made) if cupy.shares_memory(made, input) else made
    kernel(
        cupy.ascontiguousarray(input),
        cupy.asarray(np.concatenate(tables).astype(np.int64)),
        cupy.asarray(np.argwhere(window).astype(np.int64).ravel()),
        cupy.asarray(shape),
        float(cval),
        into,
    )
    if into is not made:
        made[...] = into
    return made


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
    before, boundary = _origin(int(origin), filter_size), _mode(mode)
    made = _output(output, input)
    if input.size == 0:
        return made
    length = input.shape[along]
    table = _table(length, filter_size, before, boundary)
    moved = cupy.moveaxis(input, along, -1)
    lines = moved.reshape(-1, length).astype(np.float64)
    wide = lines[:, cupy.asarray(table.clip(0))]
    if boundary == "constant":
        wide[:, cupy.asarray(table < 0)] = float(cval)
    results = cupy.empty(lines.shape)
    body = (
        f"gpupool_raw::{function.name}("
        f"(double *)&x[i * {len(table)}LL], {len(table)}, &y[i * {length}LL], {length});"
    )
    preamble = _of_raw(function)
    kernel = _remembered(
        (body, preamble, function.options),
        lambda: cupy.ElementwiseKernel(
            "raw float64 x",
            "raw float64 y",
            body,
            "generic_filter1d",
            preamble=preamble,
            options=function.options,
        ),
    )
    kernel(wide, results, size=lines.shape[0])
    element = _cast("Y", made.dtype, "x")
    cast = _remembered(
        element,
        lambda: cupy.ElementwiseKernel("float64 x", "Y y", f"y = {element}", "generic_cast"),
    )
    cast(cupy.moveaxis(results.reshape(moved.shape), -1, along), made)
    return made


# --- functions of the program ---------------------------------------------------------------------


def generic_laplace(
    input: Any,  # noqa: A002 - SciPy's name
    derivative2: Any,
    output: Any = None,
    mode: Any = "reflect",
    cval: Any = 0.0,
    extra_arguments: Any = (),
    extra_keywords: Any = None,
    *,
    axes: Any = None,
) -> Any:
    """Add the second derivatives along the axes, which a function of the program computes."""
    keywords = {} if extra_keywords is None else extra_keywords
    over = _axes(axes, input.ndim)
    made = _output(output, input)
    if not over:
        made[...] = input
        return made
    modes = _each(mode, len(over), "mode", _known_mode)
    derivative2(input, over[0], made, modes[0], cval, *extra_arguments, **keywords)
    for axis, one in zip(over[1:], modes[1:]):
        part = cupy.empty(input.shape, made.dtype)
        derivative2(input, axis, part, one, cval, *extra_arguments, **keywords)
        made += part
    return made


def generic_gradient_magnitude(
    input: Any,  # noqa: A002 - SciPy's name
    derivative: Any,
    output: Any = None,
    mode: Any = "reflect",
    cval: Any = 0.0,
    extra_arguments: Any = (),
    extra_keywords: Any = None,
    *,
    axes: Any = None,
) -> Any:
    """Return the length of the gradient; a function of the program computes its parts."""
    keywords = {} if extra_keywords is None else extra_keywords
    over = _axes(axes, input.ndim)
    modes = _each(mode, len(over), "mode", _known_mode)
    made = _output(output, input)
    if not over:
        made[...] = input
        return made
    derivative(input, over[0], made, modes[0], cval, *extra_arguments, **keywords)
    made *= made
    for axis, one in zip(over[1:], modes[1:]):
        part = cupy.empty(input.shape, made.dtype)
        derivative(input, axis, part, one, cval, *extra_arguments, **keywords)
        part *= part
        made += part
    return cupy.sqrt(made, made, casting="unsafe")


def _known_mode(value: Any) -> Any:
    """Return a boundary mode by its own name: the function of the program gets it."""
    _mode(value)
    return value
