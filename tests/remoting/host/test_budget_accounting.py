from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.properties import examples

from gpupool.pool.model.ids import GpuId, LeaseId
from gpupool.remoting.host.budget import Budget, BudgetError

GPUS = (GpuId("GPU-a"), GpuId("GPU-b"))
LEASES = (LeaseId(1), LeaseId(2))
PARTITIONS = {GPUS[0]: 100, GPUS[1]: 60}


def budget_with(*workers: int) -> Budget:
    budget = Budget()
    budget.open_lease(LEASES[0], PARTITIONS)
    for worker in workers:
        budget.add_worker(worker, LEASES[0])
    return budget


def test_workers_of_a_lease_share_its_partition() -> None:
    budget = budget_with(1, 2)
    assert budget.reserve(1, GPUS[0], 70)
    assert not budget.reserve(2, GPUS[0], 31)
    assert budget.reserve(2, GPUS[0], 30)
    assert budget.usage(LEASES[0], GPUS[0]) == 100
    assert budget.usage(LEASES[0], GPUS[1]) == 0


def test_death_returns_what_the_worker_held_and_nothing_else() -> None:
    budget = budget_with(1, 2)
    assert budget.reserve(1, GPUS[0], 70)
    assert budget.reserve(2, GPUS[0], 20)
    budget.charge(1, GPUS[1], 5)
    budget.end_worker(1)
    assert budget.usage(LEASES[0], GPUS[0]) == 20
    assert budget.usage(LEASES[0], GPUS[1]) == 0
    assert budget.held(1, GPUS[0]) == (0, 0)
    budget.end_worker(1)  # harmless


def test_charge_may_exceed_the_partition_and_then_nothing_fits() -> None:
    budget = budget_with(1)
    budget.charge(1, GPUS[1], 70)
    assert not budget.reserve(1, GPUS[1], 1)
    assert not budget.reserve(1, GPUS[1], 0)
    budget.charge(1, GPUS[1], 10)
    assert budget.reserve(1, GPUS[1], 50)


def test_what_a_worker_must_not_do_changes_nothing() -> None:
    budget = budget_with(1)
    assert budget.reserve(1, GPUS[0], 10)
    for call in (
        lambda: budget.release(1, GPUS[0], 11),
        lambda: budget.release(1, GPUS[1], 1),
        lambda: budget.reserve(1, GpuId("GPU-c"), 1),
        lambda: budget.reserve(1, GPUS[0], -1),
        lambda: budget.release(1, GPUS[0], -1),
        lambda: budget.reserve(9, GPUS[0], 1),
        lambda: budget.add_worker(1, LEASES[0]),
        lambda: budget.add_worker(3, LEASES[1]),
        lambda: budget.open_lease(LEASES[0], {GPUS[0]: 1}),
        lambda: budget.close_lease(LEASES[0]),
    ):
        with pytest.raises(BudgetError):
            call()
    assert budget.usage(LEASES[0], GPUS[0]) == 10


def test_lease_closes_once_its_workers_have_ended() -> None:
    budget = budget_with(1)
    budget.end_worker(1)
    budget.close_lease(LEASES[0])
    assert budget.leases() == ()
    budget.close_lease(LEASES[0])


def test_shared_memory_is_charged_until_the_last_one_lets_go() -> None:
    budget = budget_with(1, 2, 3)
    assert budget.reserve(1, GPUS[0], 70)
    budget.pledge(1, GPUS[0], b"t", 50)
    assert budget.held(1, GPUS[0]) == (70, 0)
    budget.hold(2, b"t")
    budget.hold(3, b"t")
    budget.let_go(1, b"t")
    assert budget.usage(LEASES[0], GPUS[0]) == 70
    assert not budget.reserve(1, GPUS[0], 31)
    # The driver counts it as theirs now.
    assert [budget.held(worker, GPUS[0])[0] for worker in (1, 2, 3)] == [20, 50, 50]
    budget.end_worker(2)
    assert budget.usage(LEASES[0], GPUS[0]) == 70
    budget.let_go(3, b"t")
    assert budget.usage(LEASES[0], GPUS[0]) == 20


def test_shared_memory_outlives_the_worker_that_allocated_it() -> None:
    budget = budget_with(1, 2)
    assert budget.reserve(1, GPUS[0], 70)
    budget.pledge(1, GPUS[0], b"t", 50)
    budget.hold(2, b"t")
    budget.end_worker(1)
    assert budget.usage(LEASES[0], GPUS[0]) == 50
    budget.end_worker(2)
    assert budget.usage(LEASES[0], GPUS[0]) == 0


