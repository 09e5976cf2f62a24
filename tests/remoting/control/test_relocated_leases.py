"""Leases that go to another server, over a whole cluster in virtual time: both ends for real."""

from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing
from tests.remoting.control.control_cluster import Cluster, Node, request
from tests.remoting.control.control_kit import until

from gpupool.pool.errors import DeniedError, GpupoolError, UsageError
from gpupool.pool.model.ids import LeaseId, ServerId
from gpupool.pool.model.relocation import RelocationState
from gpupool.pool.model.state import Lease
from gpupool.remoting.client.lease_handle import LeaseHandle
from gpupool.remoting.client.pool_client import Pool
from gpupool.remoting.client.session_answer import OpenedSession
from gpupool.remoting.protocol import messages as m

Clock = trio.testing.MockClock
Ask = Callable[[], Awaitable[str]]


class Program:
    """A process that brings its session along when it is told, and remembers its orders."""

    def __init__(self, stays: str = "") -> None:
        self.stays = stays
        self.offers: list[tuple[bytes, OpenedSession]] = []
        self.answers: list[str] = []
        self.before_asking: Callable[[], Awaitable[None]] | None = None
        self.after_asking: Callable[[], Awaitable[None]] | None = None

    async def bring(self, session: bytes, offer: OpenedSession, ask: Ask) -> str:
        self.offers.append((session, offer))
        if self.stays:
            return self.stays
        if self.before_asking is not None:
            await self.before_asking()
        self.answers.append(await ask())
        if self.after_asking is not None:
            await self.after_asking()
        return self.answers[-1]


async def started(nursery: trio.Nursery) -> tuple[Cluster, Node, Node]:
    """Return a cluster with leases granted on the first server; the third only votes."""
    cluster = Cluster(nursery)
    await cluster.start([1, 1, 0])
    here, there, _ = cluster.nodes
    return cluster, here, there


async def held(pool: Pool, here: Node, program: Program, nursery: trio.Nursery) -> LeaseHandle:
    hold = await pool.allocate(request(pool, servers=(here.name,)), wait_s=0)
    hold.bring = program.bring
    nursery.start_soon(hold.wait_lost)
    await trio.sleep(0.1)
    return hold


def lease_at(node: Node, lease: LeaseId) -> Lease | None:
    return node.machine.state.leases.get(lease)


def is_settled(node: Node, lease: LeaseId) -> bool:
    found = lease_at(node, lease)
    return found is not None and found.relocation is None


async def go(pool: Pool, hold: LeaseHandle, there: Node) -> str:
    return await pool.operate(m.RelocateLease(hold.lease, there.id))


