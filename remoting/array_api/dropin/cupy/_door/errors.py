"""Errors between the drop-in and its workers, as the exceptions a program sees."""

from typing import Any

import numpy as np

from cupy._door import state


class DoorError(RuntimeError):
    """The drop-in cannot do the operation."""


class NotConnectedError(DoorError):
    """There is no GPU session: the program was not started by ``gpupool run``."""


class MismatchError(DoorError):
    """A result differs from the inferred one: the drop-in has a bug, and refuses the result."""


MALFORMED = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    TypeError,
    ValueError,
)
"""Exceptions from reading an answer that is not as this side asked for."""


def visible(text: object) -> str:
    """Return a text of a server as it may be shown: nothing in it commands a terminal."""
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else "?" for letter in str(text)
    )


def nonsense(error: BaseException) -> str:
    """Return the reason to end a session after unreadable data from its server."""
    return (
        f"the server sent something that makes no sense: {visible(error) or type(error).__name__}"
    )


def exception_named(name: str, message: str, details: Any) -> BaseException:
    """Return the local exception for one that the worker named; unknown ones are RuntimeError."""
    name, message = visible(name), visible(message)
    if name == "AxisError":
        return np.exceptions.AxisError(message)
    if name == "LinAlgError":
        return np.linalg.LinAlgError(message)
    if name == "CUDARuntimeError":
        return state.hooks["CUDARuntimeError"](
            details if isinstance(details, int) else 999, message
        )
    if name == "OutOfMemoryError":
        return state.hooks["OutOfMemoryError"](message)
    if name in ("CompileException", "CUDADriverError"):
        return state.hooks[name](message)
    if name == "MismatchError":
        return MismatchError(message)
    known = BUILTINS.get(name)
    return known(message) if known is not None else RuntimeError(f"{name}: {message}")


BUILTINS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        ArithmeticError,
        AssertionError,
        AttributeError,
        BufferError,
        FloatingPointError,
        IndexError,
        KeyError,
        LookupError,
        MemoryError,
        NotImplementedError,
        OverflowError,
        RuntimeError,
        TypeError,
        ValueError,
        ZeroDivisionError,
    )
}