def test_shared_memory_goes_along_to_another_gpu_and_back() -> None:
    budget = budget_with(1, 2)
    assert budget.reserve(1, GPUS[0], 70)
    budget.pledge(1, GPUS[0], b"t", 50)
    budget.hold(2, b"t")
    other = GpuId("GPU-another")
    budget.move(LEASES[0], {GPUS[0]: other})
    assert budget.usage(LEASES[0], other) == 70
    budget.end_worker(1)
    assert budget.usage(LEASES[0], other) == 50
    budget.move(LEASES[0], {other: GPUS[0]})
    budget.end_worker(2)
    assert budget.usage(LEASES[0], GPUS[0]) == 0


def test_what_is_taken_back_stays_charged_while_others_may_have_it() -> None:
    budget = budget_with(1, 2)
    assert budget.reserve(1, GPUS[0], 70)
    budget.pledge(1, GPUS[0], b"t", 50)
    budget.take_back(1, b"t", 10)
    assert budget.usage(LEASES[0], GPUS[0]) == 60
    budget.hold(2, b"t")
    budget.take_back(1, b"t", 10)
    assert budget.usage(LEASES[0], GPUS[0]) == 60


def test_a_pledge_is_of_what_a_worker_has_and_belongs_to_its_lease() -> None:
    budget = budget_with(1, 2)
    budget.open_lease(LEASES[1], PARTITIONS)
    budget.add_worker(3, LEASES[1])
    assert budget.reserve(1, GPUS[0], 10)
    budget.pledge(1, GPUS[0], b"t", 5)
    for call in (
        lambda: budget.pledge(1, GPUS[0], b"t", 6),
        lambda: budget.pledge(1, GPUS[1], b"t", 0),
        lambda: budget.pledge(2, GPUS[0], b"t", 0),
        lambda: budget.take_back(1, b"t", 6),
        lambda: budget.take_back(2, b"t", 1),
        lambda: budget.let_go(2, b"t"),
        lambda: budget.let_go(3, b"t"),
        lambda: budget.let_go(1, b"other"),
    ):
        with pytest.raises(BudgetError):
            call()
    budget.hold(3, b"t")  # of another lease: there is nothing of that name
    assert budget.usage(LEASES[0], GPUS[0]) == 10


@dataclass
class Common:
    """Memory in common, and the worker of each hold on it."""

    gpu: GpuId
    owner: int
    holds: list[int]
    size: int = 0


