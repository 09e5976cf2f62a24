"""What a host keeps of a lease that has ended, or of a client that has gone: nothing."""

import pytest
import trio
from host_kit import MakeHost

from gpupool.pool.errors import GpupoolError, LeaseLostError


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
