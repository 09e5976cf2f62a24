"""Charts of series in the terminal, of braille dots or of ASCII alone. Pure: values in, lines out.

A column without points stays empty: a gap is never a zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

from gpupool.pool.model.units import DAY_S
from gpupool.pool.view import visible

Point = tuple[int, float]
"""A Unix second, and a value."""

DOTS = ((0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08))
"""The dots of a braille character by column, from below."""

BLOCKS = "▁▂▃▄▅▆▇█"
"""The lowest is a zero, which differs from a gap."""

AXIS_WIDTH = 8


@dataclass(frozen=True, slots=True)
class Frame:
    """Time range and size of a chart."""

    since: int  # Unix seconds
    until: int
    width: int = 72  # characters, with the axis
    height: int = 8  # lines of the plot
    ascii: bool = False


def chart(title: str, unit: str, points: Sequence[Point], frame: Frame) -> list[str]:
    """Return the lines of one chart: title, plot with its axis, and times below."""
    across = max(8, frame.width - AXIS_WIDTH - 2)
    dots_across, dots_up = (across, 1) if frame.ascii else (2 * across, 4)
    columns = _columns(points, frame, dots_across)
    # A column has a mean, and the title names the largest point.
    top = _rounded_up(max((value for _, value in points), default=0.0))
    lines = [f"{visible(title)}  {_summary(points, unit)}"]
    levels = [
        None if value is None else _level(value, top, frame.height * dots_up) for value in columns
    ]
    for row in reversed(range(frame.height)):
        drawn = _ascii_row(levels, row) if frame.ascii else _braille_row(levels, row, across)
        mark = top if row == frame.height - 1 else 0.0 if row == 0 else None
        axis = "" if mark is None else _number(mark)
        lines.append(f"{axis:>{AXIS_WIDTH}} {'|' if frame.ascii else '│'}{drawn}".rstrip())
    lines.append(f"{'':>{AXIS_WIDTH + 2}}{_times(frame, across)}")
    return lines


def sparkline(
    points: Sequence[Point],
    span: tuple[int, int],
    width: int,
    top: float,
    *,
    in_ascii: bool,
    in_blocks: bool = False,
) -> str:
    """Return one line of ``width`` characters, up to ``top``: dots, blocks, or digits 0 to 9."""
    frame = Frame(*span)
    if in_blocks and not in_ascii:
        levels = (None if v is None else _level(v, top, 7) for v in _columns(points, frame, width))
        return "".join(" " if level is None else BLOCKS[level] for level in levels)
    if not in_ascii:
        columns = _columns(points, frame, 2 * width)
        return _braille_row([None if v is None else _level(v, top, 4) for v in columns], 0, width)
    digits = [None if v is None else _level(v, top, 9) for v in _columns(points, frame, width)]
    return "".join(" " if digit is None else str(digit) for digit in digits)


def _columns(points: Sequence[Point], frame: Frame, count: int) -> list[float | None]:
    """Return the mean of each column; of one narrower than the points' step, the last point."""
    sums, counts = [0.0] * count, [0] * count
    span = max(1, frame.until - frame.since)
    step = min((b[0] - a[0] for a, b in pairwise(points)), default=0)
    for t, value in points:
        first = (t - frame.since) * count // span
        last = (t + max(1, step) - 1 - frame.since) * count // span
        for at in range(max(0, first), min(count - 1, last) + 1):
            sums[at] += value
            counts[at] += 1
    return [sums[at] / counts[at] if counts[at] else None for at in range(count)]


def _level(value: float, top: float, most: int) -> int:
    """Return a value's height in dots; a positive value has at least one."""
    if top <= 0 or value <= 0:
        return 0
    return max(1, min(most, round(value / top * most)))


def _ascii_row(levels: Sequence[int | None], row: int) -> str:
    def cell(level: int | None) -> str:
        if level is None:
            return " "
        if level > row:
            return "#"
        return "_" if row == 0 else " "

    return "".join(cell(level) for level in levels)


def _braille_row(levels: Sequence[int | None], row: int, across: int) -> str:
    cells: list[str] = []
    for at in range(across):
        bits = 0
        for side in (0, 1):
            level = levels[2 * at + side]
            if level is None:
                continue
            if row == 0 and level == 0:
                bits |= DOTS[side][0]  # a zero is seen, and differs from a gap
            for dot in range(min(4, max(0, level - 4 * row))):
                bits |= DOTS[side][dot]
        cells.append(chr(0x2800 + bits) if bits else " ")
    return "".join(cells)


def _rounded_up(value: float) -> float:
    """Return the next of 1, 2, 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 1.0
    while power * 10 <= value:
        power *= 10
    while power > value:
        power /= 10
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= value * 0.999)


def _summary(points: Sequence[Point], unit: str) -> str:
    if not points:
        return "nothing is known of this time"
    values = [value for _, value in points]
    mean = sum(values) / len(values)
    said = [f"mean {_number(mean)}", f"max {_number(max(values))}", f"now {_number(values[-1])}"]
    return ", ".join(said) + (f" {unit}" if unit else "")


def _number(value: float) -> str:
    if value == 0:
        return "0"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _times(frame: Frame, across: int) -> str:
    form = "%m-%d %H:%M" if frame.until - frame.since > DAY_S else "%H:%M:%S"
    first, last = (
        datetime.fromtimestamp(each, UTC).strftime(form) for each in (frame.since, frame.until)
    )
    last = f"{last} UTC"
    return f"{first} {last:>{across - len(first) - 1}}"
