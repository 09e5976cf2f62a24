"""``gpupool gpus``: every GPU of the pool with its books and what it measures."""

import click

from gpupool.cli.listing import look_once, print_table, view_options
from gpupool.cli.output import print_json
from gpupool.cli.tables import GPU_COLUMNS, Look, gpu_rows


@click.command()
@view_options
def command(credentials: str | None, wide: bool, in_ascii: bool, as_json: bool) -> None:
    """List every GPU with what is granted, free and measured."""
    seen = look_once(credentials)
    rows = gpu_rows(seen)
    if as_json:
        gpus = [
            {
                "server": r.server.server.name,
                "state": r.state,
                "gpu": r.gpu,
                "telemetry": r.telemetry,
            }
            for r in rows
        ]
        print_json(gpus=gpus)
        return
    print_table(GPU_COLUMNS, rows, wide=wide, look=Look(ascii=in_ascii), live=True)
