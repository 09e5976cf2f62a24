"""The history of a server that has left, from its file: ``gpupool history --file``."""

import json
from collections.abc import Sequence
from pathlib import Path

import click.testing
import pytest
from tests.monitoring.samples import START_MS, gpu_id, sample, table

from gpupool.cli.commands.monitoring.history import SPAN_S, command
from gpupool.monitoring.history.history_file import look_into, read_whole
from gpupool.monitoring.history.history_settings import HistorySettings
from gpupool.monitoring.history.history_writer import HistoryWriter
from gpupool.pool.errors import StorageError, UsageError
from gpupool.pool.history_query import HistoryPage, HistoryQuery, HistorySeries, joined
from gpupool.pool.model.ids import Milliseconds

T0 = START_MS // 1000 // 86_400 * 86_400
HOURS = 8


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two slots of each half hour of a server with two GPUs, which then leaves."""
    folder, state = tmp_path_factory.mktemp("left"), table(gpus=2, leases=3)
    helper = HistoryWriter(folder, HistorySettings(), print, disk_full=lambda _: False)
    for second in range(0, HOURS * 3600 + 1, 1800):
        for late in (0, 10, 20):  # the third sample ends the second slot
            helper.take([sample(state, 1000 * (T0 + second + late), 0.5)])
    helper.close()
    return folder / "history.db"


def shown(file: Path, *words: str) -> dict[str, list[dict[str, list[list[float]]]]]:
    done = click.testing.CliRunner().invoke(
        command, ["--file", str(file), *words, "--json"], catch_exceptions=False
    )
    return json.loads(done.stdout)


def test_it_says_what_it_has_figures_of(file: Path) -> None:
    kept = look_into(file)
    (server,) = kept.servers
    assert (server.name, [(gpu.id, gpu.index) for gpu in server.gpus]) == (
        "gpu-a",
        [(gpu_id(0), 0), (gpu_id(1), 1)],
    )
    assert [lease.id for lease in kept.leases] == [2, 4, 6]
    assert kept.until_s == T0 + HOURS * 3600 + 20


def test_the_last_hours_are_shown_however_long_ago_it_left(file: Path) -> None:
    for words, names in (
        (["gpu-a"], ["gpu-a GPU 0", "gpu-a GPU 1"]),
        (["gpu-a:1"], ["gpu-a GPU 1"]),
        (["user:bob"], ["user bob on gpu-a"]),
        (["lease:0002"], ["lease 0002 on gpu-a"]),
        (["pool"], ["pool, by gpu-a"]),
    ):
        found = shown(file, *words)["series"]
        assert [each["name"] for each in found] == names
        times = [point[0] for point in found[0]["points"]]
        end = T0 + HOURS * 3600 + 20
        assert end - SPAN_S - 60 <= times[0] < end - SPAN_S + 1800
        assert end - 60 <= times[-1] < end


def test_any_other_range_is_shown(file: Path) -> None:
    (series,) = shown(file, "gpu-a:0", "--since", "2000-01-01T00:00")["series"]
    assert series["points"][0][0] == T0


@pytest.mark.parametrize(
    "words", [["server:gpu-b"], ["gpu:gpu-a:7"], ["gpu-a", "--metric", "nonsense"]]
)
def test_what_it_does_not_have_is_said(file: Path, words: Sequence[str]) -> None:
    with pytest.raises(UsageError) as refused:
        shown(file, *words)
    if "--metric" not in words:
        assert refused.value.hint == "it is of server gpu-a, whose GPUs are 0, 1"


def test_a_range_that_ends_before_it_begins_is_refused(file: Path) -> None:
    with pytest.raises(UsageError, match="ends before it begins"):
        shown(file, "gpu-a", "--since", "2001-01-01T00:00", "--until", "2000-01-01T00:00")


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    for content in (b"", b"not a database at all, and longer than its head" * 50):
        path.write_bytes(content)
        with pytest.raises(StorageError, match=r"cannot read .*history\.db"):
            look_into(path)
    with pytest.raises(StorageError):
        read_whole(path, HistoryQuery("pool", "granted", until=Milliseconds(2**50)))


def test_parts_of_an_answer_are_joined() -> None:
    first = HistoryPage(10, (HistorySeries("g", "GPU 0", ((1, 2, 3, 4),)),), more=True, after=1)
    rest = (HistorySeries("g", "GPU 0", ((11, 2, 3, 4),)), HistorySeries("h", "GPU 1", ()))
    whole = joined([first, HistoryPage(10, rest)])
    assert not whole.more
    assert whole.series == (HistorySeries("g", "GPU 0", ((1, 2, 3, 4), (11, 2, 3, 4))), rest[1])
