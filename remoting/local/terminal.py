"""Lines of ours on stderr: stdout belongs to results and programs."""

import sys
from contextvars import ContextVar

QUIET: ContextVar[bool] = ContextVar("QUIET", default=False)
"""Whether the running command itself prints nothing but errors."""


def say(text: str) -> None:
    """Print one line."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
