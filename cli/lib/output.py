"""The run of a command under trio, and its output.

One error of a group counts, in three lines; JSON has a schema number, and plain lines go to stderr.
"""

import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import click

from gpupool.pool.errors import GpupoolError, first_error
from gpupool.pool.model.plain import to_plain
from gpupool.remoting.local.terminal import QUIET, say

if TYPE_CHECKING:
    from rich.console import Console

    from gpupool.remoting.protocol.messages import Order

SCHEMA = 1
"""Of everything that ``--json`` prints; it changes by additions only."""


@dataclass(slots=True)
class Invocation:
    """The options of one run of the command line that every command has."""

    json: bool = False
    verbose: int = 0
    command: str = ""
    log_file: str | None = None


def invocation() -> Invocation:
    """Return the global options of the current command."""
    context = click.get_current_context(silent=True)
    found = context.find_object(Invocation) if context is not None else None
    return found if found is not None else Invocation()


def print_json(**fields: object) -> None:
    """Print one JSON object with its schema number on stdout."""
    click.echo(json.dumps({"schema": SCHEMA} | {k: to_plain(v) for k, v in fields.items()}))


def print_lines(lines: Sequence[Sequence[str]]) -> None:
    """Print the lines of a table, the titles first: columns to the left, two spaces between."""
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    for line in lines:
        click.echo("  ".join(word.ljust(w) for word, w in zip(line, widths, strict=True)).rstrip())


def error_lines(error: GpupoolError) -> list[str]:
    """Return the lines of an error's message, cause and hint."""
    from gpupool.pool.view import visible

    # A server's words are among them, and no server may write to the user's terminal as it likes.
    what, why, hint = (
        [visible(line) for line in text.splitlines()]
        for text in (error.what, error.why, error.hint)
    )
    return [
        *(f"{'' if at else 'gpupool: '}{line}" for at, line in enumerate(what)),
        *(f"{'' if at else '  '}{line}" for at, line in enumerate(why)),
        *(f"  {'' if at else 'hint: '}{line}" for at, line in enumerate(hint)),
    ]


def report(error: GpupoolError, *, as_json: bool) -> None:
    """Print an error the way that was asked for."""
    if as_json:
        message = str(error)
        body = {"code": error.code, "message": message, "hint": error.hint}
        print_json(error=body)
        return
    for line in error_lines(error):
        say(line)


def stdout_console() -> "Console":
    """Return a rich console on stdout that cuts no line of a table when output is piped."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else 10_000
    return Console(width=width, highlight=False, soft_wrap=not sys.stdout.isatty())


T = TypeVar("T")


def run_async(main: Callable[[], Awaitable[T]]) -> T:
    """Run ``main`` under trio; a group of errors becomes the one that the user can act on."""
    import trio

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
    """Give an order to the pool, and print ``before`` and the result."""
    from gpupool.remoting.local.logins import connected, said_if_slow

    async def give() -> str:
        async with connected(given) as pool:
            with said_if_slow("the order waits for the pool"):
                return await pool.operate(order)

    say(f"gpupool: {before}{run_async(give)}")
