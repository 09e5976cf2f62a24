"""Samples in accounts: unknown is never idle, and advice rests on enough samples."""

from dataclasses import replace

import pytest
from tests.monitoring.records import GIB, record

from gpupool.monitoring.accounting import Range
from gpupool.monitoring.history.sample_figures import NOTHING, figures_of, lease_lines, merged
from gpupool.monitoring.usage_report import (
    WASTE_TITLES,
    as_csv,
    as_plain,
    lease_report,
    make_report,
    table,
)
from gpupool.pool.history_query import SampleSum
from gpupool.pool.model.state import LeaseRecord
from gpupool.pool.model.units import HOUR_MS
from gpupool.pool.record_query import GroupSum

HOUR = 3600
#: Half a GPU for an hour: idle for three quarters of it, 9 of 40 GiB used.
KNOWN = SampleSum(
    "ada", slots=360, idle=270, held=HOUR * 500_000, wasted=HOUR * 375_000, busy_n=HOUR,
    busy=HOUR * 125, memory=HOUR * 9 * 1024, granted=HOUR * 40 * 1024, memory_max=9 * 1024,
)  # fmt: skip


def lease() -> LeaseRecord:
    one = record(1)
    return replace(one, gpus=(replace(one.gpus[0], memory=40 * GIB),))


def test_figures_are_shares_of_what_was_seen() -> None:
    found = figures_of(KNOWN, 1.0)
    assert found.busy_gpu_hours == pytest.approx(0.125)
    assert found.wasted_gpu_hours == pytest.approx(0.375)
    assert (found.idle_share, found.memory_share, found.coverage) == (0.75, 0.225, 0.5)


def test_what_nobody_has_seen_is_unknown() -> None:
    assert figures_of(None, 2.0) == replace(NOTHING, coverage=0.0)
    assert figures_of(None, 0.0) == NOTHING
    assert figures_of(replace(KNOWN, busy_n=0), 1.0).busy_gpu_hours is None
    assert figures_of(KNOWN, 0.4999).coverage == 1.0  # slots are of ten seconds


def test_servers_are_added_by_key() -> None:
    found = merged([KNOWN, replace(KNOWN, memory_max=7), replace(KNOWN, key="bob")])
    assert (found["ada"].held, found["ada"].memory_max) == (2 * KNOWN.held, 9 * 1024)
    assert found["bob"] == replace(KNOWN, key="bob")


def test_one_lease_has_advice() -> None:
    assert lease_lines([lease()], KNOWN, 0.5) == [
        "busy        0.1250 GPU-hours; idle 75% of the time",
        "wasted      0.3750 GPU-hours, while nothing ran",
        "memory used 9.0 of 40.0 GiB at most on one GPU, 22% on average",
        "coverage    100% of its time was sampled",
        "advice      never used more than 9 of 40 GiB: -m 12G would do",
        "advice      nothing ran in 75% of the time: --idle-timeout ends such a lease",
    ]
    assert (
        lease_lines([lease()], KNOWN, 1.0)[-1] == "advice      none: too little of it was sampled"
    )
    assert "unknown" in lease_lines([lease()], None, 1.0)[0]
    full = replace(KNOWN, memory_max=39 * 1024, wasted=0, idle=0)
    assert not any("advice" in line for line in lease_lines([lease()], full, 0.5))
    assert lease_lines([lease()], KNOWN, 0.5)[0] in lease_report(lease().lease, [lease()], KNOWN)


def test_a_report_shows_them_and_says_what_is_unknown() -> None:
    unit_ms = str(10**12 * HOUR_MS)
    groups = [GroupSum(name, 1, unit_ms, "0") for name in ("ada", "bob")]
    whole = GroupSum("", 2, str(2 * 10**12 * HOUR_MS), "0")
    report = make_report(groups, whole, ((), ()), (), "user", Range(), [KNOWN])
    rows = {line[0]: line[1:] for line in table(report)}
    assert rows["ada"][-3:] == ("0.12", "75%", "50%!")
    assert rows["bob"][-3:] == ("unknown", "unknown", "0%!")
    assert rows["all"][-3:] == ("0.12", "75%", "25%!")
    assert table(report.by_waste(), WASTE_TITLES)[1] == (
        "ada", "1.00", "0.38", "75%", "0.12", "22%", "50%!"
    )  # fmt: skip
    plain = {row["key"]: row for row in as_plain(report)["rows"]}  # type: ignore[union-attr]
    assert plain["ada"]["wasted_gpu_hours"] == pytest.approx(0.375)
    assert plain["bob"]["wasted_gpu_hours"] is None
    lines = as_csv(report).splitlines()
    assert lines[0].endswith(
        "busy [GPU h],idle [share],wasted [GPU h],memory used [share],coverage [share]"
    )
    assert lines[2].endswith(",,,,,0.0")
