"""Sums of records: exact, closed, cut at the ends of a range."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.monitoring.records import GIB, START_MS, record
from tests.pool.test_accounts import recorded

from gpupool.monitoring.accounting import KEYS, Range, gaps_of, sums, total
from gpupool.monitoring.pages import sum_of, told
from gpupool.pool import record_query
from gpupool.pool.model.ids import GpuId, LeaseId, Milliseconds
from gpupool.pool.model.policy import UNIT
from gpupool.pool.model.state import LeaseRecord, RecordedGpu
from gpupool.pool.model.units import DAY_MS, HOUR_MS
from gpupool.pool.record_query import RecordQuery
from gpupool.pool.transitions.kept_records import line_of, record_of

RECORDS = [record(number) for number in range(1, 200)]
ALWAYS = Range()


@given(recorded)
def test_a_line_is_read_as_what_was_written(given_record: LeaseRecord) -> None:
    line = line_of(given_record)
    assert line.count("\n") == 1
    assert record_of(line) == given_record


@pytest.mark.parametrize(
    "line", ["", "[]", "{}", "null", '{"schema":2}', "[" * 100_000, '{"schema":1}']
)
def test_what_is_no_record_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        record_of(line)


def test_gpu_hours_are_the_share_of_memory_times_the_time_until_it_is_freed() -> None:
    gpus = tuple(RecordedGpu(GpuId(f"{n}"), "H200", 35 * GIB, UNIT // 4) for n in range(4))
    one = record(
        1,
        gpus=gpus,
        requested_at=START_MS,
        granted_at=START_MS + 7,
        freed_at=START_MS + 7 + HOUR_MS,
    )
    found = total([one], ALWAYS)
    assert (found.gpu_hours, found.gib_hours) == (1.0, 140.0)  # four quarters make one GPU
    assert (found.leases, found.wait_ms, found.wait_max_ms) == (1, 7, 7)


@pytest.mark.parametrize("by", KEYS)
def test_sums_close_whatever_they_are_by(by: str) -> None:
    within = Range(START_MS + 1_000_003, START_MS + 9_000_001)
    parts, whole = sums(RECORDS, by, within)
    assert whole == total(RECORDS, within)
    assert sum(each.unit_ms for each in parts.values()) == whole.unit_ms
    assert sum(each.byte_ms for each in parts.values()) == whole.byte_ms
    assert max(each.wait_max_ms for each in parts.values()) <= max(
        each.granted_at - each.requested_at for each in RECORDS
    )
    if by not in ("server", "model", "day"):
        assert sum(each.leases for each in parts.values()) == whole.leases
        assert sum(each.wait_ms for each in parts.values()) == whole.wait_ms


@given(st.lists(st.integers(0, 20_000_000), max_size=5))
def test_ranges_that_meet_add_up(cuts: list[int]) -> None:
    ends = [0, *(START_MS + each for each in sorted(cuts)), 2**62]
    ranges = [Range(*pair) for pair in itertools.pairwise(ends)]
    found = [total(RECORDS, each) for each in ranges]
    assert sum(each.unit_ms for each in found) == total(RECORDS, ALWAYS).unit_ms
    assert sum(each.byte_ms for each in found) == total(RECORDS, ALWAYS).byte_ms


def test_a_lease_over_midnight_counts_on_both_days() -> None:
    midnight = (START_MS // DAY_MS + 1) * DAY_MS
    one = record(
        1, requested_at=midnight - 5000, granted_at=midnight - 1000, freed_at=midnight + DAY_MS + 1
    )
    found, _whole = sums([one], "day", ALWAYS)
    assert sorted(each.unit_ms * 2 // UNIT for each in found.values()) == [1, 1000, DAY_MS]
    assert sum(each.wait_ms for each in found.values()) == 4000


def test_two_parts_of_a_lease_are_one_lease_with_one_wait() -> None:
    one, other = record(1), record(2, lease=record(1).lease)
    found = total([one, other], ALWAYS)
    assert found.leases == 1
    assert found.wait_ms == one.granted_at - one.requested_at


def test_a_lease_of_which_a_part_counts_elsewhere_is_no_lease_more() -> None:
    one = record(1)
    rows, whole = sums([one], "user", ALWAYS, [one])
    assert whole.leases == 0
    assert whole.unit_ms == total([one], ALWAYS).unit_ms
    assert rows == {one.user: whole}


def test_sums_travel_exactly() -> None:
    for by in KEYS:
        rows, whole = sums(RECORDS, by, ALWAYS)
        page = told(RECORDS, RecordQuery(by=by))
        assert {group.key: sum_of(group) for group in page.groups} == rows
        assert sum_of(page.whole) == whole
    assert set(KEYS) == set(record_query.KEYS)


def test_gaps_are_known_by_number() -> None:
    assert gaps_of([]) == ()
    assert gaps_of([1, 2, 3]) == ()
    assert gaps_of([3, 4, 9, 4]) == ((1, 2), (5, 8))


def test_an_empty_range_has_nothing() -> None:
    assert total(RECORDS, Range(START_MS, START_MS)).leases == 0
    assert sums([], "user", ALWAYS) == ({}, total([], ALWAYS))
    assert Range().ms_of(record(1, granted_at=Milliseconds(9), freed_at=Milliseconds(5))) == 0
    assert record(1).lease == LeaseId(12)
