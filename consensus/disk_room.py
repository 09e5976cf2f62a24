"""Disk space under consensus: a server with a full disk waits for free space.

It does not end: the programs of its leases need no commit. It is as one whose disk hangs. No step
is done and nothing leaves, so that it neither votes nor leads, and the sync is tried again.
"""

import logging
from dataclasses import replace

from gpupool.consensus.core.library import NEVER
from gpupool.pool.errors import NoRoomError
from gpupool.pool.ports import RaftHealth

ROOM_POLL_S = 1.0
"""How often a full disk is tried again."""

_log = logging.getLogger(__name__)


class DiskRoom:
    """Whether the last sync of a driver found disk space."""

    def __init__(self) -> None:
        """Assume that the disk has room."""
        self._lacks = ""

    def refused(self, error: NoRoomError) -> None:
        """Take note of a sync that found none."""
        if not self._lacks:
            _log.error("%s: %s; %s", error.what, error.why, UNTIL_ROOM)
        self._lacks = error.why

    def found(self) -> None:
        """Take note of a sync that was done."""
        if self._lacks:
            _log.warning("the disk has room again: this server takes part again")
            self._lacks = ""

    def age_s(self, majority_age_s: float) -> float:
        """Return for how long this server has not been in touch with a majority."""
        return NEVER if self._lacks else majority_age_s

    def shown(self, health: RaftHealth) -> RaftHealth:
        """Return the health of consensus, with an alarm while the disk is full."""
        if not self._lacks:
            return health
        text = f"the disk of the state directory is full ({self._lacks}): {UNTIL_ROOM}"
        return replace(health, majority_age_s=NEVER, alarm=health.alarm or text)


UNTIL_ROOM = "this server grants nothing and does not vote until there is room; programs go on"
