"""Drains of single GPUs: orders, automatic ones with their bounds, and an undrain that holds."""

from dataclasses import replace

import pytest

from gpupool.pool.automatic_drains import SignWatch, plan_drains
from gpupool.pool.invariants import violations
from gpupool.pool.model import commands as c
from gpupool.pool.model.ids import GpuId, Incarnation, Milliseconds, RequestId, ServerId
from gpupool.pool.model.results import Result
from gpupool.pool.model.state import EVENT_COUNT_MAX, Event, Gpu, PoolState, Request
from gpupool.pool.scheduling.offers import NoOffer
from gpupool.pool.scheduling.placement import make_offer
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.pool.transitions.gpu_drains import automatic_count, automatic_max
from gpupool.pool.view_building import server_state

A = ServerId("a" * 12)
GIB = 1 << 30


def gpus(count: int) -> tuple[Gpu, ...]:
    return tuple(Gpu(GpuId(f"GPU-{n}"), n, "X", 8 * GIB) for n in range(count))


class Table:
    """A pool of one server; each command comes a second after the one before."""

    def __init__(self, count: int = 4) -> None:
        self.machine = PoolMachine(PoolState())
        self.do(c.CreatePool("c", "pool", "off"))
        self.do(c.JoinServer(A, "a", "a:1", False, None))
        self.up(1, count)

    @property
    def state(self) -> PoolState:
        return self.machine.state

    def do(self, command: c.Command) -> Result:
        index = self.state.index + 1
        at = 1000 * index
        plain = self.machine.apply(index, c.wrap(command, at_ms=at, ttl_ms=60_000))
        assert not violations(self.state)
        return c.decode(Result, plain)

    def up(self, incarnation: int, count: int) -> None:
        self.do(c.ServerUp(A, Incarnation(incarnation), "a:1", "", "", "", gpus(count)))

    def drain(self, n: int, reason: str | None) -> Result:
        order = self.state.index.to_bytes(16)
        return self.do(c.DrainGpu(A, GpuId(f"GPU-{n}"), reason, "root", order))

    def auto(self, n: int, onset: int = 0) -> Result:
        gpu = GpuId(f"GPU-{n}")
        return self.do(
            c.DrainGpu(A, gpu, "auto: thermal", "a", sign="thermal", onset=Milliseconds(onset))
        )

    def reasons(self) -> list[str]:
        return [gpu.drain_reason for gpu in self.state.servers[A].gpus.values()]


def test_a_drained_gpu_is_not_offered_and_the_others_are() -> None:
    table = Table(2)
    assert table.drain(0, "new fan").ok
    request = Request(RequestId(bytes(16)), 1, fraction=1.0)
    offer = make_offer(table.state, table.state.servers[A], request)
    assert not isinstance(offer, NoOffer)
    assert [each.gpu for each in offer.gpus] == ["GPU-1"]
    two = make_offer(table.state, table.state.servers[A], replace(request, count=2))
    assert isinstance(two, NoOffer)
    assert two.why == "1 of 2 GPUs have room (2 idle, 1 drained)"
    assert server_state(table.state.servers[A]) == "idle"
    table.drain(1, "new fan")
    assert server_state(table.state.servers[A]) == "drain"


def test_orders_are_audited_and_done_once() -> None:
    table = Table()
    first = c.DrainGpu(A, GpuId("GPU-3"), "new fan", "root", b"1" * 16)
    table.do(first)
    table.drain(3, None)
    assert table.do(first).ok
    assert table.reasons() == [""] * 4, "the repetition came behind what undid it"
    kinds = [(act.kind, act.subject, act.by, act.text) for act in table.state.acts]
    assert kinds[-2:] == [("drained", "a/3", "root", "new fan"), ("undrained", "a/3", "root", "")]
    assert table.drain(3, None).why == "it was not drained"


@pytest.mark.parametrize("absent", [False, True])
def test_a_drain_outlives_restarts_also_without_the_gpu(absent: bool) -> None:
    table = Table()
    table.drain(3, "new fan")
    if absent:
        table.up(2, 3)
        assert len(table.reasons()) == 3
    table.up(3, 4)
    assert table.reasons() == ["", "", "", "new fan"]


def test_an_absent_gpu_can_be_undrained() -> None:
    table = Table()
    table.drain(3, "new fan")
    table.up(2, 3)
    assert table.drain(3, None).ok
    assert not table.state.servers[A].gpu_orders
    assert not table.drain(3, None).ok


