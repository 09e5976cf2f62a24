"""Leases that are suspended and resumed, with real workers on emulated GPUs."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from host_kit import GIB, HostKit, MakeHost

from gpupool.pool.errors import LeaseSuspendedError
from gpupool.pool.host_suspension import HostSuspension, SuspensionPhase
from gpupool.pool.model.state import Lease
from gpupool.remoting.host import session_opener
from gpupool.remoting.host.worker_handle import WorkerHandle

P = SuspensionPhase
SOON_S = 10.0


async def reaches(kit: HostKit, lease: Lease, phase: SuspensionPhase) -> HostSuspension:
    with trio.fail_after(SOON_S):
        while (found := kit.host.suspensions()[lease.id]).phase is not phase:  # noqa: ASYNC110
            await trio.sleep(0.002)
    return found


def state_of(worker: WorkerHandle) -> str:
    status = Path(f"/proc/{worker.process.pid}/status").read_text()
    return next(line.split()[1] for line in status.splitlines() if line.startswith("State:"))


async def test_calls_and_sessions_wait_while_a_lease_is_suspended(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = await make_host()
    lease = kit.lease()
    client, worker = await kit.connect(lease)
    assert await client.reserve(GIB // 2)
    kit.host.suspend(lease.id, 1)
    kit.host.suspend(lease.id, 1)
    assert await reaches(kit, lease, P.SUSPENDED) == HostSuspension(1, P.SUSPENDED)
    await kit.logged(f"lease {lease.id:04x} suspended, 0 MiB in")
    assert state_of(worker) == "T"
    assert kit.host.idle_s()[lease.id] == 0.0
    gpu = lease.partitions[0].gpu
    assert kit.host.telemetry()[0][0].memory_used == 0
    monkeypatch.setattr(session_opener, "SUSPENDED_ANSWER_S", 0.02)
    with pytest.raises(LeaseSuspendedError, match="its lease is suspended"):
        await kit.open(lease)
    monkeypatch.undo()
    answered = trio.Event()

    async def ask() -> None:
        assert await client.usage() == GIB // 2
        answered.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        nursery.start_soon(kit.connect, lease)
        await trio.sleep(0.05)
        assert not answered.is_set()
        assert kit.host.worker_count() == {lease.id: 1}
        kit.host.resume(lease.id, 2)
        with trio.fail_after(SOON_S):
            await answered.wait()
    assert await reaches(kit, lease, P.RUNNING) == HostSuspension(2, P.RUNNING)
    await kit.logged(f"lease {lease.id:04x} resumed, 0 MiB in")
    assert kit.host.budget.usage(lease.id, gpu) == GIB // 2
    assert not worker.process.exited.is_set()
    assert kit.host.worker_count() == {lease.id: 2}


async def test_all_workers_of_a_lease_stop_and_no_others(make_host: MakeHost) -> None:
    """One may die meanwhile, and the lease may end as at any other time."""
    kit = await make_host(warm_workers=1)
    lease, other = kit.lease(), kit.lease(0x7F3B)
    (first, one), (second, two) = [await kit.connect(lease) for _ in range(2)]
    beside, stranger = await kit.connect(other)
    spare = await kit.warm()
    kit.host.suspend(lease.id, 1)
    await reaches(kit, lease, P.SUSPENDED)
    assert [state_of(each) for each in (one, two)] == ["T", "T"]
    assert "T" not in (state_of(stranger), state_of(spare))
    assert await beside.usage() == 0

    one.kill("it was hit")
    with trio.fail_after(SOON_S):
        await one.ended.wait()
        assert await first.at_end()
    kit.host.resume(lease.id, 1)
    await reaches(kit, lease, P.RUNNING)
    assert await second.usage() == 0

    kit.host.suspend(lease.id, 5)
    await reaches(kit, lease, P.SUSPENDED)
    kit.host.resume(lease.id, 4)  # overtaken
    await trio.sleep(0.05)
    assert kit.host.suspensions()[lease.id] == HostSuspension(5, P.SUSPENDED)
    kit.host.resume(lease.id, 5)
    await reaches(kit, lease, P.RUNNING)
    kit.host.suspend(lease.id, 5)  # and so is this one
    assert kit.host.suspensions()[lease.id] == HostSuspension(5, P.RUNNING)
    assert await second.usage() == 0

    kit.host.suspend(lease.id, 6)
    await reaches(kit, lease, P.SUSPENDED)
    with trio.fail_after(SOON_S):
        await kit.host.kill_lease(lease.id, "it is over")
        assert await second.at_end()
    assert two.process.returncode == -signal.SIGKILL
    assert kit.host.suspensions() == {}
    assert not two.directory.exists()


async def test_a_suspended_lease_goes_on_with_another_gpu(make_host: MakeHost) -> None:
    kit = await make_host()
    lease = kit.lease()
    client, worker = await kit.connect(lease)
    assert await client.reserve(GIB // 2)
    [part] = lease.partitions
    other = next(gpu.id for gpu in kit.host.gpus() if gpu.id != part.gpu)
    kit.host.suspend(lease.id, 1)
    await reaches(kit, lease, P.SUSPENDED)
    refused = trio.Event()

    async def ask() -> None:
        with pytest.raises(LeaseSuspendedError, match="its lease is suspended"):
            await kit.open(lease)  # asked for with the GPU of before
        refused.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.sleep(0.05)
        kit.host.resume(lease.id, 1, {part.gpu: other})
        kit.host.resume(lease.id, 1, {part.gpu: other})  # as each look at the table says it again
        with trio.fail_after(SOON_S):
            await refused.wait()
    await reaches(kit, lease, P.RUNNING)
    budget = kit.host.budget
    assert (budget.usage(lease.id, part.gpu), budget.usage(lease.id, other)) == (0, GIB // 2)
    assert (budget.partition(lease.id, part.gpu), worker.session.devices) == (0, (other,))
    assert await client.usage() == GIB // 2
    assert await client.reserve(GIB // 4)
    assert budget.usage(lease.id, other) == GIB // 2 + GIB // 4
    used = {each.gpu: each.memory_used for each in kit.host.telemetry()[0]}
    assert (used[part.gpu], used[other]) == (0, GIB // 2 + GIB // 4)
    moved = replace(lease, partitions=(replace(part, gpu=other),))
    second, _ = await kit.connect(moved)
    assert await second.usage() == GIB // 2 + GIB // 4
