"""``gpupool usage``: GPU usage by user, in amount and time."""

import sys
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from gpupool import __version__
from gpupool.cli.lib.options import (
    NAME_TYPE,
    Parsed,
    check_span,
    json_option,
    pool_options,
    span_options,
)
from gpupool.cli.lib.output import operate, print_json, run_async
from gpupool.monitoring.usage_asking import FoundUsage, ask_usage
from gpupool.pool.errors import ExitCode, StorageError, UnknownNameError, UsageError
from gpupool.pool.history_query import HistoryQuery, SampleSum
from gpupool.pool.model.ids import LeaseId, Milliseconds
from gpupool.pool.record_query import FAR, KEYS, RecordQuery
from gpupool.pool.values import parse_lease
from gpupool.pool.view import PoolView, visible
from gpupool.remoting.local.logins import connected
from gpupool.remoting.local.terminal import say

if TYPE_CHECKING:
    from gpupool.monitoring.costs import Timeline
    from gpupool.monitoring.usage_report import Report
    from gpupool.remoting.client.history_answers import HistoryAnswer

DEFAULT_SINCE = "30d"
WITHOUT_CAPACITY = {"lease": "--lease", "wasted": "--wasted", "database": "--file"}
"""Options that the capacity report rejects."""


@click.group(invoke_without_command=True)
@span_options(DEFAULT_SINCE)
@click.option(
    "--by", type=click.Choice(KEYS), default="user", show_default=True, help="Rows to sum by."
)
@click.option("--lease", type=Parsed("lease", parse_lease), help="The whole record of one lease.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, with units in its header.")
@click.option("--wasted", is_flag=True, help="Show idle GPU-hours of leases, the most first.")
@click.option(
    "--cost",
    is_flag=True,
    help="Show costs, too, by the prices of the pool's policy; with --capacity also of free GPUs.",
)
@click.option(
    "--capacity",
    is_flag=True,
    help="Show GPU capacity by model, or --by day.",
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
@click.pass_context
def command(
    context: click.Context,
    credentials: str | None,
    since: float,
    until: float | None,
    by: str,
    lease: int | None,
    database: str | None,
    as_csv: bool,
    wasted: bool,
    cost: bool,
    capacity: bool,
    strict: bool,
    as_json: bool,
) -> None:
    """Show GPU-hours: the share of GPU memory that leases had, times how long they had it.

    Users see their own leases and sums of the others by class, operators everybody's. All servers
    are asked, and each has the records of the whole pool; one that does not answer is named.
    """
    if context.invoked_subcommand is not None:
        return
    check_span(since, until)
    if as_csv and as_json:
        raise UsageError("--csv and --json exclude each other", hint="give one of them")
    if cost and (lease or database is not None):
        raise UsageError("--cost is of sums, by the prices of a pool", hint="leave out the other")
    if capacity:
        if given := _given(WITHOUT_CAPACITY):
            raise UsageError(
                f"--capacity is of all GPUs, and takes no {given}", hint="leave out one of them"
            )
        by = by if context.get_parameter_source("by") is ParameterSource.COMMANDLINE else "model"
        forms = {"as_csv": as_csv, "as_json": as_json, "strict": strict, "cost": cost}
        show_capacity(credentials, (since, until), by, **forms)
        return
    query = RecordQuery(
        since=Milliseconds(0 if lease else round(since * 1000)),
        until=Milliseconds(round(until * 1000)) if until is not None and not lease else FAR,
        lease=LeaseId(lease or 0),
        by="" if lease else by,
    )
    if database is not None:
        found = _read(Path(database), query)
    else:
        found = run_async(lambda: _ask(credentials, query, cost=cost))
    if found.report is not None:
        report = found.report.by_waste() if wasted else found.report
        _show(report, found, as_csv=as_csv, as_json=as_json, wasted=wasted)
    else:
        _show_lease(query.lease, found, as_json=as_json)
    _end(found, strict=strict)


def _read(path: Path, query: RecordQuery) -> FoundUsage:
    """Return the usage in a copy of usage.db."""
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
        return FoundUsage(parts=list(page.records), missing=missing)
    within = Range(query.since, query.until)
    report = make_report(page.groups, page.whole, ((), ()), (), query.by, within)
    return FoundUsage(report=report, missing=missing)


def _given(options: Mapping[str, str]) -> str:
    """Return the first of these options that was typed, which the report would pass over."""
    context = click.get_current_context()
    given = [
        option
        for name, option in options.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
    return given[0] if given else ""


async def _ask(credentials: str | None, query: RecordQuery, *, cost: bool) -> FoundUsage:
    async with connected(credentials) as pool:
        return await ask_usage(pool, await pool.view(), query, cost=cost)


def _show(
    report: "Report", found: FoundUsage, *, as_csv: bool, as_json: bool, wasted: bool
) -> None:
    from gpupool.monitoring.usage_report import TITLES, WASTE_TITLES, aligned, as_plain, table
    from gpupool.monitoring.usage_report import as_csv as csv_of

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
        for line in aligned(table(report, WASTE_TITLES if wasted else TITLES)):
            click.echo(line)


def _show_lease(lease: LeaseId, found: FoundUsage, *, as_json: bool) -> None:
    from gpupool.monitoring.accounting import Range, total
    from gpupool.monitoring.history.sample_figures import figures_of
    from gpupool.monitoring.usage_report import lease_report, plain_row
    from gpupool.pool.model.ids import lease_name

    parts, known = found.parts, reduce(SampleSum.plus, found.samples) if found.samples else None
    if not parts:
        hint = '"gpupool leases" shows those held, "gpupool usage --by lease" those that ended too'
        what = f"nothing is known of a lease {lease_name(lease)} that you may see"
        raise UnknownNameError(what, hint=hint)
    if as_json:
        whole = total(parts, Range())
        figures = figures_of(known, whole.gpu_hours)
        print_json(lease=lease_name(lease), parts=parts, total=plain_row(whole, figures))
        return
    for line in lease_report(lease, parts, known):
        click.echo(visible(line))


def _end(found: FoundUsage, *, strict: bool) -> None:
    """Warn of gaps in the usage; with ``strict``, exit with 3 for them."""
    _warn(found)
    if strict and (found.silent or found.missing):
        raise SystemExit(ExitCode.UNHEALTHY)


def _warn(found: FoundUsage) -> None:
    for name, why in found.silent.items():
        say(f"gpupool: server {visible(name)} did not answer ({visible(why)})")
    for problem in found.problems:
        say(f"gpupool: {visible(problem)}")
    if found.missing:
        count = sum(last - first + 1 for first, last in found.missing)
        what = "one record of a lease is" if count == 1 else f"{count} records of leases are"
        say(f"gpupool: {what} not to be had, so the sums are too small")
    costs = found.report.costs if found.report is not None else None
    if costs is not None and costs.whole.unpriced and not costs.whole.amount:
        say_no_price()


@command.command()
@click.argument("user", type=NAME_TYPE)
@click.option("--yes", is_flag=True, help="Do not ask.")
@pool_options
def forget(credentials: str | None, user: str, yes: bool) -> None:
    """Anonymize USER in the accounts and histories of all servers.

    For operators. USER must have no lease and no waiting request. Servers that are away do it when
    they are back, within 90 days. Tokens, the policy and the audit keep the name; so do copies that
    were made before. A user of that name begins anew.
    """
    from gpupool.remoting.protocol import messages as m

    if not yes and not sys.stdin.isatty():
        raise UsageError("this cannot be undone", hint="--yes does it without asking")
    found = run_async(lambda: _ask(credentials, RecordQuery(by="user"), cost=False))
    assert found.report is not None, "sums by user were asked for"
    # Servers that are away may have the name, and so may those that were away for long, and the
    # reasons in records of other users. So the order is given whether an account is found or not.
    known = user in found.report.rows
    unknown = f"no account that can be read now is of {visible(user)}. If one is found later, "
    if not yes:
        what = f"Forget {visible(user)} in all accounts?"
        click.confirm(what if known else f"{unknown}forget it?", abort=True, err=True)
    operate(credentials, m.ForgetUser(user), "" if known else unknown)


# --- capacity -------------------------------------------------------------------------------------


SEEN_LOW = 0.9
"""Below it the shares may be of other hours than were asked for, and it is said."""


def show_capacity(
    credentials: str | None,
    times: tuple[float, float | None],
    by: str,
    *,
    as_csv: bool,
    as_json: bool,
    strict: bool,
    cost: bool,
) -> None:
    """Ask the pool, and print the report; ``times`` are Unix seconds, None stands for now.

    Raises:
        UsageError: when capacity has no sums by that, or the range is none.
    """
    from gpupool.monitoring.accounting import Range
    from gpupool.monitoring.history import capacity_report as report
    from gpupool.monitoring.usage_report import aligned

    if by not in report.KEYS:
        raise UsageError(f"--capacity is not summed by {by}", hint="give --by model or --by day")
    since = Milliseconds(round(1000 * times[0]))
    view, answer, until, timeline = run_async(
        lambda: _ask_capacity(credentials, since, times[1], cost=cost)
    )
    found = report.capacity_report(answer.pages, by, Range(since, until), timeline)
    names = {each.id: each.name for each in view.servers}
    silent = {names.get(each, each): why for each, why in answer.silent.items()}
    problems = {names.get(s, s): page.problem for s, page in answer.pages.items() if page.problem}
    if as_json:
        plain = report.as_plain(found)
        print_json(version=__version__, **plain, silent=silent, problems=problems)
    elif as_csv:
        click.echo(report.as_csv(found).encode(), nl=False)
    else:
        for line in aligned(report.table(found)):
            click.echo(line)
    for name, why in silent.items():
        say(f"gpupool: server {visible(name)} did not answer ({visible(why)})")
    for name, problem in problems.items():
        say(f"gpupool: server {visible(name)}: {visible(problem)}")
    if found.seen is None:
        say("gpupool: nothing is known of this time")
    elif found.seen < SEEN_LOW:
        say(f"gpupool: {100 * found.seen:.0f} % of this time is known, and the rest in no figure")
    if found.costs is not None and found.whole.gpus and not any(found.costs.whole.parts.values()):
        say_no_price()
    if strict and silent:
        raise SystemExit(ExitCode.UNHEALTHY)


def say_no_price() -> None:
    """Say why nothing has a cost."""
    say("gpupool: the pool's policy had no price for any of these GPUs")
    say('  hint: an operator adds [prices] by "gpupool policy edit", such as "*H200*" = 2.10')


async def _ask_capacity(
    credentials: str | None, since: Milliseconds, until: float | None, *, cost: bool
) -> tuple[PoolView, "HistoryAnswer", Milliseconds, "Timeline | None"]:
    from gpupool.monitoring.accounting import Range
    from gpupool.monitoring.cost_asking import price_timeline

    async with connected(credentials) as pool:
        view = await pool.view()
        end = view.now if until is None else Milliseconds(round(1000 * until))
        query = HistoryQuery("capacity", "model", since=since, until=end)
        timeline = await price_timeline(pool, Range(since, end)) if cost else None
        return view, await pool.history(query), end, timeline
