"""Broken builds of the table, the servers and the clients."""

# pyright: reportPrivateUsage=false
# A broken build replaces private functions.

import itertools
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

from tests.simulations.mutations.patching import patched

from gpupool.pool.errors import LeaseLostError
from gpupool.pool.model.commands import Grant, ServerContact
from gpupool.pool.model.ids import Incarnation, LeaseId, Plain, RequestId, ServerId
from gpupool.pool.model.pieces import Field
from gpupool.pool.model.results import Result
from gpupool.pool.model.state import (
    Lease,
    PoolState,
    Server,
    ServerStatus,
    Token,
)
from gpupool.pool.ports import Committed, Outcome
from gpupool.pool.reconcile import HostPlan, plan_host, plan_leader
from gpupool.pool.table_clock import TableClock
from gpupool.pool.transitions import apply as state_machine
from gpupool.pool.transitions import leases
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.remoting.client.negotiation import Negotiation
from gpupool.remoting.client.negotiation_actions import Phase
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.server import reconciler
from gpupool.remoting.server.controller import Controller
from gpupool.remoting.server.lease_service import Attachments, LeaseService
from gpupool.remoting.server.proposer import Decision, Propose, Proposer
from gpupool.remoting.server.server_settings import ControllerSettings
from gpupool.remoting.server.service_context import Client, ServiceContext
from gpupool.simulations.kernel.machines import SimulatedHost

# --- the table ------------------------------------------------------------------------------------


def space_unchecked() -> AbstractContextManager[None]:
    def space_refusal(state: PoolState, command: Grant) -> Result | None:
        del state, command
        return None

    return patched(leases, "space_refusal", space_refusal)


def apply_differs() -> AbstractContextManager[None]:
    original = state_machine.PoolMachine.apply
    count = itertools.count()

    def apply(self: PoolMachine, index: int, command: Plain) -> Plain:
        result = original(self, index, command)
        if index % 50 == 0:
            self.state = replace(self.state, name=f"{next(count) % 3}")
        return result

    return patched(PoolMachine, "apply", apply)


def snapshot_forgets() -> AbstractContextManager[None]:
    original = PoolMachine.snapshot_fields

    def snapshot_fields(self: PoolMachine) -> list[Field]:
        return [(name, field if name != "closed" else list) for name, field in original(self)]

    return patched(PoolMachine, "snapshot_fields", snapshot_fields)


def revocation_ignored() -> AbstractContextManager[None]:
    def refusal(self: Token, now_ms: int) -> str:
        del self, now_ms
        return ""

    @contextmanager
    def broken() -> Generator[None]:
        with patched(Token, "refusal", refusal), patched(Controller, "_follow_client", _no_follow):
            yield

    return broken()


def _no_follow(self: Controller, client: Client, members: tuple[m.Member, ...]) -> None:
    del self, client, members


def _up(self: Server) -> bool:
    return self.status is ServerStatus.UP


def drain_ignored() -> AbstractContextManager[None]:
    return patched(Server, "grantable", property(_up))


# --- servers --------------------------------------------------------------------------------------


def freed_too_early() -> AbstractContextManager[None]:
    def plan(
        state: PoolState,
        self_id: ServerId,
        incarnation: Incarnation,
        worker_count: Mapping[LeaseId, int],
        unattached_s: Mapping[LeaseId, float],
        gone: Mapping[LeaseId, str],
    ) -> HostPlan:
        real = plan_host(state, self_id, incarnation, worker_count, unattached_s, gone)
        hasty = plan_host(state, self_id, incarnation, {}, unattached_s, gone)
        return HostPlan(real.kill, hasty.propose)

    return patched(reconciler, "plan_host", plan)


def fencing_ignored() -> AbstractContextManager[None]:
    """Let a server start workers for leases that its table holds no more, and let them live."""
    known: dict[LeaseId, Lease] = {}
    original = Attachments.attach

    def attach(self: Attachments, client: Client, lease: Lease) -> None:
        known[lease.id] = lease
        original(self, client, lease)

    def open_session(self: LeaseService, client: Client, call: int, message: m.OpenSession) -> None:
        lease = known.get(message.lease)
        if lease is None:
            raise LeaseLostError("no such lease")
        self_id = self._context.me.id
        partitions = tuple(p for p in lease.partitions if p.server == self_id)
        self._start(client, call, message, lease, partitions)

    def plan(
        state: PoolState,
        self_id: ServerId,
        incarnation: Incarnation,
        worker_count: Mapping[LeaseId, int],
        unattached_s: Mapping[LeaseId, float],
        gone: Mapping[LeaseId, str],
    ) -> HostPlan:
        real = plan_host(state, self_id, incarnation, worker_count, unattached_s, gone)
        return HostPlan(tuple(lease for lease in real.kill if lease in state.leases), real.propose)

    @contextmanager
    def broken() -> Generator[None]:
        with (
            patched(Attachments, "attach", attach),
            patched(LeaseService, "_open_session", open_session),
            patched(reconciler, "plan_host", plan),
        ):
            yield

    return broken()


def session_before_up() -> AbstractContextManager[None]:
    original = LeaseService._open_session
    original_ask = LeaseService._ask

    def ignorant(context: ServiceContext) -> ServiceContext:
        server = context.state.servers.get(context.me.id)
        if server is None:
            return context
        return replace(context, me=replace(context.me, incarnation=server.incarnation))

    def open_session(self: LeaseService, client: Client, call: int, message: m.OpenSession) -> None:
        mine = self._context
        self._context = ignorant(mine)
        try:
            original(self, client, call, message)
        finally:
            self._context = mine

    def ask(self: LeaseService, client: Client, call: int, message: m.Ask) -> None:
        mine = self._context
        self._context = ignorant(mine)
        try:
            original_ask(self, client, call, message)
        finally:
            self._context = mine

    @contextmanager
    def broken() -> Generator[None]:
        with (
            patched(LeaseService, "_open_session", open_session),
            patched(LeaseService, "_ask", ask),
        ):
            yield

    return broken()


