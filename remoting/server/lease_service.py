"""The calls about leases: ask, wait, claim, cancel, attach, release, open a session.

It also keeps three states that no table has: the attachments of leases to connections, the
``Attach`` calls whose lease has not reached this server's table yet, and the sessions that the
host is starting. ``controller`` documents them. The reconciler reads them at each pass and proposes
the commands that end and free leases; this service only kills workers.

A lease lives for as long as its client's connections do; one without any is lost. The table does
not know connections, so each server of a lease keeps its own side here, and the reconciler ends
lost leases.

    detached --attach()--> attached --detach() of the last connection--> detached
    detached --lose()----> lost     --the table has ended it-----------> detached
"""

import hmac
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass

from gpupool.pool.errors import (
    DeniedError,
    GpupoolError,
    LeaseLostError,
    LeaseSuspendedError,
    NotNowError,
    UsageError,
)
from gpupool.pool.model import commands
from gpupool.pool.model.commands import Command
from gpupool.pool.model.ids import LeaseId, RequestId, lease_name
from gpupool.pool.model.results import RefusalKind, Result
from gpupool.pool.model.state import Lease, Partition, PartStatus, serves, why_over
from gpupool.pool.model.suspension import SuspensionState, suspension_reason
from gpupool.pool.policy.lease_ends import notice_text
from gpupool.pool.refused_orders import places_text
from gpupool.pool.scheduling.offers import NoOffer
from gpupool.pool.scheduling.placement import make_offer
from gpupool.pool.transitions.leases import encryption_of
from gpupool.pool.view import LONG_AGO_S, MAJORITY_FRESH_S
from gpupool.pool.view_building import moved_last
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.protocol.driver_variables import allowed_settings
from gpupool.remoting.protocol.sessions import SessionInfo
from gpupool.remoting.protocol.token_text import hash_secret
from gpupool.remoting.server.actions import StartSession
from gpupool.remoting.server.proposer import Decision
from gpupool.remoting.server.relocating.session_rules import has_left, opens_no_more
from gpupool.remoting.server.service_context import (
    Client,
    Handler,
    RefusalLog,
    ServiceContext,
    check_request,
)


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
        """The leases held here without their client, with the reasons."""
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


FINAL = (RefusalKind.DENIED, RefusalKind.NEVER)
"""Refusals after which a client asks no more."""

ATTACHED_COUNT_MAX = 64
TEXT_LENGTH_MAX = 200
DOOR_LENGTH_MAX = 32
TICKET_SIZE_MAX = 64

SUSPENDED_ANSWER_S = 20.0
"""After this long, a client is told that its lease is suspended, and asks again."""

CLIENT_GONE = "its client disconnected"
"""The reason by which a lease ends that no connection holds any more."""


@dataclass(slots=True)
class _Awaited:
    """An ``Attach`` for a lease that this server's table does not have yet."""

    client: Client
    call: int
    message: m.Attach
    deadline: float


@dataclass(slots=True)
class _Kept:
    """An ``OpenSession`` for a suspended lease."""

    client: Client
    call: int
    message: m.OpenSession
    deadline: float


@dataclass(slots=True)
class _Starting:
    """A session that the host is starting."""

    client: Client
    call: int
    lease: LeaseId


