"""The relay: encryption for a program with a library that cannot encrypt by itself.

The library of the CUDA door is C and links against libc alone. Where it finds no OpenSSL, it speaks
in the clear with a Unix socket of ``gpupool run``, in a folder that only this user can enter, and
bytes are encrypted from here on. Threads do that, because they block; each session has one, and
two while its connection lives.
"""

import os
import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gpupool.pool.errors import GpupoolError
from gpupool.remoting.client.session_answer import OpenedSession
from gpupool.remoting.protocol import handshake
from gpupool.remoting.transport.data_connection import SessionAddress, dial, read_exactly
from gpupool.remoting.transport.session_stream import PlainStream, SessionStream

CONNECT_TIMEOUT_S = 60.0
"""As long as the server keeps a worker waiting for its client."""

BUFFER_SIZE = 1 << 20

Log = Callable[[str], None]


def address_of(session: OpenedSession) -> SessionAddress:
    """Return the address of a session over TCP."""
    return SessionAddress(
        session=session.session,
        ticket=session.ticket,
        certificate_sha256=session.certificate_sha256,
        address=(session.address.host, session.address.port),
        encryption=session.encryption,
    )


def offer_relay(session: OpenedSession, folder: Path, log: Log) -> OpenedSession:
    """Return ``session`` with a ``relay`` that takes one connection; blocks hardly at all.

    Raises:
        OSError: when no socket can be made in ``folder``.
    """
    path = folder / f"relay-{secrets.token_hex(4)}.sock"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(1)
    except OSError:
        listener.close()
        raise
    relay = _Relay(listener, path, address_of(session), log)
    threading.Thread(target=relay.run, daemon=True).start()
    return replace(session, relay=str(path))


class _Relay:
    """One session: a connection of the program here, one to the worker there."""

    def __init__(
        self, listener: socket.socket, path: Path, target: SessionAddress, log: Log
    ) -> None:
        self._listener = listener
        self._path = path
        self._target = target
        self._log = log

    def run(self) -> None:
        """Accept one connection, prove both sides, and pass bytes on until one of them ends."""
        try:
            near = self._accept()
        except (OSError, GpupoolError):
            return  # nobody came: the program reached the server by itself
        try:
            far = dial(self._target)
            near.sendall(handshake.ACCEPTED)
        except (OSError, GpupoolError) as error:
            self._log(f"no encrypted connection to the server: {error}")
            near.close()
            return
        near.settimeout(None)
        program = PlainStream(near)
        back = threading.Thread(target=_pass_on, args=(far, program), daemon=True)
        back.start()
        _pass_on(program, far)
        back.join()

    def _accept(self) -> socket.socket:
        with self._listener:
            self._listener.settimeout(CONNECT_TIMEOUT_S)
            try:
                near, _ = self._listener.accept()
            finally:
                self._path.unlink(missing_ok=True)
        try:
            self._prove(near)
        except BaseException:
            near.close()
            raise
        return near

    def _prove(self, near: socket.socket) -> None:
        """Stand in for the worker in the handshake without TLS."""
        ticket = self._target.ticket
        near.settimeout(CONNECT_TIMEOUT_S)
        hello = read_exactly(near, handshake.CLIENT_HELLO_SIZE)
        client_nonce = handshake.parse_client_hello(hello, self._target.session)
        nonce = os.urandom(handshake.NONCE_SIZE)
        near.sendall(handshake.server_proof(ticket, client_nonce, nonce))
        proof = read_exactly(near, handshake.PROOF_SIZE)
        handshake.check_client_proof(ticket, client_nonce, nonce, proof)


def _pass_on(source: SessionStream, target: SessionStream) -> None:
    """Pass bytes on until either side ends; then end both, so that the other direction ends too."""
    view = memoryview(bytearray(BUFFER_SIZE))
    try:
        while count := source.recv_into(view):
            target.send_buffers([view[:count]])
    except (OSError, ValueError):
        pass  # the same as an end; ValueError: the other direction has closed the descriptor
    source.close()
    target.close()
