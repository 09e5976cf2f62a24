"""The call and the pushes for leases that move to another server, and the host's part in it.

The course of one order, as its servers and its client have it::

    old server                     client                        new server
    host.depart(lease, new)
    LeaseLeaving ----------------> attaches, opens a session --> plan_host waits for it
                                   its program sends its state ------^
    ConfirmRelocated <------------ GoOn
    Done ------------------------> its program goes on there
    kills what is left, frees its part

Everything else follows from the table: ``pool.reconcile`` gives up a part that nobody comes to.
A client whose old server has not answered asks the new one, which has the lease stay unless it has
gone. So the answer is definite, and no program goes on in two places.
"""

from collections.abc import Mapping, Set

from gpupool.pool.errors import DeniedError, GpupoolError, LeaseLostError
from gpupool.pool.model.commands import Command
from gpupool.pool.model.ids import LeaseId, lease_name
from gpupool.pool.model.relocation import (
    ConfirmRelocated,
    RefuseRelocation,
    Relocation,
    RelocationState,
)
from gpupool.pool.model.results import Result
from gpupool.pool.model.state import Lease, PartStatus, serves, why_over
from gpupool.pool.refused_orders import places_text
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.server.proposer import Decision
from gpupool.remoting.server.service_context import Client, Handler, ServiceContext

TEXT_LENGTH_MAX = 200

NO_ANSWER = "its old server did not answer"


