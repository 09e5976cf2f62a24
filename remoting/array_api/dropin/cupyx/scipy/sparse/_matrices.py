"""Sparse matrices and arrays by their formats: the rules that a loop needs, or that CuPy has.

A matrix here is a handle with a shape and a dtype; its elements are on the server. Nothing waits
for products with dense arrays, conversions and copies, because their looks follow from the
operands. All other methods are those of the server, by name.
"""

from __future__ import annotations

import importlib
import warnings
from types import GenericAlias
from typing import Any

import numpy as np
from cupy._core import convert
from cupy._core.dispatch import make
from cupy._door.meta import fresh

from cupyx import _objects
from cupyx._extensions import operand

DTYPES = "?fdFD"
"""Types of the elements of a sparse matrix: those of cuSPARSE, and truth values."""

_NAMES = {
    "csr": "Compressed Sparse Row",
    "csc": "Compressed Sparse Column",
    "coo": "COOrdinate",
    "dia": "DIAgonal",
}
_NUMBERS = (bool, int, float, complex, np.generic)


def is_dense(value: object) -> bool:
    """Say whether a value is an array on a device."""
    return isinstance(value, make.classes.ndarray)


def is_number(value: Any) -> bool:
    """Say whether a value is a number, or an array without axes."""
    return isinstance(value, _NUMBERS) or (is_dense(value) and value.ndim == 0)


def is_of_scipy(value: object) -> bool:
    """Say whether a value is a sparse matrix of this machine's SciPy."""
    return type(value).__module__.startswith("scipy.sparse") and hasattr(value, "tocsr")


def class_of(form: str, is_array: bool) -> Any:
    """Return the class of a format."""
    return _objects.class_of("sparse", f"{form}_{'array' if is_array else 'matrix'}")


def _operator(name: str, swapped: bool = False) -> Any:
    def compute(self: object, *others: object) -> Any:
        given = (*others, self) if swapped else (self, *others)
        good = (SparseBase, make.classes.ndarray, np.ndarray, *_NUMBERS)
        if not all(isinstance(each, good) for each in given):
            return NotImplemented
        if name in ("eq", "ge", "le") and isinstance(others[0], SparseBase):
            kind = importlib.import_module("cupyx.scipy.sparse").SparseEfficiencyWarning
            text = "using ==, <=, and >= is inefficient, try using !=, <, or > instead."
            warnings.warn(f"Comparing sparse matrices {text}", kind, 2)
        return _objects.ask("sparse.operator", name, *given)

    return compute


