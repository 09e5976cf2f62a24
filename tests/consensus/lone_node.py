"""One RaftNode with peers played by the test, message by message."""

import random
from collections.abc import Callable
from typing import Any

from raft_world import Register

from gpupool.consensus.core.library import LEADER
from gpupool.consensus.node import RaftNode
from gpupool.consensus.protocol.membership import encode_voters
from gpupool.consensus.protocol.raft_messages import (
    FrameReader,
    FrameWriter,
    decode_message,
    encode_message,
)
from gpupool.consensus.protocol.raft_settings import ConsensusSettings
from gpupool.consensus.storage.journal import Entry, encode_entries
from gpupool.consensus.storage.snapshot import Snapshot, encode_snapshot
from gpupool.consensus.storage.store import MEMBERSHIP_TYPE, Storage
from gpupool.pool.model.ids import Plain, ServerId
from gpupool.pool.ports import Outcome
from gpupool.simulations.kernel.simulated_disk import SimulatedDisk

ME = ServerId("me")


def take(storage: Storage, snapshot: Snapshot, **drop_min: int) -> None:
    """Take a snapshot of a server's own table, as a node does in steps."""
    assert storage.journal.term_at(snapshot.index) == snapshot.term, "only what is in the log"
    storage.snapshots.save(snapshot)
    storage.taken(**drop_min)
    storage.sync()


def install(storage: Storage, snapshot: Snapshot) -> None:
    """Install a leader's snapshot, as a node does in steps."""
    data = encode_snapshot(snapshot)
    storage.snapshots.write(snapshot.index, data)
    storage.installed(snapshot, data)


class Lone:
    """A node with a log, connected to ``peers``; time moves only by ``tick``."""

    def __init__(
        self,
        voters: tuple[str, ...] = ("me", "b", "c"),
        *,
        entries: list[Entry] | None = None,
        term: int = 1,
        disk: SimulatedDisk | None = None,
        settings: ConsensusSettings | None = None,
        peers: tuple[str, ...] | None = None,
        stopwatch: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.now = 100.0
        self.settings = settings
        self.stopwatch = stopwatch
        self.clock_refusal: str | None = None
        self.machine = Register()
        self.peers = [ServerId(peer) for peer in peers or voters if peer != ME]
        if disk is None:
            disk = SimulatedDisk(random.Random(7))
            journal = Storage(disk, create=True).journal
            if voters:
                names = [ServerId(voter) for voter in voters]
                journal.append(MEMBERSHIP_TYPE + encode_voters(names), 2, 1)
            for entry in entries or []:
                journal.append(*entry)
            journal.set_vote(term, None)
            journal.sync()
        self.disk = disk
        self.outcomes: list[Outcome] = []
        self.restart()

    def set_voters(self, voters: list[ServerId], told: Callable[[Outcome], None]) -> None:
        """Change the voters, without regard to the desired list."""
        with self.node.core.stepping(self.now):
            self.node.core.set_voters(voters, told)

    def restart(self) -> None:
        """Start again from the disk's content."""
        self.machine = Register()
        self.node = RaftNode(
            ME,
            storage=Storage(self.disk, create=False),
            machine=self.machine,
            randomness=random.Random(7),
            now=self.now,
            settings=self.settings,
            clock_refusal=lambda _command: self.clock_refusal,
            stopwatch=self.stopwatch,
        )
        self.epoch = getattr(self, "epoch", 0) + 1
        self.asked_clock: dict[str, int] = {}
        self.writers = {peer: FrameWriter(self.epoch) for peer in self.peers}
        self.readers = {peer: FrameReader() for peer in self.peers}
        for peer in self.peers:
            self.node.connected(peer, self.now)
        self.tick()

    @property
    def journal(self) -> Any:
        return self.node.storage.journal

    def log(self) -> list[Entry]:
        return list(self.journal.entries)

    def frame(self, peer: str, kind: str, **fields: object) -> bytes:
        message = {"type": kind, **fields}
        return self.writers[ServerId(peer)].frame(encode_message(message))

    def take(self, peer: str, kind: str, **fields: object) -> list[tuple[str, dict[str, Any]]]:
        """Receive one message, step, and return the outgoing messages."""
        return self.take_frame(peer, self.frame(peer, kind, **fields))

    def take_frame(self, peer: str, frame: bytes) -> list[tuple[str, dict[str, Any]]]:
        self.node.receive(ServerId(peer), frame, self.now)
        return self.tick()

    def tick(self, after: float = 0.0) -> list[tuple[str, dict[str, Any]]]:
        self.now += after
        self.node.step(self.now)
        ready = self.node.ready()
        for callback, outcome in ready.resolved:
            callback(outcome)
        sent: list[tuple[str, dict[str, Any]]] = []
        for peer, frame in ready.frames:
            body = self.readers[peer].body(frame)
            assert body is not None
            sent.append((peer, message := decode_message(body)))
            if message["type"] == "ask_clock":
                self.asked_clock[peer] = message["number"]
        return sent

    def propose(self, command: Plain, ttl_s: float = 5.0) -> None:
        self.node.propose(command, ttl_s, self.outcomes.append, self.now)

    def append(
        self,
        previous: int,
        previous_term: int,
        entries: list[Entry],
        *,
        term: int = 5,
        commit: int = 1,
        leader: str = "b",
        clock_runs: bool = False,
        sent_at: float = 0.0,
    ) -> list[tuple[str, dict[str, Any]]]:
        return self.take(
            leader,
            "append_entries",
            term=term,
            commit_index=commit,
            prevLogIdx=previous,
            prevLogTerm=previous_term,
            entries=encode_entries(entries),
            clock_ms=int(1000 * (self.now if clock_runs else sent_at)),
            majority_age_ms=0,
        )

    def tell_clock(
        self,
        leader: str = "b",
        *,
        term: int = 5,
        commit: int = 1,
        clock_ms: int | None = None,
        majority_age_ms: int = 0,
    ) -> None:
        """Answer the newest question for the leader's clock."""
        self.take(
            leader,
            "clock",
            term=term,
            commit_index=commit,
            number=self.asked_clock[leader],
            clock_ms=int(1000 * self.now) if clock_ms is None else clock_ms,
            majority_age_ms=majority_age_ms,
        )

    def campaign(self) -> list[tuple[str, dict[str, Any]]]:
        """Hear nothing until the election timeout, and step just then, as a punctual server."""
        return self.tick(self.node.next_step_at() - self.now)

    def win(self, *voters: str) -> int:
        """Become leader with the votes of others; return the term."""
        self.campaign()
        core = self.node.core
        asked = core.term + 1
        for voter in voters:
            self.take(
                voter,
                "response_prevote",
                term=asked,
                current_term=core.term,
                granted=True,
                member=True,
            )
        self.tick()
        for voter in voters:
            self.take(voter, "response_vote", term=core.term)
        assert core.state == LEADER
        return core.term

    def acknowledge(self, peer: str, match: int, *, term: int | None = None) -> None:
        self.take(
            peer,
            "next_node_idx",
            term=self.node.core.term if term is None else term,
            next_node_idx=match + 1,
            success=True,
            rejected=-1,
        )


def entry(value: Plain, index: int, term: int) -> Entry:
    """Return a log entry of ours."""
    from gpupool.consensus.protocol import closed_cbor

    return (b"\x00" + closed_cbor.encode(value), index, term)
