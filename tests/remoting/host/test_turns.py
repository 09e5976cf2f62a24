"""The turns of leases on one GPU, in virtual time: shares, idle time, workers that hang or lie."""

import heapq
import itertools
import math
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.properties import examples

from gpupool.pool.model.ids import LeaseId
from gpupool.remoting.host.sharing import turns as module
from gpupool.remoting.host.sharing.turns import Order, Told, Turns

CHANGE_S = 0.0002
"""From an order to its worker's answer, beside the work that is waited for."""

IDLE_S = 0.005


@dataclass
class Worker:
    """A program that launches kernels of one length without end, or wants nothing."""

    kernel_s: float
    busy: bool = True
    deaf: bool = False  # answers nothing
    pause_s: float | None = None  # from the end of a kernel to the next; None: launched ahead
    used_s: float = 0.0
    opened_at: float | None = None
    turns: list[float] = field(default_factory=list[float])  # when each began


class Gpu:
    """Turns, and workers that follow their orders."""

    def __init__(self, shares: list[float], workers: list[Worker]) -> None:
        self.turns, self.workers, self.now = Turns(), workers, 0.0
        self.shares = shares
        self._events: list[tuple[float, int, int, str, int]] = []
        self._order = 0
        for seat, share in enumerate(shares):
            self.turns.join(seat, LeaseId(seat), share, 0.0)
            workers[seat].opened_at = 0.0 if seat == 0 else None
        for seat, worker in enumerate(workers):
            if worker.busy and seat:
                self.turns.want(seat, 0.0)
        self.tell()

    def at(self, when: float, seat: int, what: str, number: int = 0) -> None:
        self._order += 1
        heapq.heappush(self._events, (when, self._order, seat, what, number))

    def tell(self) -> None:
        for told in self.turns.take():
            self.hear(told)

    def hear(self, told: Told) -> None:
        worker = self.workers[told.seat]
        if worker.deaf:
            return
        if told.order is Order.CLOSE:
            end = self.now
            if worker.opened_at is not None and worker.busy:
                # What was launched by now runs to its end.
                ran = self.now - worker.opened_at
                end = worker.opened_at + math.ceil(ran / worker.kernel_s) * worker.kernel_s
                worker.used_s += end - worker.opened_at
            worker.opened_at = None
            self.at(end + CHANGE_S, told.seat, "drained", told.number)
            if worker.busy and worker.pause_s is None:
                self.at(self.now + CHANGE_S / 2, told.seat, "want")
            elif worker.busy:
                self.at(end + CHANGE_S + (worker.pause_s or 0.0), told.seat, "want")
        else:
            if worker.opened_at is None:
                worker.opened_at = self.now
                worker.turns.append(self.now)
            if told.order is Order.WATCH and not worker.busy:
                self.at(self.now + IDLE_S, told.seat, "idle")

    def run(self, until: float) -> None:
        while True:
            wake = self.turns.wake_at()
            event = self._events[0] if self._events else (math.inf, 0, 0, "", 0)
            when = min(wake, event[0])
            if when > until:
                self.now = until
                return
            self.now = max(self.now, when)
            if event[0] <= wake:
                _, _, seat, what, number = heapq.heappop(self._events)
                if what == "want":
                    self.turns.want(seat, self.now)
                elif what == "idle":
                    self.turns.idle(seat, self.now)
                else:
                    self.turns.drained(seat, number, self.now)
            else:
                self.turns.tick(self.now)
            self.tell()

    def parts(self) -> list[float]:
        whole = sum(worker.used_s for worker in self.workers)
        return [worker.used_s / whole for worker in self.workers]


def weigh(gpu: Gpu, seat: int, share: float) -> None:
    gpu.turns.set_share(LeaseId(seat), share, gpu.now)
    gpu.tell()


def used(gpu: Gpu, before: list[float]) -> list[float]:
    got = [worker.used_s - was for worker, was in zip(gpu.workers, before, strict=True)]
    return [each / sum(got) for each in got]


@pytest.mark.parametrize("kernel_s", [0.00001, 0.004])
def test_a_class_that_weighs_more_gets_more_from_then_on(kernel_s: float) -> None:
    gpu = Gpu([0.5, 0.5], [Worker(kernel_s), Worker(kernel_s)])
    gpu.run(5.0)
    assert all(abs(part - 0.5) < 0.05 for part in gpu.parts())
    for weights, due in (((3.0, 1.0), 0.75), ((1.0, 1.0), 0.5), ((0.25, 4.0), 0.0588)):
        for seat, weight in enumerate(weights):
            weigh(gpu, seat, 0.5 * weight)
        before = [worker.used_s for worker in gpu.workers]
        gpu.run(gpu.now + 10.0)
        assert abs(used(gpu, before)[0] - due) < 0.05
        whole = sum(0.5 * weight for weight in weights)
        shown = gpu.turns.got(gpu.now)
        for seat, weight in enumerate(weights):
            assert math.isclose(shown[LeaseId(seat)].due, 0.5 * weight / max(1.0, whole))


