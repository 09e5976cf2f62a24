"""Costs: GPU-hours times the price of their time, exactly; unpriced hours are counted apart."""

import csv
import io
import json

import pytest
from tests.monitoring.records import START_MS, record
from tests.pool.policy_kit import parse

from gpupool.monitoring.accounting import Range, sums
from gpupool.monitoring.costs import Costs, Timeline, costs_of
from gpupool.monitoring.usage_report import WASTE_TITLES, Report, as_csv, as_plain, table
from gpupool.pool.history_query import SampleSum
from gpupool.pool.model.ids import GpuId, Milliseconds
from gpupool.pool.model.policy import UNIT
from gpupool.pool.model.state import LeaseRecord, RecordedGpu
from gpupool.pool.policy.policy_document import PolicyTextError
from gpupool.pool.policy.prices import Prices, prices_of

HOUR_MS = 3_600_000
TEXT = '[prices]\ncurrency = "EUR"\n"*H200*" = 2.10\n"*" = 0.5\n'


def part(user: str, hours: float, model: str = "NVIDIA H200", share: int = UNIT) -> LeaseRecord:
    gpu = RecordedGpu(GpuId("GPU-a"), model, 1, share)
    freed = Milliseconds(START_MS + round(hours * HOUR_MS))
    return record(
        len(user) + len(model), user=user, gpus=(gpu,), granted_at=Milliseconds(START_MS),
        requested_at=Milliseconds(START_MS), freed_at=freed,
    )  # fmt: skip


def cost(records: list[LeaseRecord], timeline: Timeline, by: str = "user", **within: int) -> Costs:
    return costs_of(records, by, Range(**within), timeline)


def test_a_document_has_prices_and_their_currency() -> None:
    parse(TEXT)
    prices = prices_of(TEXT)
    assert prices.currency == "EUR"
    assert prices.of("nvidia h200") == 2_100_000, "the first that fits"
    assert prices.of("NVIDIA A100") == 500_000
    assert prices_of('[prices]\n"*A100*" = 1\n').of("NVIDIA H200") is None
    assert prices_of("zone = [") == Prices()
    assert prices_of("") == Prices()


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ('"*" = "2"', "is a number"),
        ('"*" = true', "is a number"),
        ('"*" = -1', "between 0"),
        ('"*" = 1e9', "between 0"),
        ('"*" = nan', "between 0"),
        ('"*" = 0.0000001', "6 decimals"),
        ("currency = 7", "a word"),
        ('currency = "a long word"', "8 characters"),
        (f'"{"x" * 65}" = 1', "64 characters"),
    ],
)
def test_what_is_no_price_is_refused_with_its_line(line: str, word: str) -> None:
    with pytest.raises(PolicyTextError, match=word) as refused:
        parse(f"[prices]\n{line}\n")
    assert refused.value.problems[0].line == 2


def test_the_price_of_its_time_counts_to_the_millisecond() -> None:
    one, two = (prices_of(f'[prices]\n"*" = {price}\n') for price in (1, 3))
    timeline = [(0, one), (START_MS + HOUR_MS, two)]
    found = cost([part("ada", 2.0), part("bob", 0.5, share=UNIT // 4)], timeline)
    assert found.of("ada").amount == 4.0
    assert found.of("bob").amount == 0.125
    assert found.whole.amount == 4.125
    # Two ranges that meet cost as much as both together.
    edge = START_MS + HOUR_MS + 1234
    before = cost([part("ada", 2.0)], timeline, until=edge)
    after = cost([part("ada", 2.0)], timeline, since=edge)
    assert before.whole.micro + after.whole.micro == found.of("ada").micro


def test_what_has_no_price_is_said() -> None:
    prices = prices_of('[prices]\n"*H200*" = 2\n')
    found = cost([part("ada", 2.0), part("bob", 1.0, "A100")], [(START_MS + HOUR_MS, prices)])
    assert (found.of("ada").amount, found.of("ada").unpriced_gpu_hours) == (2.0, 1.0)
    assert (found.of("bob").amount, found.of("bob").unpriced_gpu_hours) == (0.0, 1.0)
    assert found.of("nobody").amount == 0.0


def test_costs_by_model_and_day_close() -> None:
    records = [part("ada", 30.0), part("bob", 1.0, "A100")]
    timeline = [(0, prices_of(TEXT))]
    for by in ("user", "model", "day", "class", "lease"):
        found = cost(records, timeline, by)
        assert sum(each.micro for each in found.rows.values()) == found.whole.micro
    assert cost(records, timeline, "model").of("A100").amount == 0.5


def report(*, priced: bool = True) -> Report:
    records, within = [part("ada", 2.0), part("bob", 1.0, "A100")], Range()
    rows, whole = sums(records, "user", within)
    hour = 3600 * 1_000_000
    samples = {"ada": SampleSum("ada", 720, 180, 2 * hour, hour // 2, 1, 1, 1, 1, 1)}
    costs = cost(records, [(0, prices_of(TEXT))]) if priced else None
    return Report("user", within, rows, whole, {}, samples, costs)


def test_reports_have_money_where_it_is_asked_for() -> None:
    assert "COST" not in " ".join(table(report(priced=False))[0])
    lines = table(report())
    assert lines[0][-3:] == ("COST EUR", "WASTED EUR", "UNPRICED")
    assert lines[1][0] == "ada"
    assert lines[1][-3:] == ("4.20", "1.05", "0.00")
    assert lines[2][-3:] == ("0.50", "unknown", "0.00")
    assert lines[-1][-3] == "4.70"
    assert [line[-3] for line in table(report(), WASTE_TITLES)] == [
        "COST EUR",
        "4.20",
        "0.50",
        "4.70",
    ]
    rows = list(csv.reader(io.StringIO(as_csv(report()))))
    assert rows[0][-3:] == ["cost [EUR]", "wasted [EUR]", "without a price [GPU h]"]
    assert [float(rows[1][-3]), rows[2][-2]] == [pytest.approx(4.2), ""]
    plain = json.loads(json.dumps(as_plain(report())))
    assert plain["currency"] == "EUR"
    assert plain["rows"][0]["wasted_cost"] == pytest.approx(1.05)
    assert plain["total"]["cost"] == pytest.approx(4.7)
    assert "cost" not in as_plain(report(priced=False))["total"]  # type: ignore[operator]
