"""`cupy.ndarray`: an array that lives in a worker, described on this side."""

from __future__ import annotations

import contextlib
import functools
import importlib
import pickle  # noqa: TID251 - arrays of this process, written where the program says
import sys
import warnings
from typing import Any

import numpy as np

from cupy._core import convert, indexing
from cupy._core.dispatch import arguments, make, transfers
from cupy._core.methods import TRANSPOSED, Methods
from cupy._core.operators import Operators
from cupy._core.ufunc import UFUNCS
from cupy._door import absent, state
from cupy._door.meta import intern, reshaped

_frame = sys._getframe
_PYTHON_SCALARS = (int, float, bool, complex)


class Flags:
    """Memory layout of an array; see `numpy.ndarray.flags`."""

    __slots__ = ("c_contiguous", "f_contiguous", "owndata")
    c_contiguous: bool
    f_contiguous: bool
    owndata: bool

    def __init__(self, c: bool, f: bool, own: bool) -> None:
        for name, value in zip(self.__slots__, (c, f, own)):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        # CuPy's flags take other names, and forget them: programs set `writeable`.
        if hasattr(Flags, name):
            raise AttributeError(f"attribute {name!r} of cupy.ndarray.flags is not writable")

    @property
    def forc(self) -> bool:
        """Whether it is contiguous in either order."""
        return self.c_contiguous or self.f_contiguous

    @property
    def fnc(self) -> bool:
        """Whether it is Fortran-contiguous and not C-contiguous."""
        return self.f_contiguous and not self.c_contiguous

    def __getitem__(self, name: str) -> bool:
        key = {"C": "c_contiguous", "F": "f_contiguous", "O": "owndata"}.get(name, name.lower())
        if not name.isupper() or key not in (*self.__slots__, "forc", "fnc"):
            raise KeyError(f"{name} is not defined for cupy.ndarray.flags")
        return getattr(self, key)

    def __repr__(self) -> str:
        return (
            f"  C_CONTIGUOUS : {self.c_contiguous}\n"
            f"  F_CONTIGUOUS : {self.f_contiguous}\n"
            f"  OWNDATA : {self.owndata}\n"
        )


