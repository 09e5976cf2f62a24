"""``gpupool login``: check a token with the pool and store it."""

import sys

import click

from gpupool import __version__
from gpupool.cli.lib.options import ADDRESS, pool_options
from gpupool.cli.lib.output import run_async
from gpupool.pool.errors import UsageError
from gpupool.remoting.local.logins import client_name, credentials_file, stored_credentials
from gpupool.remoting.local.terminal import say
from gpupool.remoting.protocol.addresses import Address

TOKEN_LENGTH_MAX = 8192
STDIN = "-"


def read_token(given: str | None) -> str:
    """Return the token: as given, or typed unseen, or from stdin with ``-``.

    Raises:
        UsageError: when there is none.
    """
    if given and given != STDIN:
        return given
    if given is None and sys.stdin.isatty():
        text: str = click.prompt("Token", hide_input=True, err=True)
    else:
        text = sys.stdin.read(TOKEN_LENGTH_MAX)
    if not text.strip():
        raise UsageError(
            "no token was given",
            hint="gpupool login asks for it, gpupool login - reads stdin",
        )
    return text.strip()


def argument_warning(name: str, instead: str) -> str:
    """Return a warning if this token came as an argument, which all users can read.

    Args:
        name: of the parameter, which has a token.
        instead: what hands over a token unseen.
    """
    source = click.get_current_context().get_parameter_source(name)
    if source is not click.core.ParameterSource.COMMANDLINE:
        return ""
    return (
        "a token was among this command's arguments, which all users of this machine can read; "
        f"unseen: {instead}"
    )


def _find_again(credentials: str | None, at: Address) -> None:
    """Keep where the servers of the pool are now, as the one ``at`` this address tells it."""
    from gpupool.remoting.client.credentials import Credentials, save_credentials
    from gpupool.remoting.client.pool_client import connect_pool

    stored = stored_credentials(credentials)

    async def ask() -> Credentials:
        async with connect_pool(stored, (at,), version=__version__, client=client_name()) as pool:
            return stored.at(pool.addresses()).trusting(pool.ca_pem())

    found = run_async(ask)
    save_credentials(credentials_file(credentials), found)
    shown = ", ".join(map(str, found.addresses[:4]))
    say(f"gpupool: the servers of pool {found.pool} are at {shown}")


@click.command()
@click.argument("token", required=False)
@click.option("--name", help="Name of this login, for --pool; by default that of the pool.")
@click.option(
    "--at",
    type=ADDRESS,
    metavar="HOST:PORT",
    help="Where a server of the pool is now; without TOKEN, of the pool that you use.",
)
@pool_options
@click.pass_context
def command(
    ctx: click.Context,
    credentials: str | None,
    token: str | None,
    name: str | None,
    at: Address | None,
) -> None:
    """Check TOKEN with the pool and store it, so that this user can use the pool.

    Without TOKEN it is asked for, or with "-" read from stdin, so that it shows in no history. A
    login to another pool stays: "gpupool use" shows all, and changes between them.

    Where all servers have moved, --at HOST:PORT finds them again, and needs no token.
    """
    from gpupool.remoting.client.enrolment import login
    from gpupool.remoting.local import logins

    if at is not None and token is None:
        _find_again(credentials, at)
        return
    if name:
        logins.check_login_name(name)
    if token and token != STDIN:
        instead = '"gpupool login" asks for it, "gpupool login -" reads stdin'
        if warning := argument_warning("token", instead):
            say(f"gpupool: {warning}")
    text = read_token(token)
    found = run_async(lambda: login(text, version=__version__, client=client_name(), at=at))
    given = ctx.get_parameter_source("credentials") is not click.core.ParameterSource.DEFAULT
    if given and credentials:
        path = credentials_file(credentials)
    elif name:
        path = logins.named_login(name)
    else:
        path = logins.file_beside(found, logins.first_login())
    kept = logins.store_login(found, path)
    say(f"gpupool: logged in to pool {found.pool} as {found.user}")
    if kept is not None:
        say(f"gpupool: your former login is kept as {kept}")
    if given and credentials:
        return
    used = next(each for each in logins.logins() if each.path == path)
    logins.use_login(used)
    if len(logins.logins()) > 1:
        say(f'gpupool: this login, {used.name}, is in use now; "gpupool use" shows all')
