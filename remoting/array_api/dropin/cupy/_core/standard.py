"""Functions that the array API standard names: distinct elements and cumulative sums."""

from typing import Any, NamedTuple

from cupy._core.dispatch import arguments, make
from cupy._core.dispatch.arguments import need
from cupy._core.functions import FUNCTIONS


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


def _with_initial(name: str, start: int, array: Any, axis: int, dtype: Any, out: Any) -> Any:
    at = arguments.axis_of(axis, array.ndim)
    shape = (*array.shape[:at], array.shape[at] + 1, *array.shape[at + 1 :])
    if out.shape != shape:
        raise ValueError(f"out.shape {out.shape} is not {shape}")
    before = (slice(None),) * at
    out[(*before, 0)] = start
    FUNCTIONS[name](array, at, dtype, out[(*before, slice(1, None))])
    return out


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
        array = array if array.ndim else array.reshape(1)
        if axis is None:
            if array.ndim > 1:
                raise ValueError(
                    "For arrays which have more than one dimension ``axis`` argument is required."
                )
            axis = 0
        if out is not None and include_initial:
            return _with_initial(name, start, array, axis, dtype, need(out, "out"))
        made = FUNCTIONS[name](array, axis, dtype, out)
        if include_initial:
            at = arguments.axis_of(axis, array.ndim)
            edge = FUNCTIONS["full"](
                (*made.shape[:at], 1, *made.shape[at + 1 :]), start, made.dtype
            )
            made = FUNCTIONS["concatenate"]([edge, made], at)
        return made

    return function


STANDARD: dict[str, Any] = {
    **make.public(globals()),
    "cumulative_sum": _cumulative("cumsum", 0),
    "cumulative_prod": _cumulative("cumprod", 1),
}
