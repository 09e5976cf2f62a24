"""``gpupool whoami``: this user's identity in the pool, and its expiry."""

from datetime import UTC, datetime

import click

from gpupool.cli.lib.options import json_option, pool_options
from gpupool.cli.lib.output import print_json, run_async
from gpupool.pool.values import duration_text
from gpupool.remoting.local.logins import connected, credentials_file


@click.command()
@pool_options
@json_option
def command(credentials: str | None, as_json: bool) -> None:
    """Show your identity in the pool, your token, and its expiry."""
    pool, user, kind, token, server, expires_ms = run_async(lambda: _ask(credentials))
    path = credentials_file(credentials)
    if as_json:
        print_json(
            pool=pool,
            user=user,
            kind=kind,
            token=token,
            answered_by=server,
            expires_at=expires_ms or None,
            file=str(path),
        )
        return
    expires = "in more than 14 days"
    if expires_ms:
        at = datetime.fromtimestamp(expires_ms / 1000, UTC)
        left = duration_text((at - datetime.now(UTC)).total_seconds())
        expires = f"{at:%Y-%m-%d %H:%M} UTC, in {left}"
    lines = {"pool": pool, "user": user, "role": kind, "token": token, "expires": expires}
    for name, value in (lines | {"login": str(path), "asked": server}).items():
        click.echo(f"{name:8} {value}")


async def _ask(credentials: str | None) -> tuple[str, str, str, str, str, int]:
    async with connected(credentials) as pool:
        welcome = pool.welcome()
        expires_ms = welcome.expires_at
        if pool.is_operator():  # others are not told of tokens, but of the end of their own
            tokens = {each.token: each for each in await pool.list_tokens()}
            mine = tokens.get(pool.credentials.token)
            expires_ms = mine.expires_at if mine is not None else expires_ms
        return (
            welcome.pool,
            welcome.user,
            welcome.kind.value,
            pool.credentials.token,
            welcome.server_name,
            expires_ms,
        )
