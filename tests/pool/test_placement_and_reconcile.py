"""GPUs that are offered and chosen, the order of requests, and a server's unasked duties."""

from dataclasses import replace

import pytest
from tests.pool.pool_strategies import GIB, SERVERS, TOKENS, founding, server_up

from gpupool.pool.model import commands as c
from gpupool.pool.model.codec import CodecError, decode, encode
from gpupool.pool.model.commands import wrap
from gpupool.pool.model.ids import (
    GpuId,
    Incarnation,
    LeaseId,
    Milliseconds,
    RequestId,
    ServerId,
    TokenId,
)
from gpupool.pool.model.results import Result
from gpupool.pool.model.state import (
    Filter,
    Gpu,
    Operator,
    Partition,
    PoolState,
    Request,
    Server,
    ServerStatus,
    TokenKind,
)
from gpupool.pool.ports import RaftHealth, Role
from gpupool.pool.reconcile import STOPPING, is_drained_by_stop, plan_host, plan_leader
from gpupool.pool.scheduling.fairness import reserved_for_others
from gpupool.pool.scheduling.filters import parse_filter
from gpupool.pool.scheduling.offers import NoOffer, Offer
from gpupool.pool.scheduling.placement import make_offer
from gpupool.pool.scheduling.ranking import Choice, rank
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.pool.view_building import build_view

ONE = Incarnation(1)


class Table:
    """A founded pool, with commands applied at chosen times."""

    def __init__(self) -> None:
        self.machine = PoolMachine(PoolState())
        self.now_ms = 1000
        for command in founding():
            assert self.apply(command).ok

    @property
    def state(self) -> PoolState:
        return self.machine.state

    def apply(self, command: c.Command, after_ms: int = 0) -> Result:
        self.now_ms += after_ms
        plain = wrap(command, at_ms=self.now_ms, ttl_ms=0)
        return decode(Result, self.machine.apply(self.state.index + 1, plain))

    def offers(self, request: Request) -> list[Offer]:
        answers = [make_offer(self.state, s, request) for s in self.state.servers.values()]
        return [answer for answer in answers if isinstance(answer, Offer)]

    def refusal(self, request: Request, server: ServerId = SERVERS[0]) -> NoOffer:
        answer = make_offer(self.state, self.state.servers[server], request)
        assert isinstance(answer, NoOffer)
        return answer

    def choices(self, request: Request) -> list[Choice]:
        return rank(self.offers(request), request)

    def grant(self, request: Request, user: str = "ada") -> Result:
        [choice, *_] = self.choices(request)
        return self.apply(self.claim(request, choice.partitions, user))

    def claim(
        self, request: Request, partitions: tuple[Partition, ...], user: str = "ada"
    ) -> c.Grant:
        incarnations = {s.id: s.incarnation for s in self.state.servers.values()}
        return c.Grant(request, user, TOKENS[user], bytes(32), partitions, incarnations)


def wanted(number: int, count: int = 1, fraction: float = 0.0, **more: object) -> Request:
    request = Request(RequestId(bytes([number]) * 16), count, fraction)
    return replace(request, **more)  # pyright: ignore[reportArgumentType]


def test_the_best_fit_comes_first() -> None:
    table = Table()
    # 7 GiB fit exactly into the small GPU of each server.
    [first, *_] = table.choices(wanted(1, memory=7 * GIB))
    assert [p.gpu for p in first.partitions] == [f"{SERVERS[0]}-0"]
    assert first.left_over == 0
    assert table.grant(wanted(1, memory=7 * GIB)).ok
    [second, *_] = table.choices(wanted(2, memory=7 * GIB))
    assert second.server == SERVERS[1]


def test_a_fraction_means_the_same_bytes_on_each_gpu() -> None:
    table = Table()
    [choice, *_] = table.choices(wanted(1, 2, 0.5))
    assert len({part.memory for part in choice.partitions}) == 1


