"""One run: make a pool, let faults happen for a while, heal, and see whether all came right."""

import gc
from collections import deque
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

from gpupool.pool.model.ids import Milliseconds, RequestId, ServerId
from gpupool.pool.model.state import PoolState, Request
from gpupool.pool.policy.rulebook import rulebook
from gpupool.pool.scheduling import fairness
from gpupool.pool.scheduling.placement import Offer, make_offer, may_have_room
from gpupool.pool.scheduling.ranking import choose
from gpupool.simulations.cluster.cluster import Cluster
from gpupool.simulations.faults.fault_schedule import Fault, happen, schedule
from gpupool.simulations.kernel.failure_reporter import Failure
from gpupool.simulations.kernel.scheduler import StuckError
from gpupool.simulations.kernel.swarm_options import Options
from gpupool.simulations.kernel.trace import Line

CREATE_S_MAX = 30.0
"""A pool without faults must be complete within this."""

CONVERGE_S_MAX = 5.0
"""After healing, all servers must agree within this, without help."""

GONE_S_MAX = 14.0
"""What is left of a dead client ends within this: 10 s until the kernel notices, and some more."""

END_S_MAX = 5.0
"""A lease that ends is freed within this."""

GRANT_S_MAX = 7.0
"""A request that could be granted all the time is granted within this: the longest back-off of
5 s, a round of asking and a claim."""

LOOK_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class _Look:
    """The table at one look, and what each server that answers takes for the time."""

    at: float  # virtual seconds
    state: PoolState
    clocks: tuple[tuple[ServerId, Milliseconds], ...]

    def grantable(self, request: Request, user: str) -> bool:
        """Return whether a request could have been granted: by one server, or by all together."""
        offers: list[Offer] = []
        for server_id, now in self.clocks:
            server = self.state.servers.get(server_id)
            # Most servers have plainly no room, which is quicker to see.
            if server is None or not may_have_room(server, request):
                continue
            # Each server opens the policy's windows by its own clock.
            state = replace(self.state, now=now)
            answer = make_offer(state, server, request, user)
            if isinstance(answer, Offer):
                if not request.across:
                    return True
                offers.append(answer)
        # What a request for memory counts as depends on which GPUs it gets, so a limit may refuse
        # what all servers together could give.
        limited = rulebook(self.state.policy).has_caps
        return not limited and choose(tuple(offers), request) is not None


@dataclass(frozen=True, slots=True)
class Report:
    """What came out of one run."""

    options: Options
    failure: Failure | None
    digest: str
    lines: tuple[Line, ...]
    faults: tuple[Fault, ...]
    virtual_s: float
    event_count: int
    granted: int
    applied: int
    converged_s: float
    histories: int
    histories_unknown: int


def run(
    options: Options,
    *,
    broken: Callable[[], AbstractContextManager[None]] = nullcontext,
    only: str = "",
) -> Report:
    """Run one seed.

    Args:
        options: of the run.
        broken: a deliberately broken build, in force during the run.
        only: the one checker whose failures count; empty for all.
    """
    # Nothing of a run is garbage before its end, and looking for some takes a tenth of the time.
    gc.collect()
    gc.disable()
    try:
        with _starved_after(options.starved_s), broken():
            return _Run(options, only).run()
    finally:
        gc.enable()


@contextmanager
def _starved_after(seconds: float) -> Generator[None]:
    """Let requests go first sooner than runs last."""
    usual = fairness.STARVED_AFTER_MS
    fairness.STARVED_AFTER_MS = int(seconds * 1000)
    try:
        yield
    finally:
        fairness.STARVED_AFTER_MS = usual


