"""Sparse matrices of a worker: rules beside their table of members.

The client knows the shape and the type of a matrix. Its elements stay here.
"""

import inspect
import operator
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from gpupool.remoting.devices.base import is_ndarray, is_sequence
from gpupool.remoting.devices.families import OPERATORS
from gpupool.remoting.devices.remote_objects import Objects

DTYPES = "?fdFD"
"""Types of the elements of a sparse matrix: those of cuSPARSE, and truth values."""

_DEPTH_MAX = 4


class Sparse(Objects):
    """CuPy's sparse matrices and factorisations."""

    family = "sparse"

    def table(self) -> dict[str, Callable[..., Any]]:
        """Return name to callable."""
        return super().table() | {"sparse.matrix": self.make, "sparse.operator": self.operator}

    def named(self, path: str) -> Any:
        """Return a class or a function of the library by its name."""
        return super().named("linalg.SuperLU" if path == "SuperLU" else path)

    def is_sparse(self, value: Any) -> bool:
        """Say whether a value is a sparse matrix or array of the library."""
        return hasattr(value, "format") and self.kind_of(value) not in ("", "SuperLU")

    def looks(self, value: Any) -> list[Any]:
        """Return the shape of a matrix and the type of its elements."""
        shape = [int(length) for length in value.shape]
        return [shape, value.dtype.str] if self.is_sparse(value) else [shape]

    def make(self, kind: str, source: Any, shape: Any, dtype: Any, copy: bool) -> Any:
        """Make a matrix from a dense one, another sparse one, a shape or its arrays."""
        return self.new(kind, source, shape=shape, dtype=dtype, copy=bool(copy))

    def operator(self, name: str, *args: Any) -> Any:
        """Compute one of Python's operators with a sparse operand."""
        if name not in OPERATORS or not any(map(self.is_sparse, args)):
            raise TypeError("no sparse operand, or no operator of it")
        args, _ = self.before(name, args, {})
        made = getattr(operator, name)(*args)
        if name == "setitem":
            self.keep(args[0])
        return self.told(self.after(name, made, args, {}))

    def method(self, value: Any, name: str) -> Callable[..., Any]:
        """Return a method of a matrix by its declared name."""
        if name == "transpose" and value.format == "dia":
            return value.tocsr().transpose  # as CuPy does it
        return super().method(value, name)

    def check_part(self, value: Any, name: str, new: Any) -> None:
        """Raise for a part that is no array, or a flag that is no truth value."""
        good = type(new) is bool if name.startswith("has_") else self.backend.is_array(new)
        if not good:
            raise TypeError(f"{name} of a matrix cannot be of type {type(new).__name__}")


_FORMAT_PLACES = {"block_array": 1, "bmat": 1, "hstack": 1, "vstack": 1, "kron": 2}
"""By function, the place of the format that a program wishes."""

_SMALL = ["abs", "asfptype", "astype", "conj", "copy", "neg", "tocoo", "transpose"]
"""Operations that need no more room than the elements of a matrix."""

_BROADCAST = ["eq", "ge", "gt", "le", "lt", "maximum", "minimum", "ne"]
_OF_DENSE = ["block_diag", "kron", "kronsum", "tril", "triu"]


_ITERATIVE = ("bicgstab", "cg", "cgs", "eigsh", "gmres", "svds")


def _check_system(matrix: Any, kwargs: dict[str, Any]) -> None:
    """Raise for a matrix or a keyword that CuPy refuses; drop an ``atol`` of None."""
    if matrix.ndim != 2:
        raise ValueError(f"expected a matrix, and not an array of {matrix.ndim} dimensions")
    if matrix.dtype.char not in "fdFD":
        raise TypeError(f"unsupported dtype (actual: {matrix.dtype})")
    if kwargs.get("which") == "SM":
        raise ValueError("which must be LM, LA or SA (actual: SM)")
    if kwargs.get("atol", 0.0) is None:
        del kwargs["atol"]


