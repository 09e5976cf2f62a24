"""The status line on stderr of a request that waits, updated in place."""

import shutil
import sys

import trio

FIRST_AFTER_S = 0.3
"""A grant usually comes sooner than this, and then nothing is to be said."""

REDRAW_S = 1.0


class WaitingLine:
    """Shows the latest status after ``FIRST_AFTER_S``; nothing when stderr is no terminal."""

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown and sys.stderr.isatty()
        self._text = ""
        self._drawn = ""
        self._changed = trio.Event()

    def update(self, text: str) -> None:
        """Take a new status; called as often as the client has one."""
        self._text = text
        self._changed.set()

    async def show(self) -> None:
        """Draw until cancelled, then remove the line."""
        if not self._shown:
            return
        started = trio.current_time()
        try:
            await trio.sleep(FIRST_AFTER_S)
            while True:
                self._changed = trio.Event()
                self._draw(waiting_text(self._text, trio.current_time() - started))
                with trio.move_on_after(REDRAW_S):
                    await self._changed.wait()
                await trio.sleep(0.05)  # a burst of news is drawn once
        finally:
            self._draw("")

    def _draw(self, text: str) -> None:
        width = shutil.get_terminal_size().columns
        text = text[: max(0, width - 1)]
        if text != self._drawn:
            sys.stderr.write(f"\r{text}\x1b[K")
            sys.stderr.flush()
            self._drawn = text


def waiting_text(status: str, waited_s: float) -> str:
    """Return the line: the reason for the wait, and its length once that is 2 s."""
    text = f"gpupool: {status or 'asking the pool'}"
    return f"{text}, {waited_s:.0f} s" if waited_s >= 2 else text