class _Run:
    def __init__(self, options: Options, only: str = "") -> None:
        self._options = options
        self._cluster = Cluster(options, only=only)
        self._healed_at = self._settled_at = 0.0
        self._converged_s = -1.0
        self._looks: deque[_Look] = deque()
        self._waits_since: dict[RequestId, float] = {}
        self._no_room_at: dict[RequestId, float] = {}
        """The latest look at which a request was seen to have no room."""

    def run(self) -> Report:
        cluster, options = self._cluster, self._options
        scheduler = cluster.scheduler
        faults = schedule(options)
        try:
            self._create()
            begin = scheduler.now
            for fault in faults:
                if options.keep is None or fault.number in options.keep:
                    scheduler.at(begin + fault.at, partial(self._happen, fault))
            scheduler.run_until(begin + options.fault_s)
            self._heal()
        except StuckError as error:
            cluster.failures.fail("not-stuck", str(error))
        checkers = cluster.environment.checkers
        return Report(
            options=options,
            failure=cluster.failures.failure,
            digest=cluster.trace.digest(),
            lines=tuple(cluster.trace.lines),
            faults=tuple(faults),
            virtual_s=scheduler.now,
            event_count=scheduler.event_count,
            granted=cluster.counters.granted,
            applied=checkers.logs.newest,
            converged_s=self._converged_s,
            histories=checkers.linearizable.checked,
            histories_unknown=checkers.linearizable.unknown,
        )

    def _create(self) -> None:
        cluster, scheduler = self._cluster, self._cluster.scheduler
        cluster.create()
        while not cluster.complete and not scheduler.stopped:
            scheduler.run_until(scheduler.now + LOOK_EVERY_S)
            if scheduler.now > CREATE_S_MAX:
                cluster.failures.fail("creates", f"no complete pool after {CREATE_S_MAX} s")
        cluster.trace.note("nemesis", "begin", "the pool is complete")
        cluster.start_clients()

    def _happen(self, fault: Fault) -> None:
        random = fault.random(self._options.seed)
        if fault.kind.startswith("client") and not self._cluster.client_names():
            return
        happen(fault, self._cluster, random)

    # --- after the faults -------------------------------------------------------------------------

    def _heal(self) -> None:
        cluster, scheduler = self._cluster, self._cluster.scheduler
        if scheduler.stopped:
            return
        cluster.heal()
        self._healed_at = self._settled_at = scheduler.now
        end = scheduler.now + self._options.heal_s
        while scheduler.now < end and not scheduler.stopped:
            scheduler.run_until(min(scheduler.now + LOOK_EVERY_S, end))
            self._look_at_convergence()
            self._look_at_waiting()
            self._look_at_ends()
        self._settle()
        if scheduler.stopped:
            return
        checkers = cluster.environment.checkers
        checkers.logs.end((n, p.table.state) for n, p in cluster.servers.items())
        checkers.linearizable.end(cluster.environment.history)

    def _settle(self) -> None:
        """Let no more requests be made, and wait until nothing of dead clients is left."""
        cluster, scheduler = self._cluster, self._cluster.scheduler
        for client in cluster.clients.values():
            client.retired = True
        end = self._healed_at + max(GONE_S_MAX, self._options.heal_s)
        while scheduler.now < end and not scheduler.stopped:
            scheduler.run_until(scheduler.now + LOOK_EVERY_S)
            self._look_at_ends()
            if not self._left_over() and self._quiet():
                return
        # A lease that has only just ended may take the time that its workers take to die.
        before = self._left_over()
        scheduler.run_until(scheduler.now + END_S_MAX)
        if not scheduler.stopped:
            cluster.environment.checkers.dead_clients.end(before, self._left_over())
        # A command that has only just been committed may still be on its way to some servers.
        end = scheduler.now + END_S_MAX
        while scheduler.now < end and not scheduler.stopped and not self._quiet():
            scheduler.run_until(scheduler.now + LOOK_EVERY_S)

    def _left_over(self) -> set[str]:
        environment = self._cluster.environment
        living = {bytes(r) for client in self._cluster.clients.values() for r in client.wanted}
        return environment.checkers.dead_clients.left_over(
            environment.checkers.logs.state, living, environment.machines.values()
        )

    def _quiet(self) -> bool:
        newest = self._cluster.environment.checkers.logs.newest
        return all(p.table.state.index == newest for p in self._cluster.servers.values())

    def _look_at_convergence(self) -> None:
        cluster = self._cluster
        if self._converged_s >= 0.0:
            return
        if cluster.replacing and cluster.scheduler.now < self._healed_at + self._options.heal_s / 2:
            self._settled_at = cluster.scheduler.now  # an operator's work, not the pool's
        elapsed_s = cluster.scheduler.now - self._settled_at
        if cluster.converged:
            self._converged_s = elapsed_s
            cluster.trace.note("checker", "converged", f"{elapsed_s:.1f} s after healing")
        elif elapsed_s > CONVERGE_S_MAX:
            cluster.failures.fail("converges", f"not within {CONVERGE_S_MAX:.0f} s of healing")

    def _look_at_ends(self) -> None:
        """Fail when a lease should have ended."""
        cluster = self._cluster
        leader = cluster.leader_name()
        if self._converged_s < 0.0 or leader is None:
            return
        environment = cluster.environment
        state, machines = environment.checkers.logs.state, environment.machines
        now_ms = max(state.now, machines[leader].clock.wall_ms())
        environment.checkers.ends.look(state, now_ms, machines.values(), cluster.scheduler.now)

    def _look_at_waiting(self) -> None:
        """Fail when a request could have been granted for long, and was not."""
        cluster = self._cluster
        if self._converged_s < 0.0:
            return
        state, now = cluster.environment.checkers.logs.state, cluster.scheduler.now
        waiting = [w.id for c in cluster.clients.values() if (w := c.waits_for) is not None]
        cluster.environment.checkers.places.look(waiting, state, now)
        clocks = tuple(
            (process.server, Milliseconds(process.controller.proposals.at_ms()))
            for process in cluster.servers.values()
            if process.controller is not None
        )
        looks = self._looks
        looks.append(_Look(now, state, clocks))
        # The oldest that is kept is the latest that is long enough ago.
        while len(looks) > 1 and now - looks[1].at > GRANT_S_MAX:
            looks.popleft()
        self._waits_since = {each: self._waits_since.get(each, now) for each in waiting}
        for client in cluster.clients.values():
            request = client.waits_for
            if request is not None and self._had_room(request, client.user):
                text = f"{client.machine} waits {now - looks[0].at:.1f} s for what is free"
                cluster.failures.fail("everything-granted", text)

    def _had_room(self, request: Request, user: str) -> bool:
        """Return whether a request had room at every look for long; looks at few of them."""
        looks = self._looks
        begin = looks[0].at
        if looks[-1].at - max(begin, self._waits_since[request.id]) <= GRANT_S_MAX:
            return False
        if self._no_room_at.get(request.id, -1.0) >= begin:
            return False
        for look in reversed(looks):
            if not look.grantable(request, user):
                self._no_room_at[request.id] = look.at
                return False
        return True
