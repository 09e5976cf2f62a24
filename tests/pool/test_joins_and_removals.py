"""Servers that join and leave: rights, votes afterwards, and acts in the audit."""

from dataclasses import replace

import pytest
from tests.pool.policy_kit import ONE, A, B, Pool, upgraded

from gpupool.pool.model import commands as c
from gpupool.pool.model.ids import Incarnation, Milliseconds, ServerId, TokenId
from gpupool.pool.model.results import Result
from gpupool.pool.model.state import PoolState, ServerStatus, TokenKind, with_changes
from gpupool.pool.transitions import leases, servers
from gpupool.pool.transitions.servers import RECOVERY, join_server, remove_server, server_contact

FAR = Milliseconds(2**52)
TOKEN = TokenId("server")
LAST = Result(False, "denied", "it is the last server of the pool")
NONE_UP = Result(
    False, "busy", "no other server of the pool has come up yet; remove this one when one has"
)
NO_KEY = Result(
    False,
    "busy",
    "no other server has the key of the pool's CA yet; remove this one when one has",
)


def pool_with_token(uses: int = 1, expires_at: Milliseconds = FAR) -> Pool:
    pool = Pool()
    made = c.CreateToken(TOKEN, TokenKind.SERVER, "s", bytes(32), expires_at, "root", uses)
    assert pool.do(made).ok
    return pool


def joining(name: str = "w", token: TokenId | None = TOKEN) -> c.JoinServer:
    return c.JoinServer(ServerId(name[:1] * 12), name, f"{name}:1", False, token)


def with_server(state: PoolState, server: ServerId, **changes: object) -> PoolState:
    row = with_changes(state.servers[server], **changes)
    return with_changes(state, servers=state.servers.set(server, row))


def voters(state: PoolState) -> list[str]:
    return [each.name for each in state.servers.values() if each.voter]


# --- joining --------------------------------------------------------------------------------------


def test_a_server_joins_with_an_act_and_an_event() -> None:
    pool = pool_with_token()
    assert pool.do(joining()).ok
    server = pool.state.servers[ServerId("w" * 12)]
    assert (server.joined_at, server.changed_at) == (pool.now_ms, pool.now_ms)
    assert (server.status, server.voter, server.labels) == (ServerStatus.JOINED, True, {})
    act, event = pool.state.acts[-1], pool.state.events[-1]
    text = f"{'w' * 12} at w:1, with token server"
    assert (act.kind, act.by, act.subject, act.text) == ("server-joined", "root", "w", text)
    assert (event.kind, event.subject, event.text) == ("joined", "w", "joined from w:1")


@pytest.mark.parametrize(("length", "ok"), [(0, False), (1, True), (64, True), (65, False)])
def test_a_name_has_1_to_64_characters(length: int, ok: bool) -> None:
    pool = pool_with_token()
    result = pool.do(replace(joining(), name="w" * length))
    why = "" if ok else "a server's name has 1 to 64 characters"
    assert (result.ok, result.kind, result.why) == (ok, "" if ok else "denied", why)
    assert (ServerId("w" * 12) in pool.state.servers) == ok


@pytest.mark.parametrize(
    ("command", "kind", "why"),
    [
        (replace(joining(), name="a"), "conflict", "the pool has a server named a already"),
        (joining(token=None), "denied", "a server token is needed"),
        (joining(token=TokenId("none")), "denied", "this is no server token of this pool"),
        (joining(token=TokenId("ada")), "denied", "this is no server token of this pool"),
        (joining(token=TokenId("token-b")), "denied", "token token-b has been used"),
    ],
)
def test_who_may_not_join_is_told_why(command: c.JoinServer, kind: str, why: str) -> None:
    pool = pool_with_token()
    before = pool.state
    result = pool.do(command)
    assert (result.ok, result.kind) == (False, kind)
    assert result.why.startswith(why)
    assert pool.state.servers is before.servers


@pytest.mark.parametrize(
    ("uses", "lets"), [(1, "each lets one server in"), (2, "it let 2 servers in")]
)
def test_a_token_that_has_been_used_says_how_another_is_made(uses: int, lets: str) -> None:
    pool = pool_with_token(uses)
    for name in "wx"[:uses]:
        assert pool.do(joining(name)).ok
    text = f"token server has been used; {lets}; `gpupool token create --server` makes another"
    assert pool.do(joining("y")) == Result(False, "denied", text)


def test_an_expired_token_lets_nobody_in() -> None:
    pool = pool_with_token(expires_at=Milliseconds(1))
    result = pool.do(joining())
    assert (result.kind, result.why) == ("denied", "token server has expired")


