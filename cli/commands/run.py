"""``gpupool run``: GPUs for exactly as long as one program runs."""

from functools import partial

import click

from gpupool.cli.lib.common_options import pool_options
from gpupool.cli.lib.output import invocation
from gpupool.cli.lib.values import PAIR, Parsed, parse_lease
from gpupool.cli.run.request_options import Wanted, forbid_requests, request_options
from gpupool.pool.model.ids import LeaseId, lease_name


@click.command(
    context_settings={"allow_interspersed_args": False}, options_metavar="[OPTIONS] [--]"
)
@request_options
@click.option(
    "--lease",
    type=Parsed("lease", parse_lease),
    help='Use this lease, which "gpupool alloc" holds, and ask for nothing.',
)
@click.option(
    "--lazy", is_flag=True, help="Ask for GPUs when the program first uses one; wait there."
)
@click.option(
    "--door",
    type=click.Choice(["auto", "arrays", "cuda"]),
    default="auto",
    show_default=True,
    help="How the program reaches its GPUs; arrays: a drop-in cupy, even where CuPy is installed; "
    "cuda: any CUDA program.",
)
@click.option("--env", type=PAIR, multiple=True, help="Variable for the program; repeatable.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing of our own but errors.")
@pool_options
@click.argument("program", nargs=-1, type=click.UNPROCESSED, required=True)
@click.pass_context
def command(
    ctx: click.Context,
    wanted: Wanted,
    credentials: str | None,
    program: tuple[str, ...],
    lease: int | None,
    lazy: bool,
    door: str,
    env: tuple[tuple[str, str], ...],
    quiet: bool,
) -> int:
    r"""Run PROGRAM on GPUs of the pool, for as long as it runs.

    \b
      gpupool run -- python train.py                  one whole GPU
      gpupool run -n 2 -p 0.5 -- python train.py      half of each of two GPUs
      gpupool run -m 20G --wait 10m -- python t.py    20 GiB of one; wait at most 10 minutes
      gpupool run --filter 'gpu.name=H200,H100' -- python train.py
      gpupool run --lease 7f3a -- python train.py     on GPUs held by "gpupool alloc"

    Everything behind PROGRAM belongs to it. stdin, stdout and the terminal are the program's own,
    signals reach it, and its exit code is passed on. 75: no GPU was free and told not to wait;
    125: gpupool failed; 126: PROGRAM cannot be executed; 127: it was not found.
    """
    from gpupool.cli.lib.connect import run_async
    from gpupool.cli.run.program_run import RunOptions, run_program

    options = RunOptions(
        arguments=program,
        wanted=wanted,
        door=door,
        env=env,
        quiet=quiet,
        verbose=invocation().verbose,
        credentials=credentials,
        lease=lease_name(LeaseId(lease)) if lease else "",
        lazy=lazy and not lease,
    )
    if lease:
        forbid_requests(ctx, "--lease")
    ending = run_async(partial(run_program, options))
    if ending.signal:
        from gpupool.cli.lib.exits import die_of

        die_of(ending.signal)
    return ending.code
