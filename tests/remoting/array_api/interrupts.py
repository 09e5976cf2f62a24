"""KeyboardInterrupt at any point of a program, as a signal's handler raises it."""

import sys
from typing import Any


class Interrupts:
    """Raises KeyboardInterrupt at the events with these numbers, where Python handles signals.

    These are the beginning of each function in Python, and the return of each call.
    """

    def __init__(self, *numbers: int) -> None:
        self.left = sorted(numbers)
        self.seen = self.raised = 0

    def __enter__(self) -> "Interrupts":
        sys.setprofile(self._saw)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _saw(self, frame: Any, event: str, argument: Any) -> None:
        own = (Interrupts.__enter__.__code__, Interrupts.__exit__.__code__)
        if frame.f_code.co_name == "__del__":  # whose exceptions Python only prints
            return
        if event == "c_call" or argument is sys.setprofile or frame.f_code in own:
            return
        self.seen += 1
        if self.left and self.seen > self.left[0]:
            del self.left[0]
            self.raised += 1
            sys.setprofile(None)
            raise KeyboardInterrupt
