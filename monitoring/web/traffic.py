"""Rates of leases' sessions, worked out from counters by the time of the server that counts."""

from collections import deque
from dataclasses import dataclass

from gpupool.pool.model.ids import LeaseId, ServerId
from gpupool.pool.telemetry import SessionTelemetry, Telemetry

WINDOW_MS = 3000
"""Rates are means over so long: workers report about once a second, updates come more often."""


@dataclass(frozen=True, slots=True)
class Flow:
    """What one lease moves on one server, each second; None is not to be had."""

    bytes_in: float
    bytes_out: float
    calls: float
    waits: float | None = None
    exec_us: float | None = None  # mean time to execute a call that somebody waits for

    def wire(self, rtt_us: int | None) -> float | None:
        """Return the seconds of each second that are spent on the way of answers."""
        return None if self.waits is None or rtt_us is None else self.waits * rtt_us / 1e6


@dataclass(frozen=True, slots=True)
class _Reading:
    at_ms: int
    session: SessionTelemetry

    def follows(self, other: "_Reading") -> bool:
        """Return whether no counter fell: they do when a worker of the lease has ended."""
        mine, theirs = self.session, other.session
        counters = (mine.calls - theirs.calls, mine.bytes_in - theirs.bytes_in)
        return min(*counters, mine.bytes_out - theirs.bytes_out) >= 0


class Flows:
    """Keeps the last seconds of all counters."""

    def __init__(self) -> None:
        self._readings: dict[tuple[ServerId, LeaseId], deque[_Reading]] = {}
        self._taken: dict[ServerId, int] = {}
        self.by_part: dict[tuple[ServerId, LeaseId], Flow] = {}

    def take(self, telemetry: Telemetry) -> None:
        """Take what one server measures; what was taken before is no news."""
        if self._taken.get(telemetry.server) == telemetry.at:
            return
        self._taken[telemetry.server] = telemetry.at
        live = {session.lease for session in telemetry.sessions}
        for key in [k for k in self._readings if k[0] == telemetry.server and k[1] not in live]:
            del self._readings[key]
            self.by_part.pop(key, None)
        for session in telemetry.sessions:
            self._measure((telemetry.server, session.lease), _Reading(telemetry.at, session))

    def forget(self, server: ServerId) -> None:
        """Drop a server that is silent: its last rates are not those of now."""
        for key in [k for k in self._readings if k[0] == server]:
            del self._readings[key]
            self.by_part.pop(key, None)

    def _measure(self, key: tuple[ServerId, LeaseId], reading: _Reading) -> None:
        readings = self._readings.setdefault(key, deque())
        if readings and (reading.at_ms <= readings[-1].at_ms or not reading.follows(readings[-1])):
            readings.clear()
        readings.append(reading)
        while len(readings) > 2 and reading.at_ms - readings[1].at_ms >= WINDOW_MS:
            readings.popleft()
        first, last = readings[0].session, reading.session
        seconds = (reading.at_ms - readings[0].at_ms) / 1000
        if not seconds:
            self.by_part.pop(key, None)  # one reading is no rate
            return
        waits = exec_us = None
        if first.waits is not None and last.waits is not None:
            count = max(0, last.waits - first.waits)
            waits = count / seconds
            if count and first.wait_us is not None and last.wait_us is not None:
                exec_us = max(0, last.wait_us - first.wait_us) / count
        self.by_part[key] = Flow(
            (last.bytes_in - first.bytes_in) / seconds,
            (last.bytes_out - first.bytes_out) / seconds,
            (last.calls - first.calls) / seconds,
            waits,
            exec_us,
        )
