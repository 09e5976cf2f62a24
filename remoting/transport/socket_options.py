"""Settings of TCP sockets: no delay, and the kernel's detection of a silently lost peer.

The kernels of both machines keep the connection alive, not the programs on them, so a client that
is stopped with Ctrl-Z keeps its leases. A silent loss is noticed within the given time: by
keep-alive probes when nothing is in flight, by ``TCP_USER_TIMEOUT`` when something is (tcp(7)).
"""

import contextlib
import socket
import struct
from typing import Protocol


class OptionSocket(Protocol):
    """The one thing that is needed of a socket; trio's and the standard library's have it."""

    def setsockopt(self, level: int, option: int, value: int, /) -> None:
        """Set one option."""
        ...


def tune(sock: OptionSocket, *, timeout_s: float) -> None:
    """Set up a connected TCP socket so that a lost peer fails it within about ``timeout_s``.

    With 10 s, probes go out after 3, 5, 7 and 9 s of silence, and the last one ends it.
    """
    _set(sock, socket.IPPROTO_TCP, "TCP_NODELAY", 1)
    _set(sock, socket.SOL_SOCKET, "SO_KEEPALIVE", 1)
    interval_s = max(1, int(timeout_s * 0.2))
    # macOS calls the idle time TCP_KEEPALIVE (its tcp(4)).
    idle = "TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE"
    _set(sock, socket.IPPROTO_TCP, idle, max(1, int(timeout_s * 0.3)))
    _set(sock, socket.IPPROTO_TCP, "TCP_KEEPINTVL", interval_s)
    _set(sock, socket.IPPROTO_TCP, "TCP_KEEPCNT", 3)
    _set(sock, socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", int(timeout_s * 850))


def tcp_info(sock: socket.socket, shape: struct.Struct) -> tuple[int, ...] | None:
    """Ask the kernel about a connection; None for one that is no TCP, or is closed.

    ``shape`` has the beginning of ``struct tcp_info``, which Linux only ever appends to.
    """
    option = getattr(socket, "TCP_INFO", None)
    if option is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        data = sock.getsockopt(socket.IPPROTO_TCP, option, shape.size)
    except OSError:
        return None
    return shape.unpack(data) if len(data) == shape.size else None


def _set(sock: OptionSocket, level: int, name: str, value: int) -> None:
    option = getattr(socket, name, None)
    if isinstance(option, int):
        with contextlib.suppress(OSError):  # not a TCP socket, or a system that lacks the option
            sock.setsockopt(level, option, value)
