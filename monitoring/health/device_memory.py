"""A server's memory of its GPUs from one start to the next, as one small file. Pure code.

Corrected memory errors are remembered by day, so that those of ten minutes can be compared with the
mean of a month, and results of self-tests, so that a GPU can be compared with itself.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, cast

from gpupool.pool.model.ids import GpuId
from gpupool.pool.model.units import DAY_MS
from gpupool.pool.telemetry import GpuTelemetry

FILE = "devices.json"
DAYS_KEPT, DAYS_MIN = 31, 3
GPUS_MAX = 4096


@dataclass(frozen=True, slots=True)
class SelfTest:
    """The latest self-test of a GPU, beside how fast it was at first."""

    at: int  # the pool's time, milliseconds
    passes_a_second: float
    first: float  # of the first test that was right
    problem: str = ""  # what was wrong; empty: nothing


@dataclass(slots=True)
class _Device:
    days: dict[int, int] = field(default_factory=dict[int, int])  # errors by day since 1970
    count: int | None = None  # of this run of the driver
    test: SelfTest | None = None


class DeviceMemory:
    """See the module."""

    def __init__(self, text: str = "") -> None:
        """Read the text of an earlier start; unreadable text is ignored."""
        self.gpu_count: int | None = None
        """GPUs at the last start; None: there was none."""
        self._devices: dict[GpuId, _Device] = {}
        try:
            body = cast("dict[str, Any]", json.loads(text)) if text else {}
            self.gpu_count = None if body.get("gpus") is None else int(body["gpus"])
            for gpu, row in cast("dict[str, Any]", body.get("devices", {})).items():
                test = row.get("test")
                self._devices[GpuId(gpu)] = _Device(
                    {int(day): int(count) for day, count in row["days"].items()},
                    test=None if test is None else _test_of(test),
                )
        except (ValueError, TypeError, KeyError, AttributeError):
            self.gpu_count, self._devices = None, {}

    def text(self, gpu_count: int) -> str:
        """Return the text for the next start."""
        kept = list(self._devices.items())[-GPUS_MAX:]
        devices = {
            gpu: {"days": known.days, "test": asdict(known.test) if known.test else None}
            for gpu, known in kept
            if known.days or known.test
        }
        return json.dumps({"gpus": gpu_count, "devices": devices})

    def note_errors(self, gpus: Iterable[GpuTelemetry], at: int) -> None:
        """Add the corrected errors since the last call to today's."""
        today = at // DAY_MS
        for gpu in gpus:
            if gpu.ecc_corrected is None:
                continue
            known = self._devices.setdefault(gpu.gpu, _Device())
            before, known.count = known.count, gpu.ecc_corrected
            grown = max(0, gpu.ecc_corrected - before) if before is not None else 0
            known.days[today] = known.days.get(today, 0) + grown
            for day in [day for day in known.days if not 0 <= today - day < DAYS_KEPT]:
                del known.days[day]

    def errors_a_second(self, at: int) -> dict[GpuId, float]:
        """Return the mean of the days before today, of GPUs with three days at least."""
        found: dict[GpuId, float] = {}
        for gpu, known in self._devices.items():
            days = [count for day, count in known.days.items() if day < at // DAY_MS]
            if len(days) >= DAYS_MIN:
                found[gpu] = sum(days) / (len(days) * 86_400.0)
        return found

    def note_test(self, gpu: GpuId, at: int, passes_a_second: float, problem: str) -> None:
        """Take the result of a self-test."""
        known = self._devices.setdefault(gpu, _Device())
        last = known.test or SelfTest(at, passes_a_second, 0.0)
        first = last.first or (0.0 if problem else passes_a_second)
        known.test = SelfTest(at, passes_a_second, first, problem)

    def tests(self) -> Mapping[GpuId, SelfTest]:
        """Return the latest self-test of each GPU."""
        return {gpu: known.test for gpu, known in self._devices.items() if known.test}


def _test_of(row: dict[str, Any]) -> SelfTest:
    """Return a saved test, without fields of other versions."""
    return SelfTest(**{each.name: row[each.name] for each in fields(SelfTest)})
