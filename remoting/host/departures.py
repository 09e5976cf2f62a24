"""Sessions of a lease that may continue on another server, as far as the host knows.

The door's own reasons, such as an object that cannot be sent, are told by the worker when its
program asks.
"""

from collections.abc import Iterable

from gpupool.pool.model.ids import LeaseId, ServerId
from gpupool.pool.model.state import Lease
from gpupool.remoting.host.worker_handle import WorkerHandle, WorkerState
from gpupool.remoting.protocol.sessions import Departure

MOVABLE_DOOR = "arrays"


def depart(workers: Iterable[WorkerHandle], lease: LeaseId, target: ServerId | None) -> Departure:
    """Let the one worker of a lease connect to a server; see ``SessionHost.depart``."""
    mine = [each for each in workers if each.session.lease == lease]
    if target is None:
        for worker in mine:
            worker.session.peers, worker.session.expects_peers = frozenset(), False
        return Departure()
    if not mine:
        return Departure(ready=True)
    if any(worker.session.door != MOVABLE_DOOR for worker in mine):
        return Departure(refusal="its program uses the CUDA door, and the state is the driver's")
    if len(mine) > 1:
        return Departure(refusal=f"it has {len(mine)} processes, and one alone can be moved")
    (worker,) = mine
    if worker.state is not WorkerState.CONNECTED:
        return Departure()  # it has not begun yet, or has ended
    worker.session.peers = frozenset({target})
    return Departure(ready=True, session=worker.session.id)


def servers_of(lease: Lease, here: ServerId) -> tuple[ServerId, ...]:
    """Return the servers with which a program computes, in its order.

    A lease that is being moved has parts on two servers, and its program is on one of them.
    """
    if lease.relocation is not None:
        return (here,)
    return tuple(dict.fromkeys(partition.server for partition in lease.partitions))


def origin_of(lease: Lease, here: ServerId) -> frozenset[ServerId]:
    """Return the server from which a program is to come here, if it is to come."""
    found = lease.relocation
    arrives = found is not None and found.ending is None and found.target == here
    return frozenset({found.source}) if found is not None and arrives else frozenset()
