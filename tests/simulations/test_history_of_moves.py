"""A GPU's history of leases that are suspended, moved, or both in one step."""

from dataclasses import replace

from tests.pool.policy_kit import GIB, ONE, A, upgraded
from tests.pool.test_lease_moves import Moving, gpu

from gpupool.pool.model import commands as c
from gpupool.pool.model.ids import LeaseId, RequestId
from gpupool.pool.model.state import Lease
from gpupool.simulations.checkers.history import History

CAPACITY = 80 * GIB


class Watched:
    """A pool with a lease of 60 GiB on GPU 0, and the history of its GPUs, a second a command."""

    def __init__(self) -> None:
        self.pool, self.history, self.now = Moving(), History(), 0.0
        upgraded(self.pool.machine)
        self.history.capacity = {gpu(each): CAPACITY for each in range(4)}
        self.id = self.grant(0, "ada")

    def grant(self, index: int, user: str) -> LeaseId:
        lease = self.pool.hold((gpu(index), 60), user=user)
        request = RequestId(bytes(8) + lease.to_bytes(8))
        self.history.granted(request, lease, {gpu(index): 60 * GIB}, self.now + 0.1, self.now + 0.2)
        self.look()
        return lease

    def do(self, command: c.Command) -> None:
        assert self.pool.do(command).ok
        self.look()

    def look(self) -> None:
        self.now += 1.0
        self.history.pool_holds(self.pool.state.leases.values(), self.now)

    @property
    def lease(self) -> Lease:
        return self.pool.lease(self.id)

    def suspended(self) -> None:
        self.do(c.SuspendLease(self.id, "", "ada"))
        self.pool.let_go(self.id)
        self.look()

    def is_possible(self) -> bool:
        return all(verdict.linearizable for _, verdict in self.history.verdicts())


def test_a_suspended_lease_that_goes_on_elsewhere_takes_that_once() -> None:
    watched = Watched()
    watched.suspended()
    watched.grant(0, "bob")
    watched.do(c.MoveLease(watched.id, A, "ada", False, (), (gpu(2),)))
    assert watched.is_possible()
    watched.do(c.EndLease(watched.id, "done", "ada"))
    watched.do(c.FreeLease(watched.id, A, ONE))
    watched.grant(2, "cy")
    assert watched.is_possible()


def test_one_that_is_suspended_again_has_neither() -> None:
    watched = Watched()
    watched.suspended()
    watched.grant(0, "bob")
    watched.do(c.MoveLease(watched.id, A, "ada", False, (), (gpu(2),)))
    number = watched.pool.order_number(watched.id)
    watched.do(c.RefuseSuspension(watched.id, A, ONE, number, "the driver refuses"))
    watched.grant(2, "cy")
    assert watched.is_possible()


def test_two_that_have_one_gpu_are_noticed() -> None:
    watched = Watched()
    watched.suspended()
    watched.grant(0, "bob")
    row = replace(watched.lease, suspension=None)  # as if it ran there again
    rows = {**dict(watched.pool.state.leases.items()), watched.id: row}
    watched.history.pool_holds(rows.values(), watched.now + 1.0)
    assert not watched.is_possible()