class SparseBase(_objects.RemoteObject):
    """A sparse matrix or array on a device; see `scipy.sparse`."""

    __array_priority__ = 101
    format = ""
    is_array = True
    maxprint = 50
    _parts: tuple[str, ...] = ()
    _shape: tuple[int, ...]
    _dtype: np.dtype[Any]

    def __init__(
        self,
        arg1: Any,
        shape: Any = None,
        dtype: Any = None,
        copy: bool = False,
        *,
        maxprint: object = None,
    ) -> None:
        if maxprint is not None:
            self.maxprint = maxprint
        kind = None if dtype is None else np.dtype(dtype)
        if shape is not None:
            shape = tuple([int(n) if is_dense(n) else n.__index__() for n in shape])
        elif is_of_scipy(arg1):
            shape = arg1.shape
        given = getattr(arg1, "ndim", None)
        if self.is_array and shape is not None and given not in (None, len(shape)):
            raise ValueError(f"a shape of {len(shape)} dimensions for an input of {given}")
        source = self._source(arg1)
        self._take(_objects.ask("sparse.matrix", self._gp_kind, source, shape, kind, bool(copy)))

    @classmethod
    def __class_getitem__(cls, item: object) -> Any:
        return GenericAlias(cls, item)

    def _source(self, arg1: Any) -> Any:
        """Return an initializer as the worker takes it; ValueError for one that CuPy refuses."""
        if is_of_scipy(arg1):
            found = arg1.asformat(self.format)
            if self.format == "coo":
                return operand((found.data, tuple(found.coords)))
            return operand(tuple([getattr(found, name) for name in self._parts]))
        if isinstance(arg1, tuple) and self.format != "dia":
            parts = [
                *arg1[:1],
                *(arg1[1] if len(arg1) == 2 and not is_number(arg1[1]) else arg1[1:]),
            ]
            if any(isinstance(part, (list, np.ndarray)) for part in parts):
                raise ValueError("data, indices, and indptr must be 1-D cupy arrays")
        elif isinstance(arg1, (list, np.ndarray)):
            raise ValueError("Unsupported initializer format")
        return operand(arg1)

    def _look(self, shape: Any, dtype: Any) -> None:  # type: ignore[override]
        """Take the shape and the type that the worker describes."""
        if not all(type(length) is int and length >= 0 for length in shape) or len(shape) > 2:
            raise ValueError("a sparse matrix of no shape")
        self._shape, self._dtype = tuple(shape), np.dtype(dtype)
        if self._dtype.char not in DTYPES:
            raise ValueError(f"a sparse matrix of {self._dtype}")

    def _same(self, name: str, kind: object = None, shape: object = None, **kwargs: object) -> Any:
        """Run a method with a result of known format and shape; nothing waits."""
        if self.ndim != 2:
            return self._ask(name, **kwargs)
        looks = (self._shape if shape is None else shape, self._dtype.str)
        return self._known(name, (), kind or class_of(self.format, self.is_array), looks, **kwargs)

    # --- looks ----------------------------------------------------------------------------------

    shape = property(lambda self: self._shape, doc="Lengths of the axes.")
    dtype = property(lambda self: self._dtype, doc="Type of the elements.")
    ndim = property(lambda self: len(self._shape), doc="Number of axes.")
    nnz = property(
        lambda self: int(_objects.ask("sparse.get", self, "nnz")),
        doc="Number of stored elements, also of stored zeros; asks the worker.",
    )
    size = property(lambda self: self.nnz, doc="Number of stored elements.")
    device = property(lambda self: self.data.device, doc="The device that holds it.")

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

    def _device_parts(self) -> tuple[Any, ...]:
        parts = tuple([getattr(self, name) for name in self._parts])
        return (parts[0], parts[1:]) if self.format == "coo" else parts

    def __reduce_ex__(self, protocol: object) -> Any:
        return type(self), (self._device_parts(), self._shape, self._dtype)

    def __copy__(self) -> Any:
        return self.copy()

    def __deepcopy__(self, memo: object) -> Any:
        return self.copy()

    def get(self, stream: object = None) -> Any:
        """Return a copy on the host, of this machine's SciPy."""
        try:
            scipy = importlib.import_module("scipy.sparse")
        except ImportError:
            raise RuntimeError("scipy is not available") from None
        parts: list[Any] = [getattr(self, name).get(stream) for name in self._parts]
        if self.format == "coo":
            parts = [parts[0], tuple(parts[1:])]
        return getattr(scipy, self._gp_kind)(tuple(parts), shape=self._shape)

    # --- conversions, for which nothing waits ---------------------------------------------------

    def asformat(self, format: Any) -> Any:  # noqa: A002
        """Return it in a format by its name."""
        return self if format in (None, self.format) else getattr(self, "to" + format)()

    def toarray(self, order: Any = None, out: object = None) -> Any:
        """Return a dense array; nothing waits."""
        letter = "C" if order is None else order.upper()
        if letter not in ("C", "F"):
            raise ValueError("order not understood")
        meta = fresh(self._dtype, self._shape, letter)
        return make.forward("sparse.call", (self, "toarray", letter), {}, meta)

    todense = toarray

    def todia(self, copy: bool = False) -> Any:
        """Return it as diagonals."""
        if self.format != "dia":
            raise NotImplementedError("CuPy has no conversion to dia")
        return self.copy() if copy else self

    def tobsr(self, *args: object, **kwargs: object) -> Any:
        """Raise: CuPy has no such format."""
        raise NotImplementedError

    todok = tolil = tobsr

    def copy(self) -> Any:
        """Return a copy."""
        return self._same("copy")

    def conj(self, copy: bool = True) -> Any:
        """Return the complex conjugates."""
        return self._same("conj", copy=copy)

    conjugate = conj

    def transpose(self, axes: object = None, copy: bool = False) -> Any:
        """Return the transpose."""
        if axes is not None:
            raise ValueError("the axes of a sparse matrix can be swapped alone: leave 'axes' out")
        if self.ndim == 1:
            return self.copy() if copy else self
        if self.format == "dia":
            return self._ask("transpose", copy=copy)
        form = {"csr": "csc", "csc": "csr"}.get(self.format, self.format)
        kind = class_of(form, self.is_array)
        return self._same("transpose", kind, self._shape[::-1], copy=copy)

    T = property(lambda self: self.transpose(), doc="The transpose.")

    @property
    def mT(self) -> Any:
        """The transpose of the last two axes."""
        if self.ndim < 2:
            raise ValueError(f"Array must be at least 2-dimensional, but it is {self.ndim}-D")
        return self.transpose()

    # --- arithmetic -----------------------------------------------------------------------------

    __hash__ = None  # type: ignore[assignment]
    __abs__, __neg__, __pow__ = _operator("abs"), _operator("neg"), _operator("pow")
    __add__, __radd__ = _operator("add"), _operator("add", True)
    __sub__, __rsub__ = _operator("sub"), _operator("sub", True)
    __mul__, __rmul__ = _operator("mul"), _operator("mul", True)
    __truediv__, __lt__, __gt__ = _operator("truediv"), _operator("lt"), _operator("gt")
    __eq__, __ne__ = _operator("eq"), _operator("ne")
    __le__, __ge__ = _operator("le"), _operator("ge")

    def __round__(self: Any, ndigits: int = 0) -> Any:
        made = self.copy()
        made.data = made.data.round(ndigits)
        return made

    def __matmul__(self, other: object) -> Any:
        return self._product(self, other)

    def __rmatmul__(self, other: object) -> Any:
        return self._product(other, self)

    def _product(self, left: Any, right: Any) -> Any:
        """Return a product; nothing waits for one with a dense array."""
        other = right if left is self else left
        if is_dense(other) and other.ndim in (1, 2) and len(self._shape) == 2:
            if left.shape[-1] != right.shape[0]:
                raise ValueError("dimension mismatch")
            kind = np.promote_types(self._dtype, other.dtype)
            if self._dtype.kind != "b" and kind.char in "fdFD":
                shape = (*left.shape[:-1], *right.shape[1:])
                meta = fresh(kind, shape, "F" if left is self and other.ndim == 2 else "C")
                return make.forward("sparse.operator", ("matmul", left, right), {}, meta)
        if is_number(other):
            raise ValueError("Scalar operands are not allowed, use '*' instead")
        return _operator("matmul")(left, right)

    def _scale(self: Any, other: Any, name: str) -> Any:
        if not is_number(other):
            return NotImplemented
        # Truth values times a number become float64, because cuSPARSE has no integers.
        kind = np.result_type(self.dtype, other if name == "mul" else 1.0)
        source = self if kind.char in DTYPES else self.astype(np.float64)
        self._take(_operator(name)(source, other))
        return self

    def __imul__(self, other: object) -> Any:
        return self._scale(other, "mul")

    def __itruediv__(self, other: object) -> Any:
        return self._scale(other, "truediv")

    def __iadd__(self, other: object) -> Any:
        return NotImplemented

    __isub__ = __iadd__

    def dot(self, other: object) -> Any:
        """Return the product with a number, an array or another matrix."""
        scales = is_number(other) if self.format == "coo" else np.isscalar(other)
        return self * other if scales else self @ other

    def setdiag(self, values: object, k: int = 0) -> None:
        """Set the elements of a diagonal."""
        if isinstance(values, (list, tuple, np.ndarray)):
            values = convert.array(values, dtype=self._dtype)
        self._change("setdiag", values, k=k)


