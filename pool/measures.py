"""The counters and histograms that a server fills where something happens, for its telemetry.

Counters are ``grants_RESULT`` (``RESULTS``), ``workers_STATE`` of this moment (starting, warm,
serving) and ``worker_start_failures``. Histograms have the names of ``telemetry.HISTOGRAMS``, with
``:TRANSPORT`` behind that of round trips. There are no others, so what a client or a worker says
makes no new one. Lease ends are counted from their records,
and elections by consensus (``RaftHealth.elections``). Everything is filled on the event loop, so
no lock is needed.
"""

from bisect import bisect_left
from enum import Enum

from gpupool.pool.model.results import RefusalKind
from gpupool.pool.model.state import LeaseRecord
from gpupool.pool.telemetry import HISTOGRAMS, ConsensusTelemetry, Histogram, HostTelemetry

RESULTS = ("granted", "busy", "denied", "never", "no-quorum", "expired")
"""How claims end."""

COUNTERS = frozenset({*(f"grants_{each}" for each in RESULTS), "worker_start_failures"})
"""Names of the event counters."""

_RESULT_OF: dict[str, str] = {
    RefusalKind.BUSY: "busy",
    RefusalKind.CONFLICT: "busy",
    RefusalKind.NEVER: "never",
    RefusalKind.INVALID: "never",
    RefusalKind.NO_QUORUM: "no-quorum",
    RefusalKind.CLOCK: "no-quorum",
    RefusalKind.EXPIRED: "expired",
    RefusalKind.CLOSED: "expired",
}


class Transport(Enum):
    """The transport of a session's data."""

    TLS = "tls"
    TCP = "tcp"
    UNIX = "unix"


class Measures:
    """The counts of one server since its start; every part may be given the same object."""

    def __init__(self) -> None:
        self.counters: dict[str, int] = {}
        self.host: HostTelemetry | None = None
        self.consensus: ConsensusTelemetry | None = None
        self.loop_lag_s = 0.0  # how late the event loop woke at its last timer
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def count(self, name: str, by: int = 1) -> None:
        """Count an event; one of ``COUNTERS``."""
        if name not in COUNTERS:
            raise KeyError(name)
        self.counters[name] = self.counters.get(name, 0) + by

    def claimed(self, kind: str, duration_s: float) -> None:
        """Count the end of a claim; ``kind`` is that of its refusal, or empty for a grant."""
        result = _RESULT_OF.get(kind, "denied") if kind else "granted"
        self.count(f"grants_{result}")
        if not kind:
            self.observe("grant_duration_seconds", duration_s)

    def ended(self, record: LeaseRecord) -> None:
        """Take the end of a lease's part on this server."""
        wait_ms = record.granted_at - record.requested_at
        self.observe("lease_wait_seconds", wait_ms / 1000)
        self.observe("lease_duration_seconds", (record.freed_at - record.granted_at) / 1000)

    def observe(self, name: str, value: float, transport: Transport | None = None) -> None:
        """Put a value into a histogram; a negative one, as of clocks that were set, counts as 0."""
        bounds, value = HISTOGRAMS[name], max(value, 0.0)
        key = f"{name}:{Transport(transport).value}" if transport else name
        counts = self._counts.setdefault(key, [0] * (len(bounds) + 1))
        counts[bisect_left(bounds, value)] += 1
        self._sums[key] = self._sums.get(key, 0.0) + value

    def histograms(self) -> dict[str, Histogram]:
        """Return the histograms that have any value."""
        return {
            key: Histogram(tuple(counts), round(self._sums[key], 6))
            for key, counts in self._counts.items()
        }
