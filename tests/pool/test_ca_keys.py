"""The table knows who has the CA's keys, and the last of them does not leave."""

from dataclasses import replace

import pytest
from tests.pool.policy_kit import A, B, Pool

from gpupool.pool.model import commands as c
from gpupool.pool.model.codec import encode
from gpupool.pool.model.formats import VERSION
from gpupool.pool.model.ids import Incarnation, ServerId
from gpupool.pool.model.results import RefusalKind
from gpupool.pool.transitions.servers import RECOVERY

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
