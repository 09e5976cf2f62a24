"""Questions that observers answer, as they are made from other questions."""

import pytest

from gpupool.pool.history_query import HistoryQuery
from gpupool.pool.model.ids import LeaseId, Milliseconds
from gpupool.pool.record_query import RecordQuery, samples_of


@pytest.mark.parametrize(("lease", "about"), [(0, ""), (7, str(LeaseId(7)))])
def test_samples_are_asked_for_of_the_same_leases(lease: int, about: str) -> None:
    query = RecordQuery(since=Milliseconds(5), lease=LeaseId(lease))
    samples = samples_of(query, Milliseconds(99))
    assert (samples.since, samples.until) == (5, 100)
    assert (samples.metric, samples.name) == ("server", about)


def test_a_question_without_a_beginning_is_about_all_that_was_kept() -> None:
    assert (HistoryQuery("pool").since, HistoryQuery("pool").after) == (0, 0)
