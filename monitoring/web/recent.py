"""The last hour's readings on this page, for the charts: every GPU's, in steps of 5 s.

The servers keep a history that is longer and has no gaps. This one needs nobody's answer, so a
chart is there at once, and it begins when ``gpupool web`` begins. One step of 8,000 GPUs takes
48 kB, an hour of them 35 MB.
"""

from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from gpupool.pool.read_model.pool_snapshot import GpuRow, PoolSnapshot
from gpupool.pool.view import visible

STEP_S = 5.0
STEPS = 720
UNKNOWN = -1
READING_MAX = 32767
Key = tuple[str, int]
Point = tuple[int, float | None]


def _busy(row: GpuRow) -> float | None:
    share = row.telemetry.utilization if row.telemetry else None
    return None if share is None else 100 * share


METRICS: dict[str, Callable[[GpuRow], float | None]] = {
    "busy": _busy,
    "granted": lambda row: (
        100 * row.gpu.memory_granted / row.gpu.capacity if row.gpu.capacity else None
    ),
    "temperature": lambda row: row.telemetry.temperature_c if row.telemetry else None,
    "power": lambda row: row.telemetry.power_w if row.telemetry else None,
}
"""Busy is in percent, granted in percent of the capacity."""


def _reading(row: GpuRow, read: Callable[[GpuRow], float | None]) -> int:
    value = None if row.server.unreachable else read(row)
    return UNKNOWN if value is None else min(round(value), READING_MAX)


@dataclass(frozen=True, slots=True)
class _Step:
    at: int  # by the pool's time
    places: dict[Key, int]
    readings: "dict[str, array[int]]"
    waiting: int


class Recent:
    """A ring of steps."""

    def __init__(self) -> None:
        self._steps: deque[_Step] = deque(maxlen=STEPS)
        self._next = 0.0

    def take(self, snapshot: PoolSnapshot, now: float) -> None:
        """Keep its readings, not those of silent servers, if a step is over since the last one."""
        if now < self._next:
            return
        self._next = now + STEP_S
        rows = snapshot.gpus
        keys = [(visible(row.server.server.name), row.gpu.index) for row in rows]
        places = {key: at for at, key in enumerate(keys)}
        if self._steps and self._steps[-1].places == places:
            places = self._steps[-1].places
        readings = {
            name: array("h", (_reading(row, read) for row in rows))
            for name, read in METRICS.items()
        }
        self._steps.append(_Step(snapshot.now_ms, places, readings, len(snapshot.requests)))

    def gpu(self, key: Key, metric: str) -> list[Point]:
        """Return one GPU's readings; a gap is None."""
        found: list[Point] = []
        for step in self._steps:
            place = step.places.get(key)
            value = UNKNOWN if place is None else step.readings[metric][place]
            found.append((step.at, None if value == UNKNOWN else value))
        return found

    def server(self, server: str, metric: str) -> list[Point]:
        """Return the mean of one server's GPUs."""
        return [
            (
                step.at,
                _mean([step.readings[metric][i] for k, i in step.places.items() if k[0] == server]),
            )
            for step in self._steps
        ]

    def pool(self, metric: str) -> list[Point]:
        """Return the mean of all GPUs, or how many requests wait."""
        if metric == "waiting":
            return [(step.at, step.waiting) for step in self._steps]
        return [(step.at, _mean(step.readings[metric])) for step in self._steps]


def _mean(values: "array[int] | list[int]") -> float | None:
    known = [each for each in values if each != UNKNOWN]
    return round(sum(known) / len(known), 2) if known else None
