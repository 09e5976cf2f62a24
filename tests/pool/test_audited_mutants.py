"""Mutants of table rules that an audit had not judged: each test fails with its mutant."""

from dataclasses import replace

from tests.pool.policy_kit import ONE, A, B, Pool, policy_commands

from gpupool.pool.model import commands as c
from gpupool.pool.model.ids import Incarnation, Milliseconds, TokenId
from gpupool.pool.model.state import TokenKind

FAR = Milliseconds(2**52)


def up(incarnation: int) -> c.ServerUp:
    return c.ServerUp(A, Incarnation(incarnation), "a:1", "1", "", "", ())


def test_a_revoked_token_loses_its_leases_and_no_other_token_does() -> None:
    pool = Pool()
    ada, bob = pool.grant("ada"), pool.grant("bob")
    assert pool.do(c.RevokeToken(TokenId("ada"), "root")).ok
    assert not pool.state.leases[ada].held
    assert "token ada was revoked" in pool.state.leases[ada].end_reason
    assert pool.state.leases[bob].held


def test_a_removed_server_is_not_admitted_again() -> None:
    pool = Pool()
    assert pool.do(c.RemoveServer(B, "root")).ok
    token = TokenId("again")
    assert pool.do(c.CreateToken(token, TokenKind.SERVER, "root", bytes(32), FAR, "root", 1)).ok
    result = pool.do(c.JoinServer(B, "b", "b:1", False, token))
    assert "was removed from the pool for good" in result.why
    assert B not in pool.state.servers


def test_a_former_incarnation_does_not_come_up_again() -> None:
    pool = Pool()
    assert pool.do(up(int(ONE) + 1)).ok
    assert "a later incarnation" in pool.do(up(int(ONE))).why
    assert pool.state.servers[A].incarnation == int(ONE) + 1


def test_a_restart_ends_what_the_server_held_and_frees_its_memory() -> None:
    pool = Pool()
    leases = [pool.grant("ada") for _ in range(8)]
    gpus = tuple(pool.state.servers[A].gpus.values())
    assert pool.do(replace(up(int(ONE) + 1), gpus=gpus)).ok
    held = {lease for lease in leases if lease in pool.state.leases}
    held = {lease for lease in held if pool.state.leases[lease].held}
    assert len(held) == 4, "those of the other server"
    assert all(gpu.memory_granted == 0 for gpu in pool.state.servers[A].gpus.values())


def test_a_policy_made_from_an_older_version_is_refused() -> None:
    pool = Pool()
    first = policy_commands("", pool.state.policy.version)
    pool.put("[defaults]\nidle_timeout = '1h'\n")
    *parts, last = first
    assert all(pool.do(part).ok for part in parts)
    assert "has applied version 1 meanwhile" in pool.do(last).why
