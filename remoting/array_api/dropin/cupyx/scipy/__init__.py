"""CuPy's counterpart of SciPy; the sub-packages are imported by their names, or by their use."""

from importlib import import_module as _import
from typing import Any

import cupy as _cupy
from cupy._door import absent as _absent


def get_array_module(*args: object) -> Any:
    """Return `cupyx.scipy` if any argument is on a device, otherwise `scipy`."""
    return _import(__name__ if _cupy.get_array_module(*args) is _cupy else "scipy")


_LATER = "fft fftpack interpolate linalg ndimage signal sparse spatial special stats"
__getattr__ = _absent.lookup(__name__, *_LATER.split())
