"""``gpupool usage --capacity``: what became of all GPUs that there were."""

from typing import TYPE_CHECKING

import click

from gpupool import __version__
from gpupool.cli.lib.output import print_json, run_async
from gpupool.pool.errors import ExitCode, UsageError
from gpupool.pool.history_query import HistoryQuery
from gpupool.pool.model.ids import Milliseconds
from gpupool.pool.view import PoolView, visible
from gpupool.remoting.local.logins import connected
from gpupool.remoting.local.terminal import say

if TYPE_CHECKING:
    from gpupool.monitoring.costs import Timeline
    from gpupool.remoting.client.history_answers import HistoryAnswer

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
    view, answer, until, timeline = run_async(lambda: _ask(credentials, since, times[1], cost=cost))
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


async def _ask(
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
