"""Changes of the voters that a leader makes by itself, and handing over the leadership.

A leader brings the voters nearer to the desired list, one at a time (``membership.next_step``
chooses). It removes one only while those that answer are a majority of the rest. It never removes
itself: when all other changes are made and it is not desired, it lets a desired voter lead first. A
stopgap, such as a witness, is to lead only while no other voter can: it hands over once the voters
are as desired. A leader hands over to a voter that reaches more servers.

While a leader hands over it appends nothing, because under load the successor would never have the
whole log otherwise. A successor that does not lead within ``election_max_s`` is given up, and the
next attempt waits for ``hand_over_retry_s``. A stopgap waits for ``stopgap_retry_s`` after that,
since the others may be connected and unable to lead.

**Reach.** Two servers may be cut off from each other for long while a third hears both. If one of
the two leads, the pool holds the other one for lost: nothing is granted there, though clients
reach it.

A leader that lacks a connection to a server of the pool says to the voters how many it has, and
each answers how many it has itself. One that has more in ``ANSWERS`` answers in a row gets the
leadership. The number of servers that the leader reaches grows with each such change, so that the
leadership cannot go in a circle. An older build drops the messages.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from gpupool.consensus.core.library import LEADER, NEVER
from gpupool.consensus.followers import PullResponder
from gpupool.consensus.node_context import NodeContext
from gpupool.consensus.protocol import membership
from gpupool.consensus.protocol.raft_messages import Message
from gpupool.pool.model.ids import ServerId
from gpupool.pool.ports import Committed, Outcome

ASK_EVERY_S = 2.0
ANSWERS = 4
"""A dead server's connections do not end everywhere at the same moment."""


class Reach:
    """How many servers this one and the other voters are connected to."""

    def __init__(self, context: NodeContext) -> None:
        """Begin without knowing anything of others."""
        self._context = context
        self._asked_at = context.now
        self._more: dict[ServerId, int] = {}  # answers in a row of voters that reach more
        self._less: set[ServerId] = set()

    def step(self, *, always: bool) -> None:
        """Ask the voters if this server leads and lacks one, or ``always``."""
        context = self._context
        if context.core.state != LEADER:
            self._more = {}
        elif context.now >= self._asked_at + ASK_EVERY_S:
            self._asked_at = context.now
            count, all_others = self._counts()
            if always or count < all_others:
                for voter in context.core.voters:
                    context.frames.send(voter, {"type": "reach", "count": count})
            else:
                self._more = {}

    def on_reach(self, peer: ServerId, message: Message) -> None:
        """Answer the leader; or take a voter's answer."""
        core, (count, _) = self._context.core, self._counts()
        (self._less.add if message["count"] < count else self._less.discard)(peer)
        if core.state == LEADER:
            is_more = message["count"] > count
            self._more[peer] = self._more.get(peer, 0) + 1 if is_more else 0
        elif peer == core.leader:
            self._context.frames.send(peer, {"type": "reach", "count": count})

    def reaches_more(self) -> list[ServerId]:
        """Return the voters that reach more servers than this one does."""
        voters = self._context.core.voters
        return [peer for peer, times in self._more.items() if times >= ANSWERS and peer in voters]

    def reaches_less(self, voter: ServerId) -> bool:
        """Tell whether a voter has last said that it reaches fewer servers, asked or asking."""
        return voter in self._less

    def _counts(self) -> tuple[int, int]:
        """Return how many others this server is connected to, and how many there are."""
        context = self._context
        others = {*context.servers, *context.core.voters} - {context.server_id}
        return len(others & context.frames.connected()), len(others)


_log = logging.getLogger(__name__)


