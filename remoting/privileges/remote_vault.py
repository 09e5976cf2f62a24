"""The server's side of its signer: a ``CaVaultPort`` with calls to another process.

A call blocks. It takes about as long as signing in this process does, and is rare: one for each
server that joins, or renews its certificate. What a signer answers too late, as on a machine that
is busy for a second, is passed over: the next call gets an answer of its own.
"""

import select
import socket

from gpupool.pool.errors import AuthenticationError, GpupoolError, ProtocolError
from gpupool.remoting.privileges.forked import ForkedProcess
from gpupool.remoting.protocol import signer_messages as m
from gpupool.remoting.transport.pki import Authority

START_TIMEOUT_S = 20.0
ANSWER_TIMEOUT_S = 1.0


class RemoteVault(ForkedProcess):
    """Implements ``transport.authority.ca_vault.CaVaultPort``; its docstrings hold here too."""

    def __init__(self, sock: socket.socket, pid: int, *, has_own_user: bool = False) -> None:
        """Talk over ``sock``, a packet socket, to a signer.

        Args:
            sock: is this object's.
            pid: of the signer, if that is our child; else -1.
            has_own_user: whether it keeps its secret where the server's user cannot read it.

        Raises:
            GpupoolError: when it does not come up.
        """
        super().__init__(sock, pid)
        self.has_own_user = has_own_user
        self._late = 0  # answers that nobody waits for any more
        sock.settimeout(START_TIMEOUT_S)
        try:
            self._public, *former = self._receive()
            #: The CA of a former pool, if the signer was given one.
            self.former = Authority(*former) if former else None
        except AuthenticationError as error:
            self.end()
            raise GpupoolError(
                "the signer of the CA's key does not start", why=str(error)
            ) from error
        sock.settimeout(ANSWER_TIMEOUT_S)

    def public(self) -> bytes:  # noqa: D102
        return self._public

    def ask(self, asked: m.Request) -> tuple[bytes, ...]:  # noqa: D102
        try:
            self._socket.sendall(m.SIGNER.encode(asked))
        except (OSError, ProtocolError) as error:
            raise AuthenticationError("the signer of the CA's key is not there") from error
        return self._receive()

    def is_there(self) -> bool:
        """Say whether the signer has not ended; it need not answer."""
        poller = select.poll()
        try:
            poller.register(self._socket, select.POLLIN)
            return not poller.poll(0) or self._socket.recv(1, socket.MSG_PEEK) != b""
        except (OSError, ValueError):  # it is closed
            return False

    def _receive(self) -> tuple[bytes, ...]:
        try:
            # An answer that comes late must not be taken for that of another call.
            while self._late and self._socket.recv(m.SIGNER.size_max + 1):
                self._late -= 1
            packet = self._socket.recv(m.SIGNER.size_max + 1)
            _, answer = m.SIGNER.decode(m.Answer, packet)
        except TimeoutError as error:
            self._late += 1
            raise AuthenticationError("the signer of the CA's key does not answer yet") from error
        except (OSError, ProtocolError) as error:
            self._socket.close()
            raise AuthenticationError("the signer of the CA's key does not answer") from error
        if isinstance(answer, m.Made):
            return answer.parts
        raise AuthenticationError(answer.what if isinstance(answer, m.Refused) else "")
