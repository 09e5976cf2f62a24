"""The CUDA door: a ``libcuda.so.1`` for the client, and the execution of its calls in a worker."""