def test_the_pool_has_so_many_servers_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "SERVER_COUNT_MAX", 3)
    pool = pool_with_token(2)
    assert pool.do(joining("w")).ok
    why = "the pool has 3 servers, the most it can have"
    assert pool.do(joining("x")) == Result(False, "denied", why)
    assert len(pool.state.servers) == 3


def test_the_first_seven_servers_vote() -> None:
    pool = pool_with_token(9)
    for name in "cdefghi":
        assert pool.do(joining(name)).ok
    assert voters(pool.state) == list("abcdefg")


def test_the_answer_that_was_lost_is_given_again_until_the_server_has_come_up() -> None:
    pool = pool_with_token(2)
    assert pool.do(joining()).ok
    before = pool.state
    state, result = join_server(before, joining())
    assert result.ok
    assert state is before
    known = f"the pool has server {'w' * 12} already"
    for token in (None, TokenId("none"), TokenId("token-b")):
        state, result = join_server(before, joining(token=token))
        assert result == Result(False, "conflict", known)
        assert state is before
    state = with_server(before, ServerId("w" * 12), status=ServerStatus.UP)
    assert join_server(state, joining())[1] == Result(False, "conflict", known)


def test_labels_that_wait_for_a_name_are_taken_once() -> None:
    pool = pool_with_token(2)
    awaited = {"w": {"rack": "4"}, "x": {"rack": "5"}}
    pool.machine.state = with_changes(pool.state, labels_awaited=awaited)
    assert pool.do(joining()).ok
    assert pool.state.servers[ServerId("w" * 12)].labels == {"rack": "4"}
    assert pool.state.labels_awaited == {"x": {"rack": "5"}}


# --- leaving --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("by", "said"), [("root", " (by root)"), ("", "")])
def test_a_server_leaves_with_one_act_and_one_event_however_many_steps_it_takes(
    by: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "ENDED_AT_ONCE_MAX", 1)
    pool = Pool()
    upgraded(pool.machine)
    for _ in range(3):
        pool.hold((next(iter(pool.state.servers[B].gpus)), 1))
    left = 0
    while B in pool.state.servers:
        assert pool.do(c.RemoveServer(B, by)).ok
        assert pool.state.removed == {B: pool.now_ms}
        assert voters(pool.state) == ["a"]
        assert all(each.freeing == (each.id == B) for each in pool.state.servers.values())
        left += 1
    assert left == 3
    (act,) = [act for act in pool.state.acts if act.kind == "server-removed"]
    assert (act.by, act.subject, act.text) == (by or "the pool", "b", B)
    (event,) = [event for event in pool.state.events if event.kind == "left"]
    assert (event.subject, event.text) == ("b", f"left the pool{said}")
    before = pool.state
    state, result = remove_server(before, c.RemoveServer(B, by))
    assert result == Result(True)
    assert state is before


@pytest.mark.parametrize("by", ["root", RECOVERY])
def test_the_last_server_stays(by: str) -> None:
    pool = Pool()
    assert pool.do(c.RemoveServer(B, "root")).ok
    assert pool.do(c.RemoveServer(A, by)) == LAST
    state = with_changes(Pool().state, removed={B: Milliseconds(1)})
    assert remove_server(state, c.RemoveServer(A, by))[1] == LAST, "the other one is leaving"


@pytest.mark.parametrize(
    ("of_a", "of_b", "by", "refusal"),
    [
        (ServerStatus.UP, ServerStatus.UP, "root", None),
        (ServerStatus.UP, ServerStatus.UNREACHABLE, "root", None),
        (ServerStatus.UP, ServerStatus.JOINED, "root", NONE_UP),
        (ServerStatus.UNREACHABLE, ServerStatus.JOINED, "root", NONE_UP),
        (ServerStatus.UP, ServerStatus.JOINED, RECOVERY, None),
        (ServerStatus.JOINED, ServerStatus.JOINED, "root", None),
    ],
)
def test_a_server_that_has_been_up_leaves_where_another_one_has(
    of_a: ServerStatus, of_b: ServerStatus, by: str, refusal: Result | None
) -> None:
    state = with_server(with_server(Pool().state, A, status=of_a), B, status=of_b)
    _, result = remove_server(state, c.RemoveServer(A, by))
    assert result == (refusal or Result(True))


@pytest.mark.parametrize(
    ("of_a", "of_b", "by", "refusal"),
    [
        (True, False, "root", NO_KEY),
        (True, True, "root", None),
        (False, False, "root", None),
        (True, False, RECOVERY, None),
    ],
)
def test_the_only_server_with_the_keys_stays(
    of_a: bool, of_b: bool, by: str, refusal: Result | None
) -> None:
    state = with_server(with_server(Pool().state, A, has_keys=of_a), B, has_keys=of_b)
    _, result = remove_server(state, c.RemoveServer(A, by))
    assert result == (refusal or Result(True))


