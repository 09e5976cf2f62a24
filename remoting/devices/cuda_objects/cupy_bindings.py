"""CuPy's bindings of CUDA's runtime and driver, without CuPy.

``import cupy`` maps cuBLAS, cuSOLVER and their like: 180 MB of a process's memory, measured on an
H200. The bindings are a package of their own in CuPy's wheels, which needs the driver alone.
"""

import importlib
from typing import Any

MODULES = ("cupy_backends.cuda.api.runtime", "cupy_backends.cuda.api.driver")
"""Modules of ``cupy.cuda.runtime`` and ``cupy.cuda.driver`` in CuPy 14."""


def load() -> tuple[Any, Any]:
    """Return the modules of the runtime and of the driver.

    Raises:
        ImportError: when CuPy is not installed, or cannot be imported.
    """
    try:
        runtime, driver = map(importlib.import_module, MODULES)
    except ImportError:  # another CuPy, which has them elsewhere
        cuda: Any = importlib.import_module("cupy").cuda
        return cuda.runtime, cuda.driver
    return runtime, driver
