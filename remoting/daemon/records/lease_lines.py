"""The lines of a server's log about leases: each grant and each end, of the whole pool."""

import logging
import time
from collections.abc import Callable, Sequence

from gpupool.pool.model.ids import LeaseId, ServerId
from gpupool.pool.model.state import Event, PoolState
from gpupool.pool.view import readable, visible

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
