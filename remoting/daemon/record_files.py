"""A server's own files of the table's records, and the lines of its log about leases.

A ``NumberedLog`` has one JSON object a line, and is only appended to. The table keeps the latest of
such records; the file keeps all since the server joined. A full file is renamed and the oldest one
is removed, so the files take a bounded part of the disk: 64 MiB, which is about 300,000
administrative acts. There are two: ``AuditLog`` of the administrative acts, and ``LeaseLog`` of the
records of ended leases, from which the exporter makes the accounts.

The log has each grant and each end of the pool (``LeaseLines``).
"""

import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, cast

import trio

from gpupool.monitoring.exporter_link import ExporterLink
from gpupool.pool.errors import StorageError
from gpupool.pool.model.forgetting import Forgotten
from gpupool.pool.model.ids import LeaseId, Milliseconds, ServerId
from gpupool.pool.model.plain import to_plain
from gpupool.pool.model.state import Act, Event, LeaseRecord, PoolState
from gpupool.pool.transitions.kept_records import LINES_FILE, line_of, record_of, under_pseudonym
from gpupool.pool.view import readable, visible

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


# --- administrative acts --------------------------------------------------------------------------

AUDIT_FILE = "audit.jsonl"
MISSED = "acts-missed"
"""Kind of the line for acts that were dropped before this server could see them."""


class AuditLog(NumberedLog[Act]):
    """Appends the acts that ``record`` is given to the file, in ``run``."""

    def __init__(self, folder: Path, log: logging.Logger) -> None:
        """Find the last act in the file of ``folder``.

        Raises:
            StorageError: when the file cannot be read or cut.
        """
        super().__init__(
            folder / AUDIT_FILE,
            log,
            what="audit",
            lines_of=_lines_after,
            number_of=lambda line: _act_of(line).number,
            size_max=FILE_SIZE_MAX,
            every_s=EVERY_S,
        )


def _lines_after(acts: Sequence[Act], last: int) -> list[str]:
    lines: list[str] = []
    for act in acts:
        if act.number > last + 1:
            what = f"acts {last + 1} to {act.number - 1} were dropped before this server saw them"
            lines.append(_line(Act(last, act.index, act.at, MISSED, "the pool", "", what)))
        lines.append(_line(act))
        last = act.number
    return lines


def read_acts(folder: Path) -> list[Act]:
    """Return every act that the server of ``folder`` has written, oldest first.

    Raises:
        StorageError: when there is no such file, or a line of it is damaged.
    """
    path = folder / AUDIT_FILE
    found: list[Act] = []
    files = [numbered(path, number) for number in reversed(range(FILE_COUNT_MAX))]
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


def lines_of(acts: list[Act]) -> Iterator[str]:
    """Yield each act as one line of JSON."""
    for act in acts:
        yield _line(act)


# --- leases ---------------------------------------------------------------------------------------

KINDS = {"granted", "ended", "notice", "unreachable", "reachable", "gpu-fault"}
"""Events that get a line; the acts of operators have the audit."""


class LeaseLines:
    """Writes a line for each event of a lease or a server, with the same in fields for JSON."""

    def __init__(
        self,
        log: logging.Logger,
        table: Callable[[], PoolState],
        *,
        since_ms: int | None = None,
    ) -> None:
        """Prepare.

        Args:
            log: where the lines go.
            table: returns the table as it is now.
            since_ms: older events are not told of. A start applies the whole journal again, whose
                events an earlier run has told of.
        """
        self._log = log
        self._table = table
        self._since_ms = time.time_ns() // 1_000_000 if since_ms is None else since_ms

    def record(self, events: Sequence[Event]) -> None:
        """Write the lines of events that have just happened."""
        for event in events:
            if event.kind in KINDS and event.at >= self._since_ms:
                fields = self._fields(event)
                what = "lease" if event.kind in ("granted", "ended", "notice") else "server"
                self._log.info(
                    "%s %s %s: %s",
                    what,
                    visible(event.subject),
                    event.kind,
                    visible(readable(event.text)),
                    extra={"fields": fields},
                )

    def _fields(self, event: Event) -> dict[str, object]:
        fields: dict[str, object] = {"event": event.kind}
        if event.kind not in ("granted", "ended", "notice"):
            return fields | {"server": event.subject}
        state = self._table()
        fields["lease"] = event.subject
        lease = state.leases.get(LeaseId(int(event.subject, 16)))
        if lease is None:
            return fields
        names = sorted({_name(state, part.server) for part in lease.partitions})
        fields |= {
            "user": lease.user,
            "program": lease.program,
            "client": lease.client,
            "servers": names,
            "gpus": len(lease.partitions),
            "memory": sum(part.memory for part in lease.partitions),
        }
        if event.kind == "ended":
            fields |= {"reason": event.text, "held_s": (event.at - lease.granted_at) / 1000}
        return fields


def _name(state: PoolState, server: ServerId) -> str:
    found = state.servers.get(server)
    return found.name if found is not None else server


LOG = logging.getLogger("gpupool.records")
FORGOTTEN_NAME = "leases.forgotten"
FOLDER = "monitoring"
"""In the state directory: all that the exporter may read and write."""


class LeaseLog(NumberedLog[LeaseRecord]):
    """Appends the records that ``record`` is given to the file, in ``run``.

    A gap in the numbers is what was dropped before this server saw it.
    """

    def __init__(
        self, state_dir: Path, log: logging.Logger, exporter: ExporterLink | None = None
    ) -> None:
        """Find the last record in the file of ``state_dir``, of which ``exporter`` is told.

        Raises:
            StorageError: when the file cannot be read or cut.
        """
        super().__init__(
            monitoring_folder(state_dir) / LINES_FILE,
            log,
            what="records of leases",
            lines_of=_lines,
            number_of=lambda line: record_of(line).number,
            size_max=FILE_SIZE_MAX,
            written=exporter.records_written if exporter is not None else lambda: None,
        )
        self._exporter = exporter
        self._note = monitoring_folder(state_dir) / FORGOTTEN_NAME
        self._forgot: tuple[Forgotten, ...] = ()

    async def tidy(self) -> None:
        """Erase the users that the pool has forgotten from the files."""
        forgotten = self._exporter.forgotten() if self._exporter is not None else ()
        if forgotten == self._forgot:
            return
        self._forgot = forgotten  # a disk that refuses is tried again after the next start
        try:
            await trio.to_thread.run_sync(self.forget, forgotten)
        except OSError as error:
            LOG.error("a forgotten user's name is still in the records of leases: %s", error)

    def forget(self, forgotten: tuple[Forgotten, ...]) -> None:
        """Replace names in all files, once for each order; a file beside them says so.

        Raises:
            OSError: when a file cannot be written.
        """
        done = self._note.read_text("ascii").split() if self._note.exists() else []
        orders = tuple(each for each in forgotten if each.salt.hex() not in done)
        if not orders:
            return

        def change(line: bytes) -> bytes:
            try:
                record = record_of(line.decode())
            except ValueError:
                return line
            renamed = under_pseudonym(record, orders)
            return line if renamed is record else line_of(renamed).encode()

        self.rewrite(change)
        self._note.write_text("\n".join(each.salt.hex() for each in forgotten), "ascii")


def _lines(records: Sequence[LeaseRecord], _last: int) -> list[str]:
    return [line_of(record) for record in records]


def monitoring_folder(state_dir: Path) -> Path:
    """Return the exporter's folder, made if it is missing."""
    folder = state_dir / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
