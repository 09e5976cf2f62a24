"""The end of ``gpupool``: an exit code, or the signal that ended its program."""

import atexit
import os
import resource
import signal
import sys
from contextlib import suppress
from typing import NoReturn


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
