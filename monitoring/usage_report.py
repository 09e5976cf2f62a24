"""Reports of usage: rows, CSV, JSON and one lease on a screen. Pure: values in, text out."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING

from gpupool.monitoring.accounting import LATEST_MS, Range, Sum, largest_first, sums, total
from gpupool.monitoring.analysis.csv_rows import csv_text
from gpupool.monitoring.costs import Costs
from gpupool.monitoring.history.sample_figures import (
    COVERAGE_LOW,
    NOTHING,
    Figures,
    figures_of,
    lease_lines,
    merged,
)
from gpupool.monitoring.pages import sum_of
from gpupool.pool.history_query import SampleSum
from gpupool.pool.model.ids import LeaseId, Milliseconds, ServerId, lease_name
from gpupool.pool.model.policy import UNIT
from gpupool.pool.model.state import LeaseRecord, RecordedGpu
from gpupool.pool.model.suspension import Span
from gpupool.pool.model.units import HOUR_MS
from gpupool.pool.record_query import ClassSum, GroupSum, RecordQuery
from gpupool.pool.view import LeaseView, PoolView, ServerView, Stay, visible

if TYPE_CHECKING:
    from gpupool.remoting.client.usage_query import UsageAnswer

UNKNOWN = "unknown"
NONE = "-"
LIVE = "not over"


@dataclass(frozen=True, slots=True)
class Report:
    """The sums of a range by one key."""

    by: str
    within: Range
    rows: dict[str, Sum]
    whole: Sum
    others: dict[str, ClassSum]
    """Sums of other users' leases, by class; empty for operators."""
    samples: dict[str, SampleSum] = field(default_factory=dict[str, SampleSum])
    """Sample sums of each row, as far as there are any."""
    costs: Costs | None = None  # None: nobody has asked

    def figures(self, key: str) -> Figures:
        """Return the samples' figures of one row."""
        return figures_of(self.samples.get(key), self.rows[key].gpu_hours)

    def all_figures(self) -> Figures:
        """Return the samples' figures of all rows together."""
        known = [each for key, each in self.samples.items() if key in self.rows]
        whole = reduce(SampleSum.plus, known) if known else None
        return figures_of(whole, self.whole.gpu_hours)

    def by_waste(self) -> "Report":
        """Return the report with the largest waste first; unknown waste comes last."""
        rows = sorted(self.rows, key=lambda key: -1 * (self.figures(key).wasted_gpu_hours or 0.0))
        return replace(self, rows={key: self.rows[key] for key in rows})

    def cost_cells(self, key: str | None) -> tuple[float, float | None, float]:
        """Return cost, cost of wasted time, and GPU-hours without a price; None: of all."""
        assert self.costs is not None
        cost = self.costs.whole if key is None else self.costs.of(key)
        figures = self.all_figures() if key is None else self.figures(key)
        hours = (self.whole if key is None else self.rows[key]).gpu_hours
        wasted = figures.wasted_gpu_hours
        of_cost = None if wasted is None or not hours else cost.amount * min(1.0, wasted / hours)
        return cost.amount, of_cost, cost.unpriced_gpu_hours


def pool_report(
    view: PoolView,
    answer: "UsageAnswer",
    query: RecordQuery,
    user: str | None,
    samples: Sequence[SampleSum] = (),
) -> Report:
    """Return the sums of the servers' answers, and of the leases that are not over.

    Args:
        view: the pool now.
        answer: what the servers have.
        query: what they were asked.
        user: whose leases are told one by one; None for everybody's.
        samples: what was measured of them.
    """
    within = Range(query.since, query.until)
    live, before = live_records(view)
    live = [each for each in live if within.covers(each)]
    others: list[ClassSum] = []
    if user is not None:
        live, theirs = split_by_user(live, user, within)
        others = added(answer.others, theirs)
    groups = answer.groups.values()
    return make_report(groups, answer.whole, (live, before), others, query.by, within, samples)


def parts_of_lease(
    view: PoolView, answer: "UsageAnswer", query: RecordQuery, user: str | None
) -> list[LeaseRecord]:
    """Return all parts of the lease of a question, as far as ``user`` may see them."""
    within = Range(query.since, query.until)
    live = [each for each in live_records(view)[0] if each.lease == query.lease]
    live = [each for each in live if within.covers(each) and user in (None, each.user)]
    return [*answer.records, *live]


