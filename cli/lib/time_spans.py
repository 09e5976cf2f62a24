"""From when until when a question asks: ``--since`` and ``--until``."""

from collections.abc import Callable
from datetime import UTC, datetime

import click

from gpupool.cli.lib.common_options import F
from gpupool.cli.lib.values import Parsed, parse_duration


def parse_since(text: str) -> float:
    """Return the Unix time in seconds that ``2h`` (ago), ``2026-11-21`` or ``...T14:30`` means."""
    now = datetime.now(UTC)
    try:
        return now.timestamp() - parse_duration(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is neither how long ago, as 2h or 7d, nor a time, as 2026-11-21T14:30"
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def span_options(since: str) -> Callable[[F], F]:
    """Add ``--since``, with what it is if nobody says, and ``--until``; Unix times in seconds."""

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
            help="From 2h or 30d ago, or 2026-11-21T14:30 UTC.",
        )(until(function))

    return add
