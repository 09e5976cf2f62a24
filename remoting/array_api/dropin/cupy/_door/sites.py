"""Where in the program a call was made, for errors that come back later."""

import os
import sys
from collections import deque
from typing import Any

from cupy._door.older import line_of

#: Calls whose place is remembered.
SITES_MAX = 1 << 16
#: The folder of this package.
HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
#: Returns the frame so many callers up: that of the function that asks for 0.
frame_at = sys._getframe  # pyright: ignore[reportPrivateUsage]
#: Of the latest calls: the number, the code object, and the offset of the instruction.
Sites = deque[tuple[int, Any, int]]


def program_frame(frame: Any) -> Any:
    """Return ``frame``, or the first of its callers that is outside this package."""
    while frame.f_back is not None and frame.f_code.co_filename.startswith(HERE):
        frame = frame.f_back
    return frame


def place(sites: Sites, sequence: int) -> str:
    """Return the file and line of a call by its number; empty if it is not known any more."""
    found = (site for site in reversed(sites) if site[0] == sequence)
    _, code, instruction = next(found, (0, None, 0))
    if code is None:
        return ""
    return f"{code.co_filename}:{line_of(code, instruction) or code.co_firstlineno}"
