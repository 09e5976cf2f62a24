"""History of servers, as series for the page's charts, by the words of ``gpupool history``."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import trio

from gpupool.monitoring.history.history_report import find_subject, lines_of, metrics_of
from gpupool.monitoring.history.time_slots import THROTTLED, XID
from gpupool.monitoring.usage_asking import problems_of, silent_servers
from gpupool.monitoring.web.pool_source import PoolSource
from gpupool.pool.errors import GpupoolError, UsageError
from gpupool.pool.history_query import HistoryPage, HistoryQuery, HistorySeries
from gpupool.pool.model.ids import Milliseconds, ServerId
from gpupool.pool.view import PoolView, visible
from gpupool.remoting.client.history_answers import HistoryAnswer

POINTS_MAX = 700
"""Of one series: about as many as a chart has pixels to show."""

SUBJECT_LENGTH_MAX = 208
"""The longest name of a client, with the word before it."""


async def ask_series(source: PoolSource, asked: Mapping[str, str]) -> dict[str, object]:
    """Return the series of a subject, its metrics, and the servers without an answer."""
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
    """Return the gaps of an answer: the servers without one, and the others' problems."""
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


# --- one GPU --------------------------------------------------------------------------------------


LEASES_SHOWN = 6
"""Leases with a separate colour, those with the most memory; the rest are one."""

MIB_A_GIB = 1024


async def ask_gpu_history(source: PoolSource, asked: Mapping[str, str]) -> dict[str, object]:
    """Return the memory in use by leases of one GPU, and the GPU's marks."""
    snapshot = source.known()
    text = asked.get("of", "")[: SUBJECT_LENGTH_MAX + 1]
    found = find_subject(text, snapshot.view)
    if found is None or found.of != "gpu":
        raise UsageError(f"the pool has no GPU {visible(text)}", hint="a GPU is SERVER:NUMBER")
    since, until = asked_span(asked)
    query = HistoryQuery(
        "gpu", "memory", found.name, since=since, until=until, points_max=POINTS_MAX
    )
    queries = {of: replace(query, of=of) for of in ("gpu", "gpu-leases", "gpu-marks")}
    answers = await _ask_all(source, queries, found.servers)
    pages = {of: _page(answer) for of, answer in answers.items()}
    silent = {k: why for answer in answers.values() for k, why in answer.silent.items()}
    names: dict[ServerId, str] = {each.id: visible(each.name) for each in snapshot.view.servers}
    problems = dict.fromkeys(page.problem for page in pages.values() if page.problem)
    return {
        **_memory(pages["gpu"], pages["gpu-leases"]),
        **_marks(pages["gpu-marks"]),
        "silent": {names.get(k, k): visible(why) for k, why in silent.items()},
        "problems": [visible(each) for each in problems],
    }


async def _ask_all(
    source: PoolSource, queries: Mapping[str, HistoryQuery], servers: tuple[ServerId, ...]
) -> dict[str, HistoryAnswer]:
    """Send all queries at once; the source bounds the queries under way."""
    found: dict[str, HistoryAnswer] = {}
    failures: list[GpupoolError] = []

    async def ask(of: str, query: HistoryQuery) -> None:
        try:
            found[of] = await source.history(query, servers)
        except GpupoolError as error:
            failures.append(error)

    async with trio.open_nursery() as nursery:
        for of, query in queries.items():
            nursery.start_soon(ask, of, query)
    if failures:
        raise failures[0]
    return found


def _page(answer: HistoryAnswer) -> HistoryPage:
    """Return the answer of the GPU's only server, or nothing."""
    return next(iter(answer.pages.values()), HistoryPage())


def _memory(whole: HistoryPage, leases: HistoryPage) -> dict[str, object]:
    """Return the times, the memory in use, and that of each lease, in GiB; a gap is a gap."""
    used = {t: total / n / MIB_A_GIB for each in whole.series for t, total, n, _ in each.points}
    times = sorted(used)
    ranked = sorted(leases.series, key=_sum, reverse=True)
    own = [each for each in ranked if each.key][:LEASES_SHOWN]
    rest = [each for each in ranked if each not in own]
    rows = [(visible(each.key), visible(each.label), [each]) for each in own]
    if rest:
        rows.append(("", "", rest))
    return {
        "step": whole.step_s,
        "t": times,
        "used": [round(used[t], 3) for t in times],
        "leases": [
            {"lease": lease, "user": user, "values": _values(of, times)} for lease, user, of in rows
        ],
    }


def _sum(series: HistorySeries) -> int:
    return sum(total for _, total, *_ in series.points)


def _values(series: Iterable[HistorySeries], times: Iterable[int]) -> list[float]:
    found: dict[int, float] = {}
    for each in series:
        for t, total, n, _ in each.points:
            found[t] = found.get(t, 0.0) + total / n / MIB_A_GIB
    return [round(found.get(t, 0.0), 3) for t in times]


def _marks(page: HistoryPage) -> dict[str, object]:
    """Return for which share of each step clocks were held down, by reason, and the Xid errors."""
    throttled: list[dict[str, object]] = []
    xids: list[dict[str, object]] = []
    for each in page.series:
        kind, _, word = each.key.partition(".")
        t = [point[0] for point in each.points]
        amounts = [point[1] for point in each.points]
        if kind == THROTTLED:
            shares = [min(1.0, round(one / 1000 / page.step_s, 4)) for one in amounts]
            throttled.append({"reason": visible(word), "t": t, "shares": shares})
        elif kind == XID:
            xids.append({"xid": visible(word), "t": t, "counts": amounts})
    return {"mark_step": page.step_s, "throttled": throttled, "xids": xids}
