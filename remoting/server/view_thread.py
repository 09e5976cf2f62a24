"""The thread on which a view of a large pool is made, while the loop goes on."""

import time
from contextlib import closing

import trio

from gpupool.remoting.protocol.view_encoding import MadeView, ViewOrder, make_view

PAUSE_S = 0.0005
"""Between two pieces: only one thread runs Python, and to sleep lets the loop have it."""


async def make_beside_the_loop(order: ViewOrder) -> MadeView:
    """Return the messages of a view; when cancelled, the thread ends after its present piece."""
    return await trio.to_thread.run_sync(_make, order)


def _make(order: ViewOrder) -> MadeView:
    with closing(make_view(order)) as steps:
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return end.value
            trio.from_thread.check_cancelled()
            time.sleep(PAUSE_S)
