"""``gpupool label``: what filters and people know a server by."""

import click

from gpupool.cli.lib.common_options import pool_options
from gpupool.cli.lib.completion_names import SERVER_NAME
from gpupool.cli.lib.connect import connected, run_async
from gpupool.cli.lib.output import say, stdout_console
from gpupool.cli.lib.values import parse_label
from gpupool.pool.errors import UsageError


@click.command()
@click.argument("server", type=SERVER_NAME)
@click.argument("changes", nargs=-1, metavar="[NAME=VALUE|NAME-]...")
@pool_options
def command(credentials: str | None, server: str, changes: tuple[str, ...]) -> None:
    r"""Set labels of SERVER, take some away, or show them.

    \b
      gpupool label gpu-a rack=r3 owner=physics
      gpupool label gpu-a owner-
      gpupool run --filter 'server.labels.rack = r3' -- python train.py
    """
    labels, without = _parse(changes)

    async def change() -> None:
        async with connected(credentials) as pool:
            await pool.label(server, labels, without)

    async def show() -> dict[str, str]:
        async with connected(credentials) as pool:
            for each in (await pool.view()).servers:
                if server in (each.name, each.id):
                    return each.labels
        raise UsageError(f"the pool has no server named {server}")

    if changes:
        run_async(change)
        say(f"gpupool: {server}: {' '.join(changes)}")
        return
    found = run_async(show)
    if not found:
        say(f"gpupool: {server} has no labels")
    for name, value in sorted(found.items()):
        stdout_console().print(f"{name}={value}", markup=False, highlight=False, soft_wrap=True)


def _parse(changes: tuple[str, ...]) -> tuple[dict[str, str], tuple[str, ...]]:
    labels: dict[str, str] = {}
    without: list[str] = []
    for change in changes:
        if "=" not in change and change.endswith("-") and len(change) > 1:
            without.append(change[:-1])
            continue
        try:
            name, value = parse_label(change)
        except ValueError as error:
            hint = "write NAME=VALUE to set a label, NAME- to take it away"
            raise UsageError(str(error), hint=hint) from error
        labels[name] = value
    if both := labels.keys() & set(without):
        raise UsageError(f"{min(both)} is both set and taken away")
    return labels, tuple(dict.fromkeys(without))
