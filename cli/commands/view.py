"""Commands that show the pool: ``status``, ``gpus``, ``leases`` and ``top``."""

import os
import sys

import click

from gpupool.cli.lib.columns import GPU_COLUMNS, LEASE_COLUMNS, SERVER_COLUMNS, Glyphs
from gpupool.cli.lib.listing import fetch_snapshot, print_table, view_options
from gpupool.cli.lib.options import DURATION, FILTER
from gpupool.cli.lib.output import print_json, stdout_console
from gpupool.pool.errors import ExitCode, StorageError, UsageError
from gpupool.pool.model.plain import to_plain
from gpupool.pool.model.state import Filter
from gpupool.pool.read_model.pool_snapshot import PoolSnapshot
from gpupool.pool.scheduling.filters import filter_text, first_mismatch
from gpupool.pool.values import size_text
from gpupool.pool.view import ALARM
from gpupool.remoting.local.terminal import say

INTERVAL_MIN_S = 0.1
SVG_WIDTH, SVG_HEIGHT = 150, 34


def problems(snapshot: PoolSnapshot) -> list[str]:
    """Return the problems of the pool; empty when it is healthy."""
    found: list[str] = []
    if not snapshot.view.raft.quorum:
        found.append(f"server {snapshot.answered_by} is not in touch with a majority")
    found += [w.removeprefix(ALARM) for w in snapshot.view.warnings if w.startswith(ALARM)]
    for row in snapshot.servers:
        if row.server.state == "down":
            found.append(f"server {row.server.name} is down: {row.reason}")
        elif row.unreachable:
            why = f": {row.other_version}" if row.other_version else ""
            found.append(f"server {row.server.name} does not answer{why}")
    if snapshot.view.clock is not None:
        found += snapshot.view.clock.problems
    return found


def _glyphs(in_ascii: bool) -> Glyphs:
    """Return the characters that are asked for, and that standard output can write."""
    utf = (getattr(sys.stdout, "encoding", "") or "").lower().startswith("utf")
    return Glyphs(ascii=in_ascii or not utf, blocks=os.environ.get("TERM") == "linux")


@click.command()
@view_options
def status(credentials: str | None, wide: bool, in_ascii: bool, as_json: bool) -> int:
    """Show servers, GPUs, leases and the health of the pool.

    Exits with 3 when the pool answers and is not healthy: no quorum, a server is down, a voter
    does not count, or something is wrong with the time.
    """
    snapshot = fetch_snapshot(credentials)
    wrong = problems(snapshot)
    code = ExitCode.UNHEALTHY if wrong else ExitCode.DONE
    if as_json:
        print_json(pool=snapshot.view, telemetry=list(snapshot.telemetry.values()), problems=wrong)
        return code
    glyphs = _glyphs(in_ascii)
    _print_summary(snapshot)
    _print_lists(snapshot, wide=wide, glyphs=glyphs)
    return code


def _print_lists(snapshot: PoolSnapshot, *, wide: bool, glyphs: Glyphs, live: bool = False) -> None:
    print_table(SERVER_COLUMNS, snapshot.servers, wide=wide, glyphs=glyphs, live=live)
    if snapshot.all_leases:
        click.echo()
        print_table(LEASE_COLUMNS, snapshot.all_leases, wide=wide, glyphs=glyphs)


def _print_summary(snapshot: PoolSnapshot) -> None:
    from rich.text import Text

    view, sums = snapshot.view, snapshot.sums
    console = stdout_console()
    reached, voters = view.raft.reached(view.answered_by), len(view.raft.voters)
    first = Text.assemble(
        (f"pool {view.name}", "bold"),
        f", leader {view.raft.leader or 'none'}, term {view.raft.term}, ",
        (f"quorum {reached}/{voters}", "" if view.raft.quorum else "bold red"),
        f", policy v{view.policy_version}" if view.policy_version else "",
        f", as seen by {snapshot.answered_by}",
    )
    console.print(first)
    console.print(
        f"GPUs {sums.counts_text()}; "
        f"memory {size_text(sums.granted)} of {size_text(sums.capacity)} granted; "
        f"leases {len(view.leases)}, waiting {len(view.waiting)}"
    )
    for warning in view.warnings:
        bad = not view.raft.quorum or warning.startswith(ALARM)
        console.print(Text(f"! {warning}", "bold red" if bad else "yellow"))
    console.print()


