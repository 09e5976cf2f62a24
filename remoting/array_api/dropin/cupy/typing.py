"""Names for annotations: NumPy's, and an array of the device."""

from typing import Any, TypeVar

import numpy as _np
from numpy import typing as _typing

from cupy._core.array import ndarray as _ndarray
from cupy._door import absent as _absent

ArrayLike: Any = _typing.ArrayLike
DTypeLike: Any = _typing.DTypeLike
NBitBase: Any = getattr(_typing, "NBitBase", object)  # NumPy will take it away

_Scalar = TypeVar("_Scalar", bound=_np.generic, covariant=True)
_dtype: Any = _np.dtype

NDArray: Any = _ndarray[Any, _dtype[_Scalar]]

__getattr__ = _absent.lookup(__name__)
