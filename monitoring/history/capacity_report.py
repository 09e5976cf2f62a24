"""What became of all GPUs that there were: the capacity lines of ``gpupool usage``. Pure.

Every server keeps the same of the whole pool while it is in touch with a majority. So the figures
of each day are those of the server that knows most of it. What a line has in its parts is just what
it has in all; time that no server knows is in neither, and ``seen`` says how much is known.
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpupool.monitoring.accounting import Range, day_of
from gpupool.pool.history_query import CapacitySum, HistoryPage
from gpupool.pool.model.ids import ServerId

KEYS = ("model", "day")
"""What capacity can be summed by."""

PER_GPU_HOUR = 1_000_000 * 3600
PARTS = ("granted", "free", "drained", "down", "fault", "outside")
WORDS = ("GRANTED", "FREE", "DRAINED", "DOWN", "AT FAULT", "OUTSIDE")


@dataclass(frozen=True, slots=True)
class CapacityReport:
    """The sums of a range by one key, and of all."""

    by: str
    within: Range
    rows: dict[str, CapacitySum]
    whole: CapacitySum
    seen: float | None  # share of the range that is known, from the first known moment on


def capacity_report(
    pages: Mapping[ServerId, HistoryPage], by: str, within: Range
) -> CapacityReport:
    """Return the report of what servers have answered."""
    best = _best_of_each_day(pages)
    rows: dict[str, CapacitySum] = {}
    whole = CapacitySum(0, "", 0, 0, 0, 0, 0, 0, 0)
    for each in sorted(best, key=lambda one: (one.day, one.model)):
        key = each.model if by == "model" else day_of(1000 * each.day)
        rows[key] = rows[key].plus(each) if key in rows else each
        whole = whole.plus(each)
    known_s = sum(_seconds_by_day(best).values())
    begun = min((page.oldest for page in pages.values() if page.oldest), default=0)
    asked_s = (within.until - max(within.since, begun)) / 1000
    seen = min(1.0, known_s / asked_s) if rows and asked_s > 0 else None
    return CapacityReport(by, within, rows, whole, seen)


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
        "rows": [{"key": key, **plain_row(row)} for key, row in report.rows.items()],
        "total": plain_row(report.whole),
        "seen": report.seen,
    }


def as_csv(report: CapacityReport) -> str:
    """Return the report as CSV (RFC 4180), the units in its header."""
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow((report.by, "all [GPU h]", *(f"{name} [GPU h]" for name in PARTS)))
    for key, row in report.rows.items():
        writer.writerow((key, *plain_row(row).values()))
    return out.getvalue()


def table(report: CapacityReport) -> Sequence[tuple[str, ...]]:
    """Return the lines of a table, its titles first: GPU-hours, and what share each part was."""
    lines: list[tuple[str, ...]] = [(report.by.upper(), "GPU-HOURS", *WORDS)]
    for key, row in (*report.rows.items(), ("all", report.whole)):
        shares = (_share(part, row.gpus) for part in parts_of(row).values())
        lines.append((key, f"{row.gpus / PER_GPU_HOUR:.2f}", *shares))
    return lines


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}%" if whole else "-"
