"""Keeps the received data of a pool: the view, measurements with their ages, and rates. Pure.

``top``, ``gpupool web`` and a server's page feed it with the updates of a subscription, and show
its snapshots. Rates are made of counters by the clock of the server that counts, so that delays on
the way do not bend them.
"""

from collections import deque
from dataclasses import dataclass

from gpupool.pool.model.ids import LeaseId, ServerId
from gpupool.pool.read_model.figures import Rate
from gpupool.pool.read_model.pool_snapshot import STALE_AFTER_S, PoolSnapshot
from gpupool.pool.telemetry import SessionTelemetry, Telemetry
from gpupool.pool.view import PoolView

WINDOW_MS = 3000
"""Rates are means over so long: workers report about once a second, updates come more often."""

LATE_S = 3.0
"""A server with rarely requested measurements is silent when they are late by so much."""

Reading = tuple[int, SessionTelemetry]
"""The counters of a lease on one server, with that server's time in milliseconds."""


@dataclass(frozen=True, slots=True)
class PoolUpdate:
    """An update of a subscription: the freshest view, and the measurements of each server."""

    view: PoolView
    telemetry: dict[ServerId, Telemetry]
    age_s: float  # since the view arrived
    connected: tuple[ServerId, ...]


class PoolWatch:
    """The latest of everything, and when it came; time is passed in."""

    def __init__(self, interval_s: float) -> None:
        """Make an empty one, for updates that come so often."""
        self.view: PoolView | None = None
        self.interval_s = interval_s
        self._began = self._view_at = 0.0
        self._telemetry: dict[ServerId, Telemetry] = {}
        self._heard_at: dict[ServerId, float] = {}
        self._connected: frozenset[ServerId] = frozenset()
        self._readings: dict[tuple[ServerId, LeaseId], deque[Reading]] = {}
        self._rates: dict[tuple[ServerId, LeaseId], Rate] = {}

    @property
    def _stale_after_s(self) -> float:
        return max(STALE_AFTER_S, self.interval_s + LATE_S)

    def take(self, update: PoolUpdate, now: float) -> list[Telemetry]:
        """Take an update that arrived at ``now``, and return the new measurements.

        A server that is silent keeps its last ones.
        """
        if self.view is None:
            self._began = now
        self.view, self._view_at = update.view, now - update.age_s
        self._connected = frozenset(update.connected)
        members = {server.id for server in update.view.servers}
        for server in self._heard_at.keys() - members:
            self._forget_rates(server)
            del self._telemetry[server], self._heard_at[server]
        new: list[Telemetry] = []
        for server, told in update.telemetry.items():
            known = self._telemetry.get(server)
            if server in members and (known is None or known.at != told.at):
                new.append(told)
                if now - self._heard_at.get(server, now) > self._stale_after_s:
                    self._forget_rates(server)  # means over its silence would pass for those of now
                self._telemetry[server], self._heard_at[server] = told, now
                self._measure(told)
        return new

    def snapshot(self, now: float) -> PoolSnapshot | None:
        """Return all that is known at ``now``; None before the first view.

        A server that was never heard is not silent before it has had the time to answer.
        """
        if self.view is None:
            return None
        members = [server.id for server in self.view.servers]
        began = self._began
        ages = {each: max(0.0, now - self._heard_at.get(each, began)) for each in members}
        silent = frozenset(members) - self._connected
        if self._connected and now - began <= self._stale_after_s:
            silent &= self._heard_at.keys()
        return PoolSnapshot(
            view=self.view,
            view_age_s=max(0.0, now - self._view_at),
            telemetry=dict(self._telemetry),
            telemetry_age_s=ages,
            silent=silent,
            stale_after_s=self._stale_after_s,
            rates=dict(self._rates),
        )

    def _measure(self, told: Telemetry) -> None:
        """Work out the rates of one server's sessions; those that ended have none."""
        live = {session.lease for session in told.sessions}
        gone = [part for part in self._readings if part[0] == told.server and part[1] not in live]
        for part in gone:
            del self._readings[part]
            self._rates.pop(part, None)
        for session in told.sessions:
            part = told.server, session.lease
            readings = self._readings.setdefault(part, deque())
            if readings and not _follows((told.at, session), readings[-1]):
                readings.clear()
            readings.append((told.at, session))
            while len(readings) > 2 and told.at - readings[1][0] >= WINDOW_MS:
                readings.popleft()
            if len(readings) > 1:
                self._rates[part] = _rate(readings[0], readings[-1])
            else:
                self._rates.pop(part, None)  # one reading is no rate

    def _forget_rates(self, server: ServerId) -> None:
        for part in [each for each in self._readings if each[0] == server]:
            del self._readings[part]
            self._rates.pop(part, None)


def _follows(new: Reading, old: Reading) -> bool:
    """Return whether time went on and no counter fell: they do when a worker has ended."""
    (at, now), (then, before) = new, old
    return (
        at > then
        and now.calls >= before.calls
        and now.bytes_in >= before.bytes_in
        and now.bytes_out >= before.bytes_out
        and (now.waits or 0) >= (before.waits or 0)
    )


def _rate(first: Reading, last: Reading) -> Rate:
    """Return the means between two readings."""
    (since, before), (until, now) = first, last
    seconds = (until - since) / 1000
    waits = wire_s = exec_us = None
    if now.waits is not None and before.waits is not None:
        count = now.waits - before.waits
        waits = count / seconds
        if now.rtt_us is not None:
            wire_s = waits * now.rtt_us / 1e6
        if count and now.wait_us is not None and before.wait_us is not None:
            exec_us = max(0, now.wait_us - before.wait_us) / count
    return Rate(
        (now.calls - before.calls) / seconds,
        (now.bytes_in - before.bytes_in) / seconds,
        (now.bytes_out - before.bytes_out) / seconds,
        waits,
        wire_s,
        exec_us,
    )