class BudgetMachine(RuleBasedStateMachine):
    """The books against a plain list of holds."""

    def __init__(self) -> None:
        super().__init__()
        self.budget = Budget()
        for lease in LEASES:
            self.budget.open_lease(lease, PARTITIONS)
        self.lease_of: dict[int, LeaseId] = {}
        self.reserved: dict[tuple[int, GpuId], int] = {}
        self.charged: dict[tuple[int, GpuId], int] = {}
        self.common: dict[tuple[LeaseId, bytes], Common] = {}

    workers = st.integers(1, 5)
    gpus = st.sampled_from(GPUS)
    sizes = st.integers(0, 120)

    tokens = st.sampled_from((b"x", b"y"))

    def expected(self, lease: LeaseId, gpu: GpuId) -> int:
        keys = [(w, gpu) for w, each in self.lease_of.items() if each == lease]
        own = sum(self.reserved.get(k, 0) + self.charged.get(k, 0) for k in keys)
        return own + sum(
            one.size for (of, _), one in self.common.items() if of == lease and one.gpu == gpu
        )

    def having(self, worker: int, gpu: GpuId) -> int:
        """Return a worker's part of the memory in common, as the driver counts it."""
        lease = self.lease_of[worker]
        each = [one for (of, _), one in self.common.items() if of == lease and one.gpu == gpu]
        owned = sum(one.size for one in each if one.owner == worker and worker in one.holds)
        return owned + sum(
            one.size for one in each if one.owner not in one.holds and worker in one.holds
        )

    def drop(self, key: tuple[LeaseId, bytes], worker: int, *, every: bool) -> None:
        one = self.common[key]
        one.holds = [w for w in one.holds if w != worker] + [worker] * (
            0 if every else one.holds.count(worker) - 1
        )
        if not one.holds:
            del self.common[key]

    @rule(worker=workers, gpu=gpus, token=tokens, size=sizes)
    def pledge(self, worker: int, gpu: GpuId, token: bytes, size: int) -> None:
        key = (self.lease_of.get(worker, LEASES[0]), token)
        one = self.common.get(key)
        fits = worker in self.lease_of and size <= self.reserved.get((worker, gpu), 0)
        mine = one is None or (one.gpu == gpu and one.owner == worker and worker in one.holds)
        if not (fits and mine):
            with pytest.raises(BudgetError):
                self.budget.pledge(worker, gpu, token, size)
            return
        self.budget.pledge(worker, gpu, token, size)
        self.reserved[worker, gpu] = self.reserved.get((worker, gpu), 0) - size
        self.common.setdefault(key, Common(gpu, worker, [worker])).size += size

    @rule(worker=workers, token=tokens)
    def hold(self, worker: int, token: bytes) -> None:
        if worker in self.lease_of:
            self.budget.hold(worker, token)
            if (one := self.common.get((self.lease_of[worker], token))) is not None:
                one.holds.append(worker)

    @rule(worker=workers, token=tokens)
    def let_go(self, worker: int, token: bytes) -> None:
        key = (self.lease_of.get(worker, LEASES[0]), token)
        if worker not in self.lease_of or key not in self.common:
            return
        if worker not in self.common[key].holds:
            with pytest.raises(BudgetError):
                self.budget.let_go(worker, token)
            return
        self.budget.let_go(worker, token)
        self.drop(key, worker, every=False)

    @rule(worker=workers, lease=st.sampled_from(LEASES))
    def start(self, worker: int, lease: LeaseId) -> None:
        if worker not in self.lease_of:
            self.budget.add_worker(worker, lease)
            self.lease_of[worker] = lease

    @rule(worker=workers, gpu=gpus, size=sizes)
    def reserve(self, worker: int, gpu: GpuId, size: int) -> None:
        lease = self.lease_of.get(worker)
        if lease is None:
            with pytest.raises(BudgetError):
                self.budget.reserve(worker, gpu, size)
            return
        fits = self.expected(lease, gpu) + size <= PARTITIONS[gpu]
        assert self.budget.reserve(worker, gpu, size) == fits
        if fits:
            self.reserved[worker, gpu] = self.reserved.get((worker, gpu), 0) + size

    @rule(worker=workers, gpu=gpus, size=sizes)
    def release(self, worker: int, gpu: GpuId, size: int) -> None:
        held = self.reserved.get((worker, gpu), 0)
        if worker not in self.lease_of or size > held:
            with pytest.raises(BudgetError):
                self.budget.release(worker, gpu, size)
            return
        self.budget.release(worker, gpu, size)
        self.reserved[worker, gpu] = held - size

    @rule(worker=workers, gpu=gpus, size=sizes)
    def charge(self, worker: int, gpu: GpuId, size: int) -> None:
        if worker in self.lease_of:
            self.budget.charge(worker, gpu, size)
            self.charged[worker, gpu] = size

    @rule(worker=workers)
    def die(self, worker: int) -> None:
        self.budget.end_worker(worker)
        self.lease_of.pop(worker, None)
        for key in list(self.common):
            self.drop(key, worker, every=True)
        for books in (self.reserved, self.charged):
            for key in [key for key in books if key[0] == worker]:
                del books[key]

    @invariant()
    def books_agree(self) -> None:
        for gpu in GPUS:
            for lease in LEASES:
                assert self.budget.usage(lease, gpu) == self.expected(lease, gpu)
            for worker in self.lease_of:
                own = self.reserved.get((worker, gpu), 0) + self.having(worker, gpu)
                assert self.budget.held(worker, gpu)[0] == own
            assert self.budget.used_on(gpu) == sum(self.expected(each, gpu) for each in LEASES)


TestBudgetMachine = BudgetMachine.TestCase
TestBudgetMachine.settings = settings(max_examples=examples(50), stateful_step_count=30)


@given(st.lists(st.integers(0, 50), max_size=20))
def test_reservations_never_exceed_the_partition(sizes: list[int]) -> None:
    budget = budget_with(1)
    granted = [size for size in sizes if budget.reserve(1, GPUS[0], size)]
    assert sum(granted) == budget.usage(LEASES[0], GPUS[0]) <= PARTITIONS[GPUS[0]]