def test_instances_of_one_card_count_once() -> None:
    table = Table()
    assert table.choices(wanted(1, 3, 0.1))
    assert not table.choices(wanted(1, 4, 0.1))
    assert table.refusal(wanted(1, 4, 0.1)).kind == "never"
    server = SERVERS[0]
    parts = tuple(Partition(server, GpuId(f"{server}-{n}"), GIB) for n in (2, 3))
    result = table.apply(table.claim(wanted(1, 2, 0.1), parts))
    assert (result.kind, result.why) == ("invalid", "two partitions on one physical GPU")


def test_a_grant_of_no_partition_is_refused() -> None:
    table = Table()
    nothing = table.apply(table.claim(wanted(1, 0), ()))
    assert (nothing.ok, nothing.kind) == (False, "invalid")


def test_across_takes_as_few_servers_as_possible() -> None:
    table = Table()
    [choice] = table.choices(wanted(1, 7, 0.1, across=True))
    assert len(choice.offers) == 3
    assert len(choice.partitions) == 7
    [choice] = table.choices(wanted(1, 5, 0.1, across=True))
    assert len(choice.offers) == 2
    assert set(choice.incarnations) == {p.server for p in choice.partitions}
    assert len(table.choices(wanted(1, 3, 0.1, across=True))) == 3  # one server is preferred
    assert table.refusal(wanted(1, 10, 0.1, across=True)).kind == "never"


def test_a_whole_gpu_tolerates_a_display_and_no_more() -> None:
    table = Table()
    server, gpu = SERVERS[0], GpuId(f"{SERVERS[0]}-1")
    request = wanted(1, 1, 1.0, servers=("a",))
    for foreign, expected in ((GIB, 79 * GIB), (10 * GIB, 0)):
        table.apply(c.ReportGpus(server, ONE, {gpu: c.GpuReading(foreign, "")}))
        offered = {g.gpu: g.memory for offer in table.offers(request) for g in offer.gpus}
        assert offered.get(gpu, 0) == expected


def filtered(*texts: str) -> tuple[Filter, ...]:
    return tuple(parse_filter(text) for text in texts)


def test_filters_hold_in_offers_and_in_grants() -> None:
    table = Table()
    table.apply(c.LabelServer(SERVERS[1], {"rack": "r3"}, (), "root"))
    request = wanted(1, 1, 0.5, filters=filtered("gpu.name = large", "server.labels.rack = r3"))
    [choice] = table.choices(request)
    assert [part.gpu for part in choice.partitions] == [f"{SERVERS[1]}-1"]
    refusal = table.refusal(request)
    assert (refusal.kind, refusal.why) == ("busy", "no GPU matches; another server has some")
    elsewhere = table.refusal(wanted(3, 1, 0.5, servers=("b",)))
    assert (elsewhere.kind, elsewhere.why) == ("busy", "not among the servers asked for")
    assert elsewhere.never_here
    # Between the offer and the claim the label is taken away.
    table.apply(c.LabelServer(SERVERS[1], {}, ("rack",), "root"))
    result = table.apply(table.claim(request, choice.partitions))
    assert result.kind == "conflict"
    assert result.why == "GPU 1 of b does not match server.labels.rack = r3"
    assert table.refusal(request).kind == "never"
    other = wanted(2, 1, 0.5, servers=("a",))
    assert table.apply(table.claim(other, choice.partitions)).kind == "invalid"


