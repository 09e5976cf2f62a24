"""TLS over a socket with small writes that leave at once, in the call that gives them.

A commit goes from server to server and back before its client hears of it, so each of its messages
waits for all that a link adds to one. ``trio.SSLStream`` writes from within a task, which has to
be woken first. Here ``send_now`` encrypts a message and gives it to the kernel in the caller's own
step. It says no while a longer write is under way; the caller then queues. Reading waits for the
socket once, and takes all that has come.

The handshake, the records and their keys are OpenSSL's, by ``ssl.SSLObject``, as they are in trio's
stream; the stream that a handshake was begun with gives its parts to this one. Two never write at
a time: ``send_now`` has no pause, and ``send_all`` keeps it away while it has one.
"""

import os
import ssl
from typing import Any

import trio

READ_SIZE = 64 * 1024
NOW_SIZE_MAX = 64 * 1024
"""More takes the kernel's buffer, and a step of the event loop."""


class LinkStream(trio.abc.Stream):
    """One TLS connection; see the module."""

    def __init__(
        self,
        transport: trio.SocketStream,
        tls: ssl.SSLObject,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
    ) -> None:
        """Take over the parts of a connection, which nobody else uses from now on."""
        self.transport_stream = transport
        self._tls, self._incoming, self._outgoing = tls, incoming, outgoing
        self._rest = b""  # encrypted, and not taken by the kernel yet
        self._is_sending = self._is_broken = False

    @classmethod
    def dialled(
        cls, transport: trio.SocketStream, context: ssl.SSLContext, name: str
    ) -> "LinkStream":
        """Prepare to be the client of ``name``; ``do_handshake`` is next."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_hostname=name)
        return cls(transport, tls, incoming, outgoing)

    @classmethod
    def accepted(cls, transport: trio.SocketStream, context: ssl.SSLContext) -> "LinkStream":
        """Prepare to be the server, without session tickets; ``do_handshake`` is next."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_side=True)
        return cls(transport, tls, incoming, outgoing)

    def getpeercert(self, binary_form: bool = False) -> Any:
        """Return the other end's certificate, as ``ssl.SSLObject.getpeercert`` does."""
        return self._tls.getpeercert(binary_form)

    async def do_handshake(self) -> None:
        """Prove both ends to each other.

        Raises:
            trio.BrokenResourceError: it failed; the ``ssl.SSLError`` is its cause.
        """
        while True:
            done = True
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                done = False
            except ssl.SSLError as error:
                raise trio.BrokenResourceError from error
            await self.transport_stream.send_all(self._outgoing.read())
            if done:
                return
            await self._fill()

    # --- writing -------------------------------------------------------------------------------

    def send_now(self, data: bytes) -> bool:
        """Write ``data`` in this call; False, and nothing is written, while that cannot be.

        What the kernel does not take is left for ``send_all``, see ``has_rest``.
        """
        if self._is_sending or self._rest or self._is_broken or len(data) > NOW_SIZE_MAX:
            return False
        try:
            self._tls.write(data)
            record = self._outgoing.read()
            sent = self._write_some(record)
        except (OSError, trio.ClosedResourceError):  # ssl.SSLError among them
            self._is_broken = True  # ``send_all`` says so
            return False
        if sent < len(record):
            self._rest = record[sent:]
        return True

    @property
    def has_rest(self) -> bool:
        """True while a part taken by ``send_now`` waits for ``send_all``."""
        return bool(self._rest)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Write the rest of ``send_now``, and then ``data``.

        Raises:
            trio.BrokenResourceError, trio.ClosedResourceError: the connection is gone.
        """
        if self._is_sending:
            raise trio.BusyResourceError("another task writes to this connection")
        if self._is_broken:
            raise trio.BrokenResourceError("an earlier write failed")
        self._is_sending = True
        try:
            if data:
                self._tls.write(data)
            record, self._rest = self._rest + self._outgoing.read(), b""
            await self.transport_stream.send_all(record)
        except BaseException as error:
            self._is_broken = True  # a part of a record may have gone
            if isinstance(error, ssl.SSLError):
                raise trio.BrokenResourceError from error
            raise
        finally:
            self._is_sending = False

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until the kernel takes more."""
        await self.transport_stream.wait_send_all_might_not_block()

    def _write_some(self, record: bytes) -> int:
        try:
            return os.write(self._descriptor(), record)
        except BlockingIOError:
            return 0

    # --- reading -------------------------------------------------------------------------------

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return the received bytes, at most ``max_bytes`` (default 64 KiB); empty at the end.

        Raises:
            trio.BrokenResourceError, trio.ClosedResourceError: the connection is gone.
        """
        while True:
            try:
                return self._tls.read(max_bytes or READ_SIZE)
            except ssl.SSLWantReadError:
                pass
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""  # frames have lengths, so nobody can cut one short unnoticed
            except ssl.SSLError as error:
                raise trio.BrokenResourceError from error
            await self._fill()

    async def _fill(self) -> None:
        """Wait for bytes, and give them to OpenSSL."""
        while True:
            await trio.lowlevel.wait_readable(self._descriptor())
            try:
                data = os.read(self._descriptor(), READ_SIZE)
                break
            except BlockingIOError:
                continue
            except OSError as error:
                raise trio.BrokenResourceError from error
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    def _descriptor(self) -> int:
        descriptor = self.transport_stream.socket.fileno()
        if descriptor < 0:
            raise trio.ClosedResourceError("this connection was closed here")
        return descriptor

    async def aclose(self) -> None:
        """Close at once, without a farewell that the other end would have to wait for."""
        await self.transport_stream.aclose()
