"""What this page has seen in the last hour, for the charts: every GPU's readings in steps of 5 s.

The servers keep a history that is longer and has no gaps. This one needs nobody's answer, so a
chart is there at once, and it begins when ``gpupool web`` begins. One step of 8,000 GPUs takes
48 kB, an hour of them 35 MB.
"""

from array import array
from collections import deque
from dataclasses import dataclass

from gpupool.monitoring.web.live_book import Document

STEP_S = 5.0
STEPS = 720
UNKNOWN = -1
METRICS = ("busy", "granted", "temperature", "power")
"""Granted is in percent of the capacity."""

Key = tuple[str, int]
Point = tuple[int, float | None]


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

    def take(self, document: Document, now: float, pool_now: int) -> None:
        """Keep a summary if a step is over since the last one."""
        if now < self._next:
            return
        self._next = now + STEP_S
        servers, gpus = document.tables["servers"], document.tables["gpus"]
        pool = document.values["pool"]
        stale = servers["stale"]
        keys = [
            (str(servers["name"][int(str(at))]), int(str(index)))
            for at, index in zip(gpus["server"], gpus["index"], strict=True)
        ]
        places = {key: at for at, key in enumerate(keys)}
        if self._steps and self._steps[-1].places == places:
            places = self._steps[-1].places
        silent = [bool(stale[int(str(at))]) for at in gpus["server"]]
        readings = {
            name: array(
                "h",
                (
                    UNKNOWN if not isinstance(each, int) or dead else min(each, 32767)
                    for each, dead in zip(gpus[name], silent, strict=True)
                ),
            )
            for name in ("busy", "temperature", "power")
        }
        readings["granted"] = array(
            "h",
            (
                UNKNOWN
                if dead or not capacity
                else round(100 * int(str(part)) / int(str(capacity)))
                for part, capacity, dead in zip(
                    gpus["granted"], gpus["capacity"], silent, strict=True
                )
            ),
        )
        waiting = pool["waiting"] if isinstance(pool, dict) else 0  # pyright: ignore[reportUnknownVariableType]
        self._steps.append(_Step(pool_now, places, readings, int(str(waiting))))  # pyright: ignore[reportUnknownArgumentType]

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