def test_automatic_drains_are_bounded() -> None:
    table = Table(21)
    assert [table.auto(n).ok for n in range(3)] == [True, True, False]
    assert table.auto(2).why == "2 GPUs are drained automatically already"
    table.drain(0, None)
    assert table.auto(2).ok
    small = Table(3)
    assert [small.auto(n).ok for n in range(2)] == [True, False]


def test_an_undrain_holds_until_the_sign_comes_anew() -> None:
    table = Table()
    assert table.auto(1, onset=0).ok
    table.drain(1, None)
    undrained_at = table.state.now
    for onset in (0, undrained_at - 1, undrained_at):
        assert table.auto(1, onset).why == "it was undrained since"
    assert table.auto(1, undrained_at + 1).ok


def test_nobody_drains_as_a_server_and_no_server_drains_what_is_drained() -> None:
    table = Table()
    assert not table.drain(0, "auto: thermal").ok
    table.drain(0, "new fan")
    assert table.auto(0).why == "it is drained already"
    assert table.reasons()[0] == "new fan"


def test_signs_have_the_onset_of_their_coming() -> None:
    watch, hot = SignWatch(), (GpuId("GPU-0"), "thermal")
    old = (GpuId("GPU-1"), "repeated-xid")

    def look(at: int, *signs: tuple[GpuId, str], era: int = 0) -> dict[tuple[str, str], int]:
        found = watch.look(dict.fromkeys(signs, "x"), Milliseconds(at), era)
        return {(sign.gpu, sign.name): sign.onset for sign in found}

    assert look(100, old) == {old: 0}
    assert look(200, old, hot) == {old: 0, hot: 200}
    assert look(300, hot) == {hot: 200}
    assert look(400, old, hot) == {old: 400, hot: 200}
    assert look(150, hot) == {hot: 150}, "a clock went back: the onset is not yet to come"
    assert look(400, hot) == {hot: 150}
    assert look(50, old, hot, era=1) == {old: 0, hot: 0}, "its time was set"
    assert look(60, hot, era=1) == {hot: 0}


def test_a_server_proposes_what_the_table_takes() -> None:
    table, watch = Table(21), SignWatch()
    signs = {(gpu.id, "thermal"): "at 96 C" for gpu in gpus(5)}
    seen = watch.look(signs, Milliseconds(1), 0)
    plan = plan_drains(table.state, A, seen)
    assert [each.gpu for each in plan] == ["GPU-0", "GPU-1"]
    assert plan[0].reason == "auto: thermal: at 96 C"
    assert all(table.do(each).ok for each in plan)
    assert plan_drains(table.state, A, seen) == ()
    table.drain(0, None)
    assert [each.gpu for each in plan_drains(table.state, A, seen)] == ["GPU-2"]


def test_a_server_that_is_not_in_the_table_proposes_nothing() -> None:
    seen = SignWatch().look({(GpuId("GPU-0"), "thermal"): "at 96 C"}, Milliseconds(1), 0)
    assert plan_drains(Table().state, ServerId("z" * 12), seen) == ()


@pytest.mark.parametrize(("granted", "word"), [((0, 0), "idle"), ((8, 0), "mix"), ((8, 8), "full")])
def test_a_server_is_full_when_no_gpu_of_it_has_room(granted: tuple[int, int], word: str) -> None:
    server = Table(2).state.servers[A]
    for gpu, gib in zip(list(server.gpus.values()), granted, strict=True):
        server.gpus[gpu.id] = replace(gpu, memory_granted=gib * GIB)
    assert server_state(server) == word


def test_a_reading_below_zero_counts_as_no_foreign_memory() -> None:
    table = Table(1)
    readings = {GpuId("GPU-0"): c.GpuReading(-5, "")}
    assert table.do(c.ReportGpus(A, Incarnation(1), readings)).ok
    assert table.state.servers[A].gpus[GpuId("GPU-0")].memory_foreign == 0


