"""``gpupool token``: tokens to join the pool, and to use it."""

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from gpupool.cli.lib.options import DURATION, NAME_TYPE, json_option, pool_options
from gpupool.cli.lib.output import operate, print_json, print_lines, run_async
from gpupool.pool.errors import UsageError
from gpupool.pool.model.ids import TokenId
from gpupool.pool.model.state import TOKEN_USES_MAX, TokenKind
from gpupool.pool.values import duration_text
from gpupool.remoting.local.files import user_name
from gpupool.remoting.local.logins import connected, stored_credentials
from gpupool.remoting.local.terminal import say

if TYPE_CHECKING:
    from gpupool.remoting.protocol.messages import Order, TokenView

USER_TOKEN_S = 365 * 86400.0
SERVER_TOKEN_S = 3600.0
"""A server's token is used soon."""


@click.group()
def command() -> None:
    """Create, list and revoke tokens."""


@command.command("create")
@click.option("--user", type=NAME_TYPE, help="Whom it names (default: you).")
@click.option("--server", "for_server", is_flag=True, help="Let a server join.")
@click.option(
    "--uses",
    type=click.IntRange(1, TOKEN_USES_MAX),
    default=1,
    show_default=True,
    help="With --server: how many servers it lets in.",
)
@click.option("--operator", is_flag=True, help="May drain, remove, revoke and create tokens.")
@click.option("--viewer", is_flag=True, help="May look and read the metrics, and nothing else.")
@click.option(
    "--expires",
    type=DURATION,
    help="How long it is good (default: 365d; for a server 1h).",
)
@pool_options
@json_option
def create(
    credentials: str | None,
    user: str | None,
    for_server: bool,
    operator: bool,
    viewer: bool,
    uses: int,
    expires: float | None,
    as_json: bool,
) -> None:
    """Make a token, and print it together with the command that uses it.

    Only this output ever shows it: the pool keeps a hash.
    """
    if for_server and (operator or user):
        raise UsageError("a server's token names no user", hint="leave out --user and --operator")
    if viewer and (for_server or operator):
        raise UsageError("a viewer's token does nothing but look", hint="give one of the options")
    if uses > 1 and not for_server:
        raise UsageError(
            "--uses is for servers", hint="add --server; users' tokens are not used up"
        )
    if expires is not None and expires <= 0:
        raise UsageError("a token that has expired already is no use", hint="--expires 30d")
    given = {TokenKind.SERVER: for_server, TokenKind.OPERATOR: operator, TokenKind.VIEWER: viewer}
    kind = next((kind for kind, is_given in given.items() if is_given), TokenKind.USER)
    valid_s = expires or (SERVER_TOKEN_S if for_server else USER_TOKEN_S)
    name = user or user_name()
    text = run_async(lambda: _create(credentials, kind, name, valid_s, uses))
    if as_json:
        print_json(token=text, kind=kind, user=name, valid_s=valid_s, uses=uses)
        return
    # By stdin, because others see the arguments of a process.
    use = f"echo {text} | gpupool " + ("join --token -" if for_server else "login -")
    what = (
        ("one server" if uses == 1 else f"{uses} servers") if for_server else f"{kind.value} {name}"
    )
    say(f"gpupool: for {what}, good for {duration_text(valid_s)}; shown only here:")
    # For eyes the whole command, for scripts (token=$(gpupool token create)) the token alone.
    click.echo(use if sys.stdout.isatty() else text)


async def _create(
    credentials: str | None, kind: TokenKind, user: str, valid_s: float, uses: int
) -> str:
    async with connected(credentials) as pool:
        return await pool.create_token(kind, user, valid_s, uses=uses)


@command.command("list")
@pool_options
@json_option
def list_tokens(credentials: str | None, as_json: bool) -> None:
    """List all tokens of the pool; secrets are not kept, and so not shown."""

    async def ask() -> "tuple[TokenView, ...]":
        async with connected(credentials) as pool:
            return await pool.list_tokens()

    tokens = run_async(ask)
    if as_json:
        print_json(tokens=tokens)
        return
    lines = [("TOKEN", "KIND", "USER", "STATE", "EXPIRES", "CREATED BY")]
    for each in tokens:
        expires = datetime.fromtimestamp(each.expires_at / 1000, UTC).strftime("%Y-%m-%d %H:%M")
        state = each.state if each.uses == 1 else f"{each.state}, {each.used}/{each.uses} used"
        lines.append(
            (each.token, each.kind.value, each.user or "-", state, expires, each.created_by)
        )
    print_lines(lines)


@command.command("renew")
@click.argument("token", required=False)
@click.option(
    "--expires",
    type=DURATION,
    default="365d",
    show_default=True,
    help="How long it is good from now.",
)
@pool_options
def renew(credentials: str | None, token: str | None, expires: float) -> None:
    """Extend TOKEN; without TOKEN, the token of your login.

    TOKEN is its name in "gpupool token list". Its user goes on with the same token.
    """
    from gpupool.remoting.protocol.messages import RenewToken

    if expires <= 0:
        raise UsageError("a token that has expired already is no use", hint="--expires 30d")
    name = _name_of(token) if token else stored_credentials(credentials).token
    _operate(credentials, RenewToken(name, expires))


def _operate(credentials: str | None, order: "Order") -> None:
    """Give an order about a token; the table refuses an unknown one without a hint."""
    try:
        operate(credentials, order)
    except UsageError as error:
        error.hint = error.hint or '"gpupool token list" lists those that it has'
        raise


def _name_of(token: str) -> TokenId:
    """Return the name of a token that is given by its name, or whole."""
    from gpupool.remoting.protocol.token_text import PREFIX, parse_token

    return parse_token(token).token if token.lower().startswith(PREFIX) else TokenId(token)


@command.command("revoke")
@click.argument("token")
@pool_options
def revoke(credentials: str | None, token: str) -> None:
    """Refuse TOKEN from now on, and end the leases that it got.

    TOKEN is its name in "gpupool token list", or the whole token.
    """
    from gpupool.remoting.protocol.messages import RevokeToken

    _operate(credentials, RevokeToken(_name_of(token)))
