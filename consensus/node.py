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

**Proposals** are commands of this server on their way into the log, and those that other servers
forward (``ProposalQueue``). A proposal here is one attempt. It gets exactly one outcome, within the
time that its caller gave it; to attempt a command again is the affair of the caller
(``remoting/server/proposer.py``). Its states and events::

    state      drain, leader       drain, other          expire         answer of the leader
    queued     appended            forwarded, or         NotCommitted   -
               or NotCommitted     NotCommitted
    forwarded  Unknown (*)         Unknown (*)           Unknown        appended, or NotCommitted
    appended   -                   -                     Unknown        -

(*) when the leader or the term is another than that to which it was forwarded.

An appended proposal is decided when the entry at its index is applied: ``Committed`` when it is
this one, ``NotCommitted`` when another leader's took its place, ``Unknown`` when a snapshot covers
the place. ``NotCommitted`` while queued comes from a full queue, too many uncommitted entries, a
leader that hands over, or no connected leader.

What is never true of them:

- A proposal that was decided is appended: ``drain`` skips it.
- A command is appended after its deadline, by anyone: a follower tells the leader the deadline on
  the leader's own clock, and errs on the early side.
- A proposal that was sent is called ``NotCommitted`` on the word of the clock: once it is appended
  or forwarded, only the log or the leader can rule it out.
- A command enters the log on a peer's word without being readable here, or with a time that
  ``clock_refusal`` does not take.
