"""Liveness of a TCP connection: finds out that the other end is gone while bytes wait to be sent.

A worker may wait long before another one reads its bytes, because that one computes first. The
kernel would wait 15 minutes for a machine that is gone. ``TCP_USER_TIMEOUT`` also ends a connection
whose other end is alive and does not read (since Linux 5.11). But a living kernel acknowledges
every packet, also the probes of a full connection, whatever its programs do. So a connection
without acknowledgements is lost.
"""

import select
import socket
import struct
import time
from dataclasses import dataclass

from gpupool.remoting.transport.socket_options import tcp_info

LOOK_EVERY_S = 0.5
PROBE_COUNT_MIN = 2
"""A single probe without an answer proves nothing: it may be lost, and answers are rationed."""

_INFO = struct.Struct("=3x B 4x 4x 4x 4x 4x I 4x 4x 4x 4x 4x 4x 4x I")


@dataclass(frozen=True, slots=True)
class Sent:
    """The state of the bytes that a connection has sent."""

    unanswered: bool  # data is, or several probes are
    heard_ago_s: float  # since the last acknowledgement of any bytes


class PeerLiveness:
    """Judges one wait."""

    def __init__(self, lost_after_s: float) -> None:
        self._lost_after_s = lost_after_s
        self._since: float | None = None

    def is_lost(self, sent: Sent, now: float) -> bool:
        """Return whether nothing has been answered for too long; ask at least once a second."""
        if not sent.unanswered:
            self._since = None
            return False
        # The connection may have been at rest for hours before this wait began.
        since = now if self._since is None else self._since
        self._since = max(since, now - sent.heard_ago_s)
        return now - self._since >= self._lost_after_s


def wait_writable(sock: socket.socket, lost_after_s: float) -> None:
    """Wait until more can be sent.

    A full connection is probed less and less often, every two minutes in the end, so that the loss
    of one that has been full for a time T is noticed after 3 T more at most.

    Raises:
        TimeoutError: when the other end is silent for ``lost_after_s``.
    """
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLOUT)
    silence = PeerLiveness(lost_after_s)
    while not poll.poll(LOOK_EVERY_S * 1000):
        sent = _sent(sock)
        if sent is not None and silence.is_lost(sent, time.monotonic()):
            raise TimeoutError(f"no answer for {lost_after_s:.3g} s")


def _sent(sock: socket.socket) -> Sent | None:
    """Ask the kernel; None where it does not say."""
    found = tcp_info(sock, _INFO)
    if found is None:
        return None
    probes, unacknowledged, heard_ago_ms = found
    return Sent(unacknowledged > 0 or probes >= PROBE_COUNT_MIN, heard_ago_ms / 1000)
