"""The liveness phase of a run: after everything is healed, the pool must come right by itself.

All servers agree soon, every request is granted that could be, leases end in time, and nothing of
dead clients is left. The checks of safety go on as in the phase of faults.
"""

from collections import deque
from dataclasses import dataclass, replace

from gpupool.pool.model.ids import Milliseconds, RequestId, ServerId
from gpupool.pool.model.state import PoolState, Request
from gpupool.pool.policy.rulebook import rulebook
from gpupool.pool.scheduling.offers import Offer
from gpupool.pool.scheduling.placement import make_offer, may_have_room
from gpupool.pool.scheduling.ranking import choose
from gpupool.pool.view import MAJORITY_FRESH_S
from gpupool.simulations.cluster.cluster import Cluster
from gpupool.simulations.cluster.cluster_faults import ClusterFaults

CONVERGE_S_MAX = 5.0
"""After healing, all servers must agree within this, without help."""

GONE_S_MAX = 14.0
"""The leases and workers of a dead client end within this: 10 s until the kernel notices, and some
more."""

END_S_MAX = 5.0
"""A lease that ends is freed within this."""

GRANT_S_MAX = 7.0
"""A request that could be granted all the time is granted within this: the longest back-off of
5 s, a round of asking and a claim."""

OBSERVE_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class _Observation:
    """The table at one moment, with the clock of each server that answers."""

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


