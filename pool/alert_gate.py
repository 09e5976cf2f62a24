"""The server that sends the pool's alerts: of those that can, the one with the lowest id."""

from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.state import PoolState, ServerStatus
from gpupool.pool.ports import RaftHealth
from gpupool.pool.view import has_quorum


def sends_alerts(state: PoolState, self_id: ServerId, health: RaftHealth) -> bool:
    """Return whether this server sends alerts: it is in touch with a majority, and the first.

    A server that lost contact is passed over once the table says so, seconds after it stopped
    counting itself as in touch with a majority.
    """
    if not has_quorum(health):
        return False
    able = [
        server.id
        for server in state.servers.values()
        if server.alerts and server.status is ServerStatus.UP
    ]
    return min(able, default=None) == self_id
