"""Options that several commands share: types, common ones, and those that ask for GPUs."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from gpupool.cli.lib.output import Invocation
from gpupool.pool.errors import UsageError
from gpupool.pool.model.state import Filter, Placement
from gpupool.pool.values import (
    IDLE_TIMEOUT_MIN_S,
    parse_count,
    parse_duration,
    parse_emulation,
    parse_filter,
    parse_fraction,
    parse_label,
    parse_name,
    parse_pair,
    parse_partition,
    parse_share,
    parse_size,
)
from gpupool.remoting.protocol.addresses import Address, parse_address, parse_listen

if TYPE_CHECKING:
    from gpupool.remoting.program.lease_source import Wanted

T = TypeVar("T")


class Parsed(click.ParamType):  # pyright: ignore[reportMissingTypeArgument]
    """A click type made of a function that raises ValueError with a sentence."""

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name = name
        self._parse = parse

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        """Return the parsed value; a value that was parsed before passes through."""
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            return value
        try:
            return self._parse(str(value).strip())
        except ValueError as error:
            self.fail(str(error), param, ctx)


class FilterType(Parsed):
    """A filter. Its keys complete; in a variable, filters are separated by semicolons."""

    envvar_list_splitter: ClassVar[str | None] = ";"

    def __init__(self) -> None:
        super().__init__("filter", parse_filter)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the keys that begin with ``incomplete``."""
        from gpupool.pool.scheduling.filters import KEYS, LABELS

        return [CompletionItem(key) for key in (*KEYS, LABELS) if key.startswith(incomplete)]


def _address_by(parse: Callable[[str], Address]) -> Callable[[str], Address]:
    def parsed(text: str) -> Address:
        try:
            return parse(text)
        except UsageError as error:
            raise ValueError(f"{error.what}: {error.hint}") from error

    return parsed


COUNT = Parsed("count", parse_count)
FRACTION = Parsed("fraction", parse_fraction)
SHARE = Parsed("fraction", parse_share)
SIZE_TYPE = Parsed("size", parse_size)
PARTITION = Parsed("size", parse_partition)
LABEL = Parsed("name=value", parse_label)
FILTER = FilterType()
DURATION = Parsed("duration", parse_duration)
LISTEN = Parsed("host:port", _address_by(parse_listen))
ADDRESS = Parsed("host:port", _address_by(parse_address))
EMULATION = Parsed("n[:mem]", parse_emulation)
PAIR = Parsed("name=value", parse_pair)
NAME_TYPE = Parsed("name", parse_name)


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
    """Add the common options of commands that connect to a pool."""
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
    """Add the options for the retention of a server's measurements."""
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


A = TypeVar("A")
B = TypeVar("B")


OPTIONS = (
    click.option(
        "-n", "--count", type=COUNT, default=1, show_default=True, help="Number of separate GPUs."
    ),
    click.option(
        "-p", "--fraction", type=FRACTION, help="Share of each GPU's memory, such as 0.25."
    ),
    click.option(
        "-m",
        "--memory",
        type=PARTITION,
        help="Memory on each GPU instead, such as 20GiB (20GB means 20 x 10^9 bytes).",
    ),
    click.option(
        "--share",
        type=SHARE,
        help="Minimum share of GPU time under contention, 0.01 to 1 (default: same as the memory "
        "share).",
    ),
    click.option(
        "--wait",
        type=DURATION,
        help="Longest wait for free GPUs (default: no limit), and for servers that do not answer.",
    ),
    click.option("--no-wait", is_flag=True, help="Exit with 75 when no GPU is free now."),
    click.option(
        "--filter",
        "filters",
        type=FILTER,
        multiple=True,
        metavar="'KEY OP VALUE'",
        help="Only GPUs like this, such as 'gpu.memory >= 40GiB'; repeatable, all must hold.",
    ),
    click.option("--server", metavar="SERVER", multiple=True, help="Only this server; repeatable."),
    click.option(
        "--across", is_flag=True, help="GPUs of several servers, when no single one has enough."
    ),
    click.option(
        "--placement",
        type=click.Choice([each.value for each in Placement]),
        default=Placement.PACK.value,
        show_default=True,
        help="pack: where the least remains unused; spread: where the most is free; "
        "near: on the server that answers soonest.",
    ),
    click.option(
        "--idle-timeout",
        type=DURATION,
        help="Give the GPUs back when they are not used for so long, such as 30m.",
    ),
    click.option(
        "--preemptible",
        is_flag=True,
        help="Let it be suspended while a request of higher priority needs its GPUs.",
    ),
)


NAMES = (
    *("count", "fraction", "memory", "wait", "no_wait", "filters", "server"),
    *("across", "placement", "idle_timeout", "preemptible", "share"),
)
"""Under these, the options above arrive."""


