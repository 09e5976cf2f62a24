"""Health episodes of all servers, merged, for ``gpupool health history`` and the page. Pure.

Each server has those of its own checks. What several servers found of the pool at the same time is
one episode; a lack of a majority is not, because it is of the server that was cut off.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from gpupool.monitoring.accounting import LATEST_MS
from gpupool.monitoring.analysis.csv_rows import csv_text
from gpupool.monitoring.health.check_table import POOL_CHECKS
from gpupool.pool.history_query import Episode, HistoryPage
from gpupool.pool.model.ids import Milliseconds, ServerId
from gpupool.pool.telemetry import Health

SAME_WITHIN_MS = 30_000
"""Servers find faults of the pool some seconds after each other."""

ANSWERING = ("silent", "answer", "table", "link", "link-rtt", "link-loss", "mtu")
"""Checks with servers as subjects."""


@dataclass(frozen=True, slots=True)
class PoolEpisode:
    """One episode, with the name of the server that it is of; empty for the pool."""

    server: str
    episode: Episode

    def is_of(self, server: str, subject: str) -> bool:
        """Return whether it is of a server, or another's finding of that server, and a subject."""
        about = self.episode.subject
        of_server = self.server == server or (self.episode.check in ANSWERING and about == server)
        # People give the beginning of a GPU's id.
        return (not server or of_server) and (not subject or about.startswith(subject))

    def seconds(self, now: Milliseconds) -> float:
        """Return for how long it went on, up to ``now``."""
        return max(0, (self.episode.ended or now) - self.episode.began) / 1000


def merged(
    pages: Mapping[ServerId, HistoryPage], names: Mapping[ServerId, str]
) -> list[PoolEpisode]:
    """Return the episodes of all servers, the newest first."""
    found: list[PoolEpisode] = []
    of_pool: dict[tuple[str, str, Health], list[Episode]] = {}
    for server, page in pages.items():
        for each in page.episodes:
            cut_off = each.check == "quorum" and each.status is Health.FAIL
            if each.check in POOL_CHECKS and not cut_off:
                of_pool.setdefault((each.check, each.subject, each.status), []).append(each)
            else:
                found.append(PoolEpisode(names.get(server, server), each))
    found += [PoolEpisode("", each) for same in of_pool.values() for each in _joined(same)]
    return sorted(found, key=_order)


def _order(row: PoolEpisode) -> tuple[int, str, str, str]:
    return -row.episode.began, row.server, row.episode.check, row.episode.subject


def _joined(episodes: Iterable[Episode]) -> list[Episode]:
    """Return episodes of one check, subject and result as those that do not overlap."""
    found: list[Episode] = []
    for each in sorted(episodes, key=lambda one: one.began):
        last = found[-1] if found else None
        if last is None or (last.ended and each.began > last.ended + SAME_WITHIN_MS):
            found.append(each)
        else:
            ended = max(last.ended, each.ended) if last.ended and each.ended else Milliseconds(0)
            found[-1] = replace(last, ended=ended)
    return found


def unknown_before(
    pages: Mapping[ServerId, HistoryPage], names: Mapping[ServerId, str], since: int
) -> dict[str, int]:
    """Return the servers that do not know all of a range, and since when they do; 0: never."""
    return {
        names.get(server, server): page.oldest
        for server, page in pages.items()
        if not page.problem and (not page.oldest or page.oldest > since)
    }


def instant(at: int) -> str:
    """Return an instant of the pool's time."""
    if not 0 <= at < LATEST_MS:
        return f"{at} ms"
    return datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def as_csv(rows: Iterable[PoolEpisode], now: Milliseconds) -> str:
    """Return episodes as CSV (RFC 4180); of one that goes on the end is empty."""
    told: list[tuple[str, ...]] = [
        ("began", "ended", "duration [s]", "result", "check", "server", "subject", "text")
    ]
    for row in rows:
        each = row.episode
        ended = instant(each.ended) if each.ended else ""
        result = each.status.name.lower()
        cells = (instant(each.began), ended, f"{row.seconds(now):.3f}", result, each.check)
        told.append((*cells, row.server, each.subject, each.text))
    return csv_text(told)


def as_plain(rows: Iterable[PoolEpisode]) -> list[dict[str, object]]:
    """Return episodes as JSON carries them; null is the end of one that goes on."""
    return [
        {
            "server": row.server,
            "check": row.episode.check,
            "subject": row.episode.subject,
            "status": row.episode.status.name.lower(),
            "began": row.episode.began,
            "ended": row.episode.ended or None,
            "text": row.episode.text,
        }
        for row in rows
    ]
