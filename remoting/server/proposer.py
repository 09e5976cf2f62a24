r"""Gets commands committed, without I/O: the one rule by which a proposal is attempted again.

Every command is idempotent by its content, so an attempt without a known outcome is repeated until
one is committed or the time is up. The replicated log below makes single attempts only.

Who drives it. The controller owns one ``Proposer``; ``Propose`` is among its actions, and the
server or the simulator carries that out and reports ``outcome``. ``committer.py`` drives one for a
server that starts or stops, ``simulations/cluster/simulated_driver.py`` one for a pool that is
made. Nothing else repeats a proposal.

A command's states and events::

    state \ event   Committed        Committed     NotCommitted,     NotCommitted,   poll at
                    (any result)     "expired"     Unknown           final           retry_at
    attempted       decided: result  waiting (*)   waiting (*)       decided: none   -
    waiting         -                -             -                 -               attempted
    in line         -                -             -                 -               decided: none

(*) decided without a result when the next attempt would begin after the deadline. The pause before
it doubles from ``RETRY_BASE_S`` to ``RETRY_MAX_S`` and is drawn from its upper half, so that the
servers that lost one leader do not all ask the next one at the same instant.

A user has ``USER_COUNT_MAX`` commands under way at a server. Further ones stand in a line of that
user, and each is attempted when an earlier one is decided, or decided without a result at its
deadline. So one user's calls do not fill the log that all others wait for.

What is always true.

- ``then`` is called exactly once for each command, and never from within ``propose``.
- One attempt of a command is under way at a time, and has a deadline of its own, after which
  consensus appends it nowhere.
- No attempt of one era expires before an earlier one: once a later one is refused as expired, no
  earlier one can be applied any more. An earlier one may have been applied in time, though, so
  that the refusal alone does not make the decision certain. A new era of the table's time, which
  an operator's ``SetClock`` begins, refuses all attempts of the former one.
- A leader that finds a stamp ahead of the voters' clocks (``Refusal.CLOCK``) refuses one attempt:
  the next ones carry the table's own time, which every leader takes. One that refuses that too
  refuses the command: then this is the decision.
- No attempt of a command that the pool's time made due carries an earlier time than that. If it
  would, the command is decided without a result: who proposed it looks at the time again.
- A command that the oldest server of the pool does not know is refused, and never attempted.
- A decision without a result is uncertain exactly when an attempt ended as ``Unknown``.
- By the table's time, a bounded command is not applied later than ``TTL_SLACK_S`` after its
  caller's deadline.
"""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from gpupool.pool.model.codec import CodecError, decode
from gpupool.pool.model.commands import NAMES, Command, objection, wrap
from gpupool.pool.model.formats import VERSION
from gpupool.pool.model.ids import Plain
from gpupool.pool.model.results import RefusalKind, Result, refuse
from gpupool.pool.ports import (
    Committed,
    NotCommitted,
    Outcome,
    Randomness,
    Refusal,
    Unknown,
)
from gpupool.pool.table_clock import TableClock

ATTEMPT_S = 0.8
"""One attempt: more than the 0.5 s in which a new leader is found after a crash."""

TTL_SLACK_S = 2.0
"""A command outlives its caller's deadline by so much at most; see ``wrap``."""

CLOCK_REFUSALS_MAX = 4
"""From the second on a stamp cannot be why, so that it is the command itself: a ``SetClock``. A new
leader that has not applied all yet may refuse another one."""

RETRY_BASE_S = 0.02
"""The pause is at most twice this after the first attempt: an election takes ten times as long."""

RETRY_MAX_S = 0.25
"""Longest pause."""

USER_COUNT_MAX = 32
"""Commands of one user's calls under way; a commit takes milliseconds: hundreds a second."""


@dataclass(frozen=True, slots=True)
class Propose:
    """Action: propose this command, and report its outcome under ``number``."""

    number: int
    command: Plain
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Decision:
    """The end of a command's way.

    ``result`` is the table's own answer. Without it no attempt is known to be committed;
    ``uncertain`` says whether one still may be.
    """

    result: Result | None
    uncertain: bool
    why: str


@dataclass(slots=True)
class _Pending:
    command: Command
    deadline: float  # monotonic
    then: Callable[[Decision], None]
    bounded: bool  # carries an expiry, so that it cannot fire long after its caller has gone
    due_ms: int  # the pool's time by which it is right; no stamp is earlier
    user: str  # whose call it is for; empty: the server's own
    in_line: bool = False
    attempts: int = 0
    uncertain: bool = False
    why: str = "no leader"
    retry_at: float | None = None
    expires_ms: int = 0  # table time
    era: int = 0  # of that time
    clock_refusals: int = 0


