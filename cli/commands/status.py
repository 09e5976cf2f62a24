"""``gpupool status``: servers, GPUs, leases and the health of the pool, at one moment."""

import click

from gpupool.cli.lib.columns import (
    LEASE_COLUMNS,
    SERVER_COLUMNS,
    Look,
    Seen,
    lease_rows,
    server_rows,
    waiting_rows,
)
from gpupool.cli.lib.listing import look_once, print_table, view_options
from gpupool.cli.lib.output import print_json, stdout_console
from gpupool.cli.lib.values import size_text
from gpupool.cli.tui.screen import gpu_counts, quorum_counts
from gpupool.pool.errors import ExitCode


def problems(seen: Seen) -> list[str]:
    """Return what is wrong with the pool; empty when it is healthy."""
    found: list[str] = []
    if not seen.view.raft.quorum:
        found.append(f"server {seen.view.answered_by} is not in touch with a majority")
    for row in server_rows(seen):
        if row.server.state == "down":
            found.append(f"server {row.server.name} is down: {row.server.reason}")
        elif row.stale:
            found.append(f"server {row.server.name} does not answer")
    return found


@click.command()
@view_options
def command(credentials: str | None, wide: bool, in_ascii: bool, as_json: bool) -> int:
    """Show servers, GPUs, leases and the health of the pool.

    Exits with 3 when the pool answers and is not healthy: no quorum, or a server is down.
    """
    seen = look_once(credentials)
    wrong = problems(seen)
    code = ExitCode.UNHEALTHY if wrong else ExitCode.DONE
    if as_json:
        print_json(pool=seen.view, telemetry=list(seen.telemetry.values()), problems=wrong)
        return code
    look = Look(ascii=in_ascii)
    _print_summary(seen)
    print_table(SERVER_COLUMNS, server_rows(seen), wide=wide, look=look)
    leases = [*lease_rows(seen), *waiting_rows(seen)]
    if leases:
        stdout_console().print()
        print_table(LEASE_COLUMNS, leases, wide=wide, look=look)
    return code


def _print_summary(seen: Seen) -> None:
    from rich.text import Text

    view = seen.view
    console = stdout_console()
    reached, voters = quorum_counts(view)
    used, idle, other, total = gpu_counts(view)
    gpus = [gpu for server in view.servers for gpu in server.gpus]
    granted, capacity = sum(g.memory_granted for g in gpus), sum(g.capacity for g in gpus)
    answered = next((s.name for s in view.servers if s.id == view.answered_by), view.answered_by)
    first = Text.assemble(
        (f"pool {view.name}", "bold"),
        f", leader {view.raft.leader or 'none'}, term {view.raft.term}, ",
        (f"quorum {reached}/{voters}", "" if view.raft.quorum else "bold red"),
        f", policy v{view.policy_version}" if view.policy_version else "",
        f", as seen by {answered}",
    )
    console.print(first)
    console.print(
        f"GPUs {used} used, {idle} idle, {other} other, {total} in all; "
        f"memory {size_text(granted)} of {size_text(capacity)} granted; "
        f"leases {len(view.leases)}, waiting {len(view.waiting)}"
    )
    for warning in view.warnings:
        console.print(Text(f"! {warning}", "bold red" if not view.raft.quorum else "yellow"))
    console.print()
