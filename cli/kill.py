"""``gpupool kill``: end a lease now."""

import click

from gpupool.cli.connect import connected, run_async
from gpupool.cli.options import pool_options
from gpupool.cli.output import say
from gpupool.cli.values import Parsed
from gpupool.pool.ids import LeaseId, lease_name


def parse_lease(text: str) -> int:
    """Return the lease that a name such as ``7f3a`` stands for."""
    try:
        number = int(text, 16)
    except ValueError:
        number = -1
    if not 0 < number < 1 << 63:
        raise ValueError(f"{text!r} is not the name of a lease, such as 7f3a")
    return number


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
