"""Elections: asking before campaigning, counting each voter once, and sparing a live leader."""

import logging

from gpupool.consensus.core.library import CANDIDATE, FOLLOWER, LEADER, NEVER, LibraryCore, Peer
from gpupool.consensus.protocol.raft_messages import Message
from gpupool.pool.model.ids import ServerId

_log = logging.getLogger(__name__)


ASKED_OFTEN = 16
"""Calls for votes in some 5 s, since a leader was heard of or a connection began."""

VOTE_LOST = "?"
"""A vote for a candidate that is not known any more; no server has this id."""


class Elections(LibraryCore):
    """What stands around the library's own campaign and vote."""

    abstains = False
    """While True, this voter neither votes nor campaigns: it may lack what it acknowledged."""

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
