"""The checker of alerts: one server at a time sends them, but for moments that nobody is told of.

All simulated servers are judged as if each had a file of receivers.
"""

from gpupool.pool import alert_gate
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
        """Judge what a server would tell its sender now."""
        before, self._looked[server] = self._looked.get(server, now), now
        if not alert_gate.sends_alerts(self._with_files(state), server, health):
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

    def _with_files(self, state: PoolState) -> PoolState:
        """Return the table with every server able to send."""
        if self._able is None or self._able[0] is not state.servers:
            servers = state.servers
            for server in state.servers.values():
                servers = servers.set(server.id, with_changes(server, alerts=True))
            self._able = state.servers, with_changes(state, servers=servers)
        return self._able[1]
