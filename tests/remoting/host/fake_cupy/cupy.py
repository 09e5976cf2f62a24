"""Stands for CuPy in a worker that touches no GPU."""

import os
from pathlib import Path

from cupy_backends.cuda.api import runtime as _runtime

Path(os.environ["CUPY_CACHE_DIR"]).mkdir(exist_ok=True)  # at import, as CuPy does


class cuda:
    """``cupy.cuda``."""

    runtime = _runtime
