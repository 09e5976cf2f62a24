"""A view's data on servers, leases, events and CAs, and the defaults of its fields."""

from dataclasses import replace
from typing import Any

import pytest
from tests.pool.policy_kit import GIB, ONE, A, B
from tests.pool.test_lease_moves import Moving, gpu
from tests.pool.test_view_rows import HEALTH

from gpupool.pool.model import commands as c
from gpupool.pool.model.formats import VERSION
from gpupool.pool.model.ids import GpuId, LeaseId, Milliseconds, ServerId, TokenId
from gpupool.pool.model.relocation import Relocation, RelocationState
from gpupool.pool.model.state import (
    Event,
    Partition,
    PoolState,
    Server,
    ServerStatus,
    with_changes,
)
from gpupool.pool.model.tables import PersistentMap
from gpupool.pool.policy.giving_way import DRIVER_TOO_OLD
from gpupool.pool.ports import RefusedBy, Role
from gpupool.pool.transitions.authorities import NAME_COUNT_MAX, fingerprint_of
from gpupool.pool.view import (
    ALARM,
    ClockView,
    LeaseView,
    PoolView,
    ServerView,
    SilenceView,
    Stay,
    WaitingView,
    has_quorum,
    readable,
    visible,
)
from gpupool.pool.view_building import (
    ViewSource,
    build_view,
    moved_last,
    raft_view,
    server_state,
    view_in_rows,
)

NEVER = Milliseconds(0)
LOST = "\N{REPLACEMENT CHARACTER}"


def view_of(state: PoolState) -> PoolView:
    return build_view(state, HEALTH, A, state.now)


def lease_of(pool: Moving) -> LeaseView:
    [lease] = view_of(pool.state).leases
    return lease


def with_gpu(state: PoolState, **changes: Any) -> PoolState:
    """Return the state with changed fields of the first server's first GPU."""
    server = state.servers[A]
    changed = replace(server.gpus[gpu(0)], **changes)
    return with_server(state, gpus={**server.gpus, changed.id: changed})


def with_server(state: PoolState, server: ServerId = A, **changes: Any) -> PoolState:
    changed = with_changes(state.servers[server], **changes)
    return with_changes(state, servers=state.servers.set(server, changed))


# --- fields ---------------------------------------------------------------------------------------


def test_a_part_that_is_freed_is_no_lease_of_its_gpu() -> None:
    """Its memory is free again, so a caller that expects a start would count it twice."""
    pool = Moving()
    lease = pool.hold((gpu(0), 40), (gpu(1, B), 40))
    assert pool.do(c.EndLease(lease, "its client disconnected")).ok
    assert pool.do(c.FreeLease(lease, B, ONE)).ok
    first, second = view_of(pool.state).servers
    assert (first.lease_count, first.gpus[0].leases) == (1, (lease,))
    assert (second.lease_count, second.gpus[1].leases) == (0, ())


def test_what_a_server_does_not_say_of_a_lease_is_nothing() -> None:
    lease = LeaseView(LeaseId(7), "0007", "eve", "", "", "held", "", (), Milliseconds(1), 9.0)
    assert (lease.requested_at, lease.ends_at, lease.kept_bytes) == (0, 0, 0)
    assert (lease.waits_to_resume, lease.is_away) == (False, False)
    assert Stay(A, Milliseconds(1)).until == 0
    waits = WaitingView("00", "eve", "", "", 1, 1.0, 0, 9.0, "busy")
    assert (waits.across, waits.priority, waits.filters, waits.servers) == (False, 0, (), ())


def test_what_a_server_does_not_say_of_the_pool_is_nothing() -> None:
    raft = raft_view(PoolState(), HEALTH)
    rows: tuple[tuple[()], ...] = ((), (), (), ())
    view = PoolView(1, "lab", "cluster", A, Milliseconds(1), "tls", raft, *rows)
    assert (view.policy_version, view.record_count, view.clock) == (0, 0, None)
    assert (view.warnings, view.authorities, view.silences) == ((), (), ())


