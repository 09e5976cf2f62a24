"""Rows of hours that are over for good: packed column by column, some thousand rows in one value.

A row of SQLite has a byte for each column's kind besides its value, and repeats the time, the lease
and the GPU. Packed, a column's values lie together, as wide as the widest needs, their bytes sorted
by weight and compressed. The rows are in the order of their keys, so that the hours of one lease on
one GPU follow each other. Pure.
"""

import sys
import zlib
from array import array
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, repeat
from operator import add

from gpupool.monitoring.history.series import GPU, LEASE, TIERS, Metric, Table
from gpupool.pool.errors import StorageError

HOUR_S = TIERS[-1].step_s
ROWS_MAX = 5000
"""Of one value, so that no transaction is long."""

HOURS_MAX = 24
"""Rows of one day are packed together, at most."""

LEVEL = 9
WIDTH_BYTES, SIZE_BYTES = 1, 4
_KINDS = {1: "B", 2: "H", 4: "I", 8: "q"}
_FLIP = sys.byteorder == "big"

Column = Sequence[int]


@dataclass(frozen=True, slots=True)
class Packed:
    """The rows of some hours, of which columns are read one by one."""

    table: Table
    begin: int
    data: bytes

    def columns(self, names: Iterable[str]) -> list[Column]:
        """Return these columns, all in the same order of rows.

        Raises:
            StorageError: when the value is damaged.
        """
        places = self._places()
        try:
            return [self._named(name, places) for name in names]
        except (zlib.error, ValueError) as error:
            raise StorageError("the history is damaged", why=str(error)) from error

    def _named(self, name: str, places: Sequence[tuple[int, int, int]]) -> Column:
        at = self.table.columns.index(name)
        if at < len(places):
            return self._column(name, *places[at])
        return [0] * len(self._column("t", *places[0]))  # it came later than these rows

    def _column(self, name: str, width: int, start: int, end: int) -> Column:
        values = _spread(zlib.decompress(self.data[start:end]), width)
        if name != "t":
            return values
        if not 0 <= min(values) <= max(values) < HOURS_MAX:
            raise ValueError("an hour is of another day")
        times = [self.begin + HOUR_S * each for each in range(HOURS_MAX)]
        return [times[each] for each in values]

    def _places(self) -> list[tuple[int, int, int]]:
        """Return the width, the start and the end of each column that is there."""
        places: list[tuple[int, int, int]] = []
        at = 0
        for column in self.table.columns:
            if at == len(self.data) and column in self.table.later:
                break
            start = at + WIDTH_BYTES + SIZE_BYTES
            size = int.from_bytes(self.data[at + WIDTH_BYTES : start], "little")
            if self.data[at : at + 1] not in (b"\1", b"\2", b"\4", b"\x08"):
                raise StorageError("the history is damaged", why=f"a column is {at} bytes on")
            places.append((self.data[at], start, start + size))
            at = start + size
        return places