def test_malformed_filters_are_refused() -> None:
    table = Table()
    [choice, *_] = table.choices(wanted(1, 1, 0.5))
    wrong = wanted(1, 1, 0.5, filters=(Filter("gpu.memory", Operator.LESS, ("1e3",)),))
    assert table.apply(table.claim(wrong, choice.partitions)).kind == "invalid"
    assert table.apply(c.Wait(wrong, "ada", TOKENS["ada"], "busy")).kind == "invalid"


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (wanted(1, 4, 0.5), "the largest server, a, has 3 GPUs; with --across there are 9"),
        (wanted(1, 10, 0.5), "the largest server, a, has 3 GPUs"),
        (wanted(1, 10, 0.5, across=True), "all servers together have 9 GPUs"),
        (wanted(1, 1, memory=90 * GIB), "the largest GPU of the pool has 80.0 GiB"),
        (
            wanted(1, 2, memory=20 * GIB),
            "the most on one server is 1 GPU of that size (a); with --across there are 3",
        ),
        (
            wanted(1, 4, memory=20 * GIB, across=True),
            "all servers together have 3 GPUs of that size; 4 GPUs could have 10.0 GiB each",
        ),
        (
            wanted(1, 4, memory=20 * GIB, across=True, servers=("a", "b")),
            "these servers together have 2 GPUs of that size; 4 GPUs could have 10.0 GiB each",
        ),
        (
            wanted(1, 3, memory=20 * GIB, servers=("a", "b")),
            "the most on one server is 1 GPU of that size (a); 3 GPUs could have 7.0 GiB each",
        ),
        (wanted(1, 1, 0.5, servers=("zz",)), "the pool has no server named zz"),
        (wanted(1, 1, 0.0000001), "that is less than 1 MiB, the smallest partition, of 80.0 GiB"),
        (
            wanted(1, 2, 0.5, filters=filtered("gpu.name = large")),
            "the largest server, a, has 1 matching GPU; with --across there are 3",
        ),
        (
            wanted(1, 1, 0.5, filters=filtered("gpu.name = H200")),
            "no GPU of the pool has gpu.name = H200; known values: Large, MIG, Small",
        ),
        (
            wanted(1, 1, 0.5, filters=filtered("gpu.name = Large", "gpu.memory > 200G")),
            "no GPU of the pool that passes the filters before it has gpu.memory > 200GiB; "
            "known values: 80GiB",
        ),
        (
            wanted(1, 1, 0.5, filters=filtered("gpu.memory > 8G", "server.labels.rack = 3")),
            "no GPU of the pool that passes the filters before it has server.labels.rack = 3; "
            "no server says that of itself",
        ),
    ],
)
def test_what_can_never_fit_says_what_could(asked: Request, why: str) -> None:
    table = Table()
    for server in SERVERS:
        refusal = table.refusal(asked, server)
        assert (refusal.kind, refusal.why) == ("never", why)


def test_the_table_keeps_what_an_operator_says_of_a_server() -> None:
    table = Table()
    server = SERVERS[0]

    def start(incarnation: int, **labels: str) -> dict[str, str]:
        up = replace(server_up(server, Incarnation(incarnation), 4, False), labels=labels)
        assert table.apply(up).ok
        return table.state.servers[server].labels

    assert start(2, rack="1", owner="physics") == {"rack": "1", "owner": "physics"}
    assert table.apply(c.LabelServer(server, {"rack": "2"}, ("owner",), "root")).ok
    # The same command line at its next start changes nothing, another one does.
    assert start(3, rack="1", owner="physics") == {"rack": "2"}
    assert start(4, rack="3") == {"rack": "3"}
    assert start(5) == {"rack": "3"}
    assert start(6, **{"not a name": "x", "fine": "y"}) == {"rack": "3", "fine": "y"}
    refused: list[tuple[dict[str, str], str]] = [
        ({"not a name": "x"}, "invalid"),
        ({"name": "tab\t"}, "invalid"),
        ({f"n{n}": "" for n in range(31)}, "denied"),
    ]
    for labels, kind in refused:
        assert table.apply(c.LabelServer(server, labels, (), "root")).kind == kind
    assert table.state.servers[server].labels == {"rack": "3", "fine": "y"}
    assert table.apply(c.LabelServer(ServerId("z"), {}, (), "root")).kind == "never"


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (c.DrainServer(SERVERS[0], "repair", "root"), "grants nothing now: repair"),
        (c.ServerContact(SERVERS[0], ONE, reachable=False), "grants nothing now: unreachable"),
    ],
)
def test_servers_that_grant_nothing_say_why(command: c.Command, why: str) -> None:
    table = Table()
    [choice, *_] = table.choices(wanted(1, 1, 0.5, servers=("a",)))
    table.apply(command)
    refusal = table.refusal(wanted(1, 1, 0.5))
    assert (refusal.kind, refusal.why) == ("busy", why)
    assert table.apply(table.claim(wanted(1, 1, 0.5), choice.partitions)).kind == "busy"


