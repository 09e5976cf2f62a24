"""A lease's past and present places in a view, and the view's warnings."""

from dataclasses import replace

import pytest
from tests.pool.policy_kit import GIB, ONE, A
from tests.pool.test_lease_moves import Moving
from tests.pool.test_lease_moves import gpu as gpu_of
from tests.pool.test_lease_relocations import C, D, Going, gpu

from gpupool.pool.model import commands as c
from gpupool.pool.model.ids import LeaseId, Milliseconds
from gpupool.pool.model.state import ServerStatus
from gpupool.pool.ports import RaftHealth, Role
from gpupool.pool.view import LeaseView, Stay
from gpupool.pool.view_building import build_view

LOST = "\N{REPLACEMENT CHARACTER}"
HEALTH = RaftHealth(Role.LEADER, C, 1, 1, 1, (C,), (), 0.0, {}, 0)


def shown(pool: Going, lease: LeaseId) -> LeaseView:
    views = build_view(pool.state, HEALTH, C, pool.now_ms).leases
    return next(each for each in views if each.id == lease)


def later(pool: Going) -> Milliseconds:
    pool.now_ms += 1000
    return Milliseconds(pool.now_ms)


def test_a_lease_that_went_to_another_server_shows_both_stays() -> None:
    pool = Going()
    granted = Milliseconds(pool.now_ms)
    lease = pool.hold((gpu(0), 40))
    other = pool.hold((gpu(1), 20), user="bob")
    later(pool)
    assert pool.go(lease).ok
    assert shown(pool, lease).stays == (Stay(C, granted),)
    gone = later(pool)
    assert pool.confirm(lease).ok
    view = shown(pool, lease)
    assert view.stays == (Stay(C, granted), Stay(D, gone))
    assert [(part.server, part.memory) for part in view.left] == [(C, 40 * GIB)]
    freed = later(pool)
    assert pool.do(pool.freed(lease, C)).ok
    view = shown(pool, lease)
    assert view.stays == (Stay(C, granted, freed), Stay(D, gone))
    assert (view.left, view.freed) == ((), ())
    assert shown(pool, other).stays == ()


def test_the_records_of_other_leases_are_no_stays_of_one() -> None:
    pool = Going()
    ended = pool.hold((gpu(0), 40))
    assert pool.do(c.EndLease(ended, "done", "ada")).ok
    assert pool.do(pool.freed(ended, C)).ok
    assert [each.lease for each in pool.state.records] == [ended]
    lease = pool.hold((gpu(0), 40))
    assert shown(pool, lease).stays == ()


def test_of_a_lease_on_two_servers_the_part_that_is_free_is_no_stay() -> None:
    pool = Going()
    lease = pool.hold((gpu(0), 40), (gpu(0, D), 40))
    assert pool.do(c.EndLease(lease, "done", "ada")).ok
    assert pool.do(pool.freed(lease, C)).ok
    view = shown(pool, lease)
    assert (view.state, view.freed, view.stays) == ("ending", (C,), ())


def test_a_lease_is_unreachable_when_a_server_is_on_which_it_is() -> None:
    pool = Going()
    both = pool.hold((gpu(0), 40), (gpu(0, D), 40))
    assert shown(pool, both).state == "held"
    assert pool.do(c.ServerContact(D, ONE, reachable=False)).ok
    assert shown(pool, both).state == "unreachable"
    assert pool.do(c.EndLease(both, "done", "ada")).ok
    assert shown(pool, both).state == "unreachable"
    assert pool.do(c.ServerContact(D, ONE, reachable=True)).ok
    assert shown(pool, both).state == "ending"


def test_the_server_that_a_lease_has_left_makes_it_not_unreachable() -> None:
    pool = Going()
    lease = pool.hold((gpu(0), 40))
    assert pool.go(lease).ok
    assert shown(pool, lease).state == "moving"
    assert pool.confirm(lease).ok
    assert pool.do(c.ServerContact(C, ONE, reachable=False)).ok
    assert shown(pool, lease).state == "held"
    assert [part.server for part in shown(pool, lease).partitions] == [D]
    assert pool.do(c.ServerContact(D, ONE, reachable=False)).ok
    assert shown(pool, lease).state == "unreachable"


def test_why_the_latest_attempt_failed_is_said_of_what_it_was_for() -> None:
    pool = Moving()
    lease = pool.hold((gpu_of(0), 40))

    def said() -> tuple[str, str]:
        [view] = build_view(pool.state, HEALTH, A, pool.now_ms).leases
        return view.not_suspended, view.not_moved

    def refused(why: str) -> None:
        number = pool.order_number(lease)
        assert pool.do(c.RefuseSuspension(lease, A, ONE, number, why)).ok
        pool.go_on(lease)

    assert said() == ("", "")
    assert pool.move(lease, gpu_of(1)).ok
    refused("no\x1b memory")
    assert said() == (f"no{LOST} memory", f"no{LOST} memory")
    assert pool.do(c.SuspendLease(lease, "", "ada")).ok
    refused("no room")
    assert said() == ("no room", "")


@pytest.mark.parametrize(
    ("status", "leaves", "named"),
    [
        (ServerStatus.UP, False, True),
        (ServerStatus.UNREACHABLE, False, True),
        (ServerStatus.JOINED, False, False),
        (ServerStatus.UP, True, False),
    ],
)
def test_only_of_members_that_were_up_it_is_said_that_they_are_not_upgraded(
    status: ServerStatus, leaves: bool, named: bool
) -> None:
    pool = Going()
    old = replace(pool.state.servers[D], formats=8, status=status)
    removed = dict.fromkeys([D] if leaves else [], Milliseconds(1))
    state = replace(pool.state, servers=pool.state.servers | {D: old}, removed=removed)
    warnings = build_view(state, HEALTH, C, pool.now_ms).warnings
    said = "these servers are not upgraded yet: d (formats 8); the newest have formats 9"
    assert [each for each in warnings if "not upgraded" in each] == ([said] if named else [])
