"""The Raft core: pysyncobj's, with every unsafe method overridden; nothing else knows pysyncobj.

pysyncobj 0.3.17 as it ships loses acknowledged commits in several reproducible ways, and executes
what any peer sends. What is used of it is its ``SyncObj`` with ``autoTick=False``: the state, the
election timer, the counting of votes and of matches, the commit rule, the order in which entries
are applied. What is overridden, and why, stands at each method below.

**How it is kept in check.**

- A *private copy* of the module ``pysyncobj.syncobj`` is loaded, and only that copy is changed:
  its clock, randomness, journal, poller, serializer and pickle. The package that others may
  import stays as it is.
- At import the sources of all methods that are overridden or relied on are compared with the
  audited ones; another version of the library is refused rather than trusted.
- ``pickle`` is replaced by a closed CBOR codec. None of the remaining code paths reaches it; the
  replacement is there so that one that was overlooked still could not execute anything.

**Time and chance.** The library reads both from module globals. Here these globals look up the
core that is being stepped (a context variable set by ``RaftCore.stepping``), so that many cores
with clocks and seeds of their own can live in one process.
"""

import hashlib
import importlib.util
import inspect
import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any, Protocol, cast
from zlib import crc32

from pysyncobj.node import Node
from pysyncobj.transport import Transport

from gpupool.consensus import codec, membership
from gpupool.consensus.journal import Entry, Journal, decode_entries
from gpupool.consensus.log import ReplicatedLog, Stored
from gpupool.consensus.membership import Configuration
from gpupool.consensus.messages import Message
from gpupool.consensus.progress import Mode, Progress
from gpupool.consensus.settings import BATCH_BYTES_MAX, PROBE_BYTES_MAX, ConsensusSettings
from gpupool.consensus.storage import MEMBERSHIP_TYPE
from gpupool.pool.ids import Plain, ServerId
from gpupool.pool.ports import Committed, NotCommitted, Outcome, Randomness, Unknown

FOLLOWER, CANDIDATE, LEADER = 0, 1, 2
COMMAND_TYPE = b"\x00"
BARRIER_TYPE = b"\x01"
NEVER = float("inf")
_COVERED = -1  # beside the library's reasons for failure, which are positive

_log = logging.getLogger(__name__)

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

    __slots__ = ("now", "randomness")

    def __init__(self, randomness: Randomness) -> None:
        self.now = 0.0
        self.randomness = randomness


_ACTIVE: ContextVar[_Active] = ContextVar("the core that is being stepped")


class _Chance:
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
        return codec.encode(value)

    def loads(self, data: bytes) -> Plain:
        return codec.decode(data)


