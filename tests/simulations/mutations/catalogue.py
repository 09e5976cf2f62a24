"""Deliberately broken builds: each breaks one rule, and one checker must notice.

They are patches that are in force for one run, never switches in the code that runs in earnest. A
checker that catches none of them checks nothing.
"""

# pyright: reportPrivateUsage=false
# Breaking a rule means reaching into whoever keeps it.

import itertools
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from gpupool.pool.errors import LeaseLostError
from gpupool.pool.model.commands import Grant, ServerContact
from gpupool.pool.model.ids import Incarnation, LeaseId, Plain, RequestId, ServerId
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
from gpupool.pool.transitions import leases, state_machine
from gpupool.pool.transitions.state_machine import PoolMachine
from gpupool.remoting.client.negotiation import Negotiation, Phase
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.server import controller, reconciler
from gpupool.remoting.server.controller import Controller, ControllerSettings, StartSession
from gpupool.remoting.server.proposer import Decision, Propose, Proposer
from gpupool.remoting.server.service_context import Client
from gpupool.simulations.kernel.machines import SimulatedHost
from gpupool.simulations.kernel.swarm_options import Options, swarm
from gpupool.simulations.mutations import broken_consensus, broken_policy
from gpupool.simulations.mutations.broken_consensus import patched

Broken = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Mutation:
    """One broken build."""

    name: str
    checker: str  # the one that must notice
    what: str  # which rule is broken
    broken: Broken
    faults: tuple[tuple[str, float], ...] = ()  # added to those of the swarm: kind, interval
    tune: Callable[[Options], Options] = lambda options: options

    def options(self, seed: int) -> Options:
        """Return a run of the swarm in which the broken rule matters."""
        drawn = swarm(seed)
        return self.tune(replace(drawn, faults=drawn.faults + self.faults))


# --- the table ------------------------------------------------------------------------------------


def _space_unchecked() -> AbstractContextManager[None]:
    def space_refusal(state: PoolState, command: Grant) -> Result | None:
        del state, command
        return None

    return patched(leases, "_space_refusal", space_refusal)


def _apply_differs() -> AbstractContextManager[None]:
    original = state_machine.PoolMachine.apply
    count = itertools.count()

    def apply(self: PoolMachine, index: int, command: Plain) -> Plain:
        result = original(self, index, command)
        if index % 50 == 0:
            self.state = replace(self.state, name=f"{next(count) % 3}")
        return result

    return patched(PoolMachine, "apply", apply)


def _snapshot_forgets() -> AbstractContextManager[None]:
    original = PoolMachine.snapshot

    def snapshot(self: PoolMachine) -> Plain:
        plain = original(self)
        assert isinstance(plain, dict)
        return {**plain, "closed": []}

    return patched(PoolMachine, "snapshot", snapshot)


def _revocation_ignored() -> AbstractContextManager[None]:
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


def _drain_ignored() -> AbstractContextManager[None]:
    return patched(Server, "grantable", property(_up))


# --- servers --------------------------------------------------------------------------------------


def _freed_too_early() -> AbstractContextManager[None]:
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


def _fencing_ignored() -> AbstractContextManager[None]:
    """Let a server start workers for leases that its table holds no more, and let them live."""
    known: dict[LeaseId, Lease] = {}
    original = Controller._attach

    def attach(self: Controller, client: Client, lease: Lease) -> None:
        known[lease.id] = lease
        original(self, client, lease)

    def open_session(self: Controller, client: Client, call: int, message: m.OpenSession) -> None:
        lease = known.get(message.lease)
        if lease is None:
            raise LeaseLostError("no such lease")
        partitions = tuple(p for p in lease.partitions if p.server == self.self_id)
        self._number += 1
        self._starting[self._number] = controller._Starting(client, call, lease.id)
        self._actions.append(StartSession(self._number, lease, partitions, "", ""))
        self.reconciler.busy[lease.id] = self.reconciler.busy.get(lease.id, 0) + 1

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
            patched(Controller, "_attach", attach),
            patched(Controller, "_open_session", open_session),
            patched(reconciler, "plan_host", plan),
        ):
            yield

    return broken()


