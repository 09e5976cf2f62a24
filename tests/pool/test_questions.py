"""Questions that exporters answer, and the figures that they answer with."""

import pytest

from gpupool.pool.history_query import (
    POINTS_MAX,
    CapacitySum,
    Episode,
    HistoryPage,
    HistoryQuery,
    HistorySeries,
    SampleSum,
    Storage,
    joined,
)
from gpupool.pool.model.ids import LeaseId, Milliseconds
from gpupool.pool.record_query import (
    FAR,
    PAGE_COUNT_MAX,
    GroupSum,
    RecordPage,
    RecordQuery,
    Runs,
    common,
    records_of_nobody,
    samples_of,
)
from gpupool.pool.telemetry import HISTOGRAMS, Health


@pytest.mark.parametrize(("lease", "about"), [(0, ""), (7, str(LeaseId(7)))])
def test_samples_are_asked_for_of_the_same_leases(lease: int, about: str) -> None:
    query = RecordQuery(since=Milliseconds(5), lease=LeaseId(lease))
    samples = samples_of(query, Milliseconds(99))
    assert (samples.since, samples.until) == (5, 100)
    assert (samples.metric, samples.name) == ("server", about)


def test_a_question_without_a_beginning_is_about_all_that_was_kept() -> None:
    query = HistoryQuery("pool")
    assert (query.since, query.until, query.after) == (0, 0, 0)
    assert (query.metric, query.name, query.user, query.points_max) == ("", "", "", POINTS_MAX)


def test_a_question_for_records_without_bounds_is_about_all_of_them() -> None:
    query = RecordQuery()
    assert (query.since, query.until, query.after, query.through) == (0, FAR, 0, 0)
    assert (query.count, query.lease, query.by, query.user) == (PAGE_COUNT_MAX, 0, "", "")


def test_the_end_of_all_time_is_a_number_of_64_bits_that_no_clock_shows() -> None:
    assert 2**52 < FAR < 2**63


def test_sums_of_servers_add_every_figure() -> None:
    one = CapacitySum(86_400, "H200", 1, 20, 300, 4000, 50_000, 600_000, 7_000_000)
    two = CapacitySum(0, "other", 2, 20, 200, 2000, 20_000, 200_000, 2_000_000)
    added = CapacitySum(86_400, "H200", 3, 40, 500, 6000, 70_000, 800_000, 9_000_000)
    assert one.plus(two) == added


def test_samples_of_two_servers_add_every_figure_but_the_largest_memory() -> None:
    one = SampleSum("ada", 1, 20, 300, 4000, 50_000, 600_000, 7_000_000, 80_000_000, 5)
    two = SampleSum("bob", 2, 20, 200, 2000, 20_000, 200_000, 2_000_000, 20_000_000, 9)
    added = (3, 40, 500, 6000, 70_000, 800_000, 9_000_000, 100_000_000, 9)
    assert one.plus(two) == SampleSum("ada", *added)
    assert two.plus(one) == SampleSum("bob", *added)


def test_what_is_not_said_of_what_is_kept_is_nothing() -> None:
    assert Episode("disk", "sda", Health.WARN, Milliseconds(5)).ended == 0, "it goes on"
    assert (Storage().size_max, Storage().files, Storage().tiers) == (0, {}, ())
    page = HistoryPage()
    assert (page.step_s, page.after, page.oldest, page.lost) == (0, 0, 0, 0)


def test_the_parts_of_an_answer_are_put_together_in_their_order() -> None:
    def series(key: str, label: str, *at: int) -> HistorySeries:
        return HistorySeries(key, label, tuple((each, 1, 1, 1) for each in at))

    samples = [SampleSum(key, *range(9)) for key in "abc"]
    days = [CapacitySum(day, "H200", *range(7)) for day in (1, 2)]
    episodes = [Episode("disk", name, Health.WARN, Milliseconds(5)) for name in ("sda", "sdb")]
    first = HistoryPage(
        60,
        (series("x", "1", 0, 60), series("y", "1", 0)),
        sums=(samples[0],),
        after=3,
        more=True,
        episodes=(episodes[0],),
        capacity=(days[0],),
    )
    last = HistoryPage(
        60,
        (series("x", "1", 120), series("x", "2", 0)),
        sums=(samples[1], samples[2]),
        after=5,
        problem="it began late",
        episodes=(episodes[1],),
        capacity=(days[1],),
    )
    assert joined([first, last]) == HistoryPage(
        60,
        (series("x", "1", 0, 60, 120), series("y", "1", 0), series("x", "2", 0)),
        sums=tuple(samples),
        after=5,
        problem="it began late",
        episodes=tuple(episodes),
        capacity=tuple(days),
    )
    assert joined([first]) == first


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ((), ((1, 9),), ()),
        (((1, 3),), ((4, 9),), ()),
        (((1, 4),), ((4, 9),), ((4, 4),)),
        (((2, 5),), ((1, 9),), ((2, 5),)),
        (((1, 5), (8, 12)), ((3, 9), (11, 20)), ((3, 5), (8, 9), (11, 12))),
    ],
)
def test_what_two_servers_lack_is_what_is_in_runs_of_both(
    one: Runs, other: Runs, both: Runs
) -> None:
    assert common(one, other) == both
    assert common(other, one) == both


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


async def test_a_server_without_an_exporter_says_that_it_keeps_nothing() -> None:
    history = await records_of_nobody(HistoryQuery("pool"))
    assert isinstance(history, HistoryPage)
    assert (history.oldest, history.after, history.step_s, history.lost) == (0, 0, 0, 0)
    assert (history.more, history.series, history.problem) == (False, (), "it keeps no history")
    records = await records_of_nobody(RecordQuery())
    assert isinstance(records, RecordPage)
    assert (records.upto, records.newest, records.more) == (0, 0, False)
    assert (records.records, records.problem) == ((), "it keeps no accounts")
