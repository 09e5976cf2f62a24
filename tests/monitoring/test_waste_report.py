"""The weekly report: the worst first, unknown never as waste, nobody without waste."""

from dataclasses import replace

from tests.monitoring.records import START_MS, record

from gpupool.monitoring.accounting import Range, sums
from gpupool.monitoring.usage_report import Report
from gpupool.monitoring.waste_report import ROWS, waste_lines, worst
from gpupool.pool.history_query import SampleSum
from gpupool.pool.model.ids import LeaseId, Milliseconds
from gpupool.pool.model.policy import UNIT

HOUR = 3600 * 1_000_000


def sampled(key: str, held_h: float, wasted_h: float) -> SampleSum:
    return SampleSum(key, 360, 90, round(held_h * HOUR), round(wasted_h * HOUR), 1, 1, 1, 1, 1)


def report(by: str, wasted: dict[str, float]) -> Report:
    """Return a report of ten leases of an hour of a whole GPU, one after the other."""
    records = [
        replace(
            record(n),
            user=f"user-{n % 4}",
            lease=LeaseId(16 + n),
            gpus=tuple(replace(gpu, units=UNIT) for gpu in record(n).gpus),
            granted_at=Milliseconds(START_MS),
            freed_at=Milliseconds(START_MS + 3_600_000),
        )
        for n in range(1, 15)
    ]
    rows, whole = sums(records, by, Range())
    samples = {key: sampled(key, rows[key].gpu_hours, hours) for key, hours in wasted.items()}
    return Report(by, Range(), rows, whole, {}, samples)


def test_the_worst_come_first_and_only_they() -> None:
    users = report("user", {"user-1": 0.5, "user-2": 2.0, "user-3": 0.0})
    assert list(worst(users).rows) == ["user-2", "user-1"], "user-0 is unknown, user-3 wasted none"
    leases = report("lease", {f"{n:04x}": 0.5 for n in range(17, 31)})
    assert len(worst(leases).rows) == ROWS


def test_the_report_for_people() -> None:
    users = report("user", {"user-1": 0.5, "user-2": 2.0})
    lines = waste_lines(report("class", {}), users, report("lease", {"0011": 0.5}))
    assert lines[0] == "held by leases: 14.0 GPU-hours"
    assert lines[1].startswith("wasted: 2.5 GPU-hours, 31 % of what samples have seen")
    assert "by class:" not in lines
    at = lines.index("by user:")
    assert lines[at + 1].split()[:3] == ["USER", "GPU-HOURS", "WASTED"]
    assert lines[at + 2].split()[0] == "user-2"
    assert any(line.startswith("0011") for line in lines)
    nothing = report("user", {})
    assert waste_lines(nothing, nothing, nothing)[-1].startswith("nothing is known")
