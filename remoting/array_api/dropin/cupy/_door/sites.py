"""Where in the program a call was made, for errors that come back later."""

import os
import sys
from typing import Any, Union

from cupy._door.older import line_of

#: Calls whose place is remembered; a power of two.
SITES_MAX = 1 << 16
SITES_MASK = SITES_MAX - 1
#: The folder of this package.
HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
#: Returns the frame so many callers up: that of the function that asks for 0.
frame_at = sys._getframe
Sites = list[Union[tuple[Any, int], None]]
"""Of the latest calls, each at its number modulo `SITES_MAX`: code, offset of the instruction."""


def program_frame(frame: Any) -> Any:
    """Return ``frame``, or the first of its callers that is outside this package."""
    while frame.f_back is not None and frame.f_code.co_filename.startswith(HERE):
        frame = frame.f_back
    return frame


def place(sites: Sites, sequence: int, latest: int) -> str:
    """Return the file and line of a call by its number; empty if it is not known any more."""
    found = sites[sequence % SITES_MAX] if sequence > latest - SITES_MAX else None
    if found is None:
        return ""
    code, instruction = found
    return f"{code.co_filename}:{line_of(code, instruction) or code.co_firstlineno}"
