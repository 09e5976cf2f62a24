"""Tables on stdout, for terminals and for pipes; and the one request behind them."""

from collections.abc import Callable, Sequence
from itertools import compress
from typing import TYPE_CHECKING, TypeVar

import click

from gpupool.cli.lib.columns import NOT_KNOWN, Column, Glyphs, cells_of, chosen_columns
from gpupool.cli.lib.options import json_option, pool_options
from gpupool.cli.lib.output import run_async, stdout_console
from gpupool.pool.model.ids import ServerId
from gpupool.pool.read_model.pool_snapshot import PoolSnapshot
from gpupool.remoting.local.logins import connected

if TYPE_CHECKING:
    from gpupool.remoting.client.pool_client import Pool

REACH_S = 1.5
"""A server that cannot be connected to in this time is shown as one that does not answer."""

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., object])


def view_options(function: F) -> F:
    """Add the options of every command that shows the pool once."""
    function = click.option("--ascii", "in_ascii", is_flag=True, help="Draw with ASCII alone.")(
        function
    )
    function = click.option("-w", "--wide", is_flag=True, help="Show every column.")(function)
    return pool_options(json_option(function))


def fetch_snapshot(credentials: str | None) -> PoolSnapshot:
    """Return the pool's current state with every server's telemetry."""

    async def ask() -> PoolSnapshot:
        async with connected(credentials) as pool:
            view = await pool.view()
            await reach_all(pool, {s.id for s in view.servers if s.state != "down"})
            telemetry = await pool.telemetry()
            silent = frozenset(each.id for each in view.servers) - telemetry.keys()
            return PoolSnapshot(view, telemetry=telemetry, silent=silent)

    return run_async(ask)


async def reach_all(pool: "Pool", servers: set[ServerId]) -> None:
    """Give the connections to all servers that should be up a moment to be made."""
    import trio

    pool.connections.widen(len(servers))
    with trio.move_on_after(REACH_S):
        while not servers <= pool.connections.by_server.keys():  # noqa: ASYNC110  there is no event
            await trio.sleep(0.01)


def print_table(
    columns: Sequence[Column[R]],
    rows: Sequence[R],
    *,
    wide: bool,
    glyphs: Glyphs,
    live: bool = False,
) -> None:
    """Print rows below a header; columns are separated by two spaces, and never cut on a pipe."""
    from gpupool.cli.lib.table_lines import table_lines

    shown = chosen_columns(columns, wide=wide, live=live)
    cells = cells_of(shown, rows, glyphs)
    # A column of which nothing is known only takes room.
    keep = [
        not (rows or column.seldom)
        or bool({line[at].text for line in cells} - {"", NOT_KNOWN if column.live else ""})
        for at, column in enumerate(shown)
    ]
    console = stdout_console()
    kept = [[*compress(line, keep)] for line in cells]
    for line in table_lines([*compress(shown, keep)], kept, margin=""):
        line.rstrip()
        console.print(line, overflow="ellipsis")
