"""gpupool: one pool of the GPUs of many servers, and programs that run on them from anywhere."""

__version__ = "0.1.0"
