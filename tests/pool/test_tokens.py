"""Tokens in the table: those that let several servers in, and those that are renewed."""

from dataclasses import replace

import pytest
from tests.pool.policy_kit import Pool, upgraded

from gpupool.pool.model import commands as c
from gpupool.pool.model.codec import decode, encode
from gpupool.pool.model.formats import VERSION
from gpupool.pool.model.ids import Milliseconds, ServerId, TokenId
from gpupool.pool.model.results import Result
from gpupool.pool.model.state import PoolState, Token, TokenKind
from gpupool.pool.transitions import leases, tokens
from gpupool.pool.transitions.tokens import create_token

FAR = Milliseconds(2**52)
TOKEN = TokenId("several")


def create(pool: Pool, uses: int, expires_at: Milliseconds = FAR) -> Result:
    kind = TokenKind.SERVER
    return pool.do(c.CreateToken(TOKEN, kind, "root", bytes(32), expires_at, "root", uses))


def join(pool: Pool, name: str) -> str:
    result = pool.do(c.JoinServer(ServerId(name * 12), name, f"{name}:1", False, TOKEN))
    return "" if result.ok else result.why


def test_a_token_lets_in_as_many_servers_as_it_is_for() -> None:
    pool = Pool()
    assert create(pool, 2).ok
    count = len(pool.state.servers)
    assert [join(pool, name) for name in "wxw"] == [""] * 3  # the answer to the first was lost
    why = join(pool, "y")
    assert "has been used; it let 2 servers in" in why
    assert "token create --server" in why
    assert len(pool.state.servers) == count + 2


def test_a_token_for_one_server_is_kept_as_before() -> None:
    pool = Pool()
    assert create(pool, 1).ok
    assert join(pool, "w") == ""
    token = pool.state.tokens[TOKEN]
    assert token.used_by == "w" * 12
    assert "uses" not in str(encode(token))  # older tables have the same bytes
    assert decode(Token, encode(token)) == token
    assert "each lets one server in" in join(pool, "x")


def test_uses_have_bounds() -> None:
    assert not any(create(Pool(), uses).ok for uses in (0, -1, 257))


def test_an_expired_token_is_good_again_once_renewed() -> None:
    pool = Pool()
    assert create(pool, 1, Milliseconds(1)).ok
    assert "expired" in join(pool, "w")
    assert pool.do(c.RenewToken(TOKEN, FAR, "root")).ok
    assert pool.state.acts[-1].kind == "token-renewed"
    assert pool.do(c.RenewToken(TOKEN, Milliseconds(2), "root")).ok
    assert pool.state.tokens[TOKEN].expires_at == FAR  # never sooner
    assert join(pool, "w") == ""
    assert not pool.do(c.RenewToken(TokenId("none"), FAR, "root")).ok
    assert pool.do(c.RevokeToken(TOKEN, "root")).ok
    assert not pool.do(c.RenewToken(TOKEN, FAR, "root")).ok


def made(**changes: object) -> tuple[PoolState, Result]:
    """Return the table and the result of an order, some of which is changed."""
    kind = TokenKind.USER
    order = c.CreateToken(TOKEN, kind, "ada", bytes(32), Milliseconds(3_601_000), "root")
    return create_token(PoolState(now=Milliseconds(1000)), replace(order, **changes))  # type: ignore[arg-type]


NO_NAME = "a token needs a user name and a SHA-256 of its secret"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"user": ""}, NO_NAME),
        ({"user": "x"}, ""),
        ({"user": "x" * 64}, ""),
        ({"user": "x" * 65}, NO_NAME),
        ({"secret_hash": bytes(31)}, NO_NAME),
        ({"secret_hash": bytes(33)}, NO_NAME),
        ({"uses": 0}, "a token lets in 1 to 256 servers"),
        ({"uses": 1}, ""),
        ({"uses": 256}, ""),
        ({"uses": 257}, "a token lets in 1 to 256 servers"),
    ],
)
def test_each_part_of_a_token_has_bounds(changes: dict[str, object], why: str) -> None:
    state, result = made(**changes)
    assert (result.ok, result.kind, result.why) == (not why, "denied" if why else "", why)
    assert list(state.tokens) == ([] if why else [TOKEN])


