"""Commands for leases that outlive one program: ``alloc`` and ``release``."""

import os
from functools import partial

import click

from gpupool.cli.lib.options import DURATION, Parsed, json_option, pool_options, request_options
from gpupool.cli.lib.output import invocation, print_json, run_async
from gpupool.pool.errors import DeniedError, GpupoolError, LeaseLostError, UsageError
from gpupool.pool.model.ids import LeaseId, lease_name
from gpupool.pool.values import parse_lease
from gpupool.remoting.local.logins import connected
from gpupool.remoting.local.terminal import say
from gpupool.remoting.program.lease_source import Wanted


@click.command()
@request_options
@click.option("--time", "time_s", type=DURATION, help="Give it back after so long, such as 8h.")
@click.option("-q", "--quiet", is_flag=True, help="Print the lease, and nothing else but errors.")
@json_option
@pool_options
def alloc(
    wanted: Wanted, credentials: str | None, time_s: float | None, quiet: bool, as_json: bool
) -> None:
    r"""Hold GPUs until they are released, and print the lease.

    \b
      lease=$(gpupool alloc -n 1 -p 0.5)
      gpupool run --lease $lease -- python train.py
      gpupool run --lease $lease -- python evaluate.py
      gpupool release $lease

    A process in the background holds the lease: it survives this shell, but not this machine. Any
    number of programs may use the lease, also at once; they share its memory. The lease ends by
    "gpupool release", after --time, or when it is unused for its idle timeout.
    """
    if time_s is not None and time_s < 1:
        raise UsageError("--time is at least 1s", hint="without it, the lease lasts until released")
    from gpupool.cli.lib.output import run_async
    from gpupool.remoting.program.holder_startup import start_holder
    from gpupool.remoting.program.program_run import ends_text

    # The holder lives in another folder.
    files = [os.path.abspath(each) if each else None for each in (credentials, _log_file())]
    record = run_async(
        partial(
            start_holder,
            wanted,
            time_s=time_s or 0.0,
            credentials=files[0],
            log_file=files[1],
            shown=not quiet,
        )
    )
    if as_json:
        print_json(
            lease=record.lease,
            pool=record.pool,
            user=record.user,
            text=record.text,
            servers=record.servers,
            idle_timeout_s=record.idle_timeout_s,
            time_s=record.time_s,
            time_left_s=record.time_left_s,
            pid=record.pid,
        )
        return
    click.echo(record.lease)
    if quiet:
        return
    ends = ends_text(record.idle_timeout_s, record.time_left_s, record.time_s)
    say(f"gpupool: {record.text}{ends}")
    say(f"  use it:       gpupool run --lease {record.lease} -- PROGRAM")
    say(f"  give it back: gpupool release {record.lease}")


def _log_file() -> str | None:
    return invocation().log_file


@click.command()
@click.argument("leases", metavar="[LEASE]...", nargs=-1, type=Parsed("lease", parse_lease))
@click.option("--all", "every", is_flag=True, help="All that are held on this machine by you.")
@pool_options
def release(credentials: str | None, leases: tuple[int, ...], every: bool) -> None:
    """Give LEASE back, which "gpupool alloc" holds; programs that use it lose it.

    A lease of yours that is held on another machine is ended as well.
    """
    if bool(leases) == every:
        raise UsageError(
            "no lease was given" if not every else "--all releases all leases",
            hint='give its name, or --all; "gpupool leases" lists them',
        )
    from gpupool.remoting.program.held_leases import held_leases
    from gpupool.remoting.program.lease_source import is_own

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
                say(f"gpupool: {await release_lease(name, credentials)}")
            except GpupoolError as error:
                failures.append(error)
        for error in failures[1:]:
            say(f"gpupool: {error}")
        if failures:
            raise failures[0]

    run_async(release_all)


async def release_lease(name: str, credentials: str | None) -> str:
    """Release one lease, and return the outcome as text.

    Raises:
        GpupoolError: when there is no such lease, or it is not ours.
    """
    from gpupool.remoting.program.holder_client import release_held
    from gpupool.remoting.program.lease_source import own_held
    from gpupool.remoting.protocol.messages import EndLease

    found = await own_held(name, credentials)
    if found is not None and not found.why_over:
        try:
            users = await release_held(found.record)
        except LeaseLostError as lost:
            if (found := await own_held(name, credentials)) is None or not found.record.ended:
                raise lost from None
        else:
            programs = f"; {users} program{'s' if users > 1 else ''} used it" if users else ""
            return f"lease {name} is released{programs}"
    if found is not None and found.record.ended:
        return f"lease {name} has ended already: {found.record.ended}"
    async with connected(credentials) as pool:
        lease = next((each for each in (await pool.view()).leases if each.name == name), None)
        if lease is not None and lease.user != pool.credentials.user:
            # An operator's token would end it, but a lease of another user must not end by a slip.
            hint = f'operators end any lease: "gpupool kill {name}"'
            raise DeniedError(f"lease {name} belongs to {lease.user}", hint=hint)
        await pool.operate(EndLease(LeaseId(int(name, 16)), "released"))
    return f"lease {name} is ending: it was not held on this machine"
