"""CuPy's interface on remote GPUs: calls are forwarded to a worker of a gpupool server.

Needs the standard library and NumPy only. Where this package has no such name, CuPy's programs
see an AttributeError; ``gpupool door --missing`` lists those names.
"""

import sys as _sys
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

try:
    import numpy as _numpy
except ModuleNotFoundError as _error:
    if _error.name != "numpy":
        raise
    import os as _os

    _mark = _os.path.join(_os.path.dirname(_os.__file__), "EXTERNALLY-MANAGED")
    _how = (
        "python3 -m venv ENV; ENV/bin/pip install numpy; then run ENV/bin/python"
        if _sys.prefix == _sys.base_prefix and _os.path.exists(_mark)  # PEP 668: pip refuses
        else f"{_sys.executable} -m pip install numpy"
    )
    raise ModuleNotFoundError(
        f"gpupool's drop-in cupy needs NumPy in the program's environment: {_how}",
        name="numpy",
    ) from None

from cupy import cuda as cuda
from cupy import exceptions as exceptions
from cupy import fft as fft
from cupy import lib as lib
from cupy import linalg as linalg
from cupy import polynomial as polynomial
from cupy import random as random
from cupy._core import convert as _convert
from cupy._core.array import ndarray as ndarray
from cupy._core.copying import copyto as copyto
from cupy._core.creation import CREATION as _CREATION
from cupy._core.elementwise import ELEMENTWISE as _ELEMENTWISE
from cupy._core.host import HOST as _HOST
from cupy._core.kernels.fusion import FUSION as _FUSION
from cupy._core.kernels.raw_kernels import RAW_KERNELS as _RAW_KERNELS
from cupy._core.kernels.typed_kernels import TYPED_KERNELS as _TYPED_KERNELS
from cupy._core.kernels.vectorize import VECTORIZE as _VECTORIZE
from cupy._core.learned import LEARNED as _LEARNED
from cupy._core.manipulation import MANIPULATION as _MANIPULATION
from cupy._core.poly import POLY as _POLY
from cupy._core.products import PRODUCTS as _PRODUCTS
from cupy._core.reductions import REDUCTIONS as _REDUCTIONS
from cupy._core.ufunc import UFUNCS as _UFUNCS
from cupy._core.ufunc import ufunc as ufunc
from cupy._door import absent as _absent

__version__ = "14.2.0"
_LATER = ("testing", "typing", "_util")

if _TYPE_CHECKING:

    def __getattr__(name: str) -> _Any:
        """Stand for the names that are filled in below, for type checkers."""

else:
    __getattr__ = _absent.lookup(__name__, *_LATER)
    _absent.watch_imports()


# What CuPy takes from NumPy as it is.
_REEXPORTED = """
    bool bool_ byte cdouble clongdouble complex128 complex64 complexfloating csingle double dtype
    finfo flexible float16 float32 float64 floating generic half iinfo inexact int16 int32 int64
    int8 int_ intc integer intp isdtype longlong number short signedinteger single ubyte uint
    uint16 uint32 uint64 uint8 uintc uintp ulonglong unsignedinteger ushort broadcast_shapes
    ndindex get_printoptions set_printoptions printoptions issubdtype iterable mintypecode
    promote_types typename e euler_gamma inf nan newaxis pi long ulong datetime64 timedelta64
    object_ str_ bytes_ void character
"""
_OLD_NAMES = """
    float_:float64 complex_:complex128 cfloat:complex128 singlecomplex:complex64 NaN:nan NAN:nan
    Inf:inf Infinity:inf infty:inf PINF:inf
"""
_ALIASES = """
    alltrue:all sometrue:any amax:max amin:min cumproduct:cumprod product:prod round_:around
    trapz:trapezoid
"""


def _fill(names: dict[str, _Any]) -> None:
    # NumPy 1.26 has these under other names, and warns when it is asked for them.
    names["bool"], names["long"], names["ulong"] = _numpy.bool_, _numpy.int_, _numpy.uint
    for name in _REEXPORTED.split():
        if name in vars(_numpy):
            names[name] = vars(_numpy)[name]
    for name, _, source in (pair.partition(":") for pair in _OLD_NAMES.split()):
        names[name] = getattr(_numpy, source)
    names["NINF"], names["NZERO"], names["PZERO"] = -_numpy.inf, -0.0, 0.0
    for name in dir(exceptions):
        if not name.startswith("_"):
            names[name] = getattr(exceptions, name)
    kernels = (_RAW_KERNELS, _TYPED_KERNELS, _FUSION, _VECTORIZE)
    functions = (_CREATION, _ELEMENTWISE, _LEARNED, _MANIPULATION, _PRODUCTS)
    for table in (*functions, _REDUCTIONS, _HOST, _POLY, _UFUNCS, *kernels):
        names.update(table)
    for name, _, source in (pair.partition(":") for pair in _ALIASES.split()):
        names[name] = names[source]
    names["array"] = _convert.array
    for table in (*functions, _REDUCTIONS, _HOST):
        for name, function in table.items():
            # Programs and NumPy's dispatcher look at the name of a function.
            if getattr(function, "__name__", None) == "function":
                function.__name__ = function.__qualname__ = name


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})


_fill(globals())
# array_api_compat's cupy is `from cupy import *`; SciPy's tests take `testing` from there.
__all__ = [_name for _name in __dir__() if not _name.startswith("_")]  # pyright: ignore[reportUnsupportedDunderAll]


def get_default_memory_pool() -> cuda.MemoryPool:
    """Return the memory pool with the numbers of the current device's partition."""
    return cuda.memory.default_pool


def get_default_pinned_memory_pool() -> cuda.PinnedMemoryPool:
    """Return the pool of pinned host memory, of which there is none."""
    return cuda.memory.default_pinned_pool
