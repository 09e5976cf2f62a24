"""``gpupool health``: the merged health findings of the pool's servers."""

import sys
from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

import click

from gpupool import __version__
from gpupool.cli.lib.listing import fetch_snapshot, reach_all
from gpupool.cli.lib.options import DURATION, check_span, json_option, pool_options, span_options
from gpupool.cli.lib.output import invocation, operate, print_json, run_async
from gpupool.pool.errors import ExitCode, GpupoolError, UnknownNameError, UsageError
from gpupool.pool.history_query import HistoryQuery
from gpupool.pool.model.ids import Milliseconds, ServerId
from gpupool.pool.model.silences import silence_scope
from gpupool.pool.telemetry import Health
from gpupool.pool.values import duration_text
from gpupool.pool.view import PoolView, visible
from gpupool.remoting.local.logins import connected
from gpupool.remoting.local.terminal import say

if TYPE_CHECKING:
    from gpupool.monitoring.health.health_history import PoolEpisode
    from gpupool.monitoring.health.pool_health import PoolHealth
    from gpupool.remoting.client.history_answers import HistoryAnswer

WATCH_EVERY_S = 2.0
COLORS = {Health.WARN: "yellow", Health.FAIL: "red"}
NAGIOS_UNKNOWN = 3


@click.group(invoke_without_command=True)
@click.option("--watch", is_flag=True, help="Show it again whenever it changes, until Ctrl-C.")
@click.option("--strict", is_flag=True, help="Exit with 3 also when something only warns.")
@click.option("--nagios", is_flag=True, help="One line, and 0, 1, 2 or 3, as Nagios wants it.")
@pool_options
@json_option
@click.pass_context
def command(
    context: click.Context,
    credentials: str | None,
    watch: bool,
    strict: bool,
    nagios: bool,
    as_json: bool,
) -> int:
    """Show health findings of the pool: servers, GPUs, disks, links and clocks.

    Every server checks itself once a second; all are asked, and one that does not answer is named.
    Exits with 0 without failures, with 3 when a check fails, with 1 when no server answers.
    Silenced findings are shown last, and do not count.
    """
    if context.invoked_subcommand is not None:
        return ExitCode.DONE
    if nagios and as_json:
        raise UsageError("--nagios and --json exclude each other", hint="give one of them")
    if watch and (nagios or as_json):
        raise UsageError("--watch shows people the pool", hint="leave out --json and --nagios")
    if watch:
        run_async(lambda: _watch(credentials))
        return ExitCode.DONE
    if nagios:
        return _nagios(credentials)
    health = _ask(credentials)
    if as_json:
        _print_json(health)
    else:
        click.echo(_text(health))
    limit = Health.WARN if strict else Health.FAIL
    return ExitCode.UNHEALTHY if health.status >= limit else ExitCode.DONE


def _ask(credentials: str | None) -> "PoolHealth":
    from gpupool.monitoring.health.pool_health import merged

    snapshot = fetch_snapshot(credentials)
    return merged(snapshot.view, snapshot.telemetry)


def _nagios(credentials: str | None) -> int:
    from gpupool.monitoring.health import pool_health

    try:
        text, code = pool_health.nagios(_ask(credentials))
    except GpupoolError as error:
        text, code = f"GPUPOOL UNKNOWN - {error}", NAGIOS_UNKNOWN
    click.echo(text)
    return code


def _print_json(health: "PoolHealth") -> None:
    print_json(
        pool=health.pool,
        at=health.at,
        status=health.status.name.lower(),
        servers=health.servers,
        answered=health.answered,
        findings=[
            {
                "server": row.server,
                "check": row.finding.check,
                "subject": row.finding.subject,
                "status": row.finding.status.name.lower(),
                "since": row.finding.since,
                "text": row.finding.text,
                "hint": row.finding.hint,
                "silence": row.silence,
            }
            for row in health.findings
        ],
        silenced=health.silenced,
    )


def _text(health: "PoolHealth") -> str:
    from gpupool.monitoring.health.pool_health import grouped, line, silence_words

    every = invocation().verbose > 0

    fails, warns = health.count(Health.FAIL), health.count(Health.WARN)
    verdict = "healthy" if not fails else "not healthy"
    counts = ", ".join(
        [
            f"{count} {word}"
            for count, word in ((fails, "fail"), (warns, "warn"), (health.silenced, "silenced"))
            if count
        ]
    )
    lines = [
        f"pool {health.pool} is {verdict}{f': {counts}' if counts else ''}; "
        f"{health.answered} of {health.servers} servers answer"
    ]
    rows = [(row, 0) for row in health.findings] if every else grouped(health.findings)
    for row, more in rows:
        finding = row.finding
        mark = click.style(f"{finding.status.name.lower():<5}", fg=COLORS.get(finding.status))
        ago = duration_text(max(0.0, (health.at - finding.since) / 1000))
        lines.append(f"{mark} {finding.check:<14} {line(row)} (for {ago})")
        if more:
            lines.append(f"{'':21}and {more} more warnings of this check; -v shows all")
        if row.silence is not None:
            lines.append(f"{'':21}{silence_words(row.silence, health.at)}")
        elif finding.hint:
            lines.append(f"{'':21}hint: {finding.hint}")
    return "\n".join(lines)


