"""``gpupool health history``: when checks found something, and when that ended."""

from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

import click

from gpupool import __version__
from gpupool.cli.lib.options import json_option, pool_options
from gpupool.cli.lib.output import print_json, run_async
from gpupool.cli.lib.time_spans import check_span, span_options
from gpupool.pool.errors import ExitCode, UnknownNameError, UsageError
from gpupool.pool.history_query import HistoryQuery
from gpupool.pool.model.ids import Milliseconds, ServerId
from gpupool.pool.telemetry import Health
from gpupool.pool.values import duration_text
from gpupool.pool.view import PoolView, visible
from gpupool.remoting.local.logins import connected
from gpupool.remoting.local.terminal import say

if TYPE_CHECKING:
    from gpupool.monitoring.health.health_history import PoolEpisode
    from gpupool.remoting.client.history_answers import HistoryAnswer

COLORS = {Health.WARN: "yellow", Health.FAIL: "red"}
GOES_ON = "goes on"


@click.command()
@click.argument("check", metavar="[CHECK]", default="")
@click.option("--server", default="", help="Of this server alone, by its name.")
@click.option(
    "--subject", default="", help="Of this alone: a GPU's id, its beginning, or as --json has it."
)
@span_options("7d")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, with the unit in its header.")
@click.option("--strict", is_flag=True, help="Exit with 3 when a server does not answer.")
@pool_options
@json_option
def history(
    credentials: str | None,
    check: str,
    server: str,
    subject: str,
    since: float,
    until: float | None,
    as_csv: bool,
    strict: bool,
    as_json: bool,
) -> None:
    r"""List when checks found something, and when that ended; the newest first.

    Every server keeps what its own checks have found, for two years if there is room. One that does
    not answer is named, and so is one that does not know the whole time.

    \b
    Examples:
      gpupool health history temperature --server gpu-1
      gpupool health history --since 30d --csv
    """
    from gpupool.monitoring.health import health_history as report

    if as_csv and as_json:
        raise UsageError("--csv and --json exclude each other", hint="give one of them")
    check_span(since, until)
    _require_known(check)
    query = HistoryQuery("health", check, since=Milliseconds(round(1000 * since)))
    view, answer, query = run_async(lambda: _ask(credentials, query, until))
    names = {each.id: each.name for each in view.servers}
    if server and server not in names.values():
        hint = f"it has {', '.join(sorted(names.values()))}"[:300]
        raise UnknownNameError(f"the pool has no server named {visible(server)}", hint=hint)
    rows = [each for each in report.merged(answer.pages, names) if each.is_of(server, subject)]
    unknown = report.unknown_before(answer.pages, names, query.since)
    if as_json:
        problems = {names.get(s, s): page.problem for s, page in answer.pages.items()}
        silent = {names.get(s, s): why for s, why in answer.silent.items()}
        shown = report.as_plain(rows)
        print_json(version=__version__, episodes=shown, known_since=unknown, silent=silent,
                   problems=problems)  # fmt: skip
    elif as_csv:
        click.echo(report.as_csv(rows, view.now).encode(), nl=False)
    else:
        for line in _lines(rows, view.now):
            click.echo(line)
    _tell_what_lacks(answer, names, unknown)
    if strict and answer.silent:
        raise SystemExit(ExitCode.UNHEALTHY)


def _require_known(check: str) -> None:
    from gpupool.monitoring.health.check_table import CHECKS

    known = [each.name for each in CHECKS]
    if check and check not in known:
        close = get_close_matches(check.lower(), known, 3)
        known_too = f"the checks are {', '.join(known)}"
        hint = f"did you mean {', '.join(close)}?" if close else known_too
        raise UsageError(f"no check is called {visible(check)}", hint=hint)


async def _ask(
    credentials: str | None, query: HistoryQuery, until: float | None
) -> tuple[PoolView, "HistoryAnswer", HistoryQuery]:
    async with connected(credentials) as pool:
        view = await pool.view()
        last = view.now + 1 if until is None else round(1000 * until)
        query = replace(query, until=Milliseconds(last))
        return view, await pool.history(query), query


def _lines(rows: "list[PoolEpisode]", now: Milliseconds) -> list[str]:
    from gpupool.monitoring.usage_report import when

    if not rows:
        return ["no check has found anything in this time"]
    lines = [f"{'BEGAN':<23}  {'ENDED':<23}  {'FOR':<7}  {'RESULT':<6}  {'CHECK':<14}  FINDING"]
    for row in rows:
        each = row.episode
        ended = when(each.ended) if each.ended else GOES_ON
        result = click.style(f"{each.status.name.lower():<6}", fg=COLORS.get(each.status))
        lasted = duration_text(row.seconds(now))
        where = f"{row.server}: " if row.server else ""
        what = visible(f"{where}{each.text or each.subject}")
        lines.append(
            f"{when(each.began):<23}  {ended:<23}  {lasted:<7}  {result}  {each.check:<14}  {what}"
        )
    return lines


def _tell_what_lacks(
    answer: "HistoryAnswer", names: dict[ServerId, str], unknown: dict[str, int]
) -> None:
    from gpupool.monitoring.usage_report import when

    for server, why in answer.silent.items():
        name = visible(names.get(server, server))
        say(f"gpupool: server {name} did not answer ({visible(why)})")
    for server, page in answer.pages.items():
        name = visible(names.get(server, server))
        if page.problem:
            say(f"gpupool: server {name}: {visible(page.problem)}")
        elif page.more:
            say(f"gpupool: server {name} has older ones; give an earlier --until to see them")
    for name, since in unknown.items():
        told = f"health records before {when(since)}" if since else "health records yet"
        say(f"gpupool: server {visible(name)} has no {told}")
