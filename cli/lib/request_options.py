"""The options with which commands ask for GPUs, and the request that they make."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import click
from click.core import ParameterSource

from gpupool.cli.lib.completion_names import SERVER_NAME
from gpupool.cli.lib.option_types import COUNT, DURATION, FILTER, FRACTION, PARTITION, SHARE
from gpupool.pool.errors import UsageError
from gpupool.pool.model.state import Filter, Placement
from gpupool.remoting.program.request import Wanted

A = TypeVar("A")
B = TypeVar("B")
F = TypeVar("F", bound=Callable[..., Any])


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
        help="Share of each GPU's time when others want theirs, 0.01 to 1; by default as of its "
        "memory.",
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
    click.option("--server", type=SERVER_NAME, multiple=True, help="Only this server; repeatable."),
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
) -> Wanted:
    from gpupool.pool.policy.lease_ends import IDLE_TIMEOUT_MIN_S
    from gpupool.pool.scheduling.filters import check_filters

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
    """Refuse options that ask for GPUs beside one that says which they are.

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
    """Return the one of two options that counts: a flag beats what files and environment say.

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
