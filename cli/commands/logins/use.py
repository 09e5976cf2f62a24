"""``gpupool use``: the selection of this user's login."""

import click

from gpupool.cli.lib.options import json_option
from gpupool.cli.lib.output import print_json, print_lines
from gpupool.remoting.local.terminal import say


@click.command()
@click.argument("name", required=False)
@json_option
def command(name: str | None, as_json: bool) -> None:
    """Use the login NAME from now on; without NAME, list your logins.

    "--pool NAME" and GPUPOOL_POOL use another one for a single command or shell.
    """
    from gpupool.remoting.local.logins import find_login, logins, use_login

    if name is not None:
        login = find_login(name)
        use_login(login)
        say(f"gpupool: {login.name} is in use: pool {login.pool}, as {login.user}")
        return
    known = logins()
    if as_json:
        fields = [
            {"name": e.name, "pool": e.pool, "user": e.user, "file": str(e.path), "used": e.current}
            for e in known
        ]
        print_json(logins=fields)
        return
    if not known:
        say('gpupool: you have no login; give a token to "gpupool login"')
        return
    lines = [("", "NAME", "POOL", "USER", "FILE")]
    lines += [("*" if e.current else "", e.name, e.pool, e.user, str(e.path)) for e in known]
    print_lines(lines)
