"""The end of ``gpupool``: an exit code, or the signal that ended its program."""

import os
import resource
import signal
import sys
from typing import NoReturn


def die_of(number: int) -> NoReturn:
    """End this process by signal ``number``, so that the shell sees what really happened.

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
