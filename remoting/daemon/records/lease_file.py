"""A server's records of leases: a file of ended ones, and lines of its log.

The exporter makes the accounts from the file. The log has each grant and each end of the pool.
"""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import trio

from gpupool.monitoring.exporter_link import ExporterLink
from gpupool.pool.model.forgetting import Forgotten
from gpupool.pool.model.ids import LeaseId, ServerId
from gpupool.pool.model.state import Event, LeaseRecord, PoolState
from gpupool.pool.transitions.kept_records import LINES_FILE, line_of, record_of, under_pseudonym
from gpupool.pool.view import readable, visible
from gpupool.remoting.daemon.records.numbered_log import FILE_SIZE_MAX, NumberedLog

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
