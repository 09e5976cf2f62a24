"""Reasons to refuse a grant, remains of a request that is over, and leases unknown to the books."""

from dataclasses import replace

import pytest
from tests.pool.policy_kit import GIB, ONE, A, B, Pool, parse

from gpupool.pool.model import commands as c
from gpupool.pool.model.ids import GpuId, Incarnation, LeaseId, Milliseconds, RequestId, TokenId
from gpupool.pool.model.policy import Usage
from gpupool.pool.model.results import Result
from gpupool.pool.model.state import Filter, Operator, Partition, PoolState, TokenKind, with_changes
from gpupool.pool.transitions import leases
from gpupool.pool.transitions.leases import (
    charge,
    count,
    encryption_of,
    fairness_refusal,
    lapse_waiting,
    policy_refusal,
    space_refusal,
)

FAR = Milliseconds(2**52)
MIB = 1 << 20
GONE = "a chosen GPU is no longer in the pool"
NOT_AS_MANY = "not as many partitions as requested GPUs"
MALFORMED = "malformed ticket or request id"


def gpu(index: int) -> GpuId:
    return GpuId(f"{A}-{index}")


def part(index: int, memory: int = GIB) -> Partition:
    return Partition(A, gpu(index), memory)


def answer(result: Result) -> tuple[bool, str, str]:
    return result.ok, result.kind, result.why


def claim(pool: Pool, *parts: Partition) -> c.Grant:
    """Return a claim of exactly these partitions."""
    request = replace(pool.request(len(parts), memory=GIB), across=True)
    incarnations = {A: ONE, B: ONE}
    return c.Grant(request, "ada", TokenId("ada"), bytes(32), parts, incarnations)


# --- granting -------------------------------------------------------------------------------------


def test_a_claim_is_granted_with_a_token_of_its_user_that_is_good() -> None:
    pool = Pool()
    viewer, old = TokenId("viewer"), TokenId("old")
    for token, kind, until in ((viewer, TokenKind.VIEWER, FAR), (old, TokenKind.USER, 1)):
        made = c.CreateToken(token, kind, "ada", bytes(32), Milliseconds(until), "root")
        assert pool.do(made).ok
    assert pool.do(c.RevokeToken(TokenId("cy"), "root")).ok
    for user, token, why in (
        ("ada", "none", "unknown token"),
        ("ada", "bob", "unknown token"),
        ("ada", viewer, "a viewer's token is good for looking only"),
        ("ada", old, "token old has expired"),
        ("cy", "cy", "token cy was revoked"),
    ):
        order = replace(claim(pool, part(0)), user=user, token=TokenId(token))
        assert answer(pool.do(order)) == (False, "denied", why)
    assert pool.do(claim(pool, part(0))).ok


@pytest.mark.parametrize(
    ("parts", "kind", "why"),
    [
        ((Partition(A, GpuId("none"), GIB),), "conflict", GONE),
        ((Partition(B, gpu(0), GIB),), "conflict", GONE),
        ((replace(part(0), server="none"),), "conflict", GONE),
        ((part(0), part(0)), "invalid", "two partitions on one physical GPU"),
        ((part(0, MIB - 1),), "invalid", "a partition has at least 1 MiB"),
        ((part(0, MIB),), "", ""),
        ((part(0, 80 * GIB),), "", ""),
        ((part(0, 80 * GIB + 1),), "busy", "GPU 0 of a is taken by now"),
        ((part(0), part(1)), "", ""),
        ((), "invalid", NOT_AS_MANY),
    ],
)
def test_partitions_are_of_gpus_that_the_pool_has(
    parts: tuple[Partition, ...], kind: str, why: str
) -> None:
    pool = Pool()
    assert answer(pool.do(claim(pool, *parts))) == (not kind, kind, why)