class Proposer:
    """All commands that this server has under way."""

    def __init__(
        self,
        table_clock: TableClock,
        rng: Randomness,
        *,
        emit: Callable[[Propose], None],
        formats: Callable[[], int] = lambda: VERSION,
    ) -> None:
        """Begin without commands; ``formats`` returns the version that all servers know."""
        self._table_clock, self._clock = table_clock, table_clock.clock
        self._rng = rng
        self._emit = emit
        self._formats = formats
        self._pending: dict[int, _Pending] = {}
        self._under_way: Counter[str] = Counter()  # by user, without those in line
        self._lines: dict[str, deque[int]] = {}
        self._number = 0

    def __len__(self) -> int:
        """Return how many commands are under way."""
        return len(self._pending)

    def propose(
        self,
        command: Command,
        then: Callable[[Decision], None],
        *,
        timeout_s: float,
        bounded: bool = True,
        due_ms: int = 0,
        user: str = "",
    ) -> None:
        """Get ``command`` committed within ``timeout_s``, and call ``then`` once, in any case.

        ``due_ms`` is the pool's time at which somebody found that the command is due, ``user``
        whose call it is for.
        """
        self._number += 1
        deadline = self._clock.monotonic() + timeout_s
        pending = _Pending(command, deadline, then, bounded, due_ms, user)
        self._pending[self._number] = pending
        if user and self._under_way[user] >= USER_COUNT_MAX:
            pending.in_line, pending.retry_at = True, deadline
            self._lines.setdefault(user, deque()).append(self._number)
            return
        self._under_way.update((user,) if user else ())
        if objection(NAMES[type(command)], self._formats()) or self.at_ms() < due_ms:
            self._pending[self._number].retry_at = self._clock.monotonic()  # ``poll`` refuses it
        else:
            self._attempt(self._number)

    def outcome(self, number: int, outcome: Outcome) -> None:
        """Take the outcome of one attempt."""
        pending = self._pending.get(number)
        if pending is None:
            return
        if isinstance(outcome, Committed):
            try:
                result = decode(Result, outcome.result)
            except CodecError as error:
                result = Result(ok=False, kind=RefusalKind.INVALID.value, why=str(error))
            # An expired envelope says nothing of an earlier one whose outcome is not known: that
            # one may have been applied while there was time. No later one can be, though.
            if result.kind != RefusalKind.EXPIRED:
                self._decide(number, Decision(result, uncertain=False, why=result.why))
                return
            pending.why = result.why
        else:
            pending.uncertain |= isinstance(outcome, Unknown)
            pending.why = outcome.reason
            if isinstance(outcome, NotCommitted) and outcome.kind is Refusal.CLOCK:
                pending.clock_refusals += 1
                if pending.clock_refusals == CLOCK_REFUSALS_MAX:
                    result = None if pending.uncertain else refuse(RefusalKind.CLOCK, pending.why)
                    self._decide(number, Decision(result, pending.uncertain, pending.why))
                    return
            if isinstance(outcome, NotCommitted) and outcome.final:
                self._decide(number, Decision(None, pending.uncertain, pending.why))
                return
        now = self._clock.monotonic()
        wait_s = min(RETRY_MAX_S, RETRY_BASE_S * 2 ** min(pending.attempts, 8))
        retry_at = now + wait_s * (0.5 + 0.5 * self._rng.random())
        if retry_at < pending.deadline:
            pending.retry_at = retry_at
        else:
            self._decide(number, Decision(None, pending.uncertain, pending.why))

    def poll(self) -> None:
        """Make the attempts that are due."""
        now = self._clock.monotonic()
        for number, pending in list(self._pending.items()):
            if pending.retry_at is None or pending.retry_at > now:
                continue
            if pending.in_line:
                why = f"{USER_COUNT_MAX} other commands of {pending.user} go first"
                self._decide(number, Decision(None, uncertain=False, why=why))
            else:
                self._attempt(number)

    def wake_at(self) -> float:
        """Return when ``poll`` has to be called next."""
        wake_at = float("inf")
        for pending in self._pending.values():
            if pending.retry_at is not None and pending.retry_at < wake_at:
                wake_at = pending.retry_at
        return wake_at

    def _attempt(self, number: int) -> None:
        pending = self._pending[number]
        if why := objection(NAMES[type(pending.command)], self._formats()):
            refusal = refuse(RefusalKind.DENIED, why)
            self._decide(number, Decision(refusal, pending.uncertain, why))
            return
        pending.retry_at = None
        pending.attempts += 1
        left_s = pending.deadline - self._clock.monotonic()
        era = self._table_clock.era
        at_ms = self._table_clock.known_ms() if pending.clock_refusals else self.at_ms()
        if at_ms < pending.due_ms:
            why = "by the pool's time, as it is now, the command is not due"
            self._decide(number, Decision(None, pending.uncertain, why))
            return
        ttl_ms = 0
        if era != pending.era:
            pending.era, pending.expires_ms = era, 0
        if pending.bounded:
            # No attempt expires before an earlier one, so the last to expire ends them all.
            fresh_ms = at_ms + int((max(0.0, left_s) + TTL_SLACK_S) * 1000)
            pending.expires_ms = max(pending.expires_ms, fresh_ms)
            ttl_ms = pending.expires_ms - at_ms
        plain = wrap(pending.command, at_ms=at_ms, ttl_ms=ttl_ms, era=era)
        self._emit(Propose(number, plain, timeout_s=min(ATTEMPT_S, max(0.05, left_s))))

    def at_ms(self) -> int:
        """Return the pool's time, as this server knows it."""
        return self._table_clock.now_ms()

    def _decide(self, number: int, decision: Decision) -> None:
        pending = self._pending.pop(number)
        if pending.user and not pending.in_line:
            self._go_on(pending.user)
        pending.then(decision)

    def _go_on(self, user: str) -> None:
        """Let ``poll`` attempt the next of a user's line, in the place of one that is over."""
        line = self._lines.get(user, deque())
        while line:
            following = self._pending.get(line.popleft())
            if following is not None:  # else its deadline has come
                following.in_line, following.retry_at = False, self._clock.monotonic()
                return
        self._lines.pop(user, None)
        self._under_way[user] -= 1
        if not self._under_way[user]:
            del self._under_way[user]
