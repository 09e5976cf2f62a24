"""The process that becomes the program. It is made before this one has threads and connections.

So it has what a shell gives to a program, and nothing of ours: descriptors, signals, limits, the
terminal. It waits for its orders, and our end before them is its end.
"""

import ctypes
import json
import os
import signal
import socket
import sys
import warnings
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from typing import NoReturn

import trio

PR_SET_PDEATHSIG = 1
PIECE_SIZE = 1 << 16
NUMBERED = ("LISTEN_PID", "WATCHDOG_PID")
"""Variables by which systemd names the one process that they are meant for."""

STOPPED = "T"
"""By a signal; one that a debugger has stopped goes on by itself."""


class ProgramProcess:
    """The process, in the words of ``subprocess.Popen``."""

    def __init__(self, mask: Collection[int], death_signal: int) -> None:
        """Fork.

        Args:
            mask: the signals that the program finds blocked.
            death_signal: the program gets it when this process is killed; 0 for none.
        """
        self._orders, theirs = socket.socketpair()
        self.returncode: int | None = None
        ours = os.getpid()
        # A process that ignores SIGCHLD is told no exit code of a child.
        children = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # The kernel watches the thread that forks. This one lives as long as we do.
        self.pid = fork()
        if not self.pid:
            self._orders.close()
            signal.signal(signal.SIGCHLD, children)
            _become(theirs, mask, death_signal, ours)
        theirs.close()

    def start(self, program: str, arguments: list[str], environment: dict[str, str]) -> None:
        """Let it become the program.

        Raises:
            OSError: when the system refuses to execute it.
        """
        with self._orders as orders:
            orders.sendall(json.dumps([program, arguments, environment]).encode())
            orders.shutdown(socket.SHUT_WR)
            number = orders.recv(32)  # at the end once the program is executed
        if number:
            raise OSError(int(number), os.strerror(int(number)))

    def close(self) -> None:
        """End it, if it has not become the program."""
        self._orders.close()

    def poll(self) -> int | None:
        """Return the code if it has ended; it is waited for then."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def stopped_by(self) -> int:
        """Return the signal that has stopped it, if it is stopped; else 0."""
        if sys.platform != "linux" or self.returncode is not None or state_of(self.pid) != STOPPED:
            return 0
        with suppress(ChildProcessError):
            found = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG)
            return found.si_status if found else signal.SIGSTOP
        return 0

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    async def wait(self) -> int:
        """Wait for its end; return the code, as ``subprocess`` defines it."""
        if sys.platform == "linux" and hasattr(os, "pidfd_open"):
            descriptor = os.pidfd_open(self.pid)
            try:
                await trio.lowlevel.wait_readable(descriptor)
            finally:
                os.close(descriptor)
        else:
            wait = partial(os.waitpid, self.pid, 0)
            _, status = await trio.to_thread.run_sync(wait, abandon_on_cancel=True)
            self.returncode = os.waitstatus_to_exitcode(status)
        code = self.poll()
        assert code is not None
        return code


def fork() -> int:
    """Fork a process that uses no lock of other threads; Python warns where there may be any."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def state_of(pid: int) -> str:
    """Return the letter by which Linux names the state of a process; empty if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1].decode()
    except OSError:
        return ""


def _become(
    orders: socket.socket, mask: Collection[int], death_signal: int, parent: int
) -> NoReturn:
    """Wait for the program's name, and become it; no other thread is here to hold a lock."""
    try:
        if death_signal and sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
        text = b"".join(iter(lambda: orders.recv(PIECE_SIZE), b""))
        if not text or os.getppid() != parent:
            os._exit(0)
        program, arguments, environment = json.loads(text)
        for name in NUMBERED:
            if environment.get(name) == str(parent):
                environment[name] = str(os.getpid())
        # What Python has changed; what comes from here on is pending for the program.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execve(program, arguments, environment)  # noqa: S606 - it is no shell's line
    except OSError as error:
        orders.send(str(error.errno).encode())
    finally:
        os._exit(127)