@pytest.mark.parametrize(
    ("number", "asked", "why"), [(256, 256, GONE), (257, 257, NOT_AS_MANY), (2, 1, NOT_AS_MANY)]
)
def test_a_claim_has_as_many_partitions_as_its_request_and_256_at_most(
    number: int, asked: int, why: str
) -> None:
    pool = Pool()
    parts = tuple(part(9 + each) for each in range(number))
    order = claim(pool, *parts)
    order = replace(order, request=replace(order.request, count=asked))
    assert pool.do(order).why == why


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"ticket_hash": bytes(31)}, MALFORMED),
        ({"ticket_hash": bytes(33)}, MALFORMED),
        ({"incarnations": {}}, "server a has restarted since its offer"),
        ({"incarnations": {A: Incarnation(2)}}, "server a has restarted since its offer"),
    ],
)
def test_a_claim_is_of_the_present_process_and_has_a_ticket(
    changes: dict[str, object], why: str
) -> None:
    pool = Pool()
    order = claim(pool, part(0))
    result = pool.do(replace(order, **changes))  # type: ignore[arg-type]
    assert (result.ok, result.why) == (False, why)
    assert result.kind == ("invalid" if why == MALFORMED else "conflict")


@pytest.mark.parametrize(
    ("changes", "kind", "why"),
    [
        ({"id": bytes(15)}, "invalid", MALFORMED),
        ({"id": bytes(17)}, "invalid", MALFORMED),
        ({"servers": ("b",)}, "invalid", "server a is not among those asked for"),
        ({"servers": ("b", "a")}, "", ""),
        ({"filters": (Filter("rack", Operator.EQUAL, ()),)}, "invalid", "malformed filters"),
        (
            {"filters": (Filter("server.labels.rack", Operator.EQUAL, ("2",)),)},
            "conflict",
            "GPU 0 of a does not match server.labels.rack = 2",
        ),
        ({"filters": (Filter("server.labels.rack", Operator.EQUAL, ("1",)),)}, "", ""),
    ],
)
def test_a_claim_is_of_what_its_request_asks_for(
    changes: dict[str, object], kind: str, why: str
) -> None:
    pool = Pool()
    order = claim(pool, part(0))
    order = replace(order, request=replace(order.request, **changes))  # type: ignore[arg-type]
    assert answer(pool.do(order)) == (not kind, kind, why)


@pytest.mark.parametrize("length", [199, 200, 201])
def test_what_a_request_says_for_people_is_cut_at_200_characters(length: int) -> None:
    pool = Pool()
    order = claim(pool, part(0))
    texts = {"client": "c" * length, "program": "p" * length}
    request = replace(order.request, **texts)  # type: ignore[arg-type]
    assert pool.do(c.Wait(request, "ada", TokenId("ada"), "r" * length)).ok
    entry, kept = pool.state.waiting[request.id], min(length, 200)
    said = (entry.request.client, entry.request.program, entry.reason)
    assert said == ("c" * kept, "p" * kept, "r" * kept)
    done = pool.do(replace(order, request=request))
    assert done.lease is not None
    lease = pool.state.leases[done.lease]
    assert (lease.client, lease.program) == ("c" * kept, "p" * kept)
    assert pool.do(c.EndLease(lease.id, "e" * length)).ok
    assert pool.state.leases[lease.id].end_reason == "e" * kept


def test_a_gpu_that_grants_nothing_says_why() -> None:
    pool = Pool()
    assert pool.do(c.DrainGpu(A, gpu(0), "hot", "root")).ok
    why = "GPU 0 of a grants nothing now: hot"
    assert answer(pool.do(claim(pool, part(0)))) == (False, "busy", why)
    server = pool.state.servers[A]
    for changes, why in (
        ({"drain_reason": "new fans"}, "new fans"),
        ({"freeing": True}, "leases of before are being ended"),
        ({"drain_reason": "new fans", "freeing": True}, "new fans"),
    ):
        row = with_changes(server, **changes)
        state = with_changes(pool.state, servers=pool.state.servers.set(A, row))
        refused = space_refusal(state, (part(1),))
        assert refused == Result(False, "busy", f"server a grants nothing now: {why}")
    assert pool.do(c.ServerContact(A, ONE, reachable=False)).ok
    refused = space_refusal(pool.state, (part(1),))
    assert refused == Result(False, "busy", "server a grants nothing now: unreachable")


