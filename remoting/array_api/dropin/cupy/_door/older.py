"""Features of newer Python versions, for programs on Python 3.9 or 3.10."""

import dis
import functools
import sys
from collections.abc import Iterable, Iterator
from typing import Any

if sys.version_info >= (3, 10):
    zip_strict = functools.partial(zip, strict=True)
else:

    def zip_strict(*iterables: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
        """Zip iterables of one length; a ValueError says that one side is longer."""
        columns = [list(each) for each in iterables]
        if len({len(each) for each in columns}) > 1:
            raise ValueError("zip_strict() has arguments of several lengths")
        return iter(zip(*columns))


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an error, which its traceback shows."""
    if sys.version_info >= (3, 11):
        error.add_note(note)
    elif error.args and isinstance(error.args[0], str):
        error.args = (f"{error.args[0]}\n{note}", *error.args[1:])


def line_of(code: Any, instruction: int) -> int:
    """Return the line of the instruction at an offset of a code object; 0 if it is not known."""
    if sys.version_info >= (3, 11):
        positions = enumerate(code.co_positions())
        return next((at[0] or 0 for index, at in positions if index * 2 == instruction), 0)
    lines = [line for start, line in dis.findlinestarts(code) if start <= instruction]
    return lines[-1] if lines else 0
