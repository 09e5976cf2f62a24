"""One server of the replicated table: frames, time and proposals in, frames and results out.

The driver (``driver.py``, or a simulator) owns time, sockets and the moment of syncing:

1. It reports what happened: ``connected``, ``disconnected``, ``receive``, ``propose``.
2. It calls ``step(now)``; and again at ``next_step_at()`` if nothing happens before.
3. After each step, before anything else, it may call ``early()``, which returns the entries that
   a leader sends: they are on their way while its own disk works. They count as the leader's own
   only after its sync.
4. Then it calls ``ready()``. That writes everything noted since the last time and syncs it once.
   Only then are there other frames to send and results to hand out, so that nobody ever learns of
   a vote, an acknowledgement or a commit that a power loss could undo.

The node is deterministic: the same storage, settings, randomness and calls give the same frames,
byte for byte, in every process. Time enters only as ``now`` (seconds of the server's own monotonic
clock; it may run at any rate), chance only through ``Randomness``, and durable state only through
the ``Disk`` below ``Storage``. Nothing is read from module globals that differs between nodes, so
that any number of nodes can live in one process.

**Parts.** Each has one concern, and calls only those to its right; they share a ``NodeContext``::

    RaftNode -> ProposalQueue     commands of this server and forwarded ones
             -> VoterChanges      -> PullResponder
             -> PullResponder     -> SnapshotTransfer
             -> SnapshotTransfer  -> Puller
             -> Puller            (a server without a vote)
             -> TableComparison   is this table that of the others?
             -> Gossip           whom do the others refuse?
             -> Promises          who has forgotten, who is a clone, who is repaired
             -> RaftCore          elections, replication, commit, apply; calls back ``CoreHost``
             -> PeerFrames        (what waits to leave)

**What a step does in each role**, in this order::

    part                     leader             follower, candidate     without a vote
    ProposalQueue.expire     resolves           resolves                resolves
    RaftCore.tick            commits, applies   elections, applies      applies
    ProposalQueue.drain      appends            forwards                forwards
    VoterChanges.step        changes voters     gives up a hand-over    -
    RaftCore.replicate       sends entries      -                       -
    PullResponder.answer     answers            answers                 answers
    Puller.step              -                  -                       pulls
    SnapshotTransfer         takes one          takes one               takes one

What is never true: that a result, or a frame that promises something, leaves before the journal is
synced; that two outcomes are given for one proposal; that ``now`` goes back; that a message changes
anything when its sender is not connected.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from gpupool.consensus.core.library import CANDIDATE, LEADER, NEVER
from gpupool.consensus.core.raft_core import RaftCore
from gpupool.consensus.followers import Puller, PullResponder
from gpupool.consensus.gossip import Gossip
from gpupool.consensus.node_context import NodeContext
from gpupool.consensus.peer_frames import PeerFrames
from gpupool.consensus.persisted_votes import PersistedVotes
from gpupool.consensus.proposal_queue import ProposalQueue
from gpupool.consensus.protocol import closed_cbor
from gpupool.consensus.protocol.membership import Configuration
from gpupool.consensus.protocol.raft_messages import Message
from gpupool.consensus.protocol.raft_settings import ConsensusSettings
from gpupool.consensus.snapshot_transfer import RunWork, SnapshotTransfer, Work, run_at_once
from gpupool.consensus.storage.peer_memory import Start
from gpupool.consensus.storage.store import Storage
from gpupool.consensus.table_comparison import ApplyError, TableComparison
from gpupool.consensus.voter_changes import VoterChanges
from gpupool.pool.errors import GpupoolError, RemoteProtocolError
from gpupool.pool.model.formats import OutdatedError
from gpupool.pool.model.ids import Plain, ServerId
from gpupool.pool.ports import Outcome, RaftHealth, Randomness, Role, StateMachine


class _Known(NamedTuple):
    """All known servers but this one, sorted, and the three books that they come from."""

    servers: tuple[ServerId, ...]
    voters: tuple[ServerId, ...]
    heard: tuple[ServerId, ...]
    known: list[ServerId]


class _Peers(NamedTuple):
    """The servers to connect to, and the voters and servers that they come from."""

    voters: tuple[ServerId, ...]
    servers: tuple[ServerId, ...]
    peers: tuple[ServerId, ...]


class Contacts:
    """The other servers, and the instants at which their messages arrived."""

    def __init__(self, context: NodeContext) -> None:
        """Begin now, without having heard of anyone."""
        self._context = context
        self._heard_at: dict[ServerId, float] = {}
        self._started_at = context.now
        self._leads_since = context.now
        self._led_term = 0
        self._cache = _Known((), (), (), [])
        self._peers = _Peers((), (), ())

    def to_connect(self, *, everyone: bool) -> tuple[ServerId, ...]:
        """Return the voters, or with ``everyone`` all servers of the pool, but this one."""
        voters = self._context.core.voters
        servers = self._context.servers if everyone else ()
        if self._peers.voters is not voters or self._peers.servers is not servers:
            peers = tuple(sorted({*voters, *servers} - {self._context.server_id}))
            self._peers = _Peers(voters, servers, peers)
        return self._peers.peers

    def heard(self, peer: ServerId) -> None:
        """Note a sign of life."""
        self._heard_at[peer] = self._context.now

    def leads_in(self, term: int) -> None:
        """Give everybody time to be heard in a new term: followers do not talk to each other."""
        if term != self._led_term:
            self._led_term, self._leads_since = term, self._context.now

    def forget_strangers(self) -> list[ServerId]:
        """Forget servers that neither belong to the pool, nor vote, nor are connected."""
        context = self._context
        keep = {*context.servers, *context.core.voters}
        gone = [p for p in self._heard_at if p not in keep and p not in context.frames]
        for peer in gone:
            del self._heard_at[peer]
        return gone

    def ages_s(self, now: float) -> dict[ServerId, float]:
        """Return for how long each known server has not been heard of."""
        leads = self._context.core.state == LEADER
        floor = self._leads_since if leads else self._started_at
        return {p: now - max(self._heard_at.get(p, floor), floor) for p in self._known()}

    def _known(self) -> list[ServerId]:
        books = (self._context.servers, self._context.core.voters, tuple(self._heard_at))
        if self._cache[:3] != books:
            known = sorted({name for book in books for name in book} - {self._context.server_id})
            self._cache = _Known(*books, known)
        return self._cache.known


# The library compares deadlines with "<": a step exactly at the deadline would do nothing.
_JUST_AFTER_S = 0.0005

_OWN_FAULTS = (MemoryError, RecursionError)
"""Exceptions that the codec reports as damage, although they are faults of this server."""

_log = logging.getLogger(__name__)


class Ready(NamedTuple):
    """Frames and outcomes to hand out now that everything they rest on is durable."""

    frames: list[tuple[ServerId, bytes]]
    resolved: list[tuple[Callable[[Outcome], None], Outcome]]


class RaftNode:
    """A Raft node: a voter, or a follower without a vote, according to its log."""

    def __init__(
        self,
        server_id: ServerId,
        *,
        storage: Storage,
        machine: StateMachine,
        randomness: Randomness,
        now: float,
        settings: ConsensusSettings | None = None,
        incarnation: int = 0,
        run_work: RunWork = run_at_once,
        clock_refusal: Callable[[Plain], str | None] = lambda _command: None,
        stopwatch: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Start from the content of ``storage``; restores ``machine`` from its newest snapshot.

        ``incarnation`` is drawn at each start, and tells the others a copy of this server from it,
        0 nothing. ``run_work`` runs a ``Work``. A step ends in time by ``stopwatch``, in seconds.
        """
        self.server_id = server_id
        self.settings = settings or ConsensusSettings()
        self.storage = storage
        self._machine = machine
        self._removed = False
        self._resolved: list[tuple[Callable[[Outcome], None], Outcome]] = []
        snapshot = storage.snapshots.latest
        if snapshot is not None:
            machine.restore(snapshot.state)
        boot = storage.journal.begin()
        self._frames = PeerFrames(boot)
        self.core = RaftCore(
            server_id,
            journal=storage.journal,
            base=Configuration(snapshot.index, snapshot.voters) if snapshot else _NO_VOTERS,
            applied_index=snapshot.index if snapshot else 1,
            host=self,
            randomness=randomness,
            settings=self.settings,
            now=now,
            stopwatch=stopwatch,
        )
        self._context = context = NodeContext(
            server_id=server_id,
            settings=self.settings,
            storage=storage,
            core=self.core,
            frames=self._frames,
            now=now,
        )
        self._persisted_votes = PersistedVotes(context, Start(boot, incarnation))
        self._gossip = Gossip(context, self._persisted_votes)
        self._contacts = Contacts(context)
        self._puller = Puller(context)
        self._snapshots = SnapshotTransfer(context, machine, self._puller, run_work)
        self._responder = PullResponder(context, self._snapshots)
        self._voter_changes = VoterChanges(context, self._responder, self._persisted_votes.unfit)
        self._comparison = TableComparison(context, machine)
        self._proposals = ProposalQueue(
            self.core,
            storage.journal,
            send=self.send,
            is_connected=self._frames.__contains__,
            is_handing_over=lambda: self._voter_changes.is_handing_over,
            resolved=self._resolve,
            clock_refusal=clock_refusal,
        )
        self._handlers = self._handlers_by_type()

    def _handlers_by_type(self) -> dict[str, Callable[[ServerId, Message], None]]:
        """Return the handler of each message that is not the core's."""
        return {
            "pull": self._responder.on_pull,
            "pulled": self._puller.on_pulled,
            "alive": self._responder.on_alive,
            "table_hash": self._comparison.on_table_hash,
            "whole_hash": self._comparison.on_whole_hash,
            "snapshot": self._snapshots.on_snapshot,
            "snapshot_ack": self._snapshots.on_snapshot_ack,
            "forward": self._proposals.on_forward,
            "forward_response": self._proposals.on_forward_response,
            "hello": self._persisted_votes.on_hello,
            "refused": self._persisted_votes.on_refused,
            "promised": self._persisted_votes.on_promised,
            "refusal": self._gossip.on_refusal,
            "reach": self._voter_changes.reach.on_reach,
        }

    # --- what the driver reports -------------------------------------------------------------

    def connected(self, peer: ServerId, now: float) -> None:
        """Begin a new connection with ``peer``: everything older is void, in both directions."""
        self._context.advance(now)
        self._frames.connect(peer)
        self._drop_transfers(peer)
        self._persisted_votes.connected(peer)
        self._gossip.connected(peer)
        self._contacts.heard(peer)
        with self.core.stepping(self._context.now):
            self.core.connected_to(peer)
        self._puller.connected()

    def disconnected(self, peer: ServerId, now: float) -> None:
        """End the connection with ``peer``."""
        self._context.advance(now)
        self._frames.disconnect(peer)
        self._persisted_votes.disconnected(peer)
        self._drop_transfers(peer)
        with self.core.stepping(self._context.now):
            self.core.disconnected_from(peer)
        self._puller.disconnected(peer)

    def receive(self, peer: ServerId, frame: bytes, now: float) -> None:
        """Handle one frame; an invalid one is logged and dropped, and changes nothing.

        Raises:
            StorageError: when a snapshot that is complete cannot be stored, or when this server
                has forgotten what it promised to others.
        """
        self._context.advance(now)
        if peer not in self._frames:
            return
        try:
            message = self._frames.read(peer, frame)
            if message is not None:
                self._take(peer, message)
        except RemoteProtocolError as error:
            _log.warning("a frame from %s was dropped: %s", peer, error)

    def _take(self, peer: ServerId, message: Message) -> None:
        with self.core.stepping(self._context.now):
            if message["type"] in _ABOUT_PROMISES:
                self._handlers[message["type"]](peer, message)
                return
            if not self._persisted_votes.admits(peer, message):
                return
            self._contacts.heard(peer)
            handler = self._handlers.get(message["type"])
            if handler is not None:
                handler(peer, message)
            else:
                if message["type"] == "next_node_idx" and message["success"]:
                    self._snapshots.not_needed_by(peer)
                self.core.receive(peer, message)
            self._persisted_votes.took(peer, message)

    def propose(
        self, command: Plain, ttl_s: float, callback: Callable[[Outcome], None], now: float
    ) -> None:
        """Try to get one command committed within ``ttl_s``.

        ``callback`` gets exactly one outcome, from a later ``ready()``, no later than the first
        one after ``ttl_s``. A command whose time is up is never appended, by nobody; one that was
        appended may still be committed after an ``Unknown``.
        """
        self._context.advance(now)
        self._proposals.propose(command, self._context.now, ttl_s, callback)

    def barrier(self, ttl_s: float, callback: Callable[[Outcome], None], now: float) -> None:
        """Commit an entry without effect: once it is applied here, so is all before this call."""
        self._context.advance(now)
        self._proposals.barrier(self._context.now, ttl_s, callback)

    def set_servers(self, servers: Sequence[ServerId], *, removed: bool = False) -> None:
        """Set the servers of the pool, with or without a vote.

        Args:
            servers: their ids; whether this one is among them means nothing.
            removed: whether this one was removed for good.
        """
        self._removed = removed
        others = tuple(sorted(set(servers) - {self.server_id}))
        if others != self._context.servers:
            self._context.servers = others
        for peer in self._contacts.forget_strangers():
            self._responder.forget(peer)

    def reconcile_voters(
        self, desired: Sequence[ServerId] | None, *, stopgaps: Collection[ServerId] = ()
    ) -> None:
        """Whenever this server leads, see to its voters, as ``VoterChanges`` says."""
        self._voter_changes.desire(desired, stopgaps)

    def hand_over(self, now: float) -> bool:
        """Let the voter with the longest log lead; False when nobody can, or we do not lead.

        Proposals are refused until it does, or for ``election_max_s`` at most.
        """
        self._context.advance(now)
        return self._voter_changes.begin_hand_over(self.core.voters)

    def work_done(self, work: Work, now: float) -> None:
        """Finish long work after all its steps have run."""
        self._context.advance(now)
        applied_index = self.core.applied_index
        with self.core.stepping(self._context.now):
            work.finish()
        if self.core.applied_index != applied_index:
            self._comparison.begin(self.core.applied_index)  # It was a snapshot's installation.

    # --- what the driver does ----------------------------------------------------------------

    def step(self, now: float) -> None:
        """Do everything that is due: elections, commits, proposals, replication, snapshots.

        Raises:
            ApplyError: when this server alone cannot apply a command. It must stop.
            DivergedError: when its table is not that of a majority. It must stop.
        """
        self._context.advance(now)
        core = self.core
        with core.stepping(self._context.now):
            self._proposals.expire(self._context.now)
            core.tick()
            self._comparison.judge()
            self._gossip.tell()
            leads = core.state == LEADER
            if leads:
                self._contacts.leads_in(core.term)
            self._proposals.drain()
            self._voter_changes.step()
            if leads:
                core.replicate()
            self._responder.answer()
            self._puller.step()
        self._snapshots.take_if_due()

    def early(self) -> list[tuple[ServerId, bytes]]:
        """Return the frames that may leave before the sync; none when there is nothing to sync."""
        if not self.storage.journal.dirty:
            return []
        return self._frames.take_early(self.core.may_leave_early)

    def sync(self) -> None:
        """Make everything durable that was noted so far, with at most one sync of the disk.

        May run in another thread, while nobody calls ``step``, ``receive``, ``connected``,
        ``disconnected`` or ``set_voters``.

        Raises:
            StorageError: when that fails. The node must not be used any more.
        """
        self.storage.sync()
        self.core.synced()
        self._persisted_votes.synced()

    def ready(self) -> Ready:
        """Make everything durable, as ``sync`` does, and return the frames and outcomes to send."""
        self.sync()
        ready = Ready(self._frames.take(), self._resolved)
        self._resolved = []
        return ready

    def next_step_at(self) -> float:
        """Return the instant at which ``step`` is due if nothing happens before."""
        core = self.core
        if self._has_work():
            return self._context.now
        due = min(
            core.next_step_at(),
            self._proposals.next_expiry_at(),
            self._voter_changes.due_at(),
            self._responder.due_at(),
            self._comparison.due_at(),
        )
        return min(due, self._puller.due_at()) + _JUST_AFTER_S

    def _has_work(self) -> bool:
        """Return whether something waits for a step, and for no instant."""
        core = self.core
        last = self.storage.journal.last_index if core.leads_alone else core.commit_index
        waits = self._proposals.waiting or self._resolved or self._frames.waiting
        return bool(waits) or core.applied_index < last

    # --- reading -----------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """True while this server takes itself for the leader."""
        return self.core.state == LEADER

    def peers(self) -> tuple[ServerId, ...]:
        """Return the servers to stay connected to.

        A voter talks to everyone, a server without a vote to the voters and to its source; and one
        that gets no answer from voters, or knows of none, to all that it was told of. A connection
        that is to be made anew ends first.
        """
        everyone = self.core.votes or self._puller.is_lost
        peers = self._contacts.to_connect(everyone=everyone)
        more, source = self._persisted_votes.to_tell(), self._puller.source
        if source and source not in peers:
            more.append(source)
        anew = self._puller.anew | self._persisted_votes.anew
        return tuple(sorted({*peers, *more} - anew)) if more or anew else peers

    def health(self, now: float) -> RaftHealth:
        """Return this server's view of consensus."""
        now = max(now, self._context.now)
        core = self.core
        return RaftHealth(
            role=self.role,
            leader=core.leader,
            term=core.term,
            commit_index=core.commit_index,
            applied_index=core.applied_index,
            voters=core.voters,
            connected=core.connected,
            majority_age_s=self.majority_age_s(now),
            contact_age_s=self._contacts.ages_s(now),
            elections=core.elections,
            diverged=self._comparison.differing,
            unfit=self._unfit(),
            alarm=self._persisted_votes.alarm(),
            refused_by=self._gossip.heard(now),
        )

    def _unfit(self) -> dict[ServerId, str]:
        """Return the voters that cannot be counted on, and why."""
        found, core = self._persisted_votes.unfit(), self.core
        if core.settled:
            far = core.commit_index - self.settings.learner_lag_max
            for voter in core.voters:
                if voter in self._frames and core.match_index(voter) < far:
                    found.setdefault(voter, "it lacks most of the newest entries")
        return found

    def majority_age_s(self, now: float) -> float:
        """Return for how long this server has not been in touch with a majority; see ``health``."""
        if self._comparison.is_leaving:
            return NEVER
        rests = self.core.leads_alone and not self._has_work()
        since = now if rests else min(self._context.now, now)
        return self.core.majority_age_s() + now - since

    @property
    def role(self) -> Role:
        """The part that this server takes itself to have."""
        if not self.core.votes:
            return Role.REMOVED if self._removed else Role.LEARNER
        if self.core.state == LEADER:
            return Role.LEADER
        return Role.CANDIDATE if self.core.state == CANDIDATE else Role.FOLLOWER

    # --- what the core needs (CoreHost) ------------------------------------------------------

    def send(self, peer: ServerId, message: Message) -> None:
        """Queue one message until the next ``ready()``."""
        self._frames.send(peer, message)

    def apply(self, index: int, command: bytes) -> Plain:
        """Apply one committed command.

        A command that cannot be read, or that the rules refuse by an error, gets an error as its
        result on every server (finding L3). Another error may be this server's alone: it stops by
        ApplyError or OutdatedError. The entry is in the log, and applied at the next start.
        """
        try:
            result: Plain = self._machine.apply(index, closed_cbor.decode_command(command))
        except OutdatedError:
            raise
        except Exception as error:
            own = error.__cause__ if isinstance(error, RemoteProtocolError) else None
            if not isinstance(error, GpupoolError) or isinstance(own, _OWN_FAULTS):
                raise ApplyError(index, own or error) from error
            _log.warning("entry %d could not be applied: %s", index, error)
            result = {"error": type(error).__name__}
        self._comparison.applied(index, command, result)
        return result

    def send_snapshot(self, peer: ServerId, *, leading: bool) -> None:
        """Send the next piece of the newest snapshot, if the last one is answered or lost."""
        self._snapshots.send(peer, leading=leading)

    def configuration_changed(self) -> None:
        """Let a server that got its vote stop pulling."""
        self._puller.configuration_changed()

    def excluded(self, by: ServerId) -> None:
        """Pull from the server that says that this one lost its vote, to see for itself."""
        self._puller.excluded(by)

    # --- inside ------------------------------------------------------------------------------

    def _resolve(self, callback: Callable[[Outcome], None], outcome: Outcome) -> None:
        self._resolved.append((callback, outcome))

    def _drop_transfers(self, peer: ServerId) -> None:
        self._snapshots.disconnected(peer)
        self._responder.disconnected(peer)


_NO_VOTERS = Configuration(0, ())
_ABOUT_PROMISES = frozenset({"hello", "refused", "promised"})
