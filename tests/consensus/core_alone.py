"""One RaftCore without a node: the test is its host, its peers, its clock and its chance."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from gpupool.consensus.core.library import LEADER
from gpupool.consensus.core.raft_core import RaftCore
from gpupool.consensus.protocol.membership import Configuration
from gpupool.consensus.protocol.raft_messages import Message
from gpupool.consensus.protocol.raft_settings import ConsensusSettings
from gpupool.consensus.storage.journal import Entry, Journal, encode_entries
from gpupool.pool.model.ids import Plain, ServerId
from gpupool.simulations.kernel.simulated_disk import SimulatedDisk

ME = ServerId("me")
SETTINGS = ConsensusSettings()

Sent = list[tuple[str, Message]]


class Chance:
    """Draws the same number each time."""

    def __init__(self) -> None:
        self.drawn = 0.5

    def random(self) -> float:
        return self.drawn

    def randbytes(self, n: int, /) -> bytes:
        return bytes(n)


class Alone:
    """A core with ``entries`` in its log, connected to the other ``voters``, and its host."""

    def __init__(
        self,
        voters: Sequence[str] = ("me", "b", "c"),
        *,
        entries: Sequence[Entry] = (),
        term: int = 1,
        settings: ConsensusSettings = SETTINGS,
        stopwatch: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.now = 100.0
        self.chance = Chance()
        self.sent: Sent = []
        self.applied: list[int] = []
        self.snapshots: list[str] = []
        self.changes = 0
        self.excluded_by: list[str] = []
        self.journal = Journal.create(SimulatedDisk(Random(1)))
        for each in entries:
            self.journal.append(*each)
        self.journal.set_vote(term, None)
        self.journal.sync()
        self.core = RaftCore(
            ME,
            journal=self.journal,
            base=Configuration(1, tuple(ServerId(voter) for voter in voters)),
            applied_index=1,
            host=self,
            randomness=self.chance,
            settings=settings,
            now=self.now,
            stopwatch=stopwatch,
        )
        for voter in voters:
            if voter != ME:
                self.connect(voter)

    # --- the host ----------------------------------------------------------------------------

    def send(self, peer: ServerId, message: Message) -> None:
        self.sent.append((peer, message))

    def apply(self, index: int, command: bytes) -> Plain:
        del command
        self.applied.append(index)
        return index

    def send_snapshot(self, peer: ServerId, *, leading: bool) -> None:
        assert leading
        self.snapshots.append(peer)

    def configuration_changed(self) -> None:
        self.changes += 1

    def excluded(self, by: ServerId) -> None:
        self.excluded_by.append(by)

    # --- what the test does ------------------------------------------------------------------

    def do(self, action: Callable[[], object]) -> Sent:
        """Do an action at the present instant; return the sent messages."""
        self.sent = []
        with self.core.stepping(self.now):
            action()
        return self.sent

    def wait(self, seconds: float) -> None:
        """Let time pass without a round."""
        self.now += seconds
        self.do(lambda: None)

    def connect(self, peer: str) -> Sent:
        return self.do(lambda: self.core.connected_to(ServerId(peer)))

    def disconnect(self, peer: str) -> Sent:
        return self.do(lambda: self.core.disconnected_from(ServerId(peer)))

    def take(self, peer: str, kind: str, **fields: Any) -> Sent:
        """Receive one message, without a round afterwards."""
        return self.do(lambda: self.core.receive(ServerId(peer), {"type": kind, **fields}))

    def tick(self, after: float = 0.0) -> Sent:
        self.now += after
        return self.do(self.core.tick)

    def replicate(self) -> Sent:
        return self.do(self.core.replicate)

    def follow(self, leader: str = "b", *, term: int = 5, commit: int = 1) -> Sent:
        """Receive a heartbeat of a leader with a log as long as this one."""
        return self.append(leader, [], term=term, commit=commit)

    def append(
        self, leader: str, entries: Sequence[Entry], *, term: int = 5, commit: int = 1
    ) -> Sent:
        """Receive entries of a leader behind this log's end, or where the first of them goes."""
        previous = entries[0][1] - 1 if entries else self.journal.last_index
        return self.take(
            leader,
            "append_entries",
            term=term,
            commit_index=commit,
            prevLogIdx=previous,
            prevLogTerm=self.journal.term_at(previous),
            entries=encode_entries(entries),
            clock_ms=int(1000 * self.now),
            majority_age_ms=0,
        )

    def prevote(self, voter: str, *, granted: bool = True, **fields: Any) -> Sent:
        """Receive the answer of an asked voter."""
        term = self.core.term
        answer = {"term": term + 1, "current_term": term, "granted": granted, "member": True}
        return self.take(voter, "response_prevote", **{**answer, **fields})

    def ask_around(self) -> Sent:
        """Hear nothing until just after the election timeout, as a punctual server."""
        return self.tick(max(self.core.next_step_at() - self.now, 0.0) + 1e-6)

    def campaign(self, *voters: str) -> Sent:
        """Ask for votes after these would give theirs."""
        self.ask_around()
        for voter in voters:
            self.prevote(voter)
        return self.tick()

    def win(self, *voters: str) -> int:
        """Become leader with the votes of these; return the term."""
        self.campaign(*voters)
        for voter in voters:
            self.take(voter, "response_vote", term=self.core.term)
        assert self.core.state == LEADER
        self.journal.sync()
        self.core.synced()
        return self.core.term

    def acknowledge(self, peer: str, match: int, **fields: Any) -> Sent:
        answer = {"term": self.core.term, "next_node_idx": match + 1, "success": True}
        return self.take(peer, "next_node_idx", **{**answer, "rejected": -1, **fields})

    def reject(self, peer: str, previous: int, hint: int, **fields: Any) -> Sent:
        answer = {"term": self.core.term, "next_node_idx": hint, "success": False}
        return self.take(peer, "next_node_idx", **{**answer, "rejected": previous, **fields})


def of_kind(sent: Sent, kind: str) -> Sent:
    """Return the messages of one kind with their receivers."""
    return [(peer, message) for peer, message in sent if message["type"] == kind]


def commands(terms: Sequence[int], *, first: int = 2) -> list[Entry]:
    """Return an entry of each of these terms."""
    return [(b"\x00x", index, term) for index, term in enumerate(terms, first)]
