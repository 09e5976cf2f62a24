"""A recording gives back what was shown, and a file that is none is refused in a sentence."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpupool.cli.lib.columns import Glyphs
from gpupool.cli.lib.rows import PoolSnapshot
from gpupool.cli.tui.collector import Collector
from gpupool.cli.tui.keys import UiState
from gpupool.cli.tui.recording import Recorder, Recording
from gpupool.cli.tui.screen import render
from gpupool.pool.errors import GpupoolError, StorageError, UsageError
from gpupool.pool.model.ids import Milliseconds
from gpupool.remoting.client.subscription import PoolUpdate


def updates(snapshot: PoolSnapshot, count: int) -> list[PoolUpdate]:
    """Return updates of which only the first server says something new, a second apart."""
    first = snapshot.view.servers[0].id
    connected = tuple(server.id for server in snapshot.view.servers)
    told = dict(snapshot.telemetry)
    found: list[PoolUpdate] = []
    for at in range(count):
        told[first] = replace(told[first], at=Milliseconds(snapshot.view.now + 1000 * at))
        found.append(PoolUpdate(snapshot.view, dict(told), 0.1, connected))
    return found


def recorded(path: Path, snapshot: PoolSnapshot, count: int = 3) -> Collector:
    """Write a recording, and return what a live view has at its end."""
    collector, recorder = Collector(), Recorder(path, "1.2.3")
    recorder.open(100.0)
    server = snapshot.view.servers[0].id
    collector.trends.follow(server)
    for at, update in enumerate(updates(snapshot, count)):
        collector.ping_s[server] = 0.001
        collector.take(update, 100.0 + at)
        recorder.update(update, collector.ping_s, 100.0 + at)
        if not at:
            points = collector.trends.points_of(server, "busy")
            recorder.gpu_points(server, "busy", points)
            recorder.pool_points({"busy": ((1_699_999_000, 0.5),)})
            collector.trends.pool.fill("busy", [(1_699_999_000, 0.5)])
    recorder.close()
    return collector


def played(path: Path) -> tuple[Collector, list[float]]:
    recording, collector, times = Recording(path), Collector(), list[float]()
    for at, line in recording.lines():
        recording.play(line, collector, 100.0 + at)
        times.append(at)
    return collector, times


def frame(collector: Collector) -> str:
    return render(collector.snapshot(103.0), UiState(), 160, 40, Glyphs()).plain


def test_a_replay_shows_what_was_shown(tmp_path: Path, snapshot: PoolSnapshot) -> None:
    live = recorded(tmp_path / "top.gz", snapshot)
    again, times = played(tmp_path / "top.gz")
    assert frame(again) == frame(live)
    assert times == [0.0, 0.0, 0.0, 1.0, 2.0]
    with gzip.open(tmp_path / "top.gz", "rt") as file:
        lines = [json.loads(line) for line in file]
    assert lines[0] == {"gpupool_top": 1, "version": "1.2.3"}
    assert ["view" in line for line in lines[1:]] == [True, False, False, False, False]
    assert [len(line.get("telemetry", ())) for line in lines[1:]] == [3, 0, 0, 1, 1]


def test_a_file_that_was_cut_ends_there(tmp_path: Path, snapshot: PoolSnapshot) -> None:
    path = tmp_path / "top.gz"
    recorded(path, snapshot)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - 12])
    assert len(played(path)[1]) <= 5


def test_texts_of_a_file_move_no_cursor(tmp_path: Path, snapshot: PoolSnapshot) -> None:
    server = replace(snapshot.view.servers[0], reason="\x1b[2J\x07fan")
    view = replace(snapshot.view, servers=(server, *snapshot.view.servers[1:]))
    recorded(tmp_path / "top.gz", replace(snapshot, view=view), 1)
    assert "\x1b" not in frame(played(tmp_path / "top.gz")[0])


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["{}"],
        ["[1]"],
        ["{"],
        ['{"gpupool_top":2}'],
        ['{"gpupool_top":1}', '{"t":"x"}'],
        ['{"gpupool_top":1}', '{"t":0}'],
        ['{"gpupool_top":1}', '{"t":0,"age":0,"telemetry":[],"ping":{},"connected":[]}'],
        ['{"gpupool_top":1}', '{"t":0,"view":{"schema":1}}'],
        ['{"gpupool_top":1}', '{"pool":[1]}'],
        ['{"gpupool_top":1}', '{"server":"a","points":{"g":[[1]]}}'],
    ],
)
def test_what_is_no_recording_is_refused(tmp_path: Path, lines: list[str]) -> None:
    path = tmp_path / "top.gz"
    with gzip.open(path, "wt") as file:
        file.write("".join(f"{line}\n" for line in lines))
    with pytest.raises(UsageError, match="cannot replay"):
        played(path)


def test_a_file_that_is_not_even_gzip(tmp_path: Path) -> None:
    path = tmp_path / "top.gz"
    path.write_bytes(b"PK\x03\x04 not this")
    with pytest.raises(GpupoolError, match="cannot replay"):
        played(path)
    with pytest.raises(StorageError, match="cannot read"):
        played(tmp_path / "none")
    with pytest.raises(StorageError, match="cannot write"):
        Recorder(tmp_path / "no" / "where", "1").open(0.0)
