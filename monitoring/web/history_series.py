"""What servers have kept, as series for the page's charts, by the words of ``gpupool history``."""

from collections.abc import Mapping

from gpupool.monitoring.history.history_report import find_subject, lines_of, metrics_of
from gpupool.monitoring.usage_asking import problems_of, silent_servers
from gpupool.monitoring.web.pool_source import PoolSource
from gpupool.pool.errors import UsageError
from gpupool.pool.history_query import HistoryQuery
from gpupool.pool.model.ids import Milliseconds, ServerId
from gpupool.pool.view import PoolView, visible
from gpupool.remoting.client.history_answers import HistoryAnswer

POINTS_MAX = 700
"""Of one series: about as many as a chart has pixels to show."""

SUBJECT_LENGTH_MAX = 208
"""The longest name of a client, with the word before it."""


async def ask_series(source: PoolSource, asked: Mapping[str, str]) -> dict[str, object]:
    """Return the series of a subject, its metrics, and which servers did not answer."""
    snapshot = source.known()
    text = asked.get("of", "pool")
    found = find_subject(text, snapshot.view) if len(text) <= SUBJECT_LENGTH_MAX else None
    if found is None:
        raise UsageError(f"the pool has no {visible(text[:SUBJECT_LENGTH_MAX])}")
    known = metrics_of(found.of)
    name = asked.get("metric") or ("granted" if found.of == "pool" else "busy")
    if name not in known:
        raise UsageError(f"a {found.of} has no {visible(name)}", hint=", ".join(sorted(known)))
    since, until = asked_span(asked)
    query = HistoryQuery(
        found.of, name, found.name, since=since, until=until, points_max=POINTS_MAX
    )
    answer = await source.history(query, found.servers)
    names: dict[ServerId, str] = {each.id: visible(each.name) for each in snapshot.view.servers}
    metric = known[name]
    return {
        "title": visible(found.title),
        "metric": name,
        "unit": metric.unit,
        "metrics": sorted(known),
        "lines": [
            {
                "title": visible(line.title),
                "step": line.step_s,
                "t": [t for t, _, _ in line.points],
                "values": [round(value, 4) for _, value, _ in line.points],
            }
            for line in lines_of(found, metric, answer.pages, names)
        ],
        **lacking(snapshot.view, answer),
    }


def lacking(view: PoolView, answer: HistoryAnswer) -> dict[str, object]:
    """Return what an answer lacks: the servers that did not give one, and what others say of it."""
    silent = silent_servers(view, answer.silent)
    return {
        "silent": {visible(name): visible(why) for name, why in silent.items()},
        "problems": [visible(text) for text in problems_of(view, answer.pages.items())],
    }


def asked_span(asked: Mapping[str, str]) -> tuple[Milliseconds, Milliseconds]:
    """Return ``since`` and ``until`` of an address, in milliseconds.

    Raises:
        UsageError: when one is no time, or the first does not come before the second.
    """
    since, until = (_asked_time(asked, each) for each in ("since", "until"))
    if since >= until:
        raise UsageError("the time asked for ends before it begins")
    return since, until


def _asked_time(asked: Mapping[str, str], name: str) -> Milliseconds:
    text = asked.get(name, "")
    if not text.isdecimal() or len(text) > 15:
        raise UsageError(f"{name} is a time in milliseconds")
    return Milliseconds(int(text))