class ndarray(Operators, Methods):
    """A multi-dimensional array on a GPU; see `numpy.ndarray`."""

    __slots__ = ()
    __module__ = "cupy"

    def __new__(
        cls,
        shape: object,
        dtype: Any = float,
        memptr: Any = None,
        strides: Any = None,
        order: str | None = "C",
    ) -> ndarray:
        """Make an uninitialised array, or one over memory that ``memptr`` points to."""
        lengths = arguments.shape_of(shape)
        if len(lengths) > 64:
            raise ValueError(
                f"maximum supported dimension for an ndarray is 64, found {len(lengths)}"
            )
        letter = arguments.normalize_order("C" if order is None else order)
        if memptr is not None:
            made = memptr.as_array(lengths, arguments.dtype_of(dtype), strides, letter)
        elif strides is not None:
            arguments.check_strides(lengths, tuple(strides), arguments.dtype_of(dtype).itemsize)
            flat = make.empty(lengths, dtype)
            made = make.as_strided(flat, lengths, tuple(strides))
        else:
            made = make.empty(lengths, dtype, order="F" if letter == "F" else "C")
        if cls is not ndarray:
            made = made.view(type=cls)
        return made

    def __array_finalize__(self, obj: object) -> None:
        """Finish a new instance of a subclass; see NumPy's guide to subclassing."""

    # --- looks ----------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return self._gp_meta.shape

    @shape.setter
    def shape(self, value: Any) -> None:
        try:
            lengths = tuple(value)
        except TypeError:
            lengths = (value,)
        meta, is_view = reshaped(self._gp_meta, lengths, "C")
        if not is_view:
            raise AttributeError("Incompatible shape for in-place modification. Use `.reshape()`")
        self._gp_become(self.reshape(meta.shape))

    def _gp_become(self, other: ndarray) -> None:
        """Take over another array's handle; it gets ours, and frees it."""
        self._gp_handle, other._gp_handle = other._gp_handle, self._gp_handle
        self._gp_known, other._gp_known = other._gp_known, self._gp_known
        for each in (self, other):
            with contextlib.suppress(AttributeError):
                del each._gp_address

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next along each axis."""
        return self._gp_meta.strides

    @property
    def dtype(self) -> np.dtype:
        """Type of the elements."""
        return self._gp_meta.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self._gp_meta.ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._gp_meta.size

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self._gp_meta.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self._gp_meta.nbytes

    @property
    def flags(self) -> Flags:
        """Memory layout."""
        c, f = self._gp_meta.contiguity
        return Flags(c, f, self._gp_base is None)

    @property
    def base(self) -> Any:
        """The array that owns the memory of this view, or None."""
        return self._gp_base

    @property
    def device(self) -> Any:
        """The device that holds it."""
        from cupy.cuda.device import Device

        return Device(self._gp_device)

    @property
    def data(self) -> Any:
        """A pointer to the first element, on the server."""
        from cupy.cuda.memory import MemoryPointer

        return MemoryPointer(self)

    @property
    def flat(self) -> Any:
        """A 1-D iterator over the elements."""
        from cupy._core.grids import flatiter

        return flatiter(self)

    @property
    def cstruct(self) -> Any:
        """Not available: the structure is made by the worker when a kernel is launched."""
        raise AttributeError("cstruct is made on the server, when a kernel is launched")

    @property
    def mdspan(self) -> Any:
        """Not available: a kernel takes an array by its pointer."""
        raise AttributeError(absent.advice("cupy.ndarray", "mdspan"))

    # --- to the host ----------------------------------------------------------------------------

    def get(
        self, stream: Any = None, order: str = "C", out: object = None, blocking: bool = True
    ) -> np.ndarray:
        """Return a copy on the host; always complete on return, also with ``blocking=False``."""
        del blocking
        if out is not None:
            if not isinstance(out, np.ndarray):
                raise TypeError("Only numpy.ndarray can be obtained from cupy.ndarray")
            host: np.ndarray = out
            if self.dtype != host.dtype:
                raise TypeError(f"{host.dtype} array cannot be obtained from {self.dtype} array")
            if self.shape != host.shape:
                raise ValueError(
                    f"Shape mismatch. Expected shape: {self.shape}, actual shape: {host.shape}"
                )
            if not (host.flags.c_contiguous or host.flags.f_contiguous):
                raise RuntimeError("`out` cannot be specified when it is not contiguous")
        letter = order.upper()[:1] if order else ""
        if letter not in ("C", "F", "A"):
            raise ValueError(f"unsupported order: {order}")
        if stream is not None:
            with state.on(self._gp_device), stream:
                return transfers.download(self, letter, out)
        return transfers.download(self, letter, out)

    def set(self, arr: object, stream: object = None) -> None:
        """Copy a host array of the same shape and dtype into this one."""
        if not isinstance(arr, np.ndarray):
            raise TypeError("Only numpy.ndarray can be set to cupy.ndarray")
        host: np.ndarray = arr
        if self.dtype != host.dtype:
            raise TypeError(f"{host.dtype} array cannot be set to {self.dtype} array")
        if self.shape != host.shape:
            raise ValueError(f"Shape mismatch. Old shape: {self.shape}, new shape: {host.shape}")
        del stream
        if transfers.refill(self, host):
            return
        with state.on(self._gp_device):
            value = transfers.upload(host, self._gp_session)
            self._gp_session.call("ndarray.setitem", (self, (Ellipsis,), value), {})

    def item(self) -> Any:
        """Return the only element as a Python scalar."""
        host = (
            transfers.download(self) if self._gp_known is None or self._gp_known.size == 1 else None
        )
        if host is None or host.size != 1:
            raise ValueError("can only convert an array of size 1 to a Python scalar")
        return host.item()

    def tolist(self) -> Any:
        """Return the elements as nested lists."""
        return transfers.download(self).tolist()

    def tobytes(self, order: str = "C") -> bytes:
        """Return the elements as bytes."""
        return transfers.download(self).tobytes(order)  # type: ignore[arg-type]

    def tofile(self, fid: Any, sep: str = "", format: str = "%s") -> None:  # noqa: A002
        """Write the elements to a file of this machine."""
        transfers.download(self).tofile(fid, sep, format)

    def dump(self, file: Any) -> None:
        """Write a pickle of the array to a file of this machine."""
        pickle.dump(self, file, -1)

    def dumps(self) -> bytes:
        """Return a pickle of the array."""
        return pickle.dumps(self, -1)

    def __bool__(self) -> bool:
        state.check_scalar()
        if self._gp_known is None or self._gp_known.size == 1:
            host = transfers.download(self)
            if host.size == 1:
                return bool(host)
        if self.size == 0:
            warnings.warn(
                "The truth value of an empty array is ambiguous. Returning False, but in future "
                "this will result in an error. Use `array.size > 0` to check that an array is "
                "not empty.",
                DeprecationWarning,
                stacklevel=2,
            )
            return False
        raise ValueError(
            "The truth value of an array with more than one element is ambiguous. "
            "Use a.any() or a.all()"
        )

    def __int__(self) -> int:
        state.check_scalar()
        return int(transfers.download(self))

    def __float__(self) -> float:
        state.check_scalar()
        return float(transfers.download(self))

    def __complex__(self) -> complex:
        state.check_scalar()
        return complex(transfers.download(self))

    def __bytes__(self) -> bytes:
        return bytes(transfers.download(self))

    def __repr__(self) -> str:
        return repr(transfers.download(self))

    def __str__(self) -> str:
        return str(transfers.download(self))

    def __format__(self, spec: str) -> str:
        return format(transfers.download(self), spec)

    def __reduce__(self) -> Any:
        return convert.array, (transfers.download(self, "A"),)

    def __copy__(self) -> ndarray:
        return self.copy()

    def __deepcopy__(self, memo: object) -> ndarray:
        with state.on(self._gp_device):
            return self.copy()

    # --- parts ----------------------------------------------------------------------------------

    def __len__(self) -> int:
        if not self._gp_meta.shape:
            raise TypeError("len() of unsized object")
        return self._gp_meta.shape[0]

    def __iter__(self) -> Any:
        if not self._gp_meta.shape:
            raise TypeError("iteration over a 0-d array")
        return (self[index] for index in range(self._gp_meta.shape[0]))

    # Themselves, not wrapped: these are called more often than anything but arithmetic.
    __getitem__ = indexing.getitem
    __setitem__ = indexing.setitem

    @property
    def T(self) -> ndarray:
        """The transpose, as a view."""
        plan = TRANSPOSED.get(self._gp_known)
        return self.transpose() if plan is None else make.send_view(self, plan, b"", _frame(1))

    @property
    def mT(self) -> ndarray:
        """The transpose of the last two axes, as a view."""
        if self.ndim < 2:
            raise ValueError("matrix transpose with ndim < 2 is undefined")
        return self.swapaxes(-1, -2)

    def _gp_component(self, name: str, first: bool) -> ndarray:
        meta = self._gp_meta
        if meta.dtype.kind != "c":
            if first:
                return self
            return make.full(meta.shape, 0, meta.dtype)
        half = np.dtype(meta.dtype.char.lower())
        return make.view(self, name, (), intern(half, meta.shape, meta.strides))

    @property
    def real(self) -> ndarray:
        """The real part, as a view."""
        return self._gp_component("ndarray.real", True)

    @real.setter
    def real(self, value: object) -> None:
        self._gp_component("ndarray.real", True)[...] = value

    @property
    def imag(self) -> ndarray:
        """The imaginary part, as a view; zeros for real arrays."""
        return self._gp_component("ndarray.imag", False)

    @imag.setter
    def imag(self, value: object) -> None:
        if self._gp_meta.dtype.kind != "c":
            raise TypeError("cupy.ndarray does not have imaginary part to set")
        self._gp_component("ndarray.imag", False)[...] = value

    # --- other libraries ------------------------------------------------------------------------

    def __array__(self, dtype: object = None, copy: object = None) -> Any:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. "
            "Please use `.get()` to construct a NumPy array explicitly."
        )

    @classmethod
    def __class_getitem__(cls, item: object) -> Any:
        from types import GenericAlias

        return GenericAlias(ndarray, item)

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        """Shape and the address on the server, where only kernels of this session reach it."""
        meta = self._gp_meta
        return {
            "shape": meta.shape,
            "typestr": meta.dtype.str,
            "descr": meta.dtype.descr,
            "stream": state.local.context[1] or 1,
            "version": 3,
            "strides": None if meta.contiguity[0] else meta.strides,
            "data": (self.data.ptr if meta.size else 0, False),
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, self._gp_device)

    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: object = None,
        dl_device: Any = None,
        copy: object = None,
    ) -> Any:
        if dl_device is None or tuple(dl_device) != (1, 0):
            raise BufferError(
                "the array is on a remote GPU, whose memory no library of this process can "
                "reach; ask for a copy on the host with dl_device=(1, 0), or use cupy.asnumpy"
            )
        if copy is False:
            raise ValueError("GPU memory cannot be exported to CPU without copy.")
        host = transfers.download(self)
        return host.__dlpack__()

    def toDlpack(self) -> Any:
        """Raise: a capsule would hold an address of another machine."""
        return self.__dlpack__()

    def __array_ufunc__(self, function: Any, method: str, *inputs: object, **kwargs: Any) -> Any:
        operands = inputs
        if "out" in kwargs:
            if len(kwargs["out"]) != 1:
                raise ValueError("The 'out' parameter must have exactly one array value")
            kwargs["out"] = kwargs["out"][0]
            operands = (*inputs, kwargs["out"])
        name = function.__name__
        found = UFUNCS.get(name) or getattr(sys.modules["cupy"], name, None)
        if found is None:  # it may be one of SciPy's
            found = getattr(importlib.import_module("cupyx.scipy.special"), name, None)
        if method != "__call__":
            found = getattr(found, method, None)
        if found is None:
            return NotImplemented
        for operand in operands:
            known = type(operand) in _PYTHON_SCALARS or isinstance(
                operand, (ndarray, np.ndarray, np.generic)
            )
            if not known and not any(hasattr(operand, each) for each in convert.ARRAY_PROTOCOLS):
                return NotImplemented
        if name in ("greater", "greater_equal", "less", "less_equal", "equal", "not_equal"):
            inputs = tuple(
                item.item() if isinstance(item, np.ndarray) and item.ndim == 0 else item
                for item in inputs
            )
        return found(*inputs, **kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        try:
            # NumPy says where its function lives; ours has the same place under `cupy`.
            module = functools.reduce(
                getattr, function.__module__.split(".")[1:], sys.modules["cupy"]
            )
            found = getattr(module, function.__name__)
        except AttributeError:
            return NotImplemented
        if found is function:
            return NotImplemented
        for kind in types:
            if not issubclass(kind, (ndarray, np.ndarray)):
                return NotImplemented
        return found(*args, **kwargs)


make.classes.ndarray = ndarray
