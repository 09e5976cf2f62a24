"""Errors of `cupy.cuda`, with the classes and texts that programs catch."""

from __future__ import annotations

from typing import Any

import numpy as np

from cupy._door.errors import DoorError, MismatchError, NotConnectedError, visible
from cupy.exceptions import ComplexWarning, RankWarning

_NAMES = {
    1: "cudaErrorInvalidValue",
    2: "cudaErrorMemoryAllocation",
    46: "cudaErrorDevicesUnavailable",
    100: "cudaErrorNoDevice",
    101: "cudaErrorInvalidDevice",
    400: "cudaErrorInvalidResourceHandle",
    700: "cudaErrorIllegalAddress",
    716: "cudaErrorMisalignedAddress",
    719: "cudaErrorLaunchFailure",
    801: "cudaErrorNotSupported",
    999: "cudaErrorUnknown",
}


class CUDARuntimeError(RuntimeError):
    """A CUDA runtime call failed; ``status`` is CUDA's number of the error."""

    def __init__(self, status: int, message: str = "") -> None:
        self.status = status
        text = message or _NAMES.get(status, "cudaErrorUnknown")
        super().__init__(
            text
            if text.startswith(("cuda", "strict: "))
            else f"{_NAMES.get(status, 'cudaErrorUnknown')}: {text}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.status, str(self)))


class CUDADriverError(RuntimeError):
    """A call of CUDA's driver failed, such as the search for a kernel in a module."""


class ConnectionLostError(CUDARuntimeError, DoorError):
    """The worker, its server or the lease is gone, and the arrays with it."""


class NoSessionError(CUDARuntimeError, NotConnectedError):
    """There is no GPU session; libraries catch it as CuPy's error for no device."""


class OutOfMemoryError(MemoryError):
    """The partition has no room; its text is CuPy's."""


class CompileException(Exception):
    """A kernel did not compile; the text has the compiler's log."""

    def __init__(
        self,
        msg: str,
        source: str = "",
        name: str = "",
        options: object = (),
        backend: str = "nvrtc",
    ) -> None:
        super().__init__(msg)
        self._msg = msg
        self.source = source
        self.name = name
        self.options = options
        self.backend = backend

    def get_message(self) -> str:
        """Return the compiler's log."""
        return self._msg


def exception_named(name: str, message: str, details: Any) -> BaseException:
    """Return the local exception for one that the worker named; unknown ones are RuntimeError."""
    name, message = visible(name), visible(message)
    if name == "CUDARuntimeError":
        return CUDARuntimeError(details if isinstance(details, int) else 999, message)
    known = _LOCAL.get(name)
    return known(message) if known is not None else RuntimeError(f"{name}: {message}")


def warning_named(name: str, message: str) -> Warning:
    """Return the local warning for one that the worker named; unknown ones are UserWarning."""
    return _WARNINGS.get(visible(name), UserWarning)(visible(message))


_WARNINGS: dict[str, type[Warning]] = {
    kind.__name__: kind for kind in (ComplexWarning, FutureWarning, RankWarning, RuntimeWarning)
}

_LOCAL: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        ArithmeticError,
        AssertionError,
        AttributeError,
        BufferError,
        CUDADriverError,
        CompileException,
        FloatingPointError,
        IndexError,
        KeyError,
        LookupError,
        MemoryError,
        MismatchError,
        NotImplementedError,
        OutOfMemoryError,
        OverflowError,
        RuntimeError,
        TypeError,
        ValueError,
        ZeroDivisionError,
        np.exceptions.AxisError,
        np.linalg.LinAlgError,
    )
}