"""

import heapq
import itertools
import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from enum import Enum
from typing import NamedTuple

from gpupool.consensus.core.library import BARRIER_TYPE, CANDIDATE, COMMAND_TYPE, LEADER, NEVER
from gpupool.consensus.core.raft_core import RaftCore
from gpupool.consensus.followers import Puller, PullResponder
from gpupool.consensus.gossip import Gossip
from gpupool.consensus.node_context import NodeContext
from gpupool.consensus.peer_frames import PeerFrames
from gpupool.consensus.persisted_votes import PersistedVotes
from gpupool.consensus.protocol import closed_cbor
from gpupool.consensus.protocol.membership import Configuration
from gpupool.consensus.protocol.raft_messages import Message
from gpupool.consensus.protocol.raft_settings import (
    COMMAND_BYTES_MAX,
    QUEUE_COMMANDS_MAX,
    UNCOMMITTED_ENTRIES_MAX,
    ConsensusSettings,
)
from gpupool.consensus.snapshot_transfer import RunWork, SnapshotTransfer, Work, run_at_once
from gpupool.consensus.storage.journal import Journal
from gpupool.consensus.storage.peer_memory import Start
from gpupool.consensus.storage.store import Storage
from gpupool.consensus.table_comparison import ApplyError, TableComparison
from gpupool.consensus.voter_changes import VoterChanges
from gpupool.pool.errors import GpupoolError, RemoteProtocolError
from gpupool.pool.model.formats import OutdatedError
from gpupool.pool.model.ids import Plain, ServerId
from gpupool.pool.ports import (
    NotCommitted,
    Outcome,
    RaftHealth,
    Randomness,
    Refusal,
    Role,
    StateMachine,
    Unknown,
)

Callback = Callable[[Outcome], None]


class ForwardRefusal(Enum):
    """Why a leader refuses a forwarded command; the values travel as they stand here."""

    NOT_LEADER = "the server asked does not lead any more"
    LATE = "the time was up before it could be appended"
    UNREADABLE = "the command cannot be read"
    CLOCK = "the command's time is ahead of the voters' clocks"


class _Leadership(NamedTuple):
    """The leader that the open forwarded commands went to, and its term."""

    leader: ServerId | None
    term: int


class _Proposal:
    """A command of this server until its outcome is known."""

    __slots__ = ("callback", "command", "decided", "expires_at", "plain", "sent")

    def __init__(self, command: bytes, plain: Plain, expires_at: float, callback: Callback) -> None:
        self.command = command
        self.plain = plain
        self.expires_at = expires_at
        self.callback = callback
        self.sent = False  # Appended here, or forwarded: it may be committed one day.
        self.decided = False


class ProposalQueue:
    """The queue of one node; stepped by ``RaftNode`` only, in the node's own time."""

    def __init__(
        self,
        core: RaftCore,
        journal: Journal,
        *,
        send: Callable[[ServerId, Message], None],
        is_connected: Callable[[ServerId], bool],
        is_handing_over: Callable[[], bool],
        resolved: Callable[[Callback, Outcome], None],
        clock_refusal: Callable[[Plain], str | None],
    ) -> None:
        """Make an empty queue.

        Args:
            core: whose log it is about.
            journal: of that log.
            send: queues a message to a peer.
            is_connected: whether there is a connection with a peer.
            is_handing_over: whether nothing may be appended, because another server is to lead.
            resolved: takes each outcome, for the callback that it is for.
            clock_refusal: why a leader must not append a command for the time that it carries.
        """
        self._core = core
        self._journal = journal
        self._send = send
        self._is_connected = is_connected
        self._is_handing_over = is_handing_over
        self._resolved = resolved
        self._clock_refusal = clock_refusal
        self._queue: deque[_Proposal] = deque()
        self._undecided = 0
        self._expiries: list[tuple[float, int, _Proposal]] = []
        self._numbers = itertools.count(1)
        self._forwarded: dict[int, _Proposal] = {}
        self._forwarded_to = _Leadership(None, 0)

    @property
    def waiting(self) -> bool:
        """True while something waits to be appended or forwarded."""
        return bool(self._queue)

    def next_expiry_at(self) -> float:
        """Return the instant at which the next one runs out of time."""
        return self._expiries[0][0] if self._expiries else NEVER

    def propose(self, command: Plain, now: float, ttl_s: float, callback: Callback) -> None:
        """Queue a command; one that is not plain or too large is refused at once."""
        try:
            data = closed_cbor.encode(command)
        except TypeError as error:
            reason = f"the command is not plain: {error}"
            self._resolved(callback, NotCommitted(reason, Refusal.COMMAND))
            return
        if len(data) > COMMAND_BYTES_MAX:
            reason = f"the command has {len(data)} bytes; at most {COMMAND_BYTES_MAX} are allowed"
            self._resolved(callback, NotCommitted(reason, Refusal.COMMAND))
            return
        self._enqueue(COMMAND_TYPE + data, command, now, ttl_s, callback)

    def barrier(self, now: float, ttl_s: float, callback: Callback) -> None:
        """Queue an entry without effect."""
        self._enqueue(BARRIER_TYPE, None, now, ttl_s, callback)

    def _enqueue(
        self, command: bytes, plain: Plain, now: float, ttl_s: float, callback: Callback
    ) -> None:
        if self._undecided >= QUEUE_COMMANDS_MAX:
            reason = f"{QUEUE_COMMANDS_MAX} commands of this server are waiting already"
            self._resolved(callback, NotCommitted(reason))
            return
        proposal = _Proposal(command, plain, now + ttl_s, callback)
        self._undecided += 1
        self._queue.append(proposal)
        heapq.heappush(self._expiries, (proposal.expires_at, next(self._numbers), proposal))

    def _decide(self, proposal: _Proposal, outcome: Outcome) -> None:
        if not proposal.decided:
            proposal.decided = True
            self._undecided -= 1
            self._resolved(proposal.callback, outcome)

    def expire(self, now: float) -> None:
        """Resolve proposals past their deadline, so that no caller waits longer than it asked."""
        while self._expiries and (self._expiries[0][0] <= now or self._expiries[0][2].decided):
            _, _, proposal = heapq.heappop(self._expiries)
            if proposal.sent:
                self._decide(proposal, Unknown("no answer in time"))
            else:
                self._decide(proposal, NotCommitted("the time was up before it could be sent"))

    def drain(self) -> None:
        """Append or forward queued proposals; give up those forwarded to a former leader."""
        core = self._core
        if self._forwarded and self._forwarded_to != (core.leader, core.term):
            for proposal in self._forwarded.values():
                self._decide(proposal, Unknown("the leader changed"))
            self._forwarded.clear()
        while self._queue:
            proposal = self._queue.popleft()
            if proposal.decided:
                continue
            if core.state == LEADER:
                self._append(proposal)
            else:
                self._forward(proposal)

    def _append(self, proposal: _Proposal) -> None:
        if (reason := self._refusal()) is not None:
            self._decide(proposal, NotCommitted(reason))
            return
        if (reason := self._clock_refusal(proposal.plain)) is not None:
            self._decide(proposal, NotCommitted(reason, Refusal.CLOCK))
            return
        proposal.sent = True
        self._core.append(proposal.command, lambda outcome: self._decide(proposal, outcome))

    def _forward(self, proposal: _Proposal) -> None:
        core = self._core
        leader = core.leader
        if leader is None or not self._is_connected(leader):
            self._decide(proposal, NotCommitted("no leader is known"))
            return
        number = next(self._numbers)
        proposal.sent = True
        self._forwarded[number] = proposal
        self._forwarded_to = _Leadership(leader, core.term)
        message: Message = {
            "type": "forward",
            "term": core.term,
            "request_id": number,
            "command": proposal.command,
            "deadline_ms": max(core.leader_clock_ms(proposal.expires_at), 0),
        }
        self._send(leader, message)

    def on_forward(self, peer: ServerId, message: Message) -> None:
        """Append a command forwarded by another server, or answer with the refusal."""
        core = self._core
        refused = self._refusal()
        if core.state != LEADER or message["term"] != core.term:
            refused = ForwardRefusal.NOT_LEADER.value
        elif message["deadline_ms"] <= core.clock_ms():
            refused = ForwardRefusal.LATE.value
        elif refused is None:
            refused = self._content_refusal(message["command"])
        index, term = (0, 0) if refused else core.append(message["command"], None)
        answer: Message = {
            "type": "forward_response",
            "request_id": message["request_id"],
            "log_idx": index,
            "log_term": term,
            "refused": refused,
        }
        self._send(peer, answer)

    def on_forward_response(self, peer: ServerId, message: Message) -> None:
        """Handle the leader's answer to a forwarded proposal."""
        if peer != self._forwarded_to.leader:
            return
        proposal = self._forwarded.pop(message["request_id"], None)
        if proposal is None:
            return
        if message["refused"] is not None:
            kind = _REFUSALS.get(message["refused"], Refusal.NOT_NOW)
            self._decide(proposal, NotCommitted(message["refused"], kind))
            return
        self._core.await_commit(
            message["log_idx"],
            message["log_term"],
            lambda outcome: self._decide(proposal, outcome),
        )

    def _content_refusal(self, command: bytes) -> str | None:
        """Return why one command, or barrier, must not enter the log on a peer's behalf."""
        if command == BARRIER_TYPE:
            return None
        if command[:1] != COMMAND_TYPE or len(command) > COMMAND_BYTES_MAX + 1:
            return ForwardRefusal.UNREADABLE.value
        try:
            plain = closed_cbor.decode_command(command[1:])
        except RemoteProtocolError:
            return ForwardRefusal.UNREADABLE.value
        return ForwardRefusal.CLOCK.value if self._clock_refusal(plain) is not None else None

    def _refusal(self) -> str | None:
        waiting = self._journal.last_index - self._core.commit_index
        if waiting >= UNCOMMITTED_ENTRIES_MAX:
            return f"{waiting} commands wait for a majority already"
        if self._is_handing_over():
            return "the leader is handing over"
        return None


_REFUSALS = {
    ForwardRefusal.UNREADABLE.value: Refusal.COMMAND,
    ForwardRefusal.CLOCK.value: Refusal.CLOCK,
}


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