def request_options(function: F) -> F:
    """Add the options with which GPUs are asked for; they arrive as one ``wanted: Wanted``."""

    @click.pass_context
    @wraps(function)
    def command(ctx: click.Context, /, **given: Any) -> Any:
        options = {name: given.pop(name) for name in NAMES}
        return function(wanted=_wanted(ctx, **options), **given)

    result: Any = command
    for option in reversed(OPTIONS):
        result = option(result)
    return cast(F, result)


def _wanted(
    ctx: click.Context,
    *,
    count: int,
    fraction: float | None,
    memory: int | None,
    wait: float | None,
    no_wait: bool,
    filters: tuple[Filter, ...],
    server: tuple[str, ...],
    across: bool,
    placement: str,
    idle_timeout: float | None,
    preemptible: bool,
    share: float | None,
) -> "Wanted":
    from gpupool.pool.scheduling.filters import check_filters
    from gpupool.remoting.program.lease_source import Wanted

    if idle_timeout is not None and idle_timeout < IDLE_TIMEOUT_MIN_S:
        raise UsageError(f"an idle timeout is at least {IDLE_TIMEOUT_MIN_S:g} s")

    fraction, memory = one_of(ctx, ("fraction", fraction), ("memory", memory))
    wait, no_wait_given = one_of(ctx, ("wait", wait), ("no_wait", no_wait or None))
    try:
        check_filters(filters)
    except ValueError as error:
        raise UsageError(str(error)) from error
    servers = tuple(name for names in server for name in names.split(",") if name)
    if server and not servers:
        raise UsageError("--server names no server", hint='"gpupool status" lists them')
    return Wanted(
        count=count,
        fraction=0.0 if memory else fraction or 1.0,
        memory=memory or 0,
        servers=servers,
        filters=tuple(dict.fromkeys(filters)),
        across=across,
        placement=Placement(placement),
        wait_s=0.0 if no_wait_given else wait,
        idle_timeout_s=idle_timeout or 0.0,
        preemptible=preemptible,
        share=share or 0.0,
    )


def forbid_requests(ctx: click.Context, instead: str) -> None:
    """Refuse options that request GPUs beside ``instead``, an option that names them.

    Raises:
        UsageError: when any is on the command line; what files and environment say is ignored.
    """
    given = [n for n in (*NAMES, "lazy") if _is_flag_given(ctx, n)]
    if given:
        flag = f"--{given[0].replace('filters', 'filter').replace('_', '-')}"
        raise UsageError(f"{flag} and {instead} exclude each other", hint="give one of them")


def _is_flag_given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


def one_of(
    ctx: click.Context, first: tuple[str, A | None], second: tuple[str, B | None]
) -> tuple[A | None, B | None]:
    """Return two exclusive options, at most one set: a flag beats files and environment.

    Raises:
        UsageError: when both are given in the same place.
    """
    if first[1] is None or second[1] is None:
        return first[1], second[1]
    given = [
        ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        for name in (first[0], second[0])
    ]
    if given == [False, True]:
        return None, second[1]
    if given == [True, False]:
        return first[1], None
    names = [f"--{name.replace('_', '-')}" for name in (first[0], second[0])]
    raise UsageError(f"{names[0]} and {names[1]} exclude each other", hint="give one of them")


# --- spans of time --------------------------------------------------------------------------------


DAYS = {"today": 0, "yesterday": 1}
"""Words for the beginning of a day in UTC, and how many days ago it was."""


def parse_since(text: str) -> float:
    """Return the Unix time in seconds that ``2h`` (ago), ``2026-11-21`` or ``...T14:30`` means."""
    now = datetime.now(UTC)
    if text in DAYS:
        day = now.date() - timedelta(days=DAYS[text])
        return datetime.combine(day, datetime.min.time(), UTC).timestamp()
    try:
        return now.timestamp() - parse_duration(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is neither how long ago, as 2h or 7d, nor a time, as yesterday or "
            "2026-11-21T14:30"
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def check_span(since: float, until: float | None) -> None:
    """Refuse a time that ends before it begins, or that has not begun."""
    if since >= (time.time() if until is None else until):
        raise UsageError(
            "the time asked for ends before it begins",
            hint="--since 2h --until 1h is the hour before the last one",
        )


def span_options(since: str) -> Callable[[F], F]:
    """Add ``--since``, with its default, and ``--until``; Unix times in seconds."""

    def add(function: F) -> F:
        until = click.option(
            "--until",
            type=Parsed("time", parse_since),
            help="Up to then, as --since; else now.",
        )
        return click.option(
            "--since",
            default=since,
            show_default=True,
            type=Parsed("time", parse_since),
            help="From 2h or 30d ago, yesterday, or 2026-11-21T14:30 UTC.",
        )(until(function))

    return add