def test_what_a_server_does_not_say_of_itself_is_not_known() -> None:
    texts = ("x:1", "idle", "", False, False, False, ONE, "1", "", "", dict[str, str](), ())
    server = ServerView(A, "a", *texts, 0, Milliseconds(1))
    assert (server.link_speed, server.silent_since, server.formats) == (0, 0, 0)
    assert (server.rdma, server.has_keys) == (False, None)


def test_a_suspended_lease_has_no_memory() -> None:
    parts = tuple(Partition(A, gpu(number), GIB) for number in range(2))
    lease = LeaseView(LeaseId(7), "0007", "eve", "", "", "held", "", parts, Milliseconds(1), 9.0)
    assert lease.memory == 2 * GIB
    assert replace(lease, is_away=True).memory == 0


@pytest.mark.parametrize(("age_s", "quorum"), [(0.0, True), (1.999, True), (2.0, False)])
def test_a_majority_counts_for_two_seconds(age_s: float, quorum: bool) -> None:
    assert has_quorum(replace(HEALTH, majority_age_s=age_s)) is quorum
    assert not has_quorum(replace(HEALTH, majority_age_s=age_s, leader=None))


def test_a_silence_covers_its_check_and_of_it_what_it_names() -> None:
    silence = SilenceView("disk", "a", "sda", Milliseconds(9), "why", "root", Milliseconds(1))
    assert silence.covers("disk", "a", "sda")
    assert not silence.covers("link", "a", "sda")
    assert not silence.covers("disk", "b", "sda")
    assert not silence.covers("disk", "a", "sdb")
    assert replace(silence, server="").covers("disk", "b", "sda")
    assert replace(silence, subject="").covers("disk", "a", "sdb")


def test_what_moves_a_cursor_is_not_shown() -> None:
    assert visible("a\x1b[2Jb\n") == f"a{LOST}[2Jb{LOST}"
    assert visible("plain") == "plain"


# --- servers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gib", "state"), [(0, "idle"), (1, "mix"), (76, "mix"), (77, "full"), (80, "full")]
)
def test_a_server_is_full_when_less_than_a_twentieth_is_free(gib: int, state: str) -> None:
    pool = Moving(gpu_count=1)
    if gib:
        pool.hold((gpu(0), gib))
    assert server_state(pool.state.servers[A]) == state


def test_one_gpu_that_has_room_keeps_a_server_from_being_full() -> None:
    pool = Moving(gpu_count=2)
    pool.hold((gpu(0), 80))
    assert server_state(pool.state.servers[A]) == "mix"
    pool.hold((gpu(1), 80))
    assert server_state(pool.state.servers[A]) == "full"