@click.command()
@click.option(
    "--filter",
    "filters",
    type=FILTER,
    multiple=True,
    metavar="'KEY OP VALUE'",
    help="Only GPUs like this; repeatable, all must hold.",
)
@view_options
def gpus(
    credentials: str | None,
    filters: tuple[Filter, ...],
    wide: bool,
    in_ascii: bool,
    as_json: bool,
) -> None:
    r"""List every GPU with its granted and free memory and its measurements.

    \b
    --filter takes what "gpupool run --filter" takes, and shows what would match:
      gpupool gpus --filter 'gpu.memory >= 40GiB' --filter 'server.labels.rack = r3,r4'

    \b
    Keys: server.name, server.addr (10.0.0.0/8), server.labels.NAME, gpu.name, gpu.memory,
    gpu.compute_capability, gpu.uuid, driver.version, cuda.version, link.speed (Mbit/s or 25G),
    rdma (yes, no). Operators: = != < <= > >=. Text may have * and ?; = and != take lists.
    """
    snapshot = fetch_snapshot(credentials)
    rows = [r for r in snapshot.gpus if first_mismatch(filters, r.server.server, r.gpu) is None]
    if as_json:
        gpus = [
            {
                "server": r.server.server.name,
                "labels": r.server.server.labels,
                "state": r.state,
                "gpu": r.gpu,
                "telemetry": r.telemetry,
            }
            for r in rows
        ]
        print_json(gpus=gpus)
        return
    if filters and not rows:
        say(f"gpupool: no GPU matches {' and '.join(filter_text(each) for each in filters)}")
        return
    print_table(GPU_COLUMNS, rows, wide=wide, glyphs=_glyphs(in_ascii), live=True)


@click.command()
@click.option("--waiting", "only_waiting", is_flag=True, help="Only requests that wait.")
@view_options
def leases(
    credentials: str | None, wide: bool, in_ascii: bool, as_json: bool, only_waiting: bool
) -> None:
    """List leases, then requests that wait, in the order of service."""
    snapshot = fetch_snapshot(credentials)
    if as_json:
        print_json(**leases_body(snapshot, held=not only_waiting))
        return
    rows = snapshot.requests if only_waiting else snapshot.all_leases
    print_table(LEASE_COLUMNS, rows, wide=wide, glyphs=_glyphs(in_ascii))


def leases_body(snapshot: PoolSnapshot, *, held: bool = True) -> dict[str, object]:
    """Return the body of ``leases --json``: each lease's view and its row's additions."""
    rows = snapshot.leases if held else []
    return {
        "leases": [
            {**to_plain(row.source), "not_suspendable": row.not_suspendable} for row in rows
        ],
        "waiting": snapshot.view.waiting,
        "shares": {
            row.id: {"due": row.figures.share_due, "got": row.figures.share_got}
            for row in rows
            if row.figures.share_due is not None
        },
        "free_in_s": snapshot.starts_by_s,
    }


@click.command()
@click.option(
    "--interval",
    type=DURATION,
    default="500ms",
    show_default=True,
    help="Time between two looks at the pool, as far as possible.",
)
@click.option("--readonly", is_flag=True, help="Without the keys that change the pool.")
@click.option(
    "--export-svg",
    type=click.Path(dir_okay=False, writable=True),
    help="Write one frame as a picture, after looking for two intervals, and exit.",
)
@view_options
def top(
    credentials: str | None,
    wide: bool,
    in_ascii: bool,
    as_json: bool,
    interval: float,
    readonly: bool,
    export_svg: str | None,
) -> int | None:
    """Watch the pool: servers, GPUs, leases and waiting requests. "?" shows the keys.

    On a pipe it prints one plain table and exits.
    """
    if interval < INTERVAL_MIN_S:
        raise UsageError(f"--interval is at least {INTERVAL_MIN_S:g} s", hint="give 500ms or more")
    glyphs = _glyphs(in_ascii)
    # A dumb terminal, as in Emacs, moves no cursor.
    live = sys.stdout.isatty() and sys.stdin.isatty() and os.environ.get("TERM") != "dumb"
    if as_json:
        snapshot = fetch_snapshot(credentials)
        print_json(pool=snapshot.view, telemetry=list(snapshot.telemetry.values()))
        return None
    if export_svg is not None:
        _export(credentials, export_svg, interval, glyphs)
        return None
    if not live:
        _print_lists(fetch_snapshot(credentials), wide=wide, glyphs=glyphs, live=True)
        return None
    from gpupool.cli.tui.live_view import Options, watch

    return watch(credentials, glyphs, Options(wide, interval, readonly))


def _export(credentials: str | None, path: str, interval_s: float, glyphs: Glyphs) -> None:
    from gpupool.cli.tui.live_view import picture

    svg = picture(credentials, glyphs, interval_s, width=SVG_WIDTH, height=SVG_HEIGHT)
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(svg)
    except OSError as error:
        raise StorageError(
            f"cannot write {path}", why=(error.strerror or str(error)).lower()
        ) from error