def pack(table: Table, begin: int, rows: Sequence[Sequence[int]]) -> bytes:
    """Return rows of whole hours from ``begin`` on, in the table's columns, as one value."""
    keys = range(1, 1 + len(table.keys))
    ordered = sorted(rows, key=lambda row: (*(row[each] for each in keys), row[0]))
    parts: list[bytes] = []
    for name, values in zip(table.columns, zip(*ordered, strict=True), strict=True):
        column = [(each - begin) // HOUR_S for each in values] if name == "t" else values
        width, data = _gather(column)
        packed = zlib.compress(data, LEVEL)
        parts += [bytes((width,)), len(packed).to_bytes(SIZE_BYTES, "little"), packed]
    return b"".join(parts)


def _gather(values: Sequence[int]) -> tuple[int, bytes]:
    """Return how wide the values are, and their lowest bytes, then the next ones, and so on."""
    low, high = min(values), max(values)
    widths = (each for each in (1, 2, 4) if low >= 0 and high < 1 << 8 * each)
    width = next(widths, 8)
    numbers = array(_KINDS[width], values)
    if _FLIP:
        numbers.byteswap()
    data = numbers.tobytes()
    return width, b"".join(data[each::width] for each in range(width))


def _spread(data: bytes, width: int) -> Column:
    """Return the values whose bytes ``_gather`` has sorted."""
    count = len(data) // width
    mixed = bytearray(count * width)
    for each in range(width):
        mixed[each::width] = data[each * count : (each + 1) * count]
    numbers: array[int] = array(_KINDS[width])
    numbers.frombytes(mixed)
    if _FLIP:
        numbers.byteswap()
    return numbers


def spans(counts: Sequence[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    """Yield from when to before when rows are packed together.

    Args:
        counts: hours of one day, in order, with the number of rows of each.
    """
    begin, rows = counts[0][0], 0
    for hour, count in counts:
        if rows and rows + count > ROWS_MAX:
            yield begin, hour
            begin, rows = hour, 0
        rows += count
    yield begin, counts[-1][0] + HOUR_S


# --- what questions read of them ------------------------------------------------------------------

SUMMED = ("n", "slots", "idle", "busy_n", "busy", "memory", "granted")
"""What reports add up of leases, and after them the most memory that was used."""


def points_of(
    packed: Packed, metric: Metric, since: int, until: int, chosen: Container[int] | None
) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield GPU (0 for leases), time, sum, count and maximum of each row; -1 for no maximum.

    Args:
        packed: the rows of some hours.
        metric: what is asked for.
        since: from then on.
        until: before then.
        chosen: keys of GPUs or leases; None for all.
    """
    [keys] = packed.columns((packed.table.keys[0],))
    if chosen is not None and not any(map(chosen.__contains__, set(keys))):
        return
    times, *columns = packed.columns(("t", *metric.columns))
    counts: Iterable[int]
    values: Iterable[int]
    counts, values, *others = columns
    if metric.times is None:
        for more in others:
            values = map(add, values, more)
    else:
        figures = list(map(metric.figures, *columns))
        values, counts = [each[0] for each in figures], [each[1] for each in figures]
    tops: Iterable[int] = repeat(-1)
    if metric.maximum:
        [tops] = packed.columns((metric.maximum,))
    rows = zip(keys, times, values, counts, tops)  # noqa: B905 - the last may be endless
    if chosen is not None:
        rows = compress(rows, map(chosen.__contains__, keys))
    is_gpu = packed.table is GPU
    for key, t, value, count, top in rows:
        if since <= t < until:
            yield key if is_gpu else 0, t, value, count, top


def lease_sums(
    packed: Packed, since: int, until: int, chosen: Container[int] | None
) -> Iterator[tuple[int, int, list[int]]]:
    """Yield each lease, a GPU, and its sums of ``SUMMED`` with the most memory used."""
    assert packed.table is LEASE
    times, leases, gpus, *columns = packed.columns(("t", *LEASE.keys, *SUMMED, "memory_max"))
    now: tuple[int, int, list[int]] | None = None
    rows = zip(*columns, strict=True)
    for t, lease, gpu, row in zip(times, leases, gpus, rows, strict=True):
        if not since <= t < until or (chosen is not None and lease not in chosen):
            continue
        if now is not None and lease == now[0] and gpu == now[1]:
            add_up(now[2], row)
            continue
        if now is not None:
            yield now
        now = lease, gpu, list(row)
    if now is not None:
        yield now


def memory_of_leases(
    packed: Packed, gpu: int, since: int, until: int
) -> Iterator[tuple[int, int, int]]:
    """Yield the lease, the time and the sum of memory of each row of one GPU."""
    assert packed.table is LEASE
    times, leases, gpus, memory = packed.columns(("t", *LEASE.keys, "memory"))
    for t, lease, at, used in zip(times, leases, gpus, memory, strict=True):
        if at == gpu and since <= t < until:
            yield lease, t, used


def add_up(known: list[int], more: Sequence[int]) -> None:
    """Add sums to others, and take the larger of their last figures."""
    top = max(known[-1], more[-1])
    known[:] = map(add, known, more)
    known[-1] = top