async def _watch(credentials: str | None) -> None:
    """Show the pool's health whenever it changes; on a terminal in place of the former."""
    import trio

    from gpupool.monitoring.health.pool_health import PoolHealth, merged

    shown: object = None
    async with connected(credentials) as pool:
        while True:
            try:
                view = await pool.view()
                await reach_all(pool, {s.id for s in view.servers if s.state != "down"})
                health: PoolHealth = merged(view, await pool.telemetry())
            except GpupoolError as error:
                if shown != str(error):
                    say(f"gpupool: {error}")
                shown = str(error)
            else:
                state = health.answered, health.findings
                if sys.stdout.isatty():
                    click.clear()
                    click.echo(_text(health))
                elif state != shown:
                    click.echo(_text(health))
                shown = state
            await trio.sleep(WATCH_EVERY_S)


# --- silences -------------------------------------------------------------------------------------


def _known_names() -> dict[str, str]:
    """Return the checks and alert rules that can be silenced, by name and lower-case name."""
    from gpupool.monitoring.health.alert_rules import RULES
    from gpupool.monitoring.health.check_table import CHECKS

    rules, checks = (rule.name for rule in RULES), (check.name for check in CHECKS)
    # A check wins over a rule of the same name, if it is not written as the rule's.
    small = {name.lower(): name for name in (*rules, *checks, "answer", "alarm")}
    return small | {name: name for name in (*small.values(), *(rule.name for rule in RULES))}


def _name_of(text: str) -> str:
    known = _known_names()
    if text in known:
        return known[text]
    if text.lower() not in known:
        close = get_close_matches(text.lower(), known, 3)
        hint = f"did you mean {', '.join(known[each] for each in close)}?" if close else ""
        what = f"no check and no alert is called {text}"
        raise UsageError(what, hint=hint or "gpupool health shows the names of what is wrong")
    return known[text.lower()]


def _of_options(function: Callable[..., object]) -> Callable[..., object]:
    """Add the options for a silence's server and subject."""
    server = click.option("--server", default="", help="On this server alone, by its name.")
    subject = click.option(
        "--subject", default="", help="Of this alone: a GPU's id, or what health --json calls it."
    )
    return server(subject(function))


@command.command()
@click.argument("check", metavar="CHECK|ALERT")
@_of_options
@click.option(
    "--for",
    "for_s",
    type=DURATION,
    default="4h",
    show_default=True,
    help="How long; 90 days at most.",
)
@click.option("--reason", required=True, help="Why, for people and for the audit.")
@pool_options
def silence(
    credentials: str | None, check: str, server: str, subject: str, for_s: float, reason: str
) -> None:
    r"""Silence a finding or an alert that you know of, for some time. For operators.

    It is shown as silenced, counts for no exit code, and is sent to nobody. Findings for Prometheus
    stay: silence those in its Alertmanager.

    \b
    Example:
      gpupool health silence disk --server gpu-1 --for 2d --reason "the new disk comes tomorrow"
    """
    from gpupool.remoting.protocol import messages as m

    order = m.SetSilence(_name_of(check), server, subject, reason, for_s)
    if server:
        _check_server(server, fetch_snapshot(credentials).view)
    operate(credentials, order)


def _check_server(name: str, view: PoolView) -> None:
    """Refuse a name that no server has: nothing would be silent, and nobody would know."""
    names = sorted(each.name for each in view.servers)
    if name not in names:
        hint = f"it has {', '.join(names)}"[:300]
        raise UnknownNameError(f"the pool has no server named {visible(name)}", hint=hint)


@command.command()
@click.argument("check", metavar="CHECK|ALERT")
@_of_options
@pool_options
def unsilence(credentials: str | None, check: str, server: str, subject: str) -> None:
    """End a silence before its time; give the options with which it was set."""
    from gpupool.remoting.protocol import messages as m

    name = _name_of(check)
    of_name = [each for each in fetch_snapshot(credentials).view.silences if each.check == name]
    operate(credentials, m.SetSilence(name, server, subject, None, 0.0))
    scopes = [(each.server, each.subject) for each in of_name]
    if scopes and (server, subject) not in scopes:
        others = ", ".join(sorted(silence_scope(*each) or "everywhere" for each in scopes))
        say(f"  it is silenced {visible(others)}: give --server and --subject as there")


@command.command()
@pool_options
@json_option
def silences(credentials: str | None, as_json: bool) -> None:
    """List silenced checks and alerts, each with its author, reason and time left."""
    view = fetch_snapshot(credentials).view
    if as_json:
        print_json(silences=view.silences)
        return
    if not view.silences:
        say("gpupool: nothing is silenced")
    for each in sorted(view.silences, key=lambda one: one.until):
        left = duration_text(max(0.0, (each.until - view.now) / 1000))
        where = silence_scope(each.server, each.subject) or "everywhere"
        text = f"{each.check:<20} {where:<24} for {left:<8} by {each.by}: {each.reason}"
        click.echo(visible(text))


# --- history --------------------------------------------------------------------------------------


GOES_ON = "goes on"


@command.command()
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

    Every server keeps the findings of its checks for two years if there is room. The command names
    servers that do not answer, and those without records of the whole time.

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
    view, answer, query = run_async(lambda: _ask_history(credentials, query, until))
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


async def _ask_history(
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