class _Indexed(SparseBase):
    """Compressed rows or columns, which have indices."""

    _parts = ("data", "indices", "indptr")

    def __getitem__(self, key: object) -> Any:
        return _objects.ask("sparse.operator", "getitem", self, _key(key))

    def __setitem__(self, key: object, value: object) -> None:
        _objects.ask("sparse.operator", "setitem", self, _key(key), value)


def _key(key: Any) -> Any:
    """Return an index with its arrays on the device; IndexError for none such."""
    if isinstance(key, tuple):
        return tuple([_key(item) for item in key])
    if isinstance(key, (list, np.ndarray, np.bool_, bool)):
        host = np.asarray(key)
        if host.dtype.kind not in "biu" and host.size:
            raise IndexError("Index dimension must be 1 or 2")
        return convert.array(host if host.size else host.astype(np.int32))
    if key is None or key is Ellipsis or isinstance(key, slice) or is_dense(key):
        return key
    if isinstance(key, SparseBase) or hasattr(key, "__index__"):
        return key if isinstance(key, SparseBase) else key.__index__()
    raise IndexError("Index dimension must be 1 or 2")


class _Coordinates(SparseBase):
    @property
    def _parts(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("data", "col") if self.ndim == 1 else ("data", "row", "col")

    @property
    def coords(self) -> tuple[Any, ...]:
        """The coordinates of the elements, an array for each axis."""
        return tuple([getattr(self, name) for name in self._parts[1:]])

    def __getitem__(self, key: object) -> Any:
        if not self.is_array:
            raise TypeError("'coo_matrix' object is not subscriptable")
        found = self.tocsr()[key]  # type: ignore[attr-defined]
        return found.asformat("coo") if isinstance(found, SparseBase) else found


class _Diagonals(SparseBase):
    _parts = ("data", "offsets")


class sparray:
    """Base of sparse arrays; ``*`` multiplies element by element."""


class spmatrix:
    """Base of sparse matrices; ``*`` is the product of matrices."""

    is_array = False

    def __mul__(self: Any, other: Any) -> Any:
        return _operator("mul")(self, other) if is_number(other) else self @ other

    def __rmul__(self: Any, other: Any) -> Any:
        return _operator("mul", True)(self, other) if is_number(other) else other @ self

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

    shape = property(get_shape, set_shape)

    def getH(self: Any) -> Any:
        """Return the conjugate transpose."""
        return self.transpose().conj()


_BASES = {"csr": _Indexed, "csc": _Indexed, "coo": _Coordinates, "dia": _Diagonals}


def _class(form: str, is_array: bool) -> Any:
    name = f"{form}_{'array' if is_array else 'matrix'}"
    bases = (_BASES[form], sparray) if is_array else (spmatrix, _BASES[form])
    text = f"A sparse {name[4:]}, {_NAMES[form]}; see `scipy.sparse.{name}`."
    return type(name, bases, {"format": form, "__module__": "cupyx.scipy.sparse", "__doc__": text})


CLASSES = {
    kind.__name__: kind for form in _NAMES for kind in (_class(form, True), _class(form, False))
}
"""All classes of matrices and arrays by name."""


def _converted(form: str) -> Any:
    def convert_(self: Any, copy: bool = False) -> Any:
        if form == self.format and not copy:
            return self
        return self._same(f"to{form}", class_of(form, self.is_array), copy=copy)

    convert_.__doc__ = f"Return it in the format {_NAMES[form]}; nothing waits."
    return convert_


for _form in ("csr", "csc", "coo"):
    setattr(SparseBase, f"to{_form}", _converted(_form))


def issparse(x: object) -> bool:
    """Say whether a value is a sparse matrix or array on a device."""
    return isinstance(x, SparseBase)


def isspmatrix(x: object) -> bool:
    """Say whether a value is a sparse matrix on a device, not a sparse array."""
    return isinstance(x, spmatrix)


def _is(form: str) -> Any:
    def function(x: object) -> bool:
        return isinstance(x, CLASSES[f"{form}_matrix"])

    function.__doc__ = f"Say whether a value is a `{form}_matrix`."
    return function


isspmatrix_csr, isspmatrix_csc, isspmatrix_coo, isspmatrix_dia = map(_is, _NAMES)


def of_scipy(value: Any) -> Any:
    """Return a sparse matrix of this machine's SciPy as one on the device."""
    form = value.format if value.format in ("csr", "csc", "coo") else "csr"
    return class_of(form, type(value).__name__.endswith("_array"))(value)


def matrix_transpose(A: Any) -> Any:
    """Return the transpose of the last two axes."""
    return A.mT