def make_report(
    groups: Iterable[GroupSum],
    whole: GroupSum,
    live: tuple[Sequence[LeaseRecord], Sequence[LeaseRecord]],
    others: Sequence[ClassSum],
    by: str,
    within: Range,
    samples: Iterable[SampleSum] = (),
) -> Report:
    """Return the report of a user's visible leases, with sums of the others.

    Args:
        groups: sums of what is over.
        whole: the sum of all these.
        live: parts of leases that are not over, and what stands for those that are recorded.
        others: sums of other users' leases.
        by: what to sum by.
        within: the range.
        samples: what samples say of the rows, of all servers.
    """
    rows = {group.key: sum_of(group) for group in groups}
    of_live, all_live = sums(live[0], by, within, live[1])
    for name, row in of_live.items():
        rows[name] = rows.get(name, Sum()) + row
    named = {each.user_class: each for each in others}
    return Report(by, within, largest_first(rows), sum_of(whole) + all_live, named, merged(samples))


def live_records(view: PoolView) -> tuple[list[LeaseRecord], list[LeaseRecord]]:
    """Return parts of leases that are not freed yet, counted up to the view's time.

    The second stands for parts of these leases that are recorded, by which a lease counts once. Of
    stays that the table has long dropped, a view does not say where they were.
    """
    servers = {each.id: each for each in view.servers}
    found: list[LeaseRecord] = []
    before: list[LeaseRecord] = []
    for lease in view.leases:
        parts = {part.server: lease.granted_at for part in lease.partitions}
        stays = lease.stays or tuple(Stay(server, since) for server, since in parts.items())
        live = [
            _live(lease, servers.get(stay.server), stay, view.now)
            for stay in stays
            if not stay.until and stay.server not in lease.freed
        ]
        if not live:
            continue
        found += live
        over = [stay for stay in stays if stay.until]
        over += [Stay(server, lease.granted_at, view.now) for server in lease.freed]
        first = min(stay.since for stay in stays)
        if first > lease.granted_at:
            over.append(Stay(ServerId(""), lease.granted_at, first))
        for stay in over:
            name = servers[stay.server].name if stay.server in servers else ""
            other = replace(live[0], server=stay.server, server_name=name)
            before.append(replace(other, granted_at=stay.since, freed_at=stay.until))
    return found, before


def _live(
    lease: LeaseView,
    server: ServerView | None,
    stay: Stay,
    now: Milliseconds,
) -> LeaseRecord:
    since = stay.since
    gpus = {gpu.id: gpu for gpu in server.gpus} if server is not None else {}
    until = Milliseconds(max(now, since))
    requested_at = lease.requested_at if since == lease.granted_at else since
    return LeaseRecord(
        number=0,
        lease=lease.id,
        server=stay.server,
        server_name=server.name if server is not None else "",
        user=lease.user,
        user_class=lease.granted_class,
        department=lease.department,
        client=lease.client,
        program=lease.program,
        gpus=tuple(
            RecordedGpu(
                part.gpu,
                gpu.name if (gpu := gpus.get(part.gpu)) is not None else "",
                part.memory,
                part.memory * UNIT // gpu.capacity if gpu is not None and gpu.capacity else 0,
            )
            for part in (*lease.partitions, *lease.left)
            if part.server == stay.server
        ),
        requested_at=requested_at or since,
        granted_at=since,
        ended_at=until,
        freed_at=until,
        reason=LIVE,
        idle_timeout_ms=0,
        away=tuple((max(begin, since), end) for begin, end in lease.away if end > since),
    )


def split_by_user(
    records: Sequence[LeaseRecord], user: str, within: Range
) -> tuple[list[LeaseRecord], list[ClassSum]]:
    """Return one user's records, and sums of those of the others by class."""
    own = [record for record in records if record.user == user]
    found: list[ClassSum] = []
    for name in sorted({record.user_class for record in records if record.user != user}):
        theirs = [each for each in records if each.user != user and each.user_class == name]
        theirs = [each for each in theirs if within.covers(each)]
        if theirs:
            of_class = total(theirs, within)
            milli = of_class.unit_ms * 1000 // UNIT
            found.append(ClassSum(name, len(theirs), milli, of_class.byte_ms >> 30))
    return own, found


def added(one: Sequence[ClassSum], other: Sequence[ClassSum]) -> list[ClassSum]:
    """Return the sums of two lists, by class."""
    found: dict[str, ClassSum] = {}
    for each in (*one, *other):
        known = found.get(each.user_class, ClassSum(each.user_class, 0, 0, 0))
        found[each.user_class] = ClassSum(
            each.user_class,
            known.parts + each.parts,
            known.milli_gpu_ms + each.milli_gpu_ms,
            known.gib_ms + each.gib_ms,
        )
    return [found[name] for name in sorted(found)]


