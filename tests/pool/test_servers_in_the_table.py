"""Servers in the table: effects of starts and readings, the next voter, and servers left alone."""

from dataclasses import replace

import pytest
from tests.pool.policy_kit import GIB, ONE, A, B, Pool, upgraded

from gpupool.pool.model import commands as c
from gpupool.pool.model.codec import decode
from gpupool.pool.model.ids import GpuId, Incarnation, Milliseconds, ServerId
from gpupool.pool.model.results import Result
from gpupool.pool.model.state import Gpu, PoolState, Server, ServerStatus, with_changes
from gpupool.pool.scheduling.filters import LABEL_COUNT_MAX
from gpupool.pool.transitions import leases
from gpupool.pool.transitions.servers import (
    removals_of_others,
    report_gpus,
    server_contact,
    server_up,
    settle_clashes,
)

TWO = Incarnation(2)


def up(pool: Pool, server: ServerId = A, incarnation: Incarnation = ONE) -> c.ServerUp:
    """Return the start of a server with the GPUs and the version that the table has of it."""
    known = pool.state.servers[server]
    gpus = tuple(replace(gpu, memory_granted=0) for gpu in known.gpus.values())
    start = c.ServerUp(server, incarnation, "x:1", "1", "580.2", "13.0", gpus, known.labels_said)
    return replace(start, formats=known.formats)


def with_server(state: PoolState, server: ServerId, **changes: object) -> PoolState:
    row = with_changes(state.servers[server], **changes)
    return with_changes(state, servers=state.servers.set(server, row))


# --- recovery -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lease_count", "times"), [(0, 1), (1, 1), (2, 2), (3, 2), (4, 3)])
def test_a_server_that_is_lost_is_removed_as_often_as_its_leases_need(
    lease_count: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "ENDED_AT_ONCE_MAX", 2)
    pool = Pool()
    upgraded(pool.machine)
    for _ in range(lease_count):
        pool.hold((GpuId(f"{A}-0"), 1))
    entries = removals_of_others(pool.state, B, at_ms=pool.now_ms)
    assert len(entries) == times
    for plain in entries:
        assert decode(Result, pool.machine.apply(pool.state.index + 1, plain)).ok
    assert list(pool.state.servers) == [B]


def test_removals_are_applied_however_late_the_time_of_the_table_is() -> None:
    pool = Pool()
    for plain in removals_of_others(pool.state, B, at_ms=pool.now_ms - 86_400_000):
        assert decode(Result, pool.machine.apply(pool.state.index + 1, plain)).ok
    assert list(pool.state.servers) == [B]


# --- starts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agreed", "own", "taken"),
    [(11, 10, False), (11, 11, True), (12, 11, False), (12, 13, True)],
)
def test_a_pool_takes_in_no_older_server(agreed: int, own: int, taken: bool) -> None:
    pool = Pool()
    upgraded(pool.machine, agreed)
    result = pool.do(replace(up(pool, incarnation=TWO), formats=own))
    assert result.ok == taken
    if not taken:
        assert result.kind == "denied"
        assert result.why == (
            f"the servers of this pool have agreed on version {agreed} of the formats, and this "
            f"one has {own}: upgrade its gpupool"
        )


@pytest.mark.parametrize(("count", "why"), [(64, ""), (65, "a server has at most 64 GPUs")])
def test_a_server_has_at_most_64_gpus(count: int, why: str) -> None:
    pool = Pool()
    gpus = tuple(Gpu(GpuId(f"x-{number}"), number, "X", GIB) for number in range(count))
    result = pool.do(replace(up(pool), gpus=gpus))
    assert (result.ok, result.kind, result.why) == (not why, "denied" if why else "", why)
    assert len(pool.state.servers[A].gpus) == (4 if why else count)


