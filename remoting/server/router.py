"""What a new connection to the one port wants, read from its first bytes without taking them.

A TLS ClientHello is read by OpenSSL itself, up to the server name in it; nothing is answered. So
the descriptor can still be handed to a worker, whose own TLS then starts from the first byte.
"""

import re
import ssl
from dataclasses import dataclass
from functools import lru_cache

import trio

from gpupool.pool.errors import RemoteProtocolError
from gpupool.pool.model.ids import ServerId
from gpupool.remoting.transport.pki import CONTROL_NAME, SERVER_SUFFIX, SESSION_SUFFIX

PEEK_SIZE_MAX = 4096
"""OpenSSL 3.5 sends 1.6 KiB with its post-quantum key share; the largest seen are below 2 KiB."""

TLS_RECORD = 0x16
PLAIN_MAGIC = b"gpupool\x01"
SESSION_SIZE = 16
_SESSION_NAME = re.compile(r"[0-9a-f]{32}")
_SERVER_NAME = re.compile(r"[0-9a-z]{1,32}")


@dataclass(frozen=True, slots=True)
class ToControl:
    """A client that wants to talk to the control server."""


@dataclass(frozen=True, slots=True)
class ToServer:
    """A peer that wants to reach this server id."""

    server: ServerId


@dataclass(frozen=True, slots=True)
class ToSession:
    """The data connection of a session."""

    session: bytes


Route = ToControl | ToServer | ToSession


def route(data: bytes) -> Route | None:
    """Return where a connection that begins with ``data`` wants to go; None: not known yet.

    Raises:
        RemoteProtocolError: when it can never become one of ours.
    """
    if not data:
        return None
    if data[0] == TLS_RECORD:
        name = client_hello_name(data)
        return None if name is None else _route_name(name)
    magic = data[: len(PLAIN_MAGIC)]
    if magic != PLAIN_MAGIC[: len(magic)]:
        raise RemoteProtocolError("not a gpupool connection", why=f"it begins with {data[:8]!r}")
    if len(data) < len(PLAIN_MAGIC) + SESSION_SIZE:
        return None
    return ToSession(bytes(data[len(PLAIN_MAGIC) : len(PLAIN_MAGIC) + SESSION_SIZE]))


def _route_name(name: str) -> Route:
    if name == CONTROL_NAME:
        return ToControl()
    label, dot, rest = name.partition(".")
    if dot + rest == SERVER_SUFFIX and _SERVER_NAME.fullmatch(label):
        return ToServer(ServerId(label))
    if dot + rest == SESSION_SUFFIX and _SESSION_NAME.fullmatch(label):
        return ToSession(bytes.fromhex(label))
    raise RemoteProtocolError("not a gpupool connection", why=f"it asks for {name[:80]!r}")


@lru_cache(maxsize=1)
def _peeking_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # so that an old client gets a clear refusal
    return context


def client_hello_name(data: bytes) -> str | None:
    """Return the server name of a TLS ClientHello, "" without one, or None if ``data`` is short.

    Raises:
        RemoteProtocolError: when ``data`` is not the beginning of a ClientHello.
    """
    context = _peeking_context()
    found: list[str] = []

    def take_name(_tls: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> int:
        found.append(name or "")
        return ssl.ALERT_DESCRIPTION_HANDSHAKE_FAILURE  # enough seen: stop here

    # The callback belongs to the context; no other task runs between here and the handshake.
    context.sni_callback = take_name
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    incoming.write(data)
    try:
        context.wrap_bio(incoming, outgoing, server_side=True).do_handshake()
    except ssl.SSLWantReadError:
        return found[0] if found else None
    except ssl.SSLError as error:
        if found:
            return found[0]
        raise RemoteProtocolError("malformed TLS", why=error.reason or "") from error
    finally:
        context.sni_callback = None
    raise RemoteProtocolError("malformed TLS")


async def peek_route(stream: trio.SocketStream) -> Route | None:
    """Wait for enough bytes to route ``stream``; None when it closed before. Takes none of them.

    The caller sets the deadline.

    Raises:
        RemoteProtocolError: when it is not one of ours within ``PEEK_SIZE_MAX`` bytes.
        OSError: when the connection failed.
    """
    seen = 0
    while True:
        data = await stream.socket.recv(PEEK_SIZE_MAX, trio.socket.MSG_PEEK)
        if not data:
            return None
        if len(data) > seen and (found := route(data)) is not None:
            return found
        if len(data) >= PEEK_SIZE_MAX:
            raise RemoteProtocolError("not a gpupool connection", why="its opening is too long")
        seen = len(data)
        # What was peeked at keeps the socket readable, so readiness cannot be waited for.
        await trio.sleep(0.005)