class RelocationService:
    """See the module."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._known: dict[LeaseId, int] = {}
        """The numbers of the orders that this server has a part in, until they are over."""
        self._told: dict[tuple[int, LeaseId], int] = {}
        """The numbers of the orders that connections were told of."""
        self._refusing: set[LeaseId] = set()
        self._confirming: dict[LeaseId, int] = {}  # how many calls ask that

    def handlers(self) -> dict[type[m.Call], Handler]:
        """Return the handler of the call that is served here."""
        return {m.GoOn: self._go_on}

    def without_undecided(self, lost: Mapping[LeaseId, str]) -> Mapping[LeaseId, str]:
        """Return the leases with their client gone from here, except for those about to leave.

        That client may be with the new server by now, which would be told of the lease's end.
        """
        if not self._confirming:
            return lost
        return {lease: why for lease, why in lost.items() if lease not in self._confirming}

    # --- following the table ----------------------------------------------------------------------

    def follow(self, attached: Mapping[LeaseId, Set[int]], starting: Mapping[LeaseId, int]) -> None:
        """Let sessions go, tell their clients, and say why others stay; called at each pass.

        Args:
            attached: the leases that have a client's connection here, with the connections.
            starting: how many workers of a lease are being started.
        """
        context = self._context
        state, self_id = context.state, context.me.id
        relocating = state.leases.relocating()
        if not relocating and not self._known:
            return
        for lease in relocating.values():
            found = lease.relocation
            if found is None or not _is_leaving(lease) or self_id not in lease.parts:
                continue
            self._known[lease.id] = found.number
            current = serves(state, self_id, context.me.incarnation)
            if self_id == found.source and current and not starting.get(lease.id, 0):
                self._let_go(lease, found, attached.get(lease.id, frozenset()))
        for lease_id in list(self._known):
            lease = state.leases.get(lease_id)
            if lease is None or not _is_leaving(lease):
                del self._known[lease_id]
                context.host.depart(lease_id, None)
                self._say_where(lease_id, lease, attached.get(lease_id, frozenset()))
        for told in [each for each in self._told if each[1] not in self._known]:
            del self._told[told]

    def _let_go(self, lease: Lease, found: Relocation, connections: Set[int]) -> None:
        context = self._context
        departure = context.host.depart(lease.id, found.target)
        if departure.refusal:
            self._refuse(lease.id, found.number, departure.refusal)
        if not departure.ready or departure.refusal:
            return
        there = tuple(part for part in lease.partitions if part.server == found.target)
        push = m.LeaseLeaving(lease.id, found.number, found.target, there, departure.session)
        for connection in sorted(connections):
            if self._told.get((connection, lease.id)) != found.number:
                self._told[connection, lease.id] = found.number
                context.send(connection, 0, push)

    def _refuse(self, lease: LeaseId, number: int, reason: str) -> None:
        """Propose to refuse a lease's relocation, unless that is proposed already."""
        if lease in self._refusing:
            return
        self._refusing.add(lease)
        context = self._context

        def decided(_decision: Decision) -> None:
            self._refusing.discard(lease)  # if it was lost, the next pass proposes it again

        timeout_s = context.settings.call_timeout_s
        context.proposer.propose(self._refusal(lease, number, reason), decided, timeout_s=timeout_s)

    def _refusal(self, lease: LeaseId, number: int, reason: str) -> RefuseRelocation:
        context = self._context
        reason = reason[:TEXT_LENGTH_MAX]
        return RefuseRelocation(lease, number, reason, context.me.id, context.me.incarnation)

    def _say_where(self, lease_id: LeaseId, lease: Lease | None, connections: Set[int]) -> None:
        """Tell a client where its lease goes on: the server says it that has the lease."""
        self_id = self._context.me.id
        if lease is None or not lease.held or lease.parts.get(self_id) is not PartStatus.HELD:
            return
        where, found = places_text(self._context.state, lease), lease.relocation
        if found is None or found.ending == found.source:
            text = f"it goes on with {where}"
        else:
            text = f"it was not moved, and runs on: {found.reason}"
        for connection in sorted(connections):
            self._context.send(connection, 0, m.LeaseNotice(lease_id, text))

    # --- the call ---------------------------------------------------------------------------------

    def _go_on(self, client: Client, call: int, message: m.GoOn) -> None:
        context, name = self._context, lease_name(message.lease)
        lease = context.state.leases.get(message.lease)
        over = why_over(context.state, lease) if lease is not None else "it is over"
        if lease is None or over:
            raise LeaseLostError(f"lease {name} has ended", why=over)
        if message.lease not in client.attached:
            raise DeniedError(f"lease {name} is not attached to this connection")
        found = lease.relocation
        is_source = found is not None and found.source == context.me.id
        command: Command
        if is_source and not message.stays:
            key = (context.me.id, context.me.incarnation, message.number)
            command = ConfirmRelocated(message.lease, *key)
        else:
            command = self._refusal(message.lease, message.number, message.stays or NO_ANSWER)

        context.require_majority()
        confirms = isinstance(command, ConfirmRelocated)
        if confirms:
            self._confirming[lease.id] = self._confirming.get(lease.id, 0) + 1

        def decided(decision: Decision) -> None:
            if confirms:
                self._confirmed(message.lease)
            try:
                if decision.result is None:
                    raise context.no_quorum(decision.why)
                context.answer(client, call, self._answer(message, decision.result))
            except GpupoolError as error:
                context.answer(client, call, m.refused(error))

        context.propose(client, command, decided)

    def _confirmed(self, lease: LeaseId) -> None:
        self._confirming[lease] -= 1
        if not self._confirming[lease]:
            del self._confirming[lease]

    def _answer(self, message: m.GoOn, result: Result) -> m.Message:
        """Answer by the table, regardless of the result of this one proposal."""
        lease, name = self._context.state.leases.get(message.lease), lease_name(message.lease)
        if lease is None or not lease.held:
            over = why_over(self._context.state, lease) if lease is not None else "it is over"
            raise LeaseLostError(f"lease {name} has ended", why=over)
        if _has_gone(lease, message) != bool(message.stays):
            return m.Done()
        if message.stays:
            raise DeniedError(f"lease {name} has gone to its new server")
        found = lease.relocation
        why = result.why if found is None else found.reason or result.why
        raise DeniedError(f"lease {name} stays on its server", why=why)


def _has_gone(lease: Lease, message: m.GoOn) -> bool:
    """Return whether a lease has gone to the server of an order, which may be over by now."""
    found = lease.relocation
    if found is None:
        return message.server in lease.parts
    if found.number == message.number:
        return found.state is RelocationState.GONE
    return found.source == message.server


def _is_leaving(lease: Lease) -> bool:
    found = lease.relocation
    return lease.held and found is not None and found.state is RelocationState.LEAVING