@pytest.mark.parametrize(("total", "reserved", "kept"), [(43, 2, 43), (42, 2, 42), (41, 2, 80)])
def test_a_gpu_that_shrinks_keeps_its_size_where_leases_would_not_fit(
    total: int, reserved: int, kept: int
) -> None:
    pool = Pool()
    pool.hold((GpuId(f"{A}-0"), 40))
    start = up(pool)
    gpu = replace(start.gpus[0], memory_total=total * GIB, memory_reserved=reserved * GIB)
    assert pool.do(replace(start, gpus=(gpu, *start.gpus[1:]))).ok
    known = pool.state.servers[A].gpus[gpu.id]
    assert known.memory_granted == 40 * GIB
    assert known.memory_total == kept * GIB
    assert known.memory_reserved == (0 if kept == 80 else reserved * GIB)


@pytest.mark.parametrize("beyond", [0, 1])
def test_labels_of_a_start_that_would_be_too_many_are_left_out(beyond: int) -> None:
    pool = Pool()
    known = len(pool.state.servers[B].labels)
    room = LABEL_COUNT_MAX - known
    labels = {f"label-{number}": "1" for number in range(room + beyond)}
    before = pool.state.servers[B].labels
    assert pool.do(replace(up(pool, B), labels=labels)).ok
    server = pool.state.servers[B]
    assert server.labels == (before if beyond else before | labels)
    assert server.labels_said == labels


def test_a_label_of_the_last_start_does_not_undo_an_order() -> None:
    pool = Pool()
    assert pool.do(c.LabelServer(B, {"rack": "9"}, (), "root")).ok
    assert pool.do(up(pool, B)).ok
    assert pool.state.servers[B].labels["rack"] == "9"
    assert pool.do(replace(up(pool, B), labels={"rack": "5", "no label": ""})).ok
    assert pool.state.servers[B].labels == {"rack": "5"}


def test_labels_that_a_server_has_already_are_no_change() -> None:
    pool = Pool()
    before = pool.state
    pool.now_ms += 1000
    assert pool.do(c.LabelServer(B, {"rack": "2"}, ("none",), "root", b"1" * 16)).ok
    server = pool.state.servers[B]
    assert server.changed_at == before.servers[B].changed_at
    assert server.orders == (b"1" * 16,)
    assert pool.state.acts == before.acts
    assert pool.do(c.LabelServer(B, {"rack": "3"}, (), "root")).ok
    assert pool.state.servers[B].changed_at == pool.now_ms
    assert pool.state.acts[-1].text == "rack=3"


# --- contact --------------------------------------------------------------------------------------


def three_servers() -> PoolState:
    """Return a table in which a votes and is up, and b and then c follow."""
    state = Pool().state
    third = ServerId("c" * 12)
    row = with_changes(state.servers[B], id=third, name="c", voter=False, gpus={})
    state = with_changes(state, servers=state.servers.set(third, row))
    return with_server(state, B, voter=False)


@pytest.mark.parametrize(
    ("changes", "removed", "votes"),
    [
        ({}, False, "b"),
        ({"status": ServerStatus.UNREACHABLE}, False, "c"),
        ({"status": ServerStatus.JOINED}, False, "c"),
        ({}, True, "c"),
        ({"voter": True}, False, "c"),
    ],
)
def test_the_first_follower_that_is_up_and_stays_votes_in_place_of_one_that_is_lost(
    changes: dict[str, object], removed: bool, votes: str
) -> None:
    state = with_server(three_servers(), B, **changes)
    if removed:
        state = with_changes(state, removed={B: Milliseconds(1)})
    state, result = server_contact(state, c.ServerContact(A, ONE, reachable=False))
    assert result.ok
    kept = {"b"} if changes.get("voter") else set[str]()
    assert {each.name for each in state.servers.values() if each.voter} == {votes} | kept
    text = f"no contact; its leases stay charged; {votes} votes in its place"
    assert (state.events[-1].subject, state.events[-1].text) == ("a", text)


def test_a_voter_that_is_lost_where_no_follower_is_up_keeps_its_vote() -> None:
    state = three_servers()
    for server in (B, ServerId("c" * 12)):
        state = with_server(state, server, status=ServerStatus.UNREACHABLE)
    state, _ = server_contact(state, c.ServerContact(A, ONE, reachable=False))
    assert [each.name for each in state.servers.values() if each.voter] == ["a"]
    assert state.events[-1].text == "no contact; its leases stay charged"


