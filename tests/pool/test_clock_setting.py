"""An operator sets the table's time: what an accident with clocks has made, and what it has not."""

from tests.pool.policy_kit import MONDAY_MS, A, B, Pool

from gpupool.pool.model import commands as c
from gpupool.pool.model.codec import decode
from gpupool.pool.model.commands import wrap
from gpupool.pool.model.ids import Milliseconds, TokenId
from gpupool.pool.model.results import RefusalKind, Result
from gpupool.pool.model.state import Token, TokenKind
from gpupool.pool.transitions.servers import removals_of_others

DAY_MS = 86_400_000
YEAR_MS = 365 * DAY_MS


class MendedPool(Pool):
    """A pool whose envelopes carry the table's era, as servers write them."""

    def do(self, command: c.Command) -> Result:
        return self.do_in(self.state.era, command)

    def do_in(self, era: int, command: c.Command) -> Result:
        plain = wrap(command, at_ms=self.now_ms, ttl_ms=60_000, era=era)
        return decode(Result, self.machine.apply(self.state.index + 1, plain))

    def token(self, name: str, valid_ms: int) -> None:
        expires = Milliseconds(self.now_ms + valid_ms)
        order = c.CreateToken(TokenId(name), TokenKind.USER, name, bytes(32), expires, "root")
        assert self.do(order).ok

    def known(self, name: str) -> Token:
        return self.state.tokens[TokenId(name)]


def test_tokens_of_before_and_of_the_accident_are_good_again() -> None:
    pool = MendedPool()
    pool.token("before", YEAR_MS)
    pool.now_ms += 400 * DAY_MS
    pool.do(c.Tick())
    assert pool.known("before").refusal(pool.state.now)
    pool.token("within", 3_600_000)
    pool.now_ms += 60_000
    pool.do(c.RevokeToken(TokenId("within"), "root"))
    right_ms = MONDAY_MS + 60_000
    assert pool.do(c.SetClock(Milliseconds(right_ms), 0, "root")).ok
    assert (pool.state.now, pool.state.era) == (right_ms, 1)
    assert not pool.known("before").refusal(right_ms)
    within = pool.known("within")
    assert within.created_at == MONDAY_MS
    assert within.expires_at == MONDAY_MS + 3_600_000
    assert within.revoked_at == right_ms
    act = pool.state.acts[-1]
    assert (act.kind, act.by, act.at) == ("clock-set", "root", right_ms)
    assert f"from {pool.now_ms} to {right_ms}" in act.text


def test_leases_keep_their_length() -> None:
    pool = MendedPool('[defaults]\nmax_lease_time = "10h"\n')
    early = pool.grant("ada")
    pool.now_ms += 3_600_000
    late = pool.grant("bob")
    assert pool.do(c.SetClock(Milliseconds(MONDAY_MS + 1000), 0, "root")).ok
    leases = pool.state.leases
    assert leases[early].granted_at == MONDAY_MS
    assert leases[early].ends_at == MONDAY_MS + 36_000_000
    assert leases[late].granted_at == MONDAY_MS + 1000
    assert leases[late].ends_at == MONDAY_MS + 1000 + 36_000_000
    assert leases[late].notice_at == leases[late].ends_at - 300_000


def test_a_stamp_of_before_does_not_undo_it() -> None:
    """It is refused as if it had come late, so that its proposer stamps it anew."""
    pool = MendedPool()
    pool.now_ms += 400 * DAY_MS
    pool.do(c.Tick())
    order = c.SetClock(Milliseconds(MONDAY_MS), 0, "root")
    assert pool.do(order).ok
    late = pool.do_in(0, c.DrainServer(next(iter(pool.state.servers)), "new fan", "root"))
    assert late.kind == "expired"
    assert pool.state.now == MONDAY_MS
    again = pool.do_in(0, order)
    assert again.kind == "expired"
    pool.now_ms = MONDAY_MS + 5000
    pool.do(c.Tick())
    again = pool.do(order)
    assert again.ok
    assert "already" in again.why
    assert (pool.state.now, pool.state.era) == (MONDAY_MS + 5000, 1)


def test_setting_it_ahead_moves_nothing_else() -> None:
    pool = MendedPool()
    pool.token("ada-2", YEAR_MS)
    before = pool.state
    assert pool.do(c.SetClock(Milliseconds(MONDAY_MS + 30 * DAY_MS), 0, "root")).ok
    assert pool.state.now == MONDAY_MS + 30 * DAY_MS
    assert pool.state.tokens == before.tokens
    pool.now_ms = pool.state.now
    for to, era in ((0, 1), (-1, 1), (1, 2)):
        answer = pool.do(c.SetClock(Milliseconds(to), era, "root"))
        assert (answer.ok, answer.kind) == (False, RefusalKind.INVALID), (to, era)
    assert pool.state.now == MONDAY_MS + 30 * DAY_MS


def test_a_pool_whose_time_was_set_is_recovered_without_the_others() -> None:
    """Seed 1204 with three servers: the others stayed in the table, and voted in its eyes."""
    pool = MendedPool()
    assert set(pool.state.servers) == {A, B}
    assert pool.do(c.SetClock(Milliseconds(MONDAY_MS - 60_000), 0, "root")).ok
    for plain in removals_of_others(pool.state, B, at_ms=pool.now_ms):
        result = decode(Result, pool.machine.apply(pool.state.index + 1, plain))
        assert result.ok, result.why
    assert set(pool.state.servers) == {B}
