"""Rows of hours that an earlier gpupool packed column by column, made rows of SQLite again.

Up to schema 4 the hours of a day that was over became one value. It has for each column how wide
its numbers are, its length, and the numbers, their bytes sorted by weight and compressed. The time
is a number of hours. Columns that came later may be missing at the end.
"""

import sqlite3
import sys
import zlib
from array import array
from collections.abc import Iterator

from gpupool.monitoring.history.series import GPU, LEASE, TIERS

HOURS = TIERS[-1]
_KINDS = {1: "B", 2: "H", 4: "I", 8: "q"}


def unpack(db: sqlite3.Connection) -> None:
    """Put all packed rows of a file into its tables of hours, in the transaction that is open.

    Raises:
        sqlite3.DatabaseError: when one of the values is damaged.
    """
    for table in (GPU, LEASE):
        marks = ", ".join("?" * len(table.columns))
        insert = f"INSERT OR REPLACE INTO {table.at(HOURS)} VALUES ({marks})"  # noqa: S608
        for begin, data in db.execute(f"SELECT t, data FROM {table.name}_packed"):  # noqa: S608
            try:
                columns = list(_columns(begin, data))
                columns += [[0] * len(columns[0])] * (len(table.columns) - len(columns))
                db.executemany(insert, zip(*columns, strict=True))
            except (zlib.error, ValueError, KeyError, IndexError, OverflowError) as error:
                raise sqlite3.DatabaseError(f"packed hours are damaged: {error}") from error
        db.execute(f"DROP TABLE {table.name}_packed")


def _columns(begin: int, data: bytes) -> Iterator[list[int]]:
    at = 0
    while at < len(data):
        width, end = data[at], at + 5 + int.from_bytes(data[at + 1 : at + 5], "little")
        values = _numbers(zlib.decompress(data[at + 5 : end]), width)
        yield [begin + HOURS.step_s * each for each in values] if at == 0 else values
        at = end


def _numbers(data: bytes, width: int) -> list[int]:
    """Return the numbers whose bytes are sorted by weight."""
    count = len(data) // width
    mixed = bytearray(count * width)
    for each in range(width):
        mixed[each::width] = data[each * count : (each + 1) * count]
    numbers: array[int] = array(_KINDS[width])
    numbers.frombytes(mixed)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()
