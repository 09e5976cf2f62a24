"""The recent lateness of this server and its leader, which elections allow for. Pure.

On a busy machine a heartbeat comes late because the leader was late, or because this server was
late to read it. Neither is a reason for another leader, which would be no more punctual.
"""

HALF_LIFE_S = 5.0
"""A busy time is half forgotten after so long."""

LATENESS_MAX_S = 0.6
"""A server that is later than this was stopped, or is no leader to wait for: it is not noted."""


class Lateness:
    """The worst lateness of late; it fades."""

    def __init__(self) -> None:
        """Begin with a punctual past."""
        self._worst_s = 0.0
        self._at = 0.0

    def note(self, late_s: float, now: float) -> None:
        """Take one measurement."""
        if self.recent_s(now) < late_s <= LATENESS_MAX_S:
            self._worst_s, self._at = late_s, now

    def recent_s(self, now: float) -> float:
        """Return what to allow for."""
        if self._worst_s == 0.0:
            return 0.0
        return self._worst_s * 0.5 ** ((now - self._at) / HALF_LIFE_S)
