"""``gpupool gpus``: every GPU of the pool with its books and what it measures."""

import click

from gpupool.cli.lib.columns import GPU_COLUMNS, Look, gpu_rows
from gpupool.cli.lib.listing import look_once, print_table, view_options
from gpupool.cli.lib.output import print_json, say
from gpupool.cli.lib.values import FILTER
from gpupool.pool.model.state import Filter
from gpupool.pool.scheduling.filters import filter_text, first_mismatch


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
def command(
    credentials: str | None,
    filters: tuple[Filter, ...],
    wide: bool,
    in_ascii: bool,
    as_json: bool,
) -> None:
    r"""List every GPU with what is granted, free and measured.

    \b
    --filter takes what "gpupool run --filter" takes, and shows what would match:
      gpupool gpus --filter 'gpu.memory >= 40GiB' --filter 'server.labels.rack = r3,r4'

    \b
    Keys: server.name, server.addr (10.0.0.0/8), server.labels.NAME, gpu.name, gpu.memory,
    gpu.compute_capability, gpu.uuid, driver.version, cuda.version, link.speed (Mbit/s or 25G),
    rdma (yes, no). Operators: = != < <= > >=. Text may have * and ?; = and != take lists.
    """
    seen = look_once(credentials)
    rows = [r for r in gpu_rows(seen) if first_mismatch(filters, r.server.server, r.gpu) is None]
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
    print_table(GPU_COLUMNS, rows, wide=wide, look=Look(ascii=in_ascii), live=True)