class LivenessPhase:
    """Heals the cluster, and fails the run when something does not come right in time."""

    def __init__(self, cluster: Cluster, faults: ClusterFaults) -> None:
        self._cluster = cluster
        self._faults = faults
        self._healed_at = self._settled_at = self._flipped_at = 0.0
        self.converged_s = -1.0
        """Seconds from healing until all servers agreed; negative before."""
        self._observations: deque[_Observation] = deque()
        self._waits_since: dict[RequestId, float] = {}
        self._no_room_at: dict[RequestId, float] = {}
        """The latest observation in which a request was seen to have no room."""

    def run(self) -> None:
        """Heal, watch for ``heal_s``, and settle."""
        cluster, scheduler = self._cluster, self._cluster.scheduler
        if scheduler.stopped:
            return
        self._faults.heal()
        self._healed_at = self._settled_at = scheduler.now
        end = scheduler.now + cluster.options.heal_s
        while scheduler.now < end and not scheduler.stopped:
            scheduler.run_until(min(scheduler.now + OBSERVE_EVERY_S, end))
            self._check_convergence()
            self._check_waiting()
            self._check_ends()
        self._settle()
        if scheduler.stopped:
            return
        checkers = cluster.environment.checkers
        checkers.logs.end((n, p.table.right) for n, p in cluster.servers.items())
        for name, process in cluster.servers.items():
            if process.table.is_flipped:
                text = f"{name} serves a table in which a bit has flipped"
                cluster.failures.fail("flips-found", text)
        checkers.linearizable.end(cluster.environment.history)
        checkers.accounts.end(checkers.logs.state)

    def _settle(self) -> None:
        """Let no more requests be made, and wait until nothing of dead clients is left."""
        cluster, scheduler = self._cluster, self._cluster.scheduler
        for client in cluster.clients.values():
            client.retired = True
        end = self._healed_at + max(GONE_S_MAX, cluster.options.heal_s)
        while scheduler.now < end and not scheduler.stopped:
            scheduler.run_until(scheduler.now + OBSERVE_EVERY_S)
            self._check_ends()
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
            scheduler.run_until(scheduler.now + OBSERVE_EVERY_S)

    def _left_over(self) -> set[str]:
        environment = self._cluster.environment
        living = {bytes(r) for client in self._cluster.clients.values() for r in client.wanted}
        return environment.checkers.dead_clients.left_over(
            environment.checkers.logs.state, living, environment.machines.values()
        )

    def _quiet(self) -> bool:
        newest = self._cluster.environment.checkers.logs.newest
        return all(p.table.state.index == newest for p in self._cluster.servers.values())

    def _check_convergence(self) -> None:
        cluster = self._cluster
        if self.converged_s >= 0.0:
            return
        now = cluster.scheduler.now
        early = now < self._healed_at + cluster.options.heal_s / 2
        if cluster.replacing and early:
            self._settled_at = now  # an operator's work, not the pool's
        # A flipped bit is a fault until the next hash. Then its server starts again (seed
        # 10000057).
        if early and any(process.table.is_flipped for process in cluster.servers.values()):
            self._flipped_at = now
        elapsed_s = now - self._settled_at
        if cluster.converged:
            self.converged_s = elapsed_s
            cluster.trace.note("checker", "converged", f"{elapsed_s:.1f} s after healing")
        elif now - max(self._settled_at, self._flipped_at) > CONVERGE_S_MAX:
            cluster.failures.fail("converges", f"not within {CONVERGE_S_MAX:.0f} s of healing")

    def _check_ends(self) -> None:
        """Fail when a lease should have ended."""
        cluster = self._cluster
        leader = cluster.leader_name()
        if self.converged_s < 0.0 or leader is None:
            return
        environment = cluster.environment
        state, machines = environment.checkers.logs.state, environment.machines
        now_ms = max(state.now, cluster.servers[leader].table_clock.now_ms())
        environment.checkers.ends.observe(state, now_ms, machines.values(), cluster.scheduler.now)
        environment.checkers.batches.observe(state, cluster.scheduler.now)
        environment.checkers.suspended.observe(state, now_ms, cluster.scheduler.now)
        environment.checkers.settled.observe(state, cluster.scheduler.now)
        environment.checkers.ways.observe(state, cluster.scheduler.now)

    def _check_waiting(self) -> None:
        """Fail when a request could have been granted for long, and was not."""
        cluster = self._cluster
        if self.converged_s < 0.0:
            return
        state, now = cluster.environment.checkers.logs.state, cluster.scheduler.now
        waiting = [w.id for c in cluster.clients.values() if (w := c.waits_for) is not None]
        cluster.environment.checkers.places.observe(waiting, state, now)
        # Who doubts its leader because of a clock that ran at another rate rightly offers nothing.
        doubtful = cluster.environment.checkers.unserved.is_doubtful(now)
        clocks = tuple(
            (process.server, Milliseconds(process.controller.context.proposer.at_ms()))
            for process in cluster.servers.values()
            if process.controller is not None
            and (replicated_log := process.replicated_log) is not None
            and not (doubtful and replicated_log.majority_age_s() >= MAJORITY_FRESH_S)
        )
        observations = self._observations
        observations.append(_Observation(now, state, clocks))
        # The oldest that is kept is the latest that is long enough ago.
        while len(observations) > 1 and now - observations[1].at > GRANT_S_MAX:
            observations.popleft()
        self._waits_since = {each: self._waits_since.get(each, now) for each in waiting}
        for client in cluster.clients.values():
            request = client.waits_for
            token = state.tokens.get(client.token)
            # After an accident with clocks it may have expired, and then nothing is granted to it.
            if token is None or token.refusal(state.now):
                continue
            if request is not None and self._had_room(request, client.user):
                text = f"{client.machine} waits {now - observations[0].at:.1f} s for what is free"
                cluster.failures.fail("everything-granted", text)

    def _had_room(self, request: Request, user: str) -> bool:
        """Return whether a request had room in every observation of ``GRANT_S_MAX``; tests few."""
        observations = self._observations
        begin = observations[0].at
        if observations[-1].at - max(begin, self._waits_since[request.id]) <= GRANT_S_MAX:
            return False
        if self._no_room_at.get(request.id, -1.0) >= begin:
            return False
        for observation in reversed(observations):
            if not observation.grantable(request, user):
                self._no_room_at[request.id] = observation.at
                return False
        return True