async def test_a_program_goes_and_everything_of_it_follows(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster, here, there = await started(nursery)
    async with cluster.client() as pool:
        program = Program()
        hold = await held(pool, here, program, nursery)
        notices: list[str] = []
        hold.on_notice = notices.append
        await hold.open_session("arrays", "train.py", settings={"CUDA_CACHE_DISABLE": "1"})
        session = here.host.sessions[hold.lease]
        said = await go(pool, hold, there)
        assert said == f"lease {hold.name}: it is being moved from {here.name} to {there.name}"
        await until(lambda: program.answers)
        assert program.answers == [""]
        [(old, offer)] = program.offers
        assert (old, offer.server, offer.session) == (
            session,
            there.name,
            there.host.sessions[hold.lease],
        )
        assert there.host.opened == [(hold.lease, "arrays", "train.py")]
        await until(lambda: is_settled(here, hold.lease) and is_settled(there, hold.lease))
        assert (here.host.workers, there.host.workers) == ({}, {hold.lease: 1})
        assert not here.host.departing
        assert hold.servers == (there.id,)
        assert [part.server for part in hold.partitions] == [there.id]
        await until(lambda: notices)
        assert notices == [f"it goes on with GPU 0 of {there.name}"]
        [answer] = await hold.open_session("arrays", "more.py")
        assert answer.server == there.name
        assert await hold.check() == ""
        await hold.release()
        await until(lambda: lease_at(there, hold.lease) is None)
        assert there.host.workers == {}
        assert [event.kind for event in (await pool.view()).events if "mov" in event.kind] == [
            "moving",
            "moved",
        ]


async def test_a_lease_without_a_session_goes_at_once(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster, here, there = await started(nursery)
    async with cluster.client() as pool:
        hold = await held(pool, here, Program("nobody is asked"), nursery)
        await go(pool, hold, there)
        await until(lambda: is_settled(here, hold.lease) and hold.servers == (there.id,))
        assert there.host.workers == {}
        await go(pool, hold, here)  # and back
        await until(lambda: is_settled(there, hold.lease) and hold.servers == (here.id,))
        [answer] = await hold.open_session("arrays", "train.py")
        assert answer.server == here.name


async def test_a_host_or_a_program_that_says_no_has_it_stay(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster, here, there = await started(nursery)
    async with cluster.client() as pool:
        program = Program("it has a sparse matrix")
        hold = await held(pool, here, program, nursery)
        notices: list[str] = []
        hold.on_notice = notices.append
        await hold.open_session("arrays", "train.py")
        for why in ("its program uses the CUDA door", "it has a sparse matrix"):
            here.host.stays = why if "CUDA" in why else ""
            await go(pool, hold, there)
            await until(lambda: notices)
            assert notices == [f"it was not moved, and runs on: {why}"]
            notices.clear()
            await until(lambda: is_settled(there, hold.lease))
            assert (here.host.workers, there.host.workers) == ({hold.lease: 1}, {})
        assert len(program.offers) == 1, "the host's refusal reached no program"
        assert hold.servers == (here.id,)
        assert hold.lost == ""


async def test_no_other_session_is_opened_meanwhile(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster, here, there = await started(nursery)
    async with cluster.client() as pool:
        program = Program()
        hold = await held(pool, here, program, nursery)
        await hold.open_session("arrays", "train.py")
        where: list[str] = []
        asked = trio.Event()

        async def open_one() -> None:
            where.extend(each.server for each in await hold.open_session("arrays", "second"))

        async def before_asking() -> None:
            nursery.start_soon(open_one)
            await trio.sleep(5)
            assert len(here.host.opened) == 1
            assert len(there.host.opened) == 1
            asked.set()

        program.before_asking = before_asking
        await go(pool, hold, there)
        await asked.wait()
        await until(lambda: where)
        assert where == [there.name]


async def test_a_client_that_knows_no_moves_stays(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    """It does not come to the new server, which gives the part up."""
    cluster, here, there = await started(nursery)
    async with cluster.client() as pool:
        hold = await pool.allocate(request(pool, servers=(here.name,)), wait_s=0)
        await hold.open_session("arrays", "train.py")
        await go(pool, hold, there)
        found = lease_at(there, hold.lease)
        assert found is not None
        await until(lambda: is_settled(there, hold.lease), within_s=60)
        assert hold.servers == (here.id,)
        assert hold.lost == ""
        assert here.host.workers == {hold.lease: 1}


@pytest.mark.parametrize("fault", ["no answer", "late question", "minority"])
async def test_an_answer_that_is_lost_is_asked_of_the_new_server(
    fault: str, autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster, here, there = await started(nursery)
    async with cluster.client() as pool:
        program = Program()
        hold = await held(pool, here, program, nursery)
        await hold.open_session("arrays", "train.py")

        async def lose() -> None:
            cluster.fall_silent(here.name, hears=fault != "late question")
            if fault == "minority":
                cluster.cut_off(here)

        program.before_asking = lose
        await go(pool, hold, there)
        await until(lambda: program.answers, within_s=120)
        await trio.sleep(20)
        # A late question comes as its connection closes, before the refusal or after it.
        expected = {"no answer": [True], "late question": [True, False], "minority": [False]}
        assert (program.answers == [""]) in expected[fault]
        if program.answers == [""]:
            assert hold.servers == (there.id,)
            assert hold.lost == ""
            found = lease_at(there, hold.lease)
            assert found is not None
            assert found.held
        else:
            assert program.answers == ["its old server did not answer"]
            await until(lambda: hold.lost)
            assert hold.lost.startswith(f"lost server {here.name}")


@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.003, 0.005, 0.01, 0.05])
async def test_the_old_server_dies_while_it_is_asked(
    after_s: float, autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    """Whenever that is, the program goes on if the pool says so, and is lost otherwise."""
    cluster, here, there = await started(nursery)
    async with cluster.client() as pool:
        program = Program()
        hold = await held(pool, here, program, nursery)
        await hold.open_session("arrays", "train.py")

        async def die() -> None:
            await trio.sleep(after_s)
            await cluster.crash(here)

        async def lose() -> None:
            nursery.start_soon(die)

        program.before_asking = lose
        await go(pool, hold, there)
        await until(lambda: program.answers or hold.lost, within_s=120)
        await trio.sleep(20)
        found = lease_at(there, hold.lease)
        if program.answers == [""]:
            assert hold.lost == ""
            assert hold.servers == (there.id,)
            assert found is not None
            assert found.held
            assert there.host.workers == {hold.lease: 1}
        else:
            assert hold.lost.startswith(f"lost server {here.name}")
            assert there.host.workers == {}


@pytest.mark.parametrize("which", ["old", "new"])
async def test_a_server_dies_when_the_program_has_gone_and_does_not_know_it_yet(
    which: str, autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster, here, there = await started(nursery)
    async with cluster.client() as pool:
        program = Program()
        hold = await held(pool, here, program, nursery)
        await hold.open_session("arrays", "train.py")
        over = trio.Event()

        async def lose() -> None:
            await cluster.crash(here if which == "old" else there)
            await trio.sleep(10)
            over.set()

        program.after_asking = lose
        await go(pool, hold, there)
        await over.wait()
        await trio.sleep(1)
        if which == "old":
            assert hold.lost == ""
            assert hold.servers == (there.id,)
        else:
            assert hold.lost.startswith(f"lost server {there.name}")


async def test_the_new_server_is_lost_before_the_program_asks(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster, here, there = await started(nursery)
    async with cluster.client() as pool:
        program = Program()
        hold = await held(pool, here, program, nursery)
        await hold.open_session("arrays", "train.py")

        async def lose() -> None:
            await cluster.crash(there)
            program.stays = "it lost the other server"
            raise UsageError(program.stays)

        program.before_asking = lose
        await go(pool, hold, there)
        await until(lambda: program.stays)

        def stays() -> bool:
            found = lease_at(here, hold.lease)
            known = found.relocation if found is not None else None
            return known is not None and known.state is RelocationState.STAYS

        await until(stays)
        assert hold.lost == ""
        assert here.host.workers == {hold.lease: 1}


async def test_the_client_goes_away_on_the_way(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster, here, there = await started(nursery)
    async with cluster.client() as pool:
        program = Program()
        hold = await held(pool, here, program, nursery)
        await hold.open_session("arrays", "train.py")

        async def end() -> None:
            await hold.release()

        program.before_asking = end
        await go(pool, hold, there)
        await until(lambda: lease_at(here, hold.lease) is None)
        await until(lambda: not here.host.workers and not there.host.workers)
        assert program.answers != [""]


async def test_who_may_ask_to_go_on(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    cluster, here, there = await started(nursery)
    async with cluster.client() as pool, cluster.client() as other:
        hold = await held(pool, here, Program("it stays"), nursery)
        connection = other.connections.by_server[here.id]

        async def why(order: m.GoOn, error: type[GpupoolError]) -> str:
            with pytest.raises(error) as found:
                await connection.call(order, timeout_s=3)
            return str(found.value)

        order = m.GoOn(hold.lease, 1, there.id)
        assert "is not attached to this connection" in await why(order, DeniedError)
        unknown = m.GoOn(LeaseId(1), 1, ServerId("none"))
        assert "has ended" in await why(unknown, GpupoolError)
