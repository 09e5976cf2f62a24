"""TLS of a session's first connection by the library in C, where there is one, and an OpenSSL 3.

``ssl`` reads one record of 16 KiB at a call, with two system calls, and waits awake with the
interpreter's lock. ``native/line_tls.c`` reads what is there at one call, and waits without it.
``lanes.py`` has further connections, which use the same C.
"""

import ctypes
import socket
from typing import Any

from gpupool.pool.errors import AuthenticationError
from gpupool.remoting.driver_api.executor import native_library
from gpupool.remoting.transport.session_stream import EncryptedStream, byte_view


class Identity(ctypes.Structure):
    """``struct gp_identity``: the worker's certificate and key, in DER."""

    _fields_ = (
        ("certificate", ctypes.c_char_p),
        ("key", ctypes.c_char_p),
        ("certificate_size", ctypes.c_size_t),
        ("key_size", ctypes.c_size_t),
    )

    @classmethod
    def of(cls, certificate: bytes, key: bytes) -> "Identity":
        """Return the structure, which keeps both."""
        return cls(certificate, key, len(certificate), len(key))


def _library() -> Any | None:
    found = native_library.load()
    return found if found is not None and found.lanes_encrypt() else None


def given_bytes(view: memoryview) -> Any:
    """Return an argument for C that stands for the bytes of a view, and keeps them while it lives.

    A view that cannot be written has no other way to its bytes than a copy.
    """
    return bytes(view) if view.readonly else ctypes.byref(ctypes.c_char.from_buffer(view))


class LineTls(EncryptedStream):
    """An established TLS connection, encrypted by the library in C; a ``SessionStream``."""

    def __init__(self, library: Any, link: int, sock: socket.socket) -> None:
        super().__init__(sock)
        self._library = library
        self._link = link
        self._in_vain = ctypes.c_int32(0)  # of the one thread that receives

    def recv_into(self, buffer: memoryview) -> int:
        """Receive some bytes; 0 means that the client has closed."""
        view, awake_ns = byte_view(buffer), self._spinner.awake_ns()
        target, in_vain = given_bytes(view), ctypes.byref(self._in_vain)
        self.receiving = True
        count = int(self._library.line_receive(self._link, target, len(view), awake_ns, in_vain))
        self.receiving = False
        if self._in_vain.value:
            self._spinner.in_vain()
        self.bytes_in += count
        return count

    def _send_all(self, view: memoryview) -> None:
        self.sending = True
        if self._library.line_send(self._link, given_bytes(view), len(view)):
            raise BrokenPipeError("the client has gone")
        self.sending = False
        self.bytes_out += len(view)


def accept(sock: socket.socket, identity: tuple[bytes, bytes], ticket: bytes) -> LineTls | None:
    """Do the worker's side of the handshake, except for the final byte; blocks.

    Args:
        sock: blocking, and untouched since it was accepted; the stream's from then on.
        identity: the worker's certificate and key, in DER.
        ticket: which the client must know.

    Returns:
        None, and nothing has been done, where there is no library for it.

    Raises:
        AuthenticationError: when the client did not prove that it knows the ticket.
    """
    library = _library()
    if library is None:
        return None
    link = library.line_accept(sock.fileno(), ctypes.byref(Identity.of(*identity)), ticket)
    if not link:
        raise AuthenticationError("data connection refused", why="no TLS, or a wrong ticket")
    return LineTls(library, link, sock)
