"""Sparse matrices: objects of the worker's library, and the operations that take and make them.

The client holds a handle of each. It knows the format, shape and type of a matrix, and its elements
stay here. A real GPU has CuPy's own matrices, an emulated one SciPy's.

Answers
    A matrix in an answer is ``["sparse", object, format, is an array, shape, dtype]``, a
    factorisation ``["factors", object, shape]``.
"""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import importlib
import inspect
import operator
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gpupool.remoting.devices import sparse_names as names
from gpupool.remoting.devices.base import UnsupportedError
from gpupool.remoting.devices.extensions import NO_SCIPY

Operation = Callable[..., Any]
DTYPES = "?fdFD"
"""Types of the elements of a sparse matrix: those of cuSPARSE, and truth values."""

_IN_PLACE = ("eliminate_zeros", "prune", "setdiag", "sort_indices", "sum_duplicates")
_SMALL = ("abs", "asfptype", "astype", "conj", "copy", "neg", "tocoo", "transpose")
"""Operations that need no more room than the elements of a matrix."""

_BROADCAST = ("eq", "ge", "gt", "le", "lt", "maximum", "minimum", "ne")
_OF_DENSE = ("block_diag", "kron", "kronsum", "tril", "triu")
_DEPTH_MAX = 4


class Library:
    """CuPy's sparse matrices."""

    package = "cupyx.scipy.sparse"
    lacking = "this CuPy lacks it"

    def __init__(self, backend: Any) -> None:
        self.backend = backend

    def module(self, name: str = "") -> Any:
        """Return a module of the package, imported at the first call."""
        path = self.package + name
        try:
            return importlib.import_module(path)
        except ImportError:
            raise UnsupportedError(f"cupyx.scipy.sparse{name}: {self.lacking}") from None

    def function(self, module: str, name: str) -> Operation:
        """Return a function of the package by one of the names of the table."""
        found = getattr(self.module(module), name, None)
        if found is None:
            raise UnsupportedError(f"cupyx.scipy.sparse{module}.{name}: {self.lacking}")
        return found

    def is_sparse(self, value: Any) -> bool:
        """Say whether a value is a sparse matrix or array of the package."""
        return bool(self.module().issparse(value))

    def check(self, matrix: Any) -> None:
        """Raise for a matrix with index arrays that do not fit; the library checks its own."""

    def expect(self, name: str, values: Any) -> None:
        """Raise before memory is taken that the device has not; CuPy's pool does so itself."""

    def arguments(self, function: Operation, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return keywords by the names that the library has for them."""
        del function
        return kwargs

    def keep(self, matrix: Any) -> Any:
        """Return a new matrix as a program gets it."""
        return matrix

    def promote(self, value: Any) -> Any:
        """Return a result with elements of a type that CuPy's matrices have."""
        return value

    def joined(self, name: str, made: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return a function's result, in the format and of the type of CuPy's."""
        del name, args, kwargs
        return made

    def operands(self, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return operands as the library takes them."""
        del name
        return args


_FORMAT_PLACES = {"block_array": 1, "bmat": 1, "hstack": 1, "vstack": 1, "kron": 2}
"""By function, the place of the format that a program wishes."""


class EmulatedLibrary(Library):
    """SciPy's sparse matrices, with the checks that CuPy makes and SciPy leaves out."""

    package = "scipy.sparse"
    lacking = NO_SCIPY

    def module(self, name: str = "") -> Any:
        """Return a module of SciPy without its warnings of slow operations, as in CuPy."""
        found = super().module(name)
        if not name:
            warnings.simplefilter("ignore", found.SparseWarning)
        return found

    def check(self, matrix: Any) -> None:
        """Raise for index arrays that reach outside: a client may have changed them in place.

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
            good = good and _within(matrix.indices[:count], minor)
        elif matrix.format == "coo":
            lengths = {each.shape for each in (*matrix.coords, matrix.data)}
            good = len(lengths) == 1 and all(map(_within, matrix.coords, matrix.shape))
        else:
            good = matrix.data.ndim == 2 and matrix.offsets.shape == (matrix.data.shape[0],)
        if not good:
            raise ValueError(f"the indices of a {matrix.format} matrix do not fit its shape")

    def expect(self, name: str, values: Any) -> None:
        """Raise for a matrix of more rows or columns than the device has room for.

        Most operations make an array of that length, which nobody would account for in time.
        """
        if name in _SMALL:
            return
        values = values[:2] if name in ("rand", "random", "random_array") else values
        for value in values:
            if type(value) in (tuple, list):
                self.expect(name, value)
            elif type(value) is int:
                self.backend.expect(8 * abs(value))
            elif self.is_sparse(value):
                self.backend.expect(8 * (1 + max(value.shape)))
            elif name == "make" and isinstance(value, np.ndarray) and value.dtype.kind in "iu":
                self.backend.expect(8 * int(value.max(initial=0)))  # coordinates without a shape
        sparse = [value for value in values if self.is_sparse(value)]
        if name in ("kron", "kronsum") and len(sparse) == 2:
            first, second = (each.nnz + each.shape[0] for each in sparse)
            self.backend.expect(16 * first * second)

    def arguments(self, function: Operation, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Name the tolerance as this SciPy does."""
        known = inspect.signature(function).parameters
        for ours, theirs in (("rtol", "tol"), ("tol", "rtol")):
            if ours in kwargs and ours not in known and theirs in known:
                kwargs[theirs] = kwargs.pop(ours)
        return kwargs

    def promote(self, value: Any) -> Any:
        """Return a matrix of integers as one of floats, as CuPy's operators give it."""
        whole = self.is_sparse(value) and value.dtype.kind in "iu"
        return value.astype(np.float64) if whole else value

    def joined(self, name: str, made: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return a function's result: COO without a requested format, for SciPy often another."""
        if name == "block_diag":
            return self.promote(made)
        place = _FORMAT_PLACES.get(name)
        if place is None or not self.is_sparse(made):
            return made
        wish = args[place] if len(args) > place else kwargs.get("format")
        if wish is not None or (name != "kron" and self._is_stack(name, args[0])):
            return made
        return made.tocoo()

    def _is_stack(self, name: str, blocks: Any) -> bool:
        """Say whether CuPy stacks blocks of one compressed format, and keeps that."""
        rows: list[Any] = [blocks] if name == "hstack" else blocks
        if name == "vstack":
            rows = [[each] for each in blocks]
        formats = {getattr(each, "format", "") for row in rows for each in row if each is not None}
        upright = formats == {"csr"} and all(len(row) == 1 for row in rows)
        return upright or (formats == {"csc"} and len(rows) == 1)

    def operands(self, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return operands with which SciPy computes as CuPy does.

        CuPy broadcasts. Of dense operands it makes a matrix where SciPy will make an array, unless
        one of them is a matrix (a DeprecationWarning since 1.18).
        """
        if name in _OF_DENSE and args and not any(map(self.is_sparse, args)):
            blocks = list(args[0]) if name == "block_diag" else [args[0]]
            if blocks and not any(map(self.is_sparse, blocks)):
                blocks[0] = self.module().coo_matrix(np.atleast_2d(blocks[0]))
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

    def keep(self, matrix: Any) -> Any:
        """Account for the memory of a new matrix, and refuse a type that CuPy's has not."""
        if matrix.format not in names.FORMATS:
            matrix = matrix.tocsr()
        if matrix.dtype.char not in DTYPES:
            raise ValueError(
                "Only bool, float32, float64, complex64 and complex128 are supported, "
                f"and not {matrix.dtype}"
            )
        for part in _parts(matrix):
            self.backend.adopt(part)
        return matrix


def _spread(matrix: Any, shape: tuple[int, ...]) -> Any:
    for axis in (0, 1):
        if matrix.shape[axis] != shape[axis]:
            places = np.zeros(shape[axis], np.int32)
            rows = matrix.tocsr()
            matrix = rows[places] if axis == 0 else rows[:, places]
    return matrix


def _within(indices: Any, length: int) -> bool:
    return not indices.size or (int(indices.min()) >= 0 and int(indices.max()) < length)


def _parts(matrix: Any) -> Iterator[Any]:
    for name in ("data", "indices", "indptr", "offsets"):
        if hasattr(matrix, name):
            yield getattr(matrix, name)
    if matrix.format == "coo":
        yield from matrix.coords


class _Factors:
    """A factorisation, only for solving."""

    def __init__(self, made: Any) -> None:
        self.made = made


class Operations:
    """The operations of one backend's library."""

    def __init__(self, library: Library) -> None:
        self.library = library

    def table(self) -> dict[str, Operation]:
        """Return name to callable."""
        made: dict[str, Operation] = {}
        made |= {f"sparse.{name}": self._method(name) for name in names.METHODS}
        made |= {f"sparse.operator.{name}": self._operator(name) for name in names.OPERATORS}
        for module, functions in (
            ("", names.FUNCTIONS),
            (".linalg", names.LINALG),
            (".csgraph", names.CSGRAPH),
        ):
            made |= {f"sparse{module}.{name}": self._function(module, name) for name in functions}
        return made | {
            "sparse.make": self.make,
            "sparse.setitem": self.setitem,
            "sparse.nnz": lambda matrix: int(self.checked(matrix).nnz),
            "sparse.part": self.part,
            "sparse.set_part": self.set_part,
            "sparse.flag": lambda matrix, name: bool(self._attribute(matrix, name, names.FLAGS)),
            "sparse.set_flag": self.set_flag,
            "sparse.product": self.product,
            "sparse.product_left": self.product_left,
            "sparse.factors.solve": self.solve,
        }

    # --- what comes in and goes out ---------------------------------------------------------------

    def checked(self, value: Any) -> Any:
        """Return a value that is a sparse matrix; raise for any other, and for a broken one."""
        if not self.library.is_sparse(value):
            raise TypeError("no sparse matrix")
        self.library.check(value)
        return value

    def _check_all(self, value: Any, depth: int = 0) -> None:
        if type(value) in (tuple, list) and depth < _DEPTH_MAX:
            for item in value:
                self._check_all(item, depth + 1)
        elif self.library.is_sparse(value):
            self.library.check(value)

    def told(self, value: Any) -> Any:
        """Return a result as an answer has it."""
        if value is NotImplemented:
            raise TypeError("unsupported operands of a sparse matrix")
        if isinstance(value, _Factors):
            return ["factors", value, list(value.made.shape)]
        if type(value) in (tuple, list):
            return [self.told(item) for item in value]
        if value is None or isinstance(value, (bool, int, float, complex, str)):
            return value
        if self.library.is_sparse(value):
            kept = self.library.keep(value)
            shape = [int(length) for length in kept.shape]
            is_array = not self.library.module().isspmatrix(kept)
            return ["sparse", kept, kept.format, is_array, shape, kept.dtype.str]
        if self.library.backend.is_array(value):
            return value
        raise TypeError(f"a result of type {type(value).__name__} cannot be sent")

    def _result(self, value: Any, expected: Any) -> Any:
        """Return a matrix that the client has described already, or else an answer."""
        told = self.told(value)
        if expected is None:
            return told
        if told[2:] != [expected[0], expected[1], list(expected[2]), np.dtype(expected[3]).str]:
            raise ValueError(
                f"the result is {told[2:]}, but the client inferred {list(expected)}; this is a "
                "bug of the drop-in, please report it"
            )
        return told[1]

    # --- operations -------------------------------------------------------------------------------

    def _method(self, name: str) -> Operation:
        def call(matrix: Any, *args: Any, _expected: Any = None, **kwargs: Any) -> Any:
            self.checked(matrix)
            self._check_all((args, tuple(kwargs.values())))
            self.library.expect(name, (matrix, *args))
            method = getattr(matrix, name, None)
            if method is None:
                raise AttributeError(f"{type(matrix).__name__} has no {name}")
            if args and name in _BROADCAST:
                matrix, *rest = self.library.operands(name, (matrix, *args))
                method, args = getattr(matrix, name), tuple(rest)
            if name == "transpose" and matrix.format == "dia":
                method = matrix.tocsr().transpose  # as CuPy does it
            made = method(*args, **kwargs)
            if name in _IN_PLACE:
                self.library.keep(matrix)
                return None
            if name == "toarray":
                return made
            return self._result(made, _expected)

        return call

    def _operator(self, name: str) -> Operation:
        function: Any = getattr(operator, name)

        def call(*args: Any, _expected: Any = None) -> Any:
            if not any(self.library.is_sparse(arg) for arg in args):
                raise TypeError("no sparse operand")
            self._check_all(args)
            self.library.expect(name, [arg for arg in args if self.library.is_sparse(arg)])
            made = function(*self.library.operands(name, args))
            return self._result(self.library.promote(made), _expected)

        return call

    def _function(self, module: str, name: str) -> Operation:
        def call(*args: Any, **kwargs: Any) -> Any:
            function = self.library.function(module, name)
            self._check_all((args, tuple(kwargs.values())))
            if module == "":
                self.library.expect(name, (*args, *kwargs.values()))
            taken = self.library.operands(name, args)
            made = function(*taken, **self.library.arguments(function, kwargs))
            if name in ("splu", "spilu"):
                made = _Factors(made)
            return self.told(self.library.joined(name, made, args, kwargs))

        return call

    def make(
        self, form: str, is_array: bool, source: Any, shape: Any, dtype: Any, copy: bool
    ) -> Any:
        """Make a matrix from a dense one, another sparse one, a shape or its arrays."""
        if form not in names.FORMATS:
            raise ValueError(f"no format {form}")
        self._check_all(source)
        if form in ("csr", "csc"):
            self.library.expect("make", (source, shape or ()))
        kind = self.library.function("", f"{form}_{'array' if is_array else 'matrix'}")
        made = kind(source, shape=shape, dtype=dtype, copy=bool(copy))
        self.checked(made)
        return self.told(made)

    def setitem(self, matrix: Any, key: Any, value: Any) -> None:
        """Set elements."""
        self._check_all(value)
        self.checked(matrix)[key] = value
        self.library.keep(matrix)

    def _attribute(self, matrix: Any, name: str, known: tuple[str, ...]) -> Any:
        if name not in known or not self.library.is_sparse(matrix):
            raise AttributeError(f"no attribute {name}")
        return getattr(matrix, name)

    def part(self, matrix: Any, name: str) -> Any:
        """Return one of the arrays of a matrix, not a copy; or its real or imaginary part."""
        found = self._attribute(matrix, name, names.PARTS)
        return self.told(found) if self.library.is_sparse(found) else found

    def set_part(self, matrix: Any, name: str, value: Any) -> None:
        """Replace one of the arrays of a matrix."""
        if name in ("real", "imag") or not self.library.backend.is_array(value):
            raise TypeError(f"{name} cannot be set")
        self._attribute(matrix, name, names.PARTS)
        setattr(matrix, name, value)

    def set_flag(self, matrix: Any, name: str, value: Any) -> None:
        """Set a flag on the order of the indices."""
        self._attribute(matrix, name, names.FLAGS)
        setattr(matrix, name, bool(value))

    def product(self, matrix: Any, other: Any) -> Any:
        """Return the product with a dense vector or matrix."""
        return self.checked(matrix) @ other

    def product_left(self, other: Any, matrix: Any) -> Any:
        """Return the product of a dense vector or matrix with a sparse one."""
        return other @ self.checked(matrix)

    def solve(self, factors: Any, right: Any, trans: str = "N") -> Any:
        """Solve with a factorisation."""
        if not isinstance(factors, _Factors):
            raise TypeError("no factorisation")
        return factors.made.solve(right, trans)


def real_sparse(backend: Any) -> dict[str, Operation]:
    """Return the operations of a real GPU."""
    return Operations(Library(backend)).table()


def emulated_sparse(backend: Any) -> dict[str, Operation]:
    """Return the operations of an emulated GPU."""
    return Operations(EmulatedLibrary(backend)).table()