def _session_before_up() -> AbstractContextManager[None]:
    original = Controller._open_session

    def open_session(self: Controller, client: Client, call: int, message: m.OpenSession) -> None:
        mine = self._incarnation
        server = self.state.servers.get(self.self_id)
        if server is not None:
            self._incarnation = server.incarnation
        try:
            original(self, client, call, message)
        finally:
            self._incarnation = mine

    original_ask = Controller._ask

    def ask(self: Controller, client: Client, call: int, request: Any) -> None:
        mine = self._incarnation
        server = self.state.servers.get(self.self_id)
        if server is not None:
            self._incarnation = server.incarnation
        try:
            original_ask(self, client, call, request)
        finally:
            self._incarnation = mine

    @contextmanager
    def broken() -> Generator[None]:
        with patched(Controller, "_open_session", open_session), patched(Controller, "_ask", ask):
            yield

    return broken()


def _not_swept() -> AbstractContextManager[None]:
    def sweep(self: SimulatedHost, done: Callable[[], None]) -> None:
        del self
        done()

    return patched(SimulatedHost, "sweep", sweep)


def _lost_client_unnoticed() -> AbstractContextManager[None]:
    def lose(self: Controller, lease: LeaseId, reason: str) -> None:
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
        with patched(Controller, "_lose", lose), patched(reconciler, "plan_host", plan):
            yield

    return broken()


def _granted_before_commit() -> AbstractContextManager[None]:
    original = Controller._claim

    def claim(self: Controller, client: Client, call: int, message: m.Claim) -> None:
        # The lease's id is guessed from this server's own table, before anybody agreed to it.
        guess = LeaseId(self.state.index + 1)
        original(self, client, call, message)
        if self.state.servers[self.self_id].grantable:
            client.pending_calls += 1
            self.answer(client, call, m.Claimed("granted", lease=guess))

    return patched(Controller, "_claim", claim)


def _expired_is_definite() -> AbstractContextManager[None]:
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


def _never_reachable_again() -> AbstractContextManager[None]:
    def plan(
        state: PoolState,
        contact_age_s: Mapping[ServerId, float],
        wall_ms: int,
        self_id: ServerId,
    ) -> tuple[object, ...]:
        commands = plan_leader(state, contact_age_s, wall_ms, self_id)
        return tuple(c for c in commands if not (isinstance(c, ServerContact) and c.reachable))

    return patched(reconciler, "plan_leader", plan)


# --- clients --------------------------------------------------------------------------------------


def _cancel_not_committed() -> AbstractContextManager[None]:
    def begin_cancel(self: Negotiation) -> None:
        identity = RequestId(self._rng.randbytes(16))
        self.request = replace(self.request, id=identity)
        self._claim_next()

    return patched(Negotiation, "_begin_cancel", begin_cancel)


def _never_asks_again() -> AbstractContextManager[None]:
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


def _short(fault_s: float, heal_s: float) -> Callable[[Options], Options]:
    """Return what shortens runs that only their end can judge."""
    return lambda options: replace(options, fault_s=fault_s, heal_s=heal_s)


def _no_objection(self: Controller) -> None:
    del self


