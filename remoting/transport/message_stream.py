"""The trio adapter of ``connection``: messages in and out of any byte stream; no parsing here.

The calls of a connection that wait for their answers are found by the numbers that they carry::

    with calls.opened() as call:
        send(call.number, question)
        answer = await call.wait(timeout_s)  # None: none in time, or the other end has gone

The reader says ``calls.answered(number, answer)``, and ``calls.end()`` once nothing more comes.
Where no number is on the wire, a key of the caller's own has its place.
"""

import itertools
from collections.abc import Generator, Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import trio

from gpupool.remoting.protocol.connection import Connection
from gpupool.remoting.protocol.messages import Message, Outgoing

READ_SIZE = 16 * 1024
WRITE_SIZE = 256 * 1024
"""A larger frame goes in pieces: TLS encrypts all that it is given in one step of the loop."""


class MessageStream:
    """One end of a control connection over a ``trio.abc.Stream``.

    ``send`` may be called by many tasks, ``receive`` by one.
    """

    def __init__(self, stream: trio.abc.Stream, connection: Connection) -> None:
        self.stream = stream
        self.connection = connection
        self._lock = trio.Lock()
        self._arrived: Iterator[tuple[int, Message]] = iter(())
        self.reads = 0
        """How often something has come: also pieces of a message that is not whole yet."""

    async def send(self, call: int, message: Outgoing) -> None:
        """Send one message whole.

        Raises:
            trio.BrokenResourceError, trio.ClosedResourceError: the connection is gone.
            LocalProtocolError: the message may not be sent now.
        """
        async with self._lock:
            data = self.connection.send(call, message)
            try:
                if len(data) <= WRITE_SIZE:
                    await self.stream.send_all(data)
                else:
                    whole = memoryview(data)
                    for start in range(0, len(data), WRITE_SIZE):
                        await self.stream.send_all(whole[start : start + WRITE_SIZE])
            except BaseException:
                # A cancelled or failed send may have written half a frame: no more can follow.
                self.connection.closed()
                await trio.aclose_forcefully(self.stream)
                raise

    async def receive(self) -> tuple[int, Message] | None:
        """Return the next call number and message, or None once the other end has closed.

        Raises:
            RemoteProtocolError: the other end broke the rules.
            trio.BrokenResourceError, trio.ClosedResourceError: the connection is gone.
        """
        while (received := self.next_arrived()) is None:
            if not await self.read():
                return None
        return received

    def next_arrived(self) -> tuple[int, Message] | None:
        """Decode and return the next message of the read bytes; None without a whole one.

        Raises:
            RemoteProtocolError: the other end broke the rules.
        """
        return next(self._arrived, None)

    async def read(self) -> bool:
        """Read once, when ``next_arrived`` has returned None; False once the other end has closed.

        Raises:
            trio.BrokenResourceError, trio.ClosedResourceError: the connection is gone.
        """
        data = await self.stream.receive_some(READ_SIZE)
        if not data:
            self.connection.closed()
            return False
        self.reads += 1
        self._arrived = self.connection.receive(bytes(data))
        return True

    async def aclose(self) -> None:
        """Close at once, without a farewell that the other end would have to wait for."""
        self.connection.closed()
        await trio.aclose_forcefully(self.stream)

    async def __aenter__(self) -> "MessageStream":
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.aclose()


T = TypeVar("T")


class OpenCall(Generic[T]):
    """One call under way."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.answer: T | None = None
        self.done = trio.Event()

    async def wait(self, timeout_s: float = float("inf")) -> T | None:
        """Return the answer; None when none has come in time, or the other end has gone."""
        with trio.move_on_after(timeout_s):
            await self.done.wait()
        return self.answer


class OpenCalls(Generic[T]):
    """The calls over one connection."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._calls: dict[Hashable, OpenCall[T]] = {}
        self.ended = False

    @contextmanager
    def opened(self, key: Hashable = None) -> Generator[OpenCall[T]]:
        """Open a call for the body; after the connection's end, the call is done at once."""
        call = OpenCall[T](next(self._numbers))
        if self.ended:
            call.done.set()
        name = call.number if key is None else key
        self._calls[name] = call
        try:
            yield call
        finally:
            del self._calls[name]

    def answered(self, key: Hashable, answer: T) -> None:
        """Take an answer; one that nobody waits for is passed over."""
        call = self._calls.get(key)
        if call is not None and not call.done.is_set():
            call.answer = answer
            call.done.set()

    def end(self) -> None:
        """Say that the other end has gone."""
        self.ended = True
        for call in self._calls.values():
            call.done.set()
