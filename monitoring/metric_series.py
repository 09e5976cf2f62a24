"""The series of one moment, and the bound on how many there are. Pure code."""

from collections.abc import Callable

from gpupool.pool.telemetry import Histogram

OTHER = "_other"
SERIES_MAX = 3000
FOLDED_FIRST = ("subject", "peer", "user", "class", "xid")
"""Labels whose rare values are put together when there are too many series, in this order."""


Value = float | Histogram
Labels = tuple[str, ...]


class Found:
    """The series of one moment, by metric and labels."""

    def __init__(self) -> None:
        self.series: dict[str, dict[Labels, Value]] = {}

    def add(self, name: str, value: Value | bool | None, *labels: str) -> None:
        """Add a series; None is no series."""
        if value is not None:
            value = value if isinstance(value, Histogram) else float(value)
            self.series.setdefault(name, {})[labels] = value

    def count(self) -> int:
        """Return how many series this is, as Prometheus counts them."""
        return sum(
            (len(value.counts) + 2 if isinstance(value, Histogram) else 1)
            for rows in self.series.values()
            for value in rows.values()
        )


def fold(found: Found, labels: Callable[[str], Labels], most: int = SERIES_MAX - 1) -> bool:
    """Put rare values of labels together until there are at most so many series."""
    limited = False
    for label in FOLDED_FIRST:
        while found.count() > most:
            weights = _weights(found, labels, label)
            if len(weights) < 2:
                break
            kept = sorted(weights, key=lambda value: (-weights[value], value))
            _fold_label(found, labels, label, frozenset(kept[: len(kept) // 2]))
            limited = True
    if found.count() > most:
        _cut(found, most)
        limited = True
    return limited


def _weights(found: Found, labels: Callable[[str], Labels], label: str) -> dict[str, float]:
    """Return how much each value of a label stands for: granted time, or else its series."""
    weights: dict[str, float] = {}
    for name, rows in found.series.items():
        if label not in (names := labels(name)):
            continue
        at = names.index(label)
        for values, value in rows.items():
            if values[at] == OTHER:
                continue
            weight = 1.0
            if name == "granted_gpu_seconds_total" and not isinstance(value, Histogram):
                weight = 1e6 * value
            weights[values[at]] = weights.get(values[at], 0.0) + weight
    return weights


def _fold_label(
    found: Found, labels: Callable[[str], Labels], label: str, kept: frozenset[str]
) -> None:
    for name, rows in found.series.items():
        if label not in (names := labels(name)):
            continue
        at = names.index(label)
        folded: dict[Labels, Value] = {}
        for values, value in rows.items():
            key = values
            if values[at] not in kept:
                key = (*values[:at], OTHER, *values[at + 1 :])
            folded[key] = _together(name, folded.get(key), value)
        found.series[name] = folded


def _together(name: str, one: Value | None, other: Value) -> Value:
    """Return two series as one: sums, but of what cannot be added the worse."""
    if one is None:
        return other
    if isinstance(one, Histogram) or isinstance(other, Histogram):
        assert isinstance(one, Histogram)
        assert isinstance(other, Histogram)
        counts = tuple(a + b for a, b in zip(one.counts, other.counts, strict=True))
        return Histogram(counts, one.sum + other.sum)
    if name.startswith(("raft_link_", "health_")):
        return max(one, other, key=abs)
    return one + other


def _cut(found: Found, most: int) -> None:
    """Leave the last series of the largest metrics out: more GPUs than anybody has seen."""
    while (count := found.count()) > most:
        largest = max(found.series.values(), key=len)
        for labels in list(largest)[-min(len(largest) // 2 or 1, count - most) :]:
            del largest[labels]