class LeaseService:
    """See the module."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self.attachments = Attachments(context)
        self._refusals = RefusalLog(context.clock)
        self._awaited: list[_Awaited] = []
        self._kept: list[_Kept] = []
        self._starting: dict[int, _Starting] = {}
        self._start_number = 0
        self._told_of_suspension: dict[tuple[int, LeaseId], int] = {}
        """The numbers of the suspensions that connections were told of, and not of their end."""

    def handlers(self) -> dict[type[m.Call], Handler]:
        """Return the handler of each call that is served here."""
        return {
            m.Ask: self._ask,
            m.AwaitGpus: self._await_gpus,
            m.Claim: self._claim,
            m.Cancel: self._cancel,
            m.Attach: self._attach_call,
            m.Release: self._release,
            m.OpenSession: self._open_session,
        }

    @property
    def starting(self) -> Mapping[LeaseId, int]:
        """Return how many workers of each lease are being started: they count as alive."""
        return Counter([each.lease for each in self._starting.values()]) if self._starting else {}

    # --- events ----------------------------------------------------------------------------------

    def closed(self, client: Client) -> None:
        """Act on a client that has gone: a lease that only it held is lost."""
        for each in (*self._awaited, *self._kept):
            if each.client is client:
                self._context.clients.end_call(client)
        self._awaited = [each for each in self._awaited if each.client is not client]
        self._kept = [each for each in self._kept if each.client is not client]
        for told in [each for each in self._told_of_suspension if each[0] == client.connection]:
            del self._told_of_suspension[told]
        for lease in sorted(client.attached):
            self.attachments.detach(client, lease)
            if lease not in self.attachments.connections:
                self.attachments.lose(lease, CLIENT_GONE)

    def session_opened(self, number: int, result: SessionInfo | GpupoolError) -> None:
        """Answer a call for a session with the host's result, or its error."""
        starting = self._starting.pop(number)
        if isinstance(result, GpupoolError):
            self._context.answer(starting.client, starting.call, m.refused(result))
            return
        encryption = encryption_of(self._context.state, starting.lease)
        opened = m.SessionOpened(result, self._context.me.software.address, encryption)
        self._context.answer(starting.client, starting.call, opened)

    def table_changed(self) -> None:
        """Answer the ``Attach`` calls for leases that have come, or have ended."""
        for each in list(self._awaited):
            if self._try_attach(each.client, each.call, each.message):
                self._awaited.remove(each)
        state = self._context.state
        for each in list(self._kept):
            lease = state.leases.get(each.message.lease)
            if lease is None or why_over(state, lease) or not self._must_wait(lease):
                self._kept.remove(each)
                try:
                    self._open_session(each.client, each.call, each.message)
                except GpupoolError as error:
                    self._context.answer(each.client, each.call, m.refused(error))

    def poll(self, now: float) -> None:
        """Refuse the ``Attach`` calls for leases that have not come in time."""
        for each in [each for each in self._awaited if each.deadline <= now]:
            self._awaited.remove(each)
            name = lease_name(each.message.lease)
            error = LeaseLostError(f"this server does not know lease {name}")
            self._context.answer(each.client, each.call, m.refused(error))
        for kept in [kept for kept in self._kept if kept.deadline <= now]:
            self._kept.remove(kept)
            error = LeaseSuspendedError(
                "no session can be opened yet", why="its lease is suspended"
            )
            self._context.answer(kept.client, kept.call, m.refused(error))

    def wake_at(self) -> float:
        """Return when ``poll`` has to be called next."""
        deadlines = [each.deadline for each in (*self._awaited, *self._kept)]
        return min(deadlines, default=float("inf"))

    # --- pushes ----------------------------------------------------------------------------------

    def push_ended(self, client: Client) -> None:
        """Tell a client its ended leases."""
        state = self._context.state
        for lease_id in sorted(client.attached):
            lease = state.leases.get(lease_id)
            over = why_over(state, lease) if lease else self.attachments.reason_ended(lease_id)
            if over:
                self.attachments.detach(client, lease_id)
                self._context.send(client.connection, 0, m.LeaseEnded(lease_id, over))

    def push_notices(self) -> None:
        """Tell clients of the ends that the policy has set to their leases, once each."""
        now_ms: int | None = None
        leases = self._context.state.leases
        for lease_id, connections in self.attachments.connections.items():
            lease = leases.get(lease_id)
            if lease is None or not lease.ends_at or not lease.held:
                continue
            if now_ms is None:
                now_ms = self._context.now_ms()
            if lease.notice_at > now_ms:
                continue
            for connection in sorted(connections):
                client = self._context.clients.get(connection)
                if client is not None and client.noticed.get(lease_id) != lease.ends_at:
                    client.noticed[lease_id] = lease.ends_at
                    notice = m.LeaseNotice(lease_id, notice_text(lease))
                    self._context.send(connection, 0, notice)

    def push_suspensions(self) -> None:
        """Tell clients when a lease of theirs is suspended, and when that is over, once each."""
        leases, clients = self._context.state.leases, self._context.clients
        suspended = leases.suspended()
        if not suspended and not self._told_of_suspension:
            return
        connections = self.attachments.connections
        for lease_id, lease in suspended.items():
            suspension = lease.suspension
            if suspension is None or not lease.held:
                continue
            if suspension.state is SuspensionState.RESUMING:
                continue  # a move of a suspended lease has a number of its own
            for connection in sorted(connections.get(lease_id, ())):
                if self._told_of_suspension.get((connection, lease_id)) != suspension.number:
                    self._told_of_suspension[connection, lease_id] = suspension.number
                    text = f"it is suspended {suspension_reason(suspension)}; its calls wait"
                    self._context.send(connection, 0, m.LeaseNotice(lease_id, text))
        for connection, lease_id in list(self._told_of_suspension):
            lease = leases.get(lease_id)
            if lease is not None and lease.suspension is not None:
                continue
            del self._told_of_suspension[connection, lease_id]
            if lease is not None and lease.held and clients.get(connection) is not None:
                refusal = lease.history.refusal if lease.history is not None else None
                done, where = "suspended", ""
                if lease_name(lease_id) in moved_last(self._context.state.events):
                    done, where = "moved", f" with {places_text(self._context.state, lease)}"
                why = f"it could not be {done} ({refusal.reason}), and " if refusal else "it "
                self._context.send(connection, 0, m.LeaseNotice(lease_id, f"{why}goes on{where}"))

    def push_capacity(self, now: float) -> None:
        """Tell waiting clients of free capacity; see ``wait_queue``."""
        context = self._context
        due = context.wait_queue.due(context.state, context.me.id, now, context.state_now)
        for connection, request in due:
            context.send(connection, 0, m.CapacityAvailable((request,)))

    # --- requests --------------------------------------------------------------------------------

    def _ask(self, client: Client, call: int, message: m.Ask) -> None:
        context, request = self._context, message.request
        check_request(request)
        state, now = context.state, context.clock.monotonic()
        server = state.servers.get(context.me.id)
        age_s = context.consensus.majority_age_s()
        if server is None:
            answer = NoOffer(
                context.me.id, context.me.id, RefusalKind.BUSY.value, "is not a member any more"
            )
        elif age_s >= MAJORITY_FRESH_S:
            since = f" for {age_s:.0f} s" if age_s < LONG_AGO_S else ""
            alarm = context.consensus.health().alarm
            why = alarm or f"not in touch with a majority of the servers{since}"
            answer = NoOffer(server.id, server.name, RefusalKind.NO_QUORUM.value, why)
        elif not serves(state, context.me.id, context.me.incarnation):
            answer = NoOffer(server.id, server.name, RefusalKind.BUSY.value, "is starting")
        else:
            shown = context.wait_queue.without_reserved(server, request.id, now)
            answer = make_offer(context.state_now(), shown, request, client.user)
        if isinstance(answer, NoOffer):
            if answer.kind == RefusalKind.BUSY and message.waits:
                context.wait_queue.add(client.connection, request, now, client.holder)
            elif answer.kind in FINAL:
                self._refusals.say(client, answer.kind, answer.why)
            context.answer(client, call, m.Offered(None, answer))
        else:
            context.answer(client, call, m.Offered(answer, None))

    def _await_gpus(self, client: Client, call: int, message: m.AwaitGpus) -> None:
        check_request(message.request)
        wait_queue, now = self._context.wait_queue, self._context.clock.monotonic()
        wait_queue.add(client.connection, message.request, now, client.holder)
        request = message.request
        reason = message.reason[:TEXT_LENGTH_MAX]
        command = commands.Wait(request, client.user, client.token, reason)

        def recorded(result: Result) -> m.Message:
            if result.ok:
                return m.Done()
            if result.kind != RefusalKind.BUSY:
                wait_queue.discard(client.connection, message.request.id)
                self._refusals.say(client, result.kind, result.why)
            kind = NotNowError if result.kind == RefusalKind.BUSY else DeniedError
            raise kind("the request has no place in the waiting line", why=result.why)

        self._context.propose_for(client, call, command, recorded)

    def _claim(self, client: Client, call: int, message: m.Claim) -> None:
        check_request(message.request)
        _check_room(client)
        self._context.require_majority()
        command = commands.Grant(
            request=message.request,
            user=client.user,
            token=client.token,
            ticket_hash=message.ticket_hash,
            partitions=message.partitions,
            incarnations=message.incarnations,
        )

        began = self._context.clock.monotonic()

        def decided(decision: Decision) -> None:
            result = decision.result
            kind = RefusalKind.NO_QUORUM.value if result is None else result.kind
            self._context.me.measures.claimed(kind, self._context.clock.monotonic() - began)
            self._claim_decided(client, call, message.request.id, decision)

        self._context.propose(client, command, decided)

    def _claim_decided(
        self, client: Client, call: int, request: RequestId, decision: Decision
    ) -> None:
        """Answer a claim; if its client has gone, undo the grant instead."""
        context = self._context
        is_here = context.clients.is_open(client)
        result = decision.result
        if result is not None and result.ok and result.lease is not None:
            if not is_here:
                self._abandon(commands.EndLease(result.lease, "nobody waits for it any more"))
                context.clients.end_call(client)
                return
            context.wait_queue.discard(client.connection, request)
            lease = context.state.leases.get(result.lease)
            over = why_over(context.state, lease) if lease else "it is over"
            if lease is None or over:
                context.answer(client, call, _refused(RefusalKind.CLOSED, over))
                return
            self.attachments.attach(client, lease)
            context.answer(client, call, self._granted(lease))
        elif result is not None:
            self._refusals.say(client, result.kind, result.why)
            context.answer(client, call, _refused(result.kind, result.why))
        elif decision.uncertain:
            if not is_here:
                self._abandon(commands.CancelRequest(request, "its client disconnected"))
            context.answer(
                client, call, m.Claimed(m.ClaimOutcome.UNCERTAIN.value, why=decision.why)
            )
        else:
            refusal = _refused(RefusalKind.NO_QUORUM, decision.why)
            context.answer(client, call, refusal)

    def _granted(self, lease: Lease) -> m.Claimed:
        left_ms = lease.ends_at - self._context.now_ms() if lease.ends_at else 0
        return m.Claimed(
            m.ClaimOutcome.GRANTED.value,
            lease=lease.id,
            idle_timeout_s=lease.idle_timeout_s,
            time_left_s=max(0.0, left_ms / 1000),
        )

    def _cancel(self, client: Client, call: int, message: m.Cancel) -> None:
        command = commands.CancelRequest(
            message.request, message.reason[:TEXT_LENGTH_MAX], client.user, message.successor
        )

        def then(result: Result) -> m.Message:
            if not result.ok:
                raise DeniedError("the cancel is refused", why=result.why)
            self._context.wait_queue.discard(client.connection, message.request)
            return m.Done()

        self._context.propose_for(client, call, command, then)

    # --- leases ----------------------------------------------------------------------------------

    def _attach_call(self, client: Client, call: int, message: m.Attach) -> None:
        if len(message.ticket) > TICKET_SIZE_MAX:
            raise UsageError("malformed ticket")
        _check_room(client)
        if not self._try_attach(client, call, message):
            deadline = self._context.clock.monotonic() + self._context.settings.lease_wait_s
            self._awaited.append(_Awaited(client, call, message, deadline))

    def _try_attach(self, client: Client, call: int, message: m.Attach) -> bool:
        """Answer an ``Attach``, unless the lease may still reach this server's table."""
        context = self._context
        lease = context.state.leases.get(message.lease)
        if lease is None and context.state.index < message.lease:
            return False
        over = why_over(context.state, lease) if lease else "it is over"
        if lease is not None and not over and context.me.id not in lease.parts:
            return False  # it is to come from another server
        if lease is None or over:
            what = f"lease {lease_name(message.lease)} has ended"
            context.answer(client, call, m.refused(LeaseLostError(what, why=over)))
        elif lease.user != client.user or not hmac.compare_digest(
            lease.ticket_hash, hash_secret(message.ticket)
        ):
            error = DeniedError(f"lease {lease_name(lease.id)} is not yours")
            context.answer(client, call, m.refused(error))
        else:
            self.attachments.attach(client, lease)
            context.answer(client, call, m.Done())
        return True

    def _release(self, client: Client, call: int, message: m.Release) -> None:
        context = self._context
        lease = context.state.leases.get(message.lease)
        if lease is not None and lease.user != client.user:
            raise DeniedError(f"lease {lease_name(lease.id)} is not yours")
        reason = message.reason[:TEXT_LENGTH_MAX] or "released"
        self.attachments.detach(client, message.lease)
        context.kill(message.lease, reason)

        def decided(decision: Decision) -> None:
            if decision.result is None:
                # Whatever becomes of this call, the client has let go: the reconciler ends it.
                self.attachments.lose(message.lease, reason)
                context.answer(client, call, m.refused(context.no_quorum(decision.why)))
            elif not decision.result.ok:
                error = DeniedError("the release is refused", why=decision.result.why)
                context.answer(client, call, m.refused(error))
            else:
                context.answer(client, call, m.Done())

        context.propose(client, commands.EndLease(message.lease, reason, client.user), decided)

    def _open_session(self, client: Client, call: int, message: m.OpenSession) -> None:
        context, self_id = self._context, self._context.me.id
        context.require_majority()
        name = lease_name(message.lease)
        lease = context.state.leases.get(message.lease)
        over = why_over(context.state, lease) if lease else ""
        if lease is None or over:
            raise LeaseLostError(f"lease {name} has ended", why=over)
        if message.lease not in client.attached:
            raise DeniedError(f"lease {name} is not attached to this connection")
        if has_left(lease, self_id):
            raise LeaseSuspendedError("no session can be opened here", why="the lease has left")
        if lease.parts.get(self_id) is not PartStatus.HELD:
            raise UsageError(f"lease {name} has no GPU of this server")
        if not serves(context.state, self_id, context.me.incarnation):
            # Our own ``ServerUp``, once committed, frees what the table grants here today, in the
            # belief that nothing runs for it.
            raise LeaseLostError(f"lease {name} has ended", why="this server has restarted")
        if self._must_wait(lease):
            deadline = context.clock.monotonic() + SUSPENDED_ANSWER_S
            self._kept.append(_Kept(client, call, message, deadline))
            return
        partitions = tuple(p for p in lease.partitions if p.server == self_id)
        self._start(client, call, message, lease, partitions)

    def _must_wait(self, lease: Lease) -> bool:
        """Return whether no session of a lease is opened now."""
        if lease.relocation is None:
            return lease.suspension is not None
        host = self._context.host
        count = host.worker_count().get(lease.id, 0) + self.starting.get(lease.id, 0)
        return opens_no_more(lease, self._context.me.id, count)

    def _start(
        self,
        client: Client,
        call: int,
        message: m.OpenSession,
        lease: Lease,
        partitions: tuple[Partition, ...],
    ) -> None:
        self._start_number += 1
        self._starting[self._start_number] = _Starting(client, call, lease.id)
        self._context.actions.append(
            StartSession(
                self._start_number,
                lease,
                partitions,
                message.door[:DOOR_LENGTH_MAX],
                message.program[:TEXT_LENGTH_MAX],
                allowed_settings(message.settings),
            )
        )

    def _abandon(self, command: Command) -> None:
        """Get a command committed that no client waits for."""
        timeout_s = self._context.settings.cleanup_timeout_s
        self._context.proposer.propose(command, lambda _decision: None, timeout_s=timeout_s)


def _refused(kind: str, why: str) -> m.Claimed:
    return m.Claimed(m.ClaimOutcome.REFUSED.value, kind=str(kind), why=why)


def _check_room(client: Client) -> None:
    """Refuse more leases than one connection may have, counting claims under way."""
    if len(client.attached) + client.pending_calls > ATTACHED_COUNT_MAX:
        raise DeniedError(f"more than {ATTACHED_COUNT_MAX} leases on one connection")
