"""What checks found earlier, for the page of health, by the words of ``gpupool health history``."""

from collections.abc import Mapping

from gpupool.monitoring.health.health_history import merged, unknown_before
from gpupool.monitoring.web.health_words import LEVELS
from gpupool.monitoring.web.history_series import asked_span, lacking
from gpupool.monitoring.web.pool_source import PoolSource
from gpupool.pool.history_query import HistoryQuery
from gpupool.pool.view import visible

ROWS_MAX = 2000
"""The newest; a page with more is of no use."""


async def ask_checks(source: PoolSource, asked: Mapping[str, str]) -> dict[str, object]:
    """Return the episodes of all servers' checks in a time, and which servers do not tell."""
    snapshot = source.known()
    since, until = asked_span(asked)
    answer = await source.history(HistoryQuery("health", since=since, until=until))
    view = snapshot.view
    names = {each.id: visible(each.name) for each in view.servers}
    gpus = {str(gpu.id): f"GPU {gpu.index}" for each in view.servers for gpu in each.gpus}
    rows = merged(answer.pages, names)
    return {
        "rows": [
            {
                "level": LEVELS[row.episode.status],
                "check": visible(row.episode.check),
                "server": row.server,
                "subject": visible(gpus.get(row.episode.subject, row.episode.subject)),
                "began": row.episode.began,
                "ended": row.episode.ended,
                "text": visible(row.episode.text),
            }
            for row in rows[:ROWS_MAX]
        ],
        "more": len(rows) > ROWS_MAX or any(page.more for page in answer.pages.values()),
        "unknown": unknown_before(answer.pages, names, since),
        **lacking(view, answer),
    }
