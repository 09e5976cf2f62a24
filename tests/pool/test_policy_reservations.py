"""GPUs kept by a reservation: those of its class first, then those used least by others."""

import pytest
from tests.pool.policy_kit import ONE, A, B, Pool

from gpupool.pool.model import commands as c
from gpupool.pool.model.ids import GpuId, LeaseId
from gpupool.pool.policy.admission import Admission
from gpupool.pool.policy.rulebook import rulebook

CLASSES = "[class.course]\nusers = ['cy', 'dee']\n[class.lab]\nusers = ['boss']\n"


def reservation(count: int, rest: str = "gpus = '*H200*'", group: str = "course") -> str:
    hours = "from = '08:00'\nto = '12:00'"
    return f"[[reservation]]\nclass = '{group}'\ncount = {count}\n{rest}\n{hours}\n"


def opened(pool: Pool) -> Pool:
    pool.go_to("2026-11-23 08:00")
    return pool


def kept(pool: Pool, group: str = "course") -> list[str]:
    """Return the GPUs that are kept for a class: the server's letter and the number."""
    places = rulebook(pool.state.policy).reserved(pool.state)
    return sorted(
        f"{server[0]}{gpu.rpartition('-')[2]}"
        for (server, gpu), each in places.items()
        if each.group == group
    )


def gpu(number: int) -> GpuId:
    return GpuId(f"{A}-{number}")


def away(pool: Pool, lease: LeaseId) -> None:
    """Suspend a lease, and give its memory back."""
    assert pool.do(c.SuspendLease(lease, "", "root", operator=True)).ok
    suspension = pool.state.leases[lease].suspension
    assert suspension is not None
    assert pool.do(c.ConfirmSuspended(lease, A, ONE, suspension.number, 0)).ok


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (1, ["a0"]),
        (3, ["a0", "a1", "a2"]),
        (4, ["a0", "a1", "a2", "a3"]),
        (9, ["a0", "a1", "a2", "a3"]),
    ],
)
def test_so_many_gpus_are_kept_as_there_are(count: int, expected: list[str]) -> None:
    assert kept(opened(Pool(CLASSES + reservation(count)))) == expected


def test_nothing_is_kept_outside_of_its_hours() -> None:
    pool = Pool(CLASSES + reservation(2))
    for moment, count in (("07:59:59", 0), ("08:00", 2), ("11:59:59", 2), ("12:00", 0)):
        pool.go_to(f"2026-11-23 {moment}")
        assert len(kept(pool)) == count
    pool.go_to("2026-11-24 08:00")
    assert len(kept(pool)) == 2


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("gpus = ['*h200', 'X']", ["a0", "a1"]),
        ("gpus = '*A100*'", ["b0", "b1"]),
        ("servers = ['rack=3', 'rack=2']", ["b0", "b1"]),
        ("servers = 'name=a'", ["a0", "a1"]),
        ("servers = 'rack=2'\ngpus = '*H200*'", []),
        ("", ["a0", "a1"]),
    ],
)
def test_what_is_kept_has_the_model_and_a_label(rest: str, expected: list[str]) -> None:
    assert kept(opened(Pool(CLASSES + reservation(2, rest)))) == expected


def test_what_others_use_least_is_kept() -> None:
    pool = Pool(CLASSES + reservation(3))
    pool.hold((gpu(0), 10), user="bob")
    pool.hold((gpu(1), 20), user="bob")
    assert kept(opened(pool)) == ["a0", "a2", "a3"]


def test_where_its_class_is_comes_first_however_much_others_use() -> None:
    pool = Pool(CLASSES + reservation(2))
    pool.hold((gpu(3), 10), user="cy")
    pool.hold((gpu(3), 60), user="bob")
    pool.hold((gpu(2), 1), user="boss")
    assert kept(opened(pool)) == ["a0", "a3"]


def test_of_the_places_of_its_class_those_that_others_use_least_come_first() -> None:
    pool = Pool(CLASSES + reservation(1))
    pool.hold((gpu(0), 10), (gpu(1), 10), user="cy")
    pool.hold((gpu(0), 60), user="bob")
    assert kept(opened(pool)) == ["a1"]


