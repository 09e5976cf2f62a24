"""A worker's report of its session to the host: totals, and the kernel's estimates of the line."""

import itertools
import socket
import threading
from collections.abc import Callable
from dataclasses import replace

from gpupool.remoting.protocol.worker_messages import Report
from gpupool.remoting.transport.session_stream import SessionStream
from gpupool.remoting.transport.tally import TcpPath, tcp_path
from gpupool.remoting.worker.peer_links import Links

REPORT_INTERVAL_S = 1.0
PATH_EVERY = 10
"""Reports for which one look at the kernel's estimates of the connection is good. The first ones
have a look each: the estimate begins with the handshake of a machine that starts a program."""


class SessionReport:
    """Reads the counters of one session, on a separate thread."""

    def __init__(
        self,
        stream: SessionStream,
        sock: socket.socket,
        peers: Links,
        send: Callable[[Report], None],
    ) -> None:
        self._stream = stream
        self._socket = sock
        self._peers = peers
        self._send = send
        self._path: TcpPath | None = None
        self._lock = threading.Lock()  # so that the host gets what is counted in this order
        self._last = Report(0, 0, 0)

    def run(self) -> None:
        """Send the totals while they change, and while a call takes long."""
        pause = threading.Event()
        for number in itertools.count():
            if number < PATH_EVERY or number % PATH_EVERY == 0:
                self._path = tcp_path(self._socket) or self._path
            pause.wait(REPORT_INTERVAL_S)
            # A door that waits neither for its client's next call nor for its client to take an
            # answer executes one.
            busy = not (self._stream.receiving or self._stream.sending)
            with self._lock:
                last, totals = self._last, self.totals()
                same = replace(last, rtt_us=totals.rtt_us, rtt_var_us=totals.rtt_var_us)
                if busy or totals != same:
                    self._last = totals
                    self._send(replace(totals, busy=busy))

    def send_last(self) -> None:
        """Send the totals of a session that is over."""
        with self._lock:
            self._last = self.totals()
            self._send(self._last)

    def totals(self) -> Report:
        """Return the session's totals so far; other threads count meanwhile, bit by bit."""
        stream, path, tally = self._stream, self._path, self._stream.tally
        found = Report(
            stream.calls,
            stream.bytes_in + tally.lane_bytes_in + self._peers.bytes_in,
            stream.bytes_out + tally.lane_bytes_out + self._peers.bytes_out,
            busy=False,
            waits=tally.waits,
            wait_us=tally.wait_ns // 1000,
            executed_us=tally.executed_us(),
            rtt_us=path.rtt_us if path else None,
            rtt_var_us=path.rtt_var_us if path else None,
            retransmits=path.retransmits if path else None,
            nccl=tally.nccl,
        )
        return found.at_least(self._last)
