"""Commands that end many leases end some at a time, skip none, and serve none meanwhile."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pool.policy_kit import GIB, A, B, Pool

from gpupool.pool.invariants import violations
from gpupool.pool.model import commands as c
from gpupool.pool.model.codec import decode
from gpupool.pool.model.formats import VERSION
from gpupool.pool.model.ids import GpuId, Incarnation, LeaseId, Milliseconds, ServerId, TokenId
from gpupool.pool.model.results import RefusalKind, Result
from gpupool.pool.model.state import (
    LeaseRecord,
    Partition,
    PartStatus,
    PoolState,
    TokenKind,
    why_over,
)
from gpupool.pool.reconcile import plan_host, plan_leader
from gpupool.pool.transitions import leases
from gpupool.pool.transitions.leases import goes_on
from gpupool.pool.transitions.servers import removals_of_others

ADA = TokenId("ada")
REVOKE = c.RevokeToken(ADA, "root")
REMOVE = c.RemoveServer(B, "root")
C = ServerId("c" * 12)
AT_ONCE = leases.ENDED_AT_ONCE_MAX


def up(pool: Pool, server: ServerId, incarnation: int, formats: int = VERSION) -> c.ServerUp:
    gpus = tuple(pool.state.servers[server].gpus.values())
    number = Incarnation(incarnation)
    return c.ServerUp(server, number, "x:1", "1", "2", "3", gpus, accounts=True, formats=formats)


def pool_of(formats: int = VERSION) -> Pool:
    pool = Pool(gpu_count=2)
    for server in (A, B):
        assert pool.do(up(pool, server, 1, formats)).ok
    return pool


def grant(pool: Pool, servers: Iterable[ServerId], user: str = "ada") -> LeaseId:
    """Grant a GiB on each of these servers, without a check of the whole table."""
    parts = tuple(
        Partition(each, GpuId(f"{each}-{pool.number % 2}"), GIB // 32) for each in servers
    )
    request = pool.request(count=len(parts), memory=GIB // 32)
    number = {each.server: pool.state.servers[each.server].incarnation for each in parts}
    command = c.Grant(request, user, TokenId(user), bytes(32), parts, number)
    plain = c.wrap(command, at_ms=pool.now_ms, ttl_ms=0)
    result = decode(Result, pool.machine.apply(pool.state.index + 1, plain))
    assert result.ok, result
    assert result.lease is not None
    return result.lease


def left(state: PoolState) -> int:
    """Return how much there is to end and to free."""
    leases = state.leases.values()
    parts = sum(part is not PartStatus.FREED for each in leases for part in each.parts.values())
    return parts + sum(each.held for each in leases)


def repeat(pool: Pool, command: c.Command) -> int:
    """Do a command until it is done; return how often. Each repetition must have an effect."""
    count, before = 1, left(pool.state)
    result = pool.do(command)
    while goes_on(pool.state, command, result):
        assert left(pool.state) < before
        count, before, result = count + 1, left(pool.state), pool.do(command)
    assert result.ok, result
    return count


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "ENDED_AT_ONCE_MAX", 3)


def test_a_revoked_token_gets_nothing_from_the_first_command_on() -> None:
    pool = pool_of()
    mine = [grant(pool, [A]) for _ in range(8)]
    other = grant(pool, [A], "bob")
    assert pool.do(REVOKE).ok
    state = pool.state
    assert [state.leases[each].held for each in mine] == [False] * 3 + [True] * 5
    assert state.revoking == (ADA,)
    assert {why_over(state, state.leases[each]) for each in mine} == {"token ada was revoked"}
    assert why_over(state, state.leases[other]) == ""
    plan = plan_host(state, A, Incarnation(1), dict.fromkeys([*mine, other], 1), {}, {})
    assert set(plan.kill) == set(mine), "their workers die now"
    request = pool.request(memory=GIB)
    part = (Partition(A, GpuId(f"{A}-0"), GIB),)
    late = c.Grant(request, "ada", ADA, bytes(32), part, {A: Incarnation(1)})
    assert pool.do(late).kind == RefusalKind.DENIED


def test_a_revocation_goes_on_until_no_lease_is_left_whoever_leads() -> None:
    pool = pool_of()
    mine = [grant(pool, [A, B] if number % 3 == 0 else [A]) for number in range(8)]
    other = grant(pool, [A], "bob")
    assert pool.do(REVOKE).ok
    ages = dict.fromkeys(pool.state.servers, 0.0)
    rounds = 0
    while plan := plan_leader(pool.state, ages, pool.now_ms, A):
        (command,) = plan
        assert pool.do(command).ok
        rounds += 1
    assert rounds == 2
    assert pool.state.revoking == ()
    assert [pool.state.leases[each].end_reason for each in mine] == ["token ada was revoked"] * 8
    assert pool.state.leases[other].held
    assert [act.kind for act in pool.state.acts].count("token-revoked") == 1
    before = pool.state
    assert pool.do(REVOKE).ok
    assert pool.state.leases is before.leases


def test_a_grant_that_comes_again_is_closed_once_its_token_is_revoked() -> None:
    pool = pool_of()
    for _ in range(8):
        grant(pool, [A])
    last = next(reversed(list(pool.state.leases.values())))
    assert pool.do(REVOKE).ok
    assert pool.state.leases[last.id].held
    request = pool.request(memory=GIB)
    again = c.Grant(
        c.Request(last.request, 1, memory=request.memory),
        "ada",
        ADA,
        bytes(32),
        last.partitions,
        {},
    )
    assert pool.do(again).kind == RefusalKind.CLOSED


def test_a_new_start_is_taken_once_the_leases_of_the_former_one_are_gone() -> None:
    pool = pool_of()
    mine = [grant(pool, [A, B] if number % 3 == 0 else [A]) for number in range(7)]
    start = up(pool, A, 2)
    assert pool.do(start).ok
    assert (pool.state.servers[A].incarnation, pool.state.servers[A].freeing) == (2, True)
    plan = plan_host(pool.state, A, Incarnation(2), dict.fromkeys(mine, 1), {}, {})
    assert (set(plan.kill), plan.propose) == (set(mine), ()), "nothing is served there"
    request, part = pool.request(memory=GIB), Partition(A, GpuId(f"{A}-0"), GIB)
    late = c.Grant(request, "bob", TokenId("bob"), bytes(32), (part,), {A: Incarnation(2)})
    refused = pool.do(late)
    assert (refused.kind, refused.why) == (
        "busy",
        "server a grants nothing now: leases of before are being ended",
    )
    left = [each for each in mine if each in pool.state.leases]
    assert [pool.state.leases[each].held for each in left] == [False, False, *[True] * 4][
        -len(left) :
    ]
    assert repeat(pool, start) == 2
    assert not pool.state.servers[A].freeing
    assert not any(
        lease.parts[A] is not PartStatus.FREED for lease in pool.state.leases.at(A).values()
    )
    assert {gpu.memory_granted for gpu in pool.state.servers[A].gpus.values()} == {0}
    assert {record.lease for record in pool.state.records if record.server == A} == set(mine)


def test_a_removed_server_gets_nothing_and_goes_once_its_leases_are_gone() -> None:
    pool = pool_of()
    mine = [grant(pool, [A, B] if number % 3 == 0 else [B]) for number in range(7)]
    server = pool.state.servers[B]
    assert server.voter
    assert pool.do(REMOVE).ok
    assert B in pool.state.removed
    assert not pool.state.servers[B].voter
    assert pool.do(up(pool, B, 2)).kind == RefusalKind.DENIED
    part = Partition(B, GpuId(f"{B}-0"), GIB)
    request = pool.request(memory=GIB)
    late = c.Grant(request, "bob", TokenId("bob"), bytes(32), (part,), {B: Incarnation(1)})
    refused = pool.do(late)
    assert (refused.kind, refused.why) == (
        "busy",
        "server b grants nothing now: leases of before are being ended",
    )
    assert plan_leader(pool.state, {}, pool.now_ms, A) == (c.RemoveServer(B, ""),)
    last = pool.do(c.RemoveServer(A, "root"))
    assert (last.ok, last.why) == (False, "it is the last server of the pool")
    assert repeat(pool, c.RemoveServer(B, "")) == 2
    assert B not in pool.state.servers
    assert plan_leader(pool.state, {}, pool.now_ms, A) == ()
    assert {record.lease for record in pool.state.records if record.server == B} == set(mine)
    assert not any(lease.held for lease in pool.state.leases.values())
    acts = [act for act in pool.state.acts if act.kind == "server-removed"]
    assert [(act.by, act.subject) for act in acts] == [("root", "b")]


def test_the_machine_of_a_removed_server_joins_again_under_its_name() -> None:
    pool = pool_of()
    for _ in range(7):
        grant(pool, [B])
    assert pool.do(REMOVE).ok
    far, token = Milliseconds(pool.now_ms + 10**9), TokenId("again")
    assert pool.do(c.CreateToken(token, TokenKind.SERVER, "s", bytes(32), far, "root")).ok
    assert pool.do(c.JoinServer(C, "b", "b:1", False, token)).ok
    found = pool.state.server_named("b")
    assert found is not None
    assert (found.id, found.voter) == (C, True)
    gpus = tuple(pool.state.servers[B].gpus.values())
    start = c.ServerUp(C, Incarnation(1), "b:1", "1", "2", "3", gpus, formats=VERSION)
    assert pool.do(start).ok
    assert all(gpu.clash for gpu in pool.state.servers[C].gpus.values()), "their memory is in use"
    repeat(pool, c.RemoveServer(B, ""))
    assert not any(gpu.clash for gpu in pool.state.servers[C].gpus.values())


def test_a_pool_is_recovered_by_entries_enough_for_all_leases() -> None:
    pool = pool_of()
    for _ in range(11):
        grant(pool, [A, B])
    for plain in removals_of_others(pool.state, A, at_ms=pool.now_ms):
        pool.machine.apply(pool.state.index + 1, plain)
    assert list(pool.state.servers) == [A]
    assert violations(pool.state) == []


@pytest.mark.parametrize("command", [REMOVE, "restart"])
def test_no_record_of_a_lease_is_lost_however_many_end(
    command: c.Command | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that freed more parts than the table keeps records of lost those beyond."""
    monkeypatch.setattr(leases, "ENDED_AT_ONCE_MAX", AT_ONCE)
    pool = pool_of()
    known: list[LeaseRecord] = []
    pool.machine.on_records = known.extend
    mine = [grant(pool, [B]) for _ in range(1100)]
    repeat(pool, up(pool, B, 2) if isinstance(command, str) else command)
    assert [record.lease for record in known] == mine


