"""Window functions."""

from cupyx import _extensions

_extensions.fill(globals())
