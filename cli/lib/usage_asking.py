"""Asking a pool who used what: records of all servers, and what they measured of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import trio

from gpupool.pool.history_query import HistoryQuery, SampleSum
from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.state import LeaseRecord
from gpupool.pool.record_query import RecordQuery, Runs, samples_of
from gpupool.pool.view import PoolView

if TYPE_CHECKING:
    from gpupool.monitoring.usage_report import Report
    from gpupool.remoting.client.history_answers import HistoryAnswer
    from gpupool.remoting.client.pool_client import Pool
    from gpupool.remoting.client.usage_query import UsageAnswer


@dataclass(slots=True)
class FoundUsage:
    """What is known of the asked range, and what is not."""

    parts: list[LeaseRecord] = field(default_factory=list[LeaseRecord])  # of one lease
    report: "Report | None" = None  # or of many
    missing: Runs = ()
    samples: list[SampleSum] = field(default_factory=list[SampleSum])
    silent: dict[str, str] = field(default_factory=dict[str, str])
    problems: list[str] = field(default_factory=list[str])


async def ask_costs(pool: "Pool", query: RecordQuery, found: FoundUsage) -> FoundUsage:
    """Return a report with the costs of its rows, by the policies that were in force.

    Raises:
        GpupoolError: when no server answers.
    """
    from gpupool.monitoring.cost_asking import with_costs

    assert found.report is not None  # one lease has no rows
    view = await pool.view()
    return replace(found, report=await with_costs(pool, view, query, found.report))


async def ask_usage(pool: "Pool", query: RecordQuery) -> FoundUsage:
    """Return what is known of the range of a query, or of one lease.

    Raises:
        GpupoolError: when no server answers.
    """
    # The view has all that is not over, and says how many records there are of the rest.
    view = await pool.view()
    records = replace(query, through=view.record_count)
    if not view.record_count:
        records = replace(query, count=0, through=0)
    asked = samples_of(query, view.now)
    measured, answer = await _both(pool, asked, records)
    user, operator = pool.user(), pool.is_operator()
    return _put_together(view, answer, measured, query, user, operator=operator)


async def _both(
    pool: "Pool", asked: HistoryQuery, records: RecordQuery
) -> "tuple[HistoryAnswer, UsageAnswer]":
    """Ask both at once: each waits for servers that are dead."""
    measured: list[HistoryAnswer] = []

    async def ask() -> None:
        measured.append(await pool.history(asked))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        answer = await pool.usage(records)
    return measured[0], answer


def _put_together(
    view: PoolView,
    answer: "UsageAnswer",
    measured: "HistoryAnswer",
    query: RecordQuery,
    user: str,
    *,
    operator: bool,
) -> FoundUsage:
    from gpupool.monitoring.usage_report import parts_of_lease, pool_report

    viewer = None if operator else user
    names = {each.id: each.name for each in view.servers}
    found = FoundUsage(
        missing=answer.missing,
        samples=[each for page in measured.pages.values() for each in page.sums],
        silent={
            _name(names, each): _contact(view, each, why)
            for each, why in (measured.silent | answer.silent).items()
        },
        problems=[
            f"server {_name(names, each)}: {page.problem}"
            for each, page in (*answer.answered.items(), *measured.pages.items())
            if page.problem
        ],
    )
    if query.lease:
        found.parts = parts_of_lease(view, answer, query, viewer)
    else:
        found.report = pool_report(view, answer, query, viewer, found.samples)
    return found


def _name(names: Mapping[ServerId, str], server: ServerId) -> str:
    return names.get(server, server)


def _contact(view: PoolView, server: ServerId, why: str) -> str:
    from gpupool.monitoring.usage_report import when

    since = next((each.silent_since for each in view.servers if each.id == server), 0)
    return f"last contact {when(since)}" if since else why
