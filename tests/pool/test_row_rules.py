"""Statements of single rows of the table: moves, GPUs, tokens, silences, times away."""

from dataclasses import replace
from hashlib import sha256

import pytest

from gpupool.pool.model.clock_move import ClockMove
from gpupool.pool.model.forgetting import (
    Forgotten,
    digest_of,
    meant,
    pseudonym_of,
    without_names,
)
from gpupool.pool.model.ids import (
    GpuId,
    Incarnation,
    LeaseId,
    Milliseconds,
    RequestId,
    ServerId,
    TokenId,
    lease_name,
)
from gpupool.pool.model.relocation import Relocation, RelocationState
from gpupool.pool.model.results import RefusalKind, Result, refuse
from gpupool.pool.model.silences import Silence, silence_scope
from gpupool.pool.model.state import (
    Gpu,
    Lease,
    PartStatus,
    PoolState,
    Server,
    ServerStatus,
    Token,
    TokenKind,
    serves,
    with_changes,
)
from gpupool.pool.model.suspension import (
    SPAN_COUNT_MAX,
    Suspension,
    SuspensionHistory,
    SuspensionState,
    suspension_reason,
)
from gpupool.pool.model.tables import PersistentMap

ONE = Milliseconds(1)
A, B = ServerId("a" * 12), ServerId("b" * 12)
MOVE = ClockMove(Milliseconds(1000), Milliseconds(5000), LeaseId(9), LeaseId(4), (LeaseId(7),))


@pytest.mark.parametrize(
    ("lease", "due"), [(3, False), (4, False), (5, True), (7, False), (9, True), (10, False)]
)
def test_a_lease_is_due_after_those_that_are_moved(lease: int, due: bool) -> None:
    assert MOVE.is_due(LeaseId(lease)) is due


@pytest.mark.parametrize(
    ("at", "moved"),
    [(0, 0), (1, 1), (4000, 1), (4001, 1), (4002, 2), (5000, 1000), (9000, 5000)],
)
def test_a_moved_instant_is_as_far_from_now_and_never_none(at: int, moved: int) -> None:
    assert MOVE.moved(at) == moved


@pytest.mark.parametrize(
    ("at", "made_since", "past", "cut"),
    [
        (999, False, 999, 999),
        (1000, False, 1000, 1000),
        (1001, True, 1, 1000),
        (4500, True, 500, 1000),
        (5000, True, 1000, 1000),
        (5001, False, 5001, 1000),
    ],
)
def test_instants_of_the_accident_lie_between_the_two_times(
    at: int, made_since: bool, past: int, cut: int
) -> None:
    assert (MOVE.made_since(at), MOVE.past(at), MOVE.cut(at)) == (made_since, past, cut)


@pytest.mark.parametrize(
    ("state", "ending", "uncounted"),
    [
        (RelocationState.LEAVING, None, B),
        (RelocationState.GONE, A, A),
        (RelocationState.STAYS, B, B),
    ],
)
def test_one_part_of_a_relocated_lease_ends_and_one_does_not_count(
    state: RelocationState, ending: ServerId | None, uncounted: ServerId
) -> None:
    found = Relocation(state, 1, A, B, "root", ONE, ONE)
    assert (found.ending, found.uncounted) == (ending, uncounted)


GPU = Gpu(GpuId("g"), 0, "GPU", 100)


@pytest.mark.parametrize(("reserved", "capacity"), [(0, 100), (99, 1), (100, 0), (101, 0)])
def test_the_capacity_of_a_gpu_is_what_is_not_reserved(reserved: int, capacity: int) -> None:
    assert with_changes(GPU, memory_reserved=reserved).capacity == capacity


@pytest.mark.parametrize(
    ("reserved", "foreign", "granted", "free"),
    [(0, 0, 0, 100), (1, 2, 4, 93), (50, 25, 24, 1), (50, 25, 25, 0), (50, 25, 26, 0)],
)
def test_free_memory_is_what_nobody_has(
    reserved: int, foreign: int, granted: int, free: int
) -> None:
    gpu = with_changes(
        GPU, memory_reserved=reserved, memory_foreign=foreign, memory_granted=granted
    )
    assert gpu.memory_free == free


@pytest.mark.parametrize("field", ["fault", "clash", "drain_reason"])
def test_a_gpu_that_must_not_be_granted_has_nothing_free(field: str) -> None:
    gpu = with_changes(GPU, **{field: "why"})
    assert (gpu.unfit, gpu.memory_free, gpu.capacity) == ("why", 0, 100)
    assert GPU.unfit == ""


