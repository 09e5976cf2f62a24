"""The checkers of alerts: one server at a time sends them, and each alert once.

All simulated servers are judged as if each had a file of receivers.
"""

from dataclasses import dataclass, field

from gpupool.pool import alert_gate
from gpupool.pool.alert_log import NO_MAJORITY, Condition, Message, Times
from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.state import PoolState, with_changes
from gpupool.pool.ports import RaftHealth
from gpupool.pool.view import MAJORITY_FRESH_S
from gpupool.simulations.kernel.failure_reporter import FailureReporter

OVERLAP_S = 6.0
"""Two servers may both take themselves for the sender until the table says that one lost contact.
A new sender is silent for a minute, ten times as long, so nothing is told twice for it."""

LOOK_EVERY_S = 0.5
LATE_S = 2.0
"""A server that has not looked for so long is down."""

SILENT_AFTER_S = MAJORITY_FRESH_S + 0.1

DOUBTFUL_S = 20.0
SLACK_S = 0.01


class OneSender:
    """No two servers send alerts for longer than contact takes to be noticed."""

    def __init__(self, failures: FailureReporter) -> None:
        self._failures = failures
        self._since: dict[ServerId, float] = {}
        self._looked: dict[ServerId, float] = {}
        self._doubtful_until = 0.0
        self._able: tuple[object, PoolState] | None = None

    def due(self, server: ServerId, now: float) -> bool:
        """Return whether it is time to look at a server."""
        return now >= self._looked.get(server, float("-inf")) + LOOK_EVERY_S

    def clocks_differ(self, until: float) -> None:
        """Take note that clocks run at rates that real ones do not have."""
        self._doubtful_until = max(self._doubtful_until, until + DOUBTFUL_S)

    def looked(self, server: ServerId, state: PoolState, health: RaftHealth, now: float) -> None:
        """Judge a server's decision to send alerts now."""
        before, self._looked[server] = self._looked.get(server, now), now
        if not self.sends(server, state, health):
            self._since.pop(server, None)
            return
        age_s = health.majority_age_s
        if age_s > SILENT_AFTER_S:
            text = f"{server} sends, and has not heard of a majority for {age_s:.1f} s"
            self._failures.fail("one-sender", text)
        if now - before > LATE_S:
            self._since.pop(server, None)
        self._since.setdefault(server, now)
        senders = {
            each: max(since, self._doubtful_until)
            for each, since in self._since.items()
            if now - self._looked[each] <= LATE_S
        }
        both_s = now - max(senders.values())
        if len(senders) > 1 and both_s > OVERLAP_S:
            names = ", ".join(sorted(senders))
            self._failures.fail("one-sender", f"{names} have all sent alerts for {both_s:.0f} s")

    def sends(self, server: ServerId, state: PoolState, health: RaftHealth) -> bool:
        """Return whether a server would send alerts, if each had a file of receivers."""
        return alert_gate.sends_alerts(self._with_files(state), server, health)

    def _with_files(self, state: PoolState) -> PoolState:
        """Return the table with every server able to send."""
        if self._able is None or self._able[0] is not state.servers:
            servers = state.servers
            for server in state.servers.values():
                servers = servers.set(server.id, with_changes(server, alerts=True))
            self._able = state.servers, with_changes(state, servers=servers)
        return self._able[1]


Key = tuple[str, str]
"""A rule and its subject."""


@dataclass(slots=True)
class _Sender:
    """The alerts sent by one server's process, and the time since when it has been the sender."""

    looked: float
    sends_since: float | None = None  # and in touch with a majority
    told_at: float | None = None
    told: set[Key] = field(default_factory=set[Key])  # of what fires
    doubtful: set[Key] = field(default_factory=set[Key])
    """Of these, alerts that may have been over for a moment: they were not seen for just so
    long."""
    seen: dict[Key, float] = field(default_factory=dict[Key, float])  # held when it last looked
    last_seen: dict[Key, float] = field(default_factory=dict[Key, float])


