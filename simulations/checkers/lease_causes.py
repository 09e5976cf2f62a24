"""The history of leases outside the table: claims let go, connections lost, orders, programs.

The cluster records it as it happens, and ``lease_checkers`` judges the ends of leases by it.
"""

from collections import defaultdict
from collections.abc import Iterable
from math import inf

from gpupool.pool.model.ids import LeaseId, RequestId
from gpupool.simulations.kernel.machines import Machine, Worker


class LeaseCauses:
    """The facts of one run that a lease may end for. Instants are virtual seconds."""

    def __init__(self) -> None:
        self.granted_at: dict[LeaseId, float] = {}
        """When the first server applied the grant."""
        self.claimed_at: dict[RequestId, float] = {}
        """When a client first claimed GPUs for a request. Its commit may come much later, after an
        outage (seed 10162932)."""
        self.released: set[LeaseId] = set()
        """Leases that their client has begun to give back."""
        self.cancelled: set[RequestId] = set()
        """Requests that their client has begun to cancel."""
        self.ordered: set[LeaseId] = set()
        """Leases that an operator has ordered to end."""
        self._lost_at: dict[tuple[str, str], float] = {}
        self._session_at: dict[tuple[LeaseId, str], float] = {}

    def claimed(self, request: RequestId, at: float) -> None:
        """Take note that a client sends a claim."""
        self.claimed_at.setdefault(request, at)

    def connection_lost(self, client: str, server: str, at: float) -> None:
        """Take note that a server has lost its connection with a client, or closed it."""
        self._lost_at[client, server] = at

    def session_opened(self, lease: LeaseId, server: str, at: float) -> None:
        """Take note that a server, by machine, has opened a session to a client attached there."""
        self._session_at[lease, server] = at

    def lost_since(self, client: str, servers: Iterable[str], since: float) -> bool:
        """Return whether one of the servers has lost a connection with the client since then."""
        return any(self._lost_at.get((client, server), -inf) >= since for server in servers)

    def unattached_at(self, lease: LeaseId, client: str, servers: Iterable[str]) -> bool:
        """Return whether the client may have no connection with one of the lease's servers."""
        return any(
            self._lost_at.get((client, server), -inf) >= self._session_at.get((lease, server), inf)
            or (lease, server) not in self._session_at
            for server in servers
        )


def longest_rests(
    lease: LeaseId,
    machines: Iterable[Machine],
    now: float,
    since: float,
    within_s: float,
    former: Iterable[Machine] = (),
) -> list[float]:
    """Return for how long each machine's programs of a lease had rested together, lately.

    A server that the lease has left may have proposed its end before, so rests there count for all.

    Args:
        lease: of the programs.
        machines: on which it has GPUs.
        now: virtual seconds.
        since: the grant; a machine without a program has rested since then.
        within_s: a rest counts that ended no longer ago.
        former: machines on which it may have had GPUs before a move.
    """
    left_s = 0.0
    for machine in former:
        for worker in machine.workers:
            if worker.lease == lease:
                left_s = max(left_s, _rest_s(worker, now, now - within_s))
        left_s = max([left_s, *_lengths(machine.rests_before.get(lease, ()), now - within_s)])
    found: dict[str, list[float]] = defaultdict(list)
    for machine in machines:
        workers = [worker for worker in machine.workers if worker.lease == lease]
        if not workers:
            found[machine.name].append(now - since)
        for worker in workers:
            found[machine.name].append(_rest_s(worker, now, now - within_s))
    return [max(left_s, min(rests)) for rests in found.values()]


def _rest_s(worker: Worker, now: float, since: float) -> float:
    """Return the longest rest of a program that goes on, or ended no earlier."""
    rest_s = now - worker.rested_since[0] if worker.rested_since is not None else 0.0
    # Any of them may be what an end that was on its way for long was proposed for.
    return max([rest_s, *_lengths(worker.rested, since)])


def _lengths(rests: Iterable[tuple[float, float]], since: float) -> list[float]:
    return [end - start for start, end in rests if end >= since]
