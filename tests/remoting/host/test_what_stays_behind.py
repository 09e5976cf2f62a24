"""What a host keeps of a lease that has ended, or of a client that has gone: nothing."""

import signal

import pytest
import trio
from host_kit import MakeHost

from gpupool.pool.errors import GpupoolError, LeaseLostError
from gpupool.remoting.host.keepers import OwnKeeper


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
        while not worker.kill_reason:
            await trio.lowlevel.checkpoint()
        nursery.start_soon(open_session)
    assert refused
    assert not kit.host.budget.leases()


async def test_no_session_gets_a_worker_that_is_being_buried(make_host: MakeHost) -> None:
    """A spare that died looked warm until all of it was removed."""
    kit = await make_host(warm_workers=1)
    spare = await kit.warm()
    keeper = kit.host.keeper
    assert isinstance(keeper, OwnKeeper)
    bury, may_end = keeper.bury, trio.Event()

    async def bury_late(number: int) -> bool:
        await may_end.wait()
        return await bury(number)

    keeper.bury = bury_late
    kit.kept(spare).process.send_signal(signal.SIGKILL)
    await spare.exited.wait()
    try:
        info = await kit.open(kit.lease())
    finally:
        may_end.set()
    assert kit.worker_of(info) is not spare
