"""Which alerts fire, which are over, and when a message about them is due. Pure code.

Alerts that begin within half a minute are one message. What goes on is told again after four hours,
and what is over once. In an hour twenty messages are sent at most; the next one has all that was
not told, and says how often it could not be. A server that begins to send is silent for a minute
first: the former sender may have told.
"""

import hashlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from gpupool.monitoring.health.alert_rules import Condition

GROUP_S = 30.0
REPEAT_S = 4 * 3600.0
MESSAGES_AN_HOUR = 20
SILENT_FIRST_S = 60.0
OVER_AFTER_S = 15.0
"""For which a condition must not hold before its alert is over."""
ALERTS_A_MESSAGE = 100


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

    name: str = "pool"
    _followed: dict[tuple[str, str], _Followed] = field(
        default_factory=dict[tuple[str, str], _Followed]
    )
    _sending_since_s: float | None = None
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
        """Take what holds now, and return the message that is due, if one is.

        Args:
            conditions: what holds.
            now_s: monotonic time.
            now_ms: the pool's time.
            sends: whether this is the one that sends.
            majority: whether it is in touch with one; without, it tells of nothing else.
        """
        self._follow(conditions, now_s, now_ms)
        if not sends:
            self._sending_since_s = self._due_s = None
            return None
        if self._sending_since_s is None:
            self._sending_since_s = now_s
        untold = self._untold(now_s, majority=majority)
        if not untold or now_s - self._sending_since_s < SILENT_FIRST_S:
            self._due_s = None if not untold else self._due_s
            return None
        self._due_s = now_s + GROUP_S if self._due_s is None else self._due_s
        # After the silence there has been time enough to group.
        if now_s < self._due_s and now_s - self._sending_since_s >= SILENT_FIRST_S + GROUP_S:
            return None
        return self._tell(untold, now_s)

    def _follow(self, conditions: Iterable[Condition], now_s: float, now_ms: int) -> None:
        for condition in conditions:
            key = condition.rule.name, condition.subject
            known = self._followed.get(key)
            if known is None or known.over_ms:
                told_s = None
                self._followed[key] = _Followed(condition, now_s, now_ms, now_s, told_s)
            else:
                known.condition, known.seen_s = condition, now_s
        for key, known in list(self._followed.items()):
            if known.over_ms or now_s - known.seen_s < OVER_AFTER_S:
                continue
            if known.told_s is None:
                del self._followed[key]  # it never fired, as far as anybody was told
            else:
                known.over_ms = now_ms

    def _untold(self, now_s: float, *, majority: bool) -> list[_Followed]:
        """Return what must be told: new alerts, those that go on, and those that are over."""
        found: list[_Followed] = []
        for known in self._followed.values():
            if not majority and known.condition.rule.name != "NoMajority":
                continue
            fires = now_s - known.since_s >= known.condition.rule.for_s
            again = known.told_s is not None and now_s - known.told_s >= REPEAT_S
            if known.over_ms or (fires and (known.told_s is None or again)):
                found.append(known)
        return found

    def _tell(self, untold: list[_Followed], now_s: float) -> Message | None:
        self._due_s = None
        while self._sent and self._sent[0] <= now_s - 3600.0:
            self._sent.popleft()
        if len(self._sent) >= MESSAGES_AN_HOUR:
            self._left_out += 1
            self._due_s = now_s + GROUP_S
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
