"""Special functions."""

from cupyx import _extensions

_extensions.fill(globals())

psi = globals()["digamma"]
