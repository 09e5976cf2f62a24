"""Pulls: the way in which servers without a vote get the committed log.

A leader sends entries to voters only. A server without a vote asks a voter for the entries behind
its own (``pull``), and the voter answers with committed ones (``pulled``) or a snapshot; it holds
back an answer that would be empty for ``pull_wait_s``, so that a pull is also the notice of the
next commit. Committed entries are safe to take from anyone at any time.

``Puller`` is the end without a vote::

    event                       what it does
    connected                   pulls at once, when it pulls from nobody
    an answer that helps        pulls from the same server again, or from the first in order
                                unless one failed to help in the last ``RETURN_S``
    an answer that does not     pulls from the next one in order
    entries that do not fit     pulls from the next one in order after ``pull_wait_s``
    no answer in time           pulls from the next one in order
    no help for ``lost_s``      takes every server of the pool for a source, not voters only
    no voter is connected       takes every server that is
    "you have no vote"          pulls from the sender, though this server takes itself for a voter
    a voter in repair hears     pulls, since it may have lost its vote: it never campaigns, so
    no leader                   nobody tells it
    a vote of its own           stops

Each server has an order of sources of its own, by rendezvous hashing: the voters have about as many
followers each, and when one goes, its followers spread over all the others.

``PullResponder`` is a voter's end. It also knows how far each follower has applied the log, which
decides when one may get a vote.

An answer has no number. A link that was cut for seconds may bring the answer to a pull that was
given up long ago, after the same server was asked anew. Connections keep their order, and a pull
has one answer at most. So an answer counts as one to the oldest pull of its connection that has
none yet; it cannot be to an earlier one. An older server may leave a pull without an answer, and so
may any in the midst of a snapshot. Later answers then seem older than they are, so a connection
with several of these is made anew.

What is never true: that a voter pulls, but for one that was told that it lost its vote or is being
repaired; that a pulled entry is beyond the answering server's commit index.
"""

import logging
from collections import deque
from functools import lru_cache, partial
from hashlib import sha256
from typing import NamedTuple

from gpupool.consensus.core.library import NEVER
from gpupool.consensus.node_context import NodeContext
from gpupool.consensus.protocol.raft_messages import Message
from gpupool.consensus.protocol.raft_settings import BATCH_BYTES_MAX, WAITING_PULLS_MAX
from gpupool.consensus.snapshot_transfer import SnapshotTransfer
from gpupool.consensus.storage.journal import decode_entries
from gpupool.pool.model.ids import ServerId

OUTSTANDING_MAX = 16
"""Pulls by one connection that wait for their answers."""

UNANSWERED_MAX = 2
"""So many pulls of its connection may be left without an answer when one arrives."""

RETURN_S = 30.0
"""After a source did not help, the first in order is not asked again before."""

_log = logging.getLogger(__name__)


@lru_cache(maxsize=8192)
def source_weight(follower: ServerId, source: ServerId) -> bytes:
    """Return the rendezvous hash by which ``follower`` orders its sources, smallest first."""
    return sha256(f"{follower} {source}".encode()).digest()


