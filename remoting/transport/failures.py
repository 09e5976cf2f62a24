"""The reasons for failed connections in words: one line for the log on either side."""

import logging
import os
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, TypeVarTuple, cast

import trio

from gpupool.pool.errors import ProtocolError
from gpupool.pool.ports import Clock

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