def test_an_id_that_is_taken_is_good_for_the_same_secret_only() -> None:
    before, _ = made()
    known = before.tokens[TOKEN]
    order = c.CreateToken(TOKEN, known.kind, "ada", known.secret_hash, FAR, "root")
    state, result = create_token(before, order)
    assert result.ok
    assert state is before
    state, result = create_token(before, replace(order, secret_hash=b"x" * 32))
    assert (result.ok, result.kind, result.why) == (False, "conflict", "this token id is taken")
    assert state is before


def test_the_pool_has_so_many_tokens_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "TOKEN_COUNT_MAX", 2)
    state, _ = made()
    for name, why in (("second", ""), ("third", "the pool has 2 tokens, the most it can")):
        order = c.CreateToken(TokenId(name), TokenKind.USER, "ada", bytes(32), FAR, "root")
        state, result = create_token(state, order)
        assert (result.ok, result.kind, result.why) == (not why, "denied" if why else "", why)
    assert list(state.tokens) == [TOKEN, "second"]


@pytest.mark.parametrize(
    ("life_ms", "text", "older"),
    [
        (-5, "0 s", "0 h"),
        (999, "0 s", "0 h"),
        (1000, "1 s", "0 h"),
        (59_999, "59 s", "0 h"),
        (60_000, "1 min", "0 h"),
        (119_999, "1 min", "0 h"),
        (3_599_999, "59 min", "0 h"),
        (3_600_000, "1 h", "1 h"),
        (7_199_999, "1 h", "1 h"),
        (7_200_000, "2 h", "2 h"),
    ],
)
def test_how_long_a_token_is_good_for_is_rounded_down(life_ms: int, text: str, older: str) -> None:
    for version, life in ((VERSION, text), (7, text), (6, older)):
        pool = Pool()
        upgraded(pool.machine, version)
        create(pool, 2, Milliseconds(pool.now_ms + life_ms))
        assert pool.state.acts[-1].text == f"server token for root, good for {life}, for 2 servers"


def test_tokens_whose_leases_are_being_ended_do_not_push_one_another_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leases, "ENDED_AT_ONCE_MAX", 1)
    pool = Pool()
    upgraded(pool.machine)
    for user in ("ada", "bob"):
        for _ in range(2):
            pool.grant(user, fraction=0.25)
    ada, bob = (c.RevokeToken(TokenId(user), "root") for user in ("ada", "bob"))
    assert pool.do(ada).ok
    assert pool.state.revoking == ("ada",)
    assert pool.do(bob).ok
    assert pool.state.revoking == ("ada", "bob")
    assert pool.do(ada).ok
    assert pool.state.revoking == ("bob",)
    assert pool.do(bob).ok
    assert pool.state.revoking == ()
    kinds = [act.kind for act in pool.state.acts]
    assert kinds.count("token-revoked") == 2


def test_a_token_that_the_pool_has_not_is_neither_renewed_nor_revoked() -> None:
    pool = Pool()
    unknown = Result(False, "never", "the pool has no token several")
    assert pool.do(c.RenewToken(TOKEN, FAR, "root")) == unknown
    assert pool.do(c.RevokeToken(TOKEN, "root")) == unknown


def test_what_happens_to_a_token_is_an_act_and_an_event_once() -> None:
    pool = Pool()
    soon = Milliseconds(pool.now_ms + 3_600_000)
    made = c.CreateToken(TOKEN, TokenKind.USER, "ada", bytes(32), soon, "")
    later = Milliseconds(pool.now_ms + 7_200_000)
    renewed, revoked = c.RenewToken(TOKEN, later, "root"), c.RevokeToken(TOKEN, "root")
    for command, kind, by, act_text, event_text in (
        (
            made,
            "token-created",
            "the pool",
            "user token for ada, good for 1 h",
            "user token several created by the pool",
        ),
        (
            renewed,
            "token-renewed",
            "root",
            "user token of ada, good for 2 h",
            "token several renewed by root",
        ),
        (revoked, "token-revoked", "root", "user token of ada", "token several revoked by root"),
    ):
        count = pool.state.act_count
        assert pool.do(command) == Result(True)
        assert pool.state.act_count == count + 1
        act, event = pool.state.acts[-1], pool.state.events[-1]
        said = (kind, by, "several", act_text)
        assert (act.kind, act.by, act.subject, act.text) == said
        assert (event.kind, event.subject, event.text) == (kind, "ada", event_text)
        assert pool.do(command) == Result(True)
        assert pool.state.act_count == count + 1
    assert pool.state.tokens[TOKEN].revoked_at == pool.now_ms
    refused = Result(False, "denied", "token several was revoked")
    assert pool.do(renewed) == refused
