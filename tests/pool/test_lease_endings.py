"""How leases end: the words that count, the steps, and the effect of a late command."""

from dataclasses import replace

import pytest
from tests.pool.policy_kit import ONE, A, B, Pool
from tests.pool.test_lease_relocations import C, D, E, Going

from gpupool.pool.model import commands as c
from gpupool.pool.model.commands import unwrap, wrap
from gpupool.pool.model.ids import GpuId, Incarnation, LeaseId, Milliseconds, RequestId, TokenId
from gpupool.pool.model.results import Result
from gpupool.pool.model.state import PartStatus, PoolState, with_changes
from gpupool.pool.transitions.apply import apply, lease_of
from gpupool.pool.transitions.kept_records import stay_since

TWO = Incarnation(2)
STALE = Result(False, "conflict", "not the current incarnation")


def pool_with_lease() -> tuple[Pool, LeaseId]:
    """Return a pool with a lease on both servers."""
    pool = Pool()
    lease = pool.hold((GpuId(f"{A}-0"), 10), (GpuId(f"{B}-0"), 10))
    return pool, lease


# --- ending ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("by", "operator", "is_act"),
    [("ada", False, False), ("", False, False), ("boss", True, True), ("ada", True, False)],
)
def test_an_order_of_another_person_to_end_a_lease_is_an_act(
    by: str, operator: bool, is_act: bool
) -> None:
    pool, lease = pool_with_lease()
    count = pool.state.act_count
    pool.now_ms += 1000
    assert pool.do(c.EndLease(lease, "enough", by, operator)) == Result(True, lease=lease)
    found = pool.state.leases[lease]
    assert found.parts == {A: PartStatus.ENDING, B: PartStatus.ENDING}
    assert (found.end_reason, found.ended_at) == ("enough", pool.now_ms)
    event = pool.state.events[-1]
    assert (event.kind, event.subject, event.text) == ("ended", f"{lease:04x}", "enough")
    assert pool.state.act_count == count + is_act
    if is_act:
        act = pool.state.acts[-1]
        said = ("lease-ended", "boss", f"{lease:04x}", "lease of ada: enough")
        assert (act.kind, act.by, act.subject, act.text) == said
    before = pool.state
    assert pool.do(c.EndLease(lease, "again", by, operator)) == Result(True, lease=lease)
    assert pool.state.leases is before.leases
    assert (pool.state.act_count, pool.state.events) == (before.act_count, before.events)


def test_no_other_user_ends_a_lease() -> None:
    pool, lease = pool_with_lease()
    why = f"lease {lease:04x} belongs to ada"
    assert pool.do(c.EndLease(lease, "mine", "bob")) == Result(False, "denied", why)
    assert pool.state.leases[lease].held
    assert pool.do(c.EndLease(LeaseId(9999), "mine", "bob")) == Result(True)


def test_a_lease_without_a_reason_has_ended() -> None:
    pool, lease = pool_with_lease()
    assert pool.do(c.EndLease(lease, "")).ok
    assert pool.state.leases[lease].end_reason == "ended"


def test_what_ends_for_being_away_is_not_ended_once_it_is_back() -> None:
    pool, lease = pool_with_lease()
    assert pool.do(c.EndLease(lease, "too long", away=True)) == Result(True)
    assert pool.state.leases[lease].held


# --- freeing --------------------------------------------------------------------------------------


def test_a_part_is_freed_once_by_the_present_process_of_its_server() -> None:
    pool, lease = pool_with_lease()
    word = c.FreeLease(lease, A, ONE)
    held = Result(False, "conflict", "the lease is held; end it first")
    assert pool.do(word) == held
    assert pool.do(c.EndLease(lease, "over")).ok
    assert pool.do(replace(word, incarnation=TWO)) == STALE
    other = Result(False, "conflict", "it is of another relocation")
    assert pool.do(replace(word, number=1)) == other
    assert pool.state.record_count == 0
    for _ in range(2):
        assert pool.do(word) == Result(True)
        assert pool.state.record_count == 1
        assert pool.state.leases[lease].parts == {A: PartStatus.FREED, B: PartStatus.ENDING}
    assert pool.state.servers[A].gpus[GpuId(f"{A}-0")].memory_granted == 0
    assert pool.state.usage["ada"].leases == 1
    request = pool.state.leases[lease].request
    assert pool.do(replace(word, server=B)) == Result(True)
    assert (lease in pool.state.leases, request in pool.state.by_request) == (False, False)
    assert pool.state.closed[request] == "its lease has ended: over"
    assert "ada" not in pool.state.usage
    for late in (word, replace(word, server=C), replace(word, incarnation=TWO)):
        assert pool.do(late) == Result(True), "freed already"
    assert pool.state.record_count == 2


def test_a_server_says_only_of_its_own_parts_whether_they_are_used() -> None:
    pool = Pool()
    lease = pool.hold((GpuId(f"{A}-0"), 10))
    word = c.NoteIdle(lease, A, ONE, True)
    assert pool.do(replace(word, incarnation=TWO)) == STALE
    for other in (replace(word, server=B), replace(word, lease=LeaseId(9999))):
        assert pool.do(other) == Result(True)
        assert pool.state.leases[lease].idle_on == ()
    for idle in (True, True, False, False):
        assert pool.do(replace(word, idle=idle)) == Result(True)
        assert pool.state.leases[lease].idle_on == ((A,) if idle else ())


