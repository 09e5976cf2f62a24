"""Kernels of emulated GPUs: CUDA C++ compiled for the processor, and run on it."""
