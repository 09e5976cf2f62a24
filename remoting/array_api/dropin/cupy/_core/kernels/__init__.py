"""Kernels of programs: from source, typed, and functions that CuPy would fuse."""