def test_of_places_that_others_use_alike_the_first_by_number_is_kept() -> None:
    pool = Pool(CLASSES + reservation(1))
    for number in (3, 1, 2):
        pool.hold((gpu(number), 10), user="cy")
    assert kept(opened(pool)) == ["a1"]


def test_what_members_have_on_one_gpu_counts_together() -> None:
    pool = Pool(CLASSES + reservation(1))
    pool.hold((gpu(1), 30), user="cy")
    pool.hold((gpu(1), 30), user="dee")
    pool.hold((gpu(1), 10), user="bob")
    pool.hold((gpu(0), 10), user="cy")
    pool.hold((gpu(0), 20), user="bob")
    assert kept(opened(pool)) == ["a1"]


def test_a_class_is_not_where_its_lease_is_suspended() -> None:
    pool = Pool(CLASSES + reservation(1))
    lease = pool.hold((gpu(3), 60), user="cy")
    assert kept(opened(pool)) == ["a3"]
    away(pool, lease)
    assert kept(pool) == ["a0"]


def test_a_class_is_not_where_its_part_of_a_lease_is_freed() -> None:
    pool = Pool(CLASSES + reservation(1))
    lease = pool.hold((gpu(3), 60), (GpuId(f"{B}-0"), 60), user="cy")
    opened(pool)
    pool.do(c.EndLease(lease, "over"))
    assert kept(pool) == ["a3"]
    pool.do(c.FreeLease(lease, A, ONE))
    assert lease in pool.state.leases
    assert kept(pool) == ["a0"]


def test_what_is_drained_is_not_kept_even_where_its_class_is() -> None:
    pool = Pool(CLASSES + reservation(2, rest=""))
    pool.hold((gpu(0), 10), user="cy")
    for number in (0, 1):
        assert pool.do(c.DrainGpu(A, gpu(number), "dust", "root", bytes([number]) * 16)).ok
    assert kept(opened(pool)) == ["a2", "a3"]
    assert pool.do(c.DrainServer(A, "more dust", "root")).ok
    assert kept(pool) == ["b0", "b1"]


def test_each_reservation_takes_what_the_ones_before_have_left() -> None:
    pool = Pool(CLASSES + reservation(2) + reservation(9, group="lab") + reservation(1))
    pool.hold((gpu(2), 10), user="dee")
    pool.hold((gpu(2), 10), user="boss")
    opened(pool)
    assert kept(pool) == ["a0", "a2"]
    assert kept(pool, "lab") == ["a1", "a3"]


def test_what_is_kept_is_the_same_object_until_something_changes() -> None:
    pool = Pool(CLASSES + reservation(2))
    book = rulebook(pool.state.policy)
    closed = book.reserved(pool.state)
    assert closed == {}
    assert book.reserved(pool.state) is closed
    opened(pool)
    found = book.reserved(pool.state)
    pool.do(c.Tick())
    assert book.reserved(pool.state) is found
    pool.grant("bob")
    leases = book.reserved(pool.state)
    assert leases is not found
    assert pool.do(c.DrainServer(A, "dust", "root")).ok
    assert book.reserved(pool.state) is not leases
    assert book.reserved(pool.state) == {}
    without = rulebook(Pool(CLASSES).state.policy)
    assert without.reserved(pool.state) is without.reserved(pool.state)


def test_only_its_class_may_take_what_is_kept() -> None:
    pool = opened(Pool(CLASSES + reservation(1) + "[user.dee]\ngpus = '*A100*'\n"))
    server = pool.state.servers[A]
    first, second = server.gpus[gpu(0)], server.gpus[gpu(1)]
    admission = Admission(pool.state)
    for user, may in (("cy", True), ("ada", False), ("boss", False), ("dee", False)):
        assert admission.usable(user)(server, first) is may
        assert (admission.place_refusal(user, [(server, first)]) is None) is may
    for user, may in (("cy", True), ("ada", True), ("dee", False)):
        assert admission.usable(user)(server, second) is may
        assert admission.allowed(user)(server, first) is may
    refusal = admission.place_refusal("ada", [(server, second), (server, first)])
    assert refusal is not None
    rule = '(policy v1, line 5: [[reservation]] "line 5")'
    assert (refusal.kind, refusal.why) == (
        "busy",
        f"GPU 0 of a is kept for class course {rule}",
    )
