"""One welcomed client, and the context that the services share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from gpupool.pool.model.commands import Command
from gpupool.pool.model.ids import LeaseId, ServerId, TokenId
from gpupool.pool.model.results import Result
from gpupool.pool.model.state import PoolState, TokenKind
from gpupool.pool.ports import Clock, RaftHealth
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.server.proposer import Proposer
from gpupool.remoting.server.wait_queue import WaitQueue


class Signer(Protocol):
    """Signs certificates for servers; there is one wherever the CA's key is."""

    def sign(self, server: ServerId, csr_pem: bytes) -> bytes:
        """Return a certificate.

        Raises:
            AuthenticationError: when the request is malformed.
        """
        ...

    def key_pem(self) -> bytes:
        """Return the CA's key, for a new voter."""
        ...


@dataclass(eq=False, slots=True)
class Client:
    """One open connection, after ``Welcome``."""

    connection: int
    token: TokenId
    user: str
    kind: TokenKind
    name: str
    attached: set[LeaseId] = field(default_factory=set[LeaseId])
    noticed: dict[LeaseId, int] = field(default_factory=dict[LeaseId, int])
    """The ends of its leases that it was told of, in table time."""
    pending_calls: int = 0
    update_every_s: float = 0.0
    update_at: float = float("inf")
    members: tuple[m.Member, ...] = ()

    def __str__(self) -> str:
        """Return who this is, for logs."""
        return f"{self.user} ({self.name or 'unnamed client'}, token {self.token})"


class ServiceContext(Protocol):
    """What the admin service needs of the controller."""

    @property
    def state(self) -> PoolState:
        """Return the table as applied here."""
        ...

    self_id: ServerId
    ca_pem: bytes
    signer: Signer | None
    clock: Clock
    health: Callable[[], RaftHealth]
    wait_queue: WaitQueue
    proposals: Proposer

    def require_majority(self) -> None:
        """Raise ``NoQuorumError`` unless this server may act for the pool."""
        ...

    def clients(self) -> list[Client]:
        """Return everybody who has been welcomed."""
        ...

    def members(self) -> tuple[m.Member, ...]:
        """Return where every server is reached."""
        ...

    def send(self, connection: int, call: int, message: m.Message) -> None:
        """Send a push, with call 0."""
        ...

    def answer(self, client: Client, call: int, message: m.Message) -> None:
        """Answer a call."""
        ...

    def propose_for(
        self, client: Client, call: int, command: Command, then: Callable[[Result], m.Message]
    ) -> None:
        """Propose on behalf of a call, and answer it."""
        ...

    def when_current(self, client: Client, call: int, act: Callable[[], None]) -> None:
        """Act for a call once the table here has all that was committed before it."""
        ...