# --- readings -------------------------------------------------------------------------------------


def read(state: PoolState, memory: int, fault: str, gpu: str = f"{A}-0") -> PoolState:
    readings = {GpuId(gpu): c.GpuReading(memory, fault)}
    state, result = report_gpus(state, c.ReportGpus(A, ONE, readings))
    assert result.ok
    return state


@pytest.mark.parametrize("length", [199, 200, 201])
def test_a_fault_is_cut_at_200_characters_and_is_one_event(length: int) -> None:
    before = Pool().state
    state = read(before, 5, "x" * length)
    gpu = state.servers[A].gpus[GpuId(f"{A}-0")]
    assert (gpu.fault, gpu.memory_foreign) == ("x" * min(200, length), 5)
    event = state.events[-1]
    assert (event.kind, event.subject, event.text) == ("gpu-fault", "a/0", gpu.fault)
    again = read(state, -1, "another")
    assert again.events == state.events
    gpu = again.servers[A].gpus[gpu.id]
    assert (gpu.fault, gpu.memory_foreign) == ("another", 0)
    assert read(again, 0, "").events == state.events


def test_a_reading_of_a_gpu_that_the_server_has_not_is_left_out() -> None:
    before = Pool().state
    assert read(before, 5, "broken", "another") == before


# --- clashes --------------------------------------------------------------------------------------


def showing(state: PoolState, server: ServerId, gpu: Gpu) -> PoolState:
    known = state.servers[server]
    return with_server(state, server, gpus=known.gpus | {gpu.id: gpu})


def test_a_gpu_that_two_servers_show_is_offered_by_the_one_that_did_first() -> None:
    state = Pool().state
    mine: Server = state.servers[B]
    shown = replace(next(iter(mine.gpus.values())), clash="not settled yet")
    state = settle_clashes(showing(state, A, shown))
    assert state.servers[A].gpus[shown.id].clash == "already offered by server b"
    assert state.servers[B] is mine
    event = state.events[-1]
    said = ("gpu-clash", f"a/{shown.index}", "already offered by server b")
    assert (event.kind, event.subject, event.text) == said
    settled = settle_clashes(state)
    assert settled.servers is state.servers
    assert settled.events == state.events


# --- GPUs that are gone ---------------------------------------------------------------------------


def test_a_gpu_that_is_gone_stays_until_its_leases_are_over() -> None:
    pool = Pool()
    lease = pool.hold((GpuId(f"{A}-0"), 40))
    assert pool.do(replace(up(pool), gpus=())).ok
    (gpu,) = pool.state.servers[A].gpus.values()
    assert (gpu.id, gpu.memory_granted, gpu.fault) == (f"{A}-0", 40 * GIB, "no longer present")
    pool.end(lease)
    assert pool.do(replace(up(pool), gpus=())).ok
    assert pool.state.servers[A].gpus == {}


def test_a_start_of_an_earlier_process_is_refused_and_each_new_one_is_an_event() -> None:
    pool = Pool()
    count = len(pool.state.events)
    assert pool.do(up(pool)) == Result(True)
    assert len(pool.state.events) == count, "the same process says it again"
    assert pool.do(up(pool, incarnation=TWO)) == Result(True)
    event = pool.state.events[-1]
    assert (event.kind, event.subject, event.text) == ("up", "a", "up with 4 GPUs")
    earlier = Result(False, "conflict", "a later incarnation of this server is known")
    assert pool.do(up(pool)) == earlier
    stranger = replace(up(pool), server=ServerId("none"))
    no_member = Result(False, "denied", "this server is not a member of the pool")
    assert pool.do(stranger) == no_member
    state = with_changes(pool.state, removed={A: Milliseconds(1)})
    assert server_up(state, up(pool, incarnation=TWO))[1] == no_member
