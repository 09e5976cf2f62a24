"""Charts in the terminal: a gap is no zero, a zero is seen, and ASCII alone is enough."""

from gpupool.cli.lib.terminal_chart import Frame, chart

T = 1_790_000_000
FRAME = Frame(T, T + 3600, width=30, height=3, ascii=True)


def plot(points: list[tuple[int, float]], frame: Frame = FRAME) -> list[str]:
    return chart("gpu-1", "GPUs", points, frame)


def test_a_chart_has_a_title_an_axis_and_times() -> None:
    ramp = [(T + 180 * at, at / 20) for at in range(20)]
    assert plot(ramp) == [
        "gpu-1  mean 0.475, max 0.95, now 0.95 GPUs",
        "       1 |                 ###",
        "         |          ##########",
        "       0 |_###################",
        "          14:13:20 15:13:20 UTC",
    ]


def test_a_gap_is_empty_and_a_zero_is_not() -> None:
    points = [(T + 180 * at, 1.0 if at < 5 else 0.0) for at in range(20) if not 8 <= at < 12]
    assert plot(points)[3] == "       0 |#####___    ________"
    braille = chart("gpu-1", "", points, Frame(T, T + 3600, width=30, height=3))
    assert braille[3].endswith("⣿⣿⣿⣿⣿⣀⣀⣀    ⣀⣀⣀⣀⣀⣀⣀⣀")


def test_what_is_more_than_nothing_is_seen() -> None:
    points = [(T + 180 * at, 100.0 if at == 3 else 0.01) for at in range(20)]
    assert plot(points)[3] == "       0 |####################"


def test_nothing_known_is_said() -> None:
    assert plot([])[0] == "gpu-1  nothing is known of this time"


def test_long_ranges_have_dates_and_titles_move_no_cursor() -> None:
    lines = chart("a\x1b[2Jb", "", [(T, 1.0)], Frame(T, T + 30 * 86_400, width=60))
    assert "\x1b" not in lines[0]
    assert lines[-1].split() == ["09-21", "14:13", "10-21", "14:13", "UTC"]


def test_more_points_than_columns_are_means() -> None:
    points = [(T + at, float(at % 2)) for at in range(3600)]
    lines = plot(points)
    assert lines[1:4] == [
        "       1 |",
        "         |####################",
        "       0 |####################",
    ]
    assert "most 1" in lines[0] or "max 1" in lines[0], "the axis has room for what the title says"
