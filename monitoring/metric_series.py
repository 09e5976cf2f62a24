"""The series of one moment, and the bound on how many there are. Pure code."""

from gpupool.pool.telemetry import Histogram

OTHER = "_other"
SERIES_MAX = 3000
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


def cut(found: Found, most: int = SERIES_MAX - 1) -> bool:
    """Leave the last series of the largest metrics out while there are more; tell whether."""
    limited = False
    while (count := found.count()) > most:
        largest = max(found.series.values(), key=len)
        for labels in list(largest)[-min(len(largest) // 2 or 1, count - most) :]:
            del largest[labels]
        limited = True
    return limited
