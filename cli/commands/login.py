"""``gpupool login``: check a token with the pool and store it."""

import sys

import click

from gpupool import __version__
from gpupool.cli.lib.common_options import pool_options
from gpupool.cli.lib.connect import client_name, credentials_file, run_async
from gpupool.cli.lib.output import say
from gpupool.pool.errors import UsageError

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
            "no token was given", hint="gpupool login TOKEN, or - to read it from stdin"
        )
    return text.strip()


@click.command()
@click.argument("token", required=False)
@pool_options
def command(credentials: str | None, token: str | None) -> None:
    """Check TOKEN with the pool and store it, so that this user can use the pool.

    Without TOKEN it is asked for, or with "-" read from stdin, so that it shows in no history.
    """
    from gpupool.remoting.client.credentials import keep_former, save_credentials
    from gpupool.remoting.client.enrolment import login

    text = read_token(token)
    found = run_async(lambda: login(text, version=__version__, client=client_name()))
    path = credentials_file(credentials)
    kept = keep_former(path, found.token)
    save_credentials(path, found)
    say(f"gpupool: logged in to pool {found.pool} as {found.user}")
    if kept is not None:
        say(f"gpupool: your former login is kept as {kept}")
