"""``gpupool run``: GPUs for exactly as long as one program runs."""

from functools import partial
from typing import TypeVar

import click
from click.core import ParameterSource

from gpupool.cli.completion import SERVER_NAME
from gpupool.cli.options import pool_options
from gpupool.cli.output import invocation
from gpupool.cli.values import COUNT, DURATION, FRACTION, PAIR, SIZE_TYPE
from gpupool.pool.errors import UsageError

A = TypeVar("A")
B = TypeVar("B")


@click.command(
    context_settings={"allow_interspersed_args": False}, options_metavar="[OPTIONS] [--]"
)
@click.option(
    "-n", "--count", type=COUNT, default=1, show_default=True, help="Number of separate GPUs."
)
@click.option("-p", "--fraction", type=FRACTION, help="Share of each GPU's memory, such as 0.25.")
@click.option("-m", "--memory", type=SIZE_TYPE, help="Memory on each GPU instead, such as 20G.")
@click.option("--wait", type=DURATION, help="Longest wait for free GPUs (default: no limit).")
@click.option("--no-wait", is_flag=True, help="Exit with 75 when no GPU is free now.")
@click.option("--server", type=SERVER_NAME, multiple=True, help="Only this server; repeatable.")
@click.option(
    "--door",
    type=click.Choice(["auto", "arrays", "cuda"]),
    default="auto",
    show_default=True,
    help="How the program reaches its GPUs; arrays: a drop-in cupy, even where CuPy is installed; "
    "cuda: any CUDA program, on the GPUs of one server.",
)
@click.option("--env", type=PAIR, multiple=True, help="Variable for the program; repeatable.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing of our own but errors.")
@pool_options
@click.argument("program", nargs=-1, type=click.UNPROCESSED, required=True)
@click.pass_context
def command(
    ctx: click.Context,
    credentials: str | None,
    program: tuple[str, ...],
    count: int,
    fraction: float | None,
    memory: int | None,
    wait: float | None,
    no_wait: bool,
    server: tuple[str, ...],
    door: str,
    env: tuple[tuple[str, str], ...],
    quiet: bool,
) -> int:
    r"""Run PROGRAM on GPUs of the pool, for as long as it runs.

    \b
      gpupool run -- python train.py                  one whole GPU
      gpupool run -n 2 -p 0.5 -- python train.py      half of each of two GPUs
      gpupool run -m 20G --wait 10m -- python t.py    20 GiB of one; wait at most 10 minutes
      gpupool run -- bash                             a shell that has a GPU

    Everything behind PROGRAM belongs to it. stdin, stdout and the terminal are the program's own,
    signals reach it, and its exit code is passed on. 75: no GPU was free and told not to wait;
    125: gpupool failed; 126: PROGRAM cannot be executed; 127: it was not found.
    """
    fraction, memory = _one_of(ctx, ("fraction", fraction), ("memory", memory))
    wait, no_wait_given = _one_of(ctx, ("wait", wait), ("no_wait", no_wait or None))
    from gpupool.cli.connect import run_async
    from gpupool.cli.running import RunOptions, run_program

    options = RunOptions(
        arguments=program,
        count=count,
        fraction=0.0 if memory else fraction or 1.0,
        memory=memory or 0,
        wait_s=0.0 if no_wait_given else wait,
        servers=server,
        door=door,
        env=env,
        quiet=quiet,
        verbose=invocation().verbose,
        credentials=credentials,
    )
    ending = run_async(partial(run_program, options))
    if ending.signal:
        from gpupool.cli.exits import die_of

        die_of(ending.signal)
    return ending.code


def _one_of(
    ctx: click.Context, first: tuple[str, A | None], second: tuple[str, B | None]
) -> tuple[A | None, B | None]:
    """Return the one of two options that counts: a flag beats what files and environment say."""
    if first[1] is None or second[1] is None:
        return first[1], second[1]
    given = [
        ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        for name in (first[0], second[0])
    ]
    if given == [False, True]:
        return None, second[1]
    if given == [True, False]:
        return first[1], None
    names = [f"--{name.replace('_', '-')}" for name in (first[0], second[0])]
    raise UsageError(f"{names[0]} and {names[1]} exclude each other", hint="give one of them")
