"""Firing alerts, ended alerts, and the times of messages about them. Pure code.

Alerts that begin within half a minute are one message. What goes on is told again after four hours,
and what is over once. In an hour twenty messages are sent at most; the next one has all that was
not told, and says how often it could not be.

Every server that could send follows what holds, and one of them tells (``alert_gate``). A server
that begins to send is silent for a minute first: the former sender may have told. So is one that
loses touch with a majority, which then tells of nothing else, and one that is in touch again: it
tells that this is over, also where another server is the sender now. So is one that stood still: it
cannot know who has sent meanwhile. The simulator runs this code
for each of its servers (``alert_checker``).
"""

import hashlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from gpupool.pool.telemetry import Health

GROUP_S = 30.0
REPEAT_S = 4 * 3600.0
MESSAGES_AN_HOUR = 20
SILENT_FIRST_S = 60.0
STANDSTILL_S = 30.0
"""After as long without a look a sender begins anew; looks come every 5 s."""
OVER_AFTER_S = 15.0
"""For which a condition must not hold before its alert is over."""
ALERTS_A_MESSAGE = 100
NO_MAJORITY = "NoMajority"
"""The rule of which a server tells that is in touch with no majority, and of no other."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One alert rule: its condition must hold for ``for_s`` before it fires."""

    name: str
    severity: str  # warning or critical
    text: str
    expression: str  # the same for Prometheus
    checks: tuple[str, ...] = ()  # findings of these, at least as bad as ``status``
    status: Health = Health.FAIL
    for_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Condition:
    """One rule that holds now for one subject."""

    rule: Rule
    subject: str
    text: str
    hint: str = ""
    since_ms: int = 0  # by the pool's time, where it is known: then all senders say the same


@dataclass(frozen=True, slots=True)
class Times:
    """The times of a sender, in seconds; the simulator has shorter ones."""

    group_s: float = GROUP_S
    repeat_s: float = REPEAT_S
    silent_first_s: float = SILENT_FIRST_S
    over_after_s: float = OVER_AFTER_S
    standstill_s: float = STANDSTILL_S
    hour_s: float = 3600.0  # in which so many messages are sent at most


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert; receivers tell repeats by its id."""

    id: str
    rule: str
    severity: str
    subject: str
    text: str
    hint: str
    began_ms: int
    ended_ms: int = 0  # 0: it fires


@dataclass(frozen=True, slots=True)
class Message:
    """Alerts that are told together; ``left_out`` is how many messages the limit held back."""

    alerts: tuple[Alert, ...]
    left_out: int = 0


def alert_id(rule: str, subject: str, began_ms: int) -> str:
    """Return the id of an alert: the same on all servers that saw it begin at the same time."""
    return hashlib.sha256(f"{rule}\0{subject}\0{began_ms}".encode()).hexdigest()[:32]


class _Role(Enum):
    """The alerts that a server may send."""

    ALL = "all"  # it is the sender
    CUT_OFF = "cut off"  # without a majority: of that alone
    OWN = "own"  # another one is the sender: that it is in touch again, if it told otherwise


@dataclass(slots=True)
class _Followed:
    condition: Condition
    since_s: float
    began_ms: int
    seen_s: float
    told_s: float | None = None  # when it was told last
    over_ms: int = 0


@dataclass(slots=True)
class AlertLog:
    """The alerts of one sender."""

    times: Times = Times()
    _followed: dict[tuple[str, str], _Followed] = field(
        default_factory=dict[tuple[str, str], _Followed]
    )
    _role: _Role | None = None
    _since_s: float = 0.0  # since when it has that role
    _looked_s: float = float("-inf")
    _due_s: float | None = None
    _sent: deque[float] = field(default_factory=deque[float])
    _left_out: int = 0

    def look(
        self,
        conditions: Iterable[Condition],
        now_s: float,
        now_ms: int,
        *,
        sends: bool,
        majority: bool = True,
    ) -> Message | None:
        """Follow the conditions that hold now, and return the message that is due, if one is.

        Args:
            conditions: what holds.
            now_s: monotonic time.
            now_ms: the pool's time.
            sends: whether this is the one that sends.
            majority: whether it is in touch with one; without, it tells of nothing else.
        """
        self._follow(conditions, now_s, now_ms)
        role = _Role.ALL if sends and majority else _Role.OWN if majority else _Role.CUT_OFF
        if role is not self._role or now_s - self._looked_s > self.times.standstill_s:
            self._role, self._since_s, self._due_s = role, now_s, None
        self._looked_s = now_s
        untold = self._untold(now_s)
        if not untold:
            self._due_s = None
            return None
        if self._due_s is None:
            silent_until_s = self._since_s + self.times.silent_first_s
            self._due_s = max(now_s + self.times.group_s, silent_until_s)
        return self._tell(untold, now_s) if now_s >= self._due_s else None

    def _follow(self, conditions: Iterable[Condition], now_s: float, now_ms: int) -> None:
        for condition in conditions:
            key = condition.rule.name, condition.subject
            known = self._followed.get(key)
            if known is None or known.over_ms:
                began_ms = condition.since_ms or now_ms
                self._followed[key] = _Followed(condition, now_s, began_ms, now_s)
            else:
                known.condition, known.seen_s = condition, now_s
        for key, known in list(self._followed.items()):
            if known.over_ms or now_s - known.seen_s < self.times.over_after_s:
                continue
            if known.told_s is None:
                del self._followed[key]  # it never fired, as far as anybody was told
            else:
                known.over_ms = now_ms

    def _untold(self, now_s: float) -> list[_Followed]:
        """Return the alerts to send: new alerts, those that go on, and those that are over."""
        found: list[_Followed] = []
        for known in self._followed.values():
            about_majority = known.condition.rule.name == NO_MAJORITY
            if self._role is not _Role.ALL and not about_majority:
                continue
            if self._role is _Role.OWN and not known.over_ms:
                continue
            fires = now_s - known.since_s >= known.condition.rule.for_s
            again = known.told_s is not None and now_s - known.told_s >= self.times.repeat_s
            if known.over_ms or (fires and (known.told_s is None or again)):
                found.append(known)
        return found

    def _tell(self, untold: list[_Followed], now_s: float) -> Message | None:
        self._due_s = None
        while self._sent and self._sent[0] <= now_s - self.times.hour_s:
            self._sent.popleft()
        if len(self._sent) >= MESSAGES_AN_HOUR:
            self._left_out += 1
            self._due_s = now_s + self.times.group_s
            return None
        for each in untold:
            each.told_s = now_s
        for key in [key for key, known in self._followed.items() if known.over_ms]:
            if self._followed[key] in untold:
                del self._followed[key]
        self._sent.append(now_s)
        left_out, self._left_out = self._left_out, 0
        return Message(tuple(_alert(each) for each in untold[:ALERTS_A_MESSAGE]), left_out)


def _alert(known: _Followed) -> Alert:
    condition, rule = known.condition, known.condition.rule
    return Alert(
        alert_id(rule.name, condition.subject, known.began_ms // 60_000),
        rule.name,
        rule.severity,
        condition.subject,
        condition.text,
        condition.hint,
        known.began_ms,
        known.over_ms,
    )