def _load_library() -> ModuleType:
    """Return a copy of ``pysyncobj.syncobj`` that nobody else can see, with our globals in it."""
    spec = importlib.util.find_spec("pysyncobj.syncobj")
    if spec is None or spec.loader is None:
        raise ImportError("pysyncobj is not installed")
    library = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(library)
    replacements: dict[str, object] = {
        "monotonicTime": lambda: _ACTIVE.get().now,
        "random": _Chance(),
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


class _Peer(Node):
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

    def __init__(self, core: "RaftCore") -> None:
        super().__init__(None, None, [])
        self._core = core

    def send(self, node: Node, message: Message) -> bool:
        self._core.forward_to_host(cast("_Peer", node), message)
        return True


class RaftCore(_SyncObj):  # pyright: ignore[reportUntypedBaseClass]
    """One server's Raft state. Stepped by ``RaftNode`` only; no I/O, no clock, no chance.

    The library's private attributes are declared here under their mangled names. Its ``Node`` is
    used only at its own boundary; everywhere else a server is its ``ServerId``.
    """

    _SyncObj__raftState: int
    _SyncObj__raftCurrentTerm: int
    _SyncObj__votedForNodeId: str | None
    _SyncObj__raftLeader: _Peer | None
    _SyncObj__raftElectionDeadline: float
    _SyncObj__raftCommitIndex: int
    _SyncObj__raftLastApplied: int
    _SyncObj__raftNextIndex: dict[_Peer, int]
    _SyncObj__raftMatchIndex: dict[_Peer, int]
    _SyncObj__lastResponseTime: dict[_Peer, float]
    _SyncObj__newAppendEntriesTime: float
    _SyncObj__noopIDx: int | None
    _SyncObj__otherNodes: set[_Peer]
    _SyncObj__connectedNodes: set[_Peer]
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
        self._peers: dict[ServerId, _Peer] = {}
        self._progress: dict[_Peer, Progress] = {}
        self._prevotes: set[ServerId] = set()
        self._prevote_term = 0
        self._voters_of_term: set[ServerId] = set()
        self._election_won = False
        self._hand_over = False
        self._leader_heard_at = -NEVER
        self._leader_majority_age_s = 0.0
        self._leader_clock_offset_s = 0.0
        self._matched_index = 0
        self._handlers: dict[str, Callable[[_Peer, Message], None]] = {
            "request_prevote": self._on_request_prevote,
            "response_prevote": self._on_response_prevote,
            "request_vote": self._on_request_vote,
            "response_vote": self._on_response_vote,
            "timeout_now": self._on_timeout_now,
            "append_entries": self._on_append_entries,
            "next_node_idx": self._on_next_node_idx,
            "commit": self._on_commit,
            "heartbeat": self._on_heartbeat,
        }
        self.server_id = server_id
        self.elections = 0
        self._log = ReplicatedLog(journal, base)
        self.configurations = self._log.configurations
        with self.stepping(now):
            _SyncObj.__init__(
                self,
                self._peer(server_id),
                [self._peer(voter) for voter in self.voters if voter != server_id],
                _library_settings(_LibraryLog(journal), settings),
                nodeClass=_Peer,
                transport=_Links(self),
            )
            # The library takes the base for applied; a snapshot reaches further (finding S1).
            self._SyncObj__raftLastApplied = max(applied_index, journal.base_index)
            self._SyncObj__raftCommitIndex = self._SyncObj__raftLastApplied
            self._reset_progress()

    # --- reading -----------------------------------------------------------------------------

    @property
    def voters(self) -> tuple[ServerId, ...]:
        """The voters in force: those of the latest configuration in the log."""
        return self.configurations.current.voters

    @property
    def votes(self) -> bool:
        """True when this server is a voter."""
        return self.server_id in self.voters

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
        return tuple(sorted(node.name for node in self._SyncObj__connectedNodes))

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

    def match_index(self, peer: ServerId) -> int:
        """Return the index up to which a voter is known to have the leader's log."""
        return self._SyncObj__raftMatchIndex.get(self._peer(peer), 0)

    def majority_age_s(self) -> float:
        """Seconds since this server was last known to be in touch with a majority."""
        now = self._active.now
        if self.state != LEADER:
            return now - self._leader_heard_at + self._leader_majority_age_s
        ages = sorted(
            0.0 if voter == self.server_id else now - self._response_time(voter)
            for voter in self.voters
        )
        return ages[len(ages) // 2] if ages else NEVER

    def majority_age_ms(self) -> int:
        """Return ``majority_age_s`` as it travels; "never" becomes about 30 years."""
        return int(min(self.majority_age_s(), 1e9) * 1000)

    def leader_clock_ms(self, deadline: float) -> int:
        """Convert an instant of this server's clock to the leader's, erring on the early side."""
        offset = 0.0 if self.state == LEADER else self._leader_clock_offset_s
        return int((deadline + offset) * 1000)

    def next_step_at(self) -> float:
        """Return the instant at which a step is due if nothing arrives before."""
        if self.state == LEADER:
            return self._SyncObj__newAppendEntriesTime
        if not self.votes or not (self._SyncObj__connectedNodes or len(self.voters) == 1):
            return NEVER
        return self._SyncObj__raftElectionDeadline

    # --- stepping ----------------------------------------------------------------------------

    @contextmanager
    def stepping(self, now: float) -> Generator[None]:
        """Make this core's clock and randomness the ones that the library sees."""
        self._active.now = max(self._active.now, now)
        token = _ACTIVE.set(self._active)
        try:
            yield
        finally:
            _ACTIVE.reset(token)

    def tick(self) -> None:
        """Hold elections that are due, commit, apply, and send heartbeats that are due."""
        if not self.votes:
            # A server without a vote never campaigns, so that one that was removed, or has not
            # been admitted, cannot disturb the others.
            self._SyncObj__raftElectionDeadline = NEVER
        elif self._SyncObj__raftElectionDeadline == NEVER:
            self._postpone_election()
        if self.state != LEADER and self._election_is_due():
            self._before_election()
        _SyncObj._onTick(self, 0.0)
        self._hand_over = self._hand_over and self._SyncObj__raftElectionDeadline == -NEVER
        self._log.forget_encoded()

    def _election_is_due(self) -> bool:
        return self._SyncObj__raftElectionDeadline < self._active.now and bool(
            self._SyncObj__connectedNodes or not self._SyncObj__otherNodes
        )

    def _before_election(self) -> None:
        """Let the library campaign only after a majority said that it would vote (PreVote).

        Without it, a server behind a bad link raises the term again and again, and deposes a
        leader that everyone else can hear (Raft dissertation, section 9.6).
        """
        if self._election_won or self._hand_over or not self._SyncObj__otherNodes:
            self._election_won = False
            self.elections += 1
            self._voters_of_term = {self.server_id}
            return
        self._postpone_election()
        self._forget_leader()
        self._prevote_term = self.term + 1
        self._prevotes = {self.server_id}
        _, last_index, last_term = self._journal.entries[-1]
        for peer in self._others():
            message = {
                "type": "request_prevote",
                "term": self._prevote_term,
                "last_log_index": last_index,
                "last_log_term": last_term,
            }
            self._host.send(peer.name, message)

    def append(self, command: bytes, resolve: Callable[[Outcome], None] | None) -> tuple[int, int]:
        """Add a command to a leader's log; return its index and term."""
        assert self.state == LEADER, "only a leader appends"
        index, term = self._journal.last_index + 1, self.term
        self._journal.append(command, index, term)
        if resolve is not None:
            self.await_commit(index, term, resolve)
        return index, term

    def await_commit(self, index: int, term: int, resolve: Callable[[Outcome], None]) -> None:
        """Call ``resolve`` when the entry at ``index`` is applied, whichever it then is."""
        if index <= self.applied_index:
            resolve(Unknown("the command's place in the log was decided earlier"))
            return

        def applied(result: Plain, failure: int) -> None:
            if failure == 0:
                resolve(Committed(index, result))
            elif failure == _COVERED:
                resolve(Unknown("a snapshot covers the command's place in the log"))
            else:
                resolve(NotCommitted("another leader put another command in its place"))

        self._SyncObj__commandsWaitingCommit[index].append((term, applied))

    def set_voters(self, voters: Sequence[ServerId], resolve: Callable[[Outcome], None]) -> None:
        """Append a configuration, if one may be appended now (finding S5).

        The library's own guard is dead code. Two changes at a time can make two majorities that
        share no voter; and a change before the leader's first commit can overlap with one of an
        earlier leader (Ongaro, raft-dev, 2015-07-10).
        """
        desired = tuple(sorted(voters))
        problem = membership.objection(self.voters, desired)
        if self.state != LEADER:
            problem = "this server is not the leader"
        elif self.server_id not in desired:
            problem = "the leader must hand over before it is removed"
        elif not self.settled:
            problem = "an earlier change is not committed yet"
        if problem is not None:
            resolve(NotCommitted(problem))
            return
        command = MEMBERSHIP_TYPE + membership.encode_voters(desired)
        index, _ = self.append(command, resolve)
        self._log.append_voters(desired, index)
        self._reconfigure()

    def hand_over(self, peer: ServerId) -> bool:
        """Ask ``peer`` to hold an election now; False unless it has the whole log."""
        if self.state != LEADER or self.match_index(peer) != self._journal.last_index:
            return False
        self._host.send(peer, {"type": "timeout_now", "term": self.term})
        return True

    def replicate(self) -> None:
        """Send every voter what it lacks, as far as flow control allows."""
        if self.state == LEADER:
            for peer in self._others():
                if peer in self._SyncObj__connectedNodes:
                    self._replicate_to(peer, heartbeat=False)
            self._log.forget_encoded()

    def installed(self, index: int, voters: tuple[ServerId, ...]) -> None:
        """Go on from a snapshot that was installed: everything up to ``index`` is applied."""
        waiting = self._SyncObj__commandsWaitingCommit
        for waiting_index in sorted(i for i in waiting if i <= index):
            for _term, resolve in waiting.pop(waiting_index):
                resolve(None, _COVERED)
        self._SyncObj__raftLastApplied = index
        self._SyncObj__raftCommitIndex = max(self._SyncObj__raftCommitIndex, index)
        if self._journal.last_index < self._SyncObj__raftCommitIndex:
            self._SyncObj__raftCommitIndex = self._journal.last_index
        self._log.installed(index, voters)
        self._reconfigure()

    # --- connections and messages ------------------------------------------------------------

    def connected_to(self, peer: ServerId) -> None:
        """Begin a connection: nothing that was sent before can be relied on."""
        node = self._peer(peer)
        self._SyncObj__connectedNodes.add(node)
        self._restart_probe(node)

    def disconnected_from(self, peer: ServerId) -> None:
        """End a connection."""
        node = self._peer(peer)
        self._SyncObj__connectedNodes.discard(node)
        self._restart_probe(node)
        if node == self._SyncObj__raftLeader:
            self._forget_leader()
            self._hurry_election()

    def receive(self, sender: ServerId, message: Message) -> None:
        """Take one message of a connected peer, decoded and checked."""
        handler = self._handlers.get(message["type"])
        if handler is not None:
            handler(self._peer(sender), message)

    def forward_to_host(self, node: _Peer, message: Message) -> None:
        """Pass on what the library itself sends: requests for votes, and votes."""
        if message["type"] == "request_vote":
            message["hand_over"] = self._hand_over
        self._host.send(node.name, message)

    # --- votes -------------------------------------------------------------------------------

    def _on_request_prevote(self, node: _Peer, message: Message) -> None:
        granted = (
            message["term"] > self.term
            and not self._leader_is_fresh()
            and self._may_vote_for(node, message)
        )
        answer = {
            "type": "response_prevote",
            "term": message["term"],
            "current_term": self.term,
            "granted": granted,
            "member": node in self._SyncObj__otherNodes,
        }
        self._host.send(node.name, answer)
        if granted:
            # Two candidates at once would split the votes: let this one try first.
            soon = self._active.now + self._settings.election_min_s / 2
            self._SyncObj__raftElectionDeadline = max(self._SyncObj__raftElectionDeadline, soon)

    def _on_response_prevote(self, node: _Peer, message: Message) -> None:
        if message["current_term"] > self.term:
            self._step_down(message["current_term"])
        if not message["granted"] and not message["member"]:
            self._host.excluded(node.name)
        if (
            not message["granted"]
            or message["term"] != self._prevote_term
            or self._prevote_term != self.term + 1
            or self.state == LEADER
            or node not in self._SyncObj__otherNodes
        ):
            return
        self._prevotes.add(node.name)
        if len(self._prevotes) > len(self.voters) // 2:
            self._prevote_term = 0
            self._election_won = True
            self._SyncObj__raftElectionDeadline = -NEVER

    def _on_request_vote(self, node: _Peer, message: Message) -> None:
        """Vote as the library does, unless the leader is alive, or the asker may not be voted for.

        A server that hears the leader ignores elections altogether (dissertation, section 4.2.3),
        so that a removed server cannot depose it. The leader itself may call for one.

        A server that knows of no vote of its own answers all the same: the entry that made it a
        voter may be in the asker's log only, which then cannot be committed without this vote.
        """
        if not self._may_vote_for(node, message):
            return
        if self._leader_is_fresh() and not message["hand_over"]:
            return
        term_before = self.term
        self._library_receives(node, message)
        if self.term > term_before:
            self._forget_leader()

    def _on_response_vote(self, node: _Peer, message: Message) -> None:
        """Count each voter once, and only voters (finding S8)."""
        if (
            message["term"] != self.term
            or self.state != CANDIDATE
            or node not in self._SyncObj__otherNodes
            or node.name in self._voters_of_term
        ):
            return
        self._voters_of_term.add(node.name)
        self._library_receives(node, message)

    def _on_timeout_now(self, node: _Peer, message: Message) -> None:
        if self.votes and message["term"] == self.term and node == self._SyncObj__raftLeader:
            self._hand_over = True
            self._SyncObj__raftElectionDeadline = -NEVER

    def _may_vote_for(self, node: _Peer, message: Message) -> bool:
        """Tell whether the asker's log is as new as ours, and it can be a voter.

        A server that is no voter here may be one in a configuration that has not arrived yet, but
        only if its log is newer than ours.
        """
        _, last_index, last_term = self._journal.entries[-1]
        theirs = (message["last_log_term"], message["last_log_index"])
        if node in self._SyncObj__otherNodes:
            return theirs >= (last_term, last_index)
        return theirs > (last_term, last_index)

    def _leader_is_fresh(self) -> bool:
        if self.state == LEADER:
            return True
        silence = self._active.now - self._leader_heard_at
        return self._SyncObj__raftLeader is not None and silence < self._settings.election_min_s

    def _hurry_election(self) -> None:
        """Ask around soon when the leader's connection breaks: its process has likely ended.

        PreVote makes a wrong guess harmless. The draw keeps the followers apart.
        """
        soon = self._active.now + self._settings.heartbeat_s * self._active.randomness.random()
        self._SyncObj__raftElectionDeadline = min(self._SyncObj__raftElectionDeadline, soon)

    # --- entries, at a follower --------------------------------------------------------------

    def _on_append_entries(self, node: _Peer, message: Message) -> None:
        if not self.follow(node.name, message):
            return
        try:
            entries = decode_entries(message["entries"])
        except ValueError as error:
            _log.warning("entries from %s cannot be read: %s", node.name, error)
            return
        stored = self.store(message["prevLogIdx"], message["prevLogTerm"], entries)
        if (match := stored.match) is None:
            self._acknowledge(node, next_index=stored.hint, rejected=message["prevLogIdx"])
            return
        self._matched_index = max(self._matched_index, match)
        self._acknowledge(node, next_index=match + 1, success=True)
        self.commit_to(min(message["commit_index"], match))

    def store(self, previous_index: int, previous_term: int, entries: list[Entry]) -> Stored:
        """Put another server's entries into the log; see ``ReplicatedLog.store``."""
        stored = self._log.store(
            previous_index, previous_term, entries, commit_index=self.commit_index
        )
        if stored.reconfigured:
            self._reconfigure()
        return stored

    def commit_to(self, index: int) -> None:
        """Learn that the log is committed up to ``index``, which it reaches."""
        assert index <= self._journal.last_index, "nothing beyond the log is committed"
        if index > self._SyncObj__raftCommitIndex:
            self._SyncObj__raftCommitIndex = index

    def _on_commit(self, node: _Peer, message: Message) -> None:
        # No further than this leader, in this term, is known to have the same log as we.
        if message["term"] == self.term and node == self._SyncObj__raftLeader:
            self.commit_to(min(message["commit_index"], self._matched_index))

    def _on_heartbeat(self, node: _Peer, message: Message) -> None:
        if self.follow(node.name, message):
            self._acknowledge(node, next_index=0)

    def follow(self, sender: ServerId, message: Message) -> bool:
        """Accept ``sender`` as the leader of the message's term; False when it is not."""
        node, term = self._peer(sender), message["term"]
        leader = self._SyncObj__raftLeader
        if term < self.term:
            self._acknowledge(node, next_index=0)  # Tells a deposed leader about the newer term.
            return False
        if term == self.term and (self.state == LEADER or leader not in (None, node)):
            _log.error("%s and %s both lead in term %d; ignored", leader, node, term)
            return False
        if term > self.term:
            self._SyncObj__setCurrentTerm(term, None)
        if leader != node or self.state != FOLLOWER:
            self._matched_index = 0
        self._SyncObj__setState(FOLLOWER)
        self._SyncObj__raftLeader = node
        self._election_won = False
        if not self._hand_over:
            self._postpone_election()
        self._leader_heard_at = self._active.now
        if "clock_ms" in message:
            self._leader_clock_offset_s = message["clock_ms"] / 1000 - self._active.now
            self._leader_majority_age_s = message["majority_age_ms"] / 1000
        return True

    def observe_leader(self, leader: ServerId | None, message: Message) -> None:
        """Take what a voter said of the leader, at a server without a vote."""
        if message["term"] > self.term:
            self._step_down(message["term"])
        if message["term"] == self.term and leader not in (None, self.server_id):
            self._SyncObj__raftLeader = self._peer(leader)
            self._leader_heard_at = self._active.now
            self._leader_clock_offset_s = message["clock_ms"] / 1000 - self._active.now
            self._leader_majority_age_s = message["majority_age_ms"] / 1000

    def heard_from(self, peer: ServerId) -> None:
        """Note that a voter answered its leader in another way than with ``next_node_idx``."""
        node = self._peer(peer)
        if self.state == LEADER and node in self._SyncObj__lastResponseTime:
            self._SyncObj__lastResponseTime[node] = self._active.now

    def clock_ms(self) -> int:
        """Return the leader's clock as this server knows it; its own if it leads."""
        return self.leader_clock_ms(self._active.now)

    def acknowledge_snapshot(self, sender: ServerId, index: int) -> None:
        """Tell the leader that everything up to ``index`` is here."""
        self._matched_index = max(self._matched_index, index)
        self._acknowledge(self._peer(sender), next_index=index + 1, success=True)

    def _acknowledge(
        self, node: _Peer, *, next_index: int, success: bool = False, rejected: int = -1
    ) -> None:
        """Answer a leader, with the term (finding S4).

        The library's answers carry none, so that one from an earlier leadership counts for an
        entry that the follower does not have any more.
        """
        answer = {
            "type": "next_node_idx",
            "term": self.term,
            "next_node_idx": next_index,
            "success": success,
            "rejected": rejected,
        }
        self._host.send(node.name, answer)

    # --- entries, at the leader --------------------------------------------------------------

    def _on_next_node_idx(self, node: _Peer, message: Message) -> None:
        if message["term"] > self.term:
            self._step_down(message["term"])
            return
        progress = self._progress.get(node)
        if message["term"] != self.term or self.state != LEADER or progress is None:
            return
        self._SyncObj__lastResponseTime[node] = self._active.now
        next_index, match = message["next_node_idx"], self._SyncObj__raftMatchIndex[node]
        if message["success"]:
            if next_index > self._journal.last_index + 1:
                _log.error("%s acknowledged an entry that does not exist; ignored", node.name)
                return
            match = max(match, next_index - 1)
            self._SyncObj__raftMatchIndex[node] = match
            progress.acknowledged(match)
            if progress.mode is not Mode.REPLICATE:
                progress.become(Mode.REPLICATE)
                self._SyncObj__raftNextIndex[node] = match + 1
        elif message["rejected"] >= 0:
            # Answers to messages that were sent before the log was known to differ come late;
            # the library lets each of them move nextIndex back, and never catches up (finding L1).
            expected = self._SyncObj__raftNextIndex[node] - 1
            probing = progress.mode is Mode.PROBE
            if progress.mode is Mode.SNAPSHOT or message["rejected"] <= match:
                return
            if probing and message["rejected"] != expected:
                return
            back = min(next_index, message["rejected"])
            self._SyncObj__raftNextIndex[node] = max(back, match + 1)
            progress.become(Mode.PROBE)
            self._replicate_to(node, heartbeat=False)

    def _replicate_to(self, peer: _Peer, *, heartbeat: bool) -> None:
        """Send one voter entries, a commit index, or a sign of life (findings L1, L5)."""
        progress, journal = self._progress[peer], self._journal
        next_index = self._SyncObj__raftNextIndex[peer]
        if next_index <= journal.base_index or progress.mode is Mode.SNAPSHOT:
            progress.mode = Mode.SNAPSHOT
            self._host.send_snapshot(peer.name, leading=True)
            if heartbeat:
                self._host.send(peer.name, {"type": "heartbeat", **self._authority()})
            return
        if progress.mode is Mode.PROBE:
            if heartbeat or not progress.probe_sent:
                progress.probe_sent = True
                self._send_entries(peer, next_index, PROBE_BYTES_MAX)
            return
        idle = True
        while next_index <= journal.last_index and progress.has_room():
            last_index, size = self._send_entries(peer, next_index, BATCH_BYTES_MAX)
            progress.sent(last_index, size)
            next_index, idle = last_index + 1, False
        self._SyncObj__raftNextIndex[peer] = next_index
        commit_index = self.commit_index
        if idle and heartbeat:
            self._send_entries(peer, next_index, 0)
        elif idle and commit_index > progress.commit_sent:
            message = {"type": "commit", "term": self.term, "commit_index": commit_index}
            self._host.send(peer.name, message)
        progress.commit_sent = commit_index

    def _send_entries(self, peer: _Peer, next_index: int, bytes_max: int) -> tuple[int, int]:
        """Send entries from ``next_index`` on; return the last index and the size."""
        last_index, data = self.encoded_entries(next_index, self._journal.last_index, bytes_max)
        message = {
            "type": "append_entries",
            "commit_index": self.commit_index,
            "prevLogIdx": next_index - 1,
            "prevLogTerm": self._journal.term_at(next_index - 1),
            "entries": data,
            **self._authority(),
        }
        self._host.send(peer.name, message)
        return last_index, len(data)

    def encoded_entries(self, first: int, last: int, bytes_max: int) -> tuple[int, bytes]:
        """Return entries for a peer; see ``ReplicatedLog.encoded``."""
        return self._log.encoded(first, last, bytes_max)

    def _authority(self) -> Message:
        return {
            "term": self.term,
            "clock_ms": self.clock_ms(),
            "majority_age_ms": self.majority_age_ms(),
        }

    # --- overridden methods of the library ---------------------------------------------------

    def _SyncObj__sendAppendEntries(self) -> None:
        """Send heartbeats; replaces a loop that ran until time had passed (finding L5)."""
        self._SyncObj__newAppendEntriesTime = self._active.now + self._settings.heartbeat_s
        for peer in self._others():
            if peer in self._SyncObj__connectedNodes:
                self._replicate_to(peer, heartbeat=True)

    def _SyncObj__onBecomeLeader(self) -> None:
        """Begin a leadership knowing nothing of the followers' logs."""
        self._reset_progress()
        _SyncObj._SyncObj__onBecomeLeader(self)

    def _SyncObj__doApplyCommand(self, command: bytes) -> Plain:
        """Apply an entry; replaces unpickling and calling a method by number (finding L3)."""
        if command[:1] != COMMAND_TYPE:
            return None
        return self._host.apply(self._SyncObj__raftLastApplied + 1, command[1:])

    def _SyncObj__onMessageReceived(self, node: _Peer, message: Message) -> None:
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

    # --- small things ------------------------------------------------------------------------

    def _library_receives(self, node: _Peer, message: Message) -> None:
        _SyncObj._SyncObj__onMessageReceived(self, node, message)

    def _peer(self, server_id: ServerId) -> _Peer:
        peer = self._peers.get(server_id)
        if peer is None:
            peer = self._peers[server_id] = _Peer(server_id)
        return peer

    def _others(self) -> list[_Peer]:
        """Return the other voters, always in the same order."""
        return sorted(self._SyncObj__otherNodes, key=_peer_id)

    def _response_time(self, voter: ServerId) -> float:
        return self._SyncObj__lastResponseTime.get(self._peer(voter), -NEVER)

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

    def _restart_probe(self, node: _Peer) -> None:
        progress = self._progress.get(node)
        if progress is not None and self.state == LEADER:
            progress.become(Mode.PROBE)
            match = self._SyncObj__raftMatchIndex[node]
            if match:
                self._SyncObj__raftNextIndex[node] = match + 1

    def _reset_progress(self) -> None:
        self._progress = {peer: Progress() for peer in self._others()}

    def _reconfigure(self) -> None:
        """Put the configuration in force into the library's books."""
        others = {self._peer(voter) for voter in self.voters if voter != self.server_id}
        known = self._SyncObj__otherNodes
        for peer in known - others:
            for book in (self._SyncObj__raftNextIndex, self._SyncObj__raftMatchIndex):
                book.pop(peer, None)
            self._SyncObj__lastResponseTime.pop(peer, None)
            self._progress.pop(peer, None)
        for peer in others - known:
            self._SyncObj__raftNextIndex[peer] = self._journal.last_index + 1
            self._SyncObj__raftMatchIndex[peer] = 0
            self._SyncObj__lastResponseTime[peer] = self._active.now
            self._progress[peer] = Progress()
        self._SyncObj__otherNodes = others
        self._host.configuration_changed()


def _peer_id(peer: _Peer) -> str:
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
