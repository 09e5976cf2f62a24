"""``gpupool health``: what the servers of the pool have found wrong, merged."""

import sys
from typing import TYPE_CHECKING

import click

from gpupool.cli.lib.common_options import json_option, pool_options
from gpupool.cli.lib.connect import connected, run_async
from gpupool.cli.lib.listing import fetch_snapshot, reach_all
from gpupool.cli.lib.output import print_json, say
from gpupool.cli.lib.values import duration_text
from gpupool.pool.errors import ExitCode, GpupoolError, UsageError
from gpupool.pool.telemetry import Health

if TYPE_CHECKING:
    from gpupool.monitoring.health.pool_health import PoolHealth

WATCH_EVERY_S = 2.0
COLORS = {Health.WARN: "yellow", Health.FAIL: "red"}
NAGIOS_UNKNOWN = 3


@click.command()
@click.option("--watch", is_flag=True, help="Show it again whenever it changes, until Ctrl-C.")
@click.option("--strict", is_flag=True, help="Exit with 3 also when something only warns.")
@click.option("--nagios", is_flag=True, help="One line, and 0, 1, 2 or 3, as Nagios wants it.")
@pool_options
@json_option
def command(credentials: str | None, watch: bool, strict: bool, nagios: bool, as_json: bool) -> int:
    """Show what is wrong with the pool: its servers, GPUs, disks, links and clocks.

    Every server checks itself once a second; all are asked, and one that does not answer is named.
    Exits with 0 when nothing fails, with 3 when something does, with 1 when no server answers.
    """
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
            }
            for row in health.findings
        ],
    )


def _text(health: "PoolHealth") -> str:
    from gpupool.monitoring.health.pool_health import line

    fails, warns = health.count(Health.FAIL), health.count(Health.WARN)
    verdict = "healthy" if not fails else "not healthy"
    counts = ", ".join(
        [f"{count} {word}" for count, word in ((fails, "fail"), (warns, "warn")) if count]
    )
    lines = [
        f"pool {health.pool} is {verdict}{f': {counts}' if counts else ''}; "
        f"{health.answered} of {health.servers} servers answer"
    ]
    for row in health.findings:
        finding = row.finding
        mark = click.style(f"{finding.status.name.lower():<5}", fg=COLORS.get(finding.status))
        ago = duration_text(max(0.0, (health.at - finding.since) / 1000))
        lines.append(f"{mark} {finding.check:<14} {line(row)} (for {ago})")
        if finding.hint:
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
