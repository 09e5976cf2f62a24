"""``gpupool usage``: who had how much of the pool, and for how long."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpupool import __version__
from gpupool.cli.commands.audit import parse_since
from gpupool.cli.lib.common_options import json_option, pool_options
from gpupool.cli.lib.connect import connected, run_async
from gpupool.cli.lib.output import print_json, say
from gpupool.cli.lib.values import Parsed, parse_lease
from gpupool.pool.errors import ExitCode, StorageError, UsageError
from gpupool.pool.history_query import HistoryQuery, SampleSum
from gpupool.pool.model.ids import LeaseId, Milliseconds, ServerId
from gpupool.pool.model.state import LeaseRecord
from gpupool.pool.record_query import FAR, KEYS, RecordQuery, Runs
from gpupool.pool.view import PoolView, visible

if TYPE_CHECKING:
    from gpupool.monitoring.usage_report import Report
    from gpupool.remoting.client.history_answers import HistoryAnswer
    from gpupool.remoting.client.pool_client import Pool
    from gpupool.remoting.client.usage_query import UsageAnswer

DEFAULT_SINCE = "30d"


@dataclass(slots=True)
class _Found:
    """What is known of the asked range, and what is not."""

    parts: list[LeaseRecord] = field(default_factory=list[LeaseRecord])  # of one lease
    report: "Report | None" = None  # or of many
    missing: Runs = ()
    samples: list[SampleSum] = field(default_factory=list[SampleSum])
    silent: dict[str, str] = field(default_factory=dict[str, str])
    problems: list[str] = field(default_factory=list[str])


@click.command()
@click.option(
    "--since",
    default=DEFAULT_SINCE,
    show_default=True,
    type=Parsed("time", parse_since),
    help="From 2h or 30d ago, or 2026-11-21T14:30 UTC.",
)
@click.option("--until", type=Parsed("time", parse_since), help="Up to then, as --since; else now.")
@click.option(
    "--by", type=click.Choice(KEYS), default="user", show_default=True, help="What to sum."
)
@click.option("--lease", type=Parsed("lease", parse_lease), help="All that is known of one lease.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, with units in its header.")
@click.option(
    "--parquet",
    type=click.Path(dir_okay=False),
    help="Write a Parquet file; needs pyarrow: pip install 'gpupool[parquet]'.",
)
@click.option(
    "--wasted", is_flag=True, help="Show what was held while nothing ran, the most first."
)
@click.option("--strict", is_flag=True, help="Exit with 3 when a server or a record is missing.")
@click.option(
    "--file",
    "database",
    type=click.Path(dir_okay=False, exists=True),
    help="Read this copy of a server's usage.db; no pool is asked.",
)
@pool_options
@json_option
def command(
    credentials: str | None,
    since: float,
    until: float | None,
    by: str,
    lease: int | None,
    database: str | None,
    as_csv: bool,
    parquet: str | None,
    wasted: bool,
    strict: bool,
    as_json: bool,
) -> None:
    """Show GPU-hours: the share of GPU memory that leases had, times how long they had it.

    Users see their own leases and sums of the others by class, operators everybody's. All servers
    are asked, and each has the records of the whole pool; one that does not answer is named.
    """
    _check_forms(as_csv=as_csv, as_json=as_json, parquet=parquet, lease=lease)
    query = RecordQuery(
        since=Milliseconds(0 if lease else round(since * 1000)),
        until=Milliseconds(round(until * 1000)) if until is not None and not lease else FAR,
        lease=LeaseId(lease or 0),
        by="" if lease else by,
    )
    if database is not None:
        found = _read(Path(database), query)
    else:
        found = run_async(lambda: _ask(credentials, query))
    if found.report is not None:
        report = found.report.by_waste() if wasted else found.report
        if parquet is not None:
            _write_parquet(Path(parquet), report, found)
        else:
            _show(report, found, as_csv=as_csv, as_json=as_json, wasted=wasted)
    else:
        _show_lease(query.lease, found, as_json=as_json)
    _warn(found)
    if strict and (found.silent or found.missing):
        raise SystemExit(ExitCode.UNHEALTHY)


def _check_forms(*, as_csv: bool, as_json: bool, parquet: str | None, lease: int | None) -> None:
    """Refuse what excludes each other, and what is missing, before the pool is asked."""
    if as_csv + as_json + (parquet is not None) > 1:
        names = "--csv, --json and --parquet exclude each other"
        raise UsageError(names, hint="give one of them")
    if parquet is not None:
        if lease:
            raise UsageError("--parquet has rows of sums, and --lease none", hint="give --json")
        from gpupool.monitoring.parquet_file import require_pyarrow

        require_pyarrow()


def _read(path: Path, query: RecordQuery) -> _Found:
    """Return what a copy of usage.db says."""
    import sqlite3

    from gpupool.monitoring.accounting import Range
    from gpupool.monitoring.pages import told
    from gpupool.monitoring.usage_report import make_report
    from gpupool.monitoring.usage_store import UsageStore

    try:
        store = UsageStore(path)
        try:
            page, missing = told(store.each(query), query), store.missing()
        finally:
            store.close()
    except sqlite3.Error as error:
        hint = '"gpupool backup --history DIR", on a server, makes a copy while it runs'
        raise StorageError(f"cannot read {path}", why=str(error), hint=hint) from error
    if query.lease:
        return _Found(parts=list(page.records), missing=missing)
    within, nothing = Range(query.since, query.until), ((), frozenset[LeaseId]())
    report = make_report(page.groups, page.whole, nothing, (), query.by, within)
    return _Found(report=report, missing=missing)


async def _ask(credentials: str | None, query: RecordQuery) -> _Found:
    async with connected(credentials) as pool:
        # The view has all that is not over, and says how many records there are of the rest.
        view = await pool.view()
        records = replace(query, through=view.record_count)
        if not view.record_count:
            records = replace(query, count=0, through=0)
        asked = HistoryQuery(
            "sums",
            query.by or "server",
            str(query.lease) if query.lease else "",
            since=query.since,
            until=min(query.until, Milliseconds(view.now + 1)),
        )
        measured, answer = await _both(pool, asked, records)
        user, operator = pool.user(), pool.is_operator()
        return _put_together(view, answer, measured, query, user, operator=operator)


async def _both(
    pool: "Pool", asked: HistoryQuery, records: RecordQuery
) -> "tuple[HistoryAnswer, UsageAnswer]":
    """Ask both at once: each waits for servers that are dead."""
    import trio

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
) -> _Found:
    from gpupool.monitoring.usage_report import parts_of_lease, pool_report

    viewer = None if operator else user
    names = {each.id: each.name for each in view.servers}
    found = _Found(
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


def _name(names: dict[ServerId, str], server: ServerId) -> str:
    return names.get(server, server)


def _contact(view: PoolView, server: ServerId, why: str) -> str:
    from gpupool.monitoring.usage_report import when

    since = next((each.silent_since for each in view.servers if each.id == server), 0)
    return f"last contact {when(since)}" if since else why


def _show(report: "Report", found: _Found, *, as_csv: bool, as_json: bool, wasted: bool) -> None:
    from gpupool.monitoring.usage_report import as_csv as csv_of
    from gpupool.monitoring.usage_report import as_plain, table, waste_table

    if as_json:
        print_json(
            version=__version__,
            **as_plain(report),
            silent=found.silent,
            missing=found.missing,
            problems=found.problems,
        )
    elif as_csv:
        click.echo(csv_of(report).encode(), nl=False)
    else:
        _print(waste_table(report) if wasted else table(report))


def _write_parquet(path: Path, report: "Report", found: _Found) -> None:
    from gpupool.cli.lib.files import write_private
    from gpupool.monitoring.parquet_file import parquet_of

    data = parquet_of(
        report,
        version=__version__,
        silent=found.silent,
        missing=found.missing,
        problems=found.problems,
    )
    write_private(path, data)
    say(f"gpupool: {len(report.rows)} rows written to {path}")


def _print(lines: Sequence[tuple[str, ...]]) -> None:
    shown = [tuple(visible(word) for word in line) for line in lines]
    widths = [max(len(line[at]) for line in shown) for at in range(len(shown[0]))]
    for name, *cells in shown:
        columns = [word.rjust(w) for word, w in zip(cells, widths[1:], strict=True)]
        click.echo("  ".join([name.ljust(widths[0]), *columns]).rstrip())


def _show_lease(lease: LeaseId, found: _Found, *, as_json: bool) -> None:
    from gpupool.monitoring.accounting import Range, total
    from gpupool.monitoring.history.sample_figures import figures_of
    from gpupool.monitoring.usage_report import lease_report, plain_row
    from gpupool.pool.model.ids import lease_name

    parts, known = found.parts, reduce(SampleSum.plus, found.samples) if found.samples else None
    if not parts:
        raise UsageError(f"nothing is known of a lease {lease_name(lease)} that you may see")
    if as_json:
        whole = total(parts, Range())
        figures = figures_of(known, whole.gpu_hours)
        print_json(lease=lease_name(lease), parts=parts, total=plain_row(whole, figures))
        return
    for line in lease_report(lease, parts, known):
        click.echo(visible(line))


def _warn(found: _Found) -> None:
    for name, why in found.silent.items():
        say(f"gpupool: server {visible(name)} did not answer ({visible(why)})")
    for problem in found.problems:
        say(f"gpupool: {visible(problem)}")
    if found.missing:
        count = sum(last - first + 1 for first, last in found.missing)
        say(f"gpupool: {count} records of leases are not to be had, so the sums are too small")
