"""Use of all GPUs: the capacity lines of ``gpupool usage``. Pure.

Every server keeps the same of the whole pool while it is in touch with a majority. So the figures
of each day are those of the server that knows most of it. What a line has in its parts is just what
it has in all; time that no server knows is in neither, and ``seen`` says how much is known.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpupool.monitoring.accounting import Range, day_of
from gpupool.monitoring.analysis.csv_rows import csv_text
from gpupool.monitoring.costs import Timeline, currency_of, mean_price
from gpupool.pool.history_query import CapacitySum, HistoryPage
from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.units import DAY_S

KEYS = ("model", "day")
"""Keys for sums of capacity."""

PER_GPU_HOUR = 1_000_000 * 3600
PARTS = ("granted", "free", "drained", "down", "fault", "outside")
WORDS = ("GRANTED", "FREE", "DRAINED", "DOWN", "AT FAULT", "OUTSIDE")


@dataclass(slots=True)
class Money:
    """Costs of the parts of some sums; hours without a price are counted apart."""

    parts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    unpriced_gpu_hours: float = 0.0

    def add(self, row: CapacitySum, price: float, unpriced: float) -> None:
        """Add a sum with the mean price of its hours."""
        for name, part in parts_of(row).items():
            self.parts[name] += part / PER_GPU_HOUR * price
        self.unpriced_gpu_hours += row.gpus / PER_GPU_HOUR * unpriced

    def plain(self) -> dict[str, float]:
        """Return it as JSON carries it."""
        costs = {f"{name}_cost": cost for name, cost in self.parts.items()}
        return {**costs, "unpriced_gpu_hours": self.unpriced_gpu_hours}


@dataclass(frozen=True, slots=True)
class Costs:
    """The money of a report's rows, and of all together."""

    rows: dict[str, Money]
    whole: Money
    currency: str


@dataclass(frozen=True, slots=True)
class CapacityReport:
    """The sums of a range by one key, and of all."""

    by: str
    within: Range
    rows: dict[str, CapacitySum]
    whole: CapacitySum
    seen: float | None  # share of the range that is known, from the first known moment on
    costs: Costs | None = None


def capacity_report(
    pages: Mapping[ServerId, HistoryPage],
    by: str,
    within: Range,
    timeline: Timeline | None = None,
) -> CapacityReport:
    """Return the report of the servers' answers; with prices also in money.

    A sum is of a day at most. Where the price changed within one, its mean over that time counts.
    """
    best = _best_of_each_day(pages)
    rows: dict[str, CapacitySum] = {}
    whole = CapacitySum(0, "", 0, 0, 0, 0, 0, 0, 0)
    costs = None if timeline is None else Costs({}, Money(), currency_of(timeline))
    for each in sorted(best, key=lambda one: (one.day, one.model)):
        key = each.model if by == "model" else day_of(1000 * each.day)
        rows[key] = rows[key].plus(each) if key in rows else each
        whole = whole.plus(each)
        if costs is not None and timeline is not None:
            day = within.cut(1000 * each.day, 1000 * (each.day + DAY_S))
            price, unpriced = mean_price(each.model, day, timeline)
            for money in (costs.rows.setdefault(key, Money()), costs.whole):
                money.add(each, price, unpriced)
    known_s = sum(_seconds_by_day(best).values())
    begun = min((page.oldest for page in pages.values() if page.oldest), default=0)
    asked_s = (within.until - max(within.since, begun)) / 1000
    seen = min(1.0, known_s / asked_s) if rows and asked_s > 0 else None
    return CapacityReport(by, within, rows, whole, seen, costs)


def _seconds_by_day(sums: Iterable[CapacitySum]) -> dict[int, int]:
    """Return for how long it is known of each day: there were GPUs of some model all the time."""
    found: dict[int, int] = {}
    for each in sums:
        found[each.day] = max(found.get(each.day, 0), each.seconds)
    return found


def _best_of_each_day(pages: Mapping[ServerId, HistoryPage]) -> list[CapacitySum]:
    known = {server: _seconds_by_day(page.capacity) for server, page in pages.items()}
    chosen: dict[int, ServerId] = {}
    for server in sorted(known):
        for day, seconds in known[server].items():
            if day not in chosen or seconds > known[chosen[day]][day]:
                chosen[day] = server
    return [
        each
        for server, page in pages.items()
        for each in page.capacity
        if chosen[each.day] == server
    ]


def parts_of(row: CapacitySum) -> dict[str, int]:
    """Return the parts of a sum in the order of ``PARTS``; together they are all GPUs."""
    held = {name: getattr(row, name) for name in PARTS if name != "free"}
    held["free"] = row.gpus - sum(held.values())
    return {name: held[name] for name in PARTS}


def plain_row(row: CapacitySum) -> dict[str, float]:
    """Return a sum in GPU-hours, as JSON carries it."""
    parts = {f"{name}_gpu_hours": part / PER_GPU_HOUR for name, part in parts_of(row).items()}
    return {"gpu_hours": row.gpus / PER_GPU_HOUR, **parts}


def as_plain(report: CapacityReport) -> dict[str, object]:
    """Return the report as JSON carries it."""
    return {
        "by": report.by,
        "since": report.within.since,
        "until": report.within.until,
        "rows": [
            {"key": key, **plain_row(row), **_plain_money(report, key)}
            for key, row in report.rows.items()
        ],
        "total": {**plain_row(report.whole), **_plain_money(report, None)},
        "seen": report.seen,
        **({} if report.costs is None else {"currency": report.costs.currency}),
    }


def _money(report: CapacityReport, key: str | None) -> Money | None:
    """Return the costs of a row, or of all; None without costs."""
    if report.costs is None:
        return None
    return report.costs.whole if key is None else report.costs.rows[key]


def _plain_money(report: CapacityReport, key: str | None) -> dict[str, float]:
    money = _money(report, key)
    return {} if money is None else money.plain()


def as_csv(report: CapacityReport) -> str:
    """Return the report as CSV (RFC 4180), the units in its header."""
    titles = [report.by, "all [GPU h]", *(f"{name} [GPU h]" for name in PARTS)]
    if report.costs is not None:
        unit = report.costs.currency or "currency"
        titles += [*(f"{name} cost [{unit}]" for name in PARTS), "unpriced [GPU h]"]
    rows = (
        (key, *plain_row(row).values(), *_plain_money(report, key).values())
        for key, row in report.rows.items()
    )
    return csv_text([titles, *rows])


def table(report: CapacityReport) -> Sequence[tuple[str, ...]]:
    """Return the lines of a table, its titles first: GPU-hours, and each part's share."""
    titles: list[str] = [report.by.upper(), "GPU-HOURS", *WORDS]
    if report.costs is not None:
        unit = f" {report.costs.currency}" if report.costs.currency else ""
        titles += [f"GRANTED{unit or ' COST'}", f"FREE{unit or ' COST'}", "UNPRICED"]
    lines = [tuple(titles)]
    for key, row in (*((key, report.rows[key]) for key in report.rows), (None, report.whole)):
        cells = [key or "all", f"{row.gpus / PER_GPU_HOUR:.2f}"]
        cells += [_share(part, row.gpus) for part in parts_of(row).values()]
        if money := _money(report, key):
            cells += [f"{money.parts[name]:.2f}" for name in ("granted", "free")]
            cells.append(f"{money.unpriced_gpu_hours:.2f}")
        lines.append(tuple(cells))
    return lines


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}%" if whole else "-"