def test_each_event_is_told_once_however_many_are_kept() -> None:
    table, told = Table(), list[Event]()
    known = table.state.events
    table.machine.on_events = told.extend
    for number in range(EVENT_COUNT_MAX + 5):
        assert table.drain(number % 4, "new fan" if number // 4 % 2 == 0 else None).ok
    assert len(told) == EVENT_COUNT_MAX + 5
    assert tuple(told[-EVENT_COUNT_MAX:]) == table.state.events
    assert told[0] not in known


@pytest.mark.parametrize(
    ("reason", "why"),
    [("new fan", "the GPU is no longer present"), (None, "no such GPU on that server")],
)
def test_no_server_drains_a_gpu_that_is_absent(reason: str | None, why: str) -> None:
    """Whether the table has an order for it still, as of a drain, or none as of an undrain."""
    table = Table()
    table.drain(3, "old fan")
    table.drain(3, reason)
    table.up(2, 3)
    known = table.state
    refused = table.auto(3, known.now + 1)
    assert (refused.kind, refused.why) == ("never", why)
    assert table.state.servers == known.servers


@pytest.mark.parametrize("reason", [None, "", "thermal", "a auto: thermal"])
def test_the_reason_of_a_sign_says_that_no_person_ordered_it(reason: str | None) -> None:
    table = Table()
    refused = table.do(c.DrainGpu(A, GpuId("GPU-1"), reason, "a", sign="thermal"))
    assert (refused.kind, refused.why) == (
        "invalid",
        'an automatic drain has a reason with "auto: "',
    )
    assert table.reasons()[1] == ""


@pytest.mark.parametrize(
    ("count", "most"), [(0, 1), (1, 1), (9, 1), (18, 1), (19, 1), (20, 2), (29, 2), (30, 3)]
)
def test_a_tenth_of_the_gpus_or_one_may_be_drained_automatically(count: int, most: int) -> None:
    assert automatic_max(Table(count).state) == most


def test_what_another_server_offers_is_no_gpu_of_which_a_tenth_may_be_drained() -> None:
    table = Table(20)
    server = table.state.servers[A]
    first = replace(next(iter(server.gpus.values())), clash="already offered by server b")
    changed = replace(server, gpus=server.gpus | {first.id: first})
    state = replace(table.state, servers=table.state.servers.set(A, changed))
    assert automatic_max(state) == 1


def test_an_order_about_one_gpu_is_an_act_and_an_event() -> None:
    table = Table()
    assert table.drain(2, "x" * 201) == Result(True)
    act, event = table.state.acts[-1], table.state.events[-1]
    assert (act.kind, act.by, act.subject, act.text) == ("drained", "root", "a/2", "x" * 201)
    said = ("drained", "a/2", "x" * 200 + " (by root)")
    assert (event.kind, event.subject, event.text) == said
    order = table.state.servers[A].gpu_orders[GpuId("GPU-2")]
    assert (order.drain_reason, order.at) == ("x" * 201, table.state.now)
    before = table.state
    assert table.drain(2, "x" * 201) == Result(True, why="it was drained")
    assert (table.state.acts, table.state.events) == (before.acts, before.events)
    assert table.drain(2, None) == Result(True)
    act, event = table.state.acts[-1], table.state.events[-1]
    assert (act.kind, act.subject, act.text) == ("undrained", "a/2", "")
    assert (event.kind, event.subject, event.text) == ("undrained", "a/2", "by root")
    assert table.drain(2, None) == Result(True, why="it was not drained")


@pytest.mark.parametrize(
    ("command", "kind", "why"),
    [
        (c.DrainGpu(ServerId("b" * 12), GpuId("GPU-0"), "x", "root"), "never", "no such server"),
        (c.DrainGpu(A, GpuId("none"), "x", "root"), "never", "no such GPU on that server"),
        (
            c.DrainGpu(A, GpuId("GPU-0"), "x", "root", bytes(15)),
            "invalid",
            "malformed number of an order",
        ),
        (
            c.DrainGpu(A, GpuId("GPU-0"), "auto: x", "root"),
            "invalid",
            "a person's reason does not begin so",
        ),
        (
            c.DrainGpu(A, GpuId("GPU-0"), "hot", "a", sign="thermal"),
            "invalid",
            'an automatic drain has a reason with "auto: "',
        ),
        (
            c.DrainGpu(A, GpuId("GPU-0"), None, "a", sign="thermal"),
            "invalid",
            'an automatic drain has a reason with "auto: "',
        ),
    ],
)
def test_an_order_that_makes_no_sense_is_refused(command: c.DrainGpu, kind: str, why: str) -> None:
    table = Table()
    before = table.state.servers
    assert table.do(command) == Result(False, kind, why)
    assert table.state.servers is before


def test_a_refused_sign_says_so_and_one_that_is_taken_is_no_person() -> None:
    table = Table()
    assert table.auto(0) == Result(True)
    assert table.auto(0) == Result(False, "denied", "it is drained already")
    refused = Result(False, "denied", "1 GPUs are drained automatically already")
    assert table.auto(1) == refused
    assert (table.state.acts[-1].by, table.state.acts[-1].text) == ("a", "auto: thermal")


def test_an_order_of_a_person_is_not_counted_among_automatic_drains() -> None:
    table = Table()
    assert table.drain(0, "new fan").ok
    assert automatic_count(table.state) == 0
    assert table.auto(1).ok
    assert automatic_count(table.state) == 1
    table.up(2, 1)
    assert automatic_count(table.state) == 1, "absent, it is drained still"
