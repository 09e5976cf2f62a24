"""One server of the replicated table, sans-IO: frames, time, proposals in; frames, results out.

The driver (``bridge.py``, or a simulator) owns time, sockets and the moment of syncing:

1. It reports what happened: ``connected``, ``disconnected``, ``receive``, ``propose``.
2. It calls ``step(now)``; and again at ``next_step_at()`` if nothing happens before.
3. After each step, before anything else, it calls ``ready()``. That writes everything noted since
   the last time and syncs it once. Only then are there frames to send and results to hand out, so
   that nobody ever learns of a vote, an acknowledgement or an entry that a power loss could undo.

The node is deterministic: the same storage, settings, randomness and calls give the same frames,
byte for byte, in every process. Time enters only as ``now`` (seconds of the server's own monotonic
clock; it may run at any rate), chance only through ``Randomness``, and durable state only through
the ``Disk`` below ``Storage``. Nothing is read from module globals that differs between nodes, so
that any number of nodes can live in one process.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from gpupool.consensus.core.library import CANDIDATE, LEADER, NEVER
from gpupool.consensus.core.raft_core import RaftCore
from gpupool.consensus.proposal_queue import ProposalQueue
from gpupool.consensus.protocol import closed_cbor, membership
from gpupool.consensus.protocol.membership import Configuration
from gpupool.consensus.protocol.raft_messages import (
    FrameReader,
    FrameWriter,
    Message,
    decode_message,
    encode_message,
)
from gpupool.consensus.protocol.raft_settings import (
    BATCH_BYTES_MAX,
    WAITING_PULLS_MAX,
    ConsensusSettings,
)
from gpupool.consensus.storage.journal import decode_entries
from gpupool.consensus.storage.snapshot import Snapshot, SnapshotReceiver, SnapshotSender
from gpupool.consensus.storage.store import Storage
from gpupool.pool.errors import RemoteProtocolError
from gpupool.pool.model.ids import Plain, ServerId
from gpupool.pool.ports import (
    Outcome,
    RaftHealth,
    Randomness,
    Role,
    StateMachine,
)

# The library compares deadlines with "<": a step exactly at the deadline would do nothing.
_JUST_AFTER_S = 0.0005

_log = logging.getLogger(__name__)


class Ready(NamedTuple):
    """What may leave the server now that everything it rests on is durable."""

    frames: list[tuple[ServerId, bytes]]
    resolved: list[tuple[Callable[[Outcome], None], Outcome]]


class RaftNode:
    """A voter or a follower without a vote; which of them, its log says."""

    def __init__(
        self,
        server_id: ServerId,
        *,
        storage: Storage,
        machine: StateMachine,
        randomness: Randomness,
        now: float,
        settings: ConsensusSettings | None = None,
    ) -> None:
        """Start from what ``storage`` holds; restores ``machine`` from its newest snapshot."""
        self.server_id = server_id
        self.settings = settings or ConsensusSettings()
        self._storage = storage
        self._machine = machine
        self._now = now
        self._boot = storage.journal.begin()
        self._connections = 0
        self._writers: dict[ServerId, FrameWriter] = {}
        self._readers: dict[ServerId, FrameReader] = {}
        self._heard_at: dict[ServerId, float] = {}
        self._started_at = now
        self._leads_since = now
        self._servers: tuple[ServerId, ...] = ()
        self._peers_of: tuple[object, object, tuple[ServerId, ...]] = (None, None, ())
        self._known_of: tuple[tuple[object, ...], list[ServerId]] = ((), [])
        self._removed = False
        self._outbox: list[tuple[ServerId, Message]] = []
        self._resolved: list[tuple[Callable[[Outcome], None], Outcome]] = []
        self._senders: dict[ServerId, SnapshotSender] = {}
        self._receiving: SnapshotReceiver | None = None
        self._pulls: dict[ServerId, tuple[int, float]] = {}
        self._pull_from: ServerId | None = None
        self._pull_deadline = now
        self._pull_answered_at = now
        self._excluded = False
        self._alive_at = now
        self._applied_by: dict[ServerId, int] = {}
        self._desired: tuple[ServerId, ...] | None = None
        self._successor: ServerId | None = None
        self._hand_over_asked = False
        self._hand_over_until = self._hand_over_at = -NEVER
        self._handlers: dict[str, Callable[[ServerId, Message], None]] = {
            "pull": self._on_pull,
            "pulled": self._on_pulled,
            "alive": self._on_alive,
            "snapshot": self._on_snapshot,
            "snapshot_ack": self._on_snapshot_ack,
        }
        snapshot = storage.snapshots.latest
        if snapshot is not None:
            machine.restore(snapshot.state)
        self._snapshot_index = snapshot.index if snapshot else 1
        self._snapshot_log_mark = storage.journal.bytes_since_rewrite
        self._core = RaftCore(
            server_id,
            journal=storage.journal,
            base=Configuration(snapshot.index, snapshot.voters) if snapshot else _NO_VOTERS,
            applied_index=self._snapshot_index,
            host=self,
            randomness=randomness,
            settings=self.settings,
            now=now,
        )
        self._proposals = ProposalQueue(
            self._core,
            storage.journal,
            send=self.send,
            is_connected=self._writers.__contains__,
            is_handing_over=lambda: self._successor is not None,
            resolved=self._resolve,
        )
        self._handlers["forward"] = self._proposals.on_forward
        self._handlers["forward_response"] = self._proposals.on_forward_response

    # --- what the driver reports -------------------------------------------------------------

    def connected(self, peer: ServerId, now: float) -> None:
        """Begin a new connection with ``peer``: everything older is void, in both directions."""
        self._advance(now)
        self._connections += 1
        self._writers[peer] = FrameWriter((self._boot << 32) | self._connections)
        self._outbox = [item for item in self._outbox if item[0] != peer]
        self._drop_transfers(peer)
        self._heard_at[peer] = self._now
        with self._core.stepping(self._now):
            self._core.connected_to(peer)
        if self._pull_from is None:
            self._pull_deadline = self._now

    def disconnected(self, peer: ServerId, now: float) -> None:
        """End the connection with ``peer``."""
        self._advance(now)
        self._writers.pop(peer, None)
        self._drop_transfers(peer)
        with self._core.stepping(self._now):
            self._core.disconnected_from(peer)
        if self._pull_from == peer:
            self._pull_from, self._pull_deadline = None, self._now

    def receive(self, peer: ServerId, frame: bytes, now: float) -> None:
        """Take one frame; what makes no sense is logged and dropped, and changes nothing.

        Raises:
            StorageError: when a snapshot that is complete cannot be stored.
        """
        self._advance(now)
        if peer not in self._writers:
            return
        try:
            body = self._readers.setdefault(peer, FrameReader()).body(frame)
            if body is not None:
                self._take(peer, decode_message(body))
        except RemoteProtocolError as error:
            _log.warning("a frame from %s was dropped: %s", peer, error)

    def _take(self, peer: ServerId, message: Message) -> None:
        self._heard_at[peer] = self._now
        with self._core.stepping(self._now):
            handler = self._handlers.get(message["type"])
            if handler is not None:
                handler(peer, message)
                return
            if message["type"] == "next_node_idx" and message["success"]:
                self._senders.pop(peer, None)
            self._core.receive(peer, message)

    def propose(
        self, command: Plain, ttl_s: float, callback: Callable[[Outcome], None], now: float
    ) -> None:
        """Try to get one command committed within ``ttl_s``.

        ``callback`` gets exactly one outcome, from a later ``ready()``, no later than the first
        one after ``ttl_s``. A command whose time is up is never appended, by nobody; one that was
        appended may still be committed after an ``Unknown``.
        """
        self._advance(now)
        self._proposals.propose(command, self._now, ttl_s, callback)

    def barrier(self, ttl_s: float, callback: Callable[[Outcome], None], now: float) -> None:
        """Commit an entry without effect: once it is applied here, so is all before this call."""
        self._advance(now)
        self._proposals.barrier(self._now, ttl_s, callback)

    def set_servers(self, servers: Sequence[ServerId], *, removed: bool = False) -> None:
        """Say which servers belong to the pool, with or without a vote.

        Args:
            servers: their ids; whether this one is among them means nothing.
            removed: whether this one was removed for good.
        """
        self._removed = removed
        others = tuple(sorted(set(servers) - {self.server_id}))
        if others != self._servers:
            self._servers = others
        keep = {*self._servers, *self._core.voters}
        for peer in [peer for peer in self._heard_at if peer not in keep]:
            if peer not in self._writers:
                del self._heard_at[peer]
                self._applied_by.pop(peer, None)

    def set_voters(
        self, voters: Sequence[ServerId], callback: Callable[[Outcome], None], now: float
    ) -> None:
        """Change the voters by one, if this is the leader and nothing stands against it."""
        self._advance(now)
        with self._core.stepping(self._now):
            self._core.set_voters(voters, self._resolver(callback))

    def reconcile_voters(self, desired: Sequence[ServerId] | None) -> None:
        """Whenever this server leads, bring the voters nearer to ``desired``, one at a time."""
        self._desired = None if desired is None else tuple(sorted(set(desired)))

    def hand_over(self, now: float) -> bool:
        """Let the voter with the longest log lead; False when nobody can, or we do not lead.

        Proposals are refused until it does, or for ``election_max_s`` at most.
        """
        self._advance(now)
        return self._begin_hand_over(self._core.voters)

    # --- what the driver does ----------------------------------------------------------------

    def step(self, now: float) -> None:
        """Do whatever is due: elections, commits, proposals, replication, snapshots."""
        self._advance(now)
        core = self._core
        with core.stepping(self._now):
            self._proposals.expire(self._now)
            led = core.state == LEADER
            core.tick()
            leads = core.state == LEADER
            if leads and not led:
                self._leads_since = self._now
            self._proposals.drain()
            if leads:
                self._reconcile()
            if self._successor is not None:
                self._continue_hand_over()
            if leads:
                core.replicate()
            if self._pulls:
                self._answer_pulls()
            if core.votes:
                self._excluded = self._excluded and core.leader is None
            else:
                self._excluded = False
                self._follow_without_vote()
        if self._snapshot_is_due():
            self._take_snapshot()

    def sync(self) -> None:
        """Make everything durable that was noted so far, with at most one sync of the disk.

        May run in another thread, while nobody calls ``step``, ``receive``, ``connected``,
        ``disconnected`` or ``set_voters``.

        Raises:
            StorageError: when that fails. The node must not be used any more.
        """
        self._storage.journal.sync()

    def ready(self) -> Ready:
        """Make everything durable, as ``sync`` does, and return what may leave now."""
        self.sync()
        frames: list[tuple[ServerId, bytes]] = []
        encoded: Message | None = None
        body = b""
        for peer, message in self._outbox:
            if (writer := self._writers.get(peer)) is not None:
                if message is not encoded:
                    encoded, body = message, encode_message(message)
                frames.append((peer, writer.frame(body)))
        ready = Ready(frames, self._resolved)
        self._outbox, self._resolved = [], []
        return ready

    def next_step_at(self) -> float:
        """Return the instant at which ``step`` is due if nothing happens before."""
        core = self._core
        if self._proposals.waiting or self._resolved or self._outbox:
            return self._now
        alone = core.state == LEADER and core.voters == (self.server_id,)
        if alone and core.commit_index < self._storage.journal.last_index:
            return self._now
        due = core.next_step_at()
        due = min(due, self._proposals.next_expiry_at())
        if self._successor is not None:
            due = min(due, self._hand_over_until)
        for _, since in self._pulls.values():
            due = min(due, since + self.settings.pull_wait_s)
        if not core.votes and self._writers:
            due = min(due, self._pull_deadline, self._alive_at)
        return due + _JUST_AFTER_S

    # --- reading -----------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """True while this server takes itself for the leader."""
        return self._core.state == LEADER

    @property
    def core(self) -> RaftCore:
        """The Raft core, for checkers that look inside."""
        return self._core

    @property
    def storage(self) -> Storage:
        """The storage, for checkers that look inside."""
        return self._storage

    def peers(self) -> tuple[ServerId, ...]:
        """Return the servers to stay connected to.

        A voter talks to everyone, a server without a vote to the voters; and one that gets no
        answer from voters, or knows of none, to all that it was told of.
        """
        voters = self._core.voters
        servers = self._servers if self._core.votes or self._is_lost() else ()
        known = self._peers_of
        if known[0] is not voters or known[1] is not servers:
            peers = tuple(sorted({*voters, *servers} - {self.server_id}))
            known = self._peers_of = (voters, servers, peers)
        return known[2]

    def health(self, now: float) -> RaftHealth:
        """Return what this server knows of the state of consensus."""
        now = max(now, self._now)
        core = self._core
        # Followers do not talk to each other: a new leader gives everybody time to be heard.
        floor = self._leads_since if core.state == LEADER else self._started_at
        ages = {p: now - max(self._heard_at.get(p, floor), floor) for p in self._known()}
        return RaftHealth(
            role=self.role,
            leader=core.leader,
            term=core.term,
            commit_index=core.commit_index,
            applied_index=core.applied_index,
            voters=core.voters,
            connected=core.connected,
            majority_age_s=self.majority_age_s(now),
            contact_age_s=ages,
            elections=core.elections,
        )

    def majority_age_s(self, now: float) -> float:
        """Return for how long this server has not been in touch with a majority; see ``health``."""
        return self._core.majority_age_s() + (max(now, self._now) - self._now)

    def _known(self) -> list[ServerId]:
        """Return all other servers that this one has heard of, sorted."""
        key = (self._servers, self._core.voters, *self._heard_at)
        if self._known_of[0] != key:
            known = {*self._heard_at, *self._servers, *self._core.voters} - {self.server_id}
            self._known_of = (key, sorted(known))
        return self._known_of[1]

    @property
    def role(self) -> Role:
        """The part that this server takes itself to have."""
        if not self._core.votes:
            return Role.REMOVED if self._removed else Role.LEARNER
        if self._core.state == LEADER:
            return Role.LEADER
        return Role.CANDIDATE if self._core.state == CANDIDATE else Role.FOLLOWER

    # --- what the core needs (CoreHost) ------------------------------------------------------

    def send(self, peer: ServerId, message: Message) -> None:
        """Queue one message until the next ``ready()``."""
        if peer in self._writers:
            self._outbox.append((peer, message))

    def apply(self, index: int, command: bytes) -> Plain:
        """Apply one committed command; whatever happens, the entry counts as applied.

        A command that cannot be read, or a state machine that raises, must not stop the log
        (finding L3): the entry gets an error as its result, the same on every server.
        """
        try:
            return self._machine.apply(index, closed_cbor.decode_command(command))
        except Exception as error:  # noqa: BLE001 - the log must go on, whatever a command does.
            _log.exception("entry %d could not be applied", index)
            return {"error": type(error).__name__}

    def send_snapshot(self, peer: ServerId, *, leading: bool) -> None:
        """Send the next piece of the newest snapshot, if the last one is answered or lost."""
        sender = self._senders.get(peer)
        latest = self._storage.snapshots.latest
        if sender is not None and sender.index < self._storage.journal.base_index:
            sender = None  # The entries behind that snapshot are gone by now.
        if sender is None or (sender.sent_at is None and sender.offset == sender.total):
            if latest is None:
                _log.error("%s needs a snapshot, and there is none", peer)
                return
            sender = SnapshotSender(latest, self._storage.snapshots.encoded_latest())
            self._senders[peer] = sender
        recently = self._now - self.settings.chunk_retry_s
        if sender.sent_at is not None and sender.sent_at > recently:
            return
        message: Message = {
            "type": "snapshot",
            "term": self._core.term,
            "leading": leading,
            "index": sender.index,
            "total": sender.total,
            "offset": sender.offset,
            "data": sender.piece(self._now),
        }
        self.send(peer, message)

    def configuration_changed(self) -> None:
        """Let a server that got its vote stop pulling."""
        self._pull_from = None

    def excluded(self, by: ServerId) -> None:
        """Pull from the server that says that this one lost its vote, to see for itself.

        A leader stops sending to a voter as soon as it appends the removal, so that the removed
        one does not learn of it otherwise. Committed entries are safe to take at any time.
        """
        if not self._excluded or self._now >= self._pull_deadline:
            self._excluded = True
            self._pull(by)

    def _resolver(self, callback: Callable[[Outcome], None]) -> Callable[[Outcome], None]:
        return lambda outcome: self._resolve(callback, outcome)

    def _resolve(self, callback: Callable[[Outcome], None], outcome: Outcome) -> None:
        self._resolved.append((callback, outcome))

    # --- voters ------------------------------------------------------------------------------

    def _reconcile(self) -> None:
        core, desired = self._core, self._desired
        if desired is None or core.state != LEADER or core.voters == desired or not core.settled:
            return
        floor = core.commit_index - self.settings.learner_lag_max
        caught_up = {peer for peer, applied in self._applied_by.items() if applied >= floor} & set(
            self._writers
        )
        step = membership.next_step(core.voters, desired, ready=caught_up, leader=self.server_id)
        if step is not None:
            core.set_voters(step, lambda outcome: _log.info("voters %s: %s", step, outcome))
        elif self.server_id not in desired:
            self._begin_hand_over(voter for voter in core.voters if voter in desired)

    def _begin_hand_over(self, candidates: Iterable[ServerId]) -> bool:
        """Choose the voter with the longest log, and append nothing more until it leads.

        Under load it would never have the whole log otherwise.
        """
        core = self._core
        if self._successor is not None:
            return True
        able = [peer for peer in candidates if peer in self._writers and peer != self.server_id]
        if core.state != LEADER or not able or self._now < self._hand_over_at:
            return False
        self._successor = max(able, key=lambda peer: (core.match_index(peer), peer))
        self._hand_over_until = self._now + self.settings.election_max_s
        self._hand_over_at = self._hand_over_until + self.settings.hand_over_retry_s
        self._hand_over_asked = False
        return True

    def _continue_hand_over(self) -> None:
        if self._successor is None:
            return
        if self._core.state != LEADER or self._now >= self._hand_over_until:
            self._successor = None
        elif not self._hand_over_asked:
            self._hand_over_asked = self._core.hand_over(self._successor)

    # --- following without a vote ------------------------------------------------------------

    def _follow_without_vote(self) -> None:
        core = self._core
        if self._now >= self._alive_at:
            self._alive_at = self._now + self.settings.alive_s
            for peer in self._sources():
                self.send(peer, {"type": "alive", "applied_index": core.applied_index})
        if self._now < self._pull_deadline:
            return
        sources = self._sources()
        if not sources:
            self._pull_from, self._pull_deadline = None, self._now + self.settings.pull_timeout_s
            return
        self._pull_next(sources)

    def _pull_next(self, sources: list[ServerId]) -> None:
        """Pull from the next one in order after the one that did not help."""
        later = [peer for peer in sources if self._pull_from is None or peer > self._pull_from]
        self._pull(later[0] if later else sources[0])

    def _pull(self, peer: ServerId) -> None:
        self._pull_from = peer
        self._pull_deadline = self._now + self.settings.pull_timeout_s
        self.send(peer, {"type": "pull", "next_index": self._core.commit_index + 1})

    def _sources(self) -> list[ServerId]:
        candidates = set(self._core.voters)
        if self._is_lost():
            candidates.update(self._servers)
        return sorted(peer for peer in candidates if peer in self._writers)

    def _is_lost(self) -> bool:
        silence = self._now - self._pull_answered_at
        return not self._core.voters or silence > self.settings.lost_s

    def _on_pull(self, peer: ServerId, message: Message) -> None:
        if peer in self._pulls or len(self._pulls) < WAITING_PULLS_MAX:
            self._pulls[peer] = (message["next_index"], self._now)
            self._applied_by[peer] = message["next_index"] - 1

    def _answer_pulls(self) -> None:
        commit_index = self._core.commit_index
        for peer, (next_index, since) in sorted(self._pulls.items()):
            late = self._now - since >= self.settings.pull_wait_s
            if next_index <= commit_index or late:
                del self._pulls[peer]
                self._answer_pull(peer, max(next_index, 1))

    def _answer_pull(self, peer: ServerId, next_index: int) -> None:
        core, journal = self._core, self._storage.journal
        previous = min(next_index - 1, core.commit_index)
        if previous < journal.base_index:
            self.send_snapshot(peer, leading=False)
            return
        _, entries = core.encoded_entries(previous + 1, core.commit_index, BATCH_BYTES_MAX)
        message: Message = {
            "type": "pulled",
            "term": core.term,
            "commit_index": core.commit_index,
            "prevLogIdx": previous,
            "prevLogTerm": journal.term_at(previous),
            "entries": entries,
            "leader": core.leader,
            "clock_ms": max(core.clock_ms(), 0),
            "majority_age_ms": core.majority_age_ms(),
        }
        self.send(peer, message)

    def _on_pulled(self, peer: ServerId, message: Message) -> None:
        core = self._core
        if peer != self._pull_from or (core.votes and not self._excluded):
            return
        try:
            entries = decode_entries(message["entries"])
        except ValueError as error:
            _log.warning("entries from %s cannot be read: %s", peer, error)
            return
        # Servers that are out of touch themselves could answer each other for ever.
        helpful = bool(entries) or message["majority_age_ms"] < 1000 * self.settings.lost_s
        if helpful:
            self._pull_answered_at = self._now
        leader = message["leader"]
        core.observe_leader(None if leader is None else ServerId(leader), message)
        stored = core.store(message["prevLogIdx"], message["prevLogTerm"], entries)
        if stored.match is not None:
            core.commit_to(min(message["commit_index"], stored.match))
        if core.votes and not entries:
            self._excluded, self._pull_from = False, None  # It was the other who did not know.
        elif helpful:
            self._pull(peer)
        else:
            self._pull_next(self._sources() or [peer])

    def _on_alive(self, peer: ServerId, message: Message) -> None:
        self._applied_by[peer] = message["applied_index"]

    # --- snapshots ---------------------------------------------------------------------------

    def _snapshot_is_due(self) -> bool:
        entries = self._core.applied_index - self._snapshot_index
        written = self._storage.journal.bytes_since_rewrite - self._snapshot_log_mark
        return entries >= self.settings.snapshot_entries or (
            entries > 0 and written >= self.settings.snapshot_log_bytes
        )

    def _take_snapshot(self) -> None:
        core, journal, settings = self._core, self._storage.journal, self.settings
        index = core.applied_index
        term = journal.term_at(index)
        assert term is not None, "what is applied is in the log"
        voters = core.configurations.at(index).voters
        self._storage.take(
            Snapshot(index, term, voters, self._machine.snapshot()),
            drop_entries_min=settings.snapshots_per_rewrite * settings.snapshot_entries,
            drop_bytes_min=settings.snapshots_per_rewrite * settings.snapshot_log_bytes,
        )
        self._snapshot_index = index
        self._snapshot_log_mark = journal.bytes_since_rewrite

    def _on_snapshot(self, peer: ServerId, message: Message) -> None:
        core, leading = self._core, message["leading"]
        if leading and not core.follow(peer, message):
            return
        if not leading and (peer != self._pull_from or (core.votes and not self._excluded)):
            return
        self._pull_deadline = self._now + self.settings.pull_timeout_s
        self._pull_answered_at = self._now
        index = message["index"]
        if index <= core.commit_index:
            self._receiving = None
            self._snapshot_is_here(peer, index, leading=leading)
            return
        receiving = self._receiving
        key = (peer, index, message["total"])
        if receiving is None or key != (receiving.peer, receiving.index, receiving.total):
            receiving = self._receiving = SnapshotReceiver(peer, index, message["total"])
        receiving.add(message["offset"], message["data"])
        try:
            snapshot = receiving.complete()
        except ValueError as error:
            _log.warning("a snapshot from %s is damaged, and asked for again: %s", peer, error)
            receiving = self._receiving = SnapshotReceiver(peer, index, message["total"])
            snapshot = None
        if snapshot is not None and snapshot.index == index:
            self._receiving = None
            self._install(snapshot)
            self._snapshot_is_here(peer, index, leading=leading)
            return
        answer: Message = {
            "type": "snapshot_ack",
            "term": core.term,
            "index": index,
            "received": receiving.received,
        }
        self.send(peer, answer)

    def _snapshot_is_here(self, peer: ServerId, index: int, *, leading: bool) -> None:
        if leading:
            self._core.acknowledge_snapshot(peer, index)
        else:
            self._pull(peer)

    def _install(self, snapshot: Snapshot) -> None:
        self._storage.install(snapshot)
        self._machine.restore(snapshot.state)
        self._core.installed(snapshot.index, snapshot.voters)
        self._snapshot_index = snapshot.index
        self._snapshot_log_mark = self._storage.journal.bytes_since_rewrite

    def _on_snapshot_ack(self, peer: ServerId, message: Message) -> None:
        self._core.heard_from(peer)
        sender = self._senders.get(peer)
        if sender is not None and sender.acknowledged(message["index"], message["received"]):
            self.send_snapshot(
                peer, leading=self._core.state == LEADER and peer in self._core.voters
            )

    # --- small things ------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        if now > self._now:
            self._now = now

    def _drop_transfers(self, peer: ServerId) -> None:
        self._senders.pop(peer, None)
        self._pulls.pop(peer, None)
        if self._receiving is not None and self._receiving.peer == peer:
            self._receiving = None


_NO_VOTERS = Configuration(0, ())