SERVER = Server(A, "a", "a:1", True, status=ServerStatus.UP, incarnation=Incarnation(3))


@pytest.mark.parametrize(
    ("server", "grantable"),
    [
        (SERVER, True),
        (with_changes(SERVER, status=ServerStatus.UNREACHABLE), False),
        (with_changes(SERVER, status=ServerStatus.JOINED), False),
        (with_changes(SERVER, drain_reason=""), False),
        (with_changes(SERVER, freeing=True), False),
    ],
)
def test_gpus_are_granted_of_servers_that_are_up_and_not_drained(
    server: Server, grantable: bool
) -> None:
    assert server.grantable is grantable


def table(*servers: Server) -> PoolState:
    return PoolState(servers=PersistentMap({each.id: each for each in servers}))


@pytest.mark.parametrize(
    ("server", "incarnation", "is_served"),
    [(A, 3, True), (A, 2, False), (A, 4, False), (B, 3, False), (ServerId("c"), 3, False)],
)
def test_only_the_latest_start_of_a_server_serves(
    server: ServerId, incarnation: int, is_served: bool
) -> None:
    freeing = with_changes(SERVER, id=B, freeing=True)
    assert serves(table(SERVER, freeing), server, Incarnation(incarnation)) is is_served


def test_servers_are_found_by_id_by_name_and_by_what_they_do() -> None:
    witness = with_changes(SERVER, id=B, name="b", voter=False, witness=True)
    state = table(SERVER, witness)
    assert (state.server_named("a"), state.server_named(B)) == (SERVER, witness)
    assert state.server_named("c") is None
    assert (state.voters(), state.witnesses()) == ((A,), (B,))
    leaving = replace(state, removed={B: ONE})
    assert leaving.server_named("b") is None
    assert leaving.server_named(B) is witness


LEASE = Lease(
    LeaseId(1),
    RequestId(b""),
    "ada",
    TokenId("t"),
    (),
    {A: PartStatus.HELD, B: PartStatus.FREED},
    b"",
    ONE,
)


def suspended(state: SuspensionState) -> Suspension:
    return Suspension(state, 1, "", "", ONE)


def test_a_part_counts_until_it_is_freed() -> None:
    assert LEASE.held
    assert (LEASE.is_charged(A), LEASE.is_charged(B)) == (True, False)
    assert not LEASE.is_charged(ServerId("c"))
    ending = with_changes(LEASE, parts={A: PartStatus.ENDING}, end_reason="done")
    assert not ending.held
    assert ending.is_charged(A)


@pytest.mark.parametrize("state", SuspensionState)
def test_a_suspended_lease_counts_nowhere(state: SuspensionState) -> None:
    lease = with_changes(LEASE, suspension=suspended(state))
    is_away = state is SuspensionState.SUSPENDED
    assert (lease.is_away, lease.is_charged(A)) == (is_away, not is_away)
    assert LEASE.is_away is False


TOKEN = Token(TokenId("t"), TokenKind.SERVER, "ada", b"", ONE, Milliseconds(1000))


@pytest.mark.parametrize(
    ("token", "now", "refusal"),
    [
        (TOKEN, 999, ""),
        (TOKEN, 1000, "token t has expired"),
        (replace(TOKEN, revoked_at=ONE), 999, "token t was revoked"),
        (replace(TOKEN, revoked_at=ONE), 1000, "token t was revoked"),
    ],
)
def test_a_token_is_refused_once_it_is_over(token: Token, now: int, refusal: str) -> None:
    assert token.refusal(now) == refusal


def test_a_token_is_spent_on_as_many_servers_as_it_is_for() -> None:
    one = TOKEN.spent_on(A)
    assert (TOKEN.is_spent, one.is_spent) == (False, True)
    assert (one.used_by, one.admitted) == (A, ())
    first = replace(TOKEN, uses=2).spent_on(A)
    both = first.spent_on(B)
    assert (first.is_spent, both.is_spent) == (False, True)
    assert (both.used_by, both.admitted) == (None, (A, B))
    for token, admitted in ((TOKEN, []), (one, [A]), (first, [A]), (both, [A, B])):
        assert [each for each in (A, B) if token.has_admitted(each)] == admitted


def test_a_change_of_a_row_leaves_the_former_one() -> None:
    changed = with_changes(GPU, name="other", index=4)
    assert (changed.name, changed.index, changed.memory_total) == ("other", 4, 100)
    assert (GPU.name, GPU.index) == ("GPU", 0)
    assert isinstance(changed, Gpu)


