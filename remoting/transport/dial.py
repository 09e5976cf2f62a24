"""From an address to a welcomed control connection, and the first contact of a new machine."""

import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio

from gpupool.pool.errors import (
    AuthenticationError,
    GpupoolError,
    RemoteProtocolError,
    UnreachableError,
)
from gpupool.pool.model.ids import TokenId
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.protocol.addresses import Address
from gpupool.remoting.protocol.connection import Connection, End
from gpupool.remoting.protocol.token_text import TokenText
from gpupool.remoting.transport.client_tls import (
    CONTROL_NAME,
    NEWEST_CONTROL_NAME,
    ClientContext,
    client_context,
    first_contact_context,
    server_of,
)
from gpupool.remoting.transport.connections import DATES, GONE, explain, tune
from gpupool.remoting.transport.message_stream import MessageStream

DIAL_TIMEOUT_S = 4.0
"""TCP, TLS and the welcome together; a server that needs longer is no help."""

SERVER_TIMEOUT_S = 10.0
"""Seconds until the kernel notices that a server's network is silently lost."""

UNKNOWN_CA = (18, 19, 20, 21)
"""OpenSSL's codes of certificates from an untrusted CA: self-signed ones, and others."""

Dial = Callable[[Address, ssl.SSLContext], Awaitable[trio.abc.Stream]]
"""Returns a stream to a server that the TLS settings have verified."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """A client's introduction: its token, its version and its name."""

    token: TokenId
    secret: bytes = field(repr=False)
    version: str
    client: str  # user@host


async def dial_tls(address: Address, context: ssl.SSLContext) -> trio.abc.Stream:
    """Return a handshaken TLS connection to the control server at ``address``."""
    tcp = await trio.open_tcp_stream(address.host, address.port)
    tune(tcp.socket, timeout_s=SERVER_TIMEOUT_S)
    name = context.server_name if isinstance(context, ClientContext) else CONTROL_NAME
    tls = trio.SSLStream(tcp, context, server_hostname=name, https_compatible=True)
    try:
        await tls.do_handshake()
    except BaseException:
        await trio.aclose_forcefully(tls)
        raise
    return tls


async def connect(
    address: Address,
    context: ssl.SSLContext,
    greeting: Greeting,
    *,
    cluster_id: str,
    dial: Dial = dial_tls,
) -> tuple[MessageStream, m.Welcome]:
    """Return a welcomed control connection.

    Raises:
        UnreachableError: nothing answers there, or not in time.
        AuthenticationError: either side refuses the other.
    """
    connection: MessageStream | None = None
    try:
        with trio.fail_after(DIAL_TIMEOUT_S):
            stream = await dial(address, context)
            connection = MessageStream(stream, Connection(End.CLIENT))
            hello = m.Hello(
                protocol=m.PROTOCOL,
                version=greeting.version,
                token=greeting.token,
                secret=greeting.secret,
                client=greeting.client[:100],
            )
            await connection.send(1, hello)
            received = await connection.receive()
        welcome = _expect_welcome(received, address)
        _check_server(stream, welcome, cluster_id)
    except BaseException as error:
        if connection is not None:
            await connection.aclose()
        if isinstance(error, GONE):
            raise _refusal(error, address) from error
        raise
    return connection, welcome


def _expect_welcome(received: tuple[int, m.Message] | None, address: Address) -> m.Welcome:
    if received is None:
        raise UnreachableError(f"cannot reach {address}", why="it hung up")
    match received[1]:
        case m.Welcome() as welcome:
            return welcome
        case m.Refused() as refused:
            raise m.to_error(refused)
        case other:
            raise RemoteProtocolError(f"a {type(other).__name__} in place of a welcome")


def _check_server(stream: trio.abc.Stream, welcome: m.Welcome, cluster_id: str) -> None:
    if welcome.cluster_id != cluster_id:
        raise AuthenticationError(
            "the server belongs to another pool", why=f"it is one of {welcome.pool!r}"
        )
    # All servers of the pool may answer as control.gpupool; none may say that it is another one.
    if isinstance(stream, trio.SSLStream):
        certificate: dict[str, object] = stream.getpeercert()
        if server_of(certificate) != welcome.server:
            raise AuthenticationError(
                "the server is not the one that it says", why=f"it says {welcome.server}"
            )


