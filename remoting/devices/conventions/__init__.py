"""Where the functions of two libraries differ, and an emulated GPU follows CuPy."""
