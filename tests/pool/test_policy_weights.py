"""The weights of classes: their users, and the times when they hold."""

from tests.pool.policy_kit import MONDAY_MS, A, B, Pool

from gpupool.pool.model import commands as c
from gpupool.pool.policy.weights import lease_weights
from gpupool.pool.scheduling.policy_explain import explain

CLASSES = """
[class.lab]
users = ["ada"]
weight = 2.5
[class.guests]
users = ["bob"]
weight = 1
[[window]]
from = "22:00"
to = "06:00"
[window.class.lab]
weight = 0.5
"""


def weights(pool: Pool) -> dict[int, float]:
    return {
        lease: weight
        for server in (A, B)
        for lease, weight in lease_weights(pool.state, server, pool.now_ms).items()
    }


def test_leases_weigh_as_their_class_does_in_the_policy_in_force() -> None:
    pool = Pool()
    pool.go_to("2026-11-23 12:00")
    ada, bob, cy = (pool.grant(user) for user in ("ada", "bob", "cy"))
    assert weights(pool) == {}
    pool.put(CLASSES)
    assert weights(pool) == {ada: 2.5}, "those of weight 1 need not be told"
    pool.put(CLASSES.replace("weight = 1\n", "weight = 4\n"))
    assert weights(pool) == {ada: 2.5, bob: 4.0}, "it counts for leases that run"
    assert cy not in weights(pool)
    pool.put("[class.lab]\nusers = ['ada']\n")
    assert weights(pool) == {}


def test_a_window_changes_them_at_its_hour_whether_or_not_the_table_has_changed() -> None:
    pool = Pool(CLASSES)
    ada = pool.grant("ada")
    assert weights(pool) == {ada: 0.5}
    noon = MONDAY_MS + 12 * 3_600_000
    server = pool.state.leases[ada].partitions[0].server
    assert lease_weights(pool.state, server, noon) == {ada: 2.5}


def test_a_lease_that_ends_and_one_elsewhere_weigh_nothing_here() -> None:
    pool = Pool(CLASSES)
    ada = pool.grant("ada")
    [server] = pool.state.leases[ada].parts
    assert lease_weights(pool.state, B if server == A else A, pool.now_ms) == {}
    assert pool.do(c.EndLease(ada, "done", "ada")).ok
    assert weights(pool) == {}


def test_the_weight_is_explained_with_its_rule() -> None:
    pool = Pool(CLASSES)
    pool.go_to("2026-11-23 12:00")
    _, lines = explain(pool.state, "ada", None)
    assert "shares of computing time weigh 2.5 (policy v1, line 4: [class.lab] weight)" in lines
