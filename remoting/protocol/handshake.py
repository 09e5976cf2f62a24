"""The handshake of a data session, both sides, as functions from bytes to bytes.

Two forms prove the same thing, that both ends know the ticket of the session:

- TLS 1.3 to the worker's own certificate, whose SHA-256 the client already has; then the client
  sends the ticket, and the worker answers ``ACCEPTED``.
- On a Unix socket, and on TCP where the pool turned encryption off: the client sends ``PREAMBLE``,
  the session (16 bytes) and a nonce (16); the worker answers its own nonce and
  HMAC-SHA256(ticket, "server" + both nonces); the client answers the same with "client"; the
  worker answers ``ACCEPTED``. The ticket itself never crosses an unencrypted wire.

Whoever accepts the connection reads the session from the first bytes without consuming them: from
the TLS server name, or from the preamble.
"""

import hashlib
import hmac

from gpupool.pool.errors import AuthenticationError, RemoteProtocolError

PREAMBLE = b"gpupool\x01"
SESSION_SIZE = 16
NONCE_SIZE = 16
TICKET_SIZE = 32
PROOF_SIZE = hashlib.sha256().digest_size

CLIENT_HELLO_SIZE = len(PREAMBLE) + SESSION_SIZE + NONCE_SIZE
SERVER_PROOF_SIZE = NONCE_SIZE + PROOF_SIZE

ACCEPTED = b"\x01"

TLS_FIRST_BYTE = 0x16
"""Of a TLS record that carries a handshake (RFC 8446, section 5.1)."""

SERVER_NAME_SUFFIX = ".session.gpupool"


def server_name(session: bytes) -> str:
    """Return the TLS server name under which the worker of ``session`` is reached."""
    return session.hex() + SERVER_NAME_SUFFIX


def session_of_preamble(first: bytes) -> bytes | None:
    """Return the session that the first bytes of a connection name; None when more are needed.

    Raises:
        RemoteProtocolError: as soon as the bytes cannot become a preamble.
    """
    if not PREAMBLE.startswith(first[: len(PREAMBLE)]):
        raise RemoteProtocolError("not a data connection", why="wrong first bytes")
    if len(first) < len(PREAMBLE) + SESSION_SIZE:
        return None
    return first[len(PREAMBLE) : len(PREAMBLE) + SESSION_SIZE]


def lane_ticket(ticket: bytes, lane: bytes) -> bytes:
    """Return the ticket of a further connection, derived from the session's ticket."""
    return hmac.digest(ticket, b"lane" + lane, "sha256")


def client_hello(session: bytes, client_nonce: bytes) -> bytes:
    """Return the first message of the client."""
    _check_size("session", session, SESSION_SIZE)
    _check_size("nonce", client_nonce, NONCE_SIZE)
    return PREAMBLE + session + client_nonce


def parse_client_hello(data: bytes, session: bytes) -> bytes:
    """Return the client's nonce from its first ``CLIENT_HELLO_SIZE`` bytes.

    Raises:
        RemoteProtocolError: when they are not the hello of ``session``.
    """
    if len(data) != CLIENT_HELLO_SIZE or not data.startswith(PREAMBLE):
        raise RemoteProtocolError("malformed preamble")
    if not hmac.compare_digest(session_of_preamble(data) or b"", session):
        raise RemoteProtocolError("malformed preamble", why="it names another session")
    return data[-NONCE_SIZE:]


def server_proof(ticket: bytes, client_nonce: bytes, server_nonce: bytes) -> bytes:
    """Return the worker's answer to the hello: its nonce, and proof that it knows the ticket."""
    _check_size("nonce", server_nonce, NONCE_SIZE)
    return server_nonce + _proof(ticket, b"server", client_nonce, server_nonce)


def check_server_proof(ticket: bytes, client_nonce: bytes, data: bytes) -> bytes:
    """Return the worker's nonce from its answer to the hello.

    Raises:
        AuthenticationError: when the other side does not know the ticket.
    """
    server_nonce = data[:NONCE_SIZE]
    expected = _proof(ticket, b"server", client_nonce, server_nonce)
    if len(data) != SERVER_PROOF_SIZE or not hmac.compare_digest(data[NONCE_SIZE:], expected):
        raise AuthenticationError(
            "the data connection was refused", why="the other side does not know the ticket"
        )
    return server_nonce


def client_proof(ticket: bytes, client_nonce: bytes, server_nonce: bytes) -> bytes:
    """Return the client's proof that it knows the ticket."""
    return _proof(ticket, b"client", client_nonce, server_nonce)


def check_client_proof(
    ticket: bytes, client_nonce: bytes, server_nonce: bytes, data: bytes
) -> None:
    """Raise unless ``data`` is the client's proof.

    Raises:
        AuthenticationError: when the client does not know the ticket.
    """
    if not hmac.compare_digest(data, client_proof(ticket, client_nonce, server_nonce)):
        raise AuthenticationError("data connection refused", why="wrong proof of the ticket")


def check_ticket(ticket: bytes, data: bytes) -> None:
    """Raise unless ``data``, which came through TLS, is the ticket.

    Raises:
        AuthenticationError: when it is not.
    """
    if not hmac.compare_digest(data, ticket):
        raise AuthenticationError("data connection refused", why="wrong ticket")


def check_certificate(certificate_der: bytes | None, sha256: bytes) -> None:
    """Raise unless the worker's certificate is the one that the control server named.

    Raises:
        AuthenticationError: when it is another one, or none.
    """
    found = hashlib.sha256(certificate_der or b"").digest()
    if not hmac.compare_digest(found, sha256):
        raise AuthenticationError(
            "the data connection was refused", why="the worker shows another certificate"
        )


def _proof(ticket: bytes, side: bytes, client_nonce: bytes, server_nonce: bytes) -> bytes:
    _check_size("ticket", ticket, TICKET_SIZE)
    return hmac.digest(ticket, side + client_nonce + server_nonce, "sha256")


def _check_size(what: str, value: bytes, size: int) -> None:
    if len(value) != size:
        raise ValueError(f"{what} of {len(value)} bytes, must have {size}")
