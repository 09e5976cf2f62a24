"""Where sessions of a lease that goes to another server may be opened."""

from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.relocation import RelocationState
from gpupool.pool.model.state import Lease


def opens_no_more(lease: Lease, here: ServerId, count: int) -> bool:
    """Return whether a server opens no session until it is decided where the lease goes on.

    The new server opens the one to which the program is to go. What is opened on the old server
    could not go along.
    """
    found = lease.relocation
    if found is None or found.state is not RelocationState.LEAVING:
        return False
    return here == found.source or count > 0


def has_left(lease: Lease, here: ServerId) -> bool:
    """Return whether a lease has gone from here, and its old part is not freed yet."""
    found = lease.relocation
    return found is not None and found.ending == found.source == here
