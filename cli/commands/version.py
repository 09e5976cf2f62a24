"""``gpupool version``: the version of this installation."""

import click

from gpupool import __version__
from gpupool.cli.lib.common_options import json_option
from gpupool.cli.lib.output import print_json


@click.command()
@json_option
def command(as_json: bool) -> None:
    """Print the version."""
    if as_json:
        print_json(version=__version__)
    else:
        click.echo(f"gpupool {__version__}")
