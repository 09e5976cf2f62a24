"""The first process of a container or PID namespace: it reaps, and the server is its child.

What code in a worker starts becomes a child of the first process when the worker ends
(pid_namespaces(7)). A first process that does not wait for such children keeps each of them as a
zombie. These fill the table of processes, and the server can start no worker any more.
"""

import os
import signal

FORWARDED = frozenset(
    (
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
    )
)
_BY_KERNEL = 128  # SI_KERNEL: a terminal's signal, which the child has too


def leave_first_place() -> None:
    """Go on in a child where this is the first process; elsewhere do nothing.

    Must be called while the process has one thread. The first process passes signals on, and ends
    as its child does.

    Raises:
        SystemExit: in the first process, when the child has ended.
    """
    if os.getpid() != 1:
        return
    # Blocked signals wait for the first process, although it ignores those without a handler.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*FORWARDED, signal.SIGCHLD})
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    raise SystemExit(_be_first(child))


def _be_first(child: int) -> int:
    """Reap all that end, and pass signals on, until ``child`` has ended; return its exit code."""
    while True:
        found = signal.sigwaitinfo({*FORWARDED, signal.SIGCHLD})
        if found.si_signo != signal.SIGCHLD:
            if found.si_code != _BY_KERNEL:
                os.kill(child, found.si_signo)
            continue
        # One signal may stand for several that have ended.
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            if ended[0] == child:
                code = os.waitstatus_to_exitcode(ended[1])
                return code if code >= 0 else 128 - code
