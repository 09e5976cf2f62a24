"""Signal processing that SciPy lacks, by the server's CuPy: a real GPU alone has it."""

from cupyx import _extensions

_extensions.fill(globals())
