"""Clearing GPUs for a request where leases are many, and the request's GPUs afterwards."""

import pytest
from tests.pool.policy_kit import GIB, ONE, A, B
from tests.pool.test_placement_refusals import with_gpus
from tests.pool.test_preemption import POLICY, Preempting, small
from tests.pool.test_preemption_order import (
    DAY_TOO,
    GUARANTEED,
    LEASES_MAX,
    SERVERS_MAX,
    chosen,
    hold_on,
)

from gpupool.pool.model import commands as c
from gpupool.pool.model.ids import GpuId, LeaseId
from gpupool.pool.model.state import Request
from gpupool.pool.scheduling.preemption import preemptions


@pytest.fixture
def _many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count any number of leases as many."""
    monkeypatch.setattr(LEASES_MAX, 0)


def wait_for(pool: Preempting, gib: int, count: int = 1) -> Request:
    request = pool.request(count, memory=gib * GIB)
    pool.wait("boss", request)
    return request


@pytest.mark.usefixtures("_many")
def test_the_gpu_that_is_cleared_most_cheaply_is_cleared_first() -> None:
    for sizes, cheapest in (((70, 60, 80), 1), ((60, 70, 80), 0), ((80, 70, 60), 2)):
        pool = small(gpu_count=3)
        held = [pool.hold_for("ada", (n, size)) for n, size in enumerate(sizes)]
        wait_for(pool, 80)
        assert chosen(pool.state) == [(held[cheapest],)]


@pytest.mark.usefixtures("_many")
def test_where_too_few_gpus_can_be_cleared_none_is() -> None:
    pool = small()
    pool.hold_for("ada", (0, 80))
    pool.hold_for("boss", (1, 80))
    wait_for(pool, 80, 2)
    assert preemptions(pool.state) == ()
    assert wait_for(pool, 80)
    assert len(preemptions(pool.state)) == 1


@pytest.mark.usefixtures("_many")
def test_a_lease_clears_a_gpu_by_what_it_has_on_that_gpu() -> None:
    pool = small()
    pool.hold_for("ada", (0, 20), (1, 20))
    lease = pool.hold_for("ada", (0, 40))
    pool.hold_for("boss", (0, 20))
    pool.hold_for("boss", (1, 60))
    wait_for(pool, 40)
    assert chosen(pool.state) == [(lease,)]


@pytest.mark.usefixtures("_many")
def test_a_lease_that_is_chosen_already_clears_no_further_gpu_once_more() -> None:
    pool = small()
    both, other = pool.hold_for("ada", (0, 20), (1, 20)), pool.hold_for("ada", (0, 50))
    pool.hold_for("boss", (0, 10))
    pool.hold_for("boss", (1, 40))
    wait_for(pool, 40, 2)
    assert chosen(pool.state) == [(both, other)]


@pytest.mark.usefixtures("_many")
def test_of_two_that_could_be_left_out_the_larger_one_is() -> None:
    pool = Preempting(POLICY, gpu_count=2)
    small_one, large = (hold_on(pool, "ada", (A, 0), gib=gib) for gib in (20, 30))
    wide = hold_on(pool, "ada", (A, 0), (A, 1), (B, 0), gib=20)
    for place, gib in (((A, 0), 10), ((A, 1), 40), ((B, 0), 60), ((B, 1), 80)):
        hold_on(pool, "boss", place, gib=gib)
    wait_for(pool, 40, 2)
    assert chosen(pool.state) == [(small_one, wide)]
    assert large not in chosen(pool.state)[0]


@pytest.mark.usefixtures("_many")
def test_leases_that_a_class_cannot_do_without_together_are_passed_over() -> None:
    text = GUARANTEED.format("0.25").replace("priority = 5", "priority = 5\npreemptible = true")
    pool = small(text, gpu_count=1)
    first, _ = pool.hold_for("ada", (0, 20)), pool.hold_for("bob", (0, 20))
    other = pool.hold_for("cy", (0, 40))
    wait_for(pool, 60)
    assert chosen(pool.state) == [(first, other)]


def test_few_leases_on_a_gpu_are_compared_in_all_sets_however_many_there_are_in_all() -> None:
    pool = small()
    pool.hold_for("ada", (0, 10))
    pool.hold_for("ada", (0, 30))
    lease = pool.hold_for("ada", (0, 40))
    pool.hold_for("boss", (1, 60))
    for _ in range(10):
        pool.hold_for("ada", (1, 1))
    wait_for(pool, 40)
    assert chosen(pool.state) == [(lease,)]


# --- what counts as missing -----------------------------------------------------------------------


def test_the_best_part_of_a_card_says_what_is_missing_on_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the first server 10 GiB are missing, on the second 14, and only one of them is tried."""
    monkeypatch.setattr(SERVERS_MAX, 1)
    for first in (0, 1):
        pool = Preempting(POLICY, gpu_count=2)
        card = ("MIG", 10 * GIB)
        with_gpus(pool, A, card, card, ("H200", 80 * GIB), parts=(0, 1))
        with_gpus(pool, B, ("H200", 80 * GIB), ("H200", 80 * GIB))
        lease = hold(pool, "ada", f"{A}+2", 80)
        hold(pool, "boss", f"{A}+{first}", 10)
        for n in range(2):
            hold(pool, "ada", f"{B}+{n}", 77)
        wait_for(pool, 10, 2)
        assert chosen(pool.state) == [(lease,)]


