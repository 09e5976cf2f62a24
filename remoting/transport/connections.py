"""The care of every connection: at its start, at its failure, and at its end.

**Its socket** is set up so that a silently lost peer is noticed within a given time: by keep-alive
probes when nothing is in flight, by ``TCP_USER_TIMEOUT`` when something is (tcp(7)). The kernels of
both machines keep the connection alive, not the programs on them, so a client that is stopped with
Ctrl-Z keeps its leases.

**Its failure** has a reason in words: one line for the log on either side.

**Its memory** goes back to the system. OpenSSL takes tens of KiB for each connection, in pieces
that lie between those of others, so glibc keeps what is freed. After 10,000 connections of
strangers a server and its exporter had 75 MiB more for good.
"""

import contextlib
import ctypes
import logging
import os
import socket
import ssl
import struct
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar, TypeVarTuple, cast

import trio

from gpupool.pool.errors import ProtocolError
from gpupool.pool.ports import Clock

# --- settings of sockets --------------------------------------------------------------------------


class OptionSocket(Protocol):
    """The one thing that is needed of a socket; trio's and the standard library's have it."""

    def setsockopt(self, level: int, option: int, value: int, /) -> None:
        """Set one option."""
        ...


def tune(sock: OptionSocket, *, timeout_s: float) -> None:
    """Set up a connected TCP socket so that a lost peer fails it within about ``timeout_s``.

    With 10 s, probes go out after 3, 5, 7 and 9 s of silence, and the last one ends it.
    """
    _set(sock, socket.IPPROTO_TCP, "TCP_NODELAY", 1)
    _set(sock, socket.SOL_SOCKET, "SO_KEEPALIVE", 1)
    interval_s = max(1, int(timeout_s * 0.2))
    # macOS calls the idle time TCP_KEEPALIVE (its tcp(4)).
    idle = "TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE"
    _set(sock, socket.IPPROTO_TCP, idle, max(1, int(timeout_s * 0.3)))
    _set(sock, socket.IPPROTO_TCP, "TCP_KEEPINTVL", interval_s)
    _set(sock, socket.IPPROTO_TCP, "TCP_KEEPCNT", 3)
    _set(sock, socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", int(timeout_s * 850))


def tcp_info(sock: socket.socket, shape: struct.Struct) -> tuple[int, ...] | None:
    """Ask the kernel about a connection; None for one that is no TCP, or is closed.

    ``shape`` has the beginning of ``struct tcp_info``, which Linux only ever appends to.
    """
    option = getattr(socket, "TCP_INFO", None)
    if option is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        data = sock.getsockopt(socket.IPPROTO_TCP, option, shape.size)
    except OSError:
        return None
    return shape.unpack(data) if len(data) == shape.size else None


def _set(sock: OptionSocket, level: int, name: str, value: int) -> None:
    option = getattr(socket, name, None)
    if isinstance(option, int):
        with contextlib.suppress(OSError):  # not a TCP socket, or a system that lacks the option
            sock.setsockopt(level, option, value)


# --- failures -------------------------------------------------------------------------------------

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

GONE = (
    trio.BrokenResourceError,
    trio.ClosedResourceError,
    trio.TooSlowError,
    ProtocolError,
    OSError,
)
"""How a connection ends, other than by a clean close. ``ssl.SSLError`` is an ``OSError``."""

OTHER_CA = "its certificate is not of this pool's CA"
"""Why a server that shows a certificate of no trusted CA is not believed."""

_TLS: dict[str, str] = {
    "CERTIFICATE_VERIFY_FAILED": OTHER_CA,
    "TLSV1_ALERT_UNKNOWN_CA": "the other side does not know this pool's CA",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the other side says that our certificate has ended",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the other side refused our certificate",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the other side demands a certificate",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate",
    "UNSUPPORTED_PROTOCOL": "it does not speak TLS 1.3",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the other side does not speak TLS 1.3",
    "UNEXPECTED_EOF_WHILE_READING": "it hung up during the TLS handshake; it may know another CA",
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
}

DATES: dict[int, str] = {
    9: "its certificate is not good yet: a clock is wrong, here or there",
    10: "its certificate has ended, or the clock of this machine is wrong",
}
"""By the codes of OpenSSL's verification: X509_V_ERR_CERT_NOT_YET_VALID and _HAS_EXPIRED."""


def explain(error: BaseException) -> str:
    """Return why a connection failed, as a clause without names."""
    error = innermost(error)
    if isinstance(error, trio.BrokenResourceError) and error.__cause__ is not None:
        # trio wraps the error of OpenSSL or the kernel.
        error = error.__cause__
    if isinstance(error, OSError) and error.errno is None and error.__cause__ is not None:
        # "all attempts to connect to ... failed": the attempts say why, and where again.
        error = innermost(error.__cause__)
        if isinstance(error, OSError) and error.errno:
            error = OSError(error.errno, os.strerror(error.errno))
    if isinstance(error, ssl.SSLZeroReturnError | ssl.SSLEOFError):
        # The same event has another name, or none, in other versions of Python and OpenSSL.
        return _TLS["UNEXPECTED_EOF_WHILE_READING"]
    if isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in DATES:
        return DATES[error.verify_code]
    if isinstance(error, ssl.SSLError):
        reason = error.reason or ""
        return _TLS.get(reason, reason.lower().replace("_", " ") or str(error))
    if isinstance(error, trio.TooSlowError):
        return "timed out"
    if isinstance(error, ProtocolError):
        return str(error)
    if isinstance(error, OSError):
        return (error.strerror or str(error) or type(error).__name__).lower()
    if isinstance(error, trio.BrokenResourceError | trio.ClosedResourceError):
        return "connection lost"
    return f"{type(error).__name__}: {error}"


def innermost(error: BaseException) -> BaseException:
    """Return the first error inside groups, or ``error`` itself."""
    while isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[Any]", error)
        error = group.exceptions[0]
    return error


async def within(
    limit_s: float, function: Callable[[*Arguments], Awaitable[T]], *args: *Arguments
) -> T:
    """Call a function that may take so many seconds, and leave nothing behind when it does not.

    The exception of ``trio.fail_after`` is part of a cycle. It keeps all that the function had,
    such as 37 KiB of TLS, until the garbage collector finds it.

    Raises:
        trio.TooSlowError: it took longer.
    """
    with trio.move_on_after(limit_s):
        return await function(*args)
    raise trio.TooSlowError


class RateLimitedLog:
    """Logs refused connections at a limited rate, so that a stranger cannot fill the log."""

    BURST = 20
    REFILL_S = 1.0

    def __init__(self, log: logging.Logger, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._left = float(self.BURST)
        self._at = clock.monotonic()
        self._swallowed = 0

    def say(self, text: str) -> None:
        """Log ``text``, or count it when there were too many just now."""
        now = self._clock.monotonic()
        self._left = min(self.BURST, self._left + (now - self._at) / self.REFILL_S)
        self._at = now
        if self._left < 1:
            self._swallowed += 1
            return
        self._left -= 1
        if self._swallowed:
            self._log.info("%d more refused or lost connections", self._swallowed)
            self._swallowed = 0
        self._log.info("%s", text)


# --- memory ---------------------------------------------------------------------------------------

TRIM_S = 60.0
"""A trim takes 1 to 6 ms of a thread for 100 MiB, and the process allocates nothing meanwhile."""


def trim() -> None:
    """Return unused heap memory to the kernel by malloc_trim; only glibc provides it."""
    library = ctypes.CDLL(None)
    if sys.platform == "linux" and hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


def free_tls(tls: "trio.SSLStream[trio.SocketStream]") -> None:
    """Free the memory of a TLS connection that has ended.

    trio's stream refers to itself. Without this, 50 KiB would wait for the garbage collector, and
    those of a flood with them.
    """
    vars(tls).clear()


async def give_back_memory(trim: Callable[[], None] = trim) -> None:
    """Call ``trim`` once in ``TRIM_S``, in a thread, until cancelled."""
    while True:
        await trio.sleep(TRIM_S)
        await trio.to_thread.run_sync(trim)
