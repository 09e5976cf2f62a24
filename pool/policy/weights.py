"""The weights of classes: factors of their leases' shares of a GPU's computing time.

They are read from the policy in force and not from the grant, so that a new policy, or a window
that opens, changes the turns of leases that run. A server asks for those of its own leases.
"""

from gpupool.pool.model.ids import LeaseId, ServerId
from gpupool.pool.model.state import PoolState
from gpupool.pool.policy.rulebook import rulebook


def lease_weights(state: PoolState, server: ServerId, now_ms: int) -> dict[LeaseId, float]:
    """Return the weights of the leases held on a server, but for those of weight 1.

    Args:
        state: the table.
        server: the leases' server.
        now_ms: the table's time, by which windows are open or closed.
    """
    book = rulebook(state.policy)
    if not book.has_weights:
        return {}
    moment = book.moment(max(state.now, now_ms))
    found: dict[LeaseId, float] = {}
    for lease in state.leases.at(server).values():
        source = moment.terms(lease.user).weight if lease.held else None
        if source is not None and source.rule.number != 1000:
            found[lease.id] = source.rule.number / 1000
    return found
