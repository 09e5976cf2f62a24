"""Linear algebra beyond `cupy.linalg`."""

from cupyx import _extensions

_extensions.fill(globals())
