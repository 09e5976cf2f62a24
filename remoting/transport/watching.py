"""Watchers never end the watched code: their failure is logged, and they begin again."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from gpupool.remoting.transport.connections import explain

T = TypeVar("T")

BACKOFF_MIN_S, BACKOFF_MAX_S = 1.0, 30.0
STEADY_S = 60.0
"""A watcher that ran for so many seconds begins again after the shortest pause."""

Say = Callable[[str], object]


async def keep_watching(say: Say, what: str, run: Callable[[], Awaitable[object]]) -> None:
    """Run a watcher again and again, until it returns None or is cancelled.

    Args:
        say: takes a line for the log.
        what: its name there.
        run: returns why it has ended; whatever it raises goes no further.
    """
    backoff_s = BACKOFF_MIN_S
    while True:
        began = trio.current_time()
        try:
            if (why := await run()) is None:
                return
        except Exception as error:  # noqa: BLE001 - seeing must never stop a server that grants
            why = explain(error)
        if trio.current_time() - began >= STEADY_S:
            backoff_s = BACKOFF_MIN_S
        say(f"{what} has ended ({why}); again in {backoff_s:.0f} s")
        await trio.sleep(backoff_s)
        backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)


def told(what: str, listener: Callable[[T], object], say: Say) -> Callable[[T], None]:
    """Return a wrapper of a watching listener that logs its exceptions instead of raising."""
    said = ""

    def tell(news: T) -> None:
        nonlocal said
        try:
            listener(news)
        except Exception as error:  # noqa: BLE001 - seeing must never stop a server that grants
            before, said = said, f"{what} failed: {explain(error)}"
            if said != before:
                say(said)

    return tell
