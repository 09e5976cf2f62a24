"""pysyncobj's Raft core, kept in check: the only file that knows pysyncobj.

pysyncobj 0.3.17 as it ships loses acknowledged commits in several reproducible ways, and executes
what any peer sends. What is used of it is its ``SyncObj`` with ``autoTick=False``: the state, the
election timer, the counting of votes and of matches, the commit rule, the order in which entries
are applied. What is overridden, and why, stands at each method, here and in the subclasses:
``elections.py``, ``replication.py`` and ``core.py``, which build on ``LibraryCore``.

**How it is kept in check.**

- A *private copy* of the module ``pysyncobj.syncobj`` is loaded, and only that copy is changed:
  its clock, randomness, journal, poller, serializer and pickle. The package that others may
  import stays as it is.
- At import the sources of all methods that are overridden or relied on are compared with the
  audited ones; another version of the library is refused rather than trusted.
- ``pickle`` is replaced by a closed CBOR codec. None of the remaining code paths reaches it; the
  replacement is there so that one that was overlooked still could not execute anything.

**Time and chance.** The library reads both from module globals. Here these globals look up the
core that is being stepped (a context variable set by ``LibraryCore.stepping``), so that many cores
with clocks and seeds of their own can live in one process.
"""

import hashlib
import importlib.util
import inspect
from collections.abc import Callable
from contextvars import ContextVar, Token
from types import ModuleType
from typing import Any, Protocol, cast
from zlib import crc32

from pysyncobj.node import Node
from pysyncobj.transport import Transport

from gpupool.consensus.core.raft_log import RaftLog
from gpupool.consensus.protocol import closed_cbor
from gpupool.consensus.protocol.membership import Configuration
from gpupool.consensus.protocol.raft_messages import Message
from gpupool.consensus.protocol.raft_settings import ConsensusSettings
from gpupool.consensus.storage.journal import Journal
from gpupool.pool.model.ids import Plain, ServerId
from gpupool.pool.ports import Randomness

FOLLOWER, CANDIDATE, LEADER = 0, 1, 2
COMMAND_TYPE = b"\x00"
BARRIER_TYPE = b"\x01"
NEVER = float("inf")

# First 16 hex digits of the SHA-256 of each method's source in pysyncobj 0.3.17, for the methods
# that are overridden (their callers rely on what they do) and those that run as they are.
AUDITED = {
    "__init__": "09df12cd7fd7d727",
    "_onTick": "cc9eb08232d005ba",
    "_checkCommandsToApply": "a386a8079361d204",
    "_applyCommand": "827f207d515b2d64",
    "_doDestroy": "8a6c9f892614a4b9",
    "_SyncObj__applyLogEntries": "073db677773b5a2d",
    "_SyncObj__doApplyCommand": "1ea7aa506e950d0a",
    "_SyncObj__onMessageReceived": "ddfe34b6c0282179",
    "_SyncObj__callErrCallback": "6037c14ef64c2763",
    "_SyncObj__sendNextNodeIdx": "68aaeefc267b8896",
    "_SyncObj__generateRaftTimeout": "92ed37d3620e781a",
    "_SyncObj__onNodeConnected": "2655afb481b4c69b",
    "_SyncObj__onNodeDisconnected": "a81c0475ba2218cc",
    "_SyncObj__getCurrentLogIndex": "e5af22ca246686bd",
    "_SyncObj__getCurrentLogTerm": "1cb8867e6a13d397",
    "_SyncObj__getPrevLogIndexTerm": "6766914806ae2311",
    "_SyncObj__getEntries": "e29c4b33293b2101",
    "_SyncObj__deleteEntriesFrom": "3b23c411bb903d36",
    "_SyncObj__deleteEntriesTo": "b7b29988856a66b3",
    "_SyncObj__onBecomeLeader": "5a3fd97bc17dc1cf",
    "_SyncObj__setCurrentTerm": "0ad5bf456ac06bd3",
    "_SyncObj__setState": "2c1f239f7bd79b39",
    "_SyncObj__onLeaderChanged": "53b7685e1d897887",
    "_SyncObj__sendAppendEntries": "9cb9073128c392fa",
    "_SyncObj__connectedToAnyone": "acd40e9e3ac6c4cc",
    "_SyncObj__changeCluster": "66b42884f9d2dbd1",
    "_SyncObj__doChangeCluster": "247d4d4101b8cd3c",
    "_SyncObj__parseChangeClusterRequest": "b2d5d695b12e592f",
    "_SyncObj__tryLogCompaction": "c2f8a0ec14cc7312",
    "_SyncObj__loadDumpFile": "ec66e83905de703b",
    "_SyncObj__updateClusterConfiguration": "e2de42f3d1a46c96",
    "_SyncObj__onSetCodeVersion": "17b050edb193c853",
    "_isLeader": "56c32c31db26cdc0",
}


