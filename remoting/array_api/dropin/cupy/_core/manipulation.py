"""Reshaping, splitting and rearranging arrays; `joining` has the functions that join them."""

from __future__ import annotations

from typing import Any

import numpy as np

from cupy._core import convert
from cupy._core.dispatch import arguments, make
from cupy._core.dispatch.arguments import is_array, need
from cupy._core.joining import JOINING
from cupy._core.ufunc import broadcast
from cupy._door import state
from cupy._door.meta import Meta, fresh, of_view
from cupy._door.older import zip_strict


def reshape(a: Any, newshape: Any, order: str = "C", *, copy: Any = None) -> Any:
    """Return the elements in another shape."""
    return arguments.able(a, "reshape").reshape(newshape, order=order, copy=copy)


def ravel(a: Any, order: str = "C") -> Any:
    """Return the elements in one dimension."""
    return arguments.able(a, "ravel").ravel(order)


def transpose(a: Any, axes: Any = None) -> Any:
    """Return the axes in another order."""
    return arguments.able(a, "transpose").transpose(axes)


def matrix_transpose(x: Any) -> Any:
    """Return the transpose of the last two axes."""
    if x.ndim < 2:
        raise ValueError(f"Input array must be at least 2-dimensional, but it is {x.ndim}")
    return x.swapaxes(-1, -2)


def swapaxes(a: Any, axis1: int, axis2: int) -> Any:
    """Return two axes exchanged."""
    return arguments.able(a, "swapaxes").swapaxes(axis1, axis2)


def moveaxis(a: Any, source: Any, destination: Any) -> Any:
    """Return axes moved to other places."""
    meta: Meta = need(a)._gp_meta
    sources = arguments.axes_of(source, meta.ndim)
    targets = arguments.axes_of(destination, meta.ndim)
    if len(sources) != len(targets):
        raise ValueError(
            "`source` and `destination` arguments must have the same number of elements"
        )
    order = [axis for axis in range(meta.ndim) if axis not in sources]
    for target, axis in sorted(zip_strict(targets, sources)):
        order.insert(target, axis)
    return a.transpose(order) if order else a.view()


def rollaxis(a: Any, axis: int, start: int = 0) -> Any:
    """Return an axis rolled back to a place."""
    ndim = need(a).ndim
    at = arguments.axis_of(axis, ndim)
    begin = start + ndim if start < 0 else start
    if not 0 <= begin <= ndim:
        raise np.exceptions.AxisError(start, ndim)
    if at < begin:
        begin -= 1
    order = [item for item in range(ndim) if item != at]
    order.insert(begin, at)
    return a.transpose(order)


def squeeze(a: Any, axis: Any = None) -> Any:
    """Return the array without axes of length one."""
    return arguments.able(a, "squeeze").squeeze(axis)


def broadcast_to(array: Any, shape: Any) -> Any:
    """Return a read view of the array in a larger shape."""
    source = convert.asarray(array)
    lengths = arguments.shape_of(shape)
    return make.view(
        source,
        "broadcast_to",
        (lengths,),
        of_view(np.broadcast_to(source._gp_meta.shadow, lengths)),
    )


def broadcast_arrays(*args: Any) -> tuple[Any, ...]:
    """Return the arrays in their common shape."""
    shape = broadcast(*[need(item).shape for item in args])
    return tuple([item if item.shape == shape else broadcast_to(item, shape) for item in args])


# --- splitting ------------------------------------------------------------------------------------


def _cuts(indices_or_sections: Any) -> int | tuple[int, ...]:
    on_device = is_array(indices_or_sections)
    return arguments.plain(indices_or_sections.get() if on_device else indices_or_sections)


def array_split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """Split into parts that need not be equal."""
    array = need(ary)
    if not array.ndim:
        raise IndexError("tuple index out of range")
    at = arguments.axis_of(axis, array.ndim)
    size = array.shape[at]
    given = _cuts(indices_or_sections)
    if isinstance(given, int):
        count = given
        if count <= 0:
            raise ValueError("number sections must be larger than 0.")
        each, more = divmod(size, count)
        lengths = [each + 1] * more + [each] * (count - more)
        cuts = [sum(lengths[:part]) for part in range(count + 1)]
    else:
        cuts = [0, *given, size]
    full = (slice(None),) * at
    return [array[(*full, slice(a, b))] for a, b in zip(cuts, cuts[1:])]


def split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """Split into equal parts, or at indices."""
    array = need(ary)
    if array.ndim <= axis:
        raise ValueError("Axis exceeds ndim")
    given = _cuts(indices_or_sections)
    if isinstance(given, int) and array.shape[axis] % given:
        raise ValueError(
            "indices_or_sections must divide the size along the axes.\n"
            "If you want to split the array into non-equally-sized arrays, use array_split instead."
        )
    return array_split(array, given, axis)


