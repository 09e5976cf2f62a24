"""What all sparse matrices and arrays can do: each method is one operation of the worker."""

from __future__ import annotations

import warnings
from operator import index
from types import GenericAlias
from typing import Any

import numpy as np
from cupy._core import convert
from cupy._core.dispatch import make
from cupy._door.calls import Remote
from cupy._door.meta import fresh

from cupyx.scipy.sparse import _wire
from cupyx.scipy.sparse._indexing import key_of

_NAMES = {
    "csr": "Compressed Sparse Row",
    "csc": "Compressed Sparse Column",
    "coo": "COOrdinate",
    "dia": "DIAgonal",
}
_NUMBERS = (bool, int, float, complex, np.generic)


def is_dense(value: Any) -> bool:
    """Say whether a value is an array on a device."""
    return isinstance(value, make.classes.ndarray)


def is_number(value: Any) -> bool:
    """Say whether a value is a number, or an array without axes."""
    return isinstance(value, _NUMBERS) or (is_dense(value) and value.ndim == 0)


class SparseBase(Remote):
    """A sparse matrix or array on a device; see `scipy.sparse`."""

    __array_priority__ = 101
    format = ""
    is_array = True
    maxprint = 50
    _shape: tuple[int, ...]
    _dtype: np.dtype[Any]
    _device: int

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
        """Return what the matrix is made from, as the worker takes it."""
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
        handle, old = other._handle, getattr(self, "_handle", None)
        self._session = other._session
        self._device = other._device
        self._shape, self._dtype = other._shape, other._dtype
        self._handle = handle
        if old is None:
            del other._handle  # so that its destructor frees nothing
        else:
            other._handle = old

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
    def ndim(self) -> int:
        """Number of axes."""
        return len(self._shape)

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

    def __iter__(self) -> Any:
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
        """Run an operation whose result looks like this matrix; nothing waits."""
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

    # --- arithmetic -----------------------------------------------------------------------------

    def _operator(self, name: str, *args: Any) -> Any:
        for arg in args:
            known = is_number(arg) or is_dense(arg) or isinstance(arg, SparseBase)
            if not known and not isinstance(arg, np.ndarray):
                return NotImplemented
        return _wire.ask(f"operator.{name}", *[_wire.operand(arg) for arg in args])

    def __abs__(self) -> Any:
        return _wire.ask("operator.abs", self)

    def __neg__(self) -> Any:
        if self._dtype.kind == "b":
            raise NotImplementedError("negating a boolean sparse array is not supported")
        return _wire.ask("operator.neg", self)

    def __add__(self, other: Any) -> Any:
        return self._operator("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return self._operator("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return self._operator("sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return self._operator("sub", other, self)

    def __mul__(self, other: Any) -> Any:
        return self._operator("mul", self, other)

    def __rmul__(self, other: Any) -> Any:
        return self._operator("mul", other, self)

    def __truediv__(self, other: Any) -> Any:
        return self._operator("truediv", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return NotImplemented

    def __pow__(self, other: Any) -> Any:
        return self._operator("pow", self, other)

    def __matmul__(self, other: Any) -> Any:
        if is_number(other):
            raise ValueError("Scalar operands are not allowed, use '*' instead")
        return self._product(other)

    def __rmatmul__(self, other: Any) -> Any:
        if is_number(other):
            raise ValueError("Scalar operands are not allowed, use '*' instead")
        return self._product_left(other)

    def _product(self, other: Any) -> Any:
        """Return a product; nothing waits for one with a dense array."""
        if is_dense(other) and other.ndim in (1, 2) and self.ndim == 2:
            if other.shape[0] != self._shape[1]:
                raise ValueError("dimension mismatch")
            kind = np.promote_types(self._dtype, other.dtype)
            if self._dtype.kind != "b" and kind.char in "fdFD":
                shape = (self._shape[0], *other.shape[1:])
                meta = fresh(kind, shape, "F" if other.ndim == 2 else "C")
                return make.forward("sparse.product", (self, other), {}, meta)
        return self._operator("matmul", self, other)

    def _product_left(self, other: Any) -> Any:
        if is_dense(other) and other.ndim in (1, 2) and self.ndim == 2:
            if other.shape[-1] != self._shape[0]:
                raise ValueError("dimension mismatch")
            kind = np.promote_types(self._dtype, other.dtype)
            if self._dtype.kind != "b" and kind.char in "fdFD":
                meta = fresh(kind, (*other.shape[:-1], self._shape[1]))
                return make.forward("sparse.product_left", (other, self), {}, meta)
        return self._operator("matmul", other, self)

    def __iadd__(self, other: Any) -> Any:
        return NotImplemented

    def __isub__(self, other: Any) -> Any:
        return NotImplemented

    def _scale(self, other: Any, name: str) -> Any:
        if not is_number(other):
            return NotImplemented
        self._take(self._operator(name, self, other))
        return self

    def __imul__(self, other: Any) -> Any:
        return self._scale(other, "mul")

    def __itruediv__(self, other: Any) -> Any:
        return self._scale(other, "truediv")

    def dot(self, other: Any) -> Any:
        """Return the product with a number, an array or another matrix."""
        return self * other if np.isscalar(other) else self @ other

    def multiply(self, other: Any) -> Any:
        """Return the product element by element."""
        return _wire.ask("multiply", self, _wire.operand(other))

    def power(self, n: Any, dtype: Any = None) -> Any:
        """Return the power element by element."""
        if not is_number(n):
            raise NotImplementedError("input is not scalar")
        if n == 0:
            raise NotImplementedError(
                "zero power is not supported as it would densify the matrix.\n"
                "Use cupy.ones(A.shape, dtype=A.dtype) for this case."
            )
        return _wire.ask("power", self, n, **({} if dtype is None else {"dtype": np.dtype(dtype)}))

    def maximum(self, other: Any) -> Any:
        """Return the larger elements."""
        return _wire.ask("maximum", self, _wire.operand(other))

    def minimum(self, other: Any) -> Any:
        """Return the smaller elements."""
        return _wire.ask("minimum", self, _wire.operand(other))

    # --- comparison -----------------------------------------------------------------------------

    def __eq__(self, other: object) -> Any:
        return self._compare("eq", other)

    def __ne__(self, other: object) -> Any:
        return self._compare("ne", other)

    def __lt__(self, other: Any) -> Any:
        return self._compare("lt", other)

    def __le__(self, other: Any) -> Any:
        return self._compare("le", other)

    def __gt__(self, other: Any) -> Any:
        return self._compare("gt", other)

    def __ge__(self, other: Any) -> Any:
        return self._compare("ge", other)

    __hash__ = None  # type: ignore[assignment]

    def _compare(self, name: str, other: Any) -> Any:
        found = self._operator(name, self, other)
        if found is NotImplemented:
            raise NotImplementedError
        if isinstance(other, SparseBase) and name in ("eq", "le", "ge"):
            warnings.warn(
                "Comparing sparse matrices using ==, <=, and >= is inefficient, "
                "try using !=, <, or > instead.",
                _wire.warning(),
                3,
            )
        return found

    # --- reductions -----------------------------------------------------------------------------

    def _reduce(self, name: str, axis: Any, out: Any, **kwargs: Any) -> Any:
        given = {key: value for key, value in kwargs.items() if value is not None}
        if axis is not None:
            given["axis"] = axis if isinstance(axis, tuple) else index(axis)
        found = _wire.ask(name, self, **given)
        if out is None:
            return found
        if out.shape != found.shape:
            raise ValueError("dimensions do not match")
        out[...] = found
        return out

    def sum(self, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        """Return the sum of all elements, or along an axis."""
        return self._reduce("sum", axis, out, dtype=None if dtype is None else np.dtype(dtype))

    def mean(self, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        """Return the mean of all elements, or along an axis."""
        return self._reduce("mean", axis, out, dtype=None if dtype is None else np.dtype(dtype))

    def diagonal(self, k: int = 0) -> Any:
        """Return the elements of a diagonal."""
        return _wire.ask("diagonal", self, k=k)

    def trace(self, offset: int = 0) -> Any:
        """Return the sum of a diagonal."""
        return self.diagonal(k=offset).sum()

    def count_nonzero(self, axis: Any = None) -> Any:
        """Return how many elements are not zero."""
        found = _wire.ask("count_nonzero", self, **({} if axis is None else {"axis": axis}))
        return int(found) if axis is None else found

    def nonzero(self) -> Any:
        """Return the places of the elements that are not zero."""
        return _wire.ask("nonzero", self)

    def setdiag(self, values: Any, k: int = 0) -> None:
        """Set the elements of a diagonal."""
        if isinstance(values, (list, tuple, np.ndarray)):
            values = convert.array(values, dtype=self._dtype)
        _wire.ask("setdiag", self, values, k=k)

    # --- parts ----------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        return _wire.ask("operator.getitem", self, key_of(self, key))

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, (list, tuple, np.ndarray)):
            value = convert.array(value)
        _wire.ask("setitem", self, key_of(self, key), value)


class sparray:
    """What sparse arrays have in common; ``*`` multiplies element by element."""


class spmatrix:
    """What sparse matrices have in common; ``*`` is the product of matrices."""

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
