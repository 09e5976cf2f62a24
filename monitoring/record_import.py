"""Reads ``leases.jsonl`` as it grows, and after an absence everything that is still there."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from gpupool.pool.model.state import LeaseRecord
from gpupool.pool.transitions.kept_records import LINES_FILE, record_of

FILE_COUNT_MAX = 8
BATCH = 500


class RecordReader:
    """Follows the file of one server. It is renamed when it is full, and a new one begins."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / LINES_FILE
        self._inode = 0
        self._offset = 0
        self.damaged_lines = 0
        """Lines that were no records; they are passed over."""

    def batches(self, newest: int) -> Iterator[list[LeaseRecord]]:
        """Yield the records that were not read yet, those with larger numbers than ``newest``.

        After a renaming some may come again. A line that is being written is left for later.

        Raises:
            OSError: when a file cannot be read.
        """
        try:
            current = self._path.open("rb")
        except FileNotFoundError:
            return
        with current:
            if os.fstat(current.fileno()).st_ino == self._inode:
                yield from self._read(current, self._offset, newest)
                return
        while True:
            before = self._inodes()
            for number in range(FILE_COUNT_MAX - 1, -1, -1):
                name = f"{self._path.name}.{number}" if number else self._path.name
                try:
                    file = self._path.with_name(name).open("rb")
                except FileNotFoundError:
                    continue
                with file:
                    yield from self._read(file, 0, newest)
            if self._inodes() == before:
                return  # no file was renamed past the reader meanwhile

    def again(self) -> None:
        """Read everything the next time."""
        self._inode = 0

    def _inodes(self) -> list[int]:
        found: list[int] = []
        for name in (self._path.name, f"{self._path.name}.1"):
            try:
                found.append(self._path.with_name(name).stat().st_ino)
            except FileNotFoundError:
                found.append(0)
        return found

    def _read(self, file: BinaryIO, offset: int, newest: int) -> Iterator[list[LeaseRecord]]:
        file.seek(offset)
        batch: list[LeaseRecord] = []
        for line in file:
            if not line.endswith(b"\n"):
                break
            offset += len(line)
            try:
                record = record_of(line.decode())
            except ValueError:
                self.damaged_lines += 1
                continue
            if record.number > newest:
                batch.append(record)
            if len(batch) >= BATCH:
                yield batch
                batch = []
        if batch:
            yield batch
        # Only now: what a consumer could not store is read again.
        self._inode, self._offset = os.fstat(file.fileno()).st_ino, offset
