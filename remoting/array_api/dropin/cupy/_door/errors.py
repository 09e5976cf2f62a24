"""Errors between the drop-in and its workers, as the exceptions a program sees."""


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