def test_a_policy_that_is_not_in_force_refuses_nothing() -> None:
    pool = Pool()
    pool.grant("ada")
    policy = parse("[defaults]\nmax_leases = 1\n")
    state = with_changes(pool.state, policy=policy)
    assert policy_refusal(state, "ada", (part(0),)) is None
    state = with_changes(state, policy=replace(policy, version=1))
    refused = policy_refusal(state, "ada", (part(0),))
    assert refused is not None
    assert refused.kind == "busy"
    assert policy_refusal(state, "ada", (part(0),), lease_count=0) is None


# --- who goes first -------------------------------------------------------------------------------


def pool_where_bob_waits(seconds: int) -> Pool:
    """Return a pool in which bob has waited so long for GPU 1 of a, of which ada has a part."""
    pool = Pool(gpu_count=2)
    pool.hold((gpu(0), 40), user="cy")
    pool.hold((gpu(1), 30))
    request = replace(pool.request(fraction=1), servers=("a",))
    for _ in range(seconds // 5):
        assert pool.do(c.Wait(request, "bob", TokenId("bob"), "busy")).ok
        pool.now_ms += 5000
    pool.do(c.Tick())
    return pool


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ((part(0),), ""),
        ((part(1),), "bob has waited 65 s for these GPUs and goes first"),
        ((part(0), part(1)), "bob has waited 65 s for these GPUs and goes first"),
        ((part(1), part(0)), "bob has waited 65 s for these GPUs and goes first"),
    ],
)
def test_no_gpu_that_is_kept_for_another_is_granted(parts: tuple[Partition, ...], why: str) -> None:
    pool = pool_where_bob_waits(65)
    result = pool.do(claim(pool, *parts))
    assert answer(result) == (not why, "busy" if why else "", why)
    refused = fairness_refusal(pool_where_bob_waits(55).state, RequestId(b"x" * 16), "ada", parts)
    assert refused is None, "he has not waited for long yet"


# --- requests that are over -----------------------------------------------------------------------


def waiting(pool: Pool, number: int, user: str = "ada") -> RequestId:
    request = replace(pool.request(9), id=RequestId(bytes([number]) * 16))
    assert pool.do(c.Wait(request, user, TokenId(user), "busy")).ok
    return request.id


@pytest.mark.parametrize("how", ["waits", "has a lease", "is closed", "is malformed", "is new"])
def test_only_a_request_that_the_table_does_not_know_inherits_a_place(how: str) -> None:
    pool = Pool()
    first = waiting(pool, 1)
    pool.now_ms += 1000
    heir = RequestId(bytes([2]) * 16)
    if how == "waits":
        waiting(pool, 2)
    elif how == "has a lease":
        lease = pool.grant("ada")
        heir = pool.state.leases[lease].request
    elif how == "is closed":
        assert pool.do(c.CancelRequest(heir, "no more", "ada")).ok
    elif how == "is malformed":
        heir = RequestId(bytes(15))
    before = dict(pool.state.waiting.items())
    pool.now_ms += 1000
    assert pool.do(c.CancelRequest(first, "gave up", "ada", heir)).ok
    entry = before.pop(first)
    if how == "is new":
        request = replace(entry.request, id=heir)
        renewed = Milliseconds(pool.now_ms)
        before[heir] = replace(entry, request=request, renewed=renewed)
    assert dict(pool.state.waiting.items()) == before
    assert pool.state.closed[first] == "the request was cancelled"


def test_the_latest_requests_that_are_over_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "CLOSED_REQUEST_COUNT_MAX", 2)
    pool = Pool()
    ids = [RequestId(bytes([number]) * 16) for number in range(4)]

    def known_after(number: int) -> list[RequestId]:
        assert pool.do(c.CancelRequest(ids[number], "no more", "ada")).ok
        return list(pool.state.closed)

    assert known_after(0) == ids[:1]
    assert known_after(1) == ids[:2]
    assert known_after(0) == [ids[1], ids[0]], "closed anew, it is the latest"
    assert known_after(2) == [ids[0], ids[2]]
    assert known_after(3) == [ids[2], ids[3]]


