"""Makes JAX look for CUDA devices on a machine without any.

JAX passes its CUDA backend over where there is no ``/dev/nvidia0``, without asking the driver
(``jax._src.hardware_utils.has_visible_nvidia_gpu``, in 0.4 to 0.11). It imports every package in
``jax_plugins`` before that and calls ``initialize``; ``gpupool run`` puts this one there for
programs of the CUDA door. Nothing else of JAX is touched, and nothing happens outside of a lease.
"""

import importlib
import os
from typing import Any


def initialize() -> None:
    """Answer JAX's question for it; does nothing where JAX asks in another way."""
    if "GPUPOOL_AGENT" not in os.environ:
        return
    try:
        hardware_utils: Any = importlib.import_module("jax._src.hardware_utils")
    except ImportError:
        return
    if hasattr(hardware_utils, "has_visible_nvidia_gpu"):
        hardware_utils.has_visible_nvidia_gpu = lambda: True
