"""Reports of usage for the page, from the same sums as ``gpupool usage``."""

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce

import trio

from gpupool.monitoring.accounting import Range, total
from gpupool.monitoring.cost_asking import price_timeline, with_costs
from gpupool.monitoring.history.capacity_report import as_plain as capacity_plain
from gpupool.monitoring.history.capacity_report import capacity_report
from gpupool.monitoring.history.sample_figures import figures_of, lease_lines
from gpupool.monitoring.usage_report import (
    LIVE,
    as_csv,
    as_plain,
    away_ms,
    parts_of_lease,
    plain_row,
    pool_report,
)
from gpupool.monitoring.web.pool_source import PoolSource
from gpupool.pool.errors import GpupoolError, UsageError
from gpupool.pool.history_query import HistoryQuery, SampleSum
from gpupool.pool.model.ids import LeaseId, Milliseconds, ServerId, lease_name
from gpupool.pool.model.policy import UNIT
from gpupool.pool.model.state import LeaseRecord
from gpupool.pool.record_query import FAR, KEYS, RecordQuery, samples_of
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
    """Return sums by a key, with what is missing, and what they cost if that is asked."""
    view, query = source.known().view, query_of(asked)
    answer, measured = await _ask_both(source, view, query)
    report = pool_report(view, answer, query, _viewer(source), _sums(measured))
    if asked.get("cost") == "1":
        report = await with_costs(source, view, query, report)
    return {**as_plain(report), **_missing(view, answer, measured), "csv": as_csv(report)}


async def ask_capacity(source: PoolSource, asked: Mapping[str, str]) -> dict[str, object]:
    """Return what became of all GPUs within the range of a query, by day or else by model."""
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
    return {**told, **_missing(view, UsageAnswer(), answer)}


async def ask_records(source: PoolSource, asked: Mapping[str, str]) -> dict[str, object]:
    """Return parts of leases that are over, the latest first."""
    view = source.known().view
    answer = await _ask(source, view, replace(query_of(asked), by=""))
    records = answer.records[::-1]
    return {
        "records": [_plain_record(each) for each in records[:RECORDS_MAX]],
        "cut": max(0, len(records) - RECORDS_MAX),
        **_missing(view, answer),
    }


async def ask_lease(source: PoolSource, lease: LeaseId) -> dict[str, object]:
    """Return all parts of one lease, over or not."""
    view, query = source.known().view, RecordQuery(lease=lease)
    answer, measured = await _ask_both(source, view, query)
    parts = parts_of_lease(view, answer, query, _viewer(source))
    if not parts:
        raise UsageError(f"nothing is known of a lease {lease_name(lease)} that you may see")
    whole, sums = total(parts, Range()), _sums(measured)
    known = reduce(SampleSum.plus, sums) if sums else None
    return {
        "lease": lease_name(lease),
        "parts": [_plain_record(each) for each in parts],
        "total": plain_row(whole, figures_of(known, whole.gpu_hours)),
        "lines": [visible(line) for line in lease_lines(parts, known, whole.gpu_hours)],
        **_missing(view, answer, measured),
    }


def _viewer(source: PoolSource) -> str | None:
    """Return whose leases are shown; None for everybody's."""
    return None if source.is_operator() else source.user()


async def _ask(source: PoolSource, view: PoolView, query: RecordQuery) -> UsageAnswer:
    if view.record_count:
        return await source.usage(replace(query, through=view.record_count))
    return await source.usage(replace(query, count=0, through=0))


async def _ask_both(
    source: PoolSource, view: PoolView, query: RecordQuery
) -> tuple[UsageAnswer, HistoryAnswer]:
    """Ask for records and for samples at once; each question waits for servers that are dead."""
    asked = samples_of(query, view.now)
    measured = HistoryAnswer({})
    answers: list[UsageAnswer] = []
    failures: list[GpupoolError] = []

    async def ask_records_of() -> None:
        try:
            answers.append(await _ask(source, view, query))
        except GpupoolError as error:
            failures.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask_records_of)
        try:
            measured = await source.history(asked)
        except GpupoolError as error:
            failures.append(error)
    if failures:
        raise failures[0]
    return answers[0], measured


def _sums(measured: HistoryAnswer) -> list[SampleSum]:
    return [each for page in measured.pages.values() for each in page.sums]


def _missing(
    view: PoolView, answer: UsageAnswer, measured: HistoryAnswer | None = None
) -> dict[str, object]:
    names: dict[ServerId, str] = {each.id: each.name for each in view.servers}
    silent = {**(measured.silent if measured else {}), **answer.silent}
    pages = [*answer.answered.items(), *(measured.pages.items() if measured else ())]
    return {
        "silent": {visible(names.get(k, k)): visible(why) for k, why in silent.items()},
        "missing": sum(last - first + 1 for first, last in answer.missing),
        "problems": [
            f"{visible(names.get(k, k))}: {visible(page.problem)}"
            for k, page in pages
            if page.problem
        ],
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
