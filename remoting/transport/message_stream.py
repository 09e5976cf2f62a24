"""The trio adapter of ``connection``: messages in and out of any byte stream; no parsing here."""

from collections.abc import Iterator

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
        """Decode and return the next message of what was read; None when there is none whole.

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
