"""Which connections hold which leases at this server; a lease without any is lost.

A lease lives for as long as its client's connections do. The table does not know connections, so
each server of a lease keeps its own side here, and the reconciler ends lost leases.

    detached --attach()--> attached --detach() of the last connection--> detached
    detached --lose()----> lost     --the table has ended it-----------> detached
"""

from collections.abc import Mapping, Set

from gpupool.pool.model.ids import LeaseId, RequestId
from gpupool.pool.model.served import why_over
from gpupool.pool.model.state import Lease, PartStatus
from gpupool.remoting.server.service_context import Client, ServiceContext


class Attachments:
    """See the module."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._connections: dict[LeaseId, set[int]] = {}
        self._requests: dict[LeaseId, RequestId] = {}
        self._lost: dict[LeaseId, str] = {}

    @property
    def connections(self) -> Mapping[LeaseId, Set[int]]:
        """Return the attached leases with their connections."""
        return self._connections

    @property
    def lost(self) -> Mapping[LeaseId, str]:
        """Return the leases held here whose client has gone, with the reason."""
        return self._lost

    def attach(self, client: Client, lease: Lease) -> None:
        """Tie a lease to the connection of ``client`` as well."""
        client.attached.add(lease.id)
        self._requests[lease.id] = lease.request
        self._connections.setdefault(lease.id, set()).add(client.connection)

    def detach(self, client: Client, lease: LeaseId) -> None:
        """Untie a lease from the connection of ``client``."""
        client.attached.discard(lease)
        client.noticed.pop(lease, None)
        connections = self._connections.get(lease)
        if connections is not None:
            connections.discard(client.connection)
            if not connections:
                del self._connections[lease]
                del self._requests[lease]

    def lose(self, lease: LeaseId, reason: str) -> None:
        """Note that a lease has lost its client; its workers die now, with or without a quorum."""
        known = self._context.state.leases.get(lease)
        if known is not None and known.held and self._context.me.id in known.parts:
            self._lost.setdefault(lease, reason)
            self._context.kill(lease, reason)

    def forget_ended(self) -> None:
        """Forget the lost leases that this server does not hold any more."""
        leases, self_id = self._context.state.leases, self._context.me.id
        for lease_id in list(self._lost):
            lease = leases.get(lease_id)
            if lease is None or not lease.held or lease.parts.get(self_id) is not PartStatus.HELD:
                del self._lost[lease_id]

    def connections_of_ended(self) -> list[int]:
        """Return the connections to which a lease is attached that has ended."""
        state = self._context.state
        ended = [
            lease_id
            for lease_id in self._connections
            if (lease := state.leases.get(lease_id)) is None or why_over(state, lease)
        ]
        return sorted({each for lease_id in ended for each in self._connections[lease_id]})

    def reason_ended(self, lease: LeaseId) -> str:
        """Return why an attached lease has ended that is not in the table any more."""
        why = self._context.state.closed.get(self._requests[lease], "it is over")
        return why.removeprefix("its lease has ended: ")
