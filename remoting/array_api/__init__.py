"""The array door: a drop-in cupy on the client, executed by CuPy or NumPy in a worker."""
