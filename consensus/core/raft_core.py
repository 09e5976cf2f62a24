"""One server's Raft state as ``RaftNode`` sees it: elections, replication, voters, proposals.

The class is one object in four parts, a chain in which each class overrides methods of the ones to
its left::

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

**Replication.** A leader keeps one ``Progress`` for each voter. ``RaftNode.step`` calls
``replicate`` after every proposal and every answer; the library calls
``_SyncObj__sendAppendEntries`` for heartbeats::

    mode        sends                                   answer -> next mode
    PROBE       one append_entries, then waits          success -> REPLICATE
                                                        rejected -> PROBE, further back
    REPLICATE   append_entries ahead of the answers,    success -> REPLICATE
                up to the limits in flight;             rejected -> PROBE
                a commit index when there are none
    SNAPSHOT    pieces of a snapshot, heartbeats        success -> REPLICATE

A follower that rejects again and again gets one probe a heartbeat (``Progress.rejected``).
A new connection or a lost one makes it PROBE again, from the highest index known to match. A voter
whose next entry is gone from the journal makes it SNAPSHOT.

A follower answers every ``append_entries`` with ``next_node_idx``: with success, up to where its
log now equals the leader's; or with the index that did not fit and a hint how far to go back.

Always true of replication:

- Every answer carries the term in which it was given, and counts in that term only (finding S4).
- ``matchIndex`` only grows during a leadership, unless its voter is found to have lost entries;
  ``nextIndex`` is greater than it.
- A follower takes the commit index no further than ``matched_index``: up to there, in this term,
  this leader is known to have the same log.
- An answer proves that a follower followed after the message was sent that it answers, and no
  later; ``Progress`` knows which one that is. A table is as old as ``freshness.py`` says.
- An answer leaves after the entries that it acknowledges are synced: it waits in the node's
  frames until then. A leader's entries do not wait for its own disk: ``may_leave_early``.

**Elections.** A server asks before it campaigns, counts each voter once, and spares a live leader.
"""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gpupool.consensus.core.freshness import LeaderClock, TableAge
from gpupool.consensus.core.library import (
    CANDIDATE,
    FOLLOWER,
    LEADER,
    NEVER,
    CoreHost,
    LibraryCore,
    Peer,
)
from gpupool.consensus.core.progress import Mode, Progress
from gpupool.consensus.core.raft_log import Stored
from gpupool.consensus.protocol import membership
from gpupool.consensus.protocol.membership import Configuration
from gpupool.consensus.protocol.raft_messages import Message
from gpupool.consensus.protocol.raft_settings import (
    BATCH_BYTES_MAX,
    PROBE_BYTES_MAX,
    ConsensusSettings,
)
from gpupool.consensus.storage.journal import Entry, Journal, decode_entries
from gpupool.consensus.storage.store import MEMBERSHIP_TYPE
from gpupool.pool.model.ids import Plain, ServerId
from gpupool.pool.ports import Committed, NotCommitted, Outcome, Randomness, Unknown

_log = logging.getLogger(__name__)


ASKED_OFTEN = 16
"""Calls for votes in some 5 s, since a leader was heard of or a connection began."""

VOTE_LOST = "?"
"""A vote for a candidate that is not known any more; no server has this id."""


