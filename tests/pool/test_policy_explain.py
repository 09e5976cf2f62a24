"""The policy's explanation to a user and a request, line by line."""

from collections.abc import Sequence

import pytest
from tests.pool.policy_kit import GIB, Pool
from tests.pool.test_preemption import MINUTE_MS, small

from gpupool.pool.model import commands as c
from gpupool.pool.model.state import PoolState
from gpupool.pool.scheduling.policy_explain import COMPARED_MAX, SPARED_MAX, explain

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


def test_a_pool_without_a_server_is_busy() -> None:
    state, request = PoolState(), Pool().request()
    assert explain(state, "ada", request) == (
        "busy",
        ("the pool has no policy: nothing is limited", "busy: the pool has no server"),
    )


ALL_TERMS = """
[class.staff]
users = ["ada"]
gpus = ["*H200*", "*A100*"]
servers = ["rack=1", "rack=2"]
priority = 3
weight = 2.5
idle_timeout = "30m"
max_lease_time = "8h"
data_encryption = "off"
max_gpus = 3
[pool]
max_memory = "1TiB"
[[window]]
name = "morning"
from = "06:00"
to = "12:00"
[window.defaults]
max_leases = 4
[[window]]
name = "evening"
from = "18:00"
to = "20:00"
[window.defaults]
max_leases = 5
"""


def test_every_term_that_a_policy_can_give_is_told() -> None:
    pool = Pool(ALL_TERMS)
    pool.grant("ada", 2, 0.5)
    terms = (
        "may use GPUs *H200*, *A100* (policy v1, line 4: [class.staff] gpus)",
        "may use servers with rack=1, rack=2 (policy v1, line 5: [class.staff] servers)",
        "priority 3",
        "shares of computing time weigh 2.5 (policy v1, line 7: [class.staff] weight)",
        "a lease ends when unused for 30m",
        "a lease lasts 8h at most (policy v1, line 9: [class.staff] max_lease_time)",
        "data encryption: off",
    )
    limits = (
        "class staff: 1 of 3 GPUs held (policy v1, line 11: [class.staff] max_gpus)",
        "all users: 80 of 1024 GiB held (policy v1, line 13: [pool] max_memory)",
    )
    _, (who, *lines) = explain(pool.state, "ada", None)
    assert who == "ada is in class staff"
    assert lines == [*limits, *terms]
    pool.go_to("2026-11-23T06:00:00")
    _, (_, *lines) = explain(pool.state, "ada", None)
    until = 'window "morning" is open until Mon 12:00 (UTC)'
    leases = '{} of 4 leases held (policy v1, line 19: [defaults] max_leases, in window "morning")'
    mine = f"ada: {leases.format(1)}"
    assert sorted(lines) == sorted([mine, *limits, *terms, until])
    assert lines[-1] == until
    theirs = (limits[1], f"bob: {leases.format(0)}", until)
    assert explain(pool.state, "bob", None)[1] == ("bob is in no class", *theirs)


# --- preemption -----------------------------------------------------------------------------------

CLASSES = """
[class.night]
users = ["ada", "bob"]
preemptible = true
[class.day]
users = ["cy"]
priority = 5
preemptible = true
[class.staff]
users = ["boss"]
priority = 10
"""


