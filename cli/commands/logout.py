"""``gpupool logout``: forget the stored token."""

import click

from gpupool.cli.lib.options import pool_options
from gpupool.pool.errors import StorageError
from gpupool.remoting.local.logins import credentials_file, logins
from gpupool.remoting.local.terminal import say


@click.command()
@pool_options
def command(credentials: str | None) -> None:
    """Forget the stored token.

    The token itself stays valid; "gpupool token revoke" ends it everywhere. This file may be the
    only copy of it. "gpupool join --operator-token" makes another token for an operator.
    """
    path = credentials_file(credentials)
    try:
        path.unlink()
    except FileNotFoundError:
        say("gpupool: nobody was logged in here")
    except OSError as error:
        raise StorageError(f"cannot remove {path}", why=error.strerror or str(error)) from error
    else:
        say(f"gpupool: logged out; {path} is removed")
        left = ", ".join(each.name for each in logins())
        if left:
            say(f'gpupool: you have other logins: {left}; "gpupool use NAME" takes one')
