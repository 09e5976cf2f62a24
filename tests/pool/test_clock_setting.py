"""An operator sets the table's time: effects of an accident with clocks, and their absence."""

import pytest
from tests.pool.policy_kit import MONDAY_MS, ONE, A, B, Pool, upgraded
from tests.pool.test_apply_properties import founded
from tests.pool.test_apply_walks import Walker

from gpupool.pool.invariants import violations
from gpupool.pool.model import commands as c
from gpupool.pool.model.codec import decode, encode
from gpupool.pool.model.commands import wrap
from gpupool.pool.model.ids import Milliseconds, TokenId
from gpupool.pool.model.results import RefusalKind, Result
from gpupool.pool.model.state import PoolState, Token, TokenKind, with_changes
from gpupool.pool.model.suspension import SuspendRefusal
from gpupool.pool.reconcile import plan_leader
from gpupool.pool.transitions import clock_setting, leases
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.pool.transitions.leases import goes_on
from gpupool.pool.transitions.servers import removals_of_others

DAY_MS = 86_400_000
YEAR_MS = 365 * DAY_MS


class MendedPool(Pool):
    """A pool with the table's era in its envelopes, as servers write them."""

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


# --- many leases ----------------------------------------------------------------------------------


TO_MS = MONDAY_MS + 1000
HOURS_10_MS = 36_000_000


def pool_of_accident(monkeypatch: pytest.MonkeyPatch, lease_count: int = 8) -> MendedPool:
    """Return a pool in which three leases are moved at once, and each was granted an hour later."""
    monkeypatch.setattr(clock_setting, "MOVED_AT_ONCE_MAX", 3)
    pool = MendedPool('[defaults]\nmax_lease_time = "10h"\n')
    upgraded(pool.machine)
    for _ in range(lease_count):
        pool.now_ms += 3_600_000
        pool.grant("ada", fraction=0.25)
    return pool


def unmoved(state: PoolState) -> int:
    return sum(lease.granted_at > TO_MS for lease in state.leases.values())


def go_on(pool: MendedPool, order: c.SetClock) -> int:
    """Repeat an order until all leases are moved; return how often."""
    count = 0
    while pool.state.moving is not None:
        count += 1
        assert pool.do(order).ok
    return count


def test_many_leases_are_moved_some_at_a_time_whoever_leads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = pool_of_accident(monkeypatch)
    order = c.SetClock(Milliseconds(TO_MS), 0, "root")
    result = pool.do(order)
    assert result.ok
    assert (pool.state.now, pool.state.era, unmoved(pool.state)) == (TO_MS, 1, 5)
    assert goes_on(pool.state, order, result)
    pool.now_ms = TO_MS + 10
    left: list[int] = []
    while plan := plan_leader(pool.state, {}, pool.now_ms, A):
        assert plan == (c.SetClock(Milliseconds(TO_MS), 0, ""),)
        assert pool.do(plan[0]).ok
        assert violations(pool.state) == []
        left.append(unmoved(pool.state))
    assert left == [2, 0]
    assert pool.state.moving is None
    assert [act.kind for act in pool.state.acts].count("clock-set") == 1
    granted = [lease.granted_at for lease in pool.state.leases.values()]
    assert granted == [TO_MS - 3_600_000 * each for each in reversed(range(8))]
    ends = [lease.ends_at - lease.granted_at for lease in pool.state.leases.values()]
    assert ends == [HOURS_10_MS] * 8
    before = pool.state
    assert pool.do(order).ok
    assert pool.state.leases is before.leases


