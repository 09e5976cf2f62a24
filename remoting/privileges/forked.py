"""A process that the server forks off before it gives up privileges, behind a socket."""

import os
import socket
from collections.abc import Callable


def fork(
    kind: socket.SocketKind, serve: Callable[[socket.socket], object]
) -> tuple[socket.socket, int]:
    """Fork a process off that serves one end of a pair of sockets; return the other, and its pid.

    Must be called while the process has one thread.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            ours.close()
            serve(theirs)
            code = 0
        finally:
            os._exit(code)
    theirs.close()
    return ours, pid


class ForkedProcess:
    """The server's end of one."""

    def __init__(self, sock: socket.socket, pid: int = -1) -> None:
        """Use ``sock``, which is this object's; ``pid`` is -1 if the process is no child."""
        self._socket, self.pid = sock, pid

    def hang_up(self) -> None:
        """Close this end of the socket."""
        self._socket.close()

    def end(self) -> None:
        """Let the process end, and wait until it has, if it is our child; blocks."""
        self.hang_up()
        if self.pid > 0:
            os.waitpid(self.pid, 0)
            self.pid = -1