class Puller:
    """Pulls the voters' log for a server without a vote."""

    def __init__(self, context: NodeContext) -> None:
        """Begin without a source; the first step or connection finds one."""
        self._context = context
        self._source: ServerId | None = None
        self._deadline = context.now
        self._answered_at = context.now
        self._alive_at = context.now
        self._asked_at = context.now
        self._outstanding: dict[ServerId, deque[float]] = {}  # when each was asked, by connection
        self.anew: set[ServerId] = set()
        """Servers to which the connection is to be made anew."""
        self._excluded = False
        self._return_at = context.now

    @property
    def is_lost(self) -> bool:
        """True when the voters that this server knows may all be gone."""
        silence = self._context.now - self._answered_at
        return not self._context.core.voters or silence > self._context.settings.lost_s

    @property
    def source(self) -> ServerId | None:
        """The server that is asked. Of the voters of an old log that it reads none may be left."""
        return self._source

    def due_at(self) -> float:
        """Return the instant at which ``step`` is due."""
        core = self._context.core
        if not self._context.frames or (core.votes and not core.abstains):
            return NEVER
        return self._in_doubt_at() if core.votes else min(self._deadline, self._alive_at)

    # --- events ------------------------------------------------------------------------------

    def connected(self) -> None:
        """Pull by the new connection, unless another source is being asked."""
        if self._source is None:
            self._deadline = self._context.now

    def disconnected(self, peer: ServerId) -> None:
        """Ask another source when ``peer`` was the one."""
        self._outstanding.pop(peer, None)
        self.anew.discard(peer)
        if self._source == peer:
            self._source, self._deadline = None, self._context.now

    def configuration_changed(self) -> None:
        """Let a server that got its vote stop pulling."""
        self._source = None

    def excluded(self, by: ServerId) -> None:
        """Pull from the server that says that this one lost its vote, to see for itself.

        A leader stops sending to a voter as soon as it appends the removal, so that the removed
        one does not learn of it otherwise.
        """
        if not self._excluded or self._context.now >= self._deadline:
            self._excluded = True
            self.pull(by)

    def step(self) -> None:
        """Pull when that is due, and tell the voters how far this server is."""
        context = self._context
        if context.core.votes:
            # An answer that names a leader is no sign that this server has a vote.
            self._excluded = self._excluded and context.now < self._deadline
            if context.core.abstains and context.now >= self._in_doubt_at():
                self._doubt()
            return
        self._excluded = False
        if context.now >= self._alive_at:
            self._alive_at = context.now + context.settings.alive_s
            alive: Message = {"type": "alive", "applied_index": context.core.applied_index}
            for peer in self._sources():
                context.frames.send(peer, alive)
        if context.now < self._deadline:
            return
        sources = self._sources()
        if sources:
            self._pull_next(sources)
        else:
            self._source, self._deadline = None, context.now + context.settings.pull_timeout_s

    def on_pulled(self, peer: ServerId, message: Message) -> None:
        """Take committed entries."""
        context = self._context
        core = context.core
        asked_at = self.answered(peer)
        if not self.takes_from(peer):
            return
        try:
            entries = decode_entries(message["entries"])
        except ValueError as error:
            _log.warning("entries from %s cannot be read: %s", peer, error)
            return
        leader = message["leader"]
        # An answer is held back for ``pull_wait_s`` at most; a later one was held up on its way.
        held_up_s = context.now - asked_at - context.settings.pull_wait_s
        leader_id = None if leader is None else ServerId(leader)
        core.observe_leader(leader_id, message, max(held_up_s, 0.0))
        known = core.commit_index
        stored = core.store(message["prevLogIdx"], message["prevLogTerm"], entries)
        if stored.match is not None:
            core.commit_to(min(message["commit_index"], stored.match))
        gained = core.commit_index > known
        # Servers that are out of touch themselves could answer each other for ever.
        helpful = gained or message["majority_age_ms"] < 1000 * context.settings.lost_s
        if helpful:
            self._answered_at = context.now
        if entries and not gained:
            # To ask again at once is to get the same again, as fast as both can.
            self._deadline = min(self._deadline, context.now + context.settings.pull_wait_s)
        elif core.votes and not entries:
            self._excluded, self._source = False, None  # It was the other who did not know.
        elif helpful:
            sources = self._sources() if context.now >= self._return_at else []
            self.pull(sources[0] if sources else peer)
        else:
            self._pull_next(self._sources() or [peer])

    # --- what a snapshot in place of entries needs -------------------------------------------

    def takes_from(self, peer: ServerId) -> bool:
        """Tell whether an answer of ``peer`` is waited for."""
        return peer == self._source and (not self._context.core.votes or self._excluded)

    def answered(self, peer: ServerId) -> float:
        """Take note of an answer; return the earliest instant at which it was asked for.

        That is ``-NEVER`` when no pull of this connection waits for one.
        """
        asked = self._outstanding.get(peer)
        if not asked:
            return -NEVER
        if len(asked) > UNANSWERED_MAX + 1:
            self.anew.add(peer)
        return asked.popleft()

    def snapshot_piece_arrived(self) -> None:
        """Give the source time for the next piece."""
        self._deadline = self._context.now + self._context.settings.pull_timeout_s
        self._answered_at = self._context.now

    def pull(self, peer: ServerId) -> None:
        """Request from ``peer`` the entries after this server's commit index."""
        context = self._context
        self._source, self._asked_at = peer, context.now
        self._deadline = context.now + context.settings.pull_timeout_s
        asked = self._outstanding.setdefault(peer, deque())
        if len(asked) < OUTSTANDING_MAX:
            asked.append(context.now)
        else:
            self.anew.add(peer)
        context.frames.send(peer, {"type": "pull", "next_index": context.core.commit_index + 1})

    # --- inside ------------------------------------------------------------------------------

    def _in_doubt_at(self) -> float:
        """Return the instant at which a voter in repair that hears no leader pulls."""
        since = max(self._context.core.leader_heard_at, self._asked_at)
        return since + self._context.settings.pull_timeout_s

    def _doubt(self) -> None:
        """Pull, as a server does that was told that it lost its vote."""
        self._asked_at = self._context.now
        if sources := self._sources():
            self._excluded = True
            self._pull_next(sources)

    def _pull_next(self, sources: list[ServerId]) -> None:
        """Pull from the next one in order after the one that did not help."""
        if self._source is None:
            self.pull(sources[0])
            return
        self._return_at = self._context.now + RETURN_S
        place = sources.index(self._source) + 1 if self._source in sources else 0
        self.pull(sources[place % len(sources)])

    def _sources(self) -> list[ServerId]:
        context = self._context
        candidates = {*context.core.voters, *(context.servers if self.is_lost else ())}
        connected = candidates & context.frames.connected()
        if not connected and not context.core.votes:
            # Of the voters of an old log none may be left, while those of today are here.
            connected = context.frames.connected()
        return sorted(connected, key=partial(source_weight, self._context.server_id))


