"""The server's side of its sender of alerts: starts it, and tells it each second whether it sends.

Its end stops nothing here, and the server never waits for it.
"""

import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import trio

from gpupool.monitoring.observer_link import end_beside, start_beside
from gpupool.remoting.transport.watching import keep_watching

GATE_EVERY_S = 1.0
SENDS, MAJORITY = 1, 2


class AlertLink:
    """One server's sender of alerts."""

    def __init__(self, settings: Path, gate: Callable[[], int], log: logging.Logger) -> None:
        """Make the link.

        Args:
            settings: the file ``alerts.toml``.
            gate: whether this server sends and has a majority, as ``SENDS`` and ``MAJORITY``.
            log: gets each end of a sender.
        """
        self._settings = settings
        self._gate = gate
        self._log = log

    async def run(self) -> None:
        """Keep a sender running until cancelled."""
        await keep_watching(self._log.warning, "the sender of alerts", self._run_one)

    async def _run_one(self) -> str:
        """Run one sender to its end, and return its status in words."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await start_beside(
                *("gpupool.monitoring.health.alert_sender", str(theirs.fileno())),
                str(self._settings.resolve()),
                passed=(theirs.fileno(),),
            )
        ours.setblocking(False)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._tell, ours)
                await process.wait()
                nursery.cancel_scope.cancel()
        finally:
            ours.close()
            await end_beside(process)
        return f"status {process.returncode or 0}"

    async def _tell(self, ours: socket.socket) -> None:
        while True:
            # A sender that reads nothing for hours gets the rest later, or never.
            with suppress(OSError):
                ours.send(bytes([self._gate()]))
            await trio.sleep(GATE_EVERY_S)
