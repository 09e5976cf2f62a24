"""Errors of compiling a kernel, which the server does."""

from cupy._door import absent as _absent
from cupy._door.cuda_errors import CompileException as CompileException


class JitifyException(Exception):
    """Jitify could not compile; nothing here raises it, because it reads files of the server."""


__getattr__ = _absent.lookup(__name__)