def _minority_silent() -> AbstractContextManager[None]:
    """Let a server try for long, instead of saying that it has no majority."""
    original = Controller.__init__

    def init(self: Controller, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        self.settings = ControllerSettings(call_timeout_s=10.0)

    @contextmanager
    def broken() -> Generator[None]:
        with (
            patched(Controller, "__init__", init),
            patched(Controller, "require_majority", _no_objection),
        ):
            yield

    return broken()


def _with_policy(*kinds: str) -> Callable[[Options], Options]:
    """Return what gives runs policies about these things, one after the other."""
    return lambda options: replace(options, policy=kinds, policy_s=2.0, think_s=0.3)


MUTATIONS = (
    Mutation(
        "vote-not-persisted",
        "one-vote",
        "a vote is remembered in memory only",
        broken_consensus.vote_not_persisted,
        (("kill", 1.0), ("kill-leader", 1.0)),
    ),
    Mutation(
        "not-synced",
        "acknowledged-stays",
        "the journal is written, and never synced",
        broken_consensus.not_synced,
        (("power-all", 4.0),),
    ),
    Mutation(
        "votes-count-twice",
        "one-leader",
        "each vote counts twice",
        broken_consensus.votes_count_twice,
        (("partition", 1.5), ("kill-leader", 2.0)),
    ),
    Mutation(
        "truncates-blindly",
        "acknowledged-stays",
        "a follower cuts its log behind what a leader sends, conflict or not",
        broken_consensus.truncates_blindly,
        (("kill-leader", 1.0), ("slow-link", 1.0)),
    ),
    Mutation(
        "commits-alone",
        "logs-agree",
        "a leader commits what it has, whether a majority has it or not",
        broken_consensus.commits_alone,
        (("isolate-leader", 2.0), ("kill-leader", 2.0)),
    ),
    Mutation(
        "votes-for-anybody",
        "safety",
        "a voter does not compare the candidate's log with its own",
        broken_consensus.votes_for_anybody,
        (("kill-leader", 1.0), ("slow-link", 1.0), ("isolate-leader", 2.0)),
    ),
    Mutation(
        "torn-tail-refused",
        "starts-again",
        "a batch that a crash has torn passes for damage",
        broken_consensus.torn_tail_refused,
        (("torn", 1.0), ("power", 2.0)),
    ),
    Mutation(
        "nobody-gets-a-vote",
        "creates",
        "no voter is ever added to the first",
        broken_consensus.nobody_gets_a_vote,
    ),
    Mutation(
        "unknown-outcome-crashes",
        "no-crash",
        "a server ends when it cannot know whether its command was committed",
        broken_consensus.unknown_outcome_crashes,
        (("isolate-leader", 2.0), ("kill-leader", 2.0)),
    ),
    Mutation(
        "never-rests",
        "not-stuck",
        "a server looks at its table again and again without a pause",
        broken_consensus.never_rests,
    ),
    Mutation(
        "space-unchecked",
        "table-sound",
        "free memory is checked by the server that offers, not when the grant is applied",
        _space_unchecked,
    ),
    Mutation(
        "double-grant",
        "memory-truth",
        "the same, seen by the workers",
        _space_unchecked,
    ),
    Mutation(
        "limits-unchecked",
        "limits-hold",
        "the policy's limits are not checked when a grant is applied",
        broken_policy.limits_unchecked,
        tune=_with_policy("gpus"),
    ),
    Mutation(
        "windows-ignored",
        "limits-hold",
        "a limit is the same whether its window is open or not",
        broken_policy.windows_ignored,
        tune=_with_policy("window"),
    ),
    Mutation(
        "places-unchecked",
        "places-hold",
        "everybody may use every GPU",
        broken_policy.places_unchecked,
        tune=_with_policy("places"),
    ),
    Mutation(
        "reservations-ignored",
        "reservations-hold",
        "GPUs that are kept for a class are granted to others",
        broken_policy.reservations_ignored,
        tune=_with_policy("reservation"),
    ),
    Mutation(
        "terms-forgotten",
        "terms-given",
        "a lease gets no end and no idle timeout from the policy",
        broken_policy.terms_forgotten,
        tune=_with_policy("lifetime", "idle"),
    ),
    Mutation(
        "policy-not-kept",
        "policy-stays",
        "a new policy is confirmed, and the old one stays in force",
        broken_policy.policy_not_kept,
        tune=_with_policy("priority"),
    ),
    Mutation(
        "filters-ignored",
        "granted-as-asked",
        "whatever a request says of its GPUs, any will do",
        broken_policy.filters_ignored,
        tune=lambda options: replace(options, filtered=0.5),
    ),
    Mutation(
        "outlives-its-time",
        "time-is-over",
        "nobody ends a lease whose time is over",
        broken_policy.outlives_its_time,
        tune=lambda options: _with_policy("lifetime")(
            _short(8.0, 10.0)(replace(options, hold_s=8.0))
        ),
    ),
    Mutation(
        "never-idle",
        "unused-ends",
        "a lease that is not used goes on",
        broken_policy.never_idle,
        tune=lambda options: replace(_short(8.0, 10.0)(options), idle=0.9, hold_s=8.0),
    ),
    Mutation(
        "keeps-what-is-free",
        "nobody-starves",
        "nothing is kept for a large request before all that it needs is free at once",
        broken_policy.keeps_what_is_free,
        tune=lambda options: replace(options, starved_s=1.0, think_s=0.3, gpus=2, wide=0.3),
    ),
    Mutation(
        "keeps-one-server",
        "nobody-starves",
        "for a request over several servers only what one of them has is kept",
        broken_policy.keeps_one_server,
        tune=lambda options: replace(
            options, starved_s=1.0, think_s=0.3, gpus=2, servers=3, across=0.5
        ),
    ),
    Mutation(
        "overtakes",
        "nobody-starves",
        "small requests take what one that has waited for long needs",
        broken_policy.overtakes,
        tune=lambda options: replace(options, starved_s=1.0, think_s=0.3, gpus=2, servers=3),
    ),
    Mutation(
        "waits-anew",
        "keeps-its-place",
        "a wait begins anew whenever the client asks again",
        broken_policy.waits_anew,
    ),
    Mutation(
        "has-no-place",
        "keeps-its-place",
        "clients wait without the pool's knowledge",
        broken_policy.has_no_place,
        tune=_short(2.0, 16.0),
    ),
    Mutation(
        "apply-differs",
        "logs-agree",
        "a command has another effect on another server",
        _apply_differs,
    ),
    Mutation(
        "snapshot-forgets",
        "logs-agree",
        "a snapshot lacks a part of the table",
        _snapshot_forgets,
        (("power", 3.0), ("kill", 2.0)),
    ),
    Mutation(
        "revocation-ignored",
        "revoked-stays",
        "a revoked token goes on being good",
        _revocation_ignored,
        (("revoke", 4.0),),
    ),
    Mutation(
        "drain-ignored",
        "policy-stays",
        "a drained server goes on granting",
        _drain_ignored,
        (("drain", 3.0),),
    ),
    Mutation(
        "freed-too-early",
        "freed-is-gone",
        "a lease is freed while its worker still lives",
        _freed_too_early,
    ),
    Mutation(
        "session-before-up",
        "freed-is-gone",
        "a restarted server opens sessions before the table knows its new incarnation",
        _session_before_up,
        (("kill", 2.0),),
    ),
    Mutation(
        "not-swept",
        "freed-is-gone",
        "a restarted server offers its GPUs while former workers live",
        _not_swept,
        (("kill", 2.0),),
    ),
    Mutation(
        "fencing-ignored",
        "memory-truth",
        "a server starts workers for whatever lease a client shows",
        _fencing_ignored,
        (("end-lease", 0.15), ("client-slow", 0.15)),
        lambda options: replace(options, gpus=1, hold_s=1.0, clients=20),
    ),
    Mutation(
        "lost-client-unnoticed",
        "dead-clients-leave",
        "nobody ends the leases of a client that is gone",
        _lost_client_unnoticed,
        (("client-kill", 3.0),),
        tune=_short(8.0, 10.0),
    ),
    Mutation(
        "cancel-not-committed",
        "granted-is-wanted",
        "a client goes on to the next offer while its last claim may still be granted",
        _cancel_not_committed,
        (("isolate-leader", 2.0), ("reset", 1.0), ("pause-leader", 2.0)),
    ),
    Mutation(
        "granted-before-commit",
        "linearizable",
        "a claim is answered before it is committed",
        _granted_before_commit,
        tune=_short(6.0, 2.0),
    ),
    Mutation(
        "expired-is-definite",
        "granted-is-wanted",
        "a claim counts as refused when a repetition of it has expired",
        _expired_is_definite,
        (("reset", 0.3), ("isolate-leader", 2.0), ("kill-leader", 2.0)),
        lambda options: replace(options, think_s=0.3, hold_s=1.0),
    ),
    Mutation(
        "minority-silent",
        "answers-in-time",
        "a server without a majority keeps its clients waiting",
        _minority_silent,
        (("isolate-leader", 2.0), ("power-all", 8.0)),
    ),
    Mutation(
        "never-reachable-again",
        "converges",
        "a server that was unreachable stays so",
        _never_reachable_again,
        (("pause", 2.0), ("deaf", 2.0)),
        tune=_short(16.0, 10.0),
    ),
    Mutation(
        "never-asks-again",
        "everything-granted",
        "a client that waits does not ask again",
        _never_asks_again,
        tune=_short(2.0, 10.0),
    ),
)
"""Every broken build, and the checker that must notice it."""