class _WaitingPull(NamedTuple):
    next_index: int
    since: float


class PullResponder:
    """Answers the pulls of followers, and knows how far they are."""

    def __init__(self, context: NodeContext, snapshots: SnapshotTransfer) -> None:
        """Begin without followers; ``snapshots`` serves followers that need compacted entries."""
        self._context = context
        self._snapshots = snapshots
        self._pulls: dict[ServerId, _WaitingPull] = {}
        self._applied_by: dict[ServerId, int] = {}

    def due_at(self) -> float:
        """Return the instant at which an answer is held back no longer."""
        if not self._pulls:
            return NEVER
        since = min([pull.since for pull in self._pulls.values()])
        return since + self._context.settings.pull_wait_s

    def caught_up(self) -> set[ServerId]:
        """Return the connected followers that have nearly the whole log."""
        context = self._context
        floor = context.core.commit_index - context.settings.learner_lag_max
        near = {peer for peer, applied in self._applied_by.items() if applied >= floor}
        return near & context.frames.connected()

    def disconnected(self, peer: ServerId) -> None:
        """Drop the pull of ``peer`` from a closed connection."""
        self._pulls.pop(peer, None)

    def forget(self, peer: ServerId) -> None:
        """Forget a server that is no longer in the pool."""
        self._applied_by.pop(peer, None)

    def on_pull(self, peer: ServerId, message: Message) -> None:
        """Note a pull, to be answered by ``answer``; one that waits is answered now."""
        if (waiting := self._pulls.get(peer)) is not None:
            self._answer_one(peer, max(waiting.next_index, 1))
        if peer in self._pulls or len(self._pulls) < WAITING_PULLS_MAX:
            self._pulls[peer] = _WaitingPull(message["next_index"], self._context.now)
            self._applied_by[peer] = message["next_index"] - 1

    def on_alive(self, peer: ServerId, message: Message) -> None:
        """Note how far ``peer`` is."""
        self._applied_by[peer] = message["applied_index"]

    def answer(self) -> None:
        """Answer the pulls for which there is something new, and those that waited long enough."""
        if not self._pulls:
            return
        commit_index = self._context.core.commit_index
        for peer, pull in sorted(self._pulls.items()):
            late = self._context.now - pull.since >= self._context.settings.pull_wait_s
            if pull.next_index <= commit_index or late:
                del self._pulls[peer]
                self._answer_one(peer, max(pull.next_index, 1))

    def _answer_one(self, peer: ServerId, next_index: int) -> None:
        core, journal = self._context.core, self._context.storage.journal
        previous = min(next_index - 1, core.commit_index)
        if previous < journal.base_index:
            self._snapshots.send(peer, leading=False)
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
        self._context.frames.send(peer, message)
