"""Arrays and ufuncs of the drop-in; public names stand here as they do in CuPy's."""

from cupy._door.absent import lookup

__getattr__ = lookup(__name__, like="cupy")