@pytest.mark.parametrize("length", [0, 15, 17])
def test_a_malformed_request_cannot_be_cancelled(length: int) -> None:
    pool = Pool()
    result = pool.do(c.CancelRequest(RequestId(bytes(length)), "no more"))
    assert answer(result) == (False, "invalid", "malformed request id")
    assert not pool.state.closed


@pytest.mark.parametrize(("pause_ms", "waits"), [(14_999, True), (15_000, True), (15_001, False)])
def test_a_request_that_nobody_renews_lapses(pause_ms: int, waits: bool) -> None:
    pool = Pool()
    request = waiting(pool, 1)
    pool.now_ms += pause_ms
    pool.do(c.Tick())
    assert (request in pool.state.waiting) == waits
    assert lapse_waiting(pool.state) is pool.state


# --- the books ------------------------------------------------------------------------------------


def test_what_the_table_does_not_have_is_not_charged() -> None:
    pool = Pool()
    unknown = (
        Partition(A, GpuId("none"), GIB),
        replace(part(0), server="none"),
    )
    assert charge(pool.state, unknown, sign=1) == pool.state
    charged = charge(pool.state, (*unknown, part(0)), sign=1)
    assert charged.servers[A].gpus[gpu(0)].memory_granted == GIB
    assert charge(charged, (*unknown, part(0)), sign=-1) == pool.state


def test_who_holds_nothing_is_not_in_the_books() -> None:
    one, two = Usage(1, 2, 1), Usage(3, 4, 1)
    state = count(count(PoolState(), "ada", one, sign=1), "bob", two, sign=1)
    assert state.usage == {"ada": one, "bob": two}
    assert count(state, "ada", one, sign=-1).usage == {"bob": two}
    assert count(state, "ada", two, sign=1).usage == {"ada": Usage(4, 6, 2), "bob": two}


def test_data_of_a_lease_is_encrypted_as_its_policy_or_else_the_pool_says() -> None:
    pool = Pool()
    lease = pool.grant("ada")
    assert encryption_of(pool.state, lease) == "tls"
    changed = with_changes(pool.state.leases[lease], data_encryption="off")
    state = with_changes(pool.state, leases=pool.state.leases.set(lease, changed))
    assert encryption_of(state, lease) == "off"
    assert encryption_of(state, LeaseId(9999)) == "tls"


# --- whose a request is ---------------------------------------------------------------------------


def test_a_request_that_waits_or_has_a_lease_is_its_users_alone() -> None:
    pool = Pool()
    order = claim(pool, part(0))
    request, wait = order.request, c.Wait(order.request, "ada", TokenId("ada"), "busy")
    foreign = Result(False, "denied", "this request is another user's")

    def refused() -> None:
        before = pool.state
        assert pool.do(replace(order, user="bob", token=TokenId("bob"))) == foreign
        assert pool.do(c.CancelRequest(request.id, "no more", "bob")) == foreign
        assert pool.state.leases is before.leases
        assert pool.state.waiting == before.waiting

    assert pool.do(wait) == Result(True)
    refused()
    assert pool.do(replace(wait, user="bob", token=TokenId("bob"))) == foreign
    done = pool.do(order)
    assert done.ok
    refused()
    assert pool.do(order) == Result(True, lease=done.lease), "its answer was lost"
    no_more = Result(False, "closed", "the request waits no more")
    assert pool.do(wait) == no_more
    assert done.lease is not None
    cancel = c.CancelRequest(request.id, "no more", "ada")
    assert pool.do(cancel) == Result(True, lease=done.lease)
    assert pool.state.leases[done.lease].end_reason == "no more"
    assert pool.do(order) == Result(False, "closed", "its lease has ended: no more")
    pool.end(done.lease)
    assert pool.do(order) == Result(False, "closed", "its lease has ended: no more")
    assert pool.do(wait) == no_more


