"""HTTP messages between a server and its exporter; ``frames`` carries them.

Connections themselves go over a socket pair of their own, one packet each: the server's has the
connection's number and its descriptor, the exporter's the number of one that has ended.
"""

import struct
from dataclasses import dataclass, field

from gpupool.monitoring.frames import ExporterMessage, ServerMessage
from gpupool.pool.model.bounds import Blob, Line, Name, Number, PathText, Time
from gpupool.pool.model.ids import Milliseconds
from gpupool.remoting.protocol.message_family import message

PACKET = struct.Struct(">Q")
"""The number of a connection."""


@message(32)
class WebSetup(ServerMessage):
    """The certificate, and the clients to answer; sent again when it changes."""

    certificate_pem: Blob
    key_pem: Blob
    open_networks: tuple[Name, ...] = ()  # whose scrapers need no token
    users: Number = 0  # of the lease metrics that have their own rows
    readonly: bool = False  # whether the web page gives no orders

    def __repr__(self) -> str:
        """Leave the key out, so that no log or traceback shows it."""
        return "WebSetup(...)"


@dataclass(frozen=True, slots=True)
class Target:
    """A server of the pool, for Prometheus to find; the labels are those that were asked for."""

    name: Line
    address: Line
    labels: dict[Line, Line] = field(default_factory=dict[str, str])


@message(33)
class Targets(ServerMessage):
    """All servers of the pool, when that changes."""

    pool: Line
    servers: tuple[Target, ...]
    cluster_id: Line = ""
    ca_pem: Blob = b""  # of every CA that is trusted, for the clients of the web page


@message(34)
class TokenAsked(ExporterMessage):
    """Is this token good? It came over the connection of that number."""

    number: Number
    connection: Number
    text: PathText

    def __repr__(self) -> str:
        """Leave the token out, so that no log or traceback shows it."""
        return f"TokenAsked({self.number}, {self.connection})"


@message(35)
class TokenAnswered(ServerMessage):
    """The user of a token, or the reason of its refusal."""

    number: Number
    user: Line = ""
    kind: Name = ""  # of the token; empty when it is refused
    why: Line = ""
    later: bool = False  # the server cannot know yet
    tokens: Number = 0  # the number by ``TokensSeen`` of those that it was judged by
    expires_at: Time = Milliseconds(0)


@message(36)
class TokensSeen(ServerMessage):
    """While the exporter has connections: the pool's tokens are those of this number.

    The number grows whenever any token changes. As long as it stays, and the server goes on saying
    so, what it said of a token is still true, and nobody has to wait until it is asked.
    """

    tokens: Number
    at: Time  # the pool's time
    seen_s: float  # by the machine's monotonic clock, which both processes have