def books(state: PoolState) -> object:
    """Return the state that must not depend on how many leases end at once."""
    leases = [
        (each.id, each.parts, each.end_reason, each.ended_at) for each in state.leases.values()
    ]
    granted = {
        gpu.id: gpu.memory_granted for each in state.servers.values() for gpu in each.gpus.values()
    }
    records = [(record.lease, record.server, record.reason) for record in state.records]
    return leases, granted, state.usage, sorted(state.closed.items()), records, state.revoking


@given(
    where=st.lists(st.sampled_from([(A,), (B,), (A, B)]), max_size=12),
    users=st.lists(st.sampled_from(["ada", "bob"]), min_size=12, max_size=12),
    at_once=st.integers(1, 5),
    what=st.permutations(["revoke", "restart", "remove"]),
)
def test_leases_end_alike_in_batches_and_at_once(
    where: list[tuple[ServerId, ...]], users: list[str], at_once: int, what: list[str]
) -> None:
    found: list[object] = []
    for count in (at_once, 1000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(leases, "ENDED_AT_ONCE_MAX", count)
            pool = pool_of()
            for servers, user in zip(where, users, strict=False):
                grant(pool, servers, user)
            for each in what:
                command = {"revoke": REVOKE, "restart": None, "remove": REMOVE}[each]
                if command is None and B not in pool.state.servers:
                    continue
                repeat(pool, command or up(pool, B, 2))
            found.append(books(pool.state))
    assert found[0] == found[1]
