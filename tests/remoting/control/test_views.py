"""Views of large pools: made beside the loop, the same bytes, never older than their questions."""

import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
import trio.testing
from tests.benchmarks.full_table import full_machine
from tests.benchmarks.scale import server_id
from tests.benchmarks.view_times import measure_views
from tests.remoting.control.control_cluster import Cluster, request, token_id
from tests.remoting.control.control_kit import until

from gpupool.pool.clock_view import clock_view
from gpupool.pool.errors import GpupoolError, NotNowError, UnreachableError
from gpupool.pool.fair_access import UserBound
from gpupool.pool.model import commands
from gpupool.pool.model.ids import Milliseconds, ServerId
from gpupool.pool.model.state import PoolState
from gpupool.pool.ports import RaftHealth, Role
from gpupool.pool.table_clock import ClockReading, KnownClock, Source
from gpupool.pool.telemetry import Telemetry
from gpupool.pool.view import PoolView
from gpupool.pool.view_building import ViewSource, build_view
from gpupool.remoting.client.pool_client import Pool
from gpupool.remoting.client.server_connections import ServerConnection
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.protocol.framing import ANSWER_SIZE_MAX
from gpupool.remoting.protocol.sessions import DOCTOR, WORKERS_HAVE
from gpupool.remoting.protocol.view_encoding import (
    PIECE_BYTES,
    MadeView,
    ViewOrder,
    make_view,
    make_view_at_once,
)
from gpupool.remoting.server import view_service
from gpupool.remoting.server import view_service as view_thread
from gpupool.remoting.server.server_settings import ControllerSettings
from gpupool.remoting.server.view_service import make_beside_the_loop
from gpupool.simulations.cluster.cluster import Cluster as SimulatedPool
from gpupool.simulations.kernel.swarm_options import Options

Clock = trio.testing.MockClock

# --- the bytes ------------------------------------------------------------------------------------


def source_of(state: PoolState) -> ViewSource:
    me = server_id(0)
    health = RaftHealth(Role.LEADER, me, 7, 8, 8, (me,), (), 0.25, {}, 3)
    reading = ClockReading(Source.OWN, 2**41, 2**41 + 9, 0.5, 0.0, {me: KnownClock(0.009, 0.001)})
    return ViewSource(
        state, health, me, 2**41, ("first\x1b", "second"), clock_view(state, reading), ("third",)
    )


def whole_view(source: ViewSource, *more: str) -> PoolView:
    """Return the view of a source, at one go."""
    view = build_view(
        source.state, source.health, source.answered_by, source.now_ms, source.violations,
        source.clock,
    )  # fmt: skip
    return replace(view, warnings=(*view.warnings, *source.warnings, *more))


def frame(message: m.Outgoing, call: int = 0) -> bytes:
    return m.to_frame(call, message, size_max=ANSWER_SIZE_MAX)


def make_in_pieces(order: ViewOrder) -> MadeView:
    steps = make_view(order)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


@pytest.mark.parametrize("make", [make_view_at_once, make_in_pieces])
@pytest.mark.parametrize(("servers", "leases"), [(0, 0), (1, 0), (3, 20), (25, 30), (60, 300)])
def test_a_view_in_pieces_has_the_bytes_of_the_whole(
    servers: int, leases: int, make: Callable[[ViewOrder], MadeView]
) -> None:
    state = full_machine(servers, leases).state if servers else PoolState()
    source = source_of(state)
    telemetry = Telemetry(server_id(0), Milliseconds(5), (), (), 0.5, {"connections": 3})
    made = make(ViewOrder(source, ("fourth",), telemetry))
    for call in (1, 23, 24, 255, 256, 65_536, 2**32 - 1):
        assert frame(made.view, call) == frame(m.ViewNow(whole_view(source)), call)
    assert made.for_doctor is not None
    assert frame(made.for_doctor, 9) == frame(m.ViewNow(whole_view(source, "fourth")), 9)
    assert made.update is not None
    update = m.Update(whole_view(source), telemetry)
    assert frame(made.update) == frame(update)
    assert m.push_frame(made.update, size_max=ANSWER_SIZE_MAX) == frame(update)
    assert made.update.decoded() == update
    bare = make(ViewOrder(source))
    assert (bare.view.fields, bare.for_doctor, bare.update) == (made.view.fields, None, None)