@pytest.mark.parametrize(
    ("server", "subject", "text"),
    [("", "", ""), ("a", "", "on a"), ("", "free", "(free)"), ("a", "free", "on a (free)")],
)
def test_the_scope_of_a_silence_names_what_it_has(server: str, subject: str, text: str) -> None:
    assert silence_scope(server, subject) == text
    silence = Silence("disk", server, subject, ONE, "why", "root", ONE)
    assert silence.key == ("disk", server, subject)


@pytest.mark.parametrize(("number", "name"), [(1, "0001"), (0x7F3A, "7f3a"), (0x12345, "12345")])
def test_a_lease_has_a_short_name(number: int, name: str) -> None:
    assert lease_name(LeaseId(number)) == name


def test_a_refusal_has_its_kind_as_text() -> None:
    assert refuse(RefusalKind.NO_QUORUM, "why") == Result(False, "no-quorum", "why", None)


def order(user: str, salt: bytes = b"salt") -> Forgotten:
    return Forgotten(salt, digest_of(salt, user), 1, ONE)


def test_a_pseudonym_is_the_beginning_of_a_salted_hash() -> None:
    found = order("ada")
    assert found.digest == sha256(b"saltada").digest()
    assert found.pseudonym == pseudonym_of(found.digest) == f"forgotten-{found.digest.hex()[:12]}"
    assert digest_of(b"a", "bob") != digest_of(b"b", "bob")


def test_only_orders_for_a_user_are_meant_the_first_one_first() -> None:
    first, other, second = order("ada", b"1"), order("bob"), order("ada", b"2")
    assert list(meant([first, other, second], "ada")) == [first, second]
    assert list(meant([first, other, second], "eve")) == []


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", ""),
        ("ada", "{ada}"),
        ("ada.", "{ada}."),
        ("ada...", "{ada}..."),
        ("adam, bada and Ada", "adam, bada and Ada"),
        ("'ada' (ada) [ada]; ada: bob, ada's", "'{ada}' ({ada}) [{ada}]; {ada}: {bob}, {ada}'s"),
    ],
)
def test_forgotten_names_are_replaced_where_they_are_words(text: str, wanted: str) -> None:
    orders = [order("ada"), order("bob")]
    names = {"ada": orders[0].pseudonym, "bob": orders[1].pseudonym}
    assert without_names(text, orders) == wanted.format(**names)


def span(begin: int, end: int) -> tuple[Milliseconds, Milliseconds]:
    return Milliseconds(begin), Milliseconds(end)


@pytest.mark.parametrize(
    ("since", "now", "away"), [(0, 9, False), (9, 9, False), (10, 9, False), (8, 9, True)]
)
def test_a_time_away_has_begun_and_lasts(since: int, now: int, away: bool) -> None:
    known = (span(1, 3),)
    history = SuspensionHistory(away_since=Milliseconds(since), away=known)
    wanted = (*known, span(since, now)) if away else known
    assert history.until(Milliseconds(now)) == wanted
    assert with_changes(LEASE, history=history).times_away(Milliseconds(now)) == wanted
    back = history.back(Milliseconds(now))
    assert (back.away, back.away_since) == (wanted, 0)
    assert back.away_ms == (3 if away else 2)


def test_a_lease_without_a_history_was_never_away() -> None:
    assert LEASE.times_away(ONE) == ()


@pytest.mark.parametrize("count", [SPAN_COUNT_MAX - 1, SPAN_COUNT_MAX])
def test_the_oldest_two_of_many_times_away_become_one_that_is_as_long(count: int) -> None:
    known = tuple(span(number * 10, number * 10 + 3) for number in range(1, count + 1))
    history = SuspensionHistory(away_since=Milliseconds(5000), away=known)
    found = history.until(Milliseconds(5004))
    assert len(found) == SPAN_COUNT_MAX
    assert found[-1] == span(5000, 5004)
    assert found[0] == (span(17, 23) if count == SPAN_COUNT_MAX else span(10, 13))
    assert sum(end - begin for begin, end in found) == 3 * count + 4


@pytest.mark.parametrize(
    ("by", "why", "text"),
    [
        ("", "", "by the pool"),
        ("ada", "", "by ada"),
        ("", "a window", "by the pool: a window"),
        ("ada", "lunch", "by ada: lunch"),
    ],
)
def test_the_reason_of_a_suspension_says_who_and_why(by: str, why: str, text: str) -> None:
    found = replace(suspended(SuspensionState.SUSPENDED), by=by, why=why)
    assert suspension_reason(found) == text
    assert suspension_reason(None) == ""
