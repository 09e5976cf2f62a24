"""Answers openings in a thread beside the server's loop.

Parsing an opening and answering it is most of what a stranger costs. A loop that does it uses up
its share of a busy machine's processors, and then waits for one at each step, with everybody's
commits. An attacker may share the address of somebody who has proven himself. So the loop has
neither a task nor a parser for anybody until the other half of the handshake has come. OpenSSL
works without the interpreter's lock.
"""

import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.server.listener.begun_handshake import Handshake
from gpupool.remoting.server.listener.router import Opening, Route, ToControl, ToServer
from gpupool.remoting.transport.pki import TlsContexts


@dataclass(frozen=True, slots=True)
class Contexts:
    """The settings of TLS of one moment, taken on the loop, because a renewal may replace them."""

    control: ssl.SSLContext
    newest_control: ssl.SSLContext
    peer: ssl.SSLContext
    newest_peer: ssl.SSLContext

    @classmethod
    def now(cls, contexts: TlsContexts) -> "Contexts":
        """Return those that new connections take."""
        return cls(
            contexts.control(),
            contexts.control(newest=True),
            contexts.peer_server(),
            contexts.peer_server(newest=True),
        )

    def of(self, wanted: Route) -> ssl.SSLContext | None:
        """Return the settings for a connection; None: this server does no handshake with it."""
        match wanted:
            case ToControl(newest):
                return self.newest_control if newest else self.control
            case ToServer(_, newest):
                return self.newest_peer if newest else self.peer
            case _:
                return None


@dataclass(eq=False, slots=True)
class Begun:
    """What came of an opening; without ``wanted`` and ``error``, more of it is awaited."""

    wanted: Route | None = None
    handshake: Handshake | None = None
    error: RemoteProtocolError | OSError | None = None


Check = Callable[[Route], None]
"""Refuses a connection that can get nowhere, by a ``RemoteProtocolError``."""


def begin(
    sock: socket.socket, opening: Opening, data: bytes, contexts: Contexts, check: Check
) -> Begun:
    """Read and answer the opening of a connection, of which ``data`` was peeked at."""
    begun = Begun()
    try:
        while begun.wanted is None and len(data) >= opening.needed:
            begun.wanted = opening.route(data)
        if begun.wanted is not None:
            check(begun.wanted)
    except RemoteProtocolError as error:
        begun.error = error.with_traceback(None)
        return begun
    context = None if begun.wanted is None else contexts.of(begun.wanted)
    if context is not None:
        try:
            begun.handshake = Handshake(sock, context)
        except OSError as error:  # the other end has gone
            begun.error = error.with_traceback(None)
            return begun
        begun.error = begun.handshake.begin(len(data))
    return begun


Job = tuple[socket.socket, Opening, bytes]


def begin_all(jobs: Sequence[Job], contexts: Contexts, check: Check) -> list[Begun]:
    """Begin some handshakes, one after the other."""
    return [begin(*job, contexts, check) for job in jobs]
