"""Methods of arrays: views derived here, everything else forwarded."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from cupy._core import convert, elementwise, in_place, learned, products
from cupy._core.dispatch import across, arguments, make
from cupy._core.indexing import without_imaginary
from cupy._core.learned import LEARNED
from cupy._core.reductions import REDUCTIONS
from cupy._core.ufunc import UFUNCS
from cupy._door import dtypes
from cupy._door.arrays import Array
from cupy._door.calls import Plan
from cupy._door.meta import fresh, intern, keep_order, of_view, reshaped
from cupy._door.older import zip_strict

if TYPE_CHECKING:
    from cupy._core.array import ndarray

_TYPE = type
_frame = sys._getframe

TRANSPOSED: dict[Any, Plan] = {}
_reshaped: dict[Any, tuple[Plan, bytes]] = {}


def _in_memory(strides: list[int]) -> list[int]:
    """Return the axes in the order of memory, as NumPy's iterators find it for order K.

    An axis whose step is 0 or makes no difference has no place in memory: others pass it.
    """
    found: list[int] = []
    for axis in reversed(range(len(strides))):  # the fastest first
        step, place = abs(strides[axis]), len(found)
        for at in reversed(range(len(found))):
            other = abs(strides[found[at]])
            if step and other:
                if other <= step:
                    break
                place = at
        found.insert(place, axis)
    return found[::-1]


class Methods(Array):
    """Methods of `cupy.ndarray`, other than operators and conversions."""

    __slots__ = ()

    # --- views ----------------------------------------------------------------------------------

    def view(self, dtype: object = None, type: Any = None) -> Any:  # noqa: A002
        """Return a view, maybe of another dtype."""
        ndarray = make.classes.ndarray
        if isinstance(dtype, _TYPE) and issubclass(dtype, ndarray):
            if type is not None:
                raise ValueError("Cannot specify output type twice.")
            dtype, type = None, dtype  # noqa: A001
        if type is not None and not issubclass(type, ndarray):
            raise ValueError("Type must be a sub-type of ndarray type")
        meta = self._gp_meta
        if dtype is None:
            return make.view(self, "ndarray.view", (), meta, type)
        kind = arguments.view_dtype_of(dtype)
        if kind.itemsize == meta.dtype.itemsize:
            looks = intern(kind, meta.shape, meta.strides)
        else:
            looks = of_view(meta.shadow.view(kind))
        return make.view(self, "ndarray.view", (kind,), looks, type)

    def reshape(self, *shape: object, order: str = "C", copy: object = None) -> ndarray:
        """Return the elements in another shape, as a view where that is possible."""
        if copy is None:
            try:
                found = _reshaped.get((self._gp_known, shape, order))
            except TypeError:  # a list
                found = None
            if found is not None:
                return make.send_view(self, found[0], found[1], _frame(1))
        lengths = arguments.integers(shape[0] if len(shape) == 1 else shape)
        letter = arguments.normalize_order(order)
        if letter == "K":
            raise ValueError(f"order {order!r} is not permitted for reshaping")
        if isinstance(copy, str):
            raise ValueError(
                "strings are not allowed for 'copy' keyword. Use True/False/None instead."
            )
        meta, is_view = reshaped(self._gp_meta, lengths, letter)
        if copy is False and not is_view:
            raise ValueError("Unable to avoid creating a copy while reshaping.")
        if copy:
            return make.forward(
                "ndarray.copy", (self,), {}, fresh(meta.dtype, self._gp_meta.shape)
            ).reshape(lengths, order=letter)
        if is_view:
            args = (meta.shape, letter)
            if all(type(item) in (int, tuple) for item in shape):
                found = make.planned(self, "ndarray.reshape_view", args, {}, meta)
                make.remember(_reshaped, (self._gp_meta, shape, order), found)
            return make.view(self, "ndarray.reshape_view", args, meta)
        return make.forward("ndarray.reshape", (self, meta.shape, letter), {}, meta)

    def ravel(self, order: str = "C") -> ndarray:
        """Return the elements in one dimension, as a view where that is contiguous."""
        letter = arguments.normalize_order(order)
        meta = self._gp_meta
        source = self
        if letter == "K":
            steps = [0 if n == 1 else step for n, step in zip_strict(meta.shape, meta.strides)]
            axes = _in_memory(steps)
            source = self.transpose(axes)
            letter = "C"
        if letter == "A":
            letter = "F" if meta.contiguity == (False, True) else "C"
        made = source.reshape(-1, order=letter)
        return made if made._gp_meta.contiguity[0] else made.copy()

    def flatten(self, order: str = "C") -> ndarray:
        """Return a copy in one dimension."""
        meta = self._gp_meta
        letter = arguments.normalize_order(order)
        flat = fresh(meta.dtype, (meta.size,))
        return make.forward("ndarray.flatten", (self, letter), {}, flat)

    def transpose(self, *axes: object) -> Any:
        """Return a view with the axes in another order."""
        order = axes[0] if len(axes) == 1 else axes or None
        meta = self._gp_meta
        if order is None:
            if meta.ndim <= 1:
                return self
            looks = intern(meta.dtype, meta.shape[::-1], meta.strides[::-1])
            plan = Plan("ndarray.transpose", ("h",), (), "Q", (looks,))
            plan = TRANSPOSED.get(meta) or make.remember(TRANSPOSED, meta, plan)
            return make.send_view(self, plan, b"", None)
        order = arguments.integers(order)
        if len(order) == 0 and meta.ndim <= 1:
            return self
        return make.view(self, "ndarray.transpose", (order,), of_view(meta.shadow.transpose(order)))

    def swapaxes(self, axis1: int, axis2: int) -> ndarray:
        """Return a view with two axes exchanged."""
        meta = of_view(self._gp_meta.shadow.swapaxes(axis1, axis2))
        return make.view(self, "ndarray.swapaxes", (axis1, axis2), meta)

    def squeeze(self, axis: object = None) -> Any:
        """Return a view without axes of length one."""
        axis = axis if axis is None else arguments.plain(axis)
        meta = of_view(self._gp_meta.shadow.squeeze(axis))
        return (
            make.view(self, "ndarray.squeeze", (axis,), meta) if meta is not self._gp_meta else self
        )

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> ndarray:
        """Return a view of a diagonal."""
        meta = of_view(self._gp_meta.shadow.diagonal(offset, axis1, axis2))
        return make.view(self, "ndarray.diagonal", (offset, axis1, axis2), meta)

    # --- copies ---------------------------------------------------------------------------------

    def astype(
        self,
        dtype: object,
        order: str = "K",
        casting: object = None,
        subok: object = None,
        copy: bool = True,
    ) -> ndarray:
        """Return the elements as another type."""
        if casting is not None:
            raise TypeError("casting is not supported yet")
        if subok is not None:
            raise TypeError("subok is not supported yet")
        return convert.astype(self, dtype, order, True if copy else None)

    def copy(self, order: str = "C") -> Any:
        """Return a copy on the current device, also from another device."""
        meta = self._gp_meta
        letter = arguments.normalize_order(order)
        c, f = meta.contiguity
        if letter == "A":
            letter = "F" if f and not c else "C"
        looks = (
            keep_order(meta, meta.dtype) if letter == "K" else fresh(meta.dtype, meta.shape, letter)
        )
        return across.copy_here(self, letter, looks)

    def byteswap(self, inplace: bool = False) -> Any:
        """Return the elements with their bytes in the other order."""
        meta = self._gp_meta
        if meta.dtype.fields is not None:
            raise TypeError("byteswap is not supported for structured dtypes")
        if meta.dtype.itemsize == 1:
            return self if inplace else self.copy()
        made = make.forward("ndarray.byteswap", (self,), {}, fresh(meta.dtype, meta.shape))
        if inplace:
            self[...] = made  # type: ignore[index]
            return self
        return made

    def fill(self, value: object) -> None:
        """Set every element to one scalar."""
        if arguments.is_array(value) and value.shape != ():
            raise ValueError("non-scalar cupy.ndarray cannot be used for fill")
        if isinstance(value, np.ndarray):
            if value.shape != ():
                raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
            value = value[()] if value.dtype.char == "V" else value.item()
        if isinstance(value, tuple) and self._gp_meta.dtype.fields is not None:
            value = np.array(value, self._gp_meta.dtype)[()]
        dtypes.check_kernel(self._gp_meta.dtype)
        scalar = without_imaginary(arguments.operand(value), self._gp_meta.dtype)
        arguments.check_number(scalar, self._gp_meta.dtype)
        self._gp_session.call("ndarray.fill", (self, scalar), {})

    def put(self, indices: object, values: object, mode: str = "wrap") -> None:
        """Set elements of the flattened array."""
        learned.put(self, indices, values, mode)

    def _gp_scatter(self, name: str, slices: object, value: object) -> None:
        UFUNCS[name].at(self, slices, value)

    def scatter_add(self, slices: object, value: object) -> None:
        """Add in place at indices."""
        self._gp_scatter("add", slices, value)

    def scatter_max(self, slices: object, value: object) -> None:
        """Take the maximum in place at indices."""
        self._gp_scatter("maximum", slices, value)

    def scatter_min(self, slices: object, value: object) -> None:
        """Take the minimum in place at indices."""
        self._gp_scatter("minimum", slices, value)

    def reduced_view(self, dtype: object = None) -> ndarray:
        """Return a view with the fewest dimensions."""
        made = self.view(dtype)
        return made.ravel() if made.flags.c_contiguous else made

    # --- functions as methods -------------------------------------------------------------------

    # Themselves, not wrapped, where their parameters are the same: these are called often.
    all, any = REDUCTIONS["all"], REDUCTIONS["any"]
    max, min, ptp = REDUCTIONS["max"], REDUCTIONS["min"], REDUCTIONS["ptp"]
    sum, prod, mean = REDUCTIONS["sum"], REDUCTIONS["prod"], REDUCTIONS["mean"]
    var, std = LEARNED["var"], LEARNED["std"]
    cumsum, cumprod = LEARNED["cumsum"], LEARNED["cumprod"]
    round, repeat = learned.around, learned.repeat
    trace, dot = learned.trace, products.dot
    take, choose = learned.take, learned.choose
    argsort, argpartition = learned.argsort, learned.argpartition
    nonzero, searchsorted = learned.nonzero, learned.searchsorted
    partition, sort = in_place.partition, in_place.sort

    def argmax(
        self, axis: object = None, out: object = None, dtype: object = None, keepdims: bool = False
    ) -> ndarray:
        """Return the index of the maximum."""
        return REDUCTIONS["argmax"](self, axis, dtype, out, keepdims)

    def argmin(
        self, axis: object = None, out: object = None, dtype: object = None, keepdims: bool = False
    ) -> ndarray:
        """Return the index of the minimum."""
        return REDUCTIONS["argmin"](self, axis, dtype, out, keepdims)

    def clip(self, min: object = None, max: object = None, out: object = None) -> Any:  # noqa: A002
        """Return the elements limited to a range."""
        return elementwise.clip(self, min, max, out)

    def compress(self, condition: object, axis: object = None, out: object = None) -> ndarray:
        """Return the slices where a condition holds."""
        return learned.compress(condition, self, axis, out)

    def conj(self) -> Any:
        """Return the complex conjugate; real arrays return themselves."""
        return UFUNCS["conjugate"](self) if self._gp_meta.dtype.kind == "c" else self

    conjugate = conj
