"""KeyboardInterrupt at any point of a program, as a signal's handler raises it."""

import sys
from typing import Any


class Interrupts:
    """Raises KeyboardInterrupt once, after so many of the points at which Python handles signals.

    These are the beginning of each function in Python, and the return of each call.
    """

    def __init__(self, number: int) -> None:
        self.left = number
        self.raised = False

    def __enter__(self) -> "Interrupts":
        sys.setprofile(self._saw)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _saw(self, frame: Any, event: str, argument: Any) -> None:
        own = (Interrupts.__enter__.__code__, Interrupts.__exit__.__code__)
        # Python only prints the errors of these; CPython 3.11 may crash after one in a collection.
        if frame.f_code.co_name in ("__del__", "_note_collection"):
            return
        if event == "c_call" or argument is sys.setprofile or frame.f_code in own:
            return
        if not self.left:
            self.raised = True
            sys.setprofile(None)
            raise KeyboardInterrupt
        self.left -= 1
