"""The lines of GPUs in the live view: the history's values, then live ones, and gaps as gaps."""

from dataclasses import replace

import pytest
from rich.cells import cell_len

from gpupool.cli.lib.columns import Glyphs
from gpupool.cli.lib.terminal_chart import sparkline
from gpupool.cli.tui.keys import FIGURES, UiState
from gpupool.cli.tui.live_state import Collector
from gpupool.cli.tui.screen import render
from gpupool.cli.tui.trends import FIGURES as DRAWN
from gpupool.cli.tui.trends import FOLLOWED_MAX, SLOT_S, SLOTS, Trends, trend_width
from gpupool.pool.history_query import HistoryPage, HistorySeries
from gpupool.pool.model.ids import GpuId, Milliseconds, ServerId
from gpupool.pool.read_model.pool_snapshot import PoolSnapshot
from gpupool.pool.read_model.pool_watch import PoolUpdate
from gpupool.pool.telemetry import GpuTelemetry, Telemetry

SERVER, GPU = ServerId("000000000000"), GpuId("GPU-0-0")
NOW = 1_700_000_000  # the view's, and the beginning of a slot
ASCII = Glyphs(ascii=True)


def page(*points: tuple[int, int]) -> HistoryPage:
    """Return an answer with thousandths, two samples each."""
    series = HistorySeries(GPU, "GPU 0", tuple((t, 2 * value, 2, -1) for t, value in points))
    return HistoryPage(step_s=SLOT_S, series=(series,))


def reading(at_s: float, busy: float | None) -> Telemetry:
    gpu = GpuTelemetry(GPU, 5 << 30, busy, 61.0, 350.0)
    return Telemetry(SERVER, Milliseconds(round(at_s * 1000)), (gpu,))


def filled(*points: tuple[int, int]) -> Trends:
    trends = Trends()
    trends.follow(SERVER)
    trends.fill(SERVER, "busy", page(*points), 0.001)
    return trends


def test_keys_and_figures_are_the_same() -> None:
    assert tuple(DRAWN) == FIGURES


def test_the_line_begins_with_the_values_of_the_history() -> None:
    points = [(NOW - SLOT_S * at, 100 * at) for at in (3, 2, 1)]
    assert filled(*points).gpus.points[GPU, "busy"] == (
        (NOW - 30, pytest.approx(0.3)),
        (NOW - 20, pytest.approx(0.2)),
        (NOW - 10, pytest.approx(0.1)),
    )


def test_live_readings_go_on_with_it_as_means_of_a_slot() -> None:
    trends = filled((NOW - 10, 500))
    for at, busy in ((0.0, 0.2), (1.0, 0.4), (2.0, None), (11.0, 1.0)):
        trends.take(reading(NOW + at, busy))
    assert trends.gpus.points[GPU, "busy"][1:] == ((NOW, pytest.approx(0.3)), (NOW + 10, 1.0))
    assert trends.gpus.points[GPU, "power"] == ((NOW, 350.0), (NOW + 10, 350.0))
    assert (GPU, "sm") not in trends.gpus.points  # a reading that is not to be had is no zero


def test_the_history_fills_a_gap_and_corrects_what_is_over() -> None:
    trends = filled()
    trends.take(reading(NOW - 21, 0.9))
    trends.take(reading(NOW, 0.7))
    trends.fill(SERVER, "busy", page((NOW - 30, 800), (NOW - 10, 600), (NOW, 0)), 0.001)
    assert trends.gpus.points[GPU, "busy"] == ((NOW - 30, 0.8), (NOW - 10, 0.6), (NOW, 0.7))


def test_only_so_much_is_kept() -> None:
    trends = filled()
    for at in range(3 * SLOTS):
        trends.take(reading(NOW + SLOT_S * at, 0.5))
    assert len(trends.gpus.points[GPU, "busy"]) == SLOTS
    for at in range(FOLLOWED_MAX):
        trends.follow(ServerId(f"{at + 1:012x}"))
    assert trends.gpus.points == {}
    trends.take(reading(NOW, 0.5))
    assert trends.gpus.points == {}