@settings(max_examples=examples(10), deadline=None)
@given(
    st.lists(st.sampled_from([0.1, 1.0, 5.0]), min_size=2, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0.1, 0.5, 5.0])), max_size=4),
)
@example([0.1, 1.0], [(0, 5.0), (1, 0.1)])  # the owner's debt was bounded below the other's
def test_nobody_starves_whatever_the_weights_and_their_changes(
    shares: list[float], changes: list[tuple[int, float]]
) -> None:
    gpu = Gpu(shares, [Worker(0.004) for _ in shares])
    for seat, share in changes:
        gpu.run(gpu.now + 0.1)
        weigh(gpu, seat % len(shares), share)
    before = [worker.used_s for worker in gpu.workers]
    gpu.run(gpu.now + 40.0)
    assert all(worker.used_s > was for worker, was in zip(gpu.workers, before, strict=True))


def test_another_share_forgives_no_debt_and_makes_none() -> None:
    turns = Turns()
    turns.join(0, LeaseId(0), 0.5, 0.0)
    turns.join(1, LeaseId(1), 0.5, 0.0)
    turns.want(1, 0.0)
    turns.tick(1.0)
    party = turns._parties[LeaseId(0)]  # pyright: ignore[reportPrivateUsage]
    owed_s = party.spent_s * party.share
    turns.set_share(LeaseId(0), 2.0, 1.0)
    assert math.isclose(party.spent_s * party.share, owed_s)
    turns.set_share(LeaseId(7), 2.0, 1.0)  # has no worker here


def test_shares_due_are_no_more_than_the_gpu() -> None:
    turns = Turns()
    for seat, share in enumerate((0.5, 1.5, 0.5)):
        turns.join(seat, LeaseId(seat), share, 0.0)
    turns.rest(LeaseId(2), 0.0)
    assert [turns.got(0.0)[LeaseId(seat)].due for seat in range(3)] == [0.25, 0.75, 0.2]
    turns.leave(1, 0.0)
    assert turns.got(0.0)[LeaseId(0)].due == 0.5


@settings(max_examples=examples(25), deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 20), st.sampled_from([0.00001, 0.001, 0.004, 0.03])),
        min_size=2,
        max_size=6,
    )
)
def test_who_wants_its_share_gets_it_within_five_points(asked: list[tuple[int, float]]) -> None:
    whole = sum(weight for weight, _ in asked)
    due = [weight / whole for weight, _ in asked]
    gpu = Gpu(due, [Worker(kernel_s) for _, kernel_s in asked])
    gpu.run(20.0)
    parts = gpu.parts()
    assert all(abs(part - share) < 0.05 for part, share in zip(parts, due, strict=True))
    assert sum(worker.used_s for worker in gpu.workers) > 0.9 * gpu.now
    shown = gpu.turns.got(gpu.now)
    for seat, share in enumerate(due):
        assert shown[LeaseId(seat)].due == share
        got = shown[LeaseId(seat)].got
        assert got is not None
        assert abs(got - share) < 0.1
    for worker in gpu.workers:  # nobody starves
        gaps = [b - a for a, b in zip(worker.turns, worker.turns[1:], strict=False)]
        assert max(gaps) < 4.0


@pytest.mark.parametrize("kernel_s", [0.001, 0.009, 0.04])
@pytest.mark.parametrize("pause_s", [0.0, 0.0003, 0.003])
def test_programs_that_wait_for_each_kernel_get_their_shares(
    kernel_s: float, pause_s: float
) -> None:
    """They want a turn again only after their work is over, and have no less to do for that."""
    gpu = Gpu([0.75, 0.25], [Worker(kernel_s, pause_s=pause_s) for _ in range(2)])
    gpu.run(20.0)
    assert abs(gpu.parts()[0] - 0.75) < 0.05


def test_pauses_between_kernels_give_little_credit() -> None:
    """A lease that could not use its share does not keep its neighbour waiting for it later."""
    workers = [Worker(0.03, pause_s=0.04), Worker(0.001)]
    gpu = Gpu([0.75, 0.25], workers)
    gpu.run(10.0)
    assert gpu.parts()[0] < 0.6
    workers[0].pause_s = None
    gpu.run(12.0)
    later = [began for began in workers[1].turns if began > 9.9]
    gaps = [b - a for a, b in itertools.pairwise(later)]
    assert max(gaps) < module.CREDIT_MAX_S + 0.15


