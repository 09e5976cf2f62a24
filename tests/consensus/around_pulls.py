"""The surroundings of a server that pulls, or that answers pulls: played by the test."""

from dataclasses import dataclass, field
from typing import Any

from gpupool.consensus.core.raft_log import Stored
from gpupool.consensus.followers import (
    Puller,
    PullResponder,
    source_weight,
)
from gpupool.consensus.protocol.raft_messages import Message
from gpupool.consensus.protocol.raft_settings import ConsensusSettings
from gpupool.consensus.storage.journal import encode_entries
from gpupool.pool.model.ids import ServerId

ME = ServerId("me")
ORDER = sorted((ServerId(name) for name in "bcd"), key=lambda peer: source_weight(ME, peer))
FIRST, SECOND, THIRD = ORDER
SETTINGS = ConsensusSettings(
    pull_wait_s=0.5, pull_timeout_s=1.5, lost_s=5.0, alive_s=1.0, learner_lag_max=100
)


@dataclass
class Around:
    """The node, its core, its log and its connections, as far as pulls need them."""

    voters: tuple[ServerId, ...] = (FIRST, SECOND)
    servers: tuple[ServerId, ...] = ()
    peers: set[ServerId] = field(default_factory=lambda: set(ORDER))
    votes: bool = False
    abstains: bool = False
    leader_heard_at: float = 100.0
    server_id: ServerId = ME
    now: float = 100.0
    term: int = 5
    leader: ServerId | None = None
    commit_index: int = 9
    applied_index: int = 9
    base_index: int = 1
    fits: bool = True
    settings: ConsensusSettings = SETTINGS
    held_up_s: list[float] = field(default_factory=list[float])
    sent: list[tuple[ServerId, Message]] = field(default_factory=list[tuple[ServerId, Message]])

    @property
    def core(self) -> "Around":
        return self

    storage = journal = core

    @property
    def frames(self) -> "Around":
        return self

    def connected(self) -> set[ServerId]:
        return set(self.peers)

    def __bool__(self) -> bool:
        return bool(self.peers)

    def send(self, peer: ServerId, message: Message, *, leading: bool = False) -> None:
        assert not leading
        self.sent.append((peer, message))

    def observe_leader(self, leader: ServerId | None, _: Message, held_up_s: float) -> None:
        self.leader = leader
        self.held_up_s.append(held_up_s)

    def store(self, previous: int, _term: int, entries: list[object]) -> Stored:
        return Stored(previous + len(entries) if self.fits else None)

    def commit_to(self, index: int) -> None:
        self.commit_index = max(self.commit_index, index)

    def encoded_entries(self, _first: int, _last: int, _bytes_max: int) -> tuple[int, bytes]:
        return 0, b""

    def term_at(self, _index: int) -> int:
        return 5

    def clock_ms(self) -> int:
        return -7

    def majority_age_ms(self) -> int:
        return 40

    def taken(self, kind: str) -> list[ServerId]:
        """Return the receivers of messages of one kind since the last time."""
        found = [peer for peer, message in self.sent if message["type"] == kind]
        self.sent.clear()
        return found


def puller_of(around: Around) -> Puller:
    node: Any = around
    return Puller(node)


def responder_of(around: Around, snapshots: Any = None) -> PullResponder:
    node: Any = around
    return PullResponder(node, snapshots or node)


def answer(*, count: int = 0, age_ms: int = 0, previous: int = 9, commit: int = 99) -> Message:
    entries = [(b"\x00x", previous + 1 + each, 5) for each in range(count)]
    return {
        "type": "pulled",
        "term": 5,
        "commit_index": commit,
        "prevLogIdx": previous,
        "prevLogTerm": 5,
        "entries": encode_entries(entries),
        "leader": None,
        "clock_ms": 0,
        "majority_age_ms": age_ms,
    }