class _Active:
    """The clock and the randomness of the core that is being stepped."""

    __slots__ = ("_tokens", "now", "randomness")

    def __init__(self, randomness: Randomness) -> None:
        self.now = 0.0
        self.randomness = randomness
        self._tokens: list[Token[_Active]] = []  # of this core's ``with`` blocks, the inner last

    def __enter__(self) -> None:
        self._tokens.append(_ACTIVE.set(self))

    def __exit__(self, *_error: object) -> None:
        _ACTIVE.reset(self._tokens.pop())


_ACTIVE: ContextVar[_Active] = ContextVar("the core that is being stepped")


class _LibraryRng:
    """What the library's module global ``random`` becomes."""

    def random(self) -> float:
        return _ACTIVE.get().randomness.random()


class _NoPoller:
    """What the library's poller becomes: there are no sockets here."""

    def poll(self, _timeout_s: float) -> None:
        return


class _NoSerializer:
    """What the library's snapshot writer becomes: ``snapshot.py`` does that work."""

    def __init__(self, *_arguments: object) -> None:
        return


class _ClosedPickle:
    """What the library's ``pickle`` becomes: plain values as strict CBOR, nothing executable."""

    def dumps(self, value: Plain, protocol: int | None = None) -> bytes:
        del protocol
        return closed_cbor.encode(value)

    def loads(self, data: bytes) -> Plain:
        return closed_cbor.decode(data)


def _load_library() -> ModuleType:
    """Return a copy of ``pysyncobj.syncobj`` that nobody else can see, with our globals in it."""
    spec = importlib.util.find_spec("pysyncobj.syncobj")
    if spec is None or spec.loader is None:
        raise ImportError("pysyncobj is not installed")
    library = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(library)
    replacements: dict[str, object] = {
        "monotonicTime": lambda: _ACTIVE.get().now,
        "random": _LibraryRng(),
        "pickle": _ClosedPickle(),
        "createJournal": lambda journal: journal,  # type: ignore[reportUnknownLambdaType]
        "createPoller": lambda _kind: _NoPoller(),  # type: ignore[reportUnknownLambdaType]
        "Serializer": _NoSerializer,
        "PIPE_NOTIFIER_ENABLED": False,
    }
    for name, replacement in replacements.items():
        if not hasattr(library, name):
            raise ImportError(f"pysyncobj has no {name}: this is not version 0.3.17")
        setattr(library, name, replacement)
    return library


def check_library(base: type) -> None:
    """Raise ``ImportError`` unless all audited methods of ``base`` are those of 0.3.17."""
    for name, expected in AUDITED.items():
        method = base.__dict__.get(name)
        source = inspect.getsource(method) if inspect.isfunction(method) else ""
        digest = hashlib.sha256(source.encode()).hexdigest()
        if not digest.startswith(expected):
            raise ImportError(
                f"pysyncobj's {name} is not the audited one of version 0.3.17; "
                "install pysyncobj==0.3.17"
            )


