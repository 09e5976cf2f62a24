"""Costs of leases: their GPU-hours times the prices then in force, to the millisecond. Pure.

A price holds from when its policy was applied until the next one was. Time before the oldest policy
that the pool keeps, and models without a price, are counted as hours without one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gpupool.monitoring.accounting import FAR, KEYS, Range, cut
from gpupool.pool.model.policy import UNIT
from gpupool.pool.model.state import LeaseRecord
from gpupool.pool.model.units import HOUR_MS
from gpupool.pool.policy.prices import MICRO, Prices

Timeline = Sequence[tuple[int, Prices]]
"""Prices by start of validity, in the table's time, the oldest first."""


@dataclass(slots=True)
class Cost:
    """The cost of some parts of leases. Integers: nothing is rounded before it is shown."""

    micro: int = 0  # millionths of the currency, times shares of GPUs times milliseconds
    unpriced: int = 0  # shares of GPUs times milliseconds without a price

    @property
    def amount(self) -> float:
        """Return the cost in the currency."""
        return self.micro / MICRO / UNIT / HOUR_MS

    @property
    def unpriced_gpu_hours(self) -> float:
        """Return the GPU-hours that have no price."""
        return self.unpriced / UNIT / HOUR_MS


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of a report's rows."""

    rows: dict[str, Cost]
    whole: Cost
    currency: str

    def of(self, key: str) -> Cost:
        """Return the cost of one row."""
        return self.rows.get(key, Cost())


def mean_price(model: str, within: Range, timeline: Timeline) -> tuple[float, float]:
    """Return a model's mean price an hour in a range, and the share without a price."""
    micro = priced_ms = 0
    for begin, end, prices in _spans(timeline):
        part = within.cut(begin, end)
        price, ms = prices.of(model), part.until - part.since
        if price is not None and ms > 0:
            micro += price * ms
            priced_ms += ms
    whole_ms = max(1, within.until - within.since)
    return micro / MICRO / whole_ms, 1.0 - priced_ms / whole_ms


def currency_of(timeline: Timeline) -> str:
    """Return the currency of the latest prices that have one."""
    return next((prices.currency for _, prices in reversed(timeline) if prices.currency), "")


def _spans(timeline: Timeline) -> list[tuple[int, int, Prices]]:
    """Return the prices with the times from which and until when each was in force."""
    begun = [(0, Prices()), *timeline, (FAR, Prices())]
    return [(a, b, prices) for (a, prices), (b, _) in pairwise(begun)]


def costs_of(records: Iterable[LeaseRecord], by: str, within: Range, timeline: Timeline) -> Costs:
    """Return the costs of records by a key of ``accounting.KEYS``, and of all together."""
    spans = _spans(timeline)
    rows: dict[str, Cost] = {}
    whole = Cost()
    for record in records:
        if not within.covers(record):
            continue
        for part in cut(record, by, within):
            row = rows.setdefault(KEYS[by](part), Cost())
            _add(part, within, spans, row, whole)
    return Costs(rows, whole, currency_of(timeline))


def _add(
    part: LeaseRecord,
    within: Range,
    spans: Sequence[tuple[int, int, Prices]],
    row: Cost,
    whole: Cost,
) -> None:
    for begin, end, prices in spans:
        ms = within.cut(begin, end).ms_of(part)
        if ms <= 0:
            continue
        for gpu in part.gpus:
            price = prices.of(gpu.model)
            for each in (row, whole):
                if price is None:
                    each.unpriced += ms * gpu.units
                else:
                    each.micro += ms * gpu.units * price