class Elections(LibraryCore):
    """PreVote, vote counting and leader stickiness around the library's campaign and vote."""

    abstains = False
    """While True, this voter neither votes nor campaigns: it may lack entries that it
    acknowledged."""

    def _begin_elections(self) -> None:
        self.elections = 0
        self._prevotes: set[ServerId] = set()
        self._prevote_term = 0
        self._voters_of_term: set[ServerId] = set()
        self._election_won = False
        self._hand_over = False
        self.leader_heard_at = -NEVER
        """The instant of the last word of a leader."""
        self._asked_count = 0  # without success, since a leader was heard of

    def _election_is_due(self) -> bool:
        return self._SyncObj__raftElectionDeadline < self._active.now and bool(
            self._SyncObj__connectedNodes or not self._SyncObj__otherNodes
        )

    def _defer_election(self) -> bool:
        """Wait for one more heartbeat, once, when this server itself is late.

        What the leader has sent meanwhile may wait in the sockets.
        """
        now, heartbeat_s = self._active.now, self._settings.heartbeat_s
        late_s = now - self._SyncObj__raftElectionDeadline
        alone = not self._SyncObj__otherNodes
        if alone or not self._may_be_late or late_s < heartbeat_s / 2 or late_s == NEVER:
            return False
        self._may_be_late = False
        self._lateness.note(late_s, now)
        wait_s = heartbeat_s * (1 + self._active.randomness.random())
        self._SyncObj__raftElectionDeadline = now + wait_s
        return True

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
        now, heard_at = self._active.now, self.leader_heard_at
        _log.info(
            "asks for votes in term %d: no word of a leader %s; it was %.2f s late before",
            self.term + 1,
            "yet" if heard_at == -NEVER else f"for {now - heard_at:.2f} s",
            self._lateness.recent_s(now),
        )
        self._postpone_election()
        self._ask_again_soon()
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

    def _ask_again_soon(self) -> None:
        """Ask again before the next timeout: the others may have heard the leader a little later.

        Ever more seldom, for the sake of a server that alone cannot hear the leader; one that has
        asked ``ASKED_OFTEN`` times for nothing does so every 1 to 2 s.
        """
        wait_s = self._settings.heartbeat_s * (1 + self._active.randomness.random())
        soon = self._active.now + wait_s * (1 << min(self._asked_count, 4))
        self._asked_count += 1
        if self._asked_count <= ASKED_OFTEN:
            soon = min(self._SyncObj__raftElectionDeadline, soon)
        self._SyncObj__raftElectionDeadline = soon

    def _on_request_prevote(self, node: Peer, message: Message) -> None:
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

    def _on_response_prevote(self, node: Peer, message: Message) -> None:
        if message["current_term"] > self.term:
            self._step_down(message["current_term"])
        if not message["granted"] and not message["member"]:
            self._host.excluded(node.name)
        if (
            not message["granted"]
            or message["term"] != self._prevote_term
            or self._prevote_term != self.term + 1
            or self.state == LEADER
            or not self.votes
            or node not in self._SyncObj__otherNodes
        ):
            return
        self._prevotes.add(node.name)
        if len(self._prevotes) > len(self.voters) // 2:
            self._prevote_term = 0
            self._election_won = True
            self._SyncObj__raftElectionDeadline = -NEVER

    def _on_request_vote(self, node: Peer, message: Message) -> None:
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
        self.library_receives(node, message)
        if self.term > term_before:
            self._lateness.ended_in_newer_term(self.leader_heard_at)
            self._forget_leader()

    def _on_response_vote(self, node: Peer, message: Message) -> None:
        """Count each voter once, and only voters (finding S8)."""
        if (
            message["term"] != self.term
            or self.state != CANDIDATE
            or not self.votes
            or node not in self._SyncObj__otherNodes
            or node.name in self._voters_of_term
        ):
            return
        self._voters_of_term.add(node.name)
        self.library_receives(node, message)

    def forget_votes_up_to(self, term: int) -> None:
        """Never vote in a term up to ``term``, in which this server may have voted before."""
        if term > self.term:
            self._step_down(term)
        if term == self.term and self._journal.vote is None:
            self._SyncObj__votedForNodeId = VOTE_LOST
            self._journal.set_vote(term, VOTE_LOST)

    def _on_timeout_now(self, node: Peer, message: Message) -> None:
        if self.votes and message["term"] == self.term and node == self._SyncObj__raftLeader:
            self._hand_over = True
            self._SyncObj__raftElectionDeadline = -NEVER

    def _step_down(self, term: int) -> None:
        """Follow nobody yet in a newer term of which another server told."""
        self._SyncObj__setCurrentTerm(term, None)
        self._SyncObj__setState(FOLLOWER)
        self._lateness.ended_in_newer_term(self.leader_heard_at)
        self._forget_leader()

    def _may_vote_for(self, node: Peer, message: Message) -> bool:
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
        silence = self._active.now - self.leader_heard_at
        patience_s = self._settings.election_min_s + self._slack_s()
        return self._SyncObj__raftLeader is not None and silence < patience_s

    def _hurry_election(self) -> None:
        """Ask around soon when the leader's connection breaks: its process has likely ended.

        PreVote makes a wrong guess harmless. The draw keeps the followers apart.
        """
        soon = self._active.now + self._settings.heartbeat_s * self._active.randomness.random()
        self._SyncObj__raftElectionDeadline = min(self._SyncObj__raftElectionDeadline, soon)

    def forward_to_host(self, node: Peer, message: Message) -> None:
        """Mark elections that the leader asked for."""
        if message["type"] == "request_vote":
            message["hand_over"] = self._hand_over
        super().forward_to_host(node, message)


