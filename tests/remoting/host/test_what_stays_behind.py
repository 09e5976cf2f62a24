"""Remains of an ended lease, or of a departed client, on a host: none."""

import signal
from typing import Any

import pytest
import trio
from host_kit import MakeHost, until

from gpupool.pool.errors import GpupoolError, LeaseLostError
from gpupool.pool.host_suspension import SuspensionPhase
from gpupool.remoting.host.privileged_helper import OwnHelper
from gpupool.remoting.protocol.helper_messages import BuryWorker, Moved, RequestFor, SuspendWorkers


async def test_an_opening_that_begins_while_its_lease_ends_is_refused(make_host: MakeHost) -> None:
    """A client that asks for a session and releases its lease at once ends no server.

    The books were closed below an opening that began after the others had been cancelled, and
    what came of that was no error that anybody expects.
    """
    kit = await make_host()
    lease = kit.lease()
    _client, worker = await kit.connect(lease)
    refused: list[GpupoolError] = []

    async def open_session() -> None:
        with pytest.raises(LeaseLostError) as error:
            await kit.open(lease)
        refused.append(error.value)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(kit.host.kill_lease, lease.id, "its client has released it")
        while not worker.ending.kill_reason:
            await trio.lowlevel.checkpoint()
        nursery.start_soon(open_session)
    assert refused
    assert not kit.host.budget.leases()


async def test_a_lease_that_lost_its_worker_leaves_nothing(make_host: MakeHost) -> None:
    """The host never forgot a lease with workers that had ended before it."""
    kit = await make_host()
    lease = kit.lease()
    client, worker = await kit.connect(lease)
    client.stream.close()
    await worker.ended.wait()
    assert kit.host.worker_count() == {lease.id: 0}
    await kit.host.kill_lease(lease.id, "the table does not hold this lease here")
    assert kit.host.worker_count() == {}
    assert kit.host.telemetry()[1] == ()


async def test_no_session_gets_a_worker_that_is_being_buried(make_host: MakeHost) -> None:
    """A spare that died looked warm until all of it was removed."""
    kit = await make_host(warm_workers=1)
    spare = await kit.warm()
    helper = kit.host.helper
    assert isinstance(helper, OwnHelper)
    ask, may_end = helper.ask, trio.Event()

    async def bury_late(asked: RequestFor[Any], *descriptors: int) -> Any:
        if isinstance(asked, BuryWorker):
            await may_end.wait()
        return await ask(asked, *descriptors)

    helper.ask = bury_late
    kit.kept(spare).process.send_signal(signal.SIGKILL)
    await spare.process.exited.wait()
    try:
        info = await kit.open(kit.lease())
    finally:
        may_end.set()
    assert kit.worker_of(info) is not spare


async def test_a_lease_that_ends_while_it_is_suspended_is_in_use_no_more(
    make_host: MakeHost,
) -> None:
    kit = await make_host()
    lease = kit.lease()
    await kit.connect(lease)
    ask = kit.host.helper.ask
    began, ends = trio.Event(), trio.Event()

    async def suspend(asked: RequestFor[Any], *descriptors: int) -> Any:
        if not isinstance(asked, SuspendWorkers):
            return await ask(asked, *descriptors)
        assert len(asked.stop) == 1
        began.set()
        await ends.wait()
        return Moved("one of its workers ended meanwhile")

    kit.host.helper.ask = suspend
    kit.host.suspend(lease.id, 1)
    await began.wait()
    await kit.host.kill_lease(lease.id, "its client disconnected")
    ends.set()
    await kit.logged("could not be suspended")
    assert kit.host.idle_s() == {}


async def test_a_lease_that_ends_while_it_is_suspended_without_workers_is_forgotten(
    make_host: MakeHost,
) -> None:
    """The host of a part that was never used noted the suspension for ever."""
    kit = await make_host()
    lease = kit.lease().id
    kit.host.suspend(lease, 1)
    await until(lambda: kit.host.suspensions()[lease].phase is SuspensionPhase.SUSPENDED)
    assert kit.host.worker_count() == {lease: 0}
    await kit.host.kill_lease(lease, "the table does not hold this lease here")
    assert not kit.host.suspensions()
    assert kit.host.worker_count() == {}
