"""Reshaping, splitting and rearranging arrays; `joining` has the functions that join them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from cupy._core import convert
from cupy._core.dispatch import arguments, make
from cupy._core.dispatch.arguments import need
from cupy._core.joining import JOINING, stack
from cupy._core.ufunc import broadcast
from cupy._door.meta import of_view

if TYPE_CHECKING:
    from cupy._core.array import ndarray


def reshape(a: object, newshape: object, order: str = "C", *, copy: object = None) -> ndarray:
    """Return the elements in another shape."""
    return arguments.able(a, "reshape").reshape(newshape, order=order, copy=copy)


def ravel(a: object, order: str = "C") -> ndarray:
    """Return the elements in one dimension."""
    return arguments.able(a, "ravel").ravel(order)


def transpose(a: object, axes: object = None) -> ndarray:
    """Return the axes in another order."""
    return arguments.able(a, "transpose").transpose(axes)


def matrix_transpose(x: Any, /) -> ndarray:
    """Return the transpose of the last two axes."""
    if x.ndim < 2:
        raise ValueError(f"Input array must be at least 2-dimensional, but it is {x.ndim}")
    return x.swapaxes(-1, -2)


def swapaxes(a: object, axis1: int, axis2: int) -> ndarray:
    """Return two axes exchanged."""
    return arguments.able(a, "swapaxes").swapaxes(axis1, axis2)


def _moved(function: Callable[..., np.ndarray], a: object, *places: object) -> ndarray:
    array = need(a)
    # The axis of the length n is the one with the number n.
    return array.transpose(function(np.empty(range(array.ndim)), *places).shape)


def moveaxis(a: object, source: object, destination: object) -> ndarray:
    """Return axes moved to other places."""
    return _moved(np.moveaxis, a, source, destination)


def rollaxis(a: object, axis: int, start: int = 0) -> ndarray:
    """Return an axis rolled back to a place."""
    return _moved(np.rollaxis, a, axis, start)


def squeeze(a: object, axis: object = None) -> Any:
    """Return the array without axes of length one."""
    return arguments.able(a, "squeeze").squeeze(axis)


def broadcast_to(array: object, shape: object) -> ndarray:
    """Return a read view of the array in a larger shape."""
    source = convert.asarray(array)
    lengths = arguments.shape_of(shape)
    return make.view(
        source,
        "broadcast_to",
        (lengths,),
        of_view(np.broadcast_to(source._gp_meta.shadow, lengths)),
    )


def broadcast_arrays(*args: object) -> tuple[ndarray, ...]:
    """Return the arrays in their common shape."""
    arrays = [need(item) for item in args]
    shape = broadcast(*[item.shape for item in arrays])
    return tuple([item if item.shape == shape else broadcast_to(item, shape) for item in arrays])


# --- splitting ------------------------------------------------------------------------------------


def array_split(ary: object, indices_or_sections: object, axis: int = 0) -> list[ndarray]:
    """Split into parts that need not be equal."""
    array = need(ary)
    if not array.ndim:
        raise IndexError("tuple index out of range")
    at = arguments.axis_of(axis, array.ndim)
    size = array.shape[at]
    given = arguments.plain(indices_or_sections)
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


def split(ary: object, indices_or_sections: object, axis: int = 0) -> list[ndarray]:
    """Split into equal parts, or at indices."""
    array = need(ary)
    if array.ndim <= axis:
        raise ValueError("Axis exceeds ndim")
    given = arguments.plain(indices_or_sections)
    if isinstance(given, int) and array.shape[axis] % given:
        raise ValueError(
            "indices_or_sections must divide the size along the axes.\n"
            "If you want to split the array into non-equally-sized arrays, use array_split instead."
        )
    return array_split(array, given, axis)


def _split_along(name: str, axis: int, least: int) -> Any:
    def function(ary: Any, indices_or_sections: object) -> list[Any]:
        if need(ary).ndim < least:
            raise ValueError(f"Cannot {name} an array with less than {least} dimensions")
        at = 0 if name == "hsplit" and ary.ndim == 1 else axis
        return split(ary, indices_or_sections, at)

    return function


# --- rearranging ----------------------------------------------------------------------------------


def flip(a: Any, axis: Any = None) -> ndarray:
    """Return a view with axes reversed."""
    array = a if hasattr(a, "ndim") else need(a)
    axes = arguments.axes_of(axis, array.ndim)
    index = tuple(slice(None, None, -1) if at in axes else slice(None) for at in range(array.ndim))
    return array[index] if index else array.view()


def fliplr(a: ndarray) -> ndarray:
    """Return a view with the second axis reversed."""
    if np.ndim(a) < 2:
        raise ValueError("Input must be >= 2-d")
    return a[:, ::-1]


def flipud(a: ndarray) -> ndarray:
    """Return a view with the first axis reversed."""
    if np.ndim(a) < 1:
        raise ValueError("Input must be >= 1-d")
    return a[::-1]


_REQUIREMENTS = ["C", "CONTIGUOUS", "C_CONTIGUOUS", "F", "FORTRAN", "F_CONTIGUOUS", "O", "OWNDATA"]


def require(a: object, dtype: Any = None, requirements: Any = None) -> ndarray:
    """Return an array that meets requirements of dtype and layout."""
    given = [requirements] if isinstance(requirements, str) else requirements or []
    wanted = {str(item).upper() for item in given}
    if unknown := wanted - set(_REQUIREMENTS):
        raise ValueError(f"Unsupported requirement {min(unknown)}")
    letters = {item[0] for item in wanted}
    if letters >= {"C", "F"}:
        raise ValueError('Cannot specify both "C" and "F" order')
    order = "F" if "F" in letters else "C" if "C" in letters else "A"
    try:
        kind = None if dtype is None else np.dtype(dtype)
    except TypeError:
        raise ValueError(f"invalid data type: {dtype}") from None
    made = convert.array(a, dtype=kind, order=order, copy=None)
    return made.copy() if "O" in letters and made.base is not None else made


def apply_along_axis(func1d: Any, axis: int, arr: object, *args: Any, **kwargs: Any) -> Any:
    """Apply a function of the program to vectors along an axis."""
    array = need(arr)
    at = arguments.axis_of(axis, array.ndim)
    moved = moveaxis(array, at, -1)
    outer = moved.shape[:-1]
    if 0 in outer:
        raise ValueError("Cannot apply_along_axis when any iteration dimensions are 0")
    parts = [convert.asarray(func1d(moved[index], *args, **kwargs)) for index in np.ndindex(outer)]
    joined = stack(parts).reshape(outer + parts[0].shape)
    for offset in range(parts[0].ndim):
        joined = moveaxis(joined, len(outer) + offset, at + offset)
    return joined


def diagonal(a: object, offset: int = 0, axis1: int = 0, axis2: int = 1) -> ndarray:
    """Return a view of a diagonal."""
    return arguments.able(a, "diagonal").diagonal(offset, axis1, axis2)


MANIPULATION = {
    **JOINING,
    **make.public(globals()),
    "permute_dims": transpose,
    "hsplit": _split_along("hsplit", 1, 1),
    "vsplit": _split_along("vsplit", 0, 2),
    "dsplit": _split_along("dsplit", 2, 3),
}