class _EntriesKey(NamedTuple):
    """All that an ``append_entries`` message depends on."""

    next_index: int
    last_index: int
    commit_index: int
    term: int
    now: float


class _SentEntries(NamedTuple):
    """The ``append_entries`` message sent last, for the next follower that lacks the same."""

    key: _EntriesKey
    message: Message


class Replication(Elections):
    """Both ends of ``append_entries`` and ``next_node_idx``, in place of the library's."""

    def _begin_replication(self) -> None:
        self._progress: dict[Peer, Progress] = {}
        self._leader_clock_offset_s = 0.0
        self._leader_clock = LeaderClock()
        self._table_age = TableAge()
        self.matched_index = 0
        """The index up to which this follower's log is known to be the leader's."""
        self._led_by: tuple[Peer, int] | None = None  # even while it is not heard of
        self._latest_sent: _SentEntries | None = None
        self.alarm = ""
        """Alarm text about acknowledged entries that a voter has lost."""

    # --- at a follower -----------------------------------------------------------------------

    def _on_append_entries(self, node: Peer, message: Message) -> None:
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
        self.matched_index = max(self.matched_index, match)
        self._acknowledge(node, next_index=match + 1, success=True)
        self.commit_to(min(message["commit_index"], match))

    def store(self, previous_index: int, previous_term: int, entries: list[Entry]) -> Stored:
        """Put another server's entries into the log; see ``RaftLog.store``."""
        stored = self._log.store(
            previous_index, previous_term, entries, commit_index=self.commit_index
        )
        if stored.match is not None and entries:
            self.synced_index = min(self.synced_index, previous_index)
        if stored.reconfigured:
            self._reconfigure()
        return stored

    def commit_to(self, index: int) -> None:
        """Learn that the log is committed up to ``index``, which it reaches."""
        assert index <= self._journal.last_index, "nothing beyond the log is committed"
        if index > self._SyncObj__raftCommitIndex:
            self._SyncObj__raftCommitIndex = index

    def _on_commit(self, node: Peer, message: Message) -> None:
        # No further than this leader, in this term, is known to have the same log as we.
        if message["term"] == self.term and node is self._SyncObj__raftLeader:
            self.commit_to(min(message["commit_index"], self.matched_index))

    def _on_heartbeat(self, node: Peer, message: Message) -> None:
        if self.follow(node.name, message):
            self._acknowledge(node, next_index=0)

    def follow(self, sender: ServerId, message: Message) -> bool:
        """Accept ``sender`` as the leader of the message's term; False when it is not."""
        node, term = self._peer(sender), message["term"]
        leader = self._SyncObj__raftLeader
        if term < self.term:
            self._acknowledge(node, next_index=0)  # Tells a deposed leader about the newer term.
            return False
        if term == self.term and (
            self.state == LEADER or (leader is not None and leader is not node)
        ):
            _log.error("%s and %s both lead in term %d; ignored", leader, node, term)
            return False
        known_term = self.term
        if term > known_term:
            self._SyncObj__setCurrentTerm(term, None)
        if leader is not node or self.state != FOLLOWER or term > known_term:
            self.matched_index = 0
        if self._led_by == (node, term):
            silence_s = self._active.now - self.leader_heard_at
            self._lateness.note(silence_s - self._settings.heartbeat_s, self._active.now)
        self._led_by = (node, term)
        self._SyncObj__setState(FOLLOWER)
        if term > known_term:
            self._lateness.ended_in_newer_term(self.leader_heard_at)
        self._SyncObj__raftLeader = node
        self._election_won = False
        self._asked_count = 0
        if not self._hand_over:
            self._postpone_election()
        now = self.leader_heard_at = self._active.now
        if "clock_ms" in message:
            clock_s = message["clock_ms"] / 1000
            self._leader_clock_offset_s = clock_s - now
            self._note_freshness((sender, term), clock_s, message)
        return True

    def _note_freshness(
        self, leadership: tuple[ServerId, int], clock_s: float, message: Message
    ) -> None:
        """Note as of when the leader's message is, or ask the leader for its clock."""
        now = self._active.now
        if message["type"] == "clock":
            self._leader_clock.answered(leadership, message["number"], clock_s, now)
        if (number := self._leader_clock.question(leadership, now)) is not None:
            self._host.send(leadership[0], {"type": "ask_clock", "number": number})
        delay_s = self._leader_clock.delay_s(leadership, clock_s, now)
        if delay_s is not None and "commit_index" in message:
            as_of = now - delay_s - message["majority_age_ms"] / 1000
            self._table_age.said(message["commit_index"], as_of)

    def _on_clock(self, node: Peer, message: Message) -> None:
        self.follow(node.name, message)

    def _on_ask_clock(self, node: Peer, message: Message) -> None:
        """Answer a follower that wants to know how old this leader's messages are."""
        if self.state == LEADER:
            answer = {"type": "clock", "number": message["number"], **self._authority()}
            self._host.send(node.name, {**answer, "commit_index": self.commit_index})

    def observe_leader(self, leader: ServerId | None, message: Message, delay_s: float) -> None:
        """Learn the leader from a voter's message, at a server without a vote.

        ``delay_s`` is for how long the message may have been held up.
        """
        if message["term"] > self.term:
            self._step_down(message["term"])
        if message["term"] == self.term and leader not in (None, self.server_id):
            self._SyncObj__raftLeader = self._peer(leader)
            # Gossip is no fresher than what the voter itself has heard.
            now, age_s = self._active.now, message["majority_age_ms"] / 1000
            self.leader_heard_at = now - age_s
            self._leader_clock_offset_s = message["clock_ms"] / 1000 - now
            self._table_age.said(message["commit_index"], now - delay_s - age_s)

    def doubt_messages(self) -> None:
        """Note that this server stood still: messages that arrive now may have waited."""
        self._leader_clock.forget()

    def clock_ms(self) -> int:
        """Return the leader's clock as this server knows it; its own if it leads."""
        return self.leader_clock_ms(self._active.now)

    def leader_clock_ms(self, deadline: float) -> int:
        """Convert an instant of this server's clock to the leader's, erring on the early side."""
        offset = 0.0 if self.state == LEADER else self._leader_clock_offset_s
        return int((deadline + offset) * 1000)

    def majority_age_s(self) -> float:
        """Seconds by which this table may lag behind the commits of a majority.

        A follower's table is as of the newest heartbeat up to whose commit index it is applied;
        a leader's as of the heartbeats that a majority has answered, when they were sent.
        """
        now = self._active.now
        as_of = self._table_age.as_of(self.applied_index)
        if self.state != LEADER or self.applied_index < (self._SyncObj__noopIDx or 0):
            return now - as_of  # A new leader does not know yet what others have committed.
        heard_at = self._SyncObj__lastResponseTime
        ages = [now - heard_at.get(peer, -NEVER) for peer in self._others()]
        if self.votes:
            ages.append(0.0)
        ages.sort()
        return ages[len(ages) // 2] if ages else NEVER

    def _SyncObj__setState(self, newState: int) -> None:
        """Let a leader that stops leading remember when it last heard from a majority."""
        if self.state == LEADER and newState != LEADER:
            as_of = self._active.now - self.majority_age_s()
            self._table_age.known(as_of)
            age_s = self._active.now - as_of
            _log.info("leads no more in term %d: a majority answered %.2f s ago", self.term, age_s)
            self.leader_heard_at = as_of
        super()._SyncObj__setState(newState)  # pyright: ignore[reportUnknownMemberType]

    def majority_age_ms(self) -> int:
        """Return ``majority_age_s`` as it travels; "never" becomes about 30 years."""
        return int(min(self.majority_age_s(), 1e9) * 1000)

    def acknowledge_snapshot(self, sender: ServerId, index: int) -> None:
        """Tell the leader that everything up to ``index`` is here."""
        self.matched_index = max(self.matched_index, index)
        self._acknowledge(self._peer(sender), next_index=index + 1, success=True)

    def _acknowledge(
        self, node: Peer, *, next_index: int, success: bool = False, rejected: int = -1
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

    # --- at the leader -----------------------------------------------------------------------

    def _on_next_node_idx(self, node: Peer, message: Message) -> None:
        if message["term"] > self.term:
            self._step_down(message["term"])
            return
        progress = self._progress.get(node)
        if message["term"] != self.term or self.state != LEADER or progress is None:
            return
        next_index, match = message["next_node_idx"], self._SyncObj__raftMatchIndex[node]
        self._heard(node, progress, message)
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
            if progress.mode is Mode.SNAPSHOT or (probing and message["rejected"] != expected):
                return
            if 0 < message["rejected"] <= match:
                self._has_lost(node, match)
                match = 0
            back = min(next_index, message["rejected"])
            self._SyncObj__raftNextIndex[node] = max(back, match + 1)
            progress.rejected()
            self._replicate_to(node, heartbeat=False)

    def _has_lost(self, node: Peer, match: int) -> None:
        """Count no more on entries that a voter acknowledged and does not have any more.

        Answers come in order, and those of earlier connections are dropped: it is no old answer.
        """
        self.alarm = f"server {node.name} has lost entries up to {match} that it had acknowledged"
        _log.error("%s; it gets them again", self.alarm)
        self._SyncObj__raftMatchIndex[node] = 0

    def _heard(self, node: Peer, progress: Progress, answer: Message) -> None:
        """Note contact with a follower at the instant at which the answered message was sent.

        The answer itself may have waited, at the follower, on its way or in a socket here.
        """
        success = answer["success"]
        sent_at = progress.sent_at(
            match=answer["next_node_idx"] - 1 if success else -1, rejected=answer["rejected"]
        )
        if sent_at is not None and sent_at > self._SyncObj__lastResponseTime[node]:
            self._SyncObj__lastResponseTime[node] = sent_at
            self._latest_sent = None  # It says how fresh the contact with a majority is.

    def match_index(self, peer: ServerId) -> int:
        """Return the index up to which a voter is known to have the leader's log."""
        return self._SyncObj__raftMatchIndex.get(self._peer(peer), 0)

    def is_followed_by(self, peer: ServerId) -> bool:
        """Tell whether a voter accepted entries or a probe by its present connection, and answers.

        One that went silent may have forgotten its promises since (seed 10162442).
        """
        node = self._peer(peer)
        progress = self._progress.get(node)
        if progress is None or progress.mode is not Mode.REPLICATE:
            return False
        answered_at = self._SyncObj__lastResponseTime.get(node, -NEVER)
        return self._active.now - answered_at < self._settings.leader_fallback_s

    def forget_match(self, peer: ServerId) -> None:
        """Reset a voter's match index: its disk has lost acknowledged entries."""
        node = self._peer(peer)
        if (progress := self._progress.get(node)) is not None:
            progress.become(Mode.PROBE)
            self._SyncObj__raftMatchIndex[node] = 0
            self._SyncObj__raftNextIndex[node] = self._journal.last_index + 1

    def replicate(self) -> None:
        """Send every voter its missing log entries, as far as flow control allows."""
        if self.state == LEADER:
            for peer in self._others():
                if peer in self._SyncObj__connectedNodes:
                    self._replicate_to(peer, heartbeat=False)
            self._log.forget_encoded()

    def _replicate_to(self, peer: Peer, *, heartbeat: bool) -> None:
        """Send one voter entries, a commit index, or a sign of life (findings L1, L5)."""
        progress, journal = self._progress[peer], self._journal
        if progress.rests and not heartbeat:
            return
        progress.rests = False
        next_index = self._SyncObj__raftNextIndex[peer]
        if next_index <= journal.base_index or progress.mode is Mode.SNAPSHOT:
            progress.mode = Mode.SNAPSHOT
            self._host.send_snapshot(peer.name, leading=True)
            if heartbeat:
                self._host.send(peer.name, {"type": "heartbeat", **self._authority()})
                progress.asked(-1, -1, self._active.now)
            return
        if progress.mode is Mode.PROBE:
            if heartbeat or not progress.probe_sent:
                # A follower that is slow to answer gets the same entries once.
                size_max = 0 if progress.probe_sent else PROBE_BYTES_MAX
                progress.probe_sent = True
                self._send_entries(peer, next_index, size_max)
            return
        idle = True
        newest = journal.last_index
        while next_index <= newest and progress.has_room():
            last_index, size = self._send_entries(peer, next_index, BATCH_BYTES_MAX)
            progress.sent(last_index, size)
            next_index, idle = last_index + 1, False
        if not idle:
            self._SyncObj__raftNextIndex[peer] = next_index
        commit_index = self.commit_index
        if idle and heartbeat:
            self._send_entries(peer, next_index, 0)
        elif idle and commit_index > progress.commit_sent:
            message = {"type": "commit", "term": self.term, "commit_index": commit_index}
            self._host.send(peer.name, message)
        progress.commit_sent = commit_index

    def _send_entries(self, peer: Peer, next_index: int, bytes_max: int) -> tuple[int, int]:
        """Send entries from ``next_index`` on; return the last index and the size."""
        last_index, data = self.encoded_entries(next_index, self._journal.last_index, bytes_max)
        # Followers mostly lack the same entries: they get the same message, encoded once.
        key = _EntriesKey(next_index, last_index, self.commit_index, self.term, self._active.now)
        latest = self._latest_sent
        if latest is None or latest.key != key:
            message: Message = {
                "type": "append_entries",
                "commit_index": self.commit_index,
                "prevLogIdx": next_index - 1,
                "prevLogTerm": self._journal.term_at(next_index - 1),
                "entries": data,
                **self._authority(),
            }
            latest = self._latest_sent = _SentEntries(key, message)
        self._host.send(peer.name, latest.message)
        self._progress[peer].asked(next_index - 1, last_index, self._active.now)
        return last_index, len(data)

    def encoded_entries(self, first: int, last: int, bytes_max: int) -> tuple[int, bytes]:
        """Return entries for a peer; see ``RaftLog.encoded``."""
        return self._log.encoded(first, last, bytes_max)

    def may_leave_early(self, message: Message) -> bool:
        """Tell whether a message may leave while this server's journal is being synced.

        Entries may: until the leader has synced them, it does not count them as its own, and to
        lose them is to lose a message. What the message rests on must be durable. That is the
        leader's vote for itself, else it could vote for another leader of the same term. It is
        also the entry before those sent, and the commit index: followers remember both as
        something that this server has.
        """
        match message["type"]:
            case "append_entries":
                term, index = message["term"], max(message["prevLogIdx"], message["commit_index"])
            case "commit":
                term, index = message["term"], message["commit_index"]
            case "heartbeat" | "clock":
                term, index = message["term"], 0
            case "ask_clock":  # rests on nothing
                return True
            case "forward_response":  # says no more than where the command would stand
                term, index = message["log_term"], 0
            case _:
                return False
        return self._journal.synced_vote == (term, self.server_id) and index <= self.synced_index

    def _authority(self) -> Message:
        return {
            "term": self.term,
            "clock_ms": self.clock_ms(),
            "majority_age_ms": self.majority_age_ms(),
        }

    def _SyncObj__sendAppendEntries(self) -> None:
        """Send heartbeats; replaces a loop that ran until time had passed (finding L5)."""
        self._SyncObj__newAppendEntriesTime = self._active.now + self._settings.heartbeat_s
        for peer in self._others():
            if peer in self._SyncObj__connectedNodes:
                self._progress[peer].heartbeat()
                self._replicate_to(peer, heartbeat=True)

    def _SyncObj__onBecomeLeader(self) -> None:
        """Begin a leadership knowing nothing of the followers' logs."""
        self._reset_progress()
        self.library_becomes_leader()

    def _restart_probe(self, node: Peer) -> None:
        progress = self._progress.get(node)
        if progress is not None and self.state == LEADER:
            progress.connection_begins()
            progress.become(Mode.PROBE)
            match = self._SyncObj__raftMatchIndex[node]
            if match:
                self._SyncObj__raftNextIndex[node] = match + 1

    def _reset_progress(self) -> None:
        self._progress = {peer: Progress() for peer in self._others()}


_COVERED = -1  # beside the library's reasons for failure, which are positive


class RaftCore(Replication):
    """Deterministic Raft core: only ``RaftNode`` steps it; no I/O, clock or random source."""

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
        """Call ``resolve`` with the outcome once any entry at ``index`` is applied."""
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
