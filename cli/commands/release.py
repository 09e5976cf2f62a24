"""``gpupool release``: give a held lease back."""

import click

from gpupool.cli.lib.common_options import pool_options
from gpupool.cli.lib.connect import connected, run_async
from gpupool.cli.lib.output import say
from gpupool.cli.lib.values import Parsed, parse_lease
from gpupool.pool.errors import DeniedError, GpupoolError, UsageError
from gpupool.pool.model.ids import LeaseId, lease_name


@click.command()
@click.argument("leases", metavar="[LEASE]...", nargs=-1, type=Parsed("lease", parse_lease))
@click.option("--all", "every", is_flag=True, help="All that are held on this machine by you.")
@pool_options
def command(credentials: str | None, leases: tuple[int, ...], every: bool) -> None:
    """Give LEASE back, which "gpupool alloc" holds; programs that use it lose it.

    A lease of yours that is held on another machine is ended as well.
    """
    if bool(leases) == every:
        raise UsageError(
            "which lease is to be released?" if not every else "--all releases all leases",
            hint='give its name, or --all; "gpupool leases" lists them',
        )
    from gpupool.cli.run.held_leases import held_leases
    from gpupool.cli.run.lease_source import is_own

    names = [lease_name(LeaseId(lease)) for lease in leases]
    if every:
        names = [
            found.record.lease
            for found in held_leases()
            if not found.why_over and is_own(found.record, credentials)
        ]
        if not names:
            say("gpupool: no lease is held on this machine")

    async def release_all() -> None:
        failures: list[GpupoolError] = []
        for name in names:
            try:
                say(f"gpupool: {await release(name, credentials)}")
            except GpupoolError as error:
                failures.append(error)
        for error in failures[1:]:
            say(f"gpupool: {error}")
        if failures:
            raise failures[0]

    run_async(release_all)


async def release(name: str, credentials: str | None) -> str:
    """Release one lease, and return what became of it.

    Raises:
        GpupoolError: when there is no such lease, or it is not ours.
    """
    from gpupool.cli.run.held_leases import release_held
    from gpupool.cli.run.lease_source import own_held

    found = own_held(name, credentials)
    if found is not None and not found.why_over:
        users = await release_held(found.record)
        programs = f"; {users} program{'s' if users > 1 else ''} used it" if users else ""
        return f"lease {name} is released{programs}"
    if found is not None and found.record.ended:
        return f"lease {name} has ended already: {found.record.ended}"
    async with connected(credentials) as pool:
        lease = next((each for each in (await pool.view()).leases if each.name == name), None)
        if lease is not None and lease.user != pool.credentials.user:
            # An operator's token would end it: what is another's is not released by a slip.
            hint = f'operators end any lease: "gpupool kill {name}"'
            raise DeniedError(f"lease {name} belongs to {lease.user}", hint=hint)
        await pool.end_lease(LeaseId(int(name, 16)), "released")
    return f"lease {name} is ending: it was not held on this machine"
