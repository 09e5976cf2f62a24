"""Errors of CUDA's driver, which is on the server."""

from cupy._door import absent as _absent
from cupy._door.cuda_errors import CUDADriverError as CUDADriverError

__getattr__ = _absent.lookup(__name__)
