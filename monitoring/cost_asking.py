"""Queries for lease costs, for the command line and the page: records and old policies."""

from dataclasses import replace

from gpupool.monitoring.accounting import Range
from gpupool.monitoring.costs import Timeline, costs_of
from gpupool.monitoring.usage_asking import Asked
from gpupool.monitoring.usage_report import Report, live_records
from gpupool.pool.model.state import LeaseRecord
from gpupool.pool.policy.prices import prices_of
from gpupool.pool.record_query import FAR, RecordQuery
from gpupool.pool.transitions.policy_versions import unpack_text
from gpupool.pool.view import PoolView


async def with_costs(pool: Asked, view: PoolView, query: RecordQuery, report: Report) -> Report:
    """Return a report with the costs of its rows, by the policies that were in force.

    Raises:
        GpupoolError: when no server answers.
    """
    within = Range(query.since, query.until)
    records = list[LeaseRecord]()
    if view.record_count:
        answer = await pool.usage(replace(query, by="", through=view.record_count))
        records += answer.records
    live, user = live_records(view)[0], pool.user()
    records += [each for each in live if pool.is_operator() or each.user == user]
    timeline = await price_timeline(pool, within)
    return replace(report, costs=costs_of(records, query.by, within, timeline))


async def price_timeline(pool: Asked, within: Range) -> Timeline:
    """Return the prices that were in force in a range.

    Raises:
        GpupoolError: when no server answers.
    """
    versions = sorted(await pool.policy_history(), key=lambda each: each.at)
    ends = [*(each.at for each in versions[1:]), FAR]
    return [
        (each.at, prices_of(unpack_text((await pool.policy(each.version)).packed)))
        for each, end in zip(versions, ends, strict=False)  # a pool may have no policy at all
        if end > within.since and each.at < within.until
    ]
