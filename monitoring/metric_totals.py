"""Sums over leases by class, which go on when a lease ends: the source of a server's counters.

They begin with the exporter. A sample adds what happened since the one before it; the records of
ended leases add reasons, waiting and durations. Pure code; ``ended`` alone may be called on another
thread.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from gpupool.monitoring.metric_series import OTHER
from gpupool.monitoring.sample import LeaseBooks, Sample
from gpupool.pool.model.ids import GpuId, LeaseId
from gpupool.pool.model.state import LeaseRecord
from gpupool.pool.telemetry import HISTOGRAMS, Histogram, SessionTelemetry

GAP_MAX_S = 10.0
"""Between two samples; a longer gap was not observed, and is not counted."""

AHEAD_S = 60.0
"""GPU seconds by which a user must be ahead to take another one's rows, so that users in turns do
not make new series each time."""

REASONS = (
    ("moved", ("moved to another server",)),
    ("idle", ("idle timeout",)),
    ("client-gone", ("client", "nobody waits", "connection")),
    ("memory", ("memory",)),
    ("worker-failed", ("worker",)),
    ("server-lost", ("server", "restarted")),
    ("operator", ("operator", "ended by", "revoked", "drain")),
    ("policy", ("policy", "window", "longest")),
    ("released", ("released", "done")),
)
"""Words in the texts of ends; the first row that has one says the reason."""

Key = tuple[str, str]
"""A class, and a user; without user rows all have the empty one."""


def reason_of(text: str) -> str:
    """Return the reason in one word of an end that is told in words."""
    lowered = text.lower()
    return next((word for word, parts in REASONS if any(p in lowered for p in parts)), "other")


@dataclass(slots=True)
class Buckets:
    """A histogram that grows."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list[int])
    sum: float = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        if not self.counts:
            self.counts = [0] * (len(self.bounds) + 1)
        at = next((n for n, bound in enumerate(self.bounds) if value <= bound), len(self.bounds))
        self.counts[at] += 1
        self.sum += value

    def frozen(self) -> Histogram:
        """Return a ``Histogram`` of its current contents."""
        return Histogram(tuple(self.counts or [0] * (len(self.bounds) + 1)), self.sum)


@dataclass(slots=True)
class _Seen:
    """The counters of one lease's sessions at the latest sample."""

    calls: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    waits: int = 0
    wait_us: int = 0