@pytest.mark.parametrize(
    ("held", "chosen", "why"),
    [
        (
            (("ada", 0, 60), ("ada", 1, 40)),
            1,
            "60 GiB would be moved with it, and 40 GiB are without it",
        ),
        (
            (("cy", 0, 60), ("ada", 1, 60)),
            1,
            "the same memory is moved; priorities are higher: 5 instead of 0",
        ),
        (
            (("ada", 0, 60), ("bob", 1, 60)),
            1,
            "the same memory is moved; it would end a longer run: 2m instead of 1m",
        ),
        (
            (("ada", 0, 60), ("ada", 1, 30), ("ada", 1, 30)),
            0,
            "the same memory is moved, of 2 leases instead of 1",
        ),
        ((("ada", 0, 30), ("ada", 1, 60)), 0, "60 GiB would be moved with it, and 30 GiB"),
    ],
)
def test_each_step_of_the_choice_is_explained(
    held: Sequence[tuple[str, int, int]], chosen: int, why: str
) -> None:
    pool = small(CLASSES)
    leases = list[int]()
    for user, gpu, size in held:
        leases.append(pool.hold_for(user, (gpu, size)))
        pool.later(MINUTE_MS)
    kind, lines = explain(pool.state, "boss", pool.request(fraction=1))
    assert kind == "busy"
    told, spared, *_ = lines[-len(held) :]
    assert told.startswith(f"lease {leases[chosen]:04x} of {held[chosen][0]} would be suspended")
    assert f": {held[chosen][2]} GiB, priority 0, runs for {len(held) - chosen}m, never" in told
    assert f"lease {leases[1 - chosen]:04x} of {held[1 - chosen][0]} would not: {why}" in spared


def test_what_is_explained_is_what_happens() -> None:
    pool = small(CLASSES)
    for gpu, size in ((0, 20), (0, 20), (0, 40), (1, 80)):
        pool.hold_for("ada", (gpu, size))
    request = pool.request(memory=60 * GIB)
    told = {line[:10] for line in explain(pool.state, "boss", request)[1] if "for it: " in line}
    sizes = "these 2 leases move 60 GiB, and none of them can be left out"
    assert sizes in explain(pool.state, "boss", request)[1]
    pool.wait("boss", request)
    assert told == {f"lease {lease:04x}" for lease in pool.suspensions()}


def test_the_time_since_the_last_resumption_is_said() -> None:
    pool = small(CLASSES, gpu_count=1)
    lease = pool.grant("ada")
    request = pool.request()
    pool.wait("boss", request)
    pool.lead()
    pool.confirm(lease)
    assert pool.do(c.CancelRequest(request.id, "no more", "boss")).ok
    pool.lead()
    pool.confirm(lease)
    pool.later(11 * MINUTE_MS)
    _, lines = explain(pool.state, "boss", pool.request())
    said = f"lease {lease:04x} of ada would be suspended for it: 80 GiB, priority 0, "
    assert said + "resumed 11m ago" in lines


def test_memory_that_an_earlier_request_gets_is_not_promised_twice() -> None:
    pool = small(CLASSES, gpu_count=1)
    lease = pool.grant("ada")
    pool.wait("boss", pool.request())
    _, lines = explain(pool.state, "cy", pool.request())
    assert lines[-1] == f"lease {lease:04x} of ada would not: a request of boss gets its memory"


def test_who_has_no_right_to_others_memory_is_told_so() -> None:
    pool = small(CLASSES, gpu_count=1)
    pool.grant("ada")
    _, lines = explain(pool.state, "bob", pool.request())
    assert lines[-1] == "no lease gives way to it: none has a priority below 0"
    free = small(CLASSES + "max_gpus_per_user = 1\n", gpu_count=2)
    free.grant("boss")
    _, lines = explain(free.state, "boss", free.request())
    assert lines[-1] == "it waits for a limit of the policy, so no lease gives way to it"


def test_not_every_lease_of_a_large_pool_is_compared() -> None:
    pool = small(CLASSES, gpu_count=SPARED_MAX + 2)
    for gpu in range(SPARED_MAX + 2):
        pool.hold_for("ada", (gpu, 80 - gpu))
    _, lines = explain(pool.state, "boss", pool.request(fraction=1))
    compared = [line for line in lines if "would be moved with it" in line]
    assert len(compared) == COMPARED_MAX
    others = [line for line in lines if "others come first" in line]
    assert len(others) == SPARED_MAX - COMPARED_MAX
    assert lines[-1] == "nor would 1 more lease of lower priority"


