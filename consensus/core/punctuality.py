"""The recent lateness of this server and its leader, which elections allow for. Pure.

On a busy machine a heartbeat comes late because the leader was late, or because this server was
late to read it. Neither is a reason for another leader, which would be no more punctual.

A server that was stopped is as late as one on a busy machine, and cannot tell the two apart at
first. A newer term tells: the others were punctual meanwhile. To wait longer afterwards would delay
the next election, which may need this server's vote.
"""

HALF_LIFE_S = 20.0
"""A busy time is half forgotten after so long. A busy machine lets a server stand still for 0.3 s
about twice a minute: with a fourth of this the last time was forgotten, and a leader deposed."""

LATENESS_MAX_S = 0.6
"""A server that is later than this was stopped, or is no leader to wait for: it is not noted."""


class Lateness:
    """The worst lateness of late; it fades."""

    def __init__(self) -> None:
        """Begin with a punctual past."""
        self._worst_s = 0.0
        self._at = 0.0
        self._before = (0.0, 0.0)  # the worst and its instant, before the latest standstill

    def note(self, late_s: float, now: float) -> None:
        """Take one measurement."""
        if self.recent_s(now) < late_s <= LATENESS_MAX_S:
            if self._at <= now - late_s:  # else another timer has seen the same standstill
                self._before = (self._worst_s, self._at)
            self._worst_s, self._at = late_s, now

    def ended_in_newer_term(self, heard_at: float) -> None:
        """Forget the lateness noted since ``heard_at``: this server was stopped.

        ``heard_at`` is when a leader last heard from a majority, or a follower from its leader.
        """
        if self._at > heard_at:
            self._worst_s, self._at = self._before

    def recent_s(self, now: float) -> float:
        """Return the decayed worst lateness for which elections allow, in seconds."""
        if self._worst_s == 0.0:
            return 0.0
        return self._worst_s * 0.5 ** ((now - self._at) / HALF_LIFE_S)