def test_a_line_has_gaps_and_zeros_in_braille_and_in_ascii() -> None:
    points = [(100, 0.0), (110, 0.6), (130, 1.0)]
    blocks = sparkline(points, (100, 140), 4, 1.0, in_ascii=False, in_blocks=True)
    assert blocks == "▁▅ █"
    assert sparkline(points, (100, 140), 4, 1.0, in_ascii=True) == "05 9"
    assert sparkline(points, (100, 140), 2, 1.0, in_ascii=False) == "\u28e0\u28b8"


def test_a_wide_screen_has_longer_lines(snapshot: PoolSnapshot) -> None:
    assert [trend_width(each) for each in (80, 150, 300)] == [20, 32, 60]
    trends = filled(*((NOW - SLOT_S * at, 500) for at in range(1, SLOTS)))
    row = drawn_row(replace(snapshot, trends=trends.gpus.points), ASCII, 300)
    assert "4" * 59 in row


def test_the_pool_has_a_line_of_the_last_hour(snapshot: PoolSnapshot) -> None:
    trends = Trends()
    busy = page((NOW - 1800, 500), (NOW - 1790, 300))
    other = page((NOW - 1800, 100))
    gib_hours = HistorySeries("", "", ((NOW - 20, 2 * 280, 2, -1),))
    trends.fill_pool([busy, other], HistoryPage(SLOT_S, (gib_hours,)), 560)
    assert trends.pool.points["busy"] == ((NOW - 1800, 0.3), (NOW - 1790, 0.3))
    assert trends.pool.points["granted"] == ((NOW - 20, 0.5),)
    trends.take_pool(snapshot)
    assert trends.pool.points["busy"][-1] == (NOW, pytest.approx(0.42))
    assert trends.pool.points["granted"][-1] == (NOW, 0.25)
    shown = replace(snapshot, pool_trend=trends.pool.points)
    for width in (80, 160):
        line = render(shown, UiState(), width, 24, ASCII).plain.split("\n")[2]
        assert line.startswith(" last hour  busy ")
        assert line.endswith(" 25%")
        assert " 42%   granted " in line
        assert len(line) <= width
    assert "last hour" not in render(shown, UiState(), 80, 16, ASCII).plain


def drawn_row(snapshot: PoolSnapshot, glyphs: Glyphs, width: int) -> str:
    lines = render(snapshot, UiState(), width, 40, glyphs).plain.split("\n")
    return lines[next(n for n, line in enumerate(lines) if "2 GPUs" in line) + 2]


def drawn(snapshot: PoolSnapshot, figure: str, glyphs: Glyphs) -> str:
    """Return the row of the first GPU; the pool's history fills half the line."""
    trends = filled(*((NOW - SLOT_S * at, 500) for at in range(1, 21)))
    shown = replace(snapshot, trends=trends.gpus.points)
    lines = render(shown, UiState(figure=figure), 160, 40, glyphs).plain.split("\n")
    assert all(cell_len(line) <= 160 for line in lines)
    at = next(n for n, line in enumerate(lines) if "2 GPUs" in line)
    return "\n".join(lines[at : at + 3])


def test_a_gpu_row_has_its_line_and_its_value(snapshot: PoolSnapshot) -> None:
    row = drawn(snapshot, "busy", ASCII).split("\n")[2]
    assert f"H200   {' ' * 31}{'4' * 11}  42%" in row
    braille = drawn(snapshot, "busy", Glyphs()).split("\n")[2]
    assert "\u28e4" * 9 in braille
    assert "42%" in braille


@pytest.mark.parametrize(
    ("figure", "title", "value"),
    [
        ("sm", "SM ACTIVITY", "-"),
        ("memory", "MEMORY USED", "5.0G"),
        ("power", "POWER DRAWN", "350W"),
        ("temperature", "TEMPERATURE", "61C"),
    ],
)
def test_another_figure_takes_its_place(
    snapshot: PoolSnapshot, figure: str, title: str, value: str
) -> None:
    text = drawn(snapshot, figure, ASCII)
    assert text.isascii()
    assert title in text
    assert "UTIL" not in text
    assert f"H200   {value}" in text


def test_the_collector_hands_the_points_on(snapshot: PoolSnapshot) -> None:
    collector = Collector(0.5)
    collector.trends.follow(SERVER)
    collector.take(PoolUpdate(snapshot.view, {SERVER: reading(NOW, 0.5)}, 0.0, (SERVER,)), 1.0)
    known = collector.snapshot(1.0)
    assert known is not None
    assert known.trends[GPU, "busy"] == ((NOW, 0.5),)
