"""Options that several commands share."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from gpupool.cli.lib.option_types import DURATION, SIZE_TYPE
from gpupool.cli.lib.output import Invocation
from gpupool.pool.errors import UsageError

POOL = "gpupool.pool"
"""Where a context keeps the name of the pool that was asked for."""

F = TypeVar("F", bound=Callable[..., Any])


def _set_json(ctx: click.Context, param: click.Parameter, value: bool) -> bool:
    found = ctx.find_object(Invocation)
    if found is not None:
        found.json = value
    return value


def _set_verbose(ctx: click.Context, param: click.Parameter, value: int) -> int:
    found = ctx.find_object(Invocation)
    if found is not None:
        found.verbose = max(found.verbose, value)
    return value


def _set_log_file(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    found = ctx.find_object(Invocation)
    if found is not None:
        found.log_file = value or None
    return value


def json_option(function: F) -> F:
    """Add ``--json``: one object with a schema number, errors too."""
    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        is_eager=True,
        callback=_set_json,
        help="Print one JSON object, with a schema number.",
    )(function)


def verbose_option(function: F) -> F:
    """Add ``-v``, ``-vv`` and ``--log-file``."""
    function = click.option(
        "--log-file",
        type=click.Path(dir_okay=False),
        envvar="GPUPOOL_LOG",
        is_eager=True,
        expose_value=False,
        callback=_set_log_file,
        help="Append what -vv says to this file, with times.",
    )(function)
    return click.option(
        "-v",
        "--verbose",
        count=True,
        is_eager=True,
        expose_value=False,
        callback=_set_verbose,
        help="Explain decisions; -vv also logs each message with its time.",
    )(function)


def pool_options(function: F) -> F:
    """Add what every command that talks to a pool takes."""
    function = click.option(
        "--credentials",
        type=click.Path(dir_okay=False),
        envvar="GPUPOOL_CREDENTIALS",
        callback=_find_credentials,
        help="File written by login, instead of the user's own.",
    )(function)
    function = click.option(
        "--pool",
        "pool_name",
        metavar="NAME",
        envvar="GPUPOOL_POOL",
        is_eager=True,
        expose_value=False,
        callback=_set_pool,
        help='Your login to this pool, instead of the one in use; see "gpupool use".',
    )(function)
    return verbose_option(function)


HISTORY_OPTIONS = ("keep_10s", "keep_1m", "keep_1h", "history_max")


def history_options(function: F) -> F:
    """Add the options of how long a server keeps what it has measured."""
    for name, default, what in (
        ("--keep-1h", "731d", "an hour"),
        ("--keep-1m", "30d", "a minute"),
        ("--keep-10s", "1d", "ten seconds"),
    ):
        text = f"How long figures of {what} each are kept."
        function = click.option(name, type=DURATION, default=default, show_default=True, help=text)(
            function
        )
    return click.option(
        "--history-max",
        type=SIZE_TYPE,
        default="1GiB",
        show_default=True,
        help="All that is kept of usage and figures; the oldest of the finest figures go first.",
    )(function)


def _set_pool(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    ctx.meta[POOL] = value
    return value


def _find_credentials(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Return the credentials file: as given, else of the pool that was named, else in use."""
    command_line = click.core.ParameterSource.COMMANDLINE
    pool: str | None = ctx.meta.get(POOL)
    if value and pool:
        sources = [ctx.get_parameter_source(name) for name in ("credentials", "pool_name")]
        if sources[0] == sources[1]:
            raise UsageError("--credentials and --pool exclude each other", hint="give one of them")
        if sources[0] == command_line or sources[1] != command_line:
            return value
    elif value:
        return value
    if ctx.resilient_parsing:
        return value
    from gpupool.remoting.local.logins import find_login, login_in_use

    if pool:
        return str(find_login(pool).path)
    used = login_in_use()
    return str(used) if used is not None else None
