"""The state of the live view: the latest of everything, when it came, and rates."""

from collections import deque
from dataclasses import dataclass, field

from gpupool.cli.lib.rows import PoolSnapshot, Rate
from gpupool.cli.tui.trends import Trends
from gpupool.pool.model.ids import LeaseId, ServerId
from gpupool.pool.telemetry import SessionTelemetry, Telemetry
from gpupool.pool.view import PoolView
from gpupool.remoting.client.subscription import PoolUpdate

WINDOW_MS = 3000
"""Rates are means over so long: workers report about once a second, updates come more often."""


@dataclass(frozen=True, slots=True)
class _Sample:
    """Counters of one lease on one server at one moment."""

    at_ms: int  # the server's own clock, so that delays on the way do not bend the rate
    bytes_in: int
    bytes_out: int
    calls: int
    waits: int | None

    def less_than(self, other: "_Sample") -> bool:
        """Return whether any counter is lower than it was."""
        return (
            self.bytes_in < other.bytes_in
            or self.bytes_out < other.bytes_out
            or self.calls < other.calls
            or (self.waits or 0) < (other.waits or 0)
        )


@dataclass(slots=True)
class Collector:
    """Takes views and measurements as they come; time is passed in."""

    view: PoolView | None = None
    view_at: float = 0.0
    telemetry: dict[ServerId, Telemetry] = field(default_factory=dict[ServerId, Telemetry])
    telemetry_at: dict[ServerId, float] = field(default_factory=dict[ServerId, float])
    ping_s: dict[ServerId, float] = field(default_factory=dict[ServerId, float])
    trends: Trends = field(default_factory=Trends)
    silent: frozenset[ServerId] = frozenset()
    trouble: str = ""
    _samples: dict[tuple[ServerId, LeaseId], deque[_Sample]] = field(
        default_factory=dict[tuple[ServerId, LeaseId], "deque[_Sample]"]
    )
    _rates: dict[tuple[ServerId, LeaseId], Rate] = field(
        default_factory=dict[tuple[ServerId, LeaseId], Rate]
    )

    def take(self, update: PoolUpdate, now: float) -> None:
        """Take the update that a subscription delivered at ``now``."""
        self.view, self.view_at = update.view, now - update.age_s
        self.trouble = "" if update.connected else "no server answers; trying again"
        members = {server.id for server in update.view.servers}
        self.silent = frozenset(members.difference(update.connected))
        for telemetry in update.telemetry.values():
            if telemetry is not self.telemetry.get(telemetry.server):
                self._take_telemetry(telemetry, now)
        fresh = (each for s, each in self.telemetry.items() if s not in self.silent)
        self.trends.take_pool(update.view, fresh)
        for server in [each for each in self.telemetry if each not in members]:
            del self.telemetry[server], self.telemetry_at[server]
            self.ping_s.pop(server, None)

    def _take_telemetry(self, telemetry: Telemetry, now: float) -> None:
        """Take what one server measures, and work out what its sessions move."""
        self.telemetry[telemetry.server] = telemetry
        self.telemetry_at[telemetry.server] = now
        self.trends.take(telemetry)
        live: set[tuple[ServerId, LeaseId]] = set()
        for session in telemetry.sessions:
            key = (telemetry.server, session.lease)
            live.add(key)
            self._measure(key, session, telemetry.at)
        for key in [k for k in self._samples if k[0] == telemetry.server and k not in live]:
            del self._samples[key]
            self._rates.pop(key, None)

    def _measure(
        self, key: tuple[ServerId, LeaseId], session: SessionTelemetry, at_ms: int
    ) -> None:
        sample = _Sample(at_ms, session.bytes_in, session.bytes_out, session.calls, session.waits)
        samples = self._samples.setdefault(key, deque())
        if samples and (at_ms <= samples[-1].at_ms or sample.less_than(samples[-1])):
            # Counters fall when a worker of the lease has ended; that is no traffic.
            samples.clear()
        samples.append(sample)
        while len(samples) > 2 and at_ms - samples[1].at_ms >= WINDOW_MS:
            samples.popleft()
        first, seconds = samples[0], (at_ms - samples[0].at_ms) / 1000
        if not seconds:
            self._rates.pop(key, None)  # one sample is none
            return
        up = (sample.bytes_in - first.bytes_in) / seconds
        down = (sample.bytes_out - first.bytes_out) / seconds
        waits = wire_s = None
        if sample.waits is not None and first.waits is not None:
            waits = (sample.waits - first.waits) / seconds
            if session.rtt_us is not None:
                wire_s = waits * session.rtt_us / 1e6
        calls = (sample.calls - first.calls) / seconds
        self._rates[key] = Rate(up + down, calls, up, down, waits, wire_s)

    def snapshot(self, now: float) -> PoolSnapshot | None:
        """Return all that is known at ``now``; None before the first view."""
        if self.view is None:
            return None
        rates: dict[LeaseId, Rate] = {}
        for (_, lease), rate in self._rates.items():
            rates[lease] = rates[lease].plus(rate) if lease in rates else rate
        return PoolSnapshot(
            view=self.view,
            view_age_s=max(0.0, now - self.view_at),
            telemetry=dict(self.telemetry),
            telemetry_age_s={k: max(0.0, now - at) for k, at in self.telemetry_at.items()},
            ping_s=dict(self.ping_s),
            silent=self.silent,
            rates=rates,
            trends=dict(self.trends.gpus.points),
            trouble=self.trouble,
            session_rates=dict(self._rates),
            pool_trend=dict(self.trends.pool.points),
        )
