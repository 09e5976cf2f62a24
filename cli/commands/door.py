"""``gpupool door``: what the array door covers, and what it does not yet."""

import subprocess

import click

from gpupool.cli.lib.common_options import json_option
from gpupool.cli.lib.output import print_json
from gpupool.cli.run.door_choice import dropin_dir
from gpupool.pool.errors import GpupoolError


@click.command()
@click.option("--missing", is_flag=True, help="List what CuPy has and the drop-in does not yet.")
@json_option
def command(missing: bool, as_json: bool) -> None:
    """Show where the drop-in cupy lies, or with --missing what it does not cover yet."""
    folder = dropin_dir()
    if not (folder / "cupy").is_dir():
        raise GpupoolError("this installation has no drop-in cupy", why=f"no {folder / 'cupy'}")
    if not missing:
        if as_json:
            print_json(door="arrays", path=str(folder))
        else:
            click.echo(folder)
        return
    names = _missing_names()
    if as_json:
        print_json(missing=names)
        return
    for name in names:
        click.echo(name)


def _missing_names() -> list[str]:
    from gpupool.remoting.array_api.surface import missing

    try:
        return missing()
    except subprocess.CalledProcessError as error:
        why = str(error.stderr).strip().rpartition("\n")[2]
        raise GpupoolError("the drop-in cupy cannot be imported", why=why) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GpupoolError("the drop-in cupy cannot be imported", why=str(error)) from error
