"""pysyncobj's Raft core, kept in check: only this and its private copy know pysyncobj.

pysyncobj 0.3.17 as it ships loses acknowledged commits in several reproducible ways, and executes
code that any peer sends. This core uses its ``SyncObj`` with ``autoTick=False``: the state, the
election timer, the counting of votes and of matches, the commit rule, the order in which entries
are applied. Each overriding method says why it overrides, here and in the subclasses:
``raft_core.py``, which builds on ``LibraryCore``.

``library_copy.py`` loads the private copy of the library and checks that it is the audited version.
It says how time, chance and pickle are kept in check.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Protocol, cast
from zlib import crc32

from pysyncobj.node import Node
from pysyncobj.transport import Transport

from gpupool.consensus.core import library_copy
from gpupool.consensus.core.punctuality import Lateness
from gpupool.consensus.core.raft_log import RaftLog, SafetyError
from gpupool.consensus.protocol.membership import Configuration
from gpupool.consensus.protocol.raft_messages import Message
from gpupool.consensus.protocol.raft_settings import (
    APPLIED_AT_ONCE_MAX,
    APPLYING_S_MAX,
    ConsensusSettings,
)
from gpupool.consensus.storage.journal import Journal
from gpupool.pool.model.ids import Plain, ServerId
from gpupool.pool.ports import Randomness

FOLLOWER, CANDIDATE, LEADER = 0, 1, 2
COMMAND_TYPE = b"\x00"
BARRIER_TYPE = b"\x01"
NEVER = float("inf")

_SyncObj: Any = library_copy.LIBRARY.SyncObj


class Peer(Node):
    """A server as the library knows it, with a hash that is the same in every process.

    The library iterates over sets of nodes, and the order of a set follows from the hashes.
    """

    def __init__(self, server_id: ServerId) -> None:
        super().__init__(server_id)  # pyright: ignore[reportUnknownMemberType]
        self.name = server_id
        self._hash = crc32(server_id.encode())

    def __hash__(self) -> int:
        return self._hash


class _LibraryLog:
    """The journal, under the names that the library calls."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._entries = journal.entries
        self.add = journal.append
        self.setCurrentTerm = journal.set_vote

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, position: Any) -> Any:
        entries: Any = self._entries
        return entries[position]

    def getCurrentTerm(self) -> int:
        return self._journal.term

    def getVotedForNodeId(self) -> str | None:
        return self._journal.vote

    def getRaftCommitIndex(self) -> int:
        # What the base covers lives in a snapshot, and only committed entries do.
        return self._journal.base_index

    def setRaftCommitIndex(self, index: int) -> None:
        """Do nothing: after a start the commit index is learnt anew, from the leader."""

    def onOneSecondTimer(self) -> None:
        self._journal.seal()


class CoreHost(Protocol):
    """The node around the core, as the core calls it."""

    def send(self, peer: ServerId, message: Message) -> None:
        """Queue one message; unless ``may_leave_early``, it waits for the journal's next sync."""
        ...

    def apply(self, index: int, command: bytes) -> Plain:
        """Apply one committed command."""
        ...

    def send_snapshot(self, peer: ServerId, *, leading: bool) -> None:
        """Continue to send the newest snapshot to a peer that needs compacted log entries."""
        ...

    def configuration_changed(self) -> None:
        """Take notice that other servers vote now."""
        ...

    def excluded(self, by: ServerId) -> None:
        """Take notice that ``by`` says that this server has no vote any more."""
        ...


class _Links(Transport):
    """The library's transport, which hands everything to the host."""

    def __init__(self, core: "LibraryCore") -> None:
        super().__init__(None, None, [])
        self._core = core

    def send(self, node: Node, message: Message) -> bool:
        self._core.forward_to_host(cast("Peer", node), message)
        return True


def _read(name: str) -> Any:
    """Return a property that reads ``name``, which may have dots: each turn asks for dozens."""
    return property(attrgetter(name))