def _split_along(name: str, axis: int, least: int) -> Any:
    def function(ary: Any, indices_or_sections: Any) -> list[Any]:
        if need(ary).ndim < least:
            raise ValueError(f"Cannot {name} an array with less than {least} dimensions")
        at = 0 if name == "hsplit" and ary.ndim == 1 else axis
        return split(ary, indices_or_sections, at)

    return function


# --- rearranging ----------------------------------------------------------------------------------


def flip(a: Any, axis: Any = None) -> Any:
    """Return a view with axes reversed."""
    array = a if hasattr(a, "ndim") else need(a)
    axes = arguments.axes_of(axis, array.ndim)
    index = tuple(slice(None, None, -1) if at in axes else slice(None) for at in range(array.ndim))
    return array[index] if index else array.view()


def fliplr(a: Any) -> Any:
    """Return a view with the second axis reversed."""
    if np.ndim(a) < 2:
        raise ValueError("Input must be >= 2-d")
    return a[:, ::-1]


def flipud(a: Any) -> Any:
    """Return a view with the first axis reversed."""
    if np.ndim(a) < 1:
        raise ValueError("Input must be >= 1-d")
    return a[::-1]


def rot90(a: Any, k: int = 1, axes: Any = (0, 1)) -> Any:
    """Return the array turned by 90 degrees."""
    array = need(a)
    if len(axes) != 2:
        raise ValueError("len(axes) must be 2")
    first, second = arguments.axis_of(axes[0], array.ndim), arguments.axis_of(axes[1], array.ndim)
    if first == second:
        raise ValueError("Axes must be different")
    turns = k % 4
    if turns == 0:
        return array[...]
    if turns == 2:
        return flip(flip(array, first), second)
    if turns == 1:
        return flip(array, second).swapaxes(first, second)
    return flip(array.swapaxes(first, second), second)


def roll(a: Any, shift: Any, axis: Any = None) -> Any:
    """Return the elements shifted along axes, those that leave coming back."""
    array = need(a)
    if axis is not None:
        axis = arguments.plain(axis)
        for item in arguments.integers(axis):
            arguments.axis_of(item, array.ndim)
    if type(shift) is not int and not is_array(shift):
        shift = np.asarray(shift).astype(np.int64).tolist()
    return make.forward("roll", (array, shift, axis), {}, fresh(array.dtype, array.shape))


def tile(A: Any, reps: Any) -> Any:
    """Return the array repeated along axes."""
    array = convert.asarray(A)
    times = arguments.shape_of(reps)
    lengths = (1,) * (len(times) - array.ndim) + array.shape
    counts = (1,) * (array.ndim - len(times)) + times
    shape = tuple(length * count for length, count in zip_strict(lengths, counts))
    return make.forward("tile", (array, times), {}, fresh(array.dtype, shape))


def _check_repeats(repeats: Any, length: int) -> None:
    if not np.can_cast(repeats.dtype, np.int64):
        raise TypeError(
            f"Cannot cast array data from {repeats.dtype!r} to dtype('int64') "
            "according to the rule 'safe'"
        )
    if repeats.ndim > 1:
        raise ValueError("object too deep for desired array")
    if repeats.size not in (1, length):
        raise ValueError(
            f"'repeats' and 'axis' of 'a' should be same length: {repeats.size} != {length}"
        )


def repeat(a: Any, repeats: Any, axis: Any = None) -> Any:
    """Return every element several times."""
    if not is_array(a):
        return arguments.able(a, "repeat").repeat(repeats, axis)
    array = a
    if isinstance(repeats, np.ndarray):
        raise TypeError("numpy.ndarray is not supported as repeats; use cupy.ndarray or a list")
    source = array if axis is not None else array.ravel()
    at = arguments.axis_of(axis if axis is not None else 0, source.ndim)
    if isinstance(repeats, state.hooks["ndarray"]):
        _check_repeats(repeats, source.shape[at])
        return make.lazy("repeat", (source, repeats, at), {})
    if np.ndim(repeats) > 1:
        raise ValueError("object too deep for desired array")
    counts = list(arguments.integers(repeats))
    if any(count < 0 for count in counts):
        raise ValueError("all elements of 'repeats' should be non-negative")
    length = source.shape[at]
    if len(counts) == 1:
        total = length * counts[0]
    elif len(counts) != length:
        raise ValueError(
            f"'repeats' and 'axis' of 'a' should be same length: {len(counts)} != {length}"
        )
    else:
        total = sum(counts)
    shape = (*source.shape[:at], total, *source.shape[at + 1 :])
    given = counts[0] if len(counts) == 1 else counts
    return make.forward("repeat", (source, given, at), {}, fresh(source.dtype, shape))