def not_swept() -> AbstractContextManager[None]:
    def sweep(self: SimulatedHost, done: Callable[[], None]) -> None:
        del self
        done()

    return patched(SimulatedHost, "sweep", sweep)


def lost_client_unnoticed() -> AbstractContextManager[None]:
    def lose(self: Attachments, lease: LeaseId, reason: str) -> None:
        del self, lease, reason

    def plan(
        state: PoolState,
        self_id: ServerId,
        incarnation: Incarnation,
        worker_count: Mapping[LeaseId, int],
        unattached_s: Mapping[LeaseId, float],
        gone: Mapping[LeaseId, str],
    ) -> HostPlan:
        del unattached_s, gone
        return plan_host(state, self_id, incarnation, worker_count, {}, {})

    @contextmanager
    def broken() -> Generator[None]:
        with patched(Attachments, "lose", lose), patched(reconciler, "plan_host", plan):
            yield

    return broken()


def granted_before_commit() -> AbstractContextManager[None]:
    original = LeaseService._claim

    def claim(self: LeaseService, client: Client, call: int, message: m.Claim) -> None:
        # The lease's id is guessed from this server's own table, before anybody agreed to it.
        context = self._context
        guess = LeaseId(context.state.index + 1)
        original(self, client, call, message)
        if context.state.servers[context.me.id].grantable:
            client.pending_calls += 1
            context.answer(client, call, m.Claimed("granted", lease=guess))

    return patched(LeaseService, "_claim", claim)


def expired_is_definite() -> AbstractContextManager[None]:
    """Let an expired repetition count as a refusal, and let every repetition expire."""
    original = Proposer.outcome
    original_attempt = Proposer._attempt

    def outcome(self: Proposer, number: int, outcome: Outcome) -> None:
        pending = self._pending.get(number)
        result = outcome.result if isinstance(outcome, Committed) else None
        if pending is not None and isinstance(result, dict) and result.get("kind") == "expired":
            self._decide(number, Decision(Result(False, "busy"), uncertain=False, why="expired"))
            return
        original(self, number, outcome)

    def attempt(self: Proposer, number: int) -> None:
        emit = self._emit

        def emit_late(action: Propose) -> None:
            assert isinstance(action.command, dict)
            emit(replace(action, command={**action.command, "x": 1}))

        if self._pending[number].uncertain and self._pending[number].bounded:
            self._emit = emit_late
        try:
            original_attempt(self, number)
        finally:
            self._emit = emit

    @contextmanager
    def broken() -> Generator[None]:
        with patched(Proposer, "outcome", outcome), patched(Proposer, "_attempt", attempt):
            yield

    return broken()


def own_clock_is_believed() -> AbstractContextManager[None]:
    """Let each server stamp by its own wall clock, and the leader take every stamp."""

    def now_ms(self: TableClock) -> int:
        return max(self.known_ms(), self.clock.wall_ms())

    def refusal(self: TableClock, command: object) -> None:
        del self, command

    @contextmanager
    def broken() -> Generator[None]:
        with patched(TableClock, "now_ms", now_ms), patched(TableClock, "refusal", refusal):
            yield

    return broken()


def never_reachable_again() -> AbstractContextManager[None]:
    def plan(
        state: PoolState,
        contact_age_s: Mapping[ServerId, float],
        wall_ms: int,
        self_id: ServerId,
        connected: Collection[ServerId],
    ) -> tuple[object, ...]:
        commands = plan_leader(state, contact_age_s, wall_ms, self_id, connected)
        return tuple(c for c in commands if not (isinstance(c, ServerContact) and c.reachable))

    return patched(reconciler, "plan_leader", plan)


# --- clients --------------------------------------------------------------------------------------


def cancel_not_committed() -> AbstractContextManager[None]:
    def begin_cancel(self: Negotiation) -> None:
        identity = RequestId(self._rng.randbytes(16))
        self.request = replace(self.request, id=identity)
        self._claim_next()

    return patched(Negotiation, "_begin_cancel", begin_cancel)


def never_asks_again() -> AbstractContextManager[None]:
    original = Negotiation._wait

    def wait(self: Negotiation) -> None:
        original(self)
        if self.phase is Phase.WAITING:
            self._wake_at = float("inf")

    def hinted(self: Negotiation) -> list[object]:
        del self
        return []

    @contextmanager
    def broken() -> Generator[None]:
        with patched(Negotiation, "_wait", wait), patched(Negotiation, "hinted", hinted):
            yield

    return broken()


def _no_objection(self: ServiceContext) -> None:
    del self


def minority_silent() -> AbstractContextManager[None]:
    """Let a server try for long, instead of saying that it has no majority."""
    original = Controller.__init__

    def init(self: Controller, *arguments: Any, **options: Any) -> None:
        options["settings"] = ControllerSettings(call_timeout_s=10.0)
        original(self, *arguments, **options)

    @contextmanager
    def broken() -> Generator[None]:
        with (
            patched(Controller, "__init__", init),
            patched(ServiceContext, "require_majority", _no_objection),
        ):
            yield

    return broken()
