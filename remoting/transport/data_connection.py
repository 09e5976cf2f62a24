"""Open a data session from the client's side, with blocking sockets: for the relay and tests."""

import os
import socket
import ssl
from dataclasses import dataclass, field

from gpupool.pool.errors import AuthenticationError, UnreachableError
from gpupool.pool.model.policy import DataEncryption
from gpupool.remoting.protocol import handshake
from gpupool.remoting.transport.session_stream import PlainStream, TlsStream


@dataclass(frozen=True, slots=True)
class SessionAddress:
    """The address of a session and both sides' proofs, from the answer to ``open_session``."""

    session: bytes
    ticket: bytes = field(repr=False)
    certificate_sha256: bytes
    address: tuple[str, int] | None = None
    unix: str | None = None
    encryption: str = DataEncryption.TLS  # a Unix socket is never encrypted


def dial(target: SessionAddress, *, timeout_s: float = 10.0) -> PlainStream | TlsStream:
    """Connect and prove both sides; a Unix socket that can be reached comes first.

    Raises:
        UnreachableError: when nothing answers at the address.
        AuthenticationError: when either side does not accept the other.
    """
    return prove(_connect(target, timeout_s), target, timeout_s)


def prove(
    sock: socket.socket, target: SessionAddress, timeout_s: float, *, introduction: bytes = b""
) -> PlainStream | TlsStream:
    """Prove both sides on a connection, which is closed when that fails.

    Args:
        sock: connected to the server of ``target``, which has heard nothing yet.
        target: the proofs of both sides.
        timeout_s: how long each answer may take.
        introduction: sent after that; it must be accepted, too.

    Raises:
        UnreachableError: when nothing answers.
        AuthenticationError: when either side does not accept the other.
    """
    proven = sock
    try:
        sock.settimeout(timeout_s)
        if sock.family == socket.AF_UNIX or target.encryption == DataEncryption.OFF:
            _prove_plain(sock, target)
        else:
            proven = _prove_tls(sock, target)
        if introduction:
            proven.sendall(introduction)
            _expect_accepted(proven)
    except TimeoutError as error:
        proven.close()
        raise UnreachableError("the worker does not answer", why=str(error)) from error
    except (OSError, AuthenticationError) as error:
        proven.close()
        if isinstance(error, AuthenticationError):
            raise
        raise AuthenticationError("the data connection was refused", why=str(error)) from error
    return TlsStream(proven) if isinstance(proven, ssl.SSLSocket) else PlainStream(proven)


def _connect(target: SessionAddress, timeout_s: float) -> socket.socket:
    if target.unix is not None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(timeout_s)
            sock.connect(target.unix)
        except OSError as error:
            sock.close()
            if target.address is None:
                raise UnreachableError("no connection to the worker", why=str(error)) from error
        else:
            return sock
    if target.address is None:
        raise UnreachableError("no connection to the worker", why="no address is known")
    try:
        sock = socket.create_connection(target.address, timeout_s)
    except OSError as error:
        raise UnreachableError("no connection to the worker", why=str(error)) from error
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return sock


def _prove_plain(sock: socket.socket, target: SessionAddress) -> None:
    nonce = os.urandom(handshake.NONCE_SIZE)
    sock.sendall(handshake.client_hello(target.session, nonce))
    answer = read_exactly(sock, handshake.SERVER_PROOF_SIZE)
    server_nonce = handshake.check_server_proof(target.ticket, nonce, answer)
    sock.sendall(handshake.client_proof(target.ticket, nonce, server_nonce))
    _expect_accepted(sock)


def _prove_tls(sock: socket.socket, target: SessionAddress) -> ssl.SSLSocket:
    # The certificate is pinned by its hash, so its chain and its name mean nothing.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    wrapped = context.wrap_socket(
        sock, server_hostname=handshake.server_name(target.session), suppress_ragged_eofs=True
    )
    try:
        certificate = wrapped.getpeercert(binary_form=True)
        handshake.check_certificate(certificate, target.certificate_sha256)
        wrapped.sendall(target.ticket)
        _expect_accepted(wrapped)
    except BaseException:
        wrapped.close()
        raise
    return wrapped


def _expect_accepted(sock: socket.socket) -> None:
    if read_exactly(sock, len(handshake.ACCEPTED)) != handshake.ACCEPTED:
        raise AuthenticationError("the data connection was refused", why="not accepted")


def read_exactly(sock: socket.socket, size: int) -> bytes:
    """Return exactly ``size`` bytes, which the socket's timeout bounds for each read.

    Raises:
        AuthenticationError: when the other side closes before that.
    """
    data = bytearray()
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise AuthenticationError("the data connection was refused", why="it was closed")
        data += part
    return bytes(data)
