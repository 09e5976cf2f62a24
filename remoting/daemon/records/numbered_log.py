"""A server's own file of numbered records of the table: one JSON object a line, only appended.

The table keeps the latest of such records; the file keeps all since the server joined. A full file
is renamed and the oldest one is removed, so the files take a bounded part of the disk.
"""

import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import trio

from gpupool.pool.errors import StorageError

FILE_SIZE_MAX = 8 << 20
FILE_COUNT_MAX = 8
LINE_SIZE_MAX = 8192
EVERY_S = 0.25


class Numbered(Protocol):
    """The interface of a record in a numbered log."""

    @property
    def number(self) -> int:
        """Return its place among all that there ever were, from 1."""
        ...


R = TypeVar("R", bound=Numbered)


class NumberedLog(Generic[R]):
    """Appends records from ``record`` to the file, in ``run``; made before the table is read."""

    def __init__(
        self,
        path: Path,
        log: logging.Logger,
        *,
        what: str,
        lines_of: Callable[[Sequence[R], int], list[str]],
        number_of: Callable[[str], int],
        size_max: int = FILE_SIZE_MAX,
        every_s: float = EVERY_S,
        written: Callable[[], None] = lambda: None,
    ) -> None:
        """Find the last record in the file, and cut a last line that a power loss left incomplete.

        Args:
            path: of the file that is appended to.
            log: takes what cannot be written.
            what: the name of the records, for people.
            lines_of: makes lines of records that follow the one with the given number.
            number_of: reads the number in a line; raises ValueError, KeyError or TypeError.
            size_max: of one file.
            every_s: how often ``run`` writes.
            written: called after records were written.

        Raises:
            StorageError: when the file cannot be read or cut.
        """
        self._path = path
        self._log = log
        self._what = what
        self._lines_of = lines_of
        self._size_max = size_max
        self._every_s = every_s
        self._written = written
        self._queue: deque[R] = deque()
        self._warned = False
        try:
            self._last = _mend(path, number_of)
        except OSError as error:
            raise StorageError(f"cannot use {path}", why=error.strerror or "") from error

    def record(self, records: tuple[R, ...]) -> None:
        """Take the records of one applied command or snapshot; never blocks."""
        self._queue.extend(records)

    async def run(self) -> None:
        """Write the recorded entries until cancelled, and then the rest."""
        try:
            while True:
                if self._queue:
                    await trio.to_thread.run_sync(self._write, tuple(self._queue))
                    self._forget()
                await self.tidy()
                await trio.sleep(self._every_s)
        finally:
            self.flush()

    async def tidy(self) -> None:
        """Do any other work on the files, while nobody writes them."""

    def rewrite(self, change: Callable[[bytes], bytes]) -> None:
        """Change the lines of all files, each file in one step; call it where ``run`` writes.

        Raises:
            OSError: when a file cannot be written; those before it are changed.
        """
        for number in range(FILE_COUNT_MAX):
            path = numbered(self._path, number)
            if not path.exists():
                continue
            lines = path.read_bytes().splitlines(keepends=True)
            changed = [change(line) for line in lines]
            if changed == lines:
                continue
            beside = path.with_name(f"{path.name}.new")
            descriptor = os.open(
                beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600
            )
            with open(descriptor, "wb") as file:
                file.writelines(changed)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)

    def flush(self) -> None:
        """Write the recorded entries now."""
        self._write(tuple(self._queue))
        self._forget()

    def _forget(self) -> None:
        while self._queue and self._queue[0].number <= self._last:
            self._queue.popleft()

    def _write(self, recorded: tuple[R, ...]) -> None:
        """Append all of ``recorded`` that is not in the file yet, and sync it.

        A disk that is full keeps the server from serving by its journal; here it is logged, once,
        and what could not be written waits.
        """
        records = [record for record in recorded if record.number > self._last]
        try:
            if records:
                self._append(records)
        except OSError as error:
            if not self._warned:
                self._log.error("the %s cannot be written to %s: %s", self._what, self._path, error)
            self._warned = True
            return
        self._warned = False
        if records:
            self._written()

    def _append(self, records: list[R]) -> None:
        data = "".join(self._lines_of(records, self._last)).encode()
        if self._path.exists() and self._path.stat().st_size + len(data) > self._size_max:
            self._rotate()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(self._path, flags, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(descriptor, view) :]
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, size)  # a whole batch or nothing of it
                raise
        finally:
            os.close(descriptor)
        self._last = records[-1].number

    def _rotate(self) -> None:
        for number in range(FILE_COUNT_MAX - 1, 0, -1):
            older = numbered(self._path, number - 1)
            if older.exists():
                older.replace(numbered(self._path, number))


def numbered(path: Path, number: int) -> Path:
    """Return the name of the file that was renamed so often; 0 is the one that is written."""
    return path.with_name(f"{path.name}.{number}") if number else path


def _mend(path: Path, number_of: Callable[[str], int]) -> int:
    """Cut a line without an end from the file, and return the number of its last record."""
    for file in (path, numbered(path, 1)):
        if not file.exists():
            continue
        with file.open("r+b") as opened:
            size = opened.seek(0, os.SEEK_END)
            start = max(0, size - 2 * LINE_SIZE_MAX)
            opened.seek(start)
            tail = opened.read()
            whole = tail[: tail.rfind(b"\n") + 1]
            if len(whole) < len(tail):
                opened.truncate(start + len(whole))
        for line in reversed(whole.splitlines()):
            try:
                return number_of(line.decode())
            except (ValueError, KeyError, TypeError):
                break  # not ours: what follows is appended, and its reader says which line
    return 0
