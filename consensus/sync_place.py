"""Where the journal is synced: on the event loop's thread, or on another. Pure.

A quick disk (0.1 ms) would lose more by the change of threads than by the wait; a slow one would
keep the loop waiting. The change costs little on an idle machine. On a busy one the result of a
thread waits for the interpreter, for a processor and for the loop's next turn. A sync of 0.3 ms
then took up to 240 ms, and commits and heartbeats waited with it.

So both are measured, the sync itself and the change of threads::

    the sync takes, smoothed                          it is done
    less than ``INLINE_MAX_S``                        on the loop's thread
    less than a quarter of what the change takes      on the loop's thread, below ``BUSY_MAX_S``
    longer                                            on another thread

The change can be measured only when there is one, so its figure fades with each sync without one.
"""

INLINE_MAX_S = 0.002
"""A tenth of the time that a step of the event loop may take."""

BUSY_MAX_S = 0.02
"""The same for a loop whose turns take far longer: the time that a step may take."""

CHANGE_SHARE = 0.25
SMOOTHING = 1 / 8
FADING = 0.98


class SyncPlace:
    """Chooses where the next sync runs."""

    def __init__(self) -> None:
        """Begin on the loop's thread."""
        self._sync_s = self._change_s = 0.0

    @property
    def is_inline(self) -> bool:
        """True while the loop's own thread syncs."""
        busy_s = min(CHANGE_SHARE * self._change_s, BUSY_MAX_S)
        return self._sync_s < max(INLINE_MAX_S, busy_s)

    def synced_inline(self, sync_s: float) -> None:
        """Note a sync on the loop's thread."""
        self._sync_s += SMOOTHING * (sync_s - self._sync_s)
        self._change_s *= FADING

    def synced_beside(self, sync_s: float, whole_s: float) -> None:
        """Note a sync on another thread: how long it took there, and until the loop went on."""
        self._sync_s += SMOOTHING * (sync_s - self._sync_s)
        self._change_s += SMOOTHING * (max(whole_s - sync_s, 0.0) - self._change_s)
