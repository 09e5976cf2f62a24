"""Functions of power series, composed of array operations."""

from cupy._door import absent as _absent
from cupy.polynomial import polynomial as polynomial
from cupy.polynomial import polyutils as polyutils

__getattr__ = _absent.lookup(__name__)
