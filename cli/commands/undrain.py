"""``gpupool undrain``: grant on a drained server again."""

import click

from gpupool.cli.lib.common_options import pool_options
from gpupool.cli.lib.completion_names import SERVER_NAME
from gpupool.cli.lib.connect import connected, run_async
from gpupool.cli.lib.output import say


@click.command()
@click.argument("server", type=SERVER_NAME)
@pool_options
def command(credentials: str | None, server: str) -> None:
    """Grant on a drained SERVER again."""

    async def undrain() -> bool:
        async with connected(credentials) as pool:
            return await pool.undrain(server)

    was_drained = run_async(undrain)
    say(f"gpupool: {server} {'takes leases again' if was_drained else 'is not drained'}")
