"""Leases that are taken at the first use, and held ones' clock: under virtual time."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
import trio
import trio.testing
from tests.remoting.control.control_cluster import Cluster, request
from tests.remoting.control.control_kit import until

from gpupool.pool.errors import NeverFitsError
from gpupool.remoting.client.lease_handle import LeaseHandle
from gpupool.remoting.client.pool_client import Pool
from gpupool.remoting.client.server_connections import gist
from gpupool.remoting.program import holder, lease_source
from gpupool.remoting.program.lease_source import LazyLease
from gpupool.remoting.program.program_lease import SessionRequest
from gpupool.remoting.program.program_run import ends_text
from gpupool.remoting.protocol import messages as m

Clock = trio.testing.MockClock

SESSION = SessionRequest("arrays", "x.py")


@dataclass
class Asked:
    """The request for a lease at first use, and its outcome."""

    cluster: Cluster
    count: int = 1
    wait_s: float | None = 0.0
    taken: list[str] = field(default_factory=list[str])

    async def allocate(self, pool: Pool) -> LeaseHandle:
        wanted = replace(request(pool, self.count, idle_timeout_s=60.0))
        return await pool.allocate(wanted, wait_s=self.wait_s)

    async def note(self, _pool: Pool, hold: LeaseHandle) -> None:
        await trio.lowlevel.checkpoint()
        self.taken.append(hold.name)


@pytest.fixture
async def asked(
    autojump_clock: Clock, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> Asked:
    cluster = Cluster(nursery)
    await cluster.start([1, 1])

    @asynccontextmanager
    async def connected(_credentials: str | None, _patience: object) -> AsyncGenerator[Pool]:
        async with cluster.client() as pool:
            yield pool

    monkeypatch.setattr(lease_source, "connected", connected)
    return Asked(cluster)


def lazy(asked: Asked) -> LazyLease:
    return LazyLease(None, asked.allocate, asked.note)


async def test_nothing_is_taken_before_it_is_used(asked: Asked, autojump_clock: Clock) -> None:
    lease = lazy(asked)
    async with trio.open_nursery() as running:
        running.start_soon(lease.run)
        await trio.sleep(1000)
        assert (lease.name, lease.server_names(), asked.cluster.granted()) == ("", (), 0)
        async with trio.open_nursery() as processes:
            for _ in range(3):  # at once, and they share one lease
                processes.start_soon(lease.open_session, SESSION)
        assert asked.taken == [lease.name]
        assert len(lease.server_names()) == 1
        assert asked.cluster.granted()
        lease.close()
    await until(lambda: not asked.cluster.granted())


async def test_who_cannot_have_a_lease_may_ask_again(asked: Asked, autojump_clock: Clock) -> None:
    lease = lazy(asked)
    asked.count = 3
    async with trio.open_nursery() as running:
        running.start_soon(lease.run)
        for _ in range(2):
            with pytest.raises(NeverFitsError):
                await lease.open_session(SESSION)
        asked.count = 1
        assert len(await lease.open_session(SESSION)) == 1
        lease.close()


async def test_who_ends_while_it_waits_leaves_the_line(asked: Asked, autojump_clock: Clock) -> None:
    lease = lazy(asked)
    asked.wait_s = None
    async with asked.cluster.client() as other:
        for _ in range(2):
            await other.allocate(request(other), wait_s=0)
        async with trio.open_nursery() as program:
            program.start_soon(lease.run)
            program.start_soon(lease.open_session, SESSION)
            await until(lambda: asked.cluster.state.waiting)
            lease.close()
            await until(lambda: not asked.cluster.state.waiting)
            program.cancel_scope.cancel()


async def test_a_lost_lease_is_followed_by_another(asked: Asked, autojump_clock: Clock) -> None:
    lease = lazy(asked)
    async with trio.open_nursery() as running:
        running.start_soon(lease.run)
        for number in range(2):
            await lease.open_session(SESSION)
            [*_, name] = asked.taken
            assert len(asked.taken) == number + 1
            why = await lease.wait_lost()  # nobody uses it
            assert why == f"it was not used for 1 min, its idle timeout; lease {name} is void"
        lease.close()
    assert len(set(asked.taken)) == 2


# --- the clock of a held lease --------------------------------------------------------------------


@dataclass
class Place:
    told: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])

    async def notify(self, text: str) -> None:
        await trio.lowlevel.checkpoint()
        self.told.append((trio.current_time(), text))


@pytest.mark.parametrize(("time_s", "told_at", "words"), [(7200.0, 7140.0, "1m"), (0.0, 0.0, "")])
async def test_a_held_lease_ends_after_its_time(
    autojump_clock: Clock, time_s: float, told_at: float, words: str
) -> None:
    spec = holder.HolderSpec(cast(Any, None), None, time_s, None, None)
    held, place = holder._Holder(spec), Place()  # pyright: ignore[reportPrivateUsage]
    start = trio.current_time()
    await held._watch_time(cast(Any, place))  # pyright: ignore[reportPrivateUsage]
    assert trio.current_time() - start == time_s
    assert [(at - start, words in text) for at, text in place.told] == (
        [(told_at, True)] if time_s else []
    )
    assert held._over.is_set() is bool(time_s)  # pyright: ignore[reportPrivateUsage]


def test_when_a_lease_ends_by_itself() -> None:
    assert ends_text(0, 0) == ""
    assert ends_text(1800, 0) == ", ends when unused for 30m"
    assert ends_text(0, 7200) == ", ends in 2h00m at the latest"
    assert ends_text(60, 7200, 3600) == (", ends when unused for 1m00s, and in 1h00m at the latest")


# --- what logs say --------------------------------------------------------------------------------


def secrets_in_messages() -> Iterator[m.Message]:
    secret = b"very secret 32 bytes of a ticket"
    yield m.Attach(cast(Any, 7), secret)
    yield m.Hello(1, "1", cast(Any, "t"), secret, "ada@laptop")
    yield m.Refused("denied", "no", "because")


def test_logs_name_messages_and_hold_no_secret() -> None:
    texts = [gist(message) for message in secrets_in_messages()]
    assert texts == ["Attach", "Hello", "Refused: no: because"]
