"""Questions that observers answer, and the figures that they answer with."""

import pytest

from gpupool.pool.history_query import CapacitySum, HistoryPage, HistoryQuery
from gpupool.pool.model.ids import LeaseId, Milliseconds
from gpupool.pool.record_query import (
    GroupSum,
    RecordPage,
    RecordQuery,
    records_of_nobody,
    samples_of,
)
from gpupool.pool.telemetry import HISTOGRAMS


@pytest.mark.parametrize(("lease", "about"), [(0, ""), (7, str(LeaseId(7)))])
def test_samples_are_asked_for_of_the_same_leases(lease: int, about: str) -> None:
    query = RecordQuery(since=Milliseconds(5), lease=LeaseId(lease))
    samples = samples_of(query, Milliseconds(99))
    assert (samples.since, samples.until) == (5, 100)
    assert (samples.metric, samples.name) == ("server", about)


def test_a_question_without_a_beginning_is_about_all_that_was_kept() -> None:
    assert (HistoryQuery("pool").since, HistoryQuery("pool").after) == (0, 0)


def test_sums_of_servers_add_every_figure() -> None:
    one = CapacitySum(86_400, "H200", 1, 20, 300, 4000, 50_000, 600_000, 7_000_000)
    two = CapacitySum(0, "other", 2, 20, 200, 2000, 20_000, 200_000, 2_000_000)
    added = CapacitySum(86_400, "H200", 3, 40, 500, 6000, 70_000, 800_000, 9_000_000)
    assert one.plus(two) == added


def test_the_bounds_of_a_histogram_double() -> None:
    for bounds in HISTOGRAMS.values():
        assert [bound / bounds[0] for bound in bounds] == pytest.approx([2**n for n in range(14)])


def test_sums_of_leases_add_every_figure() -> None:
    one = GroupSum("ada", 1, str(2**70), "300", 4000, 50)
    two = GroupSum("bob", 2, "1", "200", 2000, 70)
    assert one.plus(two) == GroupSum("ada", 3, str(2**70 + 1), "500", 6000, 70)


def test_a_sum_of_nothing_is_nothing_and_changes_no_other() -> None:
    nothing = GroupSum("", 0, "0", "0", 0, 0)
    assert RecordPage().whole == nothing
    assert GroupSum("").plus(GroupSum("")) == nothing
    one = GroupSum("ada", 1, "20", "300", 4000, 50)
    assert one.plus(GroupSum("")) == one


async def test_a_server_without_an_observer_says_that_it_keeps_nothing() -> None:
    history = await records_of_nobody(HistoryQuery("pool"))
    assert isinstance(history, HistoryPage)
    assert (history.oldest, history.after, history.step_s, history.lost) == (0, 0, 0, 0)
    assert (history.more, history.series, history.problem) == (False, (), "it keeps no history")
    records = await records_of_nobody(RecordQuery())
    assert isinstance(records, RecordPage)
    assert (records.upto, records.newest, records.more) == (0, 0, False)
    assert (records.records, records.problem) == ((), "it keeps no accounts")