# --- the accounts ---------------------------------------------------------------------------------


def test_a_lease_that_never_waited_was_asked_for_at_its_grant() -> None:
    pool = Pool()
    at_once = pool.hold((GpuId(f"{A}-0"), 10))
    assert pool.state.leases[at_once].requested_at == 0
    request = pool.request()
    since = pool.now_ms
    assert pool.do(c.Wait(request, "ada", TokenId("ada"), "busy")).ok
    pool.now_ms += 1000
    waited = pool.do(pool.claim("ada", request)).lease
    assert waited is not None
    assert pool.state.leases[waited].requested_at == since
    for lease in (at_once, waited):
        pool.end(lease)
    times = [(each.requested_at, each.granted_at) for each in pool.state.records]
    assert times == [(since, since), (since, since + 1000)]


@pytest.mark.parametrize("begun", [True, False])
def test_what_records_say_of_a_request_is_noted_once_there_are_accounts(begun: bool) -> None:
    pool = Pool("[class.lab]\nusers = ['ada']\n")
    if not begun:
        pool.machine.state = with_changes(pool.state, accounts_since=Milliseconds(0))
    lease = pool.hold((GpuId(f"{A}-0"), 10))
    assert pool.state.leases[lease].user_class == ("lab" if begun else "")


def test_each_server_has_a_lease_since_it_came_there() -> None:
    pool = Going()
    lease = pool.hold((GpuId(f"{C}-0"), 40))
    first = pool.now_ms
    assert stay_since(pool.lease(lease), C) == first
    pool.now_ms += 1000
    assert pool.go(lease).ok
    assert (stay_since(pool.lease(lease), C), stay_since(pool.lease(lease), D)) == (first, None)
    pool.now_ms += 1000
    assert pool.confirm(lease).ok
    second = pool.now_ms
    assert (stay_since(pool.lease(lease), C), stay_since(pool.lease(lease), D)) == (first, second)
    assert pool.do(pool.freed(lease, C)).ok
    assert stay_since(pool.lease(lease), D) == second
    pool.now_ms += 1000
    assert pool.go(lease, E).ok
    assert stay_since(pool.lease(lease), D) == second
    assert pool.refuse(lease, D).ok
    assert (stay_since(pool.lease(lease), D), stay_since(pool.lease(lease), E)) == (second, None)


# --- commands that are late -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "at_ms", "ttl_ms", "taken"),
    [
        (1000, 1000, 500, True),
        (1500, 1000, 500, True),
        (1501, 1000, 500, False),
        (1501, 1000, 0, True),
        (0, 1000, 500, True),
    ],
)
def test_a_command_counts_until_its_deadline(
    now: int, at_ms: int, ttl_ms: int, taken: bool
) -> None:
    envelope = unwrap(wrap(c.CreatePool("c", "lab", "tls"), at_ms=at_ms, ttl_ms=ttl_ms))
    state, result = apply(PoolState(now=Milliseconds(now)), 7, envelope)
    assert (state.index, state.now) == (7, max(now, at_ms))
    assert state.cluster_id == ("c" if taken else "")
    why = "the command arrived after its deadline"
    assert result == (Result(True) if taken else Result(False, "expired", why))


@pytest.mark.parametrize("era", [0, 2])
def test_a_command_of_another_era_changes_nothing(era: int) -> None:
    envelope = unwrap(wrap(c.CreatePool("c", "lab", "tls"), at_ms=2000, ttl_ms=0, era=era))
    before = PoolState(era=1, now=Milliseconds(1000))
    state, result = apply(before, 7, envelope)
    assert state == with_changes(before, index=7)
    why = "the pool's time was set after the command was stamped"
    assert result == Result(False, "expired", why)


def test_a_command_is_of_the_lease_that_it_names_or_that_its_request_has() -> None:
    pool, lease = pool_with_lease()
    request = pool.state.leases[lease].request
    assert lease_of(pool.state, c.CancelRequest(request, "no more")) == lease
    assert lease_of(pool.state, c.CancelRequest(RequestId(bytes(16)), "no more")) is None
    assert lease_of(pool.state, c.EndLease(lease, "over")) == lease
    assert lease_of(pool.state, c.Tick()) is None


def test_a_pool_is_created_once() -> None:
    pool = Pool()
    refused = pool.do(c.CreatePool("other", "other", "off"))
    assert refused == Result(False, "conflict", "the pool exists already")
    state = pool.state
    assert (state.cluster_id, state.name, state.data_encryption) == ("cluster", "lab", "tls")


def test_a_notice_of_a_lease_that_is_not_there_is_no_event() -> None:
    pool, _ = pool_with_lease()
    before = pool.state
    result = pool.do(c.GiveNotice(LeaseId(9999)))
    assert not result.ok
    assert pool.state.events == before.events