def test_a_starved_request_keeps_what_it_needs() -> None:
    table = Table()
    for number in range(3):
        assert table.grant(wanted(10 + number, 1, 1.0, servers=(SERVERS[number],))).ok
    big = wanted(1, 3, 0.9, servers=("a",))
    assert table.apply(c.Wait(big, "bob", TOKENS["bob"], "busy")).ok
    for _ in range(7):
        assert table.apply(c.Wait(big, "bob", TOKENS["bob"], "busy"), 10_000).ok
    kept = reserved_for_others(table.state, RequestId(bytes(16)))
    assert kept is not None
    assert {server for server, _ in kept.gpus} == {SERVERS[0]}
    assert len(kept.gpus) == 3
    [choice, *_] = table.choices(wanted(2, 1, 0.1))
    assert kept.gpus.isdisjoint({(part.server, part.gpu) for part in choice.partitions})
    large = (SERVERS[0], GpuId(f"{SERVERS[0]}-1"))
    assert large in kept.gpus
    late = table.apply(table.claim(wanted(3), (Partition(*large, GIB),)))
    assert late.kind == "busy"
    assert "goes first" in late.why
    # It lapses when nobody renews it.
    table.apply(c.Tick(), 16_000)
    assert reserved_for_others(table.state, RequestId(bytes(16))) is None


def test_what_is_kept_for_a_starved_request_matches_its_filters() -> None:
    table = Table()
    for number, server in enumerate(SERVERS):
        assert table.grant(wanted(10 + number, 1, 1.0, servers=(server,))).ok
    # The large GPU is not what it waits for, and two instances of one card are one.
    picky = wanted(1, 2, 0.9, filters=filtered("gpu.name != large", "server.name = b,c"))
    for _ in range(8):
        assert table.apply(c.Wait(picky, "bob", TOKENS["bob"], "busy"), 10_000).ok
    kept = reserved_for_others(table.state, RequestId(bytes(16)))
    assert kept is not None
    assert kept.gpus == {(SERVERS[1], GpuId(f"{SERVERS[1]}-{n}")) for n in (0, 2)}


def test_a_cancelled_request_hands_its_place_to_its_successor() -> None:
    table = Table()
    table.apply(c.Wait(wanted(1, 1, 1.0), "ada", TOKENS["ada"], "busy"))
    since = table.state.waiting[wanted(1).id].since
    heir = wanted(2).id
    cancel = c.CancelRequest(wanted(1).id, "uncertain", "ada", heir)
    for _ in range(2):  # the answer may be lost
        assert table.apply(cancel, 1000).ok
        assert list(table.state.waiting) == [heir]
        assert table.state.waiting[heir].since == since
    assert table.grant(replace(wanted(1, 1, 0.5), id=wanted(1).id)).kind == "closed"


def test_a_cancelled_request_is_refused_from_then_on() -> None:
    table = Table()
    assert table.grant(wanted(1, 1, 0.5)).ok
    assert table.apply(c.CancelRequest(wanted(1).id, "gave up", "ada")).ok
    assert table.apply(c.CancelRequest(wanted(2).id, "gave up", "ada")).ok
    for number in (1, 2):
        answer = table.grant(wanted(number, 1, 0.5))
        assert (answer.ok, answer.kind) == (False, "closed")
    assert table.grant(wanted(3, 1, 0.5)).ok


def test_what_never_was_stays_so_when_the_clock_is_set_back() -> None:
    table = Table()
    assert table.grant(wanted(1, 1, 0.5)).ok
    (before,) = table.state.leases.values()
    assert table.apply(c.SetClock(Milliseconds(table.state.now - 500), 0, "root"), 9_000_000).ok
    (lease,) = table.state.leases.values()
    assert lease.granted_at < before.granted_at
    assert (lease.ended_at, lease.ends_at, lease.notice_at, lease.requested_at) == (0, 0, 0, 0)


def test_requests_belong_to_their_users() -> None:
    table = Table()
    assert table.grant(wanted(1, 1, 0.5)).ok
    table.apply(c.Wait(wanted(2, 1, 0.5), "ada", TOKENS["ada"], "busy"))
    for number in (1, 2):
        assert table.grant(wanted(number, 1, 0.5), "bob").kind == "denied"
        assert table.apply(c.CancelRequest(wanted(number).id, "", "bob")).kind == "denied"