@pytest.mark.parametrize(("voter", "expected"), [(True, ["b"]), (False, ["a"])])
def test_the_vote_of_a_server_that_leaves_goes_to_the_next(
    voter: bool, expected: list[str]
) -> None:
    state = with_server(Pool().state, B, voter=False)
    leaving = A if voter else B
    state, result = remove_server(state, c.RemoveServer(leaving, "root"))
    assert result.ok
    assert voters(state) == expected


@pytest.mark.parametrize(("of_b", "agreed"), [(ServerStatus.JOINED, 9), (ServerStatus.UP, 5)])
def test_the_version_outlives_the_last_server_that_was_ever_up(
    of_b: ServerStatus, agreed: int
) -> None:
    """One that is up has its own say instead, and had it before."""
    state = with_server(Pool().state, A, formats=9)
    state = with_server(state, B, status=of_b, formats=5)
    assert state.formats() == agreed
    state, result = remove_server(state, c.RemoveServer(A, RECOVERY))
    assert result.ok
    assert (list(state.servers), state.formats()) == ([B], agreed)


# --- orders and contact ---------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 15, 17])
def test_an_order_with_a_malformed_number_is_refused(length: int) -> None:
    pool = Pool()
    before = pool.state.servers
    refused = Result(False, "invalid", "malformed number of an order")
    assert pool.do(c.DrainServer(A, "why", "root", bytes(length))) == refused
    assert pool.do(c.LabelServer(A, {"x": "1"}, (), "root", bytes(length))) == refused
    assert pool.state.servers is before


def test_an_order_is_known_among_the_latest_sixteen() -> None:
    pool = Pool()
    orders = [bytes([number]) * 16 for number in range(18)]
    for number, order in enumerate(orders):
        assert pool.do(c.DrainServer(A, f"reason {number}", "root", order)).ok
    assert pool.state.servers[A].orders == tuple(orders[2:])
    assert pool.do(c.DrainServer(A, None, "root", orders[2])).ok
    assert pool.state.servers[A].drain_reason == "reason 17", "it was carried out already"
    assert pool.do(c.DrainServer(A, None, "root", orders[1])).ok
    assert pool.state.servers[A].drain_reason is None
    assert pool.do(c.DrainServer(A, "new", "root")).ok
    assert pool.state.servers[A].orders == (*orders[3:], orders[1]), "one without a number"


def test_a_drain_says_what_it_was_and_is() -> None:
    pool = Pool()
    pool.now_ms += 1000
    assert pool.do(c.DrainServer(A, None, "root")) == Result(True, why="it was not drained")
    assert pool.do(c.DrainServer(A, "x" * 201, "root")) == Result(True)
    event = pool.state.events[-1]
    said = ("drained", "a", "x" * 200 + " (by root)")
    assert (event.kind, event.subject, event.text) == said
    assert pool.state.servers[A].changed_at == pool.now_ms
    count = pool.state.act_count
    assert pool.do(c.DrainServer(A, "x" * 201, "root")) == Result(True, why="it was drained")
    assert pool.state.act_count == count
    assert pool.do(c.DrainServer(A, None, "root")) == Result(True)
    event, act = pool.state.events[-1], pool.state.acts[-1]
    assert (event.kind, event.text, act.kind, act.text) == ("undrained", "by root", "undrained", "")
    assert pool.do(c.DrainServer(ServerId("none"), "why", "root")).kind == "never"
    assert pool.do(c.LabelServer(ServerId("none"), {}, (), "root")).kind == "never"


def test_contact_counts_once_and_of_the_present_process() -> None:
    pool = Pool()
    lost, back = (c.ServerContact(A, ONE, reachable=each) for each in (False, True))
    for command, status, kind in (
        (back, ServerStatus.UP, ""),
        (lost, ServerStatus.UNREACHABLE, "unreachable"),
        (lost, ServerStatus.UNREACHABLE, ""),
        (back, ServerStatus.UP, "reachable"),
    ):
        pool.now_ms += 1000
        before = pool.state
        state, result = server_contact(before, command)
        assert result == Result(True)
        assert (state is before) == (not kind)
        assert pool.do(command).ok
        server, event = pool.state.servers[A], pool.state.events[-1]
        assert server.status is status
        if kind:
            assert (event.kind, event.subject, server.changed_at) == (kind, "a", pool.now_ms)
    assert pool.state.events[-1].text == "in contact again"
    for other in (replace(lost, incarnation=Incarnation(2)), replace(lost, server="none")):
        refused = Result(False, "conflict", "not the current incarnation")
        assert pool.do(other) == refused
