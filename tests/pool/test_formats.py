"""A pool's version of the formats, and the fate of a server with an older program."""

from dataclasses import replace

import pytest
from tests.pool.policy_kit import A, B, Pool

from gpupool.pool.errors import NotNowError
from gpupool.pool.model import commands as c
from gpupool.pool.model.codec import encode
from gpupool.pool.model.commands import SINCE, objection
from gpupool.pool.model.formats import VERSION, OutdatedError, can_link
from gpupool.pool.model.ids import Incarnation, LeaseId, Milliseconds, ServerId, TokenId
from gpupool.pool.model.results import RefusalKind
from gpupool.pool.model.state import PoolState, Server, ServerStatus, TokenKind, with_changes
from gpupool.pool.model.suspension import SuspendLease
from gpupool.pool.model.tables import PersistentMap
from gpupool.pool.refused_orders import check_known_to_all
from gpupool.pool.transitions.servers import RECOVERY

NEW = ServerId("d" * 12)
SUSPEND = SuspendLease(LeaseId(1), "", "boss")


def up(server: ServerId, formats: int, incarnation: int = 2) -> c.ServerUp:
    address = f"{server[0]}:7470"
    return c.ServerUp(server, Incarnation(incarnation), address, "9", "", "", (), formats=formats)


def pool_with_new(formats: int = VERSION) -> Pool:
    """Return a pool of two servers of a version, and a third that was admitted only."""
    pool = Pool()
    for server in (A, B):
        assert pool.do(up(server, formats)).ok
    expires = Milliseconds(pool.now_ms + 3_600_000)
    token = TokenId("adm")
    assert pool.do(c.CreateToken(token, TokenKind.SERVER, "s", bytes(32), expires, "root")).ok
    assert pool.do(c.JoinServer(NEW, "d", "d:7470", False, token)).ok
    assert pool.state.servers[NEW].status is ServerStatus.JOINED
    return pool


def test_a_member_that_has_never_been_up_holds_nobody_back() -> None:
    pool = pool_with_new()
    assert pool.state.formats() == VERSION
    check_known_to_all(pool.state, SUSPEND)
    assert pool.do(up(NEW, VERSION, 1)).ok
    assert pool.state.formats() == VERSION


def test_a_member_that_was_up_and_is_down_still_counts() -> None:
    pool = Pool()
    assert pool.do(up(A, VERSION)).ok
    assert pool.do(up(B, 6)).ok
    assert pool.do(c.ServerContact(B, Incarnation(2), reachable=False)).ok
    assert pool.state.formats() == 6
    with pytest.raises(NotNowError) as refused:
        check_known_to_all(pool.state, SUSPEND)
    error = refused.value
    assert (error.what, error.why, error.hint) == (
        "this pool cannot suspend a lease yet",
        "b has an older gpupool",
        "upgrade these servers first",
    )


def test_a_pool_without_a_server_that_was_up_speaks_the_oldest_version() -> None:
    assert PoolState().formats() == 5


@pytest.mark.parametrize("formats", [(6, 9), (9, 6)])
def test_a_pool_whose_servers_never_were_up_speaks_the_newest_that_one_was_given(
    formats: tuple[int, int],
) -> None:
    servers = [Server(A, "a", "a:1", True, formats=formats[0])]
    servers.append(Server(B, "b", "b:1", True, formats=formats[1]))
    state = PoolState(servers=PersistentMap((each.id, each) for each in servers))
    assert state.formats() == 9
    been_up = [with_changes(each, status=ServerStatus.UNREACHABLE) for each in servers]
    state = PoolState(servers=PersistentMap((each.id, each) for each in been_up))
    assert state.formats() == 6


def test_a_member_that_comes_up_too_old_is_told_to_upgrade() -> None:
    pool = pool_with_new()
    before = pool.state.servers
    refused = pool.do(up(NEW, VERSION - 1, 1))
    assert (refused.ok, refused.why) == (
        False,
        f"the servers of this pool have agreed on version {VERSION} of the formats, and this one "
        f"has {VERSION - 1}: upgrade its gpupool",
    )
    assert pool.state.servers is before
    assert pool.do(up(NEW, VERSION, 1)).ok


