"""Persisted votes and acknowledgements: servers that forgot them, clones, and repairs.

Raft is safe only while a voter remembers its votes and its acknowledged entries. A state directory
that was restored from an older copy has forgotten some, and a copied one lives twice. Neither can
notice that alone, so the others do (``storage/peer_memory.py``).

On each new connection both ends say ``hello``: boot, incarnation, term and last index. The
receiver compares that with what it remembers::

    what the hello says                              what it means           what is done
    a lower boot; the same with another incarnation  an older copy           refused
    a term below the highest one heard from it       an older copy           refused
    in that term, an index below an acknowledged one an older copy           refused
    the start before the last one heard, again       the last one is a clone clone refused, this not
    a start below one that is on probation           the latter is a clone   clone refused, this not
    a start that was found to be a clone             a clone                 refused
    "repairing"                                      its disk lost something told what it promised
    a server that ``gpupool recover`` left behind    another pool            refused
    anything else                                    a restart               remembered

Refused means: nothing that it says counts here, and it is told so. It then writes that down, and
ends: only as a new member, with a new id, may it come back.

**Clones.** A clone that starts looks like a restart. But a restarted process never speaks again as
its former self: when the former start is heard after the newer one, both live, and the newer one is
the clone. A start that takes the place of a connection that had not ended is therefore not listened
to for ``PROBATION_S``, within which the original dials again. Each further connection that it takes
from a living one begins that time anew: the original may have dialled, with a hello that waits for
its disk. A start is remembered once it is believed. One that ends before has said nothing that
counts here, and may have been a clone's: the original is not held to it (seed 110036). A connection
that was not listened to is made anew when its server is believed, as messages are missing in it.

**Repair.** A server whose superblock says that synced batches are missing (``floor``) neither votes
nor campaigns. It takes entries from the leader, and what it acknowledges it holds. It serves again
once its log has an entry that a leader of the floor's term, or of a later one, committed in its own
term. Each vote for that leader came from a server with its whole log: this one cast none since its
accident. So the leader's log has all that was committed before. What the leader itself committed
lies before that entry, as far as it counted on acknowledgements that are lost: it counts on none of
them any more once it hears of the repair. Until then it sends what follows them, which no log takes
that lacks them. An index would not do in place of that entry: others
remember one of the last term alone, and what was acknowledged in the terms before may lie behind.

An older build says no hello and remembers nothing; it is not refused for that.
"""

import logging
from contextlib import suppress
from dataclasses import replace

from gpupool.consensus.core.library import LEADER, NEVER
from gpupool.consensus.node_context import NodeContext
from gpupool.consensus.protocol.raft_messages import Message
from gpupool.consensus.storage.journal import REJOIN_HINT, Floor
from gpupool.consensus.storage.peer_memory import Remembered, Start
from gpupool.pool.errors import NoRoomError, StorageError
from gpupool.pool.model.ids import ServerId

PROBATION_S = 2.5
"""The original dials again within 1.5 s: the pause of the server with the larger id, and TLS."""

TOLD_S = 2.0
"""A server that was left behind is dialled for so long after it was told: the notice may be lost.
A server that got it has ended, and is not heard again."""

SAVE_EVERY_S = 5.0
"""How often promises are written."""

SAVE_URGENT_S = 0.25
"""Starts and refusals are written at once, but for many in a row, as when a pool comes back."""

_ELECTION = frozenset({"request_vote", "request_prevote", "timeout_now"})
_TERM_ONLY = frozenset({"request_vote", "response_vote", "heartbeat", "pulled", "snapshot"})
"""Messages that carry the sender's durable term, and acknowledge nothing."""

_log = logging.getLogger(__name__)


