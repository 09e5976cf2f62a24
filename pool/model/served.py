"""Whether anything is served to a lease or by a server, as the table has it."""

from gpupool.pool.model.ids import Incarnation, ServerId
from gpupool.pool.model.state import Lease, PoolState


def why_over(state: PoolState, lease: Lease) -> str:
    """Return why nothing is served to a lease any more; empty while it is.

    A lease whose token was revoked may end a while later (``transitions.batches``).
    """
    if lease.token in state.revoking and lease.held:
        return state.tokens[lease.token].refusal(state.now)
    return lease.end_reason


def serves(state: PoolState, server: ServerId, incarnation: Incarnation) -> bool:
    """Return whether this start of a server is the latest, without leases of a former one."""
    known = state.servers.get(server)
    return known is not None and known.incarnation == incarnation and not known.freeing