# --- forms ----------------------------------------------------------------------------------------

TITLES = ("LEASES", "GPU-HOURS", "GIB-HOURS", "MEAN WAIT", "LONGEST", "BUSY H", "IDLE", "SAMPLED")
WASTE_TITLES = ("GPU-HOURS", "WASTED", "IDLE", "BUSY H", "MEMORY", "SAMPLED")


def table(report: Report, titles: Sequence[str] = TITLES) -> list[tuple[str, ...]]:
    """Return the lines of a table, its titles first; with ``WASTE_TITLES`` that of waste."""
    costs = _cost_titles(report)
    lines: list[tuple[str, ...]] = [(report.by.upper(), *titles, *costs)]
    for key in (*report.rows, None):
        cells = _cells(report, key)
        name = "all" if key is None else key or NONE
        lines.append((name, *(cells[title] for title in titles), *_costs(report, key)))
    for name, other in report.others.items() if titles is TITLES else ():
        gpu_hours, gib_hours = _hours(other)
        cells = (NONE, f"{gpu_hours:.2f}", f"{gib_hours:.1f}", NONE, NONE, UNKNOWN, UNKNOWN, NONE)
        what = f"others of class {name}" if name else "others"
        lines.append((what, *cells, *(NONE,) * len(costs)))
    return lines


def _cost_titles(report: Report) -> tuple[str, ...]:
    if report.costs is None:
        return ()
    unit = f" {report.costs.currency}" if report.costs.currency else ""
    return f"COST{unit}", f"WASTED{unit}", "UNPRICED"


def _costs(report: Report, key: str | None) -> tuple[str, ...]:
    if report.costs is None:
        return ()
    cost, wasted, unpriced = report.cost_cells(key)
    return f"{cost:.2f}", UNKNOWN if wasted is None else f"{wasted:.2f}", f"{unpriced:.2f}"


