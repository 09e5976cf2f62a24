"""``gpupool clock``: the pool's time against the clocks of its servers, and how to mend it."""

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from gpupool.cli.lib.options import json_option, pool_options
from gpupool.cli.lib.output import operate, print_json, print_lines, run_async
from gpupool.pool.errors import ExitCode, GpupoolError, UsageError
from gpupool.pool.values import duration_text
from gpupool.remoting.local.logins import connected
from gpupool.remoting.local.terminal import say

if TYPE_CHECKING:
    from gpupool.pool.clock_view import ClockView
    from gpupool.pool.view import PoolView

RIGHT_WITHIN_S = 0.1
"""Differences below this are not worth a figure."""


@click.command()
@click.option("--mend", is_flag=True, help="Set the pool's time to where the voters' clocks are.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@pool_options
@json_option
def command(credentials: str | None, mend: bool, yes: bool, as_json: bool) -> int:
    """Show the pool's time, and how far the clock of each server is off.

    The pool's time follows the clocks of a majority of the voters, and never goes back by itself.
    After an accident with clocks --mend sets it, back or ahead, to where they are now: put the
    clocks right first. Tokens and leases that the accident has made keep their length, older ones
    their end. It takes an operator's token, and is in the audit.

    Exits with 3 when something is wrong with the time.
    """
    view = run_async(lambda: _ask(credentials))
    clock = view.clock
    if clock is None:
        raise GpupoolError(
            "this server does not tell the pool's time", hint="update the servers of the pool"
        )
    if mend:
        _mend(credentials, clock, yes=yes)
        return ExitCode.DONE
    if as_json:
        print_json(clock=clock)
    else:
        _print(view, clock)
    return ExitCode.UNHEALTHY if clock.problems else ExitCode.DONE


async def _ask(credentials: str | None) -> "PoolView":
    async with connected(credentials) as pool:
        return await pool.view()


def _mend(credentials: str | None, clock: "ClockView", *, yes: bool) -> None:
    from gpupool.remoting.protocol import messages as m

    if clock.source == "voters" and clock.table_ahead_s < RIGHT_WITHIN_S:
        say("gpupool: the pool's time is right; there is nothing to mend")
        return
    if not yes:
        what = f"setting the pool's time, which is {_when(max(clock.table, clock.pool))} now,"
        if not sys.stdin.isatty():
            raise UsageError(f"{what} cannot be undone", hint="--yes does it without asking")
        for problem in clock.problems:
            say(f"gpupool: {problem}")
        question = "Set the pool's time to where the voters' clocks are?"
        click.confirm(question, abort=True, err=True)
    operate(credentials, m.SetClock())


def _print(view: "PoolView", clock: "ClockView") -> None:
    follows = {
        "voters": "it follows the voters' clocks",
        "held": "it runs on by itself",
        "own": "the pool is being made",
    }
    click.echo(f"pool time  {_when(view.now)}, {follows.get(clock.source, clock.source)}")
    known = {each.server: each for each in clock.servers}
    lines = [("SERVER", "VOTE", "CLOCK")]
    for server in view.servers:
        each = known.get(server.id)
        text = _offset(each.ahead_s) if each is not None else "not known to this server"
        lines.append((server.name, "yes" if server.voter else "-", text))
    print_lines(lines)
    for problem in clock.problems:
        say(f"gpupool: {problem}")


def _offset(ahead_s: float) -> str:
    if abs(ahead_s) < RIGHT_WITHIN_S:
        return "right"
    return f"{duration_text(abs(ahead_s))} {'ahead' if ahead_s > 0 else 'behind'}"


def _when(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
