"""One handshake of TLS as the server, begun in a thread beside the loop and ended by trio."""

import socket
import ssl
from typing import Any, cast

import trio

from gpupool.remoting.transport.freed_memory import free_tls
from gpupool.remoting.transport.link_stream import LinkStream

RECEIVE_SIZE = 16_384

TlsStream = trio.SSLStream[trio.SocketStream]


class Handshake:
    """A handshake that was begun outside the loop, and the stream that it is for."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        """Prepare to be the server; the caller goes on to own the socket."""
        self._context = context
        self._sock = sock
        transport = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        self.stream: TlsStream = trio.SSLStream(
            transport, cast("ssl.SSLContext", self), server_side=True, https_compatible=True
        )

    def wrap_bio(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, **words: Any
    ) -> ssl.SSLObject:
        """Keep what the stream makes of its settings, as which this stands in."""
        self._incoming, self._outgoing = incoming, outgoing
        self._tls = self._context.wrap_bio(incoming, outgoing, **words)
        return self._tls

    def begin(self, size: int) -> ssl.SSLError | OSError | None:
        """Take ``size`` bytes of the connection and answer them; return what is wrong with them.

        An exception would keep its thread's frames alive, and the memory of TLS with them.
        """
        try:
            self._incoming.write(self._sock.recv(size, socket.MSG_DONTWAIT))
        except OSError as error:
            return error.with_traceback(None)
        return self._step() or self._send()

    def hear(self) -> ssl.SSLError | None:
        """Take what has come since; return what is wrong when the other end has ended."""
        data = self._sock.recv(RECEIVE_SIZE, socket.MSG_DONTWAIT)
        if data:
            self._incoming.write(data)
            return None
        self._incoming.write_eof()
        return self._step()

    def link(self) -> LinkStream:
        """Return the connection as servers use it between them, once the handshake is over."""
        transport, tls = self.stream.transport_stream, self._tls
        link = LinkStream(transport, tls, self._incoming, self._outgoing)
        self.free()
        return link

    def free(self) -> None:
        """Free the memory of TLS now."""
        free_tls(self.stream)
        vars(self).clear()

    def _step(self) -> ssl.SSLError | None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLError as error:
            return error.with_traceback(None)
        return None

    def _send(self) -> OSError | None:
        answer = self._outgoing.read()
        try:
            sent = self._sock.send(answer, socket.MSG_DONTWAIT)
        except OSError as error:
            return error.with_traceback(None)
        return None if sent == len(answer) else BlockingIOError("its buffer is full")