@pytest.mark.parametrize(
    ("user", "token", "why"),
    [
        ("ada", "none", "unknown, expired or revoked token"),
        ("ada", "bob", "unknown, expired or revoked token"),
        ("cy", "cy", "unknown, expired or revoked token"),
        ("ada", "viewer", "a viewer's token is good for looking only"),
        ("ada", "ada", ""),
    ],
)
def test_a_request_waits_with_a_token_of_its_user_that_is_good(
    user: str, token: str, why: str
) -> None:
    pool = Pool()
    made = c.CreateToken(TokenId("viewer"), TokenKind.VIEWER, "ada", bytes(32), FAR, "root")
    assert pool.do(made).ok
    assert pool.do(c.RevokeToken(TokenId("cy"), "root")).ok
    request = pool.request()
    result = pool.do(c.Wait(request, user, TokenId(token), "busy"))
    assert answer(result) == (not why, "denied" if why else "", why)
    assert (request.id in pool.state.waiting) == (not why)


@pytest.mark.parametrize("length", [15, 17])
def test_a_malformed_request_does_not_wait(length: int) -> None:
    pool = Pool()
    malformed = Result(False, "invalid", "malformed request")
    request = replace(pool.request(), id=RequestId(bytes(length)))
    assert pool.do(c.Wait(request, "ada", TokenId("ada"), "busy")) == malformed
    request = replace(pool.request(), filters=(Filter("none", Operator.EQUAL, ()),))
    assert pool.do(c.Wait(request, "ada", TokenId("ada"), "busy")) == malformed


def test_so_many_requests_wait_and_those_can_be_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "WAITING_COUNT_MAX", 3)
    monkeypatch.setattr(leases, "USER_WAITING_COUNT_MAX", 2)
    pool = Pool()
    requests = [pool.request() for _ in range(4)]

    def wait(number: int, user: str) -> Result:
        return pool.do(c.Wait(requests[number], user, TokenId(user), "busy"))

    assert [wait(number, "ada").ok for number in (0, 1)] == [True, True]
    assert wait(2, "ada") == Result(False, "busy", "2 requests of ada wait already")
    assert wait(2, "bob").ok
    assert wait(3, "bob") == Result(False, "busy", "too many requests wait already")
    pool.now_ms += 1000
    assert wait(1, "ada").ok
    entry = pool.state.waiting[requests[1].id]
    assert (entry.since, entry.renewed) == (pool.now_ms - 1000, pool.now_ms)


def test_a_refusal_names_the_one_for_whom_just_these_gpus_are_kept() -> None:
    pool = Pool(gpu_count=2, emulated=True)
    place = GpuId(f"{B}-0")
    away = pool.hold((place, 80), user="cy")
    assert pool.do(c.SuspendLease(away, "", "cy")).ok
    suspension = pool.state.leases[away].suspension
    assert suspension is not None
    assert pool.do(c.ConfirmSuspended(away, B, ONE, suspension.number, 0)).ok
    pool.hold((place, 30), user="dee")
    assert pool.do(c.ResumeLease(away, "cy")).ok
    pool.hold((gpu(0), 40), user="dee")
    pool.hold((gpu(1), 30), user="dee")
    pool.now_ms += 5000
    request = replace(pool.request(fraction=1), servers=("a",))
    for _ in range(13):
        assert pool.do(c.Wait(request, "bob", TokenId("bob"), "busy")).ok
        pool.now_ms += 5000
    pool.do(c.Tick())
    for_cy = "cy has waited 70 s for these GPUs and goes first"
    for_bob = "bob has waited 65 s for these GPUs and goes first"
    assert pool.do(claim(pool, Partition(B, place, GIB))).why == for_cy
    assert pool.do(claim(pool, part(1))).why == for_bob
    assert pool.do(claim(pool, part(0), Partition(B, place, GIB))).why == for_cy
    assert pool.do(claim(pool, part(1), Partition(B, place, GIB))).why == for_cy
