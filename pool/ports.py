"""Interfaces between the folders, so that consensus and remoting never import one another.

``remoting/daemon/compose.py`` connects real parts by these Protocols; the simulator connects fakes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol, runtime_checkable

from gpupool.pool.model.ids import Plain, ServerId
from gpupool.pool.model.pieces import Field, PieceDecoder

# --- the replicated table, as the rest of the system sees it -----------------------------------


@dataclass(frozen=True, slots=True)
class Committed:
    """The command is in the log for good, and this server has applied it."""

    index: int
    result: Plain


class Refusal(Enum):
    """Why a command was not committed, as far as that decides whether another attempt may help."""

    NOT_NOW = "not now"  # no leader, a full queue, an attempt's time is up: another may succeed
    COMMAND = "command"  # no log takes this command: it is not plain, or too large
    CLOCK = "clock"  # its time is ahead of the voters' clocks: another stamp may be taken
    STOPPED = "stopped"  # this server proposes nothing any more


@dataclass(frozen=True, slots=True)
class NotCommitted:
    """The command was not, and never will be, applied by this attempt. Definite."""

    reason: str
    kind: Refusal = Refusal.NOT_NOW

    @property
    def final(self) -> bool:
        """True when no other attempt at this server changes the answer."""
        return self.kind in (Refusal.COMMAND, Refusal.STOPPED)


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nobody can say yet whether the command will be applied; ask again with the same key."""

    reason: str


Outcome = Committed | NotCommitted | Unknown


class Role(Enum):
    """The present Raft role of this server."""

    LEADER = "leader"
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEARNER = "learner"  # follows without a vote
    REMOVED = "removed"


class RefusedBy(NamedTuple):
    """The server that reports its refusal of another one, and the reason."""

    teller: ServerId
    reason: str


@dataclass(frozen=True, slots=True)
class RaftHealth:
    """The state of consensus as this server sees it; never blocks, never asks the network."""

    role: Role
    leader: ServerId | None
    term: int
    commit_index: int
    applied_index: int
    voters: tuple[ServerId, ...]
    connected: tuple[ServerId, ...]  # peers with a live connection to us
    majority_age_s: float  # for which our table may lack what a majority has committed
    contact_age_s: dict[ServerId, float]  # since each peer was last heard of, leader's view
    elections: int
    diverged: tuple[ServerId, ...] = ()  # whose table is not that of a majority of the voters
    unfit: Mapping[ServerId, str] = field(default_factory=dict[ServerId, str])
    """Servers that cannot be counted on as voters, and why."""
    alarm: str = ""  # what an operator must know beyond that
    refused_by: Mapping[ServerId, RefusedBy] = field(default_factory=dict[ServerId, RefusedBy])
    """Servers that others refuse, by gossip: it is shown, and nothing rests on it."""


class StateMachine(Protocol):
    """The replicated state machine. Deterministic: no clock, no randomness, no I/O."""

    def apply(self, index: int, command: Plain) -> Plain:
        """Apply one committed command and return its result. Total: never raises."""
        ...

    def snapshot(self) -> Plain:
        """Return the whole state as plain values."""
        ...

    def restore(self, snapshot: Plain) -> None:
        """Replace the whole state by an earlier ``snapshot()``."""
        ...


@runtime_checkable
class SlicedStateMachine(StateMachine, Protocol):
    """A state machine with a state too large to be encoded or decoded at one go."""

    def snapshot_fields(self) -> list[Field]:
        """Return the state of this moment, to be encoded in pieces on any thread."""
        ...

    def restoring(self) -> PieceDecoder[Any]:
        """Return a decoder that makes a state of a snapshot in pieces, on any thread."""
        ...

    def adopt(self, state: Any) -> None:
        """Replace the whole state by one that ``restoring`` made."""
        ...


class Hashing(Protocol):
    """A hash that is computed in pieces."""

    shape: int
    """The shape of the hashed data, never 0: only hashes of the same shape are compared."""

    def step(self) -> bytes | None:
        """Hash one piece, in less than a millisecond; return the hash once all are done."""
        ...


@runtime_checkable
class HashedStateMachine(StateMachine, Protocol):
    """A state machine for which servers compare the whole state."""

    def hash_mark(self) -> int:
        """Return a number that follows from the state; the command that changes it is agreed."""
        ...

    def hashing(self) -> Hashing:
        """Return a hasher of the state of this moment; later commands do not change it."""
        ...


class ConsensusHealth(Protocol):
    """The state of consensus as this server knows it."""

    def health(self) -> RaftHealth:
        """Return all of it."""
        ...

    def majority_age_s(self) -> float:
        """Return the ``majority_age_s`` of ``health``, which asks nothing else."""
        ...

    def role(self) -> Role:
        """Return the ``role`` of ``health``, which asks nothing else."""
        ...


class ReplicatedLog(ConsensusHealth, Protocol):
    """The replicated table's front: propose commands, see its health."""

    async def propose(self, command: Plain, *, timeout_s: float) -> Outcome:
        """Make one attempt to replicate a command; returns within ``timeout_s``.

        It never raises for a lost leader, and answers at once when none is known. To try again is
        the affair of ``remoting.server.proposer``.
        """
        ...

    def submit(self, command: Plain, timeout_s: float, callback: Callable[[Outcome], None]) -> None:
        """Make one attempt as ``propose`` does, without a task that waits for its outcome.

        ``callback`` gets exactly one outcome, on the trio thread, never from within this call.
        """
        ...


# --- links between peers ------------------------------------------------------------------------


class PeerLinks(Protocol):
    """Authenticated connections to the other servers; implemented by remoting.

    One connection per pair and direction of dialling is the implementation's affair. What is
    promised: frames of one connection arrive in order and at most once, and a peer's identity
    has been proven by its certificate.
    """

    def send(self, peer: ServerId, frame: bytes) -> bool:
        """Queue one frame; False when there is no connection or its queue is full."""
        ...

    def set_peers(self, peers: Sequence[ServerId]) -> None:
        """Set the servers to stay connected to; all others are disconnected."""
        ...

    def hang_up(self, peer: ServerId) -> None:
        """End the connection with ``peer``, if there is one, because a frame of it was lost."""
        ...


class PeerEvents(Protocol):
    """Events of the links; implemented by consensus. Called on the trio thread, never blocks."""

    def connected(self, peer: ServerId) -> None:
        """Say that a connection with ``peer`` is up: everything before it is lost."""
        ...

    def disconnected(self, peer: ServerId) -> None:
        """Say that the connection with ``peer`` is gone, with all that was in flight."""
        ...

    def received(self, peer: ServerId, frame: bytes, *, more: bool = False) -> None:
        """Take one frame that ``peer`` sent; with ``more``, another one has come with it."""
        ...


# --- time and chance ----------------------------------------------------------------------------


class Clock(Protocol):
    """The two clocks of a server."""

    def monotonic(self) -> float:
        """Return seconds that never go back; the zero means nothing."""
        ...

    def wall_ms(self) -> int:
        """Return milliseconds since the Unix epoch, as far as this machine knows."""
        ...


class Randomness(Protocol):
    """A source of chance that a seed can repeat."""

    def random(self) -> float:
        """Return a float in [0, 1)."""
        ...

    def randbytes(self, n: int, /) -> bytes:
        """Return ``n`` random bytes."""
        ...
