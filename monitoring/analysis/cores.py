"""Work on all cores of this machine, in processes of our own."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, contextmanager

from gpupool.monitoring.analysis.sizing import Spread


@contextmanager
def on_all_cores() -> Generator[Spread]:
    """Yield ``map`` on all cores. Its processes start with its first use, and end with this."""
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        made: list[Spread] = []

        def values(function: Callable[[int], int], numbers: Iterable[int]) -> Iterable[int]:
            if not made:
                pool = context.Pool(_core_count(), _leave_interrupts)
                made.append(stack.enter_context(pool).imap)
            return made[0](function, numbers)

        yield values


def _core_count() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _leave_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started it ends it