def test_a_gpu_shows_the_leases_that_have_part_of_it() -> None:
    state = full_machine(5, 60).state
    for server in whole_view(source_of(state)).servers:
        for gpu in server.gpus:
            assert list(gpu.leases) == [
                lease.id
                for lease in state.leases.values()
                for part in lease.partitions
                if (part.server, part.gpu) == (server.id, gpu.id)
            ]


def test_pieces_are_short() -> None:
    source = source_of(full_machine(60, 300).state)
    steps = sum(1 for _ in make_view(ViewOrder(source)))
    size = len(make_view_at_once(ViewOrder(source)).view.fields)
    assert size > 200_000
    assert size // PIECE_BYTES // 2 < steps < size // PIECE_BYTES + 10


# --- the thread -----------------------------------------------------------------------------------


async def test_the_thread_makes_what_is_made_at_once() -> None:
    order = ViewOrder(source_of(full_machine(20, 30).state))
    made = await make_beside_the_loop(order)
    assert made.view.fields == make_view_at_once(order).view.fields


async def test_a_cancelled_thread_ends_after_its_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    began, ended = trio.Event(), threading.Event()

    def endless(_order: ViewOrder) -> Generator[None, None, MadeView]:
        try:
            trio.from_thread.run_sync(began.set)
            while True:
                yield
        finally:
            ended.set()

    monkeypatch.setattr(view_thread, "make_view", endless)
    async with trio.open_nursery() as nursery:  # waits for the thread
        nursery.start_soon(make_beside_the_loop, ViewOrder(source_of(PoolState())))
        await began.wait()
        nursery.cancel_scope.cancel()
    assert ended.is_set()


# --- the queue, in virtual time -------------------------------------------------------------------


class Maker:
    """Makes views as slowly as it is told."""

    def __init__(self, took_s: float = 0.4) -> None:
        self.took_s = took_s
        self.orders: list[ViewOrder] = []
        self.cancelled = 0

    async def make(self, order: ViewOrder) -> MadeView:
        self.orders.append(order)
        try:
            await trio.sleep(self.took_s)
        except trio.Cancelled:
            self.cancelled += 1
            raise
        return make_view_at_once(order)


async def large(nursery: trio.Nursery, maker: Maker, gpus: tuple[int, ...] = (1,)) -> Cluster:
    """Return a pool every view of which counts as large."""
    cluster = Cluster(nursery)
    cluster.make_view = maker.make
    cluster.settings = ControllerSettings(view_rows_at_once=0)
    await cluster.start(gpus, users=("ada", "bob"))
    return cluster


def link(pool: Pool) -> ServerConnection:
    (connection,) = pool.connections.by_server.values()
    return connection


