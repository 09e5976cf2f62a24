"""TLS of a session's first connection by the library in C, where there is one, and an OpenSSL 3.

``ssl`` reads one record of 16 KiB at a call, with two system calls, and waits awake with the
interpreter's lock. ``native/line_tls.c`` reads what is there at one call, and waits without it.
``lanes.py`` has further connections, which use the same C.
"""

import contextlib
import ctypes
import functools
import socket
import threading
from collections.abc import Sequence
from typing import Any

from gpupool.pool.errors import AuthenticationError
from gpupool.remoting.driver_api.build import LAUNCHER, library_dir
from gpupool.remoting.transport.session_stream import (
    COALESCE_SIZE_MAX,
    Buffer,
    Spinner,
    byte_view,
)
from gpupool.remoting.transport.tally import Tally


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


class _Library:
    """The functions of ``native/line_tls.c``."""

    def __init__(self) -> None:
        library = ctypes.CDLL(str(library_dir() / LAUNCHER))
        pointer, size, wide = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int64
        self.encrypts: Any = library.gpupool_lanes_encrypt
        self.encrypts.argtypes, self.encrypts.restype = [], ctypes.c_bool
        self.accept: Any = library.gpupool_line_accept
        self.accept.argtypes = [ctypes.c_int, pointer, ctypes.c_char_p]
        self.accept.restype = pointer
        self.receive: Any = library.gpupool_line_receive
        self.receive.argtypes, self.receive.restype = [pointer, pointer, size, wide, pointer], wide
        self.send: Any = library.gpupool_line_send
        self.send.argtypes = [pointer, pointer, size]


@functools.cache
def _library() -> _Library | None:
    try:
        found = _Library()
    except (OSError, AttributeError):
        return None
    return found if found.encrypts() else None


class LineTls:
    """A TLS connection whose handshake is done; a ``SessionStream``."""

    def __init__(self, library: _Library, link: int, sock: socket.socket) -> None:
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.transport = "tls"
        self.tally = Tally()
        self.calls = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.receiving = False
        self.sending = False
        self.descriptor = sock.fileno()
        self._library = library
        self._link = link
        self._socket = sock
        self._in_vain = ctypes.c_int32(0)  # of the one thread that receives
        # Held for a whole message: an SSL_write that had to wait must be repeated with the same
        # bytes before any other.
        self._send_lock = threading.Lock()
        self._spinner = Spinner()

    def recv_into(self, buffer: memoryview) -> int:
        """Receive some bytes; 0 means that the client has closed."""
        view = byte_view(buffer)
        target = ctypes.c_char.from_buffer(view)  # keeps its memory where it is
        where, in_vain = ctypes.addressof(target), ctypes.addressof(self._in_vain)
        self.receiving = True
        count = int(
            self._library.receive(self._link, where, len(view), self._spinner.awake_ns(), in_vain)
        )
        self.receiving = False
        if self._in_vain.value:
            self._spinner.in_vain()
        self.bytes_in += count
        return count

    def send_buffers(self, buffers: Sequence[Buffer]) -> None:
        """Send all bytes of all buffers, in order."""
        small: list[memoryview] = []
        size = 0
        self._spinner.answered = True
        with self._send_lock:
            self.sending = True
            for view in map(byte_view, buffers):
                if size + len(view) > COALESCE_SIZE_MAX:
                    self._send(b"".join(small))
                    small, size = [], 0
                if len(view) >= COALESCE_SIZE_MAX:
                    self._send(view)
                else:
                    small.append(view)
                    size += len(view)
            self._send(b"".join(small))
            self.sending = False

    def _send(self, given: memoryview | bytes) -> None:
        if not given:
            return
        # A view that cannot be written has no other way to its bytes.
        held = bytes(given) if isinstance(given, bytes) or given.readonly else None
        first = None if held is not None else ctypes.c_char.from_buffer(given)
        where = held if first is None else ctypes.addressof(first)
        if self._library.send(self._link, where, len(given)):
            raise BrokenPipeError("the client has gone")
        self.bytes_out += len(given)

    def send_descriptor(self, data: bytes, descriptor: int) -> bool:
        """Send nothing: TLS carries bytes only."""
        return False

    def hang_up(self) -> None:
        """End the connection for threads that are in the middle of using it."""
        with contextlib.suppress(OSError):  # it is closed already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; the client waits for the kernel's FIN."""
        self.hang_up()
        self._socket.close()


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
    link = library.accept(sock.fileno(), ctypes.byref(Identity.of(*identity)), ticket)
    if not link:
        raise AuthenticationError("data connection refused", why="no TLS, or a wrong ticket")
    return LineTls(library, link, sock)