def test_a_lease_that_helps_only_beside_others_is_not_needed() -> None:
    """Any GPU that lacks its memory would be cleared by these others alone."""
    pool = small(CLASSES)
    chosen = pool.hold_for("ada", (0, 60))
    needless, _ = pool.hold_for("bob", (1, 10)), pool.hold_for("cy", (1, 60))
    _, lines = explain(pool.state, "boss", pool.request(memory=40 * GIB))
    assert f"lease {chosen:04x} of ada would be suspended for it" in lines[-3]
    assert lines[-2].endswith(
        f"lease {needless:04x} of bob would not: the request does not need its memory"
    )


def test_of_leases_that_would_do_as_well_the_one_with_the_lower_number_is_taken() -> None:
    pool = small(CLASSES)
    first, second = pool.hold_for("ada", (0, 60)), pool.hold_for("ada", (1, 60))
    _, lines = explain(pool.state, "boss", pool.request(fraction=1))
    assert lines[-2].startswith(f"lease {first:04x} of ada would be suspended for it: ")
    assert lines[-1] == (
        f"lease {second:04x} of ada would not: "
        "it would do as well, and lower numbers are taken first"
    )


def test_a_lease_that_would_not_suffice_is_told_so() -> None:
    pool = small(CLASSES)
    pool.hold_for("boss", (0, 80))
    lease = pool.hold_for("ada", (1, 80))
    _, lines = explain(pool.state, "boss", pool.request(2))
    assert lines[-3].startswith("busy: ")
    assert lines[-2:] == (
        f"lease {lease:04x} of ada would not: that would not suffice",
        "priority 10 or more protects 1 of the leases",
    )


def test_a_lease_that_a_rule_protects_is_told_by_which() -> None:
    pool = small(CLASSES.replace("priority = 5\npreemptible = true", "priority = 5"))
    chosen = pool.hold_for("ada", (0, 80))
    protected = pool.hold_for("cy", (1, 80))
    _, lines = explain(pool.state, "boss", pool.request())
    assert lines[-2:] == (
        f"lease {chosen:04x} of ada would be suspended for it: 80 GiB, priority 0, "
        "runs for 0s, never suspended",
        f"lease {protected:04x} of cy would not: neither it nor its class is preemptible",
    )


@pytest.mark.parametrize(
    ("rule", "told"), [("'none'", ()), ("'8h'", ("a lease lasts 8h at most",))]
)
def test_a_user_whose_leases_never_end_is_told_of_no_longest_time(
    rule: str, told: tuple[str, ...]
) -> None:
    text = f"[defaults]\nmax_lease_time = '4h'\n[class.x]\nusers = ['ada']\nmax_lease_time = {rule}"
    pool = Pool(text)
    _, lines = explain(pool.state, "ada", None)
    assert tuple(line.partition(" (")[0] for line in lines[2:]) == told


@pytest.mark.parametrize(
    ("more", "told"), [(-1, ""), (0, ""), (1, "1 more lease"), (2, "2 more leases")]
)
def test_the_leases_beyond_those_that_are_named_are_counted(more: int, told: str) -> None:
    count = 1 + SPARED_MAX + more
    pool = small(CLASSES, gpu_count=count)
    for gpu in range(count):
        pool.hold_for("ada", (gpu, 80 - gpu))
    _, lines = explain(pool.state, "boss", pool.request(fraction=1))
    spared = [line for line in lines if " would not: " in line]
    assert len(spared) == min(count - 1, SPARED_MAX)
    assert [line for line in lines if line.startswith("nor would ")] == (
        [f"nor would {told} of lower priority"] if told else []
    )


def test_leases_that_are_over_are_neither_spared_nor_protected() -> None:
    pool = small(CLASSES, gpu_count=3)
    lease = pool.hold_for("ada", (0, 80))
    ended = [pool.hold_for("bob", (1, 80)), pool.hold_for("boss", (2, 80))]
    held = explain(pool.state, "boss", pool.request())[1]
    assert any(line.startswith("priority 10 or more protects 1 of") for line in held)
    for each in ended:
        assert pool.do(c.EndLease(each, "over")).ok
    _, lines = explain(pool.state, "boss", pool.request(3))
    assert lines[-1].startswith(f"lease {lease:04x} of ada would be suspended for it: 80 GiB")
