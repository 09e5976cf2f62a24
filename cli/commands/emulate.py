"""The command ``emulate``: a program of CuPy on emulated GPUs, without a pool."""

import click

from gpupool.cli.lib.options import COUNT, PARTITION, verbose_option
from gpupool.cli.lib.output import invocation
from gpupool.remoting.local.terminal import say


@click.command(
    context_settings={"allow_interspersed_args": False}, options_metavar="[OPTIONS] [--]"
)
@click.option(
    "-n", "--gpus", type=COUNT, default=1, show_default=True, help="Number of emulated GPUs."
)
@click.option(
    "-m", "--memory", type=PARTITION, default="4G", show_default=True, help="Memory of each."
)
@click.option("--strict", is_flag=True, help="Find errors that a real GPU hides; slower.")
@verbose_option
@click.argument("program", nargs=-1, type=click.UNPROCESSED, required=True)
def command(gpus: int, memory: int, strict: bool, program: tuple[str, ...]) -> None:
    r"""Run PROGRAM with a cupy that computes on this machine, without a GPU or a pool.

    \b
      gpupool emulate -- pytest                          the tests of a library on CuPy
      gpupool emulate -n 2 -m 1G -- python train.py      two GPUs of 1 GiB
      gpupool emulate --strict -- pytest tests           out of bounds, races, unset memory

    PROGRAM takes this command's place: input, output, signals and exit code are its own. Its
    children have GPUs, too. 125: gpupool failed; 126: PROGRAM cannot be executed; 127: it was not
    found. Kernels from source need a C++ compiler such as g++.
    """
    from gpupool.remoting.program.door_choice import ignored_path
    from gpupool.remoting.program.emulation import Emulation, become

    if warning := ignored_path(program):
        say(f"gpupool: {warning}")
    become(Emulation(gpus, memory, strict=strict, verbose=invocation().verbose), program)
