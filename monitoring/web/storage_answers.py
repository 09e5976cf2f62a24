"""What the servers keep, and when their certificates end, for the page about the pool."""

from collections.abc import Mapping

from gpupool.monitoring.web.pool_source import PoolSource
from gpupool.pool.history_query import HistoryQuery
from gpupool.pool.view import visible


async def ask_storage(source: PoolSource, asked: Mapping[str, str]) -> dict[str, object]:
    """Return a row of each server that answers, and which do not."""
    del asked
    snapshot = source.known()
    answer = await source.history(HistoryQuery("storage"))
    names = {each.id: visible(each.name) for each in snapshot.view.servers}
    found = {names.get(k, k): page for k, page in answer.pages.items()}
    return {
        "servers": [
            {
                "name": name,
                "files": {visible(each): size for each, size in page.storage.files.items()},
                "max": page.storage.size_max,
                "tiers": [[each.step_s, each.kept_s, each.oldest] for each in page.storage.tiers],
                "ends": {visible(each): end for each, end in page.storage.ends.items()},
            }
            for name, page in sorted(found.items())
            if page.storage is not None
        ],
        "silent": {names.get(k, k): visible(why) for k, why in answer.silent.items()},
        "problems": [
            f"{name}: {visible(page.problem) or 'an older gpupool does not tell'}"
            for name, page in sorted(found.items())
            if page.problem or page.storage is None
        ],
    }
