"""The counters and histograms that a server fills where something happens, for its telemetry.

Names of counters: ``grants.RESULT`` (granted, busy, denied, never, no-quorum, expired),
``leases_ended.REASON`` (released, client-gone, idle, policy, operator, server-lost, worker-failed,
memory, other), ``elections``. Those of histograms are the keys of ``telemetry.HISTOGRAMS``.
Everything is filled on the event loop, so no lock is needed.
"""

from bisect import bisect_left

from gpupool.pool.telemetry import HISTOGRAMS, ConsensusTelemetry, Histogram, HostTelemetry


class Measures:
    """What one server has counted since its start; every part may be given the same one."""

    def __init__(self) -> None:
        self.counters: dict[str, int] = {}
        self.host: HostTelemetry | None = None
        self.consensus: ConsensusTelemetry | None = None
        self._counts = {name: [0] * (len(bounds) + 1) for name, bounds in HISTOGRAMS.items()}
        self._sums = dict.fromkeys(HISTOGRAMS, 0.0)

    def count(self, name: str, by: int = 1) -> None:
        """Count an event."""
        self.counters[name] = self.counters.get(name, 0) + by

    def observe(self, name: str, value: float) -> None:
        """Put a value into a histogram; a negative one, as of clocks that were set, counts as 0."""
        value = max(value, 0.0)
        self._counts[name][bisect_left(HISTOGRAMS[name], value)] += 1
        self._sums[name] += value

    def histograms(self) -> dict[str, Histogram]:
        """Return the histograms that have any value."""
        return {
            name: Histogram(tuple(counts), round(self._sums[name], 6))
            for name, counts in self._counts.items()
            if any(counts)
        }
