"""Lines of ours on stderr, and the end of ``gpupool``: an exit code, or its program's signal.

Stdout belongs to results and programs.
"""

import atexit
import os
import resource
import signal
import sys
from contextlib import suppress
from contextvars import ContextVar
from typing import NoReturn

QUIET: ContextVar[bool] = ContextVar("QUIET", default=False)
"""Whether the running command itself prints nothing but errors."""


def say(text: str) -> None:
    """Print one line."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def leave(code: int) -> NoReturn:
    """End this process with ``code`` as Python does, and leave its memory to the system.

    Python would give back each object by itself, for which whoever waits for the program waits too.
    """
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    with suppress(OSError):
        sys.stderr.flush()  # ``run`` has flushed the other one, and said what was wrong with it
    os._exit(code)


def die_of(number: int) -> NoReturn:
    """End this process by signal ``number``, so that the shell sees the true cause.

    A core file of ours would only hide the program's own, so none is written.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    # A signal whose default is not to end the process leaves us here.
    os._exit(128 + number)