def test_the_time_of_an_idle_lease_is_given_away() -> None:
    gpu = Gpu([0.75, 0.25], [Worker(0.001, busy=False), Worker(0.001)])
    gpu.run(10.0)
    # It has the GPU since its neighbour first said that it wants nothing, in one turn without end.
    assert len(gpu.workers[1].turns) == 1
    gpu.workers[0].busy = True
    gpu.turns.want(0, gpu.now)
    gpu.tell()
    gpu.run(10.1)
    assert gpu.workers[1].used_s > 0.99 * 10.0
    assert gpu.workers[0].opened_at is not None


def test_idle_time_gives_no_credit_and_leaves_no_debt() -> None:
    workers = [Worker(0.001, busy=False), Worker(0.001)]
    gpu = Gpu([0.5, 0.5], workers)
    gpu.run(10.0)
    workers[0].busy = True
    gpu.turns.want(0, gpu.now)
    gpu.tell()
    workers[1].used_s = 0.0  # of its long turn, once that has ended
    gpu.run(10.001 + module.TURN_S)
    workers[0].used_s = workers[1].used_s = 0.0
    gpu.run(15.0)
    assert abs(gpu.parts()[0] - 0.5) < 0.05


def test_one_lease_alone_takes_no_turns() -> None:
    turns = Turns()
    turns.join(1, LeaseId(1), 0.25, 0.0)
    turns.take()
    turns.join(2, LeaseId(1), 0.25, 0.0)  # another process of it
    assert turns.take() == []
    assert turns.wake_at() == math.inf
    turns.join(3, LeaseId(2), 0.25, 1.0)
    turns.want(3, 1.0)
    assert {told.seat for told in turns.take() if told.order is Order.CLOSE} >= {1, 2}
    turns.leave(1, 1.0)
    turns.leave(2, 1.0)
    assert [told.order for told in turns.take() if told.seat == 3] == [Order.OPEN]
    assert turns.wake_at() == math.inf


def test_one_that_hangs_in_its_turn_is_passed_over_until_it_answers() -> None:
    workers = [Worker(0.001), Worker(0.001)]
    gpu = Gpu([0.5, 0.5], workers)
    gpu.run(1.0)
    if workers[0].opened_at is None:
        gpu.run(1.0 + module.TURN_S + 2 * CHANGE_S)
    workers[0].deaf = True
    workers[1].used_s = 0.0
    gpu.run(3.0)
    gpu.turns.leave(0, gpu.now)
    gpu.tell()
    gpu.run(3.1)
    late = module.DRAIN_MAX_S + 2 * module.TURN_S
    assert workers[1].opened_at is not None
    assert gpu.now - workers[1].opened_at > 2.0 - late


def test_work_that_runs_on_is_charged() -> None:
    """Kernels of half a second, beside short ones: each lease still gets its half of the time."""
    workers = [Worker(0.5), Worker(0.001)]
    gpu = Gpu([0.5, 0.5], workers)
    gpu.run(60.0)
    # What runs on overlaps with the work of the neighbour, which waits for a tenth of it.
    assert abs(gpu.parts()[0] - 0.5) < 0.05


def test_a_suspended_lease_is_neither_waited_for_nor_charged() -> None:
    workers = [Worker(0.001), Worker(0.001)]
    gpu = Gpu([0.5, 0.5], workers)
    gpu.run(1.0)
    workers[0].deaf = True
    gpu.turns.rest(LeaseId(0), gpu.now)
    gpu.tell()
    gpu.run(9.0)
    workers[0].deaf, workers[0].opened_at = False, None
    gpu.turns.come_back(LeaseId(0), gpu.now)
    gpu.tell()
    for worker in workers:
        worker.used_s = 0.0
    gpu.run(9.1)
    workers[1].used_s = workers[0].used_s = 0.0
    gpu.run(12.0)
    assert abs(gpu.parts()[0] - 0.5) < 0.05


def test_answers_that_nobody_asked_for_change_nothing() -> None:
    turns = Turns()
    turns.join(1, LeaseId(1), 0.5, 0.0)
    turns.join(2, LeaseId(2), 0.5, 0.0)
    turns.take()
    turns.drained(1, 77, 0.1)
    turns.idle(2, 0.1)
    turns.want(1, 0.1)  # has the turn
    turns.want(9, 0.1)
    assert turns.take() == []
