"""From when until when a question asks: ``--since`` and ``--until``."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import click

from gpupool.cli.lib.options import F, Parsed
from gpupool.pool.errors import UsageError
from gpupool.pool.values import parse_duration

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
            help="From 2h or 30d ago, yesterday, or 2026-11-21T14:30 UTC.",
        )(until(function))

    return add