def test_the_leader_follows_contact_and_lapses_waiting() -> None:
    table = Table()
    a, b, other = SERVERS
    plan = plan_leader(table.state, {b: 11.0, other: 1.0}, table.now_ms, a)
    assert plan == (c.ServerContact(b, ONE, reachable=False),)
    table.apply(plan[0])
    assert table.state.servers[b].status is ServerStatus.UNREACHABLE
    health = RaftHealth(Role.LEADER, a, 1, 1, 1, SERVERS, (other,), 0.1, {}, 1)
    view = build_view(table.state, health, a, table.now_ms)
    free = {server.id: {gpu.memory_free > 0 for gpu in server.gpus} for server in view.servers}
    assert (free[a], free[b]) == ({True}, {False}), "nothing of it can be had"
    assert plan_leader(table.state, {b: 5.0}, table.now_ms, a, {b}) == ()
    # A new leader counts silence from the beginning of its term, so a dead server has a low age.
    assert plan_leader(table.state, {b: 0.5}, table.now_ms, a, {other}) == ()
    assert plan_leader(table.state, {b: 0.5}, table.now_ms, a, {b}) == (
        c.ServerContact(b, ONE, reachable=True),
    )
    table.apply(c.Wait(wanted(1, 1, 1.0), "ada", TOKENS["ada"], "busy"))
    assert plan_leader(table.state, {}, table.now_ms + 15_000, a) == ()
    assert plan_leader(table.state, {}, table.now_ms + 15_001, a) == (c.Tick(),)


def test_a_host_kills_what_the_table_does_not_hold_and_frees_after() -> None:
    table = Table()
    [choice, *_] = table.choices(wanted(1, 1, 0.5))
    server = choice.server
    lease = table.apply(table.claim(wanted(1, 1, 0.5), choice.partitions)).lease
    assert lease is not None
    stray = LeaseId(7)
    plan = plan_host(table.state, server, ONE, {lease: 1, stray: 1}, {}, {})
    assert (plan.kill, plan.propose) == ((stray,), ())
    # Of one that had its last worker before, the host keeps something until it is told.
    plan = plan_host(table.state, server, ONE, {lease: 0, stray: 0}, {}, {})
    assert (plan.kill, plan.propose) == ((stray,), ())
    plan = plan_host(table.state, server, ONE, {}, {lease: 11.0}, {})
    assert plan.propose == (c.EndLease(lease, "its client never connected"),)
    plan = plan_host(table.state, server, ONE, {}, {}, {lease: "gone"})
    assert plan.propose == (c.EndLease(lease, "gone"),)
    table.apply(plan.propose[0])
    assert plan_host(table.state, server, ONE, {lease: 1}, {}, {}).propose == ()
    plan = plan_host(table.state, server, ONE, {}, {}, {})
    assert plan.propose == (c.FreeLease(lease, server, ONE),)
    # A process that the table does not know yet proposes nothing, and lets nothing run.
    plan = plan_host(table.state, server, Incarnation(2), {lease: 1}, {}, {lease: "gone"})
    assert (plan.kill, plan.propose) == ((lease,), ())


@pytest.mark.parametrize(
    "change",
    [
        {"index": True},
        {"index": "1"},
        {"index": 2**64},
        {"servers": {}},
        {"servers": [["a"]]},
        {"events": "x"},
        {"extra": 1},
        {"tokens": [["a", None]]},
    ],
)
def test_snapshots_are_decoded_strictly(change: dict[str, object]) -> None:
    plain = encode(Table().state)
    assert isinstance(plain, dict)
    assert decode(PoolState, plain) == Table().state
    with pytest.raises(CodecError):
        decode(PoolState, {**plain, **change})
    with pytest.raises(CodecError):
        decode(
            PoolState, {key: value for key, value in plain.items() if key != "servers"} | {"": 1}
        )


