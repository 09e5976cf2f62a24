"""The checker of the CA's exchange: no server is shut out, and the key that signs is not lost."""

from collections.abc import Iterable

from gpupool.pool.model.state import PoolState
from gpupool.simulations.kernel.ca_files import trust_each_other
from gpupool.simulations.kernel.failure_reporter import FailureReporter
from gpupool.simulations.kernel.machines import Machine


class CaHolds:
    """Every two servers of the pool can have a link; most voters have the key of a new CA."""

    def __init__(self, failures: FailureReporter) -> None:
        self._failures = failures
        self._authorities: tuple[bytes, ...] = ()

    def applied(self, state: PoolState, machines: Iterable[Machine]) -> None:
        """Look after a command was applied for the first time anywhere."""
        before, self._authorities = self._authorities, state.authorities
        if len(state.authorities) <= len(before):
            return
        holders = {
            each.server for each in machines if state.authorities[-1] in each.authorities.keys
        }
        voters = state.voters()
        if 2 * len(holders.intersection(voters)) <= len(voters):
            text = (
                f"{len(holders)} of {len(voters)} voters have the key of {state.authorities[-1]!r}"
            )
            self._failures.fail("ca-holds", text)

    def changed(self, state: PoolState, machines: Iterable[Machine]) -> None:
        """Look after a server has begun to run, to trust other CAs, or to show another one."""
        if not state.authorities:
            return
        there = [
            each
            for each in machines
            if each.server in state.servers and each.process is not None and each.process.alive
        ]
        for at, one in enumerate(there):
            for other in there[:at]:
                if not trust_each_other(one.authorities, other.authorities):
                    text = f"{one.name} has {one.authorities}, {other.name} {other.authorities}"
                    self._failures.fail("ca-holds", text)
