"""Queries of a pool's usage, for the command line and the page: records, samples and costs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import trio

from gpupool.pool.errors import GpupoolError
from gpupool.pool.history_query import HistoryQuery, SampleSum
from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.state import LeaseRecord
from gpupool.pool.record_query import RecordQuery, Runs, samples_of
from gpupool.pool.view import PoolView

if TYPE_CHECKING:
    from gpupool.monitoring.usage_report import Report
    from gpupool.remoting.client.history_answers import HistoryAnswer
    from gpupool.remoting.client.usage_query import UsageAnswer
    from gpupool.remoting.protocol import messages as m


class Asked(Protocol):
    """The queried pool: a client's ``Pool``, or the page's source of data."""

    def user(self) -> str: ...  # noqa: D102
    def is_operator(self) -> bool: ...  # noqa: D102
    async def usage(self, query: RecordQuery) -> "UsageAnswer": ...  # noqa: D102
    async def history(  # noqa: D102
        self, query: HistoryQuery, servers: Sequence[ServerId] = ()
    ) -> "HistoryAnswer": ...
    async def policy(self, version: int = 0) -> "m.PolicyIs": ...  # noqa: D102
    async def policy_history(self) -> "Sequence[m.PolicyIs]": ...  # noqa: D102


@dataclass(slots=True)
class FoundUsage:
    """Known usage of the queried range, and its gaps."""

    parts: list[LeaseRecord] = field(default_factory=list[LeaseRecord])  # of one lease
    report: "Report | None" = None  # or of many
    missing: Runs = ()
    samples: list[SampleSum] = field(default_factory=list[SampleSum])
    silent: dict[str, str] = field(default_factory=dict[str, str])
    problems: list[str] = field(default_factory=list[str])


async def ask_usage(
    pool: Asked, view: PoolView, query: RecordQuery, *, cost: bool = False
) -> FoundUsage:
    """Return the known usage of the range of a query, or of one lease.

    Args:
        pool: what is asked.
        view: it has all that is not over, and says how many records there are of the rest.
        query: what is asked for.
        cost: whether a report has the costs of its rows, by the policies that were in force.

    Raises:
        GpupoolError: when no server answers.
    """
    from gpupool.monitoring.cost_asking import with_costs
    from gpupool.monitoring.usage_report import parts_of_lease, pool_report

    measured, answer = await _both(pool, samples_of(query, view.now), records_of(query, view))
    viewer = None if pool.is_operator() else pool.user()
    found = FoundUsage(
        missing=answer.missing,
        samples=[each for page in measured.pages.values() for each in page.sums],
        silent=silent_servers(view, measured.silent | answer.silent),
        problems=problems_of(view, (*answer.answered.items(), *measured.pages.items())),
    )
    if query.lease:
        found.parts = parts_of_lease(view, answer, query, viewer)
        return found
    found.report = pool_report(view, answer, query, viewer, found.samples)
    if cost:
        found.report = await with_costs(pool, view, query, found.report)
    return found


def records_of(query: RecordQuery, view: PoolView) -> RecordQuery:
    """Return the question for records: none where the pool has none yet."""
    if not view.record_count:
        return replace(query, count=0, through=0)
    return replace(query, through=view.record_count)


async def _both(
    pool: Asked, asked: HistoryQuery, records: RecordQuery
) -> "tuple[HistoryAnswer, UsageAnswer]":
    """Ask both at once: each waits for servers that are dead."""
    measured: list[HistoryAnswer] = []
    answers: list[UsageAnswer] = []
    failures: list[GpupoolError] = []

    async def ask() -> None:
        try:
            measured.append(await pool.history(asked))
        except GpupoolError as error:
            failures.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        try:
            answers.append(await pool.usage(records))
        except GpupoolError as error:
            failures.append(error)
    if failures:
        raise failures[0]
    return measured[0], answers[0]


def silent_servers(view: PoolView, silent: Mapping[ServerId, str]) -> dict[str, str]:
    """Return the servers that did not answer, by name, with their last contact, or else why."""
    from gpupool.monitoring.usage_report import when

    known = {each.id: each for each in view.servers}
    found: dict[str, str] = {}
    for server, why in silent.items():
        row = known.get(server)
        since = row.silent_since if row is not None else 0
        name = row.name if row is not None else server
        found[name] = f"last contact {when(since)}" if since else why
    return found


class Page(Protocol):
    """One server's page of an answer."""

    @property
    def problem(self) -> str: ...  # noqa: D102


def problems_of(view: PoolView, pages: Iterable[tuple[ServerId, Page]]) -> list[str]:
    """Return the gaps that servers report of their answers."""
    names = {each.id: each.name for each in view.servers}
    return [f"server {names.get(k, k)}: {page.problem}" for k, page in pages if page.problem]