def test_the_only_server_that_was_up_may_not_leave() -> None:
    """Seed 700411: nobody else had the CA's key, and an older server could have come up then."""
    pool = pool_with_new()
    assert pool.do(c.RemoveServer(A, "root")).ok
    refused = pool.do(c.RemoveServer(B, "root"))
    why = "no other server of the pool has come up yet; remove this one when one has"
    assert (refused.kind, refused.why) == (RefusalKind.BUSY.value, why)
    assert pool.do(up(NEW, VERSION, 1)).ok
    assert pool.do(c.RemoveServer(B, "root")).ok


def test_the_version_stays_when_a_pool_is_recovered_by_one_that_never_was_up() -> None:
    pool = pool_with_new()
    for server in (A, B):
        assert pool.do(c.RemoveServer(server, RECOVERY)).ok
    assert list(pool.state.servers) == [NEW]
    assert pool.state.formats() == VERSION
    assert "upgrade its gpupool" in pool.do(up(NEW, VERSION - 1, 1)).why
    assert pool.do(up(NEW, VERSION, 1)).ok


def test_a_server_cannot_go_back_once_all_were_upgraded() -> None:
    pool = pool_with_new()
    assert not pool.do(up(A, VERSION - 1, 3)).ok
    assert pool.state.servers[A].incarnation == Incarnation(2)
    assert pool.state.formats() == VERSION


def test_a_server_that_is_older_than_the_pool_stops_before_it_misreads_anything() -> None:
    """Any server that reads the log with an older program, at any time: the log itself says so."""
    pool = pool_with_new()
    assert pool.do(up(A, VERSION + 1, 3)).ok, "the others are older"
    assert pool.do(up(B, VERSION + 1, 3)).ok
    before = pool.state
    with pytest.raises(OutdatedError) as stopped:
        pool.do(c.Tick())
    assert pool.state is before
    error = stopped.value
    assert (error.what, error.why, error.hint) == (
        "this server's gpupool is older than its pool",
        f"all servers of the pool have version {VERSION + 1} of the formats, and this one reads "
        f"up to {VERSION}",
        "install the gpupool that the other servers have, and start this server again",
    )


def test_a_server_that_was_removed_because_it_was_the_oldest_reads_that() -> None:
    pool = pool_with_new()
    assert pool.do(up(A, VERSION + 1, 3)).ok
    assert pool.do(c.RemoveServer(NEW, "root")).ok
    assert pool.do(c.RemoveServer(B, "root")).ok
    assert B in pool.state.removed
    with pytest.raises(OutdatedError):
        pool.do(c.Tick())


def test_a_table_of_a_newer_pool_is_not_taken_over() -> None:
    pool, other = pool_with_new(), Pool()
    servers = {
        key: replace(each, formats=VERSION + 1) if key != NEW else each
        for key, each in pool.state.servers.items()
    }
    newer = replace(pool.state, servers=type(pool.state.servers)(servers))
    before = other.state
    with pytest.raises(OutdatedError):
        other.machine.adopt(newer)
    with pytest.raises(OutdatedError):
        other.machine.restore(encode(newer))
    assert other.state is before
    other.machine.adopt(pool.state)
    assert other.state is pool.state


@pytest.mark.parametrize(
    ("other", "agreed", "links"),
    [
        (VERSION, 0, True),
        (VERSION, VERSION, True),
        (VERSION + 1, VERSION, True),
        (VERSION - 1, VERSION - 1, True),
        (VERSION - 1, VERSION, False),
        (VERSION + 2, VERSION, False),
        (VERSION - 2, 0, False),
    ],
)
def test_servers_link_to_those_that_can_read_what_the_pool_says(
    other: int, agreed: int, links: bool
) -> None:
    assert can_link(other, agreed) is links


RELEASED = {
    "set-silence": 7,
    "note-backup": 7,
    "suspend-lease": 7,
    "confirm-suspended": 7,
    "refuse-suspension": 7,
    "resume-lease": 7,
    "confirm-resumed": 7,
    "move-lease": 7,
    "forget-user": 7,
    "relocate-lease": 9,
    "confirm-relocated": 9,
    "refuse-relocation": 9,
}
"""Servers of these versions are in use, so that no number here may ever change."""


@pytest.mark.parametrize("command", RELEASED)
def test_a_command_is_for_pools_of_the_version_with_which_it_came(command: str) -> None:
    assert command in SINCE
    since = RELEASED[command]
    assert objection(command, since) == ""
    why = f"it needs version {since} on all servers, and the oldest has {since - 1}"
    assert objection(command, since - 1) == why
