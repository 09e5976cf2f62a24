"""Forgetting a user in the accounts: by a hash, up to now, and not while the user has leases."""

from tests.pool.policy_kit import Pool

from gpupool.pool.model import commands as c
from gpupool.pool.model.forgetting import FORGOTTEN_COUNT_MAX, FORGOTTEN_MS, ForgetUser, digest_of
from gpupool.pool.model.ids import Incarnation, TokenId
from gpupool.pool.model.results import Result

ONE = Incarnation(1)
SALT = bytes(range(16))


def forget(pool: Pool, user: str, salt: bytes = SALT) -> Result:
    return pool.do(ForgetUser(salt, digest_of(salt, user), "root"))


def used(pool: Pool, user: str) -> None:
    """Grant a lease to a user, and end it."""
    lease = pool.grant(user, 1, 0.25)
    (server,) = pool.state.leases[lease].parts
    assert pool.do(c.EndLease(lease, "done")).ok
    assert pool.do(c.FreeLease(lease, server, ONE)).ok


def test_a_forgotten_user_has_a_pseudonym_in_the_records() -> None:
    pool = Pool("")
    for user in ("ada", "bob", "ada"):
        used(pool, user)
    assert forget(pool, "ada").ok
    (order,) = pool.state.forgotten
    users = [each.user for each in pool.state.records]
    assert users == [order.pseudonym, "bob", order.pseudonym]
    assert {each.client for each in pool.state.records if each.user != "bob"} == {""}
    assert "ada" not in repr((pool.state.forgotten, pool.state.records, pool.state.acts[-1]))
    assert (pool.state.acts[-1].kind, pool.state.acts[-1].by) == ("user-forgotten", "root")
    assert forget(pool, "ada").why == "it was done already"
    used(pool, "ada")
    assert [each.user for each in pool.state.records][-1] == "ada", "who comes back is new"


def test_the_reasons_of_records_name_no_forgotten_user() -> None:
    """Seed 140010: "a lease of ada lasts 8 s at most" stayed in her record."""
    pool = Pool("[defaults]\nmax_lease_time = '8s'\n")
    ended = pool.grant("ada", 1, 0.25)
    (server,) = pool.state.leases[ended].parts
    pool.now_ms += 9_000
    assert pool.do(c.EndLease(ended, pool.state.leases[ended].ends_why)).ok
    assert pool.do(c.FreeLease(ended, server, ONE)).ok
    other = pool.grant("bob", 1, 0.25)
    (server,) = pool.state.leases[other].parts
    assert pool.do(c.EndLease(other, "a request of ada, bob's and adam's (ada) goes first.")).ok
    assert pool.do(c.FreeLease(other, server, ONE)).ok
    assert "of ada lasts" in pool.state.records[0].reason
    assert forget(pool, "ada").ok
    (order,) = pool.state.forgotten
    first, second = pool.state.records
    assert first.reason.startswith(f"a lease of {order.pseudonym} lasts 8")
    wanted = f"a request of {order.pseudonym}, bob's and adam's ({order.pseudonym}) goes first."
    assert second.reason == wanted
    assert second.user == "bob"


def test_who_has_leases_or_waits_is_not_forgotten() -> None:
    pool = Pool("")
    request = pool.request(1, 0.25)
    assert pool.do(c.Wait(request, "ada", TokenId("ada"), "busy")).ok
    assert forget(pool, "ada").kind == "conflict"
    assert forget(pool, "bob").ok
    assert pool.do(c.CancelRequest(request.id, "no more")).ok
    pool.grant("ada", 1, 0.25)
    assert forget(pool, "ada", b"a" * 16).kind == "conflict"
    assert pool.do(ForgetUser(b"short", bytes(32), "root")).kind == "invalid"


def test_the_table_keeps_few_hashes_and_not_for_ever() -> None:
    pool = Pool("")
    for number in range(FORGOTTEN_COUNT_MAX + 3):
        assert forget(pool, "ada", number.to_bytes(16)).ok
    assert len(pool.state.forgotten) == FORGOTTEN_COUNT_MAX
    pool.now_ms += FORGOTTEN_MS + 1
    assert forget(pool, "bob").ok
    assert [each.salt for each in pool.state.forgotten] == [SALT]
