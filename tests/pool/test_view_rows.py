"""The numbers of a view: its rows, and the ages of its leases."""

from tests.pool.policy_kit import A, B, Pool

from gpupool.pool.model import commands as c
from gpupool.pool.model.ids import TokenId
from gpupool.pool.ports import RaftHealth, Role
from gpupool.pool.view_building import ViewSource, build_view

HEALTH = RaftHealth(Role.LEADER, A, 1, 1, 1, (A, B), (B,), 0.0, {}, 0)


def test_the_rows_of_a_view_are_those_of_all_its_lists() -> None:
    """A view of more rows than some is made in pieces, so that it holds up nobody."""
    pool = Pool(gpu_count=4)
    for user in ("ada", "bob", "cy"):
        pool.grant(user)
    request = pool.request(9)
    assert pool.do(c.Wait(request, "ada", TokenId("ada"), "busy")).ok
    state = pool.state
    assert state.events
    source = ViewSource(state, HEALTH, A, state.now)
    assert source.row_count == 2 + 8 + 3 + 1 + len(state.events)


def test_a_lease_has_an_age_that_is_never_below_zero() -> None:
    pool = Pool()
    pool.grant("ada")
    for after_ms, age_s in ((2500, 2.5), (0, 0.0), (-1000, 0.0)):
        [lease] = build_view(pool.state, HEALTH, A, pool.now_ms + after_ms).leases
        assert lease.age_s == age_s


def test_a_request_has_waited_since_it_began_to() -> None:
    pool = Pool()
    assert pool.do(c.Wait(pool.request(9), "ada", TokenId("ada"), "busy")).ok
    for after_ms, waited_s in ((2500, 2.5), (0, 0.0), (-1000, 0.0)):
        [entry] = build_view(pool.state, HEALTH, A, pool.now_ms + after_ms).waiting
        assert entry.waited_s == waited_s
