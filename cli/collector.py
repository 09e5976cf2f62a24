"""What the live view knows: the latest of everything, when it came, and rates between two looks."""

from dataclasses import dataclass, field

from gpupool.cli.tables import Rate, Seen
from gpupool.pool.ids import LeaseId, ServerId
from gpupool.pool.view import PoolView, SessionTelemetry, Telemetry
from gpupool.remoting.client import PoolUpdate


@dataclass(frozen=True, slots=True)
class _Sample:
    """Counters of one lease on one server at one moment."""

    at_ms: int  # the server's own clock, so that delays on the way do not bend the rate
    bytes_moved: int
    calls: int


@dataclass(slots=True)
class Collector:
    """Takes views and measurements as they come; time is passed in."""

    view: PoolView | None = None
    view_at: float = 0.0
    telemetry: dict[ServerId, Telemetry] = field(default_factory=dict[ServerId, Telemetry])
    telemetry_at: dict[ServerId, float] = field(default_factory=dict[ServerId, float])
    ping_s: dict[ServerId, float] = field(default_factory=dict[ServerId, float])
    silent: frozenset[ServerId] = frozenset()
    trouble: str = ""
    _samples: dict[tuple[ServerId, LeaseId], _Sample] = field(
        default_factory=dict[tuple[ServerId, LeaseId], _Sample]
    )
    _rates: dict[tuple[ServerId, LeaseId], Rate] = field(
        default_factory=dict[tuple[ServerId, LeaseId], Rate]
    )

    def take(self, update: PoolUpdate, now: float) -> None:
        """Take what a subscription delivered at ``now``."""
        self.view, self.view_at = update.view, now - update.age_s
        self.trouble = "" if update.connected else "no server answers; trying again"
        members = {server.id for server in update.view.servers}
        self.silent = frozenset(members.difference(update.connected))
        for telemetry in update.telemetry.values():
            if telemetry is not self.telemetry.get(telemetry.server):
                self._take_telemetry(telemetry, now)
        for server in [each for each in self.telemetry if each not in members]:
            del self.telemetry[server], self.telemetry_at[server]
            self.ping_s.pop(server, None)

    def _take_telemetry(self, telemetry: Telemetry, now: float) -> None:
        """Take what one server measures, and work out what its sessions move."""
        self.telemetry[telemetry.server] = telemetry
        self.telemetry_at[telemetry.server] = now
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
        moved = session.bytes_in + session.bytes_out
        before = self._samples.get(key)
        if before is not None and at_ms <= before.at_ms:
            return
        self._samples[key] = _Sample(at_ms, moved, session.calls)
        if before is None:
            return
        seconds = (at_ms - before.at_ms) / 1000
        # Counters fall when a worker of the lease has ended; that is no traffic.
        self._rates[key] = Rate(
            max(0, moved - before.bytes_moved) / seconds,
            max(0, session.calls - before.calls) / seconds,
        )

    def seen(self, now: float) -> Seen | None:
        """Return all that is known at ``now``; None before the first view."""
        if self.view is None:
            return None
        rates: dict[LeaseId, Rate] = {}
        for (_, lease), rate in self._rates.items():
            before = rates.get(lease, Rate(0.0, 0.0))
            rates[lease] = Rate(
                before.bytes_per_s + rate.bytes_per_s, before.calls_per_s + rate.calls_per_s
            )
        return Seen(
            view=self.view,
            view_age_s=max(0.0, now - self.view_at),
            telemetry=dict(self.telemetry),
            telemetry_age_s={k: max(0.0, now - at) for k, at in self.telemetry_at.items()},
            ping_s=dict(self.ping_s),
            silent=self.silent,
            rates=rates,
            trouble=self.trouble,
        )
