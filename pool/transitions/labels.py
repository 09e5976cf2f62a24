"""Labels of servers: what they are started with, and what operators change later."""

from gpupool.pool.model.commands import LabelServer
from gpupool.pool.model.copies import with_changes
from gpupool.pool.model.results import Result, refuse
from gpupool.pool.model.state import PoolState, Server
from gpupool.pool.scheduling.filters import LABEL_COUNT_MAX, label_refusal
from gpupool.pool.transitions import operator_orders
from gpupool.pool.transitions.audit import record
from gpupool.pool.transitions.leases import note


def labels_at_start(server: Server, said: dict[str, str]) -> dict[str, str]:
    """Return a server's labels after it said ``said``.

    Only what differs from what it said last time counts, so that an operator's later change
    outlives a restart with the same command line. Leaving a label out takes none away.
    """
    new = {
        name: value
        for name, value in said.items()
        if server.labels_said.get(name) != value and not label_refusal({name: value})
    }
    labels = server.labels | new
    return labels if len(labels) <= LABEL_COUNT_MAX else server.labels


def label_server(state: PoolState, command: LabelServer) -> tuple[PoolState, Result]:
    """Set some labels of a server, and take some away; as a whole or not at all."""
    server = state.servers.get(command.server)
    if server is None:
        return state, refuse("never", "no such server")
    if (settled := operator_orders.check_order(server, command.order)) is not None:
        return state, settled
    if why := label_refusal(command.labels):
        return state, refuse("invalid", why)
    labels = {k: v for k, v in server.labels.items() if k not in command.without}
    labels |= command.labels
    if len(labels) > LABEL_COUNT_MAX:
        return state, refuse("denied", f"a server has at most {LABEL_COUNT_MAX} labels")
    changed = labels != server.labels
    server = with_changes(
        server,
        labels=labels,
        changed_at=state.now if changed else server.changed_at,
        orders=operator_orders.remembered(server, command.order),
    )
    state = with_changes(state, servers=state.servers | {server.id: server})
    if not changed:
        return state, Result(ok=True)
    changes = [f"{k}={v}" for k, v in command.labels.items()] + [f"{k}-" for k in command.without]
    state = record(state, "labelled", by=command.by, subject=server.name, text=" ".join(changes))
    text = f"{' '.join(changes)} (by {command.by})"
    return note(state, "labelled", server.name, text), Result(ok=True)
