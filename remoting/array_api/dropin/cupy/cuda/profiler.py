"""Start and stop of CUDA's profiler, which is on the server: the calls do nothing."""

from cupy.cuda.runtime import profilerStart as start
from cupy.cuda.runtime import profilerStop as stop

__all__ = ("start", "stop")