class AlertsTold:
    """No alert is lost when the sender changes, none is told twice by a server, and none storms.

    - What a sender has seen to hold for long enough, somebody has told since it began.
    - A process tells once of what fires, until it is over.
    - A new sender is silent at first, and two messages of a process are never close together.
    - Without a majority a server tells of that alone. It tells that this is over even where it is
      not the sender, and of nothing else.
    """

    def __init__(self, failures: FailureReporter, times: Times, look_every_s: float) -> None:
        """Make the checker for senders with these times, which look so often at least."""
        self._failures = failures
        self._times = times
        self._late_s = times.silent_first_s + times.group_s + 4 * look_every_s
        self._senders: dict[ServerId, _Sender] = {}
        self._told: dict[Key, float] = {}
        """The last time at which any server told of a firing alert."""

    def started(self, server: ServerId, now: float) -> None:
        """Take note that a server's process is a new one: it remembers nothing."""
        self._senders[server] = _Sender(now)

    def looked(
        self,
        server: ServerId,
        conditions: list[Condition],
        now: float,
        *,
        sends: bool,
        majority: bool,
        message: Message | None,
    ) -> None:
        """Judge the conditions that a server saw, and the message that it sent at once."""
        sender = self._senders[server]
        if now - sender.looked > LATE_S:
            sender.sends_since = None  # it stood still
            sender.seen.clear()
        sender.looked = now
        if not (sends and majority):
            sender.sends_since = None
        elif sender.sends_since is None:
            sender.sends_since = now
        sender.seen = {
            (c.rule.name, c.subject): sender.seen.get((c.rule.name, c.subject), now)
            for c in conditions
        }
        sender.last_seen |= dict.fromkeys(sender.seen, now)
        over = now - self._times.over_after_s
        sender.told = {key for key in sender.told if sender.last_seen[key] > over - SLACK_S}
        sender.doubtful &= sender.told
        sender.doubtful |= {k for k in sender.told if sender.last_seen[k] <= over + SLACK_S}
        if message is not None:
            self._judge(server, sender, message, now, majority=majority)
        if sender.sends_since is not None:
            self._look_for_lost(server, sender, conditions, now)

    def _judge(
        self, server: ServerId, sender: _Sender, message: Message, now: float, *, majority: bool
    ) -> None:
        fires = {(a.rule, a.subject) for a in message.alerts if not a.ended_ms}
        over = {(a.rule, a.subject) for a in message.alerts if a.ended_ms}
        others = {rule for rule, _ in fires | over} - {NO_MAJORITY}
        if sender.sends_since is None and (others or (majority and fires)):
            self._fail(f"{server} tells of {sorted(fires | over)}, and is not the sender")
        if sender.sends_since is not None:
            silent_s = now - sender.sends_since
            if silent_s < self._times.silent_first_s - SLACK_S:
                self._fail(f"{server} tells {silent_s:.1f} s after it began to send")
        if sender.told_at is not None and now - sender.told_at < self._times.group_s - SLACK_S:
            self._fail(f"{server} sends two messages within {now - sender.told_at:.1f} s")
        if again := (fires & sender.told) - sender.doubtful:
            self._fail(f"{server} tells again of {sorted(again)}")
        sender.told_at = now
        sender.told = (sender.told | fires) - over
        sender.doubtful -= fires
        self._told |= dict.fromkeys(fires, now)

    def _look_for_lost(
        self, server: ServerId, sender: _Sender, conditions: list[Condition], now: float
    ) -> None:
        assert sender.sends_since is not None
        for each in conditions:
            key = each.rule.name, each.subject
            since = sender.seen[key]
            due = max(since + each.rule.for_s, sender.sends_since) + self._late_s
            # Who told before it began again, as far as this sender saw, told of another time.
            if now > due and self._told.get(key, float("-inf")) < since and key not in sender.told:
                self._fail(f"{server} has seen {key} for {now - since:.1f} s, and nobody told")

    def _fail(self, text: str) -> None:
        self._failures.fail("alerts-told", text)
