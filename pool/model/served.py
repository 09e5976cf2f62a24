"""Whether anything is served to a lease, by the table."""

from gpupool.pool.model.state import Lease, PoolState


def why_over(state: PoolState, lease: Lease) -> str:
    """Return why nothing is served to a lease any more; empty while it is.

    A lease whose token was revoked may end a while later (``transitions.batches``).
    """
    if lease.token in state.revoking and lease.held:
        return state.tokens[lease.token].refusal(state.now)
    return lease.end_reason