def resize(a: Any, new_shape: Any) -> Any:
    """Return the elements repeated or cut to a shape."""
    array = convert.asarray(a)
    shape = arguments.shape_of(new_shape)
    size = int(np.prod(shape, dtype=np.int64)) if shape else 1
    if array.size == size:
        return array.reshape(shape)
    if array.size == 0:
        return state.hooks["functions"]["zeros"](shape, array.dtype)
    count = -(-size // array.size)
    return tile(array.ravel(), count)[:size].reshape(shape)


def delete(arr: Any, indices: Any, axis: Any = None) -> Any:
    """Return the array without the slices at ``indices``."""
    if not is_array(arr):
        raise ValueError("delete() needs a cupy.ndarray")
    array = arr
    if isinstance(indices, np.ndarray) and indices.shape == ():
        indices = indices.item()
    whole = isinstance(indices, (int, np.integer)) and type(indices) is not bool
    if not isinstance(indices, slice) and not whole:
        given = convert.asarray(indices)
        length = array.size if axis is None else array.shape[arguments.axis_of(axis, array.ndim)]
        empty = isinstance(indices, (list, tuple)) and not given.size
        if given.dtype == np.bool_ and not empty and given.shape != (length,):
            raise ValueError(
                "boolean array argument obj to delete must be one dimensional and match the axis "
                f"length of {length}"
            )
        # An empty list means no indices, not an empty mask.
        indices = given if given.size or isinstance(indices, np.ndarray) else given.astype(int)
    return make.lazy("delete", (array, indices, axis), {})


def trim_zeros(filt: Any, trim: str = "fb") -> Any:
    """Return a vector without zeros at its ends."""
    array = need(filt)
    if array.ndim > 1:
        raise ValueError("Multi-dimensional trim is not supported")
    return make.lazy("trim_zeros", (array, trim), {})


def pad(array: Any, pad_width: Any, mode: Any = "constant", **kwargs: Any) -> Any:
    """Return the array with borders added."""
    source = convert.asarray(array)
    given_widths = np.asarray(pad_width)
    if given_widths.dtype.kind != "i":
        raise TypeError("`pad_width` must be of integral type.")
    widths = np.broadcast_to(given_widths.astype(np.intp), (source.ndim, 2)).tolist()
    if callable(mode):
        return _pad_by(source, widths, mode, kwargs)
    shape = tuple(length + a + b for length, (a, b) in zip_strict(source.shape, widths))
    given = {
        key: value.tolist() if isinstance(value, np.ndarray) else value
        for key, value in kwargs.items()
    }
    if not source.ndim:
        return source.copy()
    return make.forward("pad", (source, widths, mode), given, fresh(source.dtype, shape))


def _pad_by(source: Any, widths: list[list[int]], function: Any, kwargs: Any) -> Any:
    shape = tuple(length + a + b for length, (a, b) in zip_strict(source.shape, widths))
    padded = state.hooks["functions"]["zeros"](shape, source.dtype)
    padded[tuple(slice(a, a + n) for n, (a, _) in zip_strict(source.shape, widths))] = source
    for axis in range(padded.ndim):
        view = moveaxis(padded, axis, -1)
        for index in np.ndindex(view.shape[:-1]):
            function(view[index], tuple(widths[axis]), axis, kwargs)
    return padded


def require(a: Any, dtype: Any = None, requirements: Any = None) -> Any:
    """Return an array that meets requirements of dtype and layout."""
    wanted = {
        str(item).upper()
        for item in ([requirements] if isinstance(requirements, str) else requirements or [])
    }
    known = {
        "C": "C",
        "CONTIGUOUS": "C",
        "C_CONTIGUOUS": "C",
        "F": "F",
        "FORTRAN": "F",
        "F_CONTIGUOUS": "F",
        "O": "O",
        "OWNDATA": "O",
    }
    for item in wanted:
        if item not in known:
            raise ValueError(f"Unsupported requirement {item}")
    letters = {known[item] for item in wanted}
    if letters >= {"C", "F"}:
        raise ValueError('Cannot specify both "C" and "F" order')
    order = "F" if "F" in letters else "C" if "C" in letters else "A"
    try:
        kind = None if dtype is None else np.dtype(dtype)
    except TypeError:
        raise ValueError(f"invalid data type: {dtype}") from None
    made = convert.array(a, dtype=kind, order=order, copy=None)
    return made.copy() if "O" in letters and made.base is not None else made


MANIPULATION: dict[str, Any] = {
    **JOINING,
    **make.public(globals()),
    "permute_dims": transpose,
    "hsplit": _split_along("hsplit", 1, 1),
    "vsplit": _split_along("vsplit", 0, 2),
    "dsplit": _split_along("dsplit", 2, 3),
}
