"""Backends of a session's calls: a real GPU through CuPy, or an emulated one on NumPy."""
