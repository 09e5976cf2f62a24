"""The run of a command: trio, one error out of a group, and an order to the pool."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from gpupool.pool.errors import GpupoolError, first_error
from gpupool.remoting.local.logins import connected, said_if_slow
from gpupool.remoting.local.terminal import QUIET, say

if TYPE_CHECKING:
    from gpupool.remoting.protocol.messages import Order

T = TypeVar("T")


def run_async(main: Callable[[], Awaitable[T]]) -> T:
    """Run ``main`` under trio; a group of errors becomes the one that the user can act on."""
    import click
    import trio

    from gpupool.cli.lib.output import invocation

    context = click.get_current_context(silent=True)
    QUIET.set(context is not None and bool(context.params.get("quiet")))
    if invocation().verbose >= 2 or invocation().log_file:
        from gpupool.remoting.local.logs import set_up_client

        set_up_client(verbose=invocation().verbose, log_file=invocation().log_file)
    try:
        return trio.run(main)
    except BaseExceptionGroup as group:
        error = first_error(group)
        if isinstance(error, GpupoolError | KeyboardInterrupt | SystemExit):
            raise error from group
        raise


def operate(given: str | None, order: "Order", before: str = "") -> None:
    """Give an order to the pool, and print the result, with what the caller has to say before."""

    async def give() -> str:
        async with connected(given) as pool:
            with said_if_slow("the order waits for the pool"):
                return await pool.operate(order)

    say(f"gpupool: {before}{run_async(give)}")
