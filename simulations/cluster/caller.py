"""A caller of control servers: it connects to one, and repeats a call until it is answered.

Operators and joining servers use it; programs that want GPUs use ``client.negotiation``.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from gpupool.remoting.protocol import messages as m
from gpupool.simulations.kernel.process import Process
from gpupool.simulations.kernel.simulated_network import End, Network

CONTROL = "control"
"""The kind of connections between clients and servers."""

ANSWER_TIMEOUT_S = 3.0
DIAL_TIMEOUT_S = 1.0
PAUSE_S = 0.2

Answered = Callable[[m.Message, float], None]
"""Called with the answer and the instant at which it came."""


@dataclass(slots=True)
class Packet:
    """One message on a control connection, as an object: its encoding is tested elsewhere.

    Nobody changes one. It is not frozen, because there are two for each call.
    """

    call: int
    message: m.Message


@dataclass(slots=True)
class _Call:
    message: m.Call
    answered: Answered


class Caller:
    """One client process that makes one call after the other."""

    def __init__(
        self,
        process: Process,
        network: Network,
        *,
        hello: m.Hello,
        targets: Callable[[], list[str]],
    ) -> None:
        """Make a caller.

        Args:
            process: in which it runs.
            network: over which.
            hello: how it introduces itself.
            targets: the machines to try, in turn.
        """
        self._process = process
        self._network = network
        self._hello = hello
        self._targets = targets
        self._turn = 0
        self._queue: deque[_Call] = deque()
        self._connection: _CallerEnd | None = None
        self._number = 0

    def call(self, message: m.Call, answered: Answered) -> None:
        """Make a call, after those before it; it is repeated until somebody answers."""
        self._queue.append(_Call(message, answered))
        if len(self._queue) == 1:
            self._try()

    def _try(self) -> None:
        if not self._queue:
            return
        if self._connection is not None and self._connection.ready:
            self._send()
            return
        targets = self._targets()
        if not targets:
            self._process.after(PAUSE_S, self._try)
            return
        self._turn += 1
        self._connection = _CallerEnd(self, self._hello)
        target = targets[self._turn % len(targets)]
        self._network.dial(
            self._process, target, CONTROL, self._connection, timeout_s=DIAL_TIMEOUT_S
        )

    def welcomed(self, connection: "_CallerEnd") -> None:
        """Go on: a server took us in."""
        if connection is self._connection:
            self._send()

    def _send(self) -> None:
        connection = self._connection
        assert connection is not None and connection.end is not None
        if not self._queue:
            return
        self._number += 1
        connection.end.send(Packet(self._number, self._queue[0].message))
        self._process.after(ANSWER_TIMEOUT_S, partial(self._late, self._number))

    def _late(self, number: int) -> None:
        if number == self._number and self._queue and self._connection is not None:
            self.failed(self._connection)

    def answered(self, connection: "_CallerEnd", call: int, message: m.Message) -> None:
        """Take an answer; one that only this server gives is no answer."""
        if connection is not self._connection or call != self._number or not self._queue:
            return
        if isinstance(message, m.Refused) and message.code in ("no-quorum", "failed"):
            if message.code == "failed" and isinstance(self._queue[0].message, m.RotateCa):
                # Too few voters run. What brings them back may wait behind it (seed 720739).
                self._queue.rotate(-1)
            self.failed(connection)
            return
        done = self._queue.popleft()
        self._number += 1
        done.answered(message, self._process.scheduler.now)
        self._try()

    def failed(self, connection: "_CallerEnd") -> None:
        """Try somewhere else, after a while."""
        if connection is self._connection:
            self._connection = None
            self._number += 1
            if connection.end is not None:
                connection.end.close()
            self._process.after(PAUSE_S, self._try)


class _CallerEnd:
    """The caller's end of one connection."""

    def __init__(self, caller: Caller, hello: m.Hello) -> None:
        self._caller = caller
        self._hello = hello
        self.end: End | None = None
        self.ready = False

    def opened(self, end: End) -> None:
        self.end = end
        end.send(Packet(0, self._hello))

    def failed(self, reason: str) -> None:
        self._caller.failed(self)

    def received(self, end: End, payload: object) -> None:
        assert isinstance(payload, Packet)
        if isinstance(payload.message, m.Welcome):
            self.ready = True
            self._caller.welcomed(self)
        elif not self.ready and isinstance(payload.message, m.Refused):
            self._caller.failed(self)
        else:
            self._caller.answered(self, payload.call, payload.message)

    def closed(self, end: End, reason: str) -> None:
        self.ready = False
        self._caller.failed(self)