def test_a_server_that_is_drained_or_away_says_why() -> None:
    pool = Moving(gpu_count=1)
    pool.hold((gpu(0), 40))
    assert pool.do(c.DrainServer(A, "new \x1bfan", "root")).ok
    assert pool.do(c.ServerContact(B, ONE, reachable=False)).ok
    a, b = view_of(pool.state).servers
    assert (a.state, a.reason, a.silent_since) == ("drain", f"new {LOST}fan", 0)
    assert (b.state, b.reason) == ("down", "no contact for more than 10 s")
    assert b.silent_since == pool.state.now
    assert (a.leader, b.leader) == (True, False)
    assert (a.lease_count, b.lease_count) == (1, 0)
    assert [each.memory_free // GIB for each in (*a.gpus, *b.gpus)] == [40, 0]


@pytest.mark.parametrize(
    ("fault", "clash", "shown"),
    [("", "", ""), ("Xid 79", "", "Xid 79"), ("", "of b", "of b"), ("Xid 79", "of b", "Xid 79")],
)
def test_a_gpu_shows_its_fault_or_that_another_server_offers_it(
    fault: str, clash: str, shown: str
) -> None:
    state = with_gpu(Moving().state, fault=fault, clash=clash)
    first, second, *_ = view_of(state).servers[0].gpus
    assert (first.fault, second.fault) == (shown, "")


def test_gpus_are_shown_by_their_numbers_with_what_they_are() -> None:
    pool = Moving(gpu_count=3)
    state = with_gpu(pool.state, index=7, parent=gpu(1), drain_reason="h\not")
    *_, last = view_of(state).servers[0].gpus
    assert [each.index for each in view_of(state).servers[0].gpus] == [1, 2, 7]
    assert (last.id, last.mig, last.drain) == (gpu(0), True, f"h{LOST}ot")
    assert [each.mig for each in view_of(state).servers[0].gpus] == [False, False, True]


def test_a_server_is_new_until_it_comes_up_and_drained_when_all_its_gpus_are() -> None:
    state = Moving(gpu_count=2).state
    word = server_state(state.servers[A])
    assert word == "idle"
    state = with_gpu(state, drain_reason="hot")
    assert server_state(state.servers[A]) == "idle", "one of two"
    known = state.servers[A]
    gpus = {key: replace(each, drain_reason="hot") for key, each in known.gpus.items()}
    assert server_state(with_changes(known, gpus=gpus)) == "drain"
    assert server_state(with_changes(known, gpus={})) == "idle", "it has none"
    assert server_state(with_changes(known, status=ServerStatus.JOINED)) == "new"
    drained = with_changes(known, status=ServerStatus.JOINED, drain_reason="fan")
    assert server_state(drained) == "drain"
    assert server_state(with_changes(drained, status=ServerStatus.UNREACHABLE)) == "down"


@pytest.mark.parametrize(("more", "state"), [(0, "mix"), (1, "full")])
def test_a_twentieth_that_is_free_is_counted_to_the_byte(more: int, state: str) -> None:
    pool = Moving(gpu_count=1)
    pool.hold((gpu(0), 40))
    table = with_gpu(pool.state, memory_foreign=36 * GIB + more)
    assert server_state(table.servers[A]) == state


@pytest.mark.parametrize(
    ("status", "formats"),
    [(ServerStatus.JOINED, 0), (ServerStatus.UP, 9), (ServerStatus.UNREACHABLE, 9)],
)
def test_a_server_has_no_version_before_it_was_up(status: ServerStatus, formats: int) -> None:
    state = with_server(Moving().state, status=status, formats=9)
    server, _ = view_of(state).servers
    assert server.formats == formats
    is_away = status is ServerStatus.UNREACHABLE
    assert server.gpus[0].memory_free == (0 if is_away else 80 * GIB)


def test_a_gpu_that_another_server_shows_as_well_has_the_leases_of_its_own_server() -> None:
    pool = Moving()
    lease = pool.hold((gpu(0), 40), (gpu(1, B), 40))
    a, b = pool.state.servers[A], pool.state.servers[B]
    shared = replace(b.gpus[gpu(1, B)], index=9, clash="of b", memory_granted=0)
    state = with_server(pool.state, gpus={**a.gpus, shared.id: shared})
    server, other = view_of(state).servers
    assert [each.leases for each in server.gpus] == [(lease,), (), (), (), ()]
    assert [each.leases for each in other.gpus] == [(), (lease,), (), ()]


@pytest.mark.parametrize(
    ("leader", "name"), [(None, ""), (A, "a"), (B, "b"), (ServerId("e" * 12), "")]
)
def test_the_leader_is_shown_by_its_name_once_it_is_known(
    leader: ServerId | None, name: str
) -> None:
    health = replace(HEALTH, leader=leader, term=3, commit_index=5, applied_index=4, elections=2)
    shown = raft_view(Moving().state, health)
    assert (shown.role, shown.leader, shown.quorum) == ("leader", name, leader is not None)
    assert (shown.term, shown.commit_index, shown.applied_index) == (3, 5, 4)
    assert (shown.voters, shown.connected, shown.elections) == ((A, B), (B,), 2)


@pytest.mark.parametrize(
    ("role", "age_s", "status", "counts"),
    [
        (Role.LEADER, 0.1, ServerStatus.UP, True),
        (Role.LEADER, 2.1, ServerStatus.UP, False),
        (Role.FOLLOWER, 900.0, ServerStatus.UP, True),
        (Role.FOLLOWER, 900.0, ServerStatus.UNREACHABLE, False),
    ],
    ids=["answers", "silent", "followers do not talk", "down"],
)
def test_a_voter_that_is_not_in_touch_is_no_part_of_a_quorum(
    role: Role, age_s: float, status: ServerStatus, counts: bool
) -> None:
    state = with_server(Moving().state, B, status=status)
    health = replace(HEALTH, role=role, contact_age_s={B: age_s})
    assert raft_view(state, health).connected == ((B,) if counts else ())


# --- leases ---------------------------------------------------------------------------------------


def test_a_suspended_lease_shows_what_is_kept_of_it() -> None:
    pool = Moving()
    lease = pool.hold((gpu(0), 40))
    shown = lease_of(pool)
    assert (shown.state, shown.kept_bytes, shown.waits_to_resume) == ("held", 0, False)
    assert pool.do(c.SuspendLease(lease, "", "ada")).ok
    pool.let_go(lease)
    pool.hold((gpu(0), 60), user="bob")
    assert pool.do(c.ResumeLease(lease, "ada")).ok
    shown, _ = view_of(pool.state).leases
    assert (shown.state, shown.kept_bytes, shown.waits_to_resume) == ("suspended", GIB, True)


def test_only_of_a_lease_that_is_held_it_is_said_that_it_cannot_be_suspended() -> None:
    pool = Moving(emulated=False)
    lease = pool.hold((gpu(0), 40))
    pool.machine.state = with_server(pool.state, driver_version="470.1")
    assert (lease_of(pool).state, lease_of(pool).not_suspendable) == ("held", DRIVER_TOO_OLD)
    assert pool.do(c.EndLease(lease, "done", "ada")).ok
    shown = lease_of(pool)
    assert (shown.state, shown.reason, shown.not_suspendable) == ("ending", "done", "")


def test_a_lease_that_never_went_elsewhere_has_no_stays() -> None:
    pool = Moving()
    lease = pool.hold((gpu(0), 40))
    assert (lease_of(pool).stays, lease_of(pool).left) == ((), ())
    since = Milliseconds(pool.state.now)
    found = replace(pool.lease(lease), here_since=since)
    state = replace(pool.state, leases=pool.state.leases | {lease: found})
    [shown] = view_of(state).leases
    assert shown.stays == (Stay(A, since),)


@pytest.mark.parametrize(
    ("way", "state", "left"),
    [(RelocationState.LEAVING, "moving", []), (RelocationState.GONE, "held", [A])],
)
def test_a_lease_shows_what_the_server_that_it_left_has_yet_to_free(
    way: RelocationState, state: str, left: list[ServerId]
) -> None:
    pool = Moving()
    lease = pool.hold((gpu(0), 40), (gpu(0, B), 40))
    goes = Relocation(way, 1, A, B, "ada", pool.state.now, NEVER)
    found = replace(pool.lease(lease), relocation=goes)
    table = replace(pool.state, leases=pool.state.leases | {lease: found})
    [shown] = view_of(table).leases
    assert (shown.state, [part.server for part in shown.left]) == (state, left)
    assert [part.server for part in shown.partitions] == ([B] if left else [A, B])


# --- events ---------------------------------------------------------------------------------------


def shown_events(*kinds: str) -> list[str]:
    """Return the kinds of events of one lease, as people read them."""
    events = tuple(Event(Milliseconds(1), kind, "0001", "x") for kind in kinds)
    return [each.kind for each in view_of(PoolState(events=events)).events]


@pytest.mark.parametrize(
    ("kinds", "shown"),
    [
        (["lease-granted", "not-suspended"], ["lease-granted", "not-suspended"]),
        (["suspending", "not-suspended"], ["suspending", "not-suspended"]),
        (["moving", "not-suspended"], ["moving", "not-moved"]),
        (["moving", "moved", "not-suspended"], ["moving", "moved", "not-moved"]),
        (["moving", "suspending", "not-suspended"], ["moving", "suspending", "not-suspended"]),
        (["suspending", "moving", "not-suspended"], ["suspending", "moving", "not-moved"]),
    ],
)
def test_a_move_ends_when_a_server_cannot_suspend_the_lease(
    kinds: list[str], shown: list[str]
) -> None:
    assert shown_events(*kinds) == shown


def test_the_end_of_one_move_is_no_end_of_another() -> None:
    events = tuple(
        Event(Milliseconds(1), kind, lease, "x")
        for kind, lease in (("moving", "0001"), ("not-suspended", "0002"))
    )
    shown = view_of(PoolState(events=events)).events
    assert [each.kind for each in shown] == ["moving", "not-suspended"]
    assert moved_last(events) == {"0001"}


@pytest.mark.parametrize(
    ("kinds", "moved"),
    [
        (["moving", "not-suspended", "lease-granted"], True),
        (["moved"], True),
        (["not-moved"], True),
        (["suspending", "moved"], True),
        (["moved", "suspending"], False),
        (["suspending", "not-suspended"], False),
    ],
)
def test_the_latest_attempt_was_to_move_it_unless_it_was_to_suspend_it(
    kinds: list[str], moved: bool
) -> None:
    events = [Event(Milliseconds(1), kind, "0001", "x") for kind in kinds]
    assert moved_last(events) == ({"0001"} if moved else set())


@pytest.mark.parametrize(("subject", "text"), [("a", "x\n"), ("a\x1b", "x"), ("a\x1b", "x\n")])
def test_no_text_of_an_event_moves_a_cursor(subject: str, text: str) -> None:
    event = Event(Milliseconds(1), "joined", subject, text)
    [shown] = view_of(PoolState(events=(event,))).events
    assert (shown.subject, shown.text) == (visible(subject), visible(text))
    assert (shown.subject + shown.text).isprintable()


# --- warnings -------------------------------------------------------------------------------------


def test_the_cas_that_are_trusted_are_shown_with_the_servers_of_each() -> None:
    old, new = b"old CA", b"new CA"
    state = with_server(Moving().state, A, issuer=fingerprint_of(new))
    state = with_server(state, B, issuer=fingerprint_of(old))

    def shown(*authorities: bytes) -> list[tuple[str, bool, tuple[str, ...]]]:
        table = with_changes(state, authorities=authorities)
        return [(each.sha256, each.signs, each.servers) for each in view_of(table).authorities]

    of_old, of_new = fingerprint_of(old).hex(), fingerprint_of(new).hex()
    assert shown() == []
    assert shown(new) == [(of_new, True, ("a",))]
    assert shown(old) == [(of_old, True, ("b",))]
    assert shown(old, new) == [(of_old, False, ("b",)), (of_new, True, ("a",))]


def test_who_says_that_a_voter_does_not_count_is_named_if_it_is_known() -> None:
    gone = ServerId("e" * 12)
    state = Moving().state
    for teller, name in ((A, "a"), (gone, gone)):
        health = replace(HEALTH, refused_by={B: RefusedBy(teller, "it is old")})
        alarms = [w for w in build_view(state, health, A, 0).warnings if w.startswith(ALARM)]
        says = f"b does not count as a voter: server {name} says: it is old"
        assert alarms == [ALARM + says]


def upgraded_to(*formats: int) -> PoolState:
    """Return a pool of servers that know these versions of the formats."""
    state = Moving().state
    known = state.servers[A]
    servers: list[Server] = []
    for number, version in enumerate(formats):
        server = ServerId(f"{number:012}")
        servers.append(with_changes(known, id=server, name=f"s{number}", formats=version))
    return with_changes(state, servers=PersistentMap((each.id, each) for each in servers))


@pytest.mark.parametrize("more", [-1, 0, 1, 2])
def test_servers_that_are_not_upgraded_are_named_up_to_a_number(more: int) -> None:
    count = NAME_COUNT_MAX + more
    state = upgraded_to(*[VERSION - 1] * count, VERSION)
    [said] = [each for each in view_of(state).warnings if "not upgraded" in each]
    names = ", ".join(f"s{n} (formats {VERSION - 1})" for n in range(min(count, NAME_COUNT_MAX)))
    rest = f" and {more} more" if more > 0 else ""
    newest = f"the newest have formats {VERSION}"
    assert said == f"these servers are not upgraded yet: {names}{rest}; {newest}"


@pytest.mark.parametrize(
    ("authorities", "what"),
    [((), " of the pool's CA"), ((b"a",), " of the pool's CA"), ((b"a", b"b"), "s of both CAs")],
)
def test_the_keys_of_two_cas_are_asked_for_while_both_are_trusted(
    authorities: tuple[bytes, ...], what: str
) -> None:
    state = with_changes(upgraded_to(VERSION, VERSION), authorities=authorities)
    assert any(each.startswith(f"no server has the key{what}") for each in view_of(state).warnings)
    first, *_ = state.servers
    state = with_server(state, first, has_keys=True)
    only = f"only one server has the key{what}, s0: "
    assert any(each.startswith(only) for each in view_of(state).warnings)


def test_what_is_wrong_with_this_server_itself_is_said() -> None:
    state = Moving().state
    removed = replace(HEALTH, role=Role.REMOVED)
    text = "this server was removed from the pool"
    assert text in build_view(state, removed, A, 0).warnings
    assert text not in view_of(state).warnings
    found = build_view(state, HEALTH, A, 0, ["a gap"]).warnings
    assert found[0] == "the pool's table is wrong, which is a bug of gpupool: a gap"
    assert view_of(state).schema == 1


def test_warnings_end_with_what_is_wrong_with_the_time_and_with_what_the_server_adds() -> None:
    state = Moving().state
    clock = ClockView(NEVER, NEVER, NEVER, "held", 0.0, (), ("the time is held",))
    source = ViewSource(state, HEALTH, A, state.now, clock=clock, warnings=("its own",))
    view, _ = view_in_rows(source)
    assert view.warnings[-2:] == ("the time is held", "its own")
    assert view.clock is clock
    assert build_view(state, HEALTH, A, state.now, clock=clock).warnings[-1] == "the time is held"


def test_what_is_silenced_is_shown_until_it_is_over() -> None:
    pool = Moving()
    until = Milliseconds(pool.now_ms + 60_000)
    assert pool.do(c.SetSilence("disk", "a", "s\nda", "new\n disk", until, "root")).ok
    [shown] = view_of(pool.state).silences
    texts = (f"s{LOST}da", until, f"new{LOST} disk", "root", pool.state.now)
    assert shown == SilenceView("disk", "a", *texts)
    assert build_view(pool.state, HEALTH, A, until).silences == ()


def test_requests_are_shown_in_the_order_in_which_they_wait() -> None:
    pool = Moving()
    for user in ("ada", "bob"):
        pool.now_ms += 1000
        assert pool.do(c.Wait(pool.request(9), user, TokenId(user), "b\nusy")).ok
    shown = view_of(pool.state).waiting
    assert [(each.user, each.reason) for each in shown] == [
        ("ada", f"b{LOST}usy"),
        ("bob", f"b{LOST}usy"),
    ]
    assert [each.id for each in view_of(pool.state).servers[0].gpus] == [
        GpuId(f"{A}-{number}") for number in range(4)
    ]


@pytest.mark.parametrize(
    ("kept", "shown"),
    [
        ("1 GPU(s) on a to ada", "1 GPU on a to ada"),
        ("12 GPU(s) on a to ada", "12 GPUs on a to ada"),
        ("user token for root, good for 8759 h", "user token for root, good for 365 days"),
        ("server token for root, good for 48 h, for 8 servers",) * 2,
        ("good for 1 h", "good for 1 h"),
        ("server token for root, good for 0 h", "server token for root, good for less than 1 h"),
        ("good for 10 h", "good for 10 h"),
    ],
)
def test_texts_of_the_table_are_shown_as_people_write(kept: str, shown: str) -> None:
    assert readable(kept) == shown
