"""Reports of usage for the page, from the same sums as ``gpupool usage``."""

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce

from gpupool.monitoring.accounting import Range, total
from gpupool.monitoring.cost_asking import price_timeline
from gpupool.monitoring.history.capacity_report import as_plain as capacity_plain
from gpupool.monitoring.history.capacity_report import capacity_report
from gpupool.monitoring.history.sample_figures import figures_of, lease_lines
from gpupool.monitoring.usage_asking import (
    FoundUsage,
    ask_usage,
    problems_of,
    records_of,
    silent_servers,
)
from gpupool.monitoring.usage_report import (
    LIVE,
    as_csv,
    as_plain,
    away_ms,
    plain_row,
)
from gpupool.monitoring.web.pool_source import PoolSource
from gpupool.pool.errors import UsageError
from gpupool.pool.history_query import HistoryQuery, SampleSum
from gpupool.pool.model.ids import LeaseId, Milliseconds, lease_name
from gpupool.pool.model.policy import UNIT
from gpupool.pool.model.state import LeaseRecord
from gpupool.pool.record_query import FAR, KEYS, RecordQuery
from gpupool.pool.view import PoolView, visible
from gpupool.remoting.client.history_answers import HistoryAnswer
from gpupool.remoting.client.usage_query import UsageAnswer

RECORDS_MAX = 2000


def query_of(asked: Mapping[str, str]) -> RecordQuery:
    """Return the question of an address; times are milliseconds."""
    by = asked.get("by", "user")
    if by not in KEYS:
        raise UsageError("there are no sums by that", hint=", ".join(KEYS))
    times: dict[str, int] = {}
    for name in ("since", "until"):
        text = asked.get(name, "")
        if text:
            if not text.isdecimal() or len(text) > 15:
                raise UsageError(f"{name} is a time in milliseconds")
            times[name] = int(text)
    since, until = times.get("since", 0), times.get("until", int(FAR))
    return RecordQuery(since=Milliseconds(since), until=Milliseconds(until), by=by)


async def ask_report(source: PoolSource, asked: Mapping[str, str]) -> dict[str, object]:
    """Return sums by a key, with their gaps, and their costs if requested."""
    cost = asked.get("cost") == "1"
    found = await ask_usage(source, source.known().view, query_of(asked), cost=cost)
    assert found.report is not None  # no lease was asked for
    return {**as_plain(found.report), **_missing(found), "csv": as_csv(found.report)}


async def ask_capacity(source: PoolSource, asked: Mapping[str, str]) -> dict[str, object]:
    """Return the use of all GPUs within the range of a query, by day or else by model."""
    view, query = source.known().view, query_of(asked)
    within = Range(query.since, min(query.until, view.now))
    if within.since >= within.until:
        raise UsageError("the time asked for ends before it begins")
    since, until = Milliseconds(within.since), Milliseconds(within.until)
    answer = await source.history(HistoryQuery("capacity", "model", since=since, until=until))
    by = "day" if query.by == "day" else "model"
    timeline = await price_timeline(source, within) if asked.get("cost") == "1" else None
    report = capacity_report(answer.pages, by, within, timeline)
    rows = {visible(key): each for key, each in report.rows.items()}
    costs = report.costs
    if costs is not None:
        costs = replace(costs, rows={visible(key): each for key, each in costs.rows.items()})
    told = capacity_plain(replace(report, rows=rows, costs=costs))
    return {**told, **_missing(_lacking(view, answer))}


async def ask_records(source: PoolSource, asked: Mapping[str, str]) -> dict[str, object]:
    """Return parts of leases that are over, the latest first."""
    view = source.known().view
    answer = await source.usage(records_of(replace(query_of(asked), by=""), view))
    records = answer.records[::-1]
    return {
        "records": [_plain_record(each) for each in records[:RECORDS_MAX]],
        "cut": max(0, len(records) - RECORDS_MAX),
        **_missing(_lacking(view, answer)),
    }


async def ask_lease(source: PoolSource, lease: LeaseId) -> dict[str, object]:
    """Return all parts of one lease, over or not."""
    found = await ask_usage(source, source.known().view, RecordQuery(lease=lease))
    if not found.parts:
        raise UsageError(f"nothing is known of a lease {lease_name(lease)} that you may see")
    whole = total(found.parts, Range())
    known = reduce(SampleSum.plus, found.samples) if found.samples else None
    return {
        "lease": lease_name(lease),
        "parts": [_plain_record(each) for each in found.parts],
        "total": plain_row(whole, figures_of(known, whole.gpu_hours)),
        "lines": [visible(line) for line in lease_lines(found.parts, known, whole.gpu_hours)],
        **_missing(found),
    }


def _lacking(view: PoolView, answer: UsageAnswer | HistoryAnswer) -> FoundUsage:
    pages = answer.answered if isinstance(answer, UsageAnswer) else answer.pages
    return FoundUsage(
        missing=answer.missing if isinstance(answer, UsageAnswer) else (),
        silent=silent_servers(view, answer.silent),
        problems=problems_of(view, pages.items()),
    )


def _missing(found: FoundUsage) -> dict[str, object]:
    return {
        "silent": {visible(name): visible(why) for name, why in found.silent.items()},
        "missing": sum(last - first + 1 for first, last in found.missing),
        "problems": [visible(each) for each in found.problems],
    }


def _plain_record(record: LeaseRecord) -> dict[str, object]:
    return {
        "lease": lease_name(record.lease),
        "server": visible(record.server_name or record.server),
        "user": visible(record.user),
        "class": visible(record.user_class),
        "department": visible(record.department),
        "client": visible(record.client),
        "program": visible(record.program),
        "gpus": [
            {"model": visible(gpu.model), "memory": gpu.memory, "share": gpu.units / UNIT}
            for gpu in record.gpus
        ],
        "requested": record.requested_at,
        "granted": record.granted_at,
        "ended": None if record.reason == LIVE else record.ended_at,
        "freed": None if record.reason == LIVE else record.freed_at,
        "suspended": away_ms(record.away),
        "reason": visible(record.reason),
    }
