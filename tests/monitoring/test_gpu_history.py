"""The past of a GPU: slots with its marks, its leases' memory, and calls of leases."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.monitoring.samples import GIB, START_MS, gpu_id, sample, table

from gpupool.monitoring.history.history_file import storage_of
from gpupool.monitoring.history.history_reader import read_history
from gpupool.monitoring.history.history_settings import HistorySettings
from gpupool.monitoring.history.history_store import FILE_NAME
from gpupool.monitoring.history.history_writer import HistoryWriter
from gpupool.monitoring.history.time_slots import (
    REASONS,
    Slot,
    SlotMaker,
    reason_mark,
    word_of,
    xid_mark,
)
from gpupool.monitoring.sample import Sample
from gpupool.pool.history_query import HistoryPage, HistoryQuery
from gpupool.pool.model.ids import LeaseId, Milliseconds, lease_name
from gpupool.pool.model.units import DAY_S

T0 = START_MS // 1000 // DAY_S * DAY_S
STATE = table(gpus=2, leases=3)
POWER, HEAT = REASONS.index("power"), REASONS.index("hw_thermal")


def with_marks(second: float, power_s: float = 0.0, xids: dict[int, int] | None = None) -> Sample:
    """Return a sample in which the first GPU has such counters."""
    made = sample(STATE, 1000 * T0 + int(1000 * second))
    first, *others = made.telemetry.gpus
    held = {"power": power_s, "hw_thermal": 7.0, "unheard of": power_s}
    first = replace(first, throttled_s=held, xids=xids or {})
    return replace(made, telemetry=replace(made.telemetry, gpus=(first, *others)))


def slots_of(samples: list[Sample]) -> list[Slot]:
    maker = SlotMaker()
    return [slot for each in samples if (slot := maker.add(each)) is not None]


def writer(folder: Path, settings: HistorySettings | None = None) -> HistoryWriter:
    return HistoryWriter(folder, settings or HistorySettings(), print, disk_full=lambda _: False)


def ask(folder: Path, of: str, until: int, **more: object) -> HistoryPage:
    query = HistoryQuery(
        of, "memory", gpu_id(0), Milliseconds(1000 * T0), Milliseconds(1000 * (T0 + until))
    )
    return read_history(folder, replace(query, **more))  # type: ignore[arg-type]


def test_a_mark_says_why_clocks_were_held_down_or_which_error_came() -> None:
    assert [word_of(n) for n in range(len(REASONS))] == [f"throttled.{each}" for each in REASONS]
    assert (reason_mark("thermal"), reason_mark("moon")) == (1, None)
    assert word_of(xid_mark(79)) == "xid.79"
    assert (word_of(len(REASONS)), word_of(-1)) == ("", "")


def test_marks_are_what_grew_and_of_nothing_there_is_no_row() -> None:
    quiet = [with_marks(second, 3.0) for second in range(11)]
    [slot] = slots_of(quiet)
    assert slot.marks == {}, "what was before anybody looked is of no slot"
    grows = [with_marks(second, 3.0 + 0.25 * second) for second in range(11)]
    [slot] = slots_of(grows)
    assert slot.marks == {(gpu_id(0), POWER): {"amount": 9 * 250}}
    assert (gpu_id(0), HEAT) not in slot.marks


def test_the_first_error_of_its_kind_counts_and_one_from_before_does_not() -> None:
    later = [with_marks(second, xids={31: 1} if second >= 4 else {}) for second in range(11)]
    [slot] = slots_of(later)
    assert slot.marks == {(gpu_id(0), xid_mark(31)): {"amount": 1}}
    before = [with_marks(second, xids={31: 1 + (second > 6)}) for second in range(11)]
    [slot] = slots_of(before)
    assert slot.marks == {(gpu_id(0), xid_mark(31)): {"amount": 1}}
    gap = [with_marks(0), with_marks(60, xids={31: 5}), with_marks(70, xids={31: 5})]
    assert [each.marks for each in slots_of(gap)] == [{}, {}]


@pytest.mark.long
def test_marks_of_a_gpu_are_read_from_every_tier(tmp_path: Path) -> None:
    helper = writer(tmp_path)
    for second in range(0, 2 * 3600 + 30, 5):
        xids = {31: 1, 79: 2} if second >= 1800 else {31: 1} if second >= 600 else {}
        helper.take([with_marks(second, 0.1 * second, xids)])
    helper.close()
    page = ask(tmp_path, "gpu-marks", 3600)
    found = {each.key: each for each in page.series}
    assert sorted(found) == ["throttled.power", "xid.31", "xid.79"]
    assert (page.step_s, found["xid.79"].points) == (10, ((T0 + 1800, 2, 1, -1),))
    assert found["xid.31"].points == ((T0 + 600, 1, 1, -1),)
    assert found["throttled.power"].points[1] == (T0 + 10, 1000, 1, -1)
    hours = ask(tmp_path, "gpu-marks", 400 * 3600)
    assert hours.step_s == 3600
    power = next(each for each in hours.series if each.key == "throttled.power").points
    assert [each[0] - T0 for each in power] == [0, 3600, 7200]
    assert sum(each[1] for each in power) == pytest.approx(100 * (2 * 3600 + 20), abs=1100)
    assert ask(tmp_path, "gpu-marks", 3600, name=gpu_id(1)).series == ()
    assert ask(tmp_path, "gpu-marks", 3600, name="no GPU").series == ()


def test_the_memory_of_a_gpus_leases_adds_up_and_others_have_no_name(tmp_path: Path) -> None:
    """Lease 4 of ada alone is on GPU 0; bob gets one there, too, for some seconds of a step."""
    more = table(gpus=1, leases=2)
    helper = writer(tmp_path)
    for second in range(0, 601, 2):
        at = 1000 * (T0 + second)
        helper.take([sample(more if 200 <= second < 205 else STATE, at)])
    helper.close()
    page = ask(tmp_path, "gpu-leases", 600)
    names = {each.key: each for each in page.series}
    ada = names[lease_name(LeaseId(4))]
    assert ada.label == "ada"
    assert {total / n for _, total, n, _ in ada.points} == {8 * 1024}
    bob = names[lease_name(LeaseId(2))]
    assert (bob.label, bob.points) == ("bob", ((T0 + 200, 3 * 8 * 1024, 5, -1),))
    own = ask(tmp_path, "gpu-leases", 600, user="bob")
    told = {(each.key, each.label): each.points for each in own.series}
    assert told == {("", ""): ada.points, (bob.key, "bob"): bob.points}


@pytest.mark.long
def test_the_memory_of_a_gpus_leases_is_the_same_in_hours(tmp_path: Path) -> None:
    keep = HistorySettings(keep_10s_s=90 * DAY_S, keep_1m_s=90 * DAY_S)
    helper = writer(tmp_path, keep)
    for second in range(0, 30 * 3600, 300):
        helper.take([sample(STATE, 1000 * (T0 + second + each)) for each in (0, 5)])
    helper.take([sample(STATE, 1000 * (T0 + 40 * 3600 + each)) for each in range(0, 30, 5)])
    helper.close()
    hours = ask(tmp_path, "gpu-leases", 400 * 3600)
    assert hours.step_s == 3600
    [series] = hours.series
    assert len(series.points) == 31
    assert {total / n for _, total, n, _ in series.points} == {8 * 1024}


def test_a_lease_has_its_calls_and_the_time_of_those_that_are_waited_for(tmp_path: Path) -> None:
    helper = writer(tmp_path)
    helper.take(sample(STATE, 1000 * T0 + 1000 * second) for second in range(3700))
    helper.close()
    lease = "4"
    [calls] = ask(tmp_path, "lease", 3600, metric="calls", name=lease).series
    assert calls.points[1][1:3] == (1000, 10)  # 100 a second
    [took] = ask(tmp_path, "lease", 3600, metric="call-time", name=lease).series
    t, total, waits, _ = took.points[1]
    assert (t, total, waits) == (T0 + 10, 20_000, 100)  # 2 ms each, in tens of microseconds
    whole = ask(tmp_path, "lease", 400 * 3600, metric="call-time", name=lease).series[0].points
    assert sum(each[1] for each in whole) == 200 * sum(each[2] for each in whole)
    both = ask(tmp_path, "user", 3600, metric="call-time", name="bob").series[0].points[1]
    assert both[1] / both[2] == 200


def test_what_an_exporter_keeps_has_sizes_the_cap_and_since_when(tmp_path: Path) -> None:
    settings = HistorySettings(size_max=64 << 20)
    empty = storage_of(tmp_path, settings).storage
    assert empty is not None and (empty.files, empty.size_max) == ({}, 64 << 20)
    assert [each.oldest for each in empty.tiers] == [0, 0, 0]
    helper = writer(tmp_path, settings)
    helper.take(sample(STATE, 1000 * (T0 + second)) for second in range(0, 200, 5))
    (tmp_path / "leases.jsonl").write_text("x" * 100)
    (tmp_path / "leases.jsonl.1").write_text("x" * 1000)
    (tmp_path / "history.damaged-1.db").write_text("x" * 5000)
    told = storage_of(tmp_path, settings).storage
    assert told is not None
    assert told.files["leases.jsonl"] == 1100
    wal = tmp_path / f"{FILE_NAME}-wal"
    assert told.files[FILE_NAME] >= wal.stat().st_size + (tmp_path / FILE_NAME).stat().st_size
    assert sorted(told.files) == [FILE_NAME, "leases.jsonl"]
    oldest = [(each.step_s, each.kept_s, each.oldest) for each in told.tiers]
    assert oldest == [(10, DAY_S, 1000 * T0), (60, 30 * DAY_S, 1000 * T0), (3600, 731 * DAY_S, 0)]
    helper.close()
    (tmp_path / FILE_NAME).write_bytes(b"no database" * 100)
    assert GIB and storage_of(tmp_path, settings).storage is not None
