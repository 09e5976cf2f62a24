"""``gpupool alloc``: hold GPUs for several programs, independently of this shell."""

import os
from functools import partial

import click

from gpupool.cli.lib.common_options import json_option, pool_options
from gpupool.cli.lib.output import invocation, print_json, say
from gpupool.cli.lib.values import DURATION
from gpupool.cli.run.request_options import Wanted, request_options
from gpupool.pool.errors import UsageError


@click.command()
@request_options
@click.option("--time", "time_s", type=DURATION, help="Give it back after so long, such as 8h.")
@click.option("-q", "--quiet", is_flag=True, help="Print the lease, and nothing else but errors.")
@json_option
@pool_options
def command(
    wanted: Wanted, credentials: str | None, time_s: float | None, quiet: bool, as_json: bool
) -> None:
    r"""Hold GPUs until they are released, and print the lease.

    \b
      lease=$(gpupool alloc -n 1 -p 0.5)
      gpupool run --lease $lease -- python train.py
      gpupool run --lease $lease -- python evaluate.py
      gpupool release $lease

    A process in the background holds the lease: it survives this shell, but not this machine. Any
    number of programs may use the lease, at once too; they share its memory. The lease ends by
    "gpupool release", after --time, or when nobody uses it for its idle timeout.
    """
    if time_s is not None and time_s < 1:
        raise UsageError("--time is at least 1s", hint="without it, the lease lasts until released")
    from gpupool.cli.lib.connect import run_async
    from gpupool.cli.run.holder_startup import start_holder
    from gpupool.cli.run.program_run import ends_text

    # The holder lives in another folder.
    files = [os.path.abspath(each) if each else None for each in (credentials, _log_file())]
    record = run_async(
        partial(
            start_holder,
            wanted,
            time_s=time_s or 0.0,
            credentials=files[0],
            log_file=files[1],
            shown=not quiet and not as_json,
        )
    )
    if as_json:
        print_json(
            lease=record.lease,
            pool=record.pool,
            user=record.user,
            text=record.text,
            servers=record.servers,
            idle_timeout_s=record.idle_timeout_s,
            time_s=record.time_s,
            time_left_s=record.time_left_s,
            pid=record.pid,
        )
        return
    click.echo(record.lease)
    if quiet:
        return
    ends = ends_text(record.idle_timeout_s, record.time_left_s, record.time_s)
    say(f"gpupool: {record.text}{ends}")
    say(f"  use it:       gpupool run --lease {record.lease} -- PROGRAM")
    say(f"  give it back: gpupool release {record.lease}")


def _log_file() -> str | None:
    return invocation().log_file
