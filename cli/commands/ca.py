"""``gpupool ca``: the CA that every certificate of the pool rests on, and its exchange."""

import sys
from typing import TYPE_CHECKING

import click

from gpupool.cli.lib.options import json_option, pool_options
from gpupool.cli.lib.output import operate, print_json, run_async
from gpupool.pool.errors import ExitCode, GpupoolError, UsageError
from gpupool.pool.view import NO_KEY, ONE_KEY, visible
from gpupool.remoting.local.logins import connected
from gpupool.remoting.local.terminal import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpupool.pool.view import AuthorityView, PoolView
    from gpupool.remoting.client.pool_client import Pool

SHORT = 16
"""Digits of a CA's SHA-256 that people read."""


@click.group()
def command() -> None:
    r"""Show the pool's CA, and exchange it for another one.

    \b
    After its key leaked, or before its ten years are over:
      gpupool ca rotate     a second CA is trusted, and signs from now on
      gpupool ca status     until every server has a certificate of it
      gpupool ca retire     the older one is trusted no more

    Programs and leases go on. Between the two orders each client that connects learns of the new
    CA. One that did not has to log in again. No token from before opens a first contact afterwards.
    """


@command.command("status")
@pool_options
@json_option
def status(credentials: str | None, as_json: bool) -> int:
    """Show the trusted CAs, the servers' certificates, and the servers with the CA keys.

    Exits with 3 while a server has no certificate of the CA that signs: "gpupool ca retire" would
    shut it out.
    """
    view, found = run_async(lambda: _ask(credentials))
    behind = found[0].servers if len(found) > 1 else ()
    code = ExitCode.UNHEALTHY if behind else ExitCode.DONE
    keys = _helpers(view)
    if as_json:
        print_json(authorities=found, keys=keys)
        return code
    for each in found:
        _print_row(each.sha256[:SHORT], "signs" if each.signs else "to be retired", each.servers)
    _print_row("the CA's key" if len(found) == 1 else "the keys of both", "held by", keys)
    if len(found) > 1:
        ready = "every server has moved: gpupool ca retire"
        say(f"gpupool: {'not moved yet: ' + ', '.join(behind) if behind else ready}")
    for warning in view.warnings:
        if warning.startswith((NO_KEY, ONE_KEY)):
            say(f"gpupool: {warning}")
    return code


def _print_row(what: str, role: str, servers: "Sequence[str]") -> None:
    click.echo(f"{what:<{SHORT}}  {role:<13}  {', '.join(servers) or 'no server'}")


def _helpers(view: "PoolView") -> list[str]:
    """Return the servers with the keys of all CAs that are trusted."""
    return [visible(server.name) for server in view.servers if server.has_keys]


@command.command("rotate")
@click.option("--yes", is_flag=True, help="Do not ask.")
@pool_options
def rotate(credentials: str | None, yes: bool) -> None:
    """Make a second CA, which signs from now on; the older one stays trusted until it is retired.

    The new key is on the disks of most voters before the CA is trusted. All servers then renew
    their certificates by themselves. It takes an operator's token, and is in the audit.
    """
    _view, found = run_async(lambda: _ask(credentials))
    if len(found) > 1:
        raise UsageError(
            "two CAs are trusted already",
            hint='"gpupool ca status" shows them; "gpupool ca retire" drops the older one',
        )
    _confirm("Exchange the pool's CA?", yes=yes)

    async def exchange() -> str:
        async with connected(credentials) as pool:
            return await pool.rotate_ca(bytes.fromhex(found[0].sha256))

    say(f"gpupool: {run_async(exchange)}")
    say('  hint: "gpupool ca status" shows when all servers have moved; then "gpupool ca retire"')


@command.command("retire")
@click.option("--force", is_flag=True, help="Also while servers have no certificate of the new CA.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@pool_options
def retire(credentials: str | None, force: bool, yes: bool) -> None:
    """Trust the older of two CAs no more, which ends everything that its key has signed.

    It is refused while a server still uses it. With --force that server is shut out, and comes
    back by "gpupool rejoin".
    """
    from gpupool.remoting.protocol import messages as m

    _view, found = run_async(lambda: _ask(credentials))
    if len(found) < 2:
        raise UsageError("one CA is trusted, and needed", hint='"gpupool ca rotate" makes another')
    _confirm(f"Trust CA {found[0].sha256[:SHORT]} no more?", yes=yes)
    operate(credentials, m.RetireCa(bytes.fromhex(found[0].sha256), force))


def _confirm(question: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("this cannot be undone", hint="--yes does it without asking")
    click.confirm(question, abort=True, err=True)


async def _ask(credentials: str | None) -> "tuple[PoolView, list[AuthorityView]]":
    """Return the pool, and the CAs that it trusts, the one that signs last."""
    from gpupool.pool.view import AuthorityView

    async with connected(credentials) as pool:
        view = await pool.view()
        if not view.raft.quorum:
            raise GpupoolError("the pool has no majority", hint="start the missing servers")
        if view.authorities:
            return view, list(view.authorities)
        names = tuple(visible(server.name) for server in view.servers)
        return view, [AuthorityView(_own_ca(pool), signs=True, servers=names)]


def _own_ca(pool: "Pool") -> str:
    """Return the CA that this client trusts: in a pool that never exchanged it, the only one."""
    from gpupool.remoting.transport.pki import fingerprint

    return fingerprint(pool.ca_pem().encode()).hex()
