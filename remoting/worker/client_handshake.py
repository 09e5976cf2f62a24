"""The worker's side of the handshake with its client, and the options of such connections."""

import os
import select
import socket
import ssl
import time

from gpupool.pool.errors import AuthenticationError
from gpupool.remoting.protocol import handshake, worker_messages
from gpupool.remoting.transport.data_connection import read_exactly

HANDSHAKE_TIMEOUT_S = 10.0
"""For the whole handshake of one connection, however slowly its bytes arrive."""

HANGUP_GRACE_S = 2.0
"""A door that still runs so long after its client hung up works for no client; its worker ends."""

KEEPALIVE_CLIENT = (4, 2, 3)
"""Seconds before the first probe and between probes, and how many: a client that vanished silently
is noticed within 10 s, as on its control connection."""


def accept_client(
    sock: socket.socket, context: ssl.SSLContext, assign: worker_messages.Assign, *, plain: bool
) -> socket.socket:
    """Do the worker's side of the handshake, except for the final byte.

    Args:
        sock: untouched since it was accepted; ``HANDSHAKE_TIMEOUT_S`` bounds each read here, and
            the caller bounds the whole.
        context: holds the worker's certificate.
        assign: the session whose client is expected.
        plain: whether an unencrypted connection is acceptable.

    Raises:
        GpupoolError: when the client did not prove that it knows the ticket.
        OSError: when the connection broke.
    """
    sock.settimeout(HANDSHAKE_TIMEOUT_S)
    first = sock.recv(1, socket.MSG_PEEK)
    if first and first[0] == handshake.TLS_FIRST_BYTE:
        wrapped = context.wrap_socket(sock, server_side=True)
        try:
            handshake.check_ticket(assign.ticket, read_exactly(wrapped, handshake.TICKET_SIZE))
        except BaseException:
            wrapped.close()
            raise
        return wrapped
    if not plain:
        raise AuthenticationError("data connection refused", why="it is not encrypted")
    accept_plain(sock, assign.session, assign.ticket)
    return sock


def accept_plain(sock: socket.socket, session: bytes, ticket: bytes) -> None:
    """Do the same over a connection that is not encrypted.

    Raises:
        GpupoolError: when the client did not prove that it knows the ticket.
        OSError: when the connection broke.
    """
    hello = read_exactly(sock, handshake.CLIENT_HELLO_SIZE)
    client_nonce = handshake.parse_client_hello(hello, session)
    server_nonce = os.urandom(handshake.NONCE_SIZE)
    sock.sendall(handshake.server_proof(ticket, client_nonce, server_nonce))
    proof = read_exactly(sock, handshake.PROOF_SIZE)
    handshake.check_client_proof(ticket, client_nonce, server_nonce, proof)


def wait_hangup(descriptor: int) -> None:
    """Wait until the client hangs up; then ``HANGUP_GRACE_S``, in which its door ends."""
    poll = select.poll()
    poll.register(descriptor, getattr(select, "POLLRDHUP", select.POLLHUP))
    poll.poll()
    time.sleep(HANGUP_GRACE_S)


def set_options(sock: socket.socket, keepalive: tuple[int, int, int] = KEEPALIVE_CLIENT) -> None:
    """Prepare a TCP connection for small frames and for another end that vanishes.

    No TCP_USER_TIMEOUT: since Linux 5.11 it also ends a connection whose peer is alive but reads
    nothing, and a program stopped with Ctrl-Z keeps its session.
    """
    sock.setblocking(True)
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
    for name, value in zip(names, keepalive, strict=True):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