def aligned(lines: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the lines of a table as text: the first column to the left, figures to the right."""
    shown = [tuple(visible(word) for word in line) for line in lines]
    widths = [max(len(line[at]) for line in shown) for at in range(len(shown[0]))]
    found: list[str] = []
    for name, *cells in shown:
        columns = [word.rjust(w) for word, w in zip(cells, widths[1:], strict=True)]
        found.append("  ".join([name.ljust(widths[0]), *columns]).rstrip())
    return found


def _percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{100 * share:.0f}%"


def _hours(of_class: ClassSum) -> tuple[float, float]:
    return of_class.milli_gpu_ms / 1000 / HOUR_MS, of_class.gib_ms / HOUR_MS


def _cells(report: Report, key: str | None) -> dict[str, str]:
    """Return the cells of one row, or of all together, by their titles."""
    row = report.whole if key is None else report.rows[key]
    figures = report.all_figures() if key is None else report.figures(key)
    mark = "!" if figures.coverage is not None and figures.coverage < COVERAGE_LOW else ""
    return {
        "LEASES": str(row.leases),
        "GPU-HOURS": f"{row.gpu_hours:.2f}",
        "GIB-HOURS": f"{row.gib_hours:.1f}",
        "MEAN WAIT": seconds_text(row.wait_ms / row.leases) if row.leases else NONE,
        "LONGEST": seconds_text(row.wait_max_ms) if row.leases else NONE,
        "BUSY H": _hours_text(figures.busy_gpu_hours),
        "IDLE": _percent(figures.idle_share),
        "SAMPLED": NONE if figures.coverage is None else f"{100 * figures.coverage:.0f}%{mark}",
        "WASTED": _hours_text(figures.wasted_gpu_hours),
        "MEMORY": _percent(figures.memory_share),
    }


def _hours_text(hours: float | None) -> str:
    return UNKNOWN if hours is None else f"{hours:.2f}"


def seconds_text(ms: float) -> str:
    """Return a duration for people."""
    return f"{ms / 1000:.1f} s"


def as_csv(report: Report) -> str:
    """Return the report as CSV (RFC 4180), the units in its header."""
    names = (
        *(report.by, "leases [count]", "usage [GPU h]", "memory [GiB h]"),
        *("waiting [s]", "longest wait [s]", "busy [GPU h]", "idle [share]", "wasted [GPU h]"),
        *("memory used [share]", "coverage [share]"),
    )
    if report.costs is not None:
        unit = report.costs.currency or "currency"
        names += (f"cost [{unit}]", f"wasted [{unit}]", "without a price [GPU h]")
    rows: list[tuple[object, ...]] = [names]
    for name, row in report.rows.items():
        fields = plain_row(row, report.figures(name)) | plain_cost(report, name)
        rows.append((name, *("" if each is None else each for each in fields.values())))
    return csv_text(rows)


def plain_row(row: Sum, figures: Figures = NOTHING) -> dict[str, float | int | None]:
    """Return a row as JSON carries it; None is unknown."""
    return {
        "leases": row.leases,
        "gpu_hours": row.gpu_hours,
        "gib_hours": row.gib_hours,
        "wait_s": row.wait_ms / 1000,
        "wait_max_s": row.wait_max_ms / 1000,
        **asdict(figures),
    }


def plain_cost(report: Report, key: str | None) -> dict[str, float | int | None]:
    """Return a row's costs for JSON: nothing where the report has none."""
    if report.costs is None:
        return {}
    return dict(
        zip(("cost", "wasted_cost", "unpriced_gpu_hours"), report.cost_cells(key), strict=True)
    )


def as_plain(report: Report) -> dict[str, object]:
    """Return the report as JSON carries it, without its schema number."""
    return {
        "by": report.by,
        "since": report.within.since,
        "until": report.within.until,
        "rows": [
            {"key": name, **plain_row(row, report.figures(name)), **plain_cost(report, name)}
            for name, row in report.rows.items()
        ],
        "total": plain_row(report.whole, report.all_figures()) | plain_cost(report, None),
        **({} if report.costs is None else {"currency": report.costs.currency}),
        "others": [
            {
                "class": each.user_class,
                "parts": each.parts,
                "gpu_hours": _hours(each)[0],
                "gib_hours": _hours(each)[1],
            }
            for each in report.others.values()
        ],
    }


def away_ms(away: Iterable[Span]) -> int:
    """Return for how long a lease was suspended."""
    return sum(end - begin for begin, end in away)


def _united(spans: Iterable[Span]) -> list[Span]:
    """Return the times that are in any of these: parts of a lease have many in common."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin < found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found


def when(at: int) -> str:
    """Return an instant of the table's time for people; of a senseless one, the number."""
    if not 0 <= at < LATEST_MS:
        return f"{at} ms"
    return datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def lease_report(
    lease: LeaseId, parts: Sequence[LeaseRecord], known: SampleSum | None = None
) -> list[str]:
    """Return the report on one lease, on one screen."""
    first = min(parts, key=lambda part: (part.granted_at, part.number))
    last = max(parts, key=lambda part: part.number)
    whole = total(parts, Range())
    live = any(part.reason == LIVE for part in parts)
    lines = [
        f"lease       {lease_name(lease)}",
        f"user        {first.user}",
        f"class       {first.user_class or NONE}",
        f"department  {first.department or NONE}",
        f"client      {first.client or NONE}",
        f"program     {first.program or NONE}",
        f"requested   {when(first.requested_at)}",
        f"granted     {when(first.granted_at)}, after "
        f"{seconds_text(first.granted_at - first.requested_at)}",
    ]
    if live:
        lines.append(f"ended       {LIVE}")
    else:
        freed = max(part.freed_at for part in parts)
        lines += [
            f"ended       {when(last.ended_at)}: {last.reason}",
            f"freed       {when(freed)}",
        ]
    gpus = {
        (part.server_name or part.server, gpu.gpu, gpu.memory, gpu.units): gpu
        for part in sorted(parts, key=lambda each: each.server_name)
        for gpu in part.gpus
    }  # once each, however often the lease was there
    for (where, *_), gpu in gpus.items():
        share, size = gpu.units / UNIT, gpu.memory / 2**30
        lines.append(f"GPU         {where}: {gpu.model}, {size:.1f} GiB, {share:.3f} of it")
    away = _united(each for part in parts for each in part.away)
    if away:
        times = "once" if len(away) == 1 else f"{len(away)} times"
        what = f"{times}, {seconds_text(away_ms(away))} in all, which is in no GPU-hours"
        lines.append(f"suspended   {what}")
    lines.append(f"usage       {whole.gpu_hours:.4f} GPU-hours, {whole.gib_hours:.2f} GiB-hours")
    return [*lines, *lease_lines(parts, known, whole.gpu_hours)]
