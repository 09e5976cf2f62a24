"""The arguments and the output of ``gpupool history``."""

import csv
from types import SimpleNamespace
from typing import Any

import pytest

from gpupool.monitoring.history.history_report import (
    Subject,
    as_csv,
    as_plain,
    find_subject,
    lines_of,
    metrics_of,
)
from gpupool.pool.history_query import HistoryPage, HistorySeries
from gpupool.pool.model.ids import ServerId

A, B = ServerId("a" * 12), ServerId("b" * 12)


def gpu(number: int, index: int) -> Any:
    return SimpleNamespace(id=f"GPU-{number}234", index=index)


VIEW: Any = SimpleNamespace(
    servers=(
        SimpleNamespace(id=A, name="gpu-a", gpus=(gpu(1, 0), gpu(2, 1))),
        SimpleNamespace(id=B, name="beef", gpus=(gpu(3, 0),)),
    ),
    leases=(SimpleNamespace(id=0xADA),),
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("pool", Subject("pool", "", "pool")),
        ("gpu-a", Subject("server", "", "gpu-a", (A,))),
        ("beef", Subject("server", "", "beef", (B,))),  # a server before a lease
        ("gpu-a:1", Subject("gpu", "GPU-2234", "gpu-a GPU 1", (A,))),
        ("GPU-3", Subject("gpu", "GPU-3234", "beef GPU 0", (B,))),
        ("gpu:GPU-1", Subject("gpu", "GPU-1234", "gpu-a GPU 0", (A,))),
        ("ada", Subject("lease", str(0xADA), "lease ada")),  # it runs
        ("user:ada", Subject("user", "ada", "user ada")),
        ("7f3a", Subject("lease", str(0x7F3A), "lease 7f3a")),
        ("fee", Subject("user", "fee", "user fee")),  # no lease that runs
        ("lease:nonsense", None),
        ("gpu:GPU-", None),  # of more than one
        ("server:nobody", None),
        ("eve", Subject("user", "eve", "user eve")),
        ("client:ada@laptop", Subject("client", "ada@laptop", "client ada@laptop")),
        ("client:", Subject("user", "client:", "user client:")),
    ],
)
def test_a_word_means_one_thing(text: str, found: Subject | None) -> None:
    assert find_subject(text, VIEW) == found


PAGES = {
    A: HistoryPage(10, (HistorySeries("GPU-1234", "GPU 0", ((1_790_000_000, 4000, 10, 700),)),)),
    B: HistoryPage(10, (HistorySeries("GPU-3234", "GPU 0", ()),)),
}


def test_values_are_sums_through_counts_in_the_metrics_unit() -> None:
    metric = metrics_of("server")["busy"]
    subject = Subject("server", "", "gpu-a", (A,))
    [line] = lines_of(subject, metric, PAGES, {A: "gpu-a"})
    assert line.title == "gpu-a GPU 0"
    assert line.points == ((1_790_000_000, pytest.approx(0.4), pytest.approx(0.7)),)
    rows = list(csv.reader(as_csv([line], "busy", metric).splitlines()))
    assert rows == [
        ["series", "time", "step [s]", "busy [GPUs]", "maximum [GPUs]"],
        ["gpu-a GPU 0", "2026-09-21T14:13:20Z", "10", "0.4", "0.7"],
    ]
    assert as_plain([line], "busy", metric)["series"] == [
        {"name": "gpu-a GPU 0", "step_s": 10, "points": [list(line.points[0])]}
    ]


def test_of_the_pool_one_server_is_shown() -> None:
    points = tuple((1_790_000_000 + 10 * at, 10_240, 10, -1) for at in range(3))
    pages = {
        A: HistoryPage(10, (HistorySeries("", "", points[:1]),)),
        B: HistoryPage(10, (HistorySeries("", "", points),)),
    }
    subject, metric = Subject("pool", "", "pool"), metrics_of("pool")["granted"]
    [line] = lines_of(subject, metric, pages, {A: "gpu-a", B: "beef"})
    assert (line.title, len(line.points), line.points[0][1:]) == ("pool, by beef", 3, (1.0, None))