async def test_small_pools_answer_at_once(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    maker, cluster = Maker(), Cluster(nursery)
    cluster.make_view = maker.make
    await cluster.start([8, 8, 8])
    async with cluster.client() as pool, pool.subscribe(0.5) as updates:
        assert len((await pool.view()).servers) == 3
        assert len((await updates.receive()).view.servers) == 3
    assert maker.orders == []


async def test_who_asks_meanwhile_shares_the_next_view(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    """And it has all commits from before their calls, though another view is being made."""
    maker = Maker()
    cluster = await large(nursery, maker)
    seen: list[tuple[float, str]] = []
    async with cluster.client() as pool, cluster.client("root") as root:

        async def ask() -> None:
            view = await pool.view()
            seen.append((round(trio.current_time() - began, 1), view.servers[0].state))

        began = trio.current_time()
        async with trio.open_nursery() as asking:
            asking.start_soon(ask)
            await trio.sleep(0.1)
            await root.operate(m.DrainServer("gpu-1", "new fans"))
            for _ in range(4):
                asking.start_soon(ask)
            await trio.sleep(0.1)
            await link(pool).call(m.Ping(), timeout_s=0.05)  # it overtakes the views
            assert seen == []
    assert seen == [(0.4, "idle")] + [(0.8, "drain")] * 4
    assert len(maker.orders) == 2


async def test_a_view_that_takes_too_long_is_refused(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    maker = Maker(took_s=10.0)
    cluster = await large(nursery, maker)
    refused: list[float] = []
    async with cluster.client() as pool, cluster.client("bob") as bob:

        async def ask(who: Pool) -> None:
            with pytest.raises(NotNowError, match="not made in time"):
                await link(who).call(m.GetView(), timeout_s=3.0)
            refused.append(round(trio.current_time() - began, 2))

        await trio.sleep(0.11)  # no other timer of the server is due when it refuses
        began = trio.current_time()
        async with trio.open_nursery() as asking:
            asking.start_soon(ask, pool)
            await trio.sleep(1.0)
            asking.start_soon(ask, bob)  # waits for the next one, which is not begun
        assert refused == [2.5, 3.5]
        maker.took_s = 0.1
        await trio.sleep(8.0)  # the late view comes, and is nobody's
        assert (await pool.view()).name == "lab"
        assert link(pool) is not None
    assert len(maker.orders) == 2


async def test_questions_are_limited(
    autojump_clock: Clock, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_service, "VIEW_COUNT_MAX", 2)
    monkeypatch.setattr(view_service, "VIEW_BOUND", UserBound(user=3, token=3))
    monkeypatch.setattr(view_service, "VIEW_TOTAL_MAX", 5)
    cluster = await large(nursery, Maker())
    told: list[str] = []

    async def ask(pool: Pool) -> None:
        try:
            await link(pool).call(m.GetView(), timeout_s=3.0)
            told.append("")
        except NotNowError as error:
            told.append(f"{error} ({error.hint})")

    async with (
        cluster.client() as one,
        cluster.client() as two,
        cluster.client("bob") as bob,
        cluster.client("root") as root,
    ):
        async with trio.open_nursery() as asking:
            for pool, count in ((one, 3), (two, 2), (bob, 2), (root, 1)):
                for _ in range(count):
                    asking.start_soon(ask, pool)
                    await trio.sleep(0.01)
        refusals = sorted(text for text in told if text)
        assert refusals == [
            "ada has 3 questions for the view that wait for an answer (ask again soon)",
            "this connection of ada has 2 questions for the view that wait for an answer "
            "(ask again soon)",
            "too many questions for the view wait (ask again soon)",
        ]
        assert told.count("") == 5
        for pool in (one, two, bob, root):
            assert (await pool.view()).name == "lab"


async def test_who_is_gone_gets_nothing_and_nothing_is_made_for_it(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    maker = Maker()
    cluster = await large(nursery, maker)
    async with cluster.client() as pool, cluster.client("bob") as bob:

        async def ask(who: Pool, error: type[GpupoolError] | None) -> None:
            if error is None:
                await link(who).call(m.GetView(), timeout_s=3.0)
                return
            with pytest.raises(error):
                await link(who).call(m.GetView(), timeout_s=3.0)

        async with trio.open_nursery() as asking:
            asking.start_soon(ask, pool, UnreachableError)  # it is being made
            await trio.sleep(0.1)
            asking.start_soon(ask, pool, UnreachableError)  # it waits
            await trio.sleep(0.1)
            await trio.aclose_forcefully(cluster.streams[0][1])
        await trio.sleep(1.0)
        assert len(maker.orders) == 1
        await ask(bob, None)
        assert len(maker.orders) == 2


async def test_a_revoked_token_gets_no_view_that_it_asked_for_before(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = await large(nursery, Maker())
    async with cluster.client() as pool:
        connection = link(pool)

        async def ask() -> None:
            with pytest.raises(GpupoolError, match="revoked"):
                await connection.call(m.GetView(), timeout_s=3.0)

        async with trio.open_nursery() as asking:
            asking.start_soon(ask)
            await trio.sleep(0.1)
            cluster.commit(commands.RevokeToken(token_id("ada"), "root"))


async def test_a_server_that_ends_ends_the_making(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    maker = Maker(took_s=60.0)
    cluster = await large(nursery, maker)
    (node,) = cluster.nodes
    async with cluster.client() as pool, trio.open_nursery() as asking:

        async def ask() -> None:
            with pytest.raises(GpupoolError):
                await link(pool).call(m.GetView(), timeout_s=3.0)

        asking.start_soon(ask)
        await until(lambda: bool(maker.orders))
        await cluster.crash(node)
        await until(lambda: maker.cancelled == 1)


async def test_only_a_doctor_is_told_what_confines_workers(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    maker, said = Maker(), dict[str, bool]()
    cluster = await large(nursery, maker)
    async with (
        cluster.client() as first,
        cluster.client(client=DOCTOR) as doctor,
        cluster.client("bob") as bob,
    ):

        async def ask(name: str, pool: Pool) -> None:
            warnings = (await pool.view()).warnings
            said[name] = any(each.startswith(WORKERS_HAVE) for each in warnings)

        async with trio.open_nursery() as asking:
            for name, pool in (("first", first), ("doctor", doctor), ("bob", bob)):
                asking.start_soon(ask, name, pool)
                await trio.sleep(0.01)
    assert said == {"first": False, "doctor": True, "bob": False}
    assert len(maker.orders) == 2


# --- updates --------------------------------------------------------------------------------------


class Heard:
    """The updates that one connection gets, with their times."""

    def __init__(self) -> None:
        self.views: list[tuple[float, int]] = []
        self.lean: list[float] = []

    def arrived(self, connection: ServerConnection) -> None: ...

    def left(self, connection: ServerConnection) -> None: ...

    def pushed(self, connection: ServerConnection, message: m.Message) -> None:
        if isinstance(message, m.Update):
            self.views.append((trio.current_time(), message.view.raft.applied_index))
        elif isinstance(message, m.TelemetryUpdate):
            self.lean.append(trio.current_time())


@asynccontextmanager
async def heard(
    cluster: Cluster, user: str, call: m.CallFor[m.Answer]
) -> AsyncGenerator[tuple[Heard, ServerConnection], None]:
    found = Heard()
    async with cluster.client(user) as pool:
        pool.connections.listen(found)
        await link(pool).call(call, timeout_s=1.0)
        yield found, link(pool)


async def test_updates_of_a_large_pool_come_in_order_and_take_half_of_the_time(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    maker = Maker()
    cluster = await large(nursery, maker)
    async with (
        heard(cluster, "ada", m.Subscribe(0.2)) as (ada, _),
        heard(cluster, "bob", m.Subscribe(0.2)) as (bob, _),
        heard(cluster, "bob", m.SubscribeTelemetry(0.2)) as (lean, _),
        cluster.client("root") as root,
    ):
        for number in range(20):
            await root.operate(m.DrainServer("gpu-1", None if number % 2 else "new fans"))
            await trio.sleep(0.4)
        assert 8 <= len(ada.views) <= 12
        assert len(lean.lean) >= 38
        assert [at for at, _ in ada.views[2:]] == [at for at, _ in bob.views[-len(ada.views[2:]) :]]
        indexes = [index for _, index in ada.views]
        assert indexes == sorted(indexes)
        assert len(set(indexes)) > 6
        assert len(maker.orders) <= len(ada.views) + 3  # one for both


async def test_no_update_comes_after_the_end_of_a_subscription(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    maker = Maker()
    cluster = await large(nursery, maker)
    async with heard(cluster, "ada", m.Subscribe(1.0)) as (ada, connection):
        await trio.sleep(0.1)
        assert len(maker.orders) == 1
        await connection.call(m.Subscribe(0.0), timeout_s=1.0)
        await trio.sleep(2.0)
        assert ada.views == []
        await connection.call(m.Subscribe(1.0), timeout_s=1.0)
        await trio.sleep(0.1)
        await connection.call(m.SubscribeTelemetry(1.0), timeout_s=1.0)
        await trio.sleep(2.0)
        assert ada.views == []
        assert ada.lean


async def test_the_allocation_goes_on_while_a_view_is_made(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    maker = Maker(took_s=2.0)
    cluster = await large(nursery, maker)
    async with cluster.client() as pool, trio.open_nursery() as asking:
        asking.start_soon(pool.view)
        await until(lambda: bool(maker.orders))
        began = trio.current_time()
        await pool.allocate(request(pool), wait_s=0)
        assert trio.current_time() - began < 0.5


# --- in the simulator -----------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [0, 512])
def test_servers_of_the_simulator_answer_by_the_same_code(
    monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    if not rows:
        monkeypatch.setattr(ViewSource, "row_count", property(lambda _self: 10**6))
    pool = SimulatedPool(Options(seed=4, servers=3, clients=2))
    pool.create()
    while not pool.complete:
        pool.scheduler.run_until(pool.scheduler.now + 0.1)
    answers: list[m.Message] = []
    caller = pool.operator._caller  # pyright: ignore[reportPrivateUsage]
    caller.call(m.GetView(), lambda answer, _at: answers.append(answer))
    pool.scheduler.run_until(pool.scheduler.now + 2.0)
    assert pool.failures.failure is None
    (answer,) = answers
    assert isinstance(answer, m.ViewNow)
    assert len(answer.view.servers) == 3
    assert ServerId(answer.view.answered_by) in {each.id for each in answer.view.servers}


def test_the_measurement_of_views_runs() -> None:
    at_once, shipped = measure_views(40, 90, views=1, rest_s=0.0).values()
    # A view has ages. One such as 2.5 takes 3 bytes and others 9; a row has hundreds of bytes.
    assert abs(at_once["bytes"] - shipped["bytes"]) < 100
    assert shipped["bytes"] > 100_000
    assert shipped["view_step"] > 0
