"""The history of the checks: from when to when each found something of a subject. Pure.

An episode is the time for which one check of one subject had one result that is not good. It begins
when the finding says so, and ends with the first sample without it. As long as a finding flaps, it
is one episode.

What went on when an exporter ended goes on if the finding is as old. Else it has ended, as far as
anybody knows, when it was seen last: what was meanwhile is unknown.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gpupool.pool.history_query import Episode
from gpupool.pool.model.ids import Milliseconds
from gpupool.pool.telemetry import Finding

TEXT_LENGTH_MAX = 300
UNWRITTEN_MAX = 2000
"""Episodes that wait for a disk that takes nothing; the oldest are left out, and counted."""

Key = tuple[str, str]
"""A check and its subject."""


@dataclass(frozen=True, slots=True)
class Left:
    """Checks in a file: the open episodes, and up to when they are known."""

    episodes: tuple[Episode, ...] = ()
    until: Milliseconds = Milliseconds(0)


class EpisodeBook:
    """The episodes of one server's checks; sees each sample's findings, in their order."""

    def __init__(self, left: Left) -> None:
        """Begin with the open episodes of a former exporter's last write."""
        self.lost = 0
        """Episodes that were never written."""
        self._open: dict[Key, Episode] = {(e.check, e.subject): e for e in left.episodes}
        self._left: dict[Key, Milliseconds] = dict.fromkeys(self._open, left.until)
        self._unwritten: dict[tuple[object, ...], Episode] = {}

    def look(self, findings: Iterable[Finding], at: Milliseconds) -> None:
        """Take the findings of one sample; ``at`` is its time."""
        found = {(each.check, each.subject): each for each in findings}
        for key, episode in list(self._open.items()):
            now, seen = found.get(key), self._left.get(key)
            same = now if now and (now.flaps or now.status is episode.status) else None
            if same is not None and (seen is None or same.since <= max(seen, episode.began)):
                continue
            if seen is not None:
                end = seen
            elif now is not None:
                end = now.since  # it got better or worse then
            else:
                end = at
            del self._open[key]
            self._note(replace(episode, ended=Milliseconds(max(end, episode.began, 1))))
        self._left.clear()
        for key, finding in found.items():
            if key not in self._open:
                text = finding.text[:TEXT_LENGTH_MAX]
                self._open[key] = Episode(*key, finding.status, finding.since, text=text)
                self._note(self._open[key])

    def unwritten(self) -> tuple[Episode, ...]:
        """Return the episodes that began or ended since they were written."""
        return tuple(self._unwritten.values())

    def written(self, episodes: Sequence[Episode]) -> None:
        """Take note that these are in the file."""
        for each in episodes:
            if self._unwritten.get(_identity(each)) == each:
                del self._unwritten[_identity(each)]

    def write_again(self) -> None:
        """Mark all open episodes as unwritten: the file is a new one."""
        for episode in self._open.values():
            self._note(episode)

    def _note(self, episode: Episode) -> None:
        self._unwritten[_identity(episode)] = episode
        if len(self._unwritten) > UNWRITTEN_MAX:
            del self._unwritten[next(iter(self._unwritten))]
            self.lost += 1


def _identity(episode: Episode) -> tuple[object, ...]:
    return episode.began, episode.check, episode.subject, episode.status
