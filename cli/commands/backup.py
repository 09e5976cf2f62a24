"""``gpupool backup``: what people have decided about the pool, in one file."""

import sys
from pathlib import Path

import click

from gpupool.cli.lib.common_options import pool_options
from gpupool.cli.lib.connect import connected, run_async
from gpupool.cli.lib.output import say


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@pool_options
def command(credentials: str | None, file: str) -> None:
    """Write policy, tokens, labels, history and audit of the pool to FILE.

    Of tokens the pool has hashes only, and so has the backup. The key of the cluster CA is not in
    it: copy ca.pem and ca.key from a server's state directory to a safe place, once. An existing
    FILE is replaced once the new one is complete; "-" is standard output. Operators only.
    """
    from gpupool.cli.lib.files import write_private

    async def ask() -> bytes:
        async with connected(credentials) as pool:
            return await pool.backup()

    data = run_async(ask)
    if file == "-":
        sys.stdout.buffer.write(data)
        return
    write_private(Path(file), data)
    say(f"gpupool: {len(data) / 1024:.0f} KiB written to {file}")
