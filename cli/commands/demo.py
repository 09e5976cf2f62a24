"""``gpupool demo``: a whole pool on this machine, told step by step."""

import click

from gpupool.cli.lib.common_options import verbose_option


@click.command()
@click.option("--keep", is_flag=True, help="Leave the pool running, and say how to use it.")
@click.option("--no-color", is_flag=True, help="Plain text.")
@verbose_option
def command(keep: bool, no_color: bool) -> int:
    """See it all work on this machine, without any GPU, in half a minute.

    Three servers with emulated GPUs start on loopback, with everything they write in a temporary
    folder. A program runs on two half GPUs, the leading server is killed, and the same program
    runs again. At the end everything is removed.
    """
    from gpupool.cli.server.demonstration import Demonstration

    return Demonstration(keep=keep, color=not no_color).run()
