"""One server's Raft state as ``RaftNode`` sees it: elections, replication, voters, proposals.

The class is one object in four files, a chain in which each file overrides what it must of the
ones to its left::

    SyncObj (pysyncobj)  <-  LibraryCore  <-  Elections  <-  Replication  <-  RaftCore
    the library's rounds     keeps it in      who may        what travels     what the node
                             check            lead           between logs     calls

**The order of the chain matters**, for three reasons.

1. A method calls only to its left, by ``super()`` or by name; what lies to its right it reaches
   through the library, which calls ``_SyncObj__setState``, ``_SyncObj__onBecomeLeader`` and
   ``_SyncObj__sendAppendEntries`` at the end of the chain. ``Replication`` stands right of
   ``Elections`` because to follow a leader is to end an election (``_postpone_election``,
   ``_hand_over``, ``_election_won``), while no election needs replication.
2. ``Replication._SyncObj__setState`` must run before the library's: it reads the books of the
   leadership that is about to end. ``_SyncObj__onBecomeLeader`` must run before the library's as
   well: that one appends the first entry of the term and sends it.
3. Each part's own fields are set up by ``_begin_elections`` and ``_begin_replication`` before
   ``super().__init__``, because the library's constructor already calls methods of this object.

**Roles and messages**, of the receiver's own term. A higher term in entries, a heartbeat or an
answer makes the receiver a follower of that term first::

    message            follower               candidate              leader         without a vote
    request_prevote    grants (*)             grants (*)             refuses        grants (*)
    response_prevote   campaigns (majority)   campaigns (majority)   -              -
    request_vote       votes (*)              votes (*)              ignores (**)   votes (*)
    response_vote      -                      leads (majority)       -              -
    timeout_now        campaigns at once      -                      -              -
    append_entries     stores, answers        follows, stores        logs an error  as a follower
    heartbeat          follows, answers       follows, answers       logs an error  as a follower
    commit             commits                -                      -              -
    next_node_idx      -                      -                      moves indices  -

(*) when the asker's log is as new as its own and no leader was heard of lately; a vote, unlike a
grant, is given once per term. (**) unless the asker is the successor to which it hands over.

What is never true: that two servers lead in one term; that a server votes twice in a term, across
restarts too; that ``applied_index`` exceeds ``commit_index``, or this the log; that a committed
entry is replaced.
"""

from collections.abc import Callable, Sequence

from gpupool.consensus.core.library import CANDIDATE, FOLLOWER, LEADER, NEVER, CoreHost, Peer
from gpupool.consensus.core.progress import Progress
from gpupool.consensus.core.replication import Replication
from gpupool.consensus.protocol import membership
from gpupool.consensus.protocol.membership import Configuration
from gpupool.consensus.protocol.raft_messages import Message
from gpupool.consensus.protocol.raft_settings import ConsensusSettings
from gpupool.consensus.storage.journal import Journal
from gpupool.consensus.storage.store import MEMBERSHIP_TYPE
from gpupool.pool.model.ids import Plain, ServerId
from gpupool.pool.ports import Committed, NotCommitted, Outcome, Randomness, Unknown

_COVERED = -1  # beside the library's reasons for failure, which are positive


class RaftCore(Replication):
    """Stepped by ``RaftNode`` only; no I/O, no clock, no chance of its own."""

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
        self._begin_elections()
        self._begin_replication()
        self._handlers: dict[str, Callable[[Peer, Message], None]] = {
            "request_prevote": self._on_request_prevote,
            "response_prevote": self._on_response_prevote,
            "request_vote": self._on_request_vote,
            "response_vote": self._on_response_vote,
            "timeout_now": self._on_timeout_now,
            "append_entries": self._on_append_entries,
            "next_node_idx": self._on_next_node_idx,
            "commit": self._on_commit,
            "heartbeat": self._on_heartbeat,
            "ask_clock": self._on_ask_clock,
            "clock": self._on_clock,
        }
        super().__init__(
            server_id,
            journal=journal,
            base=base,
            applied_index=applied_index,
            host=host,
            randomness=randomness,
            settings=settings,
            now=now,
            stopwatch=stopwatch,
        )
        self._reset_progress()

    @property
    def leads_alone(self) -> bool:
        """True while this server is the only voter and leads: it owes nobody a heartbeat."""
        return self.state == LEADER and not self._SyncObj__otherNodes

    def next_step_at(self) -> float:
        """Return the instant at which a step is due if nothing arrives before."""
        if self.state == LEADER:
            if self._SyncObj__otherNodes:
                return self._SyncObj__newAppendEntriesTime
            return self._SyncObj__startTime + self._SyncObj__numOneSecondDumps
        alone = not (self._SyncObj__connectedNodes or len(self.voters) == 1)
        if not self.votes or self.abstains or alone:
            return NEVER
        return self._SyncObj__raftElectionDeadline

    def tick(self) -> None:
        """Hold elections that are due, commit, apply, and send heartbeats that are due."""
        if not self.votes or self.abstains:
            # A server without a vote never campaigns, so that one that was removed, or has not
            # been admitted, cannot disturb the others.
            self._SyncObj__raftElectionDeadline = NEVER
        elif self._SyncObj__raftElectionDeadline == NEVER:
            self._postpone_election()
        if self.state != LEADER and self._election_is_due() and not self._defer_election():
            self._before_election()
        self.library_tick()
        self._hand_over = self._hand_over and self._SyncObj__raftElectionDeadline == -NEVER
        self._log.forget_encoded()

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

    def connected_to(self, peer: ServerId) -> None:
        """Begin a connection: nothing that was sent before can be relied on."""
        node = self._peer(peer)
        self._asked_count = 0
        if not self._SyncObj__connectedNodes:
            self._may_be_late = False  # Nobody could be asked; that was not for want of time.
        self._SyncObj__connectedNodes.add(node)
        self._restart_probe(node)
        if self._led_by is not None and self._led_by[0] is node:
            self._leader_clock.forget()  # A question may have gone with the connection before.

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
        if not self.votes and self.state == CANDIDATE:
            # The library counts itself among the voters, always.
            self._SyncObj__setState(FOLLOWER)
        self._host.configuration_changed()
