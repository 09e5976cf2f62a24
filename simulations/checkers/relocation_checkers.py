"""Checkers of leases that go to another server: a program runs on one, and each move ends."""

from gpupool.pool.model.ids import LeaseId
from gpupool.pool.model.relocation import RelocationState
from gpupool.pool.model.state import Lease, PartStatus, PoolState
from gpupool.remoting.protocol import messages as m
from gpupool.simulations.kernel.failure_reporter import FailureReporter


class RunsOnce:
    """A program goes on where the pool has its lease, and is told so only then."""

    def __init__(self, failures: FailureReporter) -> None:
        self._failures = failures
        self.gone = 0
        """How many programs have gone to another server."""

    def told(self, order: m.LeaseLeaving, *, gone: bool, state: PoolState) -> None:
        """Judge a message to a client about its lease, by the newest table at that moment."""
        self.gone += gone
        lease = state.leases.get(order.lease)
        if lease is None or not lease.held:
            return  # nobody runs it any more
        if gone != has_gone(lease, order):
            where = "has gone" if gone else "stays"
            text = f"a client is told that lease {lease.id} {where}, and the table has it elsewhere"
            self._failures.fail("runs-once", text)


def has_gone(lease: Lease, order: m.LeaseLeaving) -> bool:
    """Return whether the table has a lease on the server of an order."""
    found = lease.relocation
    if found is not None and found.number == order.number:
        return found.state is RelocationState.GONE
    if found is not None:
        return found.source == order.server
    return lease.parts.get(order.server) is PartStatus.HELD


class RelocationsEnd:
    """Once nothing is disturbed, a lease is not on its way for ever."""

    LEAVING_S = 16.0
    """A client that does not come is given up after 10 s; a clock may run at half the speed."""

    FREED_S = 8.0
    """A server kills the remaining workers, which takes up to a second, and frees its part."""

    def __init__(self, failures: FailureReporter) -> None:
        self._failures = failures
        self._since: dict[tuple[LeaseId, int, RelocationState], float] = {}

    def observe(self, state: PoolState, now: float) -> None:
        """Check all leases that have parts on two servers."""
        on_way = {
            (each.id, each.relocation.number, each.relocation.state)
            for each in state.leases.relocating().values()
            if each.held and each.relocation is not None
        }
        self._since = {each: self._since.get(each, now) for each in on_way}
        for (lease, _, way), since in self._since.items():
            limit_s = self.LEAVING_S if way is RelocationState.LEAVING else self.FREED_S
            if now - since > limit_s:
                text = (
                    f"lease {lease} has parts on two servers for {now - since:.1f} s: {way.value}"
                )
                self._failures.fail("relocations-end", text)
