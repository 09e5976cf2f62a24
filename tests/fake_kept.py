"""Stored data of the servers of ``fake_web_pool``: the answers that do not depend on the pool."""

from gpupool.pool.history_query import (
    CapacitySum,
    HistoryPage,
    HistoryQuery,
    HistorySeries,
    KeptTier,
    SampleSum,
    Storage,
)
from gpupool.pool.model.ids import Milliseconds

DAY_S, GIB = 86_400, 1 << 30


def capacity(now_ms: int, model: str) -> HistoryPage:
    """Return three days of one model."""
    day, hour = now_ms // 1000 // DAY_S * DAY_S, 3_600_000_000
    parts = (24 * 3600, 192 * hour, 96 * hour, 0, 24 * hour, 0, 8 * hour)
    sums = tuple(CapacitySum(day - DAY_S * n, model, *parts) for n in range(3))
    return HistoryPage(capacity=sums, oldest=Milliseconds(1000 * sums[-1].day))


def sums(query: HistoryQuery, users: tuple[str, ...]) -> HistoryPage:
    """Return sums of samples by user."""
    names = users[:6] if query.metric == "user" else ("",)
    measured = tuple(
        SampleSum(name, 900, 90 * n, 900 * 10**7, 90 * n * 10**7, 9000, 4_000_000, 1, 2, 1)
        for n, name in enumerate(names)
    )
    return HistoryPage(sums=measured)


def storage(now_ms: int, number: int) -> HistoryPage:
    """Return a server's storage report; the certificate of the first one ends in 20 days."""
    files = {"history.db": (210 + number) << 20, "usage.db": 24 << 20, "leases.jsonl": 9 << 20}
    tiers = tuple(
        KeptTier(step, kept, Milliseconds(now_ms - 1000 * min(kept, 9 * DAY_S)))
        for step, kept in ((10, DAY_S), (60, 30 * DAY_S), (3600, 731 * DAY_S))
    )
    days = {"server": 200 if number else 20, "ca": 3000, "web": 300}
    ends = {name: Milliseconds(now_ms + 86_400_000 * each) for name, each in days.items()}
    return HistoryPage(storage=Storage(files, GIB, tiers, ends))


def of_gpu(query: HistoryQuery, step: int, leases: tuple[tuple[str, str], ...]) -> HistoryPage:
    """Return leases of a GPU that take turns, or the GPU's marks."""
    times = range(int(query.since) // 1000, int(query.until) // 1000, step)
    if query.of == "gpu-marks":
        third = len(times) // 3
        hot = tuple((t, 400 * step, 1, -1) for t in times[third : third + 12])
        power = tuple((t, 80 * step, 1, -1) for t in times[len(times) // 2 :: 3])
        xid = ((times[len(times) // 4], 2, 1, -1),) if times else ()
        words = {"throttled.hw_thermal": hot, "throttled.power": power, "xid.31": xid}
        found = [HistorySeries(word, "", points) for word, points in words.items() if points]
        return HistoryPage(step, tuple(found))
    series: list[HistorySeries] = []
    for n, (lease, user) in enumerate(leases):
        there = [t for t in times if (t // step + 40 * n) % 160 < 120]
        points = tuple((t, (6 + n) * 1024 * 10, 10, -1) for t in there)
        series.append(HistorySeries(lease, user, points))
    return HistoryPage(step, tuple(each for each in series if each.points))
