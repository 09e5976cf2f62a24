"""Counters of a session's door beside its bytes, and the kernel's counters of its connection.

A launch costs nothing here: a clock is read only where somebody waits for an answer, and by the
array door on emulated GPUs, whose time of execution nobody else measures.
"""

import socket
import struct
import time
from dataclasses import dataclass

from gpupool.remoting.transport.connections import tcp_info

_INFO = struct.Struct("=68x I I 24x I")
"""Rtt, rttvar, and all retransmits."""


@dataclass(slots=True)
class Tally:
    """Execution counters of a door; it counts, another thread reads. Times are nanoseconds."""

    waits: int = 0  # answers that a caller waited for
    wait_ns: int = 0  # time to execute those, without that to send them
    executed_ns: int | None = None  # time to execute anything, where nobody else measures it
    executing_since: int = 0  # what is not in ``executed_ns`` yet; 0: nothing is executed

    lane_bytes_in: int = 0  # that came by further connections
    lane_bytes_out: int = 0

    nccl: bool = False  # the worker has loaded NCCL for it

    def answered(self, began_ns: int) -> None:
        """Count an answer that is ready to be sent; its execution began at ``began_ns``."""
        self.waits += 1
        self.wait_ns += time.perf_counter_ns() - began_ns

    def begin(self) -> None:
        """Note that calls are executed from now on."""
        self.executing_since = time.perf_counter_ns()

    def end(self) -> None:
        """Note that they have been executed."""
        self.executed_ns = (self.executed_ns or 0) + time.perf_counter_ns() - self.executing_since
        self.executing_since = 0

    def executed_us(self) -> int | None:
        """Return the microseconds in which calls were executed; None where that is not counted."""
        if self.executed_ns is None:
            return None
        since = self.executing_since
        running = time.perf_counter_ns() - since if since else 0
        return (self.executed_ns + running) // 1000


@dataclass(frozen=True, slots=True)
class TcpPath:
    """The kernel's estimates for one TCP connection, smoothed by it."""

    rtt_us: int
    rtt_var_us: int
    retransmits: int  # segments sent again since it was opened


def tcp_path(sock: socket.socket) -> TcpPath | None:
    """Ask the kernel about a connection; None for one that is no TCP, or is closed."""
    found = tcp_info(sock, _INFO)
    return None if found is None else TcpPath(*found)