def hold(pool: Preempting, user: str, name: str, gib: int) -> LeaseId:
    """Grant one GPU by its id."""
    return pool.hold((GpuId(name), gib), user=user)


def test_what_a_lease_has_on_other_servers_is_not_missing_here() -> None:
    pool = Preempting(POLICY, gpu_count=1)
    wide = hold_on(pool, "ada", (A, 0), (B, 0), gib=40)
    hold_on(pool, "boss", (B, 0), gib=40)
    wait_for(pool, 60)
    assert chosen(pool.state) == [(wide,)]


def test_a_gpu_that_is_ready_has_nothing_missing_whatever_is_free_on_it() -> None:
    """So both servers lack as much, and the lower priority gives way."""
    pool = Preempting(DAY_TOO, gpu_count=2)
    hold_on(pool, "cy", (A, 0), gib=80)
    lease = hold_on(pool, "ada", (B, 0), gib=80)
    wait_for(pool, 80, 2)
    assert chosen(pool.state) == [(lease,)]
    pool = Preempting(DAY_TOO, gpu_count=2)
    for server, user in ((A, "cy"), (B, "ada")):
        lease = hold_on(pool, user, (server, 0), gib=80)
        hold_on(pool, "boss", (server, 1), gib=20)
    request = wait_for(pool, 50, 2)
    [found] = preemptions(pool.state)
    assert (found.entry.request, found.leases) == (request, (lease,))


def strangers(pool: Preempting, index: int, size: int) -> None:
    """Report so many bytes of a GPU as used by processes outside the pool."""
    reading = {GpuId(f"{A}-{index}"): c.GpuReading(size, "")}
    assert pool.do(c.ReportGpus(A, ONE, reading)).ok


@pytest.mark.parametrize(("foreign", "gives_way"), [(0, True), (1, False)])
def test_nothing_is_suspended_where_a_byte_would_be_missing_then(
    foreign: int, gives_way: bool
) -> None:
    pool = small()
    lease = pool.hold_for("ada", (0, 40))
    pool.hold_for("boss", (0, 20))
    pool.hold_for("boss", (1, 80))
    strangers(pool, 0, foreign)
    wait_for(pool, 60)
    assert chosen(pool.state) == [(lease,)] * gives_way


@pytest.mark.parametrize(("foreign", "gives_way"), [(0, ()), (1, (0,))])
def test_a_lease_gives_way_where_a_byte_is_missing(foreign: int, gives_way: tuple[int]) -> None:
    pool = small(gpu_count=1)
    leases = [pool.hold_for("ada", (0, 40))]
    strangers(pool, 0, foreign)
    wait_for(pool, 40)
    assert chosen(pool.state) == [tuple(leases[n] for n in gives_way)]


def test_a_gpu_on_which_a_byte_would_be_missing_is_none_of_those_kept() -> None:
    pool = small(gpu_count=3)
    pool.hold_for("ada", (0, 40), (1, 40))
    pool.hold_for("boss", (0, 20), (1, 20))
    strangers(pool, 0, 1)
    wait_for(pool, 60, 2)
    assert gpus_for(pool) == {1, 2}


# --- the GPUs that it has then --------------------------------------------------------------------


def gpus_for(pool: Preempting) -> set[int]:
    [found] = preemptions(pool.state)
    assert {server for server, _ in found.gpus} == {A}
    return {int(gpu.rpartition("-")[2]) for _, gpu in found.gpus}


def test_a_request_has_the_gpus_that_leases_leave_for_it_and_others_that_are_free() -> None:
    pool = small(gpu_count=4)
    pool.hold_for("boss", (0, 80))
    pool.hold_for("ada", (2, 80))
    pool.hold_for("boss", (3, 10))
    wait_for(pool, 80, 2)
    assert gpus_for(pool) == {1, 2}


def test_gpus_that_are_left_for_it_come_before_those_that_are_free() -> None:
    pool = small(gpu_count=3)
    pool.hold_for("ada", (1, 80), (2, 80))
    wait_for(pool, 80, 2)
    assert gpus_for(pool) == {1, 2}


def test_only_as_many_gpus_are_kept_as_are_asked_for() -> None:
    pool = small(gpu_count=3)
    pool.hold_for("ada", (0, 80), (1, 80), (2, 80))
    wait_for(pool, 80, 2)
    assert gpus_for(pool) == {0, 1}


@pytest.mark.parametrize(("priority", "found"), [(0, []), (1, [()])])
def test_in_a_pool_without_leases_the_lowest_priority_is_0(
    priority: int, found: list[tuple[LeaseId, ...]]
) -> None:
    pool = small(POLICY.replace("priority = 5", f"priority = {priority}"))
    pool.wait("cy", pool.request())
    assert chosen(pool.state) == found
