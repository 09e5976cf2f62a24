"""Methods of all sparse matrices and arrays: each method is one operation of the worker."""

from __future__ import annotations

import warnings
from types import GenericAlias
from typing import Any

import numpy as np
from cupy._core import convert
from cupy._core.dispatch import make
from cupy._door.calls import Remote
from cupy._door.meta import fresh

from cupyx.scipy.sparse import _wire
from cupyx.scipy.sparse._arithmetic import Arithmetic, is_dense, is_number
from cupyx.scipy.sparse._indexing import key_of

_NAMES = {
    "csr": "Compressed Sparse Row",
    "csc": "Compressed Sparse Column",
    "coo": "COOrdinate",
    "dia": "DIAgonal",
}


class SparseBase(Remote, Arithmetic):
    """A sparse matrix or array on a device; see `scipy.sparse`."""

    __array_priority__ = 101
    format = ""
    is_array = True
    maxprint = 50
    _shape: tuple[int, ...]
    _dtype: np.dtype[Any]
    _gp_device: int

    def __init__(
        self,
        arg1: Any,
        shape: Any = None,
        dtype: Any = None,
        copy: bool = False,
        *,
        maxprint: Any = None,
    ) -> None:
        if maxprint is not None:
            self.maxprint = maxprint
        kind = None if dtype is None else np.dtype(dtype)
        if shape is not None:
            shape = tuple([int(n) if is_dense(n) else n.__index__() for n in shape])
        given = getattr(arg1, "ndim", None)
        strict = self.is_array and (self.format == "coo" or given == 2)
        if strict and shape is not None and given not in (None, len(shape)):
            raise ValueError(f"a shape of {len(shape)} dimensions for an input of {given}")
        source = self._source(arg1, kind)
        if shape is None and _wire.is_of_scipy(arg1):
            shape = arg1.shape
        args = (self.format, self.is_array, source, shape, kind, bool(copy))
        made = _wire.ask("make", *args)
        self._take(made)

    @classmethod
    def __class_getitem__(cls, item: Any) -> Any:
        return GenericAlias(cls, item)

    def _source(self, arg1: Any, dtype: Any) -> Any:
        """Return the matrix's initializer, as the worker takes it."""
        if _wire.is_of_scipy(arg1):
            return tuple([self._uploaded(each) for each in self._host_parts(arg1)])
        if isinstance(arg1, (Remote, tuple)):
            return arg1
        if isinstance(arg1, (list, np.ndarray)):
            raise ValueError("Unsupported initializer format")
        convert_ = getattr(arg1, "__cupy_get_ndarray__", None)
        if convert_ is not None or hasattr(arg1, "__cuda_array_interface__"):
            return convert.array(arg1)
        raise ValueError("Unsupported initializer format")

    def _host_parts(self, matrix: Any) -> tuple[Any, ...]:
        raise NotImplementedError

    def _uploaded(self, part: Any) -> Any:
        if isinstance(part, tuple):
            return tuple([convert.array(each) for each in part])
        return convert.array(part)

    def _take(self, other: Any) -> None:
        """Become another matrix, which is then of no use."""
        handle, old = other._gp_handle, getattr(self, "_gp_handle", None)
        self._gp_session = other._gp_session
        self._gp_device = other._gp_device
        self._shape, self._dtype = other._shape, other._dtype
        self._gp_handle = handle
        if old is None:
            del other._gp_handle  # so that its destructor frees nothing
        else:
            other._gp_handle = old

    def _of(self, form: str) -> Any:
        return _wire.classes[form, self.is_array]

    # --- looks ----------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements."""
        return self._dtype

    @property
    def nnz(self) -> int:
        """Number of stored elements, also of stored zeros; asks the worker."""
        return _wire.ask("nnz", self)

    @property
    def size(self) -> int:
        """Number of stored elements."""
        return self.nnz

    @property
    def device(self) -> Any:
        """The device that holds it."""
        return self.data.device

    def _part(self, name: str) -> Any:
        return make.lazy("sparse.part", (self, name), {})

    def _set_part(self, name: str, value: Any) -> None:
        _wire.ask("set_part", self, name, convert.asarray(value))
        if name == "data":
            self._dtype = np.dtype(value.dtype)

    @property
    def data(self) -> Any:
        """The stored elements: not a copy."""
        return self._part("data")

    @data.setter
    def data(self, value: Any) -> None:
        self._set_part("data", value)

    @property
    def real(self) -> Any:
        """The real parts."""
        return _wire.ask("part", self, "real")

    @property
    def imag(self) -> Any:
        """The imaginary parts."""
        return _wire.ask("part", self, "imag")

    def __len__(self) -> int:
        raise TypeError("sparse array length is ambiguous; use shape[0] or .nnz")

    def __repr__(self) -> str:
        kind = "array" if self.is_array else "matrix"
        more = f" ({self.offsets.size} diagonals)" if self.format == "dia" else ""  # type: ignore[attr-defined]
        return (
            f"<{_NAMES[self.format]} sparse {kind} of dtype '{self.dtype}'\n"
            f"\twith {self.nnz} stored elements{more} and shape {self.shape}>"
        )

    def __str__(self) -> str:
        try:
            return str(self.get())
        except RuntimeError:
            return repr(self)

    def __iter__(self: Any) -> Any:
        for at in range(self._shape[0]):
            yield self[at] if self.ndim == 1 else self[at, :]

    def __bool__(self) -> bool:
        if self._shape == (1, 1):
            return self.nnz != 0
        raise ValueError(
            "The truth value of an array with more than one element is ambiguous. "
            "Use a.any() or a.all()."
        )

    def __reduce__(self) -> Any:
        parts = self._device_parts()
        return type(self), (parts, self._shape, self._dtype)

    def _device_parts(self) -> tuple[Any, ...]:
        raise NotImplementedError

    def get(self, stream: Any = None) -> Any:
        """Return a copy on the host, of this machine's SciPy."""
        scipy = _wire.scipy_sparse()
        parts = [
            tuple([each.get(stream) for each in part])
            if isinstance(part, tuple)
            else part.get(stream)
            for part in self._device_parts()
        ]
        kind = getattr(scipy, f"{self.format}_{'array' if self.is_array else 'matrix'}")
        return kind(tuple(parts), shape=self._shape)

    # --- conversions ----------------------------------------------------------------------------

    def _convert(self, form: str, copy: bool = False) -> Any:
        if form == self.format and not copy:
            return self
        if self.ndim != 2:
            return _wire.ask(f"to{form}", self, copy=copy)
        return _wire.send(f"to{form}", (self,), self._of(form), self._shape, self._dtype, copy=copy)

    def tocsr(self, copy: bool = False) -> Any:
        """Return it in the format of compressed rows."""
        return self._convert("csr", copy)

    def tocsc(self, copy: bool = False) -> Any:
        """Return it in the format of compressed columns."""
        return self._convert("csc", copy)

    def tocoo(self, copy: bool = False) -> Any:
        """Return it as coordinates and elements."""
        return self._convert("coo", copy)

    def todia(self, copy: bool = False) -> Any:
        """Return it as diagonals."""
        if self.format == "dia":
            return self.copy() if copy else self
        raise NotImplementedError("CuPy has no conversion to dia")

    def tobsr(self, blocksize: Any = None, copy: bool = False) -> Any:
        """Raise: CuPy has no such format."""
        raise NotImplementedError

    def todok(self, copy: bool = False) -> Any:
        """Raise: CuPy has no such format."""
        raise NotImplementedError

    def tolil(self, copy: bool = False) -> Any:
        """Raise: CuPy has no such format."""
        raise NotImplementedError

    def asformat(self, format: Any) -> Any:  # noqa: A002
        """Return it in a format by its name."""
        return self if format in (None, self.format) else getattr(self, "to" + format)()

    def toarray(self, order: Any = None, out: Any = None) -> Any:
        """Return a dense array; nothing waits."""
        letter = "C" if order is None else order.upper()
        if letter not in ("C", "F"):
            raise ValueError("order not understood")
        return make.forward(
            "sparse.toarray", (self, letter), {}, fresh(self._dtype, self._shape, letter)
        )

    def todense(self, order: Any = None, out: Any = None) -> Any:
        """Return a dense array."""
        return self.toarray(order, out)

    def astype(self, dtype: Any, copy: bool = True) -> Any:
        """Return it with elements of another type."""
        kind = np.dtype(dtype)
        if kind == self._dtype and not copy:
            return self
        return _wire.ask("astype", self, kind)

    def copy(self) -> Any:
        """Return a copy."""
        return self._same("copy")

    def _same(self, name: str, dtype: Any = None) -> Any:
        """Run an operation that keeps the format and shape; nothing waits in two dimensions."""
        kind = _wire.classes[self.format, self.is_array]
        if self.ndim != 2:
            return _wire.ask(name, self)
        return _wire.send(name, (self,), kind, self._shape, dtype or self._dtype)

    def conj(self, copy: bool = True) -> Any:
        """Return the complex conjugates."""
        if self._dtype.kind != "c":
            return self.copy() if copy else self
        return self._same("conj")

    conjugate = conj

    def transpose(self, axes: Any = None, copy: bool = False) -> Any:
        """Return the transpose."""
        if axes is not None:
            raise ValueError(
                "Sparse matrices do not support an 'axes' parameter because swapping dimensions is "
                "the only logical permutation."
            )
        if self.ndim == 1:
            return self.copy() if copy else self
        form = {"csr": "csc", "csc": "csr"}.get(self.format, self.format)
        shape = self._shape[::-1]
        if self.format == "dia":
            return _wire.ask("transpose", self, copy=copy)
        return _wire.send("transpose", (self,), self._of(form), shape, self._dtype, copy=copy)

    @property
    def T(self) -> Any:
        """The transpose."""
        return self.transpose()

    @property
    def mT(self) -> Any:
        """The transpose of the last two axes."""
        if self.ndim < 2:
            raise ValueError(f"Array must be at least 2-dimensional, but it is {self.ndim}-D")
        return self.transpose()

    def reshape(self, *shape: Any, order: str = "C") -> Any:
        """Return the elements in another shape."""
        given = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        lengths = tuple([length.__index__() for length in given])
        return self if lengths == self._shape else _wire.ask("reshape", self, lengths, order=order)

    # --- parts ----------------------------------------------------------------------------------

    def _item(self, key: Any) -> Any:
        return _wire.ask("operator.getitem", self, key_of(self, key))