class VoterChanges:
    """The voters that this server wants when it leads, and the successor that it waits for."""

    def __init__(
        self,
        context: NodeContext,
        followers: PullResponder,
        unfit: Callable[[], Mapping[ServerId, str]],
    ) -> None:
        """Begin without a wish.

        ``followers`` says which servers have caught up, ``unfit`` whose answers do not count.
        """
        self._context = context
        self._followers = followers
        self._unfit = unfit
        self._desired: tuple[ServerId, ...] | None = None
        self._stopgaps: frozenset[ServerId] = frozenset()
        self._successor: ServerId | None = None
        self._successor_asked = False
        self._hand_over_until = -NEVER
        self._hand_over_again_at = -NEVER
        self._stopgap_again_at = -NEVER
        self._reach_again_at = -NEVER
        self.reach = Reach(context)

    @property
    def is_handing_over(self) -> bool:
        """True while nothing may be appended, because another server is to lead."""
        return self._successor is not None

    def due_at(self) -> float:
        """Return the instant at which a successor is given up."""
        return NEVER if self._successor is None else self._hand_over_until

    def desire(
        self, voters: Sequence[ServerId] | None, stopgaps: Collection[ServerId] = ()
    ) -> None:
        """Set the voters to be reached; None leaves them as they are.

        ``stopgaps`` are servers that lead only while no other voter can.
        """
        self._desired = None if voters is None else tuple(sorted(set(voters)))
        self._stopgaps = frozenset(stopgaps)

    def step(self) -> None:
        """Make the change that is due, if this server leads; go on with handing over."""
        self.reach.step(always=self._context.server_id in self._stopgaps)
        if self._context.core.state == LEADER:
            self._reconcile()
            self._let_lead_who_reaches_more()
        if self._successor is None:
            return
        if self._context.core.state != LEADER:
            self._successor = None
            self._stopgap_again_at = -NEVER
        elif self._context.now >= self._hand_over_until:
            self._successor = None
        elif not self._successor_asked:
            self._successor_asked = self._context.core.hand_over(self._successor)

    def begin_hand_over(self, candidates: Iterable[ServerId]) -> bool:
        """Choose the voter with the longest log; False when nobody can lead, or we do not."""
        context = self._context
        core = context.core
        if self._successor is not None:
            return True
        able = [p for p in candidates if p in context.frames and p != context.server_id]
        if core.state != LEADER or not able or context.now < self._hand_over_again_at:
            return False
        self._successor = max(able, key=lambda peer: (core.match_index(peer), peer))
        self._hand_over_until = context.now + context.settings.election_max_s
        self._hand_over_again_at = self._hand_over_until + context.settings.hand_over_retry_s
        self._successor_asked = False
        return True

    def _reconcile(self) -> None:
        core, desired, me = self._context.core, self._desired, self._context.server_id
        if desired is None or not core.settled or core.applied_index < core.commit_index:
            return  # a table that is behind may want voters of long ago
        if core.voters == desired:
            if me in self._stopgaps:
                self._end_stopgap()
            return
        ready = self._followers.caught_up()
        # A server that has only just connected has not said yet what it has forgotten.
        able = {me, *filter(core.is_followed_by, core.voters)} - self._unfit().keys()
        step = membership.next_step(core.voters, desired, ready=ready, able=able, leader=me)
        if step is not None:
            core.set_voters(step, partial(_say_voters, step))
        elif me not in desired:
            self.begin_hand_over(voter for voter in core.voters if voter in desired)

    def _end_stopgap(self) -> None:
        others = [
            voter
            for voter in self._context.core.voters
            if voter not in self._stopgaps and not self.reach.reaches_less(voter)
        ]
        due = self._successor is None and self._context.now >= self._stopgap_again_at
        if due and self.begin_hand_over(others):
            self._stopgap_again_at = self._context.now + self._context.settings.stopgap_retry_s

    def _let_lead_who_reaches_more(self) -> None:
        if self._context.now < self._reach_again_at:
            return
        better = [each for each in self.reach.reaches_more() if each not in self._unfit()]
        if better and self.begin_hand_over(better):
            self._reach_again_at = self._context.now + self._context.settings.stopgap_retry_s
            _log.info("hands over to %s, which reaches more servers", self._successor)


def _say_voters(voters: Sequence[ServerId], outcome: Outcome) -> None:
    how = "" if isinstance(outcome, Committed) else outcome.reason
    _log.info("the voters are %s%s", ", ".join(voters), f" (not yet: {how})" if how else "")
