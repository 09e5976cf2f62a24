"""Linear algebra beside `cupy.linalg`: sparse systems."""

from cupy._door import absent as _absent

from cupyx.linalg import sparse as sparse

__getattr__ = _absent.lookup(__name__)