_library = _load_library()
_SyncObj: Any = _library.SyncObj
check_library(_SyncObj)


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
    """What the core needs from the node around it."""

    def send(self, peer: ServerId, message: Message) -> None:
        """Queue one message; it leaves only after the journal's next sync."""
        ...

    def apply(self, index: int, command: bytes) -> Plain:
        """Apply one committed command."""
        ...

    def send_snapshot(self, peer: ServerId, *, leading: bool) -> None:
        """Continue to send the newest snapshot to a peer whose entries are gone here."""
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
    _SyncObj__otherNodes: set[Peer]
    _SyncObj__connectedNodes: set[Peer]
    _SyncObj__commandsWaitingCommit: dict[int, list[tuple[int, Callable[[Any, int], None]]]]

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
    ) -> None:
        self._active = _Active(randomness)
        self._host = host
        self._journal = journal
        self._settings = settings
        self._peers: dict[ServerId, Peer] = {}
        self._connected: tuple[Peer, ...] = ()
        self._sorted_others: tuple[object, list[Peer]] = (None, [])
        self.server_id = server_id
        self._log = RaftLog(journal, base)
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

    @property
    def voters(self) -> tuple[ServerId, ...]:
        """The voters in force: those of the latest configuration in the log."""
        return self.configurations.current.voters

    @property
    def votes(self) -> bool:
        """True when this server is a voter."""
        return self.server_id in self.configurations.current.voters

    @property
    def term(self) -> int:
        """The current term."""
        return self._SyncObj__raftCurrentTerm

    @property
    def state(self) -> int:
        """FOLLOWER, CANDIDATE or LEADER."""
        return self._SyncObj__raftState

    @property
    def leader(self) -> ServerId | None:
        """The leader, as far as this server knows."""
        node = self._SyncObj__raftLeader
        return None if node is None else node.name

    @property
    def commit_index(self) -> int:
        """The index up to which the log is committed, as far as this server knows."""
        return self._SyncObj__raftCommitIndex

    @property
    def applied_index(self) -> int:
        """The index up to which the log is applied here."""
        return self._SyncObj__raftLastApplied

    @property
    def connected(self) -> tuple[ServerId, ...]:
        """The peers with a connection, sorted."""
        nodes = self._SyncObj__connectedNodes
        if len(nodes) != len(self._connected) or not nodes.issuperset(self._connected):
            self._connected = tuple(sorted(nodes, key=_peer_id))
        return tuple([node.name for node in self._connected])

    def is_connected(self, peer: ServerId) -> bool:
        """Tell whether there is a connection with ``peer``."""
        return self._peer(peer) in self._SyncObj__connectedNodes

    @property
    def settled(self) -> bool:
        """True when a leader has committed an entry of its own term, and no change is pending."""
        committed = self.commit_index
        return (
            self.state == LEADER
            and (self._SyncObj__noopIDx or 0) <= committed
            and self.configurations.current.index <= committed
        )

    # --- stepping ----------------------------------------------------------------------------

    def stepping(self, now: float) -> "_Active":
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
            _SyncObj._onTick(self, 0.0)

    def library_receives(self, node: Peer, message: Message) -> None:
        """Let the library handle a request for a vote, or a vote."""
        _SyncObj._SyncObj__onMessageReceived(self, node, message)

    def library_becomes_leader(self) -> None:
        """Let the library begin a leadership: with an entry of its own."""
        _SyncObj._SyncObj__onBecomeLeader(self)

    def forward_to_host(self, node: Peer, message: Message) -> None:
        """Pass on what the library itself sends: requests for votes, and votes."""
        self._host.send(node.name, message)

    def receive(self, sender: ServerId, message: Message) -> None:
        """Take one message of a connected peer, decoded and checked."""
        raise NotImplementedError

    # --- overridden methods of the library ---------------------------------------------------

    def _SyncObj__doApplyCommand(self, command: bytes) -> Plain:
        """Apply an entry; replaces unpickling and calling a method by number (finding L3)."""
        if command[:1] != COMMAND_TYPE:
            return None
        return self._host.apply(self._SyncObj__raftLastApplied + 1, command[1:])

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

    def _postpone_election(self) -> None:
        spread = self._settings.election_max_s - self._settings.election_min_s
        timeout = self._settings.election_min_s + spread * self._active.randomness.random()
        self._SyncObj__raftElectionDeadline = self._active.now + timeout

    def _forget_leader(self) -> None:
        self._SyncObj__raftLeader = None

    def _step_down(self, term: int) -> None:
        self._SyncObj__setCurrentTerm(term, None)
        self._SyncObj__setState(FOLLOWER)
        self._forget_leader()


def _peer_id(peer: Peer) -> str:
    return peer.name


def _library_settings(log: _LibraryLog, settings: ConsensusSettings) -> Any:
    """Return the library's settings, every one that matters stated rather than left to default."""
    return _library.SyncObjConf(
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
