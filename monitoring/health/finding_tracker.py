"""From results to findings: worse at once or after a while, better after three good rounds.

A subject that changes more than four times in ten minutes is one finding, that it flaps. Its level
and its text are of one moment: while it is well, it is a warning that says how it was. Pure code.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpupool.monitoring.health.readings import Result
from gpupool.pool.model.ids import Milliseconds
from gpupool.pool.telemetry import Finding, Health

GOOD_ROUNDS = 3
FLAPS_MAX, FLAPS_WITHIN_S = 4, 600.0
FINDING_COUNT_MAX = 256
"""Of one server; more are of no use to anybody, and each client gets them every second."""


@dataclass(slots=True)
class _Track:
    """What is known of one check of one subject."""

    status: Health = Health.OK
    latest: dict[Health, Result] = field(default_factory=dict[Health, Result])  # of each level
    since: Milliseconds = Milliseconds(0)
    worse_since: dict[Health, tuple[float, Milliseconds]] = field(
        default_factory=dict[Health, tuple[float, Milliseconds]]
    )
    good_rounds: int = 0
    changes: deque[float] = field(default_factory=deque[float])
    worst: Health = Health.OK  # of the changes that are remembered

    @property
    def flaps(self) -> bool:
        return len(self.changes) > FLAPS_MAX


class FindingTracker:
    """The findings of one server's checks of one interval."""

    def __init__(self, patience_s: Mapping[str, float]) -> None:
        """Make a tracker; ``patience_s`` is for how long a check must be bad before it is said."""
        self._patience_s = patience_s
        self._tracks: dict[tuple[str, str], _Track] = {}

    def round(
        self, results: Iterable[Result], now_s: float, at: Milliseconds
    ) -> tuple[Finding, ...]:
        """Take all results of one round that are not good, and return the findings."""
        seen: dict[tuple[str, str], Result] = {}
        for result in results:
            key = result.check, result.subject
            if key not in seen or seen[key].status < result.status:
                seen[key] = result
        for key in seen:
            if key not in self._tracks and len(self._tracks) < FINDING_COUNT_MAX:
                self._tracks[key] = _Track()
        for key in list(self._tracks):
            self._follow(self._tracks[key], seen.get(key), now_s, at)
            track = self._tracks[key]
            if not (track.status or track.changes or track.worse_since):
                del self._tracks[key]
        return tuple(
            found for track in self._tracks.values() if (found := _finding(track)) is not None
        )

    def _follow(self, track: _Track, result: Result | None, now_s: float, at: Milliseconds) -> None:
        status = result.status if result is not None else Health.OK
        while track.changes and track.changes[0] < now_s - FLAPS_WITHIN_S:
            track.changes.popleft()
        if not track.changes:
            track.worst = track.status
        for level in (Health.WARN, Health.FAIL):
            if status >= level:
                track.worse_since.setdefault(level, (now_s, at))
            else:
                track.worse_since.pop(level, None)
        if result is not None:
            track.latest[status] = result
        if status > track.status:
            track.good_rounds = 0
            patience_s = self._patience_s.get(track.latest[status].check, 0.0)
            for level in (Health.FAIL, Health.WARN):
                since = track.worse_since.get(level)
                if since is not None and level > track.status and now_s - since[0] >= patience_s:
                    _change(track, level, now_s, since[1])
                    break
        elif status < track.status:
            track.good_rounds += 1
            if track.good_rounds >= GOOD_ROUNDS:
                _change(track, status, now_s, at)
        else:
            track.good_rounds = 0


def _change(track: _Track, status: Health, now_s: float, at: Milliseconds) -> None:
    track.status, track.since, track.good_rounds = status, at, 0
    track.changes.append(now_s)
    track.worst = max(track.worst, status)


def _finding(track: _Track) -> Finding | None:
    level = track.status
    if not (level or track.flaps):
        return None
    shown = track.latest[level or track.worst]
    text = shown.text
    if not level:
        count = (len(track.changes) + 1) // 2
        verb = "failed" if track.worst is Health.FAIL else "was bad"
        text = f"{verb} {count} times in 10 minutes, and is well now: {text}"
    elif track.flaps:
        text = f"flaps, {len(track.changes)} changes in 10 minutes: {text}"
    status, since = level or Health.WARN, track.since
    return Finding(shown.check, shown.subject, status, since, text, shown.hint, track.flaps)
