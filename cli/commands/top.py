"""``gpupool top``: the pool, live; on a pipe, one plain table."""

import sys

import click

from gpupool.cli.lib.columns import (
    LEASE_COLUMNS,
    SERVER_COLUMNS,
    Look,
    lease_rows,
    server_rows,
    waiting_rows,
)
from gpupool.cli.lib.listing import look_once, print_table, view_options
from gpupool.cli.lib.output import print_json
from gpupool.cli.lib.values import DURATION
from gpupool.pool.errors import StorageError

SVG_WIDTH, SVG_HEIGHT = 130, 34


@click.command()
@click.option("--once", is_flag=True, help="Print one frame and exit.")
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
def command(
    credentials: str | None,
    wide: bool,
    in_ascii: bool,
    as_json: bool,
    once: bool,
    interval: float,
    readonly: bool,
    export_svg: str | None,
) -> int | None:
    """Watch the pool: servers, GPUs, leases, who waits for what. "?" shows the keys.

    On a pipe it prints one plain table and exits.
    """
    look = Look(ascii=in_ascii)
    if as_json:
        seen = look_once(credentials)
        print_json(pool=seen.view, telemetry=list(seen.telemetry.values()))
        return None
    if export_svg is not None:
        _export(credentials, export_svg, interval, look)
        return None
    if once and sys.stdout.isatty():
        from gpupool.cli.tui.live_view import print_frame

        print_frame(look_once(credentials), look, wide=wide)
        return None
    if once or not sys.stdout.isatty() or not sys.stdin.isatty():
        seen = look_once(credentials)
        print_table(SERVER_COLUMNS, server_rows(seen), wide=wide, look=look, live=True)
        leases = [*lease_rows(seen), *waiting_rows(seen)]
        if leases:
            click.echo()
            print_table(LEASE_COLUMNS, leases, wide=wide, look=look, live=False)
        return None
    from gpupool.cli.tui.live_view import watch

    return watch(credentials, look, wide=wide, interval_s=interval, readonly=readonly)


def _export(credentials: str | None, path: str, interval_s: float, look: Look) -> None:
    from gpupool.cli.tui.live_view import picture

    svg = picture(credentials, look, interval_s, width=SVG_WIDTH, height=SVG_HEIGHT)
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(svg)
    except OSError as error:
        raise StorageError(
            f"cannot write {path}", why=(error.strerror or str(error)).lower()
        ) from error
