"""A synthetic trace in the form of Philly's files, of any size, with its expected content.

Philly's own files cannot be had here (6.6 GB). This has its three tables, its local times without
a zone, readings with PST and PDT and a comma at each row's end, and every trap of the real ones.
Each trap is put in a known number of times; nothing else in the trace is odd.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

ZONE = ZoneInfo("America/Los_Angeles")
BEGIN = int(datetime(2017, 10, 3, 7, tzinfo=UTC).timestamp())
DAYS = 75
"""As long as the real trace; the clocks are set back within."""
MACHINES, GPUS = 60, 8
DAY_S = 86_400
UNCLEAR = (
    datetime(2017, 11, 5, 7, tzinfo=UTC).timestamp(),
    datetime(2017, 11, 5, 11, tzinfo=UTC).timestamp(),
)
"""No usual job begins or ends in the hours about that in which local times come twice."""


@dataclass(slots=True)
class Known:
    """The expected content of the trace."""

    jobs: int = 0
    gpu_seconds: int = 0  # of jobs that have ended
    notes: dict[str, int] = field(default_factory=dict[str, int])
    samples: int = 0

    def add(self, gpus: int, *spans: tuple[int, int]) -> None:
        """Count one job for each span."""
        self.jobs += len(spans)
        self.gpu_seconds += sum(gpus * (end - begin) for begin, end in spans)

    def note(self, name: str, count: int = 1) -> None:
        """Count something odd."""
        self.notes[name] = self.notes.get(name, 0) + count


def local(t: int) -> str:
    """Return a time as ``cluster_job_log`` has it, without a zone."""
    return datetime.fromtimestamp(t, ZONE).strftime("%Y-%m-%d %H:%M:%S")


def _attempt(start: object, end: object, places: list[tuple[str, list[str]]]) -> dict[str, Any]:
    detail = [{"ip": ip, "gpus": gpus} for ip, gpus in places]
    return {"start_time": start, "end_time": end, "detail": detail}


class PhillyTrace:
    """One trace, drawn from a seed."""

    def __init__(self, jobs: int, seed: int = 1) -> None:
        """Draw it; about a twentieth of the jobs are traps."""
        self._random = Random(seed)
        self._jobs = jobs
        self.known = Known()

    def write(self, folder: Path, readings: int = 0) -> list[Path]:
        """Write the three files, with readings of so many minutes of each machine."""
        paths = [folder / name for name in ("cluster_job_log", "cluster_gpu_util")]
        paths.append(folder / "cluster_machine_list")
        with paths[0].open("w") as file:
            for at, job in enumerate(self._log()):
                file.write("[\n" if not at else ",\n")
                file.write(json.dumps(job, indent=4))
            file.write("\n]\n")
        paths[1].write_text("".join(self._readings(readings)))
        machines = "".join(f"m{n},{GPUS}, 24GB\n" for n in range(MACHINES))
        paths[2].write_text(f"machineId,number of GPUs, single GPU mem\n{machines}")
        return paths if readings else [paths[0], paths[2]]

    # --- jobs ------------------------------------------------------------------------------------

    def _log(self) -> Iterator[dict[str, Any]]:
        traps = [
            self._overlaps,
            self._lies_within,
            self._lacks_times,
            self._has_no_attempt,
            self._lasts_no_time,
            self._needs_no_gpu,
            self._needs_many_servers,
            self._starts_early,
            self._in_the_hour_that_comes_twice,
        ]
        for number in range(self._jobs):
            make = self._usual if number % 20 else traps[number // 20 % len(traps)]
            submitted, attempts = make()
            yield {
                "status": self._random.choice(("Pass", "Killed", "Failed")),
                "vc": f"vc{self._random.randrange(14)}",
                "jobid": f"application_1506638472019_{number:05d}",
                "attempts": attempts,
                "submitted_time": submitted if isinstance(submitted, str) else local(submitted),
                "user": f"user{self._random.randrange(319)}",
            }

    def _span(self) -> tuple[int, int]:
        """Draw when a job begins and ends, neither of them in the unclear hours."""
        while True:
            begin = BEGIN + self._random.randrange((DAYS - 3) * DAY_S)
            end = begin + min(2 * DAY_S, 60 + int(self._random.expovariate(1 / 7200)))
            if not any(UNCLEAR[0] <= t <= UNCLEAR[1] for t in (begin - 3600, begin, end)):
                return begin, end

    def _places(self, gpus: int) -> list[tuple[str, list[str]]]:
        machine = self._random.randrange(MACHINES)
        found: list[tuple[str, list[str]]] = []
        while gpus > 0:
            names = [f"gpu{n}" for n in range(min(GPUS, gpus))]
            found.append((f"m{machine % MACHINES}", names))
            gpus, machine = gpus - len(names), machine + 1
        return found

    def _usual(self) -> tuple[int | str, list[dict[str, Any]]]:
        begin, end = self._span()
        gpus = self._random.choice((1, 1, 1, 1, 2, 4, 8))
        middle = begin + (end - begin) // 2
        if self._random.random() < 0.1 and not UNCLEAR[0] <= middle <= UNCLEAR[1]:
            self.known.add(gpus, (begin, middle), (middle, end))
            spans = ((begin, middle), (middle, end))
        else:
            self.known.add(gpus, (begin, end))
            spans = ((begin, end),)
        attempts = [_attempt(local(a), local(b), self._places(gpus)) for a, b in spans]
        return begin - self._random.randrange(3600), attempts

    def _overlaps(self) -> tuple[int | str, list[dict[str, Any]]]:
        begin, end = self._span()
        self.known.note("overlap")
        self.known.add(2, (begin, begin + 40), (begin + 40, end))
        first = _attempt(local(begin), local(begin + 40), self._places(2))
        return begin, [first, _attempt(local(begin + 20), local(end), self._places(2))]

    def _lies_within(self) -> tuple[int | str, list[dict[str, Any]]]:
        begin, end = self._span()
        self.known.note("within")
        self.known.add(1, (begin, end))
        inner = _attempt(local(begin + 10), local(begin + 20), self._places(1))
        return begin, [_attempt(local(begin), local(end), self._places(1)), inner]

    def _lacks_times(self) -> tuple[int | str, list[dict[str, Any]]]:
        """Leave out the first attempt's start, the second's end, and the end of the last."""
        begin, _ = self._span()
        for name in ("no-start", "no-end", "open-end"):
            self.known.note(name)
        self.known.add(1, (begin, begin + 50))
        self.known.jobs += 1
        return begin, [
            _attempt(None, local(begin), self._places(1)),
            _attempt(local(begin), "None", self._places(1)),
            _attempt(local(begin + 50), None, self._places(1)),
        ]

    def _has_no_attempt(self) -> tuple[int | str, list[dict[str, Any]]]:
        self.known.note("no-times")
        return self._span()[0], []

    def _lasts_no_time(self) -> tuple[int | str, list[dict[str, Any]]]:
        begin, _ = self._span()
        self.known.note("zero-length")
        self.known.add(4, (begin, begin))
        return begin, [_attempt(local(begin), local(begin), self._places(4))]

    def _needs_no_gpu(self) -> tuple[int | str, list[dict[str, Any]]]:
        begin, end = self._span()
        self.known.note("cpu-only")
        return begin, [_attempt(local(begin), local(end), [("m1", [])])]

    def _needs_many_servers(self) -> tuple[int | str, list[dict[str, Any]]]:
        begin, end = self._span()
        self.known.add(3 * GPUS, (begin, end))
        return begin, [_attempt(local(begin), local(end), self._places(3 * GPUS))]

    def _starts_early(self) -> tuple[int | str, list[dict[str, Any]]]:
        begin, end = self._span()
        self.known.add(1, (begin, end))
        return begin + 30, [_attempt(local(begin), local(end), self._places(1))]

    def _in_the_hour_that_comes_twice(self) -> tuple[int | str, list[dict[str, Any]]]:
        """From 01:50 to 01:10: the second time is after the clocks were set back."""
        self.known.note("twice", 3)
        self.known.add(1, (0, 20 * 60))
        times = "2017-11-05 01:50:00", "2017-11-05 01:10:00"
        return "2017-11-05 01:50:00", [_attempt(*times, self._places(1))]

    # --- readings --------------------------------------------------------------------------------

    def _readings(self, minutes: int) -> Iterator[str]:
        yield f"time,machineId,{','.join(f'gpu{n}_util' for n in range(GPUS))}\n"
        begin = int(UNCLEAR[0])  # across the hour that comes twice, which the zone tells apart
        for minute in range(minutes):
            moment = datetime.fromtimestamp(begin + 60 * minute, ZONE)
            time = moment.strftime("%Y-%m-%d %H:%M:%S %Z")
            for machine in range(MACHINES):
                missing = (minute + machine) % 10 == 0
                cells = ["NA" if missing else f"{self._random.uniform(0, 100):.2f}"] * GPUS
                self.known.samples += GPUS
                if missing:
                    self.known.note("not-available", GPUS)
                yield f"{time},m{machine},{','.join(cells)},\n"
