"""One server's monitor of its health: rounds of checks, findings, and the signs that drain.

The checks of 1 s and those of 10 s have a tracker each. Pure code: ``compose`` calls ``round``
every second.

A finding gets worse at once or after a while, and better after three good rounds. A subject that
changes more than four times in ten minutes is one finding, that it flaps. Its level and its text
are of one moment: while it is well, it is a warning that says how it was.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from gpupool.monitoring.health.check_table import FAST, PATIENCE_S, SLOW, SLOW_S, Run
from gpupool.monitoring.health.gpu_checks import PROGRAM_XIDS
from gpupool.monitoring.health.pool_checks import quorum
from gpupool.monitoring.health.readings import Past, Readings, Result
from gpupool.pool.model.ids import GpuId, Milliseconds
from gpupool.pool.telemetry import Finding, Health

GOOD_ROUNDS = 3
FLAPS_MAX, FLAPS_WITHIN_S = 4, 600.0
FINDING_COUNT_MAX = 256
"""Of one server; more are of no use to anybody, and each client gets them every second."""


@dataclass(slots=True)
class _Track:
    """State of one check of one subject."""

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


SIGNS = {
    "thermal": ("temperature", "throttle"),
    "repeated-xid": ("repeated-xid",),
    "ecc": ("ecc",),
    "remapped-rows": ("remapped-rows",),
    "pcie": ("pcie", "pcie-link"),
    "nvlink": ("nvlink",),
    "self-test": ("self-test",),
}
"""Signs for which GPUs can be drained, with the checks of each."""


class HealthMonitor:
    """The checks of one server, and their findings."""

    def __init__(
        self, drain_for: Iterable[str] = (), failed: Callable[[str], None] = lambda _text: None
    ) -> None:
        """Make a monitor.

        Args:
            drain_for: the signs of ``SIGNS`` for which GPUs are drained.
            failed: gets the name of a check that raised, which is a bug of it.
        """
        self.findings: tuple[Finding, ...] = ()
        self._drain_for = tuple(drain_for)
        self._failed = failed
        self._past = Past()
        self._fast, self._slow = FindingTracker(PATIENCE_S), FindingTracker(PATIENCE_S)
        self._found: tuple[tuple[Finding, ...], tuple[Finding, ...]] = ((), ())
        self._slow_at = float("-inf")

    def round(self, readings: Readings) -> tuple[Finding, ...]:
        """Run the checks that are due, and return the findings."""
        past, now, at = self._past, readings.now_s, readings.at
        if not readings.knows_table:
            self._found = self._fast.round(self._results((quorum,), readings), now, at), ()
            past.remember(readings)
            return self._said()
        past.look(readings, PROGRAM_XIDS)
        fast, slow = self._found
        fast = self._fast.round(self._results(FAST, readings), now, at)
        if now >= self._slow_at + SLOW_S - 0.5:
            self._slow_at = now
            slow = self._slow.round(self._results(SLOW, readings), now, at)
        past.remember(readings)
        self._found = fast, slow
        return self._said()

    def _said(self) -> tuple[Finding, ...]:
        fast, slow = self._found
        found = sorted((*fast, *slow), key=lambda each: (-each.status, each.check, each.subject))
        if tuple(found) != self.findings:
            self.findings = tuple(found)
        return self.findings

    def _results(self, checks: Iterable[Run], readings: Readings) -> list[Result]:
        found: list[Result] = []
        for check in checks:
            try:
                found += check(readings, self._past)
            except Exception as error:  # noqa: BLE001 - seeing must never stop a server that grants
                self._failed(f"{check.__name__}: {type(error).__name__}: {error}")
        return found

    def signs(self) -> dict[tuple[GpuId, str], str]:
        """Return the signs for which GPUs are to be drained now; see ``pool.automatic_drains``."""
        return {
            (GpuId(finding.subject), sign): finding.text
            for sign in self._drain_for
            for finding in self.findings
            if finding.check in SIGNS.get(sign, ())
        }