def test_a_lease_that_changes_meanwhile_is_moved_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or else its end, of the new time, would pass for one of the accident."""
    pool = pool_of_accident(monkeypatch)
    *_, last = pool.state.leases
    first = next(iter(pool.state.leases))
    assert pool.do(c.SetClock(Milliseconds(TO_MS), 0, "root")).ok
    pool.now_ms = TO_MS + 10
    for lease in (first, last):
        pool.end(lease)
    ended = {record.lease: record for record in pool.state.records}
    assert ended.keys() == {first, last}
    assert (ended[last].granted_at, ended[last].ended_at) == (TO_MS, TO_MS + 10)
    assert pool.state.moving is not None
    assert pool.state.moving.ahead == (last,)
    late = pool.grant("ada", fraction=0.25)
    known, read = pool.state, decode(PoolState, encode(pool.state))
    assert read == known
    for state in (known, read):
        pool.machine.state = state
        go_on(pool, c.SetClock(Milliseconds(TO_MS), 0, ""))
    assert pool.state.leases[late].granted_at == TO_MS + 10
    assert unmoved(pool.state) == 1


@pytest.mark.parametrize(("number", "ahead"), [(4, 0), (5, 0), (6, 1)])
def test_leases_that_were_moved_ahead_are_known_until_their_turn_has_come(
    monkeypatch: pytest.MonkeyPatch, number: int, ahead: int
) -> None:
    """Three are looked at in each step: the second step is over with the last of the first six."""
    pool = pool_of_accident(monkeypatch)
    monkeypatch.setattr(clock_setting, "LOOKED_AT_ONCE_MAX", 3)
    order = c.SetClock(Milliseconds(TO_MS), 0, "root")
    assert pool.do(order).ok
    pool.now_ms = TO_MS + 10
    lease = list(pool.state.leases)[number]
    assert pool.do(c.EndLease(lease, "over")).ok
    for known in ((lease,), (lease,) * ahead):
        assert pool.state.moving is not None
        assert pool.state.moving.ahead == known
        assert pool.do(order).ok
    assert (pool.state.moving, unmoved(pool.state)) == (None, 0)


def test_the_time_is_not_set_again_before_all_are_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pool_of_accident(monkeypatch)
    order = c.SetClock(Milliseconds(TO_MS), 0, "root")
    assert pool.do(order).ok
    pool.now_ms = TO_MS + 10
    again = c.SetClock(Milliseconds(MONDAY_MS), 1, "root")
    assert pool.do(again).kind == RefusalKind.BUSY
    assert pool.state.moving is not None
    assert pool.state.moving.to == TO_MS
    go_on(pool, order)
    assert pool.do(again).ok
    assert (pool.state.now, pool.state.era) == (MONDAY_MS, 2)


def test_leases_of_before_the_accident_are_looked_at_some_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = pool_of_accident(monkeypatch)
    monkeypatch.setattr(clock_setting, "LOOKED_AT_ONCE_MAX", 3)
    before, to = pool.state.leases, Milliseconds(pool.now_ms - 1000)
    pool.now_ms += 60_000
    order = c.SetClock(to, 0, "root")
    assert pool.do(order).ok
    assert go_on(pool, order) == 2
    same = [pool.state.leases[each] is before[each] for each in before]
    assert same == [True] * 7 + [False]


def all_moved(machine: PoolMachine) -> PoolState:
    """Return the table as it is once all leases are moved."""
    copy = PoolMachine(machine.state)
    while copy.state.moving is not None:
        order = c.SetClock(copy.state.moving.to, copy.state.era - 1, "")
        copy.apply(copy.state.index, wrap(order, at_ms=0, ttl_ms=0, era=copy.state.era))
    return with_changes(copy.state, index=machine.state.index)


@pytest.mark.parametrize("seed", range(6))
def test_batches_with_other_commands_between_them_leave_what_one_step_leaves(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "ENDED_AT_ONCE_MAX", 2)
    some, whole, walker = founded(), founded(), Walker(seed)
    now, meanwhile = 10_000, 0

    def both(command: c.Command, at_once: int, era: int) -> None:
        results: list[object] = []
        for machine, count in ((some, at_once), (whole, 10_000)):
            monkeypatch.setattr(clock_setting, "MOVED_AT_ONCE_MAX", count)
            plain = wrap(command, at_ms=now, ttl_ms=0, era=era)
            results.append(machine.apply(machine.state.index + 1, plain))
        assert results[0] == results[1], command

    for number in range(700):
        now += walker.random.choice([0, 1, 7, 1000])
        state = some.state
        if number % 90 == 89 and state.moving is None:
            back = walker.random.choice([1500, 5000, 20_000])
            to = Milliseconds(max(1, state.now - back))
            both(c.SetClock(to, state.era, "root"), 1, state.era)
            now = some.state.now
            assert all_moved(some) == whole.state
        elif state.moving is not None and number % 9 == 0:
            both(c.SetClock(state.moving.to, state.era - 1, ""), 1, state.era)
            assert all_moved(some) == whole.state
        else:
            both(walker.next(state), 1, state.era)
            meanwhile += state.moving is not None
        assert violations(some.state) == []
    monkeypatch.setattr(clock_setting, "MOVED_AT_ONCE_MAX", 10_000)
    assert all_moved(some) == whole.state
    assert meanwhile > 20


def test_what_was_made_at_the_very_instant_is_not_of_the_accident() -> None:
    pool = MendedPool()
    pool.token("just before", YEAR_MS)
    made = pool.known("just before")
    pool.now_ms += 400 * DAY_MS
    pool.do(c.Tick())
    assert pool.do(c.SetClock(made.created_at, 0, "root")).ok
    assert pool.known("just before") == made


def test_requests_that_waited_before_the_accident_keep_their_places() -> None:
    pool = MendedPool()
    requests = [pool.request(9) for _ in range(3)]
    since: list[int] = []
    for request in requests:
        pool.now_ms += 1000
        assert pool.do(c.Wait(request, "ada", TokenId("ada"), "busy")).ok
        since.append(pool.state.waiting[request.id].since)
    pool.now_ms += 10_000
    pool.do(c.Tick())
    assert pool.do(c.SetClock(Milliseconds(since[2] + 1000), 0, "root")).ok
    assert [pool.state.waiting[request.id].since for request in requests] == since


def test_a_request_of_the_accident_overtakes_none_that_waited_before() -> None:
    """Its age would have it before the other, which began to wait earlier."""
    pool = MendedPool()
    first, second = pool.request(9), pool.request(9)
    pool.now_ms += 10_000
    assert pool.do(c.Wait(first, "ada", TokenId("ada"), "busy")).ok
    since = pool.now_ms
    pool.now_ms += 1000
    assert pool.do(c.Wait(second, "ada", TokenId("ada"), "busy")).ok
    pool.now_ms += 9000
    pool.do(c.Tick())
    assert pool.do(c.SetClock(Milliseconds(since + 500), 0, "root")).ok
    waiting = pool.state.waiting
    assert (waiting[first.id].since, waiting[second.id].since) == (since, since)
    assert waiting[first.id].renewed == since
    assert waiting[second.id].renewed == since + 500 - 9000


def test_a_request_of_the_accident_keeps_its_age_where_none_waited_before() -> None:
    pool = MendedPool()
    request = pool.request(9)
    pool.now_ms += 10_000
    assert pool.do(c.Wait(request, "ada", TokenId("ada"), "busy")).ok
    pool.now_ms += 9000
    pool.do(c.Tick())
    assert pool.do(c.SetClock(Milliseconds(MONDAY_MS + 500), 0, "root")).ok
    assert pool.state.waiting[request.id].since == MONDAY_MS + 500 - 9000


@pytest.mark.parametrize(
    ("shift_ms", "text"),
    [
        (-60_000, "by 60.0 s back"),
        (-1500, "by 1.5 s back"),
        (0, "by 0.0 s ahead"),
        (60_000, "by 60.0 s ahead"),
    ],
)
def test_the_act_says_how_far_the_time_was_set_and_where(shift_ms: int, text: str) -> None:
    pool = MendedPool()
    before = pool.now_ms
    assert pool.do(c.SetClock(Milliseconds(before + shift_ms), 0, "root")).ok
    act, event = pool.state.acts[-1], pool.state.events[-1]
    said = f"{text}, from {before} to {before + shift_ms} ms"
    assert (act.kind, act.subject, act.text) == ("clock-set", "lab", said)
    assert (event.kind, event.subject, event.text) == ("clock-set", "lab", f"time set {said}")


@pytest.mark.parametrize(("to", "ok"), [(-1, False), (0, False), (1, True), (2, True)])
def test_the_time_can_be_set_to_what_is_more_than_0(to: int, ok: bool) -> None:
    before = PoolState(now=Milliseconds(5))
    state, result = clock_setting.set_clock(before, c.SetClock(Milliseconds(to), 0, "root"))
    assert (result.ok, state.now, state.era) == ((True, to, 1) if ok else (False, 5, 0))


def test_the_time_that_it_is_leaves_no_lease_to_be_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pool_of_accident(monkeypatch)
    monkeypatch.setattr(clock_setting, "LOOKED_AT_ONCE_MAX", 3)
    before = pool.state
    assert pool.do(c.SetClock(Milliseconds(pool.now_ms), 0, "root")).ok
    assert (pool.state.moving, pool.state.era) == (None, 1)
    assert pool.state.leases is before.leases


def test_servers_of_before_the_accident_keep_their_rows() -> None:
    pool = MendedPool()
    pool.now_ms += 60_000
    pool.do(c.Tick())
    before = pool.state.servers
    assert pool.do(c.SetClock(Milliseconds(MONDAY_MS + 1000), 0, "root")).ok
    assert pool.state.servers is before
    pool.now_ms = MONDAY_MS + 1000
    assert pool.do(c.SetClock(Milliseconds(MONDAY_MS - 1000), 1, "root")).ok
    for server in pool.state.servers.values():
        assert server.joined_at == server.changed_at == MONDAY_MS - 2000


def test_silences_of_before_the_accident_keep_their_end_and_others_their_length() -> None:
    pool = MendedPool()

    def silence(check: str, length_ms: int) -> None:
        until = Milliseconds(pool.now_ms + length_ms)
        assert pool.do(c.SetSilence(check, "", "", "why", until, "root", b"")).ok

    silence("before", DAY_MS)
    pool.now_ms += 3_600_000
    silence("within", DAY_MS)
    before, within = pool.state.silences
    assert pool.do(c.SetClock(Milliseconds(MONDAY_MS + 1000), 0, "root")).ok
    kept, moved = pool.state.silences
    assert kept == before
    assert (moved.check, moved.reason) == (within.check, within.reason)
    assert (moved.at, moved.until) == (MONDAY_MS + 1000, MONDAY_MS + 1000 + DAY_MS)


@pytest.mark.parametrize("lately", [True, False])
def test_a_suspension_that_was_refused_stays_known_as_long_ago(lately: bool) -> None:
    pool = MendedPool()
    upgraded(pool.machine)
    lease = pool.grant("ada")
    (server,) = pool.state.leases[lease].parts
    pool.now_ms += 3_600_000
    assert pool.do(c.SuspendLease(lease, "", "ada")).ok
    suspension = pool.state.leases[lease].suspension
    assert suspension is not None
    assert pool.do(c.RefuseSuspension(lease, server, ONE, suspension.number, "no memory")).ok
    refused_at = pool.now_ms
    pool.now_ms += 3000
    pool.do(c.Tick())
    to = MONDAY_MS + 1000 if lately else refused_at + 1000
    assert pool.do(c.SetClock(Milliseconds(to), 0, "root")).ok
    history = pool.state.leases[lease].history
    assert history is not None
    expected = to - 3000 if lately else refused_at
    assert history.refusal == SuspendRefusal("no memory", Milliseconds(expected))


@pytest.mark.parametrize(
    ("granted_ms", "begin_ms", "end_ms", "span"),
    [
        (0, 100, 900, (100, 900)),
        (0, 500, 5000, (500, 1000)),
        (0, 2000, 5000, None),
        (2000, 3000, 5000, (-5000, -3000)),
    ],
)
def test_times_away_are_cut_where_the_accident_begins_or_are_moved_with_their_lease(
    granted_ms: int, begin_ms: int, end_ms: int, span: tuple[int, int] | None
) -> None:
    """The time is set from 9000 to 1000 ms after the beginning."""
    pool = MendedPool()
    upgraded(pool.machine)
    begun = pool.now_ms
    pool.now_ms = begun + granted_ms
    lease = pool.grant("ada")
    (server,) = pool.state.leases[lease].parts
    pool.now_ms = begun + begin_ms
    assert pool.do(c.SuspendLease(lease, "", "boss", operator=True)).ok
    suspension = pool.state.leases[lease].suspension
    assert suspension is not None
    assert pool.do(c.ConfirmSuspended(lease, server, ONE, suspension.number, 0)).ok
    pool.now_ms = begun + end_ms
    assert pool.do(c.ResumeLease(lease, "boss", operator=True)).ok
    pool.now_ms = begun + 9000
    assert pool.do(c.SetClock(Milliseconds(begun + 1000), 0, "root")).ok
    history = pool.state.leases[lease].history
    assert history is not None
    expected = () if span is None else ((begun + span[0], begun + span[1]),)
    assert history.away == expected
    assert history.away_ms == sum(end - begin for begin, end in expected)
