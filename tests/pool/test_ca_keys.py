"""The table knows the holders of the CA's keys, and the last of them does not leave."""

from dataclasses import replace

import pytest
from tests.pool.policy_kit import A, B, Pool

from gpupool.pool.model import commands as c
from gpupool.pool.model.codec import encode
from gpupool.pool.model.formats import VERSION
from gpupool.pool.model.ids import Incarnation, ServerId
from gpupool.pool.model.results import RefusalKind
from gpupool.pool.ports import RaftHealth, Role
from gpupool.pool.transitions.servers import RECOVERY
from gpupool.pool.view import NO_KEY, ONE_KEY, PoolView
from gpupool.pool.view_building import build_view

OLD, NEW = b"ca 1", b"ca 2"
WHY = "no other server has the key of the pool's CA yet; remove this one when one has"


def up(server: ServerId, *, has_keys: bool, incarnation: int = 2) -> c.ServerUp:
    address = f"{server[0]}:7470"
    start = c.ServerUp(server, Incarnation(incarnation), address, "9", "", "", (), formats=VERSION)
    return replace(start, has_keys=has_keys)


def pool_where(*, a_has: bool, b_has: bool) -> Pool:
    pool = Pool()
    for server, has_keys in ((A, a_has), (B, b_has)):
        assert pool.do(up(server, has_keys=has_keys)).ok
    return pool


def half_upgraded() -> Pool:
    pool = Pool()
    assert pool.do(up(A, has_keys=False)).ok
    assert pool.do(replace(up(B, has_keys=False), formats=VERSION - 1)).ok
    return pool


def view_of(pool: Pool) -> PoolView:
    health = RaftHealth(Role.LEADER, A, 1, 1, 1, (A, B), (B,), 0.1, {}, 1)
    return build_view(pool.state, health, A, pool.now_ms)


def key_warnings(pool: Pool) -> list[str]:
    return [each for each in view_of(pool).warnings if each.startswith((NO_KEY, ONE_KEY))]


def test_the_last_server_with_the_keys_does_not_leave() -> None:
    """Seed 10000982: the other one was up, and nobody could join afterwards."""
    pool = pool_where(a_has=True, b_has=False)
    for reachable in (False, True):
        refused = pool.do(c.RemoveServer(A, "root"))
        assert (refused.kind, refused.why) == (RefusalKind.BUSY.value, WHY)
        assert pool.do(c.ServerContact(A, Incarnation(2), reachable=reachable)).ok
    assert pool.do(up(B, has_keys=True)).ok
    assert pool.do(c.RemoveServer(A, "root")).ok


def test_a_server_without_the_keys_leaves() -> None:
    pool = pool_where(a_has=True, b_has=False)
    assert pool.do(c.RemoveServer(B, "root")).ok


@pytest.mark.parametrize("leaving", [A, B])
def test_where_nobody_has_the_keys_everybody_may_leave(leaving: ServerId) -> None:
    """So it is after a recovery by a server without them, and while a pool is upgraded."""
    pool = pool_where(a_has=False, b_has=False)
    assert pool.do(c.RemoveServer(leaving, "root")).ok


def test_recovery_removes_the_last_server_with_the_keys() -> None:
    pool = pool_where(a_has=True, b_has=False)
    assert pool.do(c.RemoveServer(A, RECOVERY)).ok


def test_a_start_without_the_keys_is_believed() -> None:
    pool = pool_where(a_has=True, b_has=True)
    assert pool.do(up(B, has_keys=False, incarnation=3)).ok
    assert pool.do(c.RemoveServer(A, "root")).why == WHY


@pytest.mark.parametrize(
    ("keepers", "left"), [((A,), [A]), ((A, B), [A, B]), ((B,), [B]), ((), [A, B])]
)
def test_who_missed_a_new_key_has_not_all(
    keepers: tuple[ServerId, ...], left: list[ServerId]
) -> None:
    """Until it says so itself, a server that has it could leave."""
    pool = pool_where(a_has=True, b_has=True)
    assert pool.do(c.RotateCa(OLD, NEW, "root", keepers)).ok
    assert [each.id for each in pool.state.servers.values() if each.has_keys] == left


def test_what_older_servers_cannot_read_is_not_written() -> None:
    pool = pool_where(a_has=False, b_has=False)
    assert "has_keys" not in str(encode(pool.state))
    assert "has_keys" not in str(encode(up(A, has_keys=False)))
    assert "keepers" not in str(encode(c.RotateCa(OLD, NEW, "root")))


def test_a_view_says_who_has_the_keys() -> None:
    pool = pool_where(a_has=True, b_has=True)
    assert [each.has_keys for each in view_of(pool).servers] == [True, True]
    assert key_warnings(pool) == []
    assert pool.do(up(B, has_keys=False)).ok
    assert [each.has_keys for each in view_of(pool).servers] == [True, False]
    (warning,) = key_warnings(pool)
    assert "of the pool's CA, " + pool.state.servers[A].name in warning
    assert "If it is lost for good, gpupool ca rotate makes another CA" in warning


def test_during_an_exchange_no_other_ca_is_made_for_a_key_that_is_lost() -> None:
    pool = pool_where(a_has=True, b_has=False)
    assert pool.do(c.RotateCa(OLD, NEW, "root", (A, B))).ok
    (warning,) = key_warnings(pool)
    assert warning == (
        f"{ONE_KEY}s of both CAs, a: the other voters ask for it as soon as they reach that server"
    )


def test_a_pool_without_the_key_says_how_servers_can_join_again() -> None:
    """Only a join failed, without advice."""
    pool = pool_where(a_has=False, b_has=False)
    (warning,) = key_warnings(pool)
    assert warning == (
        "no server has the key of the pool's CA: no server can join before gpupool ca rotate and "
        "gpupool ca retire"
    )
    assert pool.do(c.RotateCa(OLD, NEW, "root", (A, B))).ok
    (warning,) = key_warnings(pool)
    assert warning == (
        "no server has the keys of both CAs: no server can join before gpupool ca retire"
    )


def test_the_only_voter_is_not_warned_of_its_key() -> None:
    pool = pool_where(a_has=True, b_has=False)
    assert pool.do(c.RemoveServer(B, "root")).ok
    assert key_warnings(pool) == []


def test_a_view_names_the_servers_that_are_not_upgraded_yet() -> None:
    """The versions of gpupool were alike, and nothing showed the servers that were behind."""
    whole = pool_where(a_has=True, b_has=True)
    assert not any("not upgraded" in each for each in view_of(whole).warnings)
    view = view_of(pool := half_upgraded())
    assert [each.formats for each in view.servers] == [VERSION, VERSION - 1]
    name = pool.state.servers[B].name
    warning = f"these servers are not upgraded yet: {name} (formats {VERSION - 1})"
    assert any(each.startswith(warning) for each in view.warnings)
