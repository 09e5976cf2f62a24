"""Tokens in the table: those that let several servers in, and those that are renewed."""

from tests.pool.policy_kit import Pool

from gpupool.pool.model import commands as c
from gpupool.pool.model.codec import decode, encode
from gpupool.pool.model.ids import Milliseconds, ServerId, TokenId
from gpupool.pool.model.results import Result
from gpupool.pool.model.state import Token, TokenKind

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
