"""``gpupool drain``: stop granting on a server while what runs there goes on."""

import click

from gpupool.cli.lib.common_options import pool_options
from gpupool.cli.lib.completion_names import SERVER_NAME
from gpupool.cli.lib.connect import connected, run_async
from gpupool.cli.lib.output import say
from gpupool.pool.errors import UsageError


@click.command()
@click.argument("server", type=SERVER_NAME)
@click.option("--reason", required=True, help="Why; everybody who looks at the pool sees it.")
@pool_options
def command(credentials: str | None, server: str, reason: str) -> None:
    """Stop granting on SERVER; what runs there goes on."""
    if not reason.strip():
        raise UsageError("a drain needs a reason", hint='--reason "new fan"')

    async def drain() -> None:
        async with connected(credentials) as pool:
            await pool.drain(server, reason)

    run_async(drain)
    say(f"gpupool: {server} is drained; what runs there goes on")
