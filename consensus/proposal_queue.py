"""Commands of this server on their way into the log, and those that other servers forward.

A proposal here is one attempt. It gets exactly one outcome, within the time that its caller gave
it; to attempt a command again is the affair of the caller (``remoting/server/proposer.py``).

A proposal's states and events; ``RaftNode.step`` calls ``expire``, then ``drain``::

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

What is never true.

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
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from gpupool.consensus.core.library import BARRIER_TYPE, COMMAND_TYPE, LEADER, NEVER
from gpupool.consensus.core.raft_core import RaftCore
from gpupool.consensus.protocol import closed_cbor
from gpupool.consensus.protocol.raft_messages import Message
from gpupool.consensus.protocol.raft_settings import (
    COMMAND_BYTES_MAX,
    QUEUE_COMMANDS_MAX,
    UNCOMMITTED_ENTRIES_MAX,
)
from gpupool.consensus.storage.journal import Journal
from gpupool.pool.errors import RemoteProtocolError
from gpupool.pool.model.ids import Plain, ServerId
from gpupool.pool.ports import NotCommitted, Outcome, Refusal, Unknown

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
