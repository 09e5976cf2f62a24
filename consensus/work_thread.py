"""The thread of long work: encoding a snapshot, or decoding one.

Its steps are short and have pauses between them, because only one thread runs Python at a time.
"""

import gc
import time
from collections.abc import Callable

import trio

from gpupool.consensus.snapshot_transfer import Work

WORK_PAUSE_S = 0.0005
"""Between two steps of long work; as long as the steps themselves, so that half is left."""


class WorkThread:
    """Runs one ``Work`` after the other, each on a separate thread."""

    def __init__(
        self,
        put: Callable[[Callable[[float], None]], None],
        done: Callable[[Work, float], None],
        after_work: Callable[[], None],
    ) -> None:
        """Have nothing to do.

        Args:
            put: takes an event of the node, on the trio thread.
            done: is that event, with the instant, when the steps of a work have all run.
            after_work: is called on the thread when a work has ended.
        """
        self._put, self._done, self._after_work = put, done, after_work
        self._is_stopped = False
        self._over = trio.Event()
        self._over.set()

    def run(self, work: Work) -> None:
        """Start ``work``; its end is an event of the node, which raises an exception of a step."""
        self._over = trio.Event()
        token = trio.lowlevel.current_trio_token()
        failure: list[Exception] = []

        def steps() -> None:
            gc.disable()  # rows by the hundred thousand would all be visited, for nothing
            try:
                for _ in work.steps:
                    if self._is_stopped:
                        return
                    # To sleep, even so shortly, lets the loop have the interpreter.
                    time.sleep(WORK_PAUSE_S)
            except Exception as error:  # noqa: BLE001 - the loop raises it
                failure.append(error)
            finally:
                self._after_work()
                gc.enable()

        def ended(_: object) -> None:
            token.run_sync_soon(self._ended, work, failure)

        trio.lowlevel.start_thread_soon(steps, ended, "snapshot")

    async def stop(self) -> None:
        """Begin no other step, and wait for the one that runs; it may be writing a file."""
        self._is_stopped = True
        with trio.CancelScope(shield=True):
            await self._over.wait()

    def _ended(self, work: Work, failure: list[Exception]) -> None:
        self._over.set()

        def done(now: float) -> None:
            if failure:
                raise failure[0]
            self._done(work, now)

        if not self._is_stopped:
            self._put(done)
