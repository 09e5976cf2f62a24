"""What the policy says to a user and a request, line by line."""

from tests.pool.policy_kit import Pool

from gpupool.pool.scheduling.policy_explain import explain

POLICY = """
[class.staff]
users = ["ada"]
priority = 3
max_gpus_per_user = 2
max_lease_time = "8h"
"""


def test_a_pool_without_a_policy_limits_nothing() -> None:
    pool = Pool()
    assert explain(pool.state, "ada", None) == ("", ("the pool has no policy: nothing is limited",))
    kind, lines = explain(pool.state, "ada", pool.request())
    assert (kind, lines[-1]) == ("", "allowed: it would be granted now")
    assert len(lines) == 2


def test_a_request_that_is_not_granted_now_has_its_kind_and_reason() -> None:
    pool = Pool()
    pool.grant("bob", 4)
    pool.grant("bob", 4)
    kind, lines = explain(pool.state, "ada", pool.request())
    assert kind == "busy"
    assert lines[-1].startswith("busy: 0 of 4 GPUs have room")
    kind, lines = explain(pool.state, "ada", pool.request(99))
    assert kind == "never"
    assert lines[-1].startswith("never: ")


def test_the_terms_of_a_user_are_named_with_their_rules() -> None:
    pool = Pool(POLICY)
    pool.grant("ada", 1, 0.5)
    assert explain(pool.state, "ada", None) == (
        "",
        (
            "ada is in class staff",
            "ada: 0.5 of 2 GPUs held (policy v1, line 5: [class.staff] max_gpus_per_user)",
            "priority 3",
            "a lease lasts 8h at most (policy v1, line 6: [class.staff] max_lease_time)",
        ),
    )
    kind, lines = explain(pool.state, "ada", pool.request(3))
    assert kind == "denied"
    assert lines[-1].startswith("denied: ada may hold 2 GPUs")


def test_a_user_without_limits_is_told_what_it_holds() -> None:
    pool = Pool(POLICY)
    pool.grant("bob", 1, 0.5)
    assert explain(pool.state, "bob", None) == (
        "",
        ("bob is in no class", "no limit; bob holds 0.5 GPUs"),
    )
    kind, lines = explain(pool.state, "bob", pool.request())
    assert (kind, lines[-1]) == ("", "allowed: it would be granted now")