class LibraryCore(_SyncObj):  # pyright: ignore[reportUntypedBaseClass]
    """One server's Raft state. Stepped by ``RaftNode`` only; no I/O, no clock, no chance.

    The library's private attributes are declared here under their mangled names. Its ``Node`` is
    used only at its own boundary; everywhere else a server is its ``ServerId``.
    """

    _SyncObj__raftState: int
    _SyncObj__raftCurrentTerm: int
    _SyncObj__votedForNodeId: str | None
    _SyncObj__raftLeader: Peer | None
    _SyncObj__startTime: float
    _SyncObj__numOneSecondDumps: int
    _SyncObj__raftElectionDeadline: float
    _SyncObj__raftCommitIndex: int
    _SyncObj__raftLastApplied: int
    _SyncObj__raftNextIndex: dict[Peer, int]
    _SyncObj__raftMatchIndex: dict[Peer, int]
    _SyncObj__lastResponseTime: dict[Peer, float]
    _SyncObj__newAppendEntriesTime: float
    _SyncObj__noopIDx: int | None
    _SyncObj__conf: Any
    _SyncObj__otherNodes: set[Peer]
    _SyncObj__connectedNodes: set[Peer]
    _SyncObj__commandsWaitingCommit: dict[int, list[tuple[int, Callable[[Any, int], None]]]]

    _commit_limit: int | None = None  # of the library's round, while it runs

    def __init__(
        self,
        server_id: ServerId,
        *,
        journal: Journal,
        base: Configuration,
        applied_index: int,
        host: CoreHost,
        randomness: Randomness,
        settings: ConsensusSettings,
        now: float,
        stopwatch: Callable[[], float],
    ) -> None:
        self._stopwatch = stopwatch
        self._active = library_copy.Stepping(randomness)
        self._lateness = Lateness()
        self._may_be_late = True  # the next election that is due: see ``_defer_election``
        self._host = host
        self._journal = journal
        self._settings = settings
        self._peers: dict[ServerId, Peer] = {}
        self._connected: tuple[Peer, ...] = ()
        self._sorted_others: tuple[object, list[Peer]] = (None, [])
        self.server_id = server_id
        self._log = RaftLog(journal, base)
        self.synced_index = journal.last_index
        """The index up to which the log is on this server's disk."""
        self.configurations = self._log.configurations
        with self.stepping(now):
            _SyncObj.__init__(
                self,
                self._peer(server_id),
                [self._peer(voter) for voter in self.voters if voter != server_id],
                _library_settings(_LibraryLog(journal), settings),
                nodeClass=Peer,
                transport=_Links(self),
            )
            # The library takes the base for applied; a snapshot reaches further (finding S1).
            self._SyncObj__raftLastApplied = max(applied_index, journal.base_index)
            self._SyncObj__raftCommitIndex = self._SyncObj__raftLastApplied

    # --- reading -----------------------------------------------------------------------------

    voters: tuple[ServerId, ...] = _read("configurations.current.voters")
    """The voters in force: those of the latest configuration in the log."""
    term: int = _read("_SyncObj__raftCurrentTerm")
    state: int = _read("_SyncObj__raftState")
    """FOLLOWER, CANDIDATE or LEADER."""
    commit_index: int = _read("_SyncObj__raftCommitIndex")
    """The index up to which the log is committed, as far as this server knows."""
    applied_index: int = _read("_SyncObj__raftLastApplied")
    """The index up to which the log is applied here."""

    @property
    def votes(self) -> bool:
        """True when this server is a voter."""
        return self.server_id in self.configurations.current.voters

    @property
    def leader(self) -> ServerId | None:
        """The leader, as far as this server knows."""
        node = self._SyncObj__raftLeader
        return None if node is None else node.name

    @property
    def connected(self) -> tuple[ServerId, ...]:
        """The peers with a connection, sorted."""
        nodes = self._SyncObj__connectedNodes
        if len(nodes) != len(self._connected) or not nodes.issuperset(self._connected):
            self._connected = tuple(sorted(nodes, key=_peer_id))
        return tuple([node.name for node in self._connected])

    @property
    def settled(self) -> bool:
        """True for a leader with a committed entry of its term and no pending membership change."""
        committed = self.commit_index
        return (
            self.state == LEADER
            and (self._SyncObj__noopIDx or 0) <= committed
            and self.configurations.current.index <= committed
        )

    # --- stepping ----------------------------------------------------------------------------

    def stepping(self, now: float) -> library_copy.Stepping:
        """Make this core's clock and randomness the ones that the library sees, in a ``with``."""
        if now > self._active.now:
            self._active.now = now
        return self._active

    def library_tick(self) -> None:
        """Let the library do its round: election, commit, apply, heartbeats.

        Most steps of a follower take a frame that changes none of that: the audited round would
        do nothing then, and is not called.
        """
        now = self._active.now
        if (
            self._SyncObj__raftState == LEADER
            or self._SyncObj__raftCommitIndex > self._SyncObj__raftLastApplied
            or self._SyncObj__raftElectionDeadline < now
            or now - self._SyncObj__startTime > self._SyncObj__numOneSecondDumps
        ):
            leads = self._SyncObj__raftState == LEADER
            self._commit_limit = self._durable_on_majority() if leads else self.commit_index
            if leads:
                self._allow_for_lateness()
            try:
                _SyncObj._onTick(self, 0.0)
            finally:
                self._commit_limit = None

    def _allow_for_lateness(self) -> None:
        """Let a leader that was late itself hear answers before it gives up its office.

        What it tells others and serves meanwhile is as old as its table is.
        """
        now = self._active.now
        if self._SyncObj__otherNodes:  # the only voter rests meanwhile
            self._lateness.note(now - self._SyncObj__newAppendEntriesTime, now)
        fallback_s = self._settings.leader_fallback_s + self._slack_s()
        self._SyncObj__conf.leaderFallbackTimeout = fallback_s

    def synced(self) -> None:
        """Take notice that the whole journal is on this server's disk."""
        self.synced_index = self._journal.last_index

    def _durable_on_majority(self) -> int:
        """Return the index up to which a majority of the voters has the log on its disks.

        The library counts a leader's own entries as soon as they are in its log. They count here
        once they are synced, so that a single voter acts on nothing that a power loss undoes.
        """
        indices = [self._SyncObj__raftMatchIndex[peer] for peer in self._SyncObj__otherNodes]
        indices.append(self.synced_index)
        indices.sort(reverse=True)
        return indices[len(indices) // 2]

    def library_receives(self, node: Peer, message: Message) -> None:
        """Let the library handle a request for a vote, or a vote."""
        _SyncObj._SyncObj__onMessageReceived(self, node, message)

    def library_becomes_leader(self) -> None:
        """Begin a leadership with the library's no-op entry at the end of the log."""
        limit, self._commit_limit = self._commit_limit, None
        _SyncObj._SyncObj__onBecomeLeader(self)
        self._commit_limit = limit

    def forward_to_host(self, node: Peer, message: Message) -> None:
        """Pass the library's vote requests and votes to the host."""
        self._host.send(node.name, message)

    def receive(self, sender: ServerId, message: Message) -> None:
        """Take one message of a connected peer, decoded and checked."""
        raise NotImplementedError

    # --- overridden methods of the library ---------------------------------------------------

    def _SyncObj__applyLogEntries(self) -> Any:
        """Apply some committed entries; the next steps apply the rest.

        A server that was away would apply a second's worth of commands in one step.

        Raises:
            SafetyError: when the log ends before what is committed. The library would try to
                apply the rest for ever, at every step.
        """
        commit_index = self._SyncObj__raftCommitIndex
        if commit_index > self._journal.last_index:
            raise SafetyError(
                f"entry {commit_index} is committed, and the log here ends at "
                f"{self._journal.last_index}",
                hint="the log of this server is damaged, or it is a bug of gpupool: let it join "
                "anew with an empty --state-dir (gpupool rejoin)",
            )
        bound = min(commit_index, self._SyncObj__raftLastApplied + APPLIED_AT_ONCE_MAX)
        # A new leader changes the voters as its table wants, which is not current before.
        is_new = self.state == LEADER and self.applied_index < (self._SyncObj__noopIDx or 0)
        end = NEVER if is_new else self._stopwatch() + APPLYING_S_MAX
        send = False
        try:
            while self._SyncObj__raftLastApplied < bound:
                self._SyncObj__raftCommitIndex = self._SyncObj__raftLastApplied + 1
                send = _SyncObj._SyncObj__applyLogEntries(self)
                if self._stopwatch() >= end:
                    break
        finally:
            self._SyncObj__raftCommitIndex = commit_index
        return send

    def _SyncObj__doApplyCommand(self, command: bytes) -> Plain:
        """Apply an entry; replaces unpickling and calling a method by number (finding L3)."""
        if command[:1] != COMMAND_TYPE:
            return None
        return self._host.apply(self._SyncObj__raftLastApplied + 1, command[1:])

    def _SyncObj__getCurrentLogIndex(self) -> int:
        """Return where the log ends; to a leader's commit rule, where it ends for a majority."""
        last, limit = self._journal.last_index, self._commit_limit
        return last if limit is None or self._SyncObj__raftState != LEADER else min(last, limit)

    def _SyncObj__onMessageReceived(self, node: Peer, message: Message) -> None:
        """Dispatch to the handlers above; the library's own runs for votes only."""
        self.receive(node.name, message)

    def _checkCommandsToApply(self) -> None:
        """Leave the library's queue alone: commands expire, which it knows nothing about."""

    def _applyCommand(self, command: bytes, callback: object, commandType: object = None) -> None:
        raise NotImplementedError("commands enter through RaftNode.propose")

    def _SyncObj__tryLogCompaction(self) -> None:
        """Leave snapshots to RaftNode (findings S1, S2)."""

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:
        raise NotImplementedError("snapshots are installed by RaftNode")

    def _SyncObj__changeCluster(self, request: object) -> bool:
        raise NotImplementedError("voters are changed by set_voters")

    def _SyncObj__doChangeCluster(self, request: object, reverse: bool = False) -> bool:
        raise NotImplementedError("voters are changed by set_voters")

    # --- for the subclasses ------------------------------------------------------------------

    def _peer(self, server_id: ServerId) -> Peer:
        """Return a server as the library knows it: one object for each, compared by identity."""
        peer = self._peers.get(server_id)
        if peer is None:
            peer = self._peers[server_id] = Peer(server_id)
        return peer

    def _others(self) -> list[Peer]:
        """Return the other voters, always in the same order."""
        known, others = self._sorted_others
        if known is not self._SyncObj__otherNodes:  # a new set whenever the voters change
            others = sorted(self._SyncObj__otherNodes, key=_peer_id)
            self._sorted_others = (self._SyncObj__otherNodes, others)
        return others

    def _slack_s(self) -> float:
        """Return how much longer to wait than the settings say, on a machine that is busy."""
        late_s = self._lateness.recent_s(self._active.now)
        # The settings allow for a little by themselves: three heartbeats in the shortest timeout.
        return max(1.5 * late_s - self._settings.election_min_s / 2, 0.0)

    def _postpone_election(self) -> None:
        self._may_be_late = True
        spread = self._settings.election_max_s - self._settings.election_min_s
        timeout = self._settings.election_min_s + spread * self._active.randomness.random()
        self._SyncObj__raftElectionDeadline = self._active.now + timeout + self._slack_s()

    def _forget_leader(self) -> None:
        self._SyncObj__raftLeader = None


def _peer_id(peer: Peer) -> str:
    return peer.name


def _library_settings(log: _LibraryLog, settings: ConsensusSettings) -> Any:
    """Return the library's settings, every one that matters stated rather than left to default."""
    return library_copy.LIBRARY.SyncObjConf(
        autoTick=False,
        appendEntriesUseBatch=True,
        appendEntriesPeriod=settings.heartbeat_s,
        raftMinTimeout=settings.election_min_s,
        raftMaxTimeout=settings.election_max_s,
        leaderFallbackTimeout=settings.leader_fallback_s,
        connectionTimeout=60.0,  # Only checked against raftMaxTimeout; the transport is ours.
        commandsWaitLeader=False,
        dynamicMembershipChange=True,
        journalFile=log,
        fullDumpFile=None,
        useFork=False,
        tcp_keepalive=None,
    )
