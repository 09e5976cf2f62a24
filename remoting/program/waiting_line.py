"""What stderr says of a request that waits.

A terminal has one line, which is updated in place. A file or a pipe gets a line when the wait
begins and one each minute after, so that the log of a batch job shows what the job waits for.
"""

import math
import shutil
import sys
from collections.abc import Awaitable, Callable

import trio

from gpupool.pool.values import duration_text, free_text
from gpupool.remoting.local.terminal import say

FIRST_AFTER_S = 0.3
"""A grant usually comes sooner than this, and then nothing is to be said."""

FIRST_LINE_AFTER_S = 1.0
"""The same where lines stay."""

ESTIMATE_AFTER_S = 0.5
"""A request that has waited for so long is worth a look at the limits of lease times."""

CTRL_C_WIDTH = 3
"""A terminal writes ^C behind the line, which must not go on below."""

REDRAW_S = 1.0
REPEAT_S = 60.0

Tell = Callable[[str], Awaitable[None]]


async def _say(text: str) -> None:
    await trio.lowlevel.checkpoint()
    say(f"gpupool: {text}")


class WaitingLine:
    """Shows the latest status of a request for as long as it waits."""

    def __init__(
        self, *, shown: bool, tell: Tell | None = None, first_after_s: float = FIRST_LINE_AFTER_S
    ) -> None:
        """Prepare; nothing is shown before ``show`` runs.

        Args:
            shown: False for a quiet command.
            tell: takes the lines instead of stderr; for a notebook, whose cell shows them.
            first_after_s: when the first line comes where lines stay.
        """
        self._shown = shown
        self._first_after_s = first_after_s
        self._in_place = tell is None and sys.stderr.isatty()
        self._tell = tell or _say
        self._text = ""
        self._free_at = math.inf
        self._drawn = ""
        self._changed = trio.Event()

    def update(self, text: str) -> None:
        """Take a new status; called as often as the client has one."""
        self._text = text
        self._changed.set()

    def free_in(self, by_s: float) -> None:
        """Take after how long GPUs are free at the latest; infinite if nobody knows."""
        self._free_at = trio.current_time() + by_s
        self._changed.set()

    async def show(self) -> None:
        """Draw until cancelled, then remove the line."""
        if not self._shown:
            return
        if not self._in_place:
            await self._repeat()
        started = trio.current_time()
        try:
            await trio.sleep(FIRST_AFTER_S)
            while True:
                self._changed = trio.Event()
                room = shutil.get_terminal_size().columns - len("gpupool: ") - CTRL_C_WIDTH
                self._draw(f"gpupool: {self._now(started, room)}")
                with trio.move_on_after(REDRAW_S):
                    await self._changed.wait()
                await trio.sleep(0.05)  # a burst of news is drawn once
        finally:
            self._draw("")

    async def _repeat(self) -> None:
        started = trio.current_time()
        await trio.sleep(self._first_after_s)
        while True:
            told = self._known()
            await self._tell(self._now(started))
            with trio.move_on_after(REPEAT_S):
                while self._known() <= told:
                    self._changed = trio.Event()
                    await self._changed.wait()

    def _known(self) -> set[str]:
        """Return what there is to say: a line that lacked some of it is followed by another."""
        known = {"what for": self._text != "", "until when": self._free_at < math.inf}
        return {what for what, is_known in known.items() if is_known}

    def _now(self, started: float, room: int = sys.maxsize) -> str:
        """Return what is to be said now: times go on between two answers of the pool."""
        left_s, free = self._free_at - trio.current_time(), ""
        if 0 < left_s < math.inf:
            by = f"GPUs free in {duration_text(round(left_s))} at the latest"
            free = f"; {by if self._in_place else free_text(left_s)}"
        return waiting_text(self._text, trio.current_time() - started, free, room)

    def _draw(self, text: str) -> None:
        width = shutil.get_terminal_size().columns
        text = text[: max(0, width - 1)]
        if text != self._drawn:
            sys.stderr.write(f"\r{text}\x1b[K")
            sys.stderr.flush()
            self._drawn = text


def line_of_command(*, quiet: bool, verbose: int) -> WaitingLine:
    """Return the line of a command on stderr.

    With ``-v`` each status is a line of its own. Without a terminal this one comes each minute.
    """
    spoken = verbose and not sys.stderr.isatty()
    return WaitingLine(shown=not quiet, first_after_s=REPEAT_S if spoken else FIRST_LINE_AFTER_S)


def waiting_text(status: str, waited_s: float, free: str = "", room: int = sys.maxsize) -> str:
    """Return the reason for the wait, which is cut to the room, and its length from 2 s on."""
    text, waited = status or "asking the pool", ""
    if waited_s >= 2:
        long = waited_s >= 120
        waited = f", {duration_text(waited_s // 60 * 60) if long else f'{waited_s:.0f} s'}"
    room -= len(waited) + len(free)
    text = text if len(text) <= room else f"{text[: max(0, room - 3)]}..."
    return f"{text}{waited}{free}"