class Totals:
    """The sums of one server since its exporter began."""

    HISTOGRAMS_OWN = frozenset({"lease_wait_seconds", "lease_duration_seconds"})
    """Those that are made of records here."""

    def __init__(self, users: int = 0) -> None:
        """Make empty ones.

        So many users have rows of their own: those with the most GPU time since then, but for
        ``AHEAD_S``. Rows begin at 0, and what a user had before stays with the others.
        """
        self._users = users
        self._named: set[str] = set()
        self._time_of: dict[str, float] = {}
        self._sums: dict[str, dict[tuple[str, ...], float]] = {}
        self._waits: dict[Key, Buckets] = {}
        self._durations = Buckets(HISTOGRAMS["lease_duration_seconds"])
        self._seen: dict[LeaseId, _Seen] = {}
        self._at = 0
        self._records: deque[LeaseRecord] = deque()

    def ended(self, record: LeaseRecord) -> None:
        """Count a part of a lease that has ended on this server."""
        self._records.append(record)

    def add(self, sample: Sample) -> None:
        """Count the changes since the sample before this one."""
        gap_s = (sample.at - self._at) / 1000 if self._at else 0.0
        self._at = sample.at
        gap_s = gap_s if 0 < gap_s <= GAP_MAX_S else 0.0
        capacity = {gpu.gpu: gpu.capacity for gpu in sample.gpus}
        sessions = {session.lease: session for session in sample.telemetry.sessions}
        if self._users:
            self._choose_users(sample, capacity, gap_s)
        for lease in sample.leases:
            shares = _shares(lease, capacity)
            key = self._key(lease.user_class, lease.user)
            self._grow("granted_gpu_seconds_total", shares * gap_s, *key)
            self._grow(
                "granted_memory_byte_seconds_total", sum(lease.granted.values()) * gap_s, *key
            )
            session = sessions.get(lease.lease)
            if session is not None:
                self._add_session(lease, session, key, gap_s, shares)
        held = {lease.lease for lease in sample.leases}
        self._seen = {lease: seen for lease, seen in self._seen.items() if lease in held}
        while self._records:
            self._add_record(self._records.popleft())

    def read(self, sample: Sample) -> dict[str, dict[tuple[str, ...], float | Histogram]]:
        """Return the values of the lease family, by metric and labels."""
        found: dict[str, dict[tuple[str, ...], float | Histogram]] = {
            name: dict(self._labelled(rows)) for name, rows in self._sums.items()
        }
        capacity = {gpu.gpu: gpu.capacity for gpu in sample.gpus}
        leases: dict[tuple[str, ...], float] = {}
        granted: dict[tuple[str, ...], float] = {}
        for lease in sample.leases:
            key = self._key(lease.user_class, lease.user)
            shares = _shares(lease, capacity)
            word = "suspended" if lease.suspended else "held"
            labels = (*key, "ending" if lease.ending else word)
            leases[labels] = leases.get(labels, 0.0) + 1
            granted[key] = granted.get(key, 0.0) + shares
        found["leases"] = dict(self._labelled(leases))
        found["granted_gpus"] = dict(self._labelled(granted))
        waits = {key: buckets.frozen() for key, buckets in self._waits.items()}
        found["lease_wait_seconds"] = {self._shown(key): value for key, value in waits.items()}
        found["lease_duration_seconds"] = {(): self._durations.frozen()}
        return found

    def _labelled(self, rows: Mapping[tuple[str, ...], float]) -> dict[tuple[str, ...], float]:
        return {self._shown(key): value for key, value in rows.items()}

    def _shown(self, key: tuple[str, ...]) -> tuple[str, ...]:
        return key if self._users else (key[0], *key[2:])

    def _key(self, user_class: str, user: str) -> Key:
        if not self._users:
            return user_class, ""
        return user_class, user if user in self._named else OTHER

    def _choose_users(self, sample: Sample, capacity: Mapping[GpuId, int], gap_s: float) -> None:
        """Give rows to users while there is room; then to a user ahead of one with rows."""
        for lease in sample.leases:
            used = self._time_of.get(lease.user, 0.0)
            self._time_of[lease.user] = used + _shares(lease, capacity) * gap_s
        users = {lease.user for lease in sample.leases} - self._named
        for user in sorted(users, key=self._rank, reverse=True):
            if len(self._named) >= self._users:
                least = min(self._named, key=self._rank)
                if self._time_of[user] <= self._time_of[least] + AHEAD_S:
                    return
                self._named.remove(least)
                self._forget_rows(least)
            self._named.add(user)

    def _rank(self, user: str) -> tuple[float, str]:
        return self._time_of[user], user

    def _forget_rows(self, user: str) -> None:
        """Drop a user's rows. Sums of the others do not grow by them: counters would leap."""
        for rows in self._sums.values():
            for labels in [labels for labels in rows if labels[1] == user]:
                del rows[labels]
        for key in [key for key in self._waits if key[1] == user]:
            del self._waits[key]

    def _grow(self, name: str, by: float, *labels: str) -> None:
        rows = self._sums.setdefault(name, {})
        rows[labels] = rows.get(labels, 0.0) + by

    def _add_session(
        self, lease: LeaseBooks, session: SessionTelemetry, key: Key, gap_s: float, shares: float
    ) -> None:
        before = self._seen.get(lease.lease) or _Seen()
        now = _Seen(
            session.calls,
            session.bytes_in,
            session.bytes_out,
            session.waits or 0,
            session.wait_us or 0,
        )
        self._seen[lease.lease] = now
        for direction, old, new in (
            ("in", before.bytes_in, now.bytes_in),
            ("out", before.bytes_out, now.bytes_out),
        ):
            self._grow("session_bytes_total", _more(old, new), *key, direction, session.transport)
        self._grow("session_calls_total", _more(before.calls, now.calls), *key, session.door)
        if session.waits is not None:
            self._grow("session_waits_total", _more(before.waits, now.waits), *key)
        if session.wait_us is not None:
            wait_us = _more(before.wait_us, now.wait_us)
            self._grow("session_wait_seconds_total", wait_us / 1e6, *key)
        if session.busy:
            busy = sum(session.busy.values())
            self._grow("busy_gpu_seconds_total", busy * gap_s, *key)
            self._grow("idle_gpu_seconds_total", 0.0 if busy else shares * gap_s, *key)

    def _add_record(self, record: LeaseRecord) -> None:
        key = self._key(record.user_class, record.user)
        self._grow("leases_ended_total", 1, *key, reason_of(record.reason))
        waits = self._waits.setdefault(key, Buckets(HISTOGRAMS["lease_wait_seconds"]))
        waits.add(max(0, record.granted_at - record.requested_at) / 1000)
        self._durations.add(max(0, record.ended_at - record.granted_at) / 1000)


def _shares(lease: LeaseBooks, capacity: Mapping[GpuId, int]) -> float:
    """Return how many GPUs a lease has here, as shares of their memory."""
    return sum(size / capacity[gpu] for gpu, size in lease.granted.items() if capacity.get(gpu))


def _more(before: int, now: int) -> int:
    """Return by how much a counter grew, which may have begun anew."""
    return now - before if now >= before else now


def cumulative(histogram: Histogram) -> list[int]:
    """Return the counts of values up to each bound, as Prometheus has them."""
    return list(accumulate(histogram.counts))