class PersistedVotes:
    """One node's memory of the others, and its own state of repair."""

    def __init__(self, context: NodeContext, start: Start) -> None:
        """Begin at ``start``; whether something must be repaired, the storage says."""
        self._context = context
        self._memory = context.storage.memory
        self._superblock = context.storage.superblock
        self._start = start
        self._refused: dict[ServerId, str] = {}
        self._ended_at: dict[ServerId, float] = {}
        self._told_at: dict[ServerId, float] = {}
        self._displaced: set[ServerId] = set()
        self._probation: dict[ServerId, float] = {}
        self._unproven: dict[ServerId, Start] = {}  # on probation, and not remembered yet
        self._speaks: dict[ServerId, Start] = {}  # by the present connection
        self._repairing: set[ServerId] = set()
        self._unheard: set[ServerId] = set()
        self.anew: set[ServerId] = set()
        """Peers to which to connect anew: a connection carries all messages in order or none, and
        messages of the probation are missing."""
        self._saved_at = float("-inf")
        self._urgent = False
        self._committed = (0, 0) if self.repairing else self._memory.committed
        self._alarm = ""
        self._repaired = False
        context.core.abstains = self.repairing

    @property
    def repairing(self) -> bool:
        """True while this server may lack something that it acknowledged."""
        return self._superblock.floor is not None

    def unfit(self) -> dict[ServerId, str]:
        """Return the servers with votes and acknowledgements that do not count, and the reasons."""
        found = dict.fromkeys(self._repairing, "it gets back from the others what its disk lost")
        found |= self._refused
        if self.repairing:
            found[self._context.server_id] = "it gets back from the others what its disk lost"
        return found

    @property
    def refused(self) -> dict[ServerId, str]:
        """The servers that this one refuses, and why."""
        return self._refused

    def alarm(self) -> str:
        """Return the alarm for operators beyond ``unfit``, or an empty string."""
        return self._alarm or self._context.core.alarm

    def to_tell(self) -> list[ServerId]:
        """Return the servers to dial only to tell them that they are fenced."""
        return [server for server, told in self._memory.fenced.items() if not told]

    # --- connections -------------------------------------------------------------------------

    def connected(self, peer: ServerId) -> None:
        """Say hello; a connection that takes the place of a living one is suspicious."""
        context = self._context
        self._displaced.discard(peer)
        self._speaks.pop(peer, None)
        if self._ended_at.get(peer) == context.now:
            self._displaced.add(peer)
        self._greet(peer)

    def _greet(self, peer: ServerId) -> None:
        journal = self._context.storage.journal
        hello: Message = {
            "type": "hello",
            "boot": self._start.boot,
            "incarnation": self._start.incarnation,
            "term": journal.term,
            "last_index": journal.last_index,
            "repairing": self.repairing,
        }
        self._context.frames.send(peer, hello)

    def disconnected(self, peer: ServerId) -> None:
        """Note when a connection ended."""
        self._ended_at[peer] = self._context.now
        self._speaks.pop(peer, None)
        self._unheard.discard(peer)
        self.anew.discard(peer)

    # --- messages ----------------------------------------------------------------------------

    def admits(self, peer: ServerId, message: Message) -> bool:
        """Tell whether a message may have any effect here."""
        if peer in self._refused or peer in self._memory.fenced:
            return False
        if not self._is_believed(peer):
            self._unheard.add(peer)
            return False
        return not (self.repairing and message["type"] in _ELECTION)

    def took(self, peer: ServerId, message: Message) -> None:
        """Remember the term and index that a message guarantees; called after its effect."""
        kind = message["type"]
        if kind == "next_node_idx":
            index = message["next_node_idx"] - 1 if message["success"] else 0
            self._memory.promised(peer, message["term"], index)
        elif kind == "append_entries":
            # What a leader's entries follow is durable there; they themselves may not be yet.
            index = max(message["prevLogIdx"], message["commit_index"])
            self._memory.promised(peer, message["term"], index)
            self._check_repair(message)
            self._check_committed()
        elif kind == "commit":
            self._memory.promised(peer, message["term"], message["commit_index"])
        elif kind in _TERM_ONLY:
            self._memory.promised(peer, message["term"], 0)

    def on_hello(self, peer: ServerId, message: Message) -> None:
        """Compare a server's hello with the memory of its starts, term and index."""
        known = self._memory.of(peer)
        start = Start(message["boot"], message["incarnation"])
        if peer in self._memory.fenced:
            self._refuse(peer, self._memory.why_fenced, start.boot)
            return
        newest = self._unproven.get(peer)
        if newest and (start == known.start or known.start.boot < start.boot < newest.boot):
            known = self._lives_twice(peer, replace(known, clone=newest))
        elif start == known.former != Start():
            known = replace(known, start=known.former, former=Start(), clone=known.start)
            known = self._lives_twice(peer, known)
        reason = _objection(known, start, message)
        if reason:
            self._refuse(peer, reason, start.boot)
            return
        self._refused.pop(peer, None)
        self._speaks[peer] = start
        if start != known.start:
            self._begin(peer, known, start)
        if message["repairing"]:
            self._help(peer)
        else:
            self._repairing.discard(peer)

    def _is_believed(self, peer: ServerId) -> bool:
        """Tell whether a server's newest start is no longer on probation."""
        return self._context.now >= self._probation.get(peer, -NEVER)

    def _lives_twice(self, peer: ServerId, known: Remembered) -> Remembered:
        """Remember that a server was heard after its clone."""
        _log.error(
            "server %s lives twice: its start %d is heard after start %d, whose state "
            "directory must be a copy; that one is refused",
            peer,
            known.start.boot,
            known.clone.boot,
        )
        self._remember(peer, known)
        self._probation.pop(peer, None)
        return known

    def _begin(self, peer: ServerId, known: Remembered, start: Start) -> None:
        if peer in self._displaced and known.start != Start():
            self._probation[peer] = self._context.now + PROBATION_S
        if self._is_believed(peer):
            self._remember(peer, replace(known, start=start, former=known.start))
        else:
            self._unproven[peer] = start

    def _remember(self, peer: ServerId, known: Remembered) -> None:
        self._memory.set(peer, known)
        self._unproven.pop(peer, None)
        self._urgent = True

    def _end_probation(self) -> None:
        """Remember the starts that are believed by now, and have not ended."""
        self.anew.update(filter(self._is_believed, self._unheard))
        for peer, start in list(self._unproven.items()):
            if self._is_believed(peer) and self._speaks.get(peer) == start:
                known = self._memory.of(peer)
                self._remember(peer, replace(known, start=start, former=known.start))

    def _help(self, peer: ServerId) -> None:
        """Send a server in repair its remembered term and index; count on neither any more."""
        self._repairing.add(peer)
        known = self._memory.of(peer)
        told: Message = {"type": "promised", "term": known.term, "index": known.index}
        self._context.frames.send(peer, told)
        if self._context.core.state == LEADER:
            self._context.core.forget_match(peer)

    def _refuse(self, peer: ServerId, reason: str, boot: int) -> None:
        text = f"{reason}; on it: gpupool rejoin"
        if self._refused.get(peer) != text:
            self._refused[peer] = text
            _log.error("server %s is refused: %s", peer, text)
        if self._memory.fenced.get(peer) is False:
            self._told_at[peer] = self._context.now
        refused: Message = {"type": "refused", "boot": boot, "reason": reason}
        self._context.frames.send(peer, refused)

    def on_refused(self, peer: ServerId, message: Message) -> None:
        """End: another server refuses this one for good.

        Raises:
            StorageError: always, unless an earlier start was meant.
        """
        if message["boot"] != self._start.boot:
            return
        why = f"server {peer} says: {message['reason'][:500]}"
        self._context.storage.forget(why)
        raise StorageError("this server may not take part any more", why=why, hint=REJOIN_HINT)

    def on_promised(self, peer: ServerId, message: Message) -> None:
        """Note this server's acknowledged term and index, which its superblock may lack."""
        if self._superblock.floor is not None:
            _log.info("%s remembers entry %d of this server", peer, message["index"])
            with suppress(NoRoomError):  # It holds for now, and after a start it is told again.
                self._superblock.lose(Floor(message["term"], message["index"]))
            self._context.core.forget_votes_up_to(message["term"])

    # --- repair ------------------------------------------------------------------------------

    def _check_repair(self, message: Message) -> None:
        """End the repair when the log has all that may have been promised; see the module."""
        floor, core = self._superblock.floor, self._context.core
        if floor is None or message["term"] != core.term:
            return
        commit, term = message["commit_index"], core.term
        holds = term >= floor.term and commit <= core.matched_index
        if holds and self._context.storage.journal.term_at(commit) == term:
            self._repaired = True

    def synced(self) -> None:
        """After a sync: end a repair with durable entries, and save the peer memory if due."""
        if self._repaired:
            self._repaired = False
            self._superblock.found()
            self._context.core.abstains = False
            _log.warning("this server has back what its disk had lost, and votes again")
            for peer in sorted(self._context.frames.connected()):
                self._greet(peer)
        if self._told_at:
            self._note_told()
        if self._unheard or self._unproven:
            self._end_probation()
        now = self._context.now
        if now < self._saved_at + (SAVE_URGENT_S if self._urgent else SAVE_EVERY_S):
            return
        self._note_committed()
        self._urgent, self._saved_at = False, now
        with suppress(NoRoomError):  # The memory may know too little; it is written later.
            if self._memory.dirty:
                self._memory.save()

    def _note_told(self) -> None:
        over = [p for p, at in self._told_at.items() if self._context.now > at + TOLD_S]
        for peer in over:
            del self._told_at[peer]
            self._memory.fenced[peer] = True
            self._memory.dirty = self._urgent = True

    # --- entries that were committed -----------------------------------------------------------

    def _note_committed(self) -> None:
        core = self._context.core
        index = core.commit_index
        term = self._context.storage.journal.term_at(index)
        if term is not None and index > self._memory.committed[1] and term > 0:
            self._memory.committed = (term, index)
            self._memory.dirty = True

    def _check_committed(self) -> None:
        """Raise the alarm when an entry that was known to be committed had to give way."""
        term, index = self._committed
        if not index:
            return
        journal = self._context.storage.journal
        if index > journal.base_index and journal.term_at(index) != term:
            self._alarm = (
                f"entry {index} of term {term} was committed and is lost: most of the servers "
                "that had acknowledged it have forgotten it"
            )
            _log.error("%s", self._alarm)
            self._committed = (0, 0)
        elif self._context.core.commit_index >= index:
            self._committed = (0, 0)


def _objection(known: Remembered, start: Start, hello: Message) -> str:
    """Return the reason to refuse a server: forgotten state or a clone; empty if none."""
    if start == known.clone != Start():
        return "its state directory is a copy of one that is in use"
    if hello["repairing"]:
        return ""
    if start.boot < known.start.boot:
        return (
            f"its state directory is an old copy: it has started {known.start.boot} times, and "
            f"knows of {start.boot}"
        )
    told = start.incarnation and known.start.incarnation
    if start.boot == known.start.boot and told and start != known.start:
        return f"its state directory is an old copy: another process made its start {start.boot}"
    if hello["term"] < known.term:
        return (
            f"its state directory is an old copy: it was in term {known.term}, and knows of "
            f"{hello['term']}"
        )
    if hello["term"] == known.term and hello["last_index"] < known.index:
        return (
            f"its state directory is an old copy: it had entry {known.index}, and its log ends "
            f"at {hello['last_index']}"
        )
    return ""
