"""``gpupool kill``: end a lease now."""

import click

from gpupool.cli.lib.common_options import pool_options
from gpupool.cli.lib.connect import connected, run_async
from gpupool.cli.lib.output import say
from gpupool.cli.lib.values import Parsed, parse_lease
from gpupool.pool.model.ids import LeaseId, lease_name


@click.command()
@click.argument("lease", type=Parsed("lease", parse_lease))
@click.option("--reason", default="ended by order", show_default=True, help="Its owner sees it.")
@pool_options
def command(credentials: str | None, lease: int, reason: str) -> None:
    """End LEASE now: its workers are killed, its memory is free again.

    Users end their own leases, operators any.
    """

    async def end() -> None:
        async with connected(credentials) as pool:
            await pool.end_lease(LeaseId(lease), reason)

    run_async(end)
    say(f"gpupool: lease {lease_name(LeaseId(lease))} is ending")