class sparray:
    """Base of sparse arrays; ``*`` multiplies element by element."""


class spmatrix:
    """Base of sparse matrices; ``*`` is the product of matrices."""

    is_array = False

    def __mul__(self: Any, other: Any) -> Any:
        return self._operator("mul", self, other) if is_number(other) else self._product(other)

    def __rmul__(self: Any, other: Any) -> Any:
        return self._operator("mul", other, self) if is_number(other) else self._product_left(other)

    @property
    def A(self: Any) -> Any:
        """The dense array."""
        warnings.warn(
            "`spmatrix.A` is deprecated; use `.toarray()` instead.", DeprecationWarning, 2
        )
        return self.toarray()

    @property
    def H(self: Any) -> Any:
        """The conjugate transpose."""
        warnings.warn("`spmatrix.H` is deprecated; use `.T.conj()` instead.", DeprecationWarning, 2)
        return self.getH()

    def get_shape(self: Any) -> tuple[int, ...]:
        """Return the shape."""
        return self._shape

    def set_shape(self: Any, shape: Any) -> None:
        """Change the shape in place."""
        self._take(self.reshape(shape).asformat(self.format).copy())

    shape = property(get_shape, set_shape)  # type: ignore[assignment]

    def asfptype(self: Any) -> Any:
        """Return it with elements of a type of floats."""
        if self._dtype.kind == "f":
            return self
        return self.astype(np.promote_types(self._dtype, np.float32))

    def getH(self: Any) -> Any:
        """Return the conjugate transpose."""
        return self.transpose().conj()

    def getrow(self: Any, i: int) -> Any:
        """Return a copy of a row, as a matrix."""
        return _wire.ask("getrow", self, i)

    def getcol(self: Any, j: int) -> Any:
        """Return a copy of a column, as a matrix."""
        return _wire.ask("getcol", self, j)

    def getformat(self: Any) -> str:
        """Return the name of the format."""
        return self.format

    def getmaxprint(self: Any) -> int:
        """Return how many elements are printed."""
        return self.maxprint

    def getnnz(self: Any, axis: Any = None) -> Any:
        """Return the number of stored elements, of all or along an axis."""
        found = _wire.ask("getnnz", self, **({} if axis is None else {"axis": axis}))
        return int(found) if axis is None else found


def issparse(x: Any) -> bool:
    """Say whether a value is a sparse matrix or array on a device."""
    return isinstance(x, SparseBase)


def isspmatrix(x: Any) -> bool:
    """Say whether a value is a sparse matrix on a device, not a sparse array."""
    return isinstance(x, spmatrix)