def test_a_server_that_starts_does_not_believe_an_old_table() -> None:
    """One stayed drained for good: its snapshot was older than the drain of its former process."""
    mine = Incarnation(4)
    former = Server(ServerId("s"), "s", "", voter=True, incarnation=Incarnation(3))
    assert is_drained_by_stop(None, mine) is None
    assert is_drained_by_stop(former, mine) is None
    assert is_drained_by_stop(replace(former, drain_reason=STOPPING), mine) is None
    started = replace(former, incarnation=mine)
    assert is_drained_by_stop(replace(started, drain_reason=STOPPING), mine) is True
    assert is_drained_by_stop(replace(started, drain_reason="by order"), mine) is False
    assert is_drained_by_stop(started, mine) is False


def test_a_server_without_a_token_joins_an_empty_pool_only() -> None:
    table = Table()
    answer = table.apply(c.JoinServer(ServerId("9" * 12), "another", "z:1", False, None))
    assert (answer.ok, answer.why) == (False, "a server token is needed")
    assert ServerId("9" * 12) not in table.state.servers


def test_a_request_that_was_granted_or_closed_waits_no_more() -> None:
    table = Table()
    assert table.grant(wanted(1, 1, 0.5)).ok
    assert table.apply(c.CancelRequest(wanted(2).id, "gave up", "ada")).ok
    for number in (1, 2):
        answer = table.apply(c.Wait(wanted(number, 1, 0.5), "ada", TOKENS["ada"], "busy"))
        assert (answer.ok, answer.kind) == (False, "closed")
    assert not table.state.waiting


def test_what_could_be_had_is_what_the_best_server_has() -> None:
    table = Table()
    for server, sizes in ((SERVERS[0], (10, 10)), (SERVERS[1], (20, 8)), (SERVERS[2], (5, 5))):
        gpus = tuple(
            Gpu(GpuId(f"{server}+{n}"), n, "X", size * GIB) for n, size in enumerate(sizes)
        )
        assert table.apply(c.ServerUp(server, Incarnation(2), "x:1", "1", "", "", gpus)).ok
    refusal = table.refusal(wanted(1, 2, memory=16 * GIB))
    assert refusal.why.endswith("of that size (b); 2 GPUs could have 10.0 GiB each")


@pytest.mark.parametrize("across", [False, True])
def test_too_many_of_any_size_could_have_no_memory_each(across: bool) -> None:
    table = Table()
    refusal = table.refusal(wanted(1, 99, memory=16 * GIB, across=across))
    assert refusal.kind == "never"
    assert refusal.why.startswith("all servers together" if across else "the most on one server")
    assert "each" not in refusal.why


@pytest.mark.parametrize("across", [False, True])
def test_a_server_without_room_offers_nothing(across: bool) -> None:
    """For a request over several servers, one GPU of it would be enough."""
    table = Table()
    [server, *_] = SERVERS
    count = len(table.state.servers[server].gpus)
    asked = wanted(100, 3, memory=GIB, across=across)
    for number, gpu in enumerate(table.state.servers[server].gpus.values()):
        answer = make_offer(table.state, table.state.servers[server], asked)
        assert isinstance(answer, Offer) is (across or number == 0)
        request = wanted(number + 1, memory=gpu.capacity)
        part = Partition(server, gpu.id, gpu.capacity)
        assert table.apply(table.claim(request, (part,))).ok
    assert table.refusal(asked).why == f"0 of {count} GPUs have room (0 idle)"


@pytest.mark.parametrize(
    ("user", "token"), [("ada", "no-such"), ("ada", "bob" * 4), ("ada", "late"), ("ada", "gone")]
)
def test_nobody_waits_without_a_good_token_of_their_own(user: str, token: str) -> None:
    table = Table()
    for name, valid_ms in (("late", 1), ("gone", 60_000)):
        expires = Milliseconds(table.now_ms + valid_ms)
        order = c.CreateToken(TokenId(name), TokenKind.USER, "ada", bytes(32), expires, "root")
        assert table.apply(order).ok
    assert table.apply(c.RevokeToken(TokenId("gone"), "root"), after_ms=2).ok
    refused = table.apply(c.Wait(wanted(1, 1, 0.5), user, TokenId(token), "busy"))
    assert (refused.kind, refused.why) == ("denied", "unknown, expired or revoked token")
    assert not table.state.waiting