class EmulatedSparse(Sparse):
    """SciPy's sparse matrices, with the checks that CuPy makes and SciPy leaves out."""

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Check matrices and room, and return operands with which SciPy computes as CuPy does."""
        warnings.simplefilter("ignore", self.named("SparseWarning"))  # of slow operations
        self._check_all((args, tuple(kwargs.values())))
        if name in ("rand", "random", "random_array"):
            self._expect(name, args[:2])
        elif name in OPERATORS:
            self._expect(name, [arg for arg in args if self.is_sparse(arg)])
        elif "." not in name and name not in _SMALL and name[:4] not in ("coo_", "dia_"):
            self._expect(name, (*args, *kwargs.values()))
        if name.removeprefix("linalg.") in _ITERATIVE:
            _check_system(args[0], kwargs)
        if "." in name:
            known = inspect.signature(self.named(name)).parameters
            for ours, theirs in (("rtol", "tol"), ("tol", "rtol")):
                if ours in kwargs and ours not in known and theirs in known:
                    kwargs[theirs] = kwargs.pop(ours)
        return self._operands(name, args), kwargs

    def after(self, name: str, made: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return a result in the format and of the type of CuPy's."""
        if name in self.classes:
            self._check_all(made)
        if not self.is_sparse(made) and not hasattr(made, "tocsr"):
            return made
        if name == "block_diag" or name in OPERATORS:
            made = made.astype(np.float64) if made.dtype.kind in "iu" else made
        place = _FORMAT_PLACES.get(name)
        if place is not None:
            wish = args[place] if len(args) > place else kwargs.get("format")
            if wish is None and (name == "kron" or not self._is_stack(name, args[0])):
                made = made.tocoo()
        return made if self.is_sparse(made) else made.tocsr()

    def keep(self, value: Any) -> Any:
        """Account for the memory of a matrix, and refuse a type that CuPy's has not."""
        if self.is_sparse(value) and value.dtype.char not in DTYPES:
            raise ValueError(
                "Only bool, float32, float64, complex64 and complex128 are supported, "
                f"and not {value.dtype}"
            )
        return super().keep(value)

    def parts(self, value: Any) -> list[Any]:
        """Return the arrays of a matrix; nobody knows those of a factorisation."""
        names = ("data", "indices", "indptr", "offsets") if self.is_sparse(value) else ()
        found = [getattr(value, name) for name in names if hasattr(value, name)]
        return [*found, *(value.coords if getattr(value, "format", "") == "coo" else ())]

    # --- checks -----------------------------------------------------------------------------------

    def _check_all(self, value: Any, depth: int = 0) -> None:
        if self.is_sparse(value):
            if not _fits(value):
                raise ValueError(f"the indices of a {value.format} matrix do not fit its shape")
        elif is_sequence(value) and depth < _DEPTH_MAX:
            for item in value:
                self._check_all(item, depth + 1)

    def _expect(self, name: str, values: Any) -> None:
        """Raise for a matrix of more rows or columns than the device has room for.

        Most operations make an array of that length, which nobody would account for in time.
        """
        if name in _SMALL:
            return
        for value in values:
            if is_sequence(value):
                self._expect(name, value)
            elif type(value) is int:
                self.backend.expect(8 * abs(value))
            elif self.is_sparse(value):
                self.backend.expect(8 * (1 + max(value.shape)))
            elif name in self.classes and is_ndarray(value) and value.dtype.kind in "iu":
                self.backend.expect(8 * int(value.max(initial=0)))  # coordinates without a shape
        sparse = [value for value in values if self.is_sparse(value)]
        if name in ("kron", "kronsum") and len(sparse) == 2:
            first, second = (each.nnz + each.shape[0] for each in sparse)
            self.backend.expect(16 * first * second)

    # --- SciPy as CuPy ----------------------------------------------------------------------------

    def _is_stack(self, name: str, blocks: Any) -> bool:
        """Say whether CuPy stacks blocks of one compressed format, and keeps that."""
        rows: list[Any] = [blocks] if name == "hstack" else blocks
        if name == "vstack":
            rows = [[each] for each in blocks]
        formats = {getattr(each, "format", "") for row in rows for each in row if each is not None}
        upright = formats == {"csr"} and all(len(row) == 1 for row in rows)
        return upright or (formats == {"csc"} and len(rows) == 1)

    def _operands(self, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return operands with which SciPy computes as CuPy does.

        CuPy broadcasts. Of dense operands it makes a matrix where SciPy will make an array, unless
        one of them is a matrix (a DeprecationWarning since 1.18).
        """
        if name in _OF_DENSE and args and not any(map(self.is_sparse, args)):
            blocks = list(args[0]) if name == "block_diag" else [args[0]]
            if blocks and not any(map(self.is_sparse, blocks)):
                blocks[0] = self.named("coo_matrix")(np.atleast_2d(blocks[0]))
            return blocks if name == "block_diag" else blocks[0], *args[1:]
        if name not in _BROADCAST or not all(map(self.is_sparse, args)) or len(args) != 2:
            return args
        first, second = args
        if first.shape == second.shape or first.ndim != 2 or second.ndim != 2:
            return args
        try:
            shape = np.broadcast_shapes(first.shape, second.shape)
        except ValueError:
            raise ValueError(f"inconsistent shapes: {first.shape} and {second.shape}") from None
        return tuple(_spread(each, shape) for each in args)


def _spread(matrix: Any, shape: tuple[int, ...]) -> Any:
    for axis in (0, 1):
        if matrix.shape[axis] != shape[axis]:
            places = np.zeros(shape[axis], np.int32)
            rows = matrix.tocsr()
            matrix = rows[places] if axis == 0 else rows[:, places]
    return matrix


def _fits(matrix: Any) -> bool:
    """Say whether index arrays stay inside: a client may have changed them in place.

    SciPy's compiled code reads and writes where they say.
    """
    if matrix.format in ("csr", "csc"):
        major = 1 if matrix.ndim == 1 else matrix.shape[0 if matrix.format == "csr" else 1]
        minor = matrix.shape[1 if matrix.format == "csr" and matrix.ndim == 2 else 0]
        pointers = matrix.indptr
        good = pointers.shape == (major + 1,) and int(pointers[0]) == 0
        good = good and bool((np.diff(pointers) >= 0).all())
        count = int(pointers[-1]) if good else 0
        good = good and min(matrix.indices.size, matrix.data.size) >= count
        return good and _within(matrix.indices[:count], minor)
    if matrix.format == "coo":
        lengths = {each.shape for each in (*matrix.coords, matrix.data)}
        return len(lengths) == 1 and all(map(_within, matrix.coords, matrix.shape))
    return matrix.data.ndim == 2 and matrix.offsets.shape == (matrix.data.shape[0],)


def _within(indices: Any, length: int) -> bool:
    return not indices.size or (int(indices.min()) >= 0 and int(indices.max()) < length)