def _refusal(error: BaseException, address: Address) -> GpupoolError:
    why = explain(error)
    cause = error.__cause__ if isinstance(error, trio.BrokenResourceError) else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return _unproven(cause, why, address)
    if isinstance(error, RemoteProtocolError):
        return RemoteProtocolError(f"{address} does not follow the protocol", why=why)
    return UnreachableError(
        f"cannot reach {address}", why=why, hint='is "gpupool join" running there?'
    )


def _unproven(error: ssl.SSLCertVerificationError, why: str, address: Address) -> GpupoolError:
    """Return the error for a server with a rejected certificate."""
    if error.verify_code in UNKNOWN_CA:
        return AuthenticationError(
            f"{address} does not prove that it is a server of this pool",
            why="its certificate is of no CA that is trusted here: the pool has exchanged its CA "
            "since this login was last used, or it is another pool",
            hint='ask an operator for a new token, and give it to "gpupool login"',
        )
    if error.verify_code in DATES:
        return AuthenticationError(
            f"{address} does not prove now that it is a server of this pool",
            why=why,
            hint="set the clock of this machine; or its log says why it has no newer certificate",
        )
    return AuthenticationError(
        f"{address} is not a server of this pool", why=error.verify_message or why
    )


async def fetch_ca(
    token: TokenText, address: Address, *, dial: Dial = dial_tls
) -> tuple[bytes, ClientContext]:
    """Return the token's CA certificate (PEM) from ``address``, and a TLS context that trusts it.

    While the pool exchanges its CA a server shows two. The one that the token does not name is not
    trusted: whoever stands between may have put it there.

    Raises:
        UnreachableError: nothing answers there.
        AuthenticationError: the server that answers belongs to another pool.
    """
    from gpupool.remoting.transport.authority.ca_bundle import certificates_of, member_with

    try:
        with trio.fail_after(DIAL_TIMEOUT_S):
            stream = await dial(address, first_contact_context())
            async with MessageStream(stream, Connection(End.CLIENT)) as connection:
                await connection.send(1, m.FetchCa(m.PROTOCOL))
                received = await connection.receive()
    except GONE as error:
        raise _refusal(error, address) from error
    if received is None:
        raise UnreachableError(f"cannot reach {address}", why="it hung up")
    answer = received[1]
    if isinstance(answer, m.Refused):
        raise m.to_error(answer)
    shown = answer.pem if isinstance(answer, m.CaCertificate) else b""
    ca_pem = member_with(shown, token.ca_sha256)
    if ca_pem is None:
        raise AuthenticationError(
            f"{address} does not belong to the pool of this token",
            why="its CA has another fingerprint",
            hint="check the address, or ask for a new token; nothing secret was sent",
        )
    context = client_context(ca_pem)
    if ca_pem != certificates_of(shown)[0]:
        context.server_name = NEWEST_CONTROL_NAME
    return ca_pem, context


async def first_contact(
    token: TokenText, greeting: Greeting, *, dial: Dial = dial_tls
) -> tuple[MessageStream, m.Welcome, bytes]:
    """Return a welcomed connection to any server of the token, and the CAs to trust (PEM).

    Raises:
        AuthenticationError: a server of the pool refuses the token.
        UnreachableError: no address of the token answers.
    """
    from gpupool.remoting.transport.pki import pool_of

    failures: list[GpupoolError] = []
    for address in token.addresses:
        try:
            ca_pem, context = await fetch_ca(token, address, dial=dial)
            connection, welcome = await connect(
                address,
                context,
                greeting,
                cluster_id=token.cluster_id or pool_of(ca_pem),
                dial=dial,
            )
        except GpupoolError as error:
            failures.append(error)
        else:
            return connection, welcome, welcome.ca_pem or ca_pem
    raise worst(failures, tuple(token.addresses))


def worst(failures: list[GpupoolError], addresses: tuple[Address, ...]) -> GpupoolError:
    """Return the error to show when no address works: first an error that a person must correct."""
    for error in failures:
        if not isinstance(error, UnreachableError):
            return error
    tried = ", ".join(str(address) for address in addresses[:4])
    more = f" and {len(addresses) - 4} more" if len(addresses) > 4 else ""
    why = f"{failures[0].why}; tried {tried}{more}" if failures else "no address is known"
    return UnreachableError(
        "cannot reach the pool",
        why=why,
        hint='is "gpupool join" running there? If all servers moved: gpupool login --at HOST:PORT',
    )
