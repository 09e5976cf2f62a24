"""A server's own audit file: every administrative act of the pool, one JSON object a line.

The table keeps the latest 1024 acts; this file keeps all acts since the server joined. Lines are
only appended. A full file is renamed and the oldest one is removed, so the files take a bounded
part of the disk.
"""

import json
import logging
import os
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import trio

from gpupool.cli.lib.output import to_plain
from gpupool.pool.errors import StorageError
from gpupool.pool.model.ids import Milliseconds
from gpupool.pool.model.state import Act

NAME = "audit.jsonl"
FILE_SIZE_MAX = 8 << 20
FILE_COUNT_MAX = 8
"""64 MiB in all: about 300,000 acts."""

LINE_SIZE_MAX = 8192
EVERY_S = 0.25
MISSED = "acts-missed"
"""Kind of the line that stands for acts which were dropped before this server could see them."""


class AuditLog:
    """Appends what ``record`` is given to the file, in ``run``; made before the table is read."""

    def __init__(self, folder: Path, log: logging.Logger) -> None:
        """Find the last act in the file, and cut a last line that a power loss left incomplete.

        Raises:
            StorageError: when the file cannot be read or cut.
        """
        self._path = folder / NAME
        self._log = log
        self._queue: deque[Act] = deque()
        self._warned = False
        try:
            self._last = _mend(self._path)
        except OSError as error:
            raise StorageError(f"cannot use {self._path}", why=error.strerror or "") from error

    def record(self, acts: tuple[Act, ...]) -> None:
        """Take the acts of one applied command or snapshot; never blocks."""
        self._queue.extend(acts)

    async def run(self) -> None:
        """Write recorded acts until cancelled, and then the rest."""
        try:
            while True:
                if self._queue:
                    await trio.to_thread.run_sync(self._write, tuple(self._queue))
                    self._forget()
                await trio.sleep(EVERY_S)
        finally:
            self.flush()

    def flush(self) -> None:
        """Write recorded acts now."""
        self._write(tuple(self._queue))
        self._forget()

    def _forget(self) -> None:
        while self._queue and self._queue[0].number <= self._last:
            self._queue.popleft()

    def _write(self, recorded: tuple[Act, ...]) -> None:
        """Append all of ``recorded`` that is not in the file yet, and sync it.

        A disk that is full stops the server by its journal; here it is logged, once, and what
        could not be written waits.
        """
        acts = [act for act in recorded if act.number > self._last]
        try:
            if acts:
                self._append(acts)
        except OSError as error:
            if not self._warned:
                self._log.error("the audit cannot be written to %s: %s", self._path, error)
            self._warned = True
            return
        self._warned = False

    def _append(self, acts: list[Act]) -> None:
        lines: list[str] = []
        last = self._last
        for act in acts:
            if act.number > last + 1:
                what = (
                    f"acts {last + 1} to {act.number - 1} were dropped before this server saw them"
                )
                lines.append(_line(Act(last, act.index, act.at, MISSED, "the pool", "", what)))
            lines.append(_line(act))
            last = act.number
        data = "".join(lines).encode()
        if self._path.exists() and self._path.stat().st_size + len(data) > FILE_SIZE_MAX:
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
        self._last = last

    def _rotate(self) -> None:
        for number in range(FILE_COUNT_MAX - 1, 0, -1):
            older = _numbered(self._path, number - 1)
            if older.exists():
                older.replace(_numbered(self._path, number))


def read_acts(folder: Path) -> list[Act]:
    """Return every act that the server of ``folder`` has written, oldest first.

    Raises:
        StorageError: when there is no such file, or a line of it is damaged.
    """
    path = folder / NAME
    found: list[Act] = []
    files = [_numbered(path, number) for number in reversed(range(FILE_COUNT_MAX))]
    files = [each for each in files if each.exists()]
    if not files:
        raise StorageError(f"there is no audit in {folder}", hint="--state-dir of a server")
    for each in files:
        try:
            text = each.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise StorageError(f"cannot read {each}", why=str(error)) from error
        for number, line in enumerate(text.splitlines(keepends=True), start=1):
            if not line.endswith("\n"):
                break  # being written now, or cut by a power loss
            try:
                found.append(_act_of(line))
            except (ValueError, KeyError, TypeError) as error:
                raise StorageError(f"{each} is damaged", why=f"line {number}: {error}") from error
    return found


def act_fields(act: Act) -> dict[str, Any]:
    """Return ``act`` as it stands in the file, and in everything that is exported."""
    return {"schema": 1} | cast("dict[str, Any]", to_plain(act))


def _line(act: Act) -> str:
    return json.dumps(act_fields(act), separators=(",", ":")) + "\n"


def _act_of(line: str) -> Act:
    fields = cast("Mapping[str, Any]", json.loads(line))
    numbers = [int(fields[name]) for name in ("number", "index", "at")]
    texts = [str(fields[name]) for name in ("kind", "by", "subject", "text")]
    return Act(numbers[0], numbers[1], Milliseconds(numbers[2]), *texts)


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}") if number else path


def _mend(path: Path) -> int:
    """Cut a line without an end from the file, and return the number of its last act."""
    for file in (path, _numbered(path, 1)):
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
                return _act_of(line.decode()).number
            except (ValueError, KeyError, TypeError):
                break  # not ours: what follows is appended, and ``read_acts`` says which line
    return 0


def lines_of(acts: list[Act]) -> Iterator[str]:
    """Yield each act as one line of JSON."""
    for act in acts:
        yield _line(act)
