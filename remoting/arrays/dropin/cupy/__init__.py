"""CuPy's interface on remote GPUs: calls are forwarded to a worker of a gpupool server.

Needs the standard library and NumPy only. Where this package has no such name, CuPy's programs
see an AttributeError; ``gpupool door --missing`` lists those names.
"""

from typing import Any

from cupy._core import make as _make
from cupy._core.array import ndarray as ndarray
from cupy._core.functions import FUNCTIONS as _FUNCTIONS
from cupy._core.ufunc import UFUNCS as _UFUNCS
from cupy._core.ufunc import ufunc as ufunc
from cupy._door import pool as _pool

__version__ = "14.2.0"
globals().update(_FUNCTIONS)
globals().update(_UFUNCS)
array = _make.array
