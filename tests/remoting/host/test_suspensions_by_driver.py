"""Leases on real GPUs that are suspended and resumed: the driver's part is one without a GPU."""

import errno
import os
import struct
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from cuda_memory_door import KEPT_AT, KEPT_SIZE
from fake_nvml import FakeNvml, device
from host_kit import GIB, SERVER, EchoClient, HostKit, MakeHost

from gpupool.pool.errors import GpupoolError
from gpupool.pool.host_suspension import HostSuspension, SuspensionPhase
from gpupool.pool.model.ids import GpuId, LeaseId
from gpupool.pool.model.state import Lease
from gpupool.remoting.host import host_memory
from gpupool.remoting.host.host_parts import HostLimits
from gpupool.remoting.host.inventory import Inventory
from gpupool.remoting.host.suspension import room, spilled_memory, suspensions
from gpupool.remoting.host.suspension.spilled_memory import SpillError
from gpupool.remoting.host.worker_handle import WorkerHandle

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "driver_api"))

from fake_cuda.build import build  # noqa: E402
from fake_cuda.control import CHECKPOINTED, Control  # noqa: E402

P = SuspensionPhase
SOON_S = 20.0
MIB = 1 << 20
GPU = "GPU-fa4e0000-0000-4000-8000-000000000000"
OTHER = GpuId("GPU-fa4e0000-0000-4000-8000-000000000001")
CONTEXT = 512 * MIB  # as assumed while NVML names no process


@pytest.fixture
def control(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, door_on_path: None
) -> Iterator[Control]:
    """Give this process and its workers a driver with GPUs of 141 GiB."""
    site = tmp_path / "site"
    site.mkdir()
    with Control(tmp_path) as found:
        found.path.chmod(0o666)
        values = found.environment(build(), devices=2, memory=141 * GIB) | {"FAKE_CUDA_RECORD": ""}
        settings = f"import os\nos.environ.update({values!r})\n"
        (site / "sitecustomize.py").write_text(settings)
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        paths = (str(site), str(HERE / "fake_cupy"), os.environ["PYTHONPATH"])
        monkeypatch.setenv("PYTHONPATH", ":".join(paths))
        # Of the machine: the tests must not depend on who else uses it.
        monkeypatch.setattr(host_memory, "machine_memory", lambda: 512 * GIB)
        monkeypatch.setattr(host_memory, "available", lambda: 256 * GIB)
        yield found


@pytest.fixture
async def start(make_host: MakeHost, control: Control) -> Callable[..., Any]:
    """Start a host with the GPUs of ``control``."""

    async def run(**limits: Any) -> HostKit:
        found = [replace(device(0), uuid=GPU), replace(device(1), uuid=OTHER)]
        nvml = FakeNvml(found=found)
        kit = await make_host(
            Inventory.discover(SERVER, nvml),
            limits=HostLimits(**limits),
            doors={"echo": "cuda_memory_door:serve"},
            confine=frozenset[str](),
            landlock=False,
            own_uids=False,
        )
        nvml.processes = lambda uuid: {1: control.memory_used(int(uuid == OTHER))}
        return kit

    return run


async def allocate(client: EchoClient, size: int) -> bytes:
    return await client.ask(b"a", struct.pack(">Q", size))


async def reaches(kit: HostKit, lease: Lease, phase: SuspensionPhase) -> HostSuspension:
    found = kit.host.suspensions()[lease.id]
    with trio.move_on_after(SOON_S):
        while found.phase is not phase:
            await trio.sleep(0.005)
            found = kit.host.suspensions()[lease.id]
    assert found.phase is phase, (found, kit.log[-3:])
    return found


def is_stopped(worker: WorkerHandle) -> bool:
    return "State:\tT" in Path(f"/proc/{worker.process.pid}/status").read_text()


@asynccontextmanager
async def waiting(client: EchoClient) -> AsyncGenerator[trio.Event]:
    """Read memory meanwhile; the event says that it was there."""
    told = trio.Event()

    async def read() -> None:
        assert await client.ask(b"r") == b"right"
        told.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        yield told


async def test_memory_goes_to_another_and_comes_back_when_there_is_room(
    start: Callable[..., Any], control: Control
) -> None:
    kit = await start()
    lease, other = kit.lease(memory=100 * GIB), kit.lease(0x7F3B, memory=100 * GIB)
    first, worker = await kit.connect(lease)
    second, _ = await kit.connect(lease)
    bare, bare_worker = await kit.connect(lease)  # has not used CUDA yet
    assert [await allocate(each, 40 * GIB) for each in (first, second)] == [b"had", b"had"]
    kit.host.suspend(lease.id, 1)
    found = await reaches(kit, lease, P.SUSPENDED)
    assert found == HostSuspension(1, P.SUSPENDED, bytes=80 * GIB + 3 * CONTEXT)
    assert control.memory_used() == 0
    assert sorted(control.states().values()).count(CHECKPOINTED) == 2
    assert is_stopped(bare_worker)
    assert kit.host.budget.used_on(lease.partitions[0].gpu) == found.bytes
    async with waiting(first) as told, waiting(second):
        third, _ = await kit.connect(other)
        assert await allocate(third, 90 * GIB) == b"had"
        kit.host.resume(lease.id, 2)
        with trio.fail_after(SOON_S):
            while not (found := kit.host.suspensions()[lease.id]).reason:  # noqa: ASYNC110
                await trio.sleep(0.005)
        assert found.phase is P.RESUMING
        assert found.reason.startswith(f"it needs 83456 MiB of GPU {GPU}, of which ")
        assert not told.is_set()
        await kit.host.kill_lease(other.id, "it is over")
        await reaches(kit, lease, P.RUNNING)
    assert await allocate(bare, GIB) == b"had"
    assert not worker.process.exited.is_set()


reads_memory = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root may read a worker's memory; join refuses --suspend-spill"
)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take memory of a worker for that of the driver: the one without a GPU moves none there."""

    def find(_before: object, after: Sequence[spilled_memory.Area]) -> list[spilled_memory.Area]:
        return [each for each in after if each.start == KEPT_AT]

    monkeypatch.setattr(spilled_memory, "mapped_since", find)


@reads_memory
async def test_what_does_not_fit_into_memory_goes_to_the_disk(
    start: Callable[..., Any], kept: None, tmp_path: Path
) -> None:
    spill = tmp_path / "spill"
    spill.mkdir()
    kit = await start(suspend_memory=GIB - MIB, suspend_spill=spill)
    lease, small = kit.lease(memory=4 * GIB), kit.lease(0x7F3B, memory=4 * GIB)
    client, worker = await kit.connect(lease)
    other, _ = await kit.connect(small)
    assert [
        await allocate(each, size) for each, size in ((client, GIB // 2), (other, MIB))
    ] == 2 * [b"had"]
    assert await client.ask(b"k") == b"kept"
    had = host_memory.resident(worker.process.pid)
    for number in (1, 3):  # what is on the disk does not count against the memory
        kit.host.suspend(lease.id, number)
        await reaches(kit, lease, P.SUSPENDED)
        assert host_memory.resident(worker.process.pid) < had - KEPT_SIZE + MIB
        kit.host.suspend(small.id, number)
        await reaches(kit, small, P.SUSPENDED)
        assert not list(spill.iterdir())
        kit.host.resume(small.id, number + 1)
        kit.host.resume(lease.id, number + 1)
        await reaches(kit, lease, P.RUNNING)
        await reaches(kit, small, P.RUNNING)
        assert await client.ask(b"r") == await other.ask(b"r") == b"right"
    assert any("suspended, 1024 MiB, of which 32 MiB on the disk in" in line for line in kit.log)
    kit.host.suspend(lease.id, 5)
    await reaches(kit, lease, P.SUSPENDED)
    with trio.fail_after(SOON_S):
        await kit.host.kill_lease(lease.id, "it is over")
        assert await client.at_end()


@reads_memory
async def test_what_the_disk_does_not_take_runs_on(
    start: Callable[..., Any], kept: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kit = await start(suspend_memory=GIB - MIB, suspend_spill=tmp_path)
    lease = kit.lease(memory=4 * GIB)
    client, _ = await kit.connect(lease)
    assert await allocate(client, GIB // 2) == b"had"
    assert await client.ask(b"k") == b"kept"

    async def refused(number: int) -> str:
        kit.host.suspend(lease.id, number)
        found = await reaches(kit, lease, P.REFUSED)
        assert await client.ask(b"r") == b"right"
        return found.reason

    monkeypatch.setattr(room, "DISK_KEEPS", 1.0)
    assert (await refused(1)).endswith(f"0 MiB are to spare in {tmp_path} (--suspend-spill)")
    monkeypatch.setattr(room, "DISK_KEEPS", 0.0)

    def fail(*_: object) -> None:
        raise SpillError("it cannot be written: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(spilled_memory, "_write", fail)
        assert (await refused(2)).startswith("its memory cannot go to the disk: it cannot be writ")
    with monkeypatch.context() as patch:
        patch.setattr(spilled_memory.SpilledMemory, "drop", fail)
        assert (await refused(3)).startswith("its memory cannot go to the disk: it cannot be writ")

    def no_descriptor(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(spilled_memory.SpilledMemory, "save", no_descriptor)
        assert "Too many open files" in await refused(6)
    kit.host.suspend(lease.id, 7)
    await reaches(kit, lease, P.SUSPENDED)
    kit.host.resume(lease.id, 7)
    await reaches(kit, lease, P.RUNNING)
    assert await allocate(client, GIB) == b"had"
    assert (await refused(8)).endswith("the server's NVIDIA driver keeps it where it is not found")


async def test_a_folder_that_takes_nothing_is_said_at_the_start(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    with pytest.raises(GpupoolError, match="no memory of suspended programs can go to"):
        await start(suspend_spill=tmp_path / "missing")


def test_a_folder_in_memory_is_none_on_a_disk(tmp_path: Path) -> None:
    def check(folder: str) -> None:
        room.Room(0, lambda: (0, 0), Path(folder)).check()

    check(str(tmp_path))
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    with pytest.raises(GpupoolError, match="no memory of suspended programs can go"):
        check(str(folder))
    folder.rmdir()


@pytest.mark.long
async def test_a_lease_goes_on_with_another_gpu_or_back_where_it_was(
    start: Callable[..., Any], control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = await start()
    lease, gpu = kit.lease(memory=100 * GIB), GpuId(GPU)
    first, worker = await kit.connect(lease)
    second, _ = await kit.connect(lease)
    assert [await allocate(each, 40 * GIB) for each in (first, second)] == [b"had", b"had"]
    size = 80 * GIB + 2 * CONTEXT

    async def move(number: int, old: GpuId, new: GpuId, phase: SuspensionPhase) -> HostSuspension:
        kit.host.suspend(lease.id, number)
        await reaches(kit, lease, P.SUSPENDED)
        kit.host.resume(lease.id, number, {old: new})
        return await reaches(kit, lease, phase)

    def has(on: GpuId, off: GpuId) -> None:
        assert (kit.host.budget.used_on(on), kit.host.budget.used_on(off)) == (size, 0)
        used = [control.memory_used(int(each == OTHER)) for each in (on, off)]
        assert used == [80 * GIB, 0]
        assert (worker.session.devices, worker.session.real) == ((on,), (on,))

    await move(1, gpu, OTHER, P.RUNNING)
    has(OTHER, gpu)
    assert [await each.ask(b"r") for each in (first, second)] == [b"right", b"right"]
    # The second worker is refused; the first one, which is there already, goes back with it.
    control.set_fault("cuCheckpointProcessRestore", 1, after=2, times=3)
    found = await move(2, OTHER, gpu, P.STRANDED)
    assert "does not restore it on the other GPU" in found.reason
    assert control.memory_used(0) == control.memory_used(1) == 0
    assert kit.host.budget.used_on(gpu) == size, "as the table has it"
    kit.host.resume(lease.id, 2, {OTHER: gpu})  # as it says again and again
    assert kit.host.suspensions()[lease.id].phase is P.STRANDED
    kit.host.resume(lease.id, 2)
    await reaches(kit, lease, P.RUNNING)
    has(OTHER, gpu)
    assert [await each.ask(b"r") for each in (first, second)] == [b"right", b"right"]
    # What would find no room is not tried: the driver loses it.
    monkeypatch.setattr(suspensions, "MOVE_TIMEOUT_S", 0.1)
    other, _ = await kit.connect(kit.lease(0x7F3B, memory=100 * GIB))
    assert await allocate(other, 90 * GIB) == b"had"
    found = await move(3, OTHER, gpu, P.STRANDED)
    assert found.reason.startswith(f"it needs 82944 MiB of GPU {GPU}, of which ")
    kit.host.resume(lease.id, 3)
    await reaches(kit, lease, P.RUNNING)
    assert [await each.ask(b"r") for each in (first, second)] == [b"right", b"right"]
    # An order of its own sends it there once more, and it does not run where it was in between.
    await move(4, OTHER, gpu, P.STRANDED)
    await kit.host.kill_lease(LeaseId(0x7F3B), "it is over")
    kit.host.resume(lease.id, 5, {OTHER: gpu})
    await reaches(kit, lease, P.RUNNING)
    has(gpu, OTHER)
    assert [await each.ask(b"r") for each in (first, second)] == [b"right", b"right"]


async def test_what_cannot_be_suspended_runs_on(
    start: Callable[..., Any], control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = await start(suspend_memory=8 * GIB)
    lease = kit.lease(memory=20 * GIB)
    client, worker = await kit.connect(lease)
    assert await allocate(client, GIB) == b"had"
    control.set_fault("cuCheckpointProcessCheckpoint", 801, times=1)
    reasons: list[str] = []

    async def refused(number: int) -> None:
        kit.host.suspend(lease.id, number)
        reasons.append((await reaches(kit, lease, P.REFUSED)).reason)
        assert await client.ask(b"r") == b"right"

    await refused(1)
    monkeypatch.setattr(room, "MACHINE_KEEPS", 1.0)
    await refused(2)
    monkeypatch.undo()
    worker.session.imports = True
    await refused(3)
    worker.session.imports = False
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/run/mps")
    await refused(4)
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY")
    assert await allocate(client, 8 * GIB) == b"had"
    await refused(5)
    assert [reason.split(",")[0] for reason in reasons] == [
        "the server's NVIDIA driver cannot suspend a program that uses the GPU like this one",
        "it has 1536 MiB on its GPUs",
        "its processes share GPU memory with each other",
        "programs on GPUs that NVIDIA's MPS shares cannot be suspended",
        "it has 9728 MiB on its GPUs",
    ]
    assert "(--suspend-memory)" in reasons[-1]
    assert "memory to spare" in reasons[1]
    kit.host.resume(lease.id, 6)
    assert kit.host.suspensions()[lease.id] == HostSuspension(6, P.RUNNING)


@pytest.mark.long
async def test_ends_in_the_middle_of_a_suspension(
    start: Callable[..., Any], control: Control
) -> None:
    """Of one worker: the other goes on. Of the lease: nothing is waited for."""
    kit = await start()
    lease = kit.lease(memory=20 * GIB)
    first, worker = await kit.connect(lease)
    second, _ = await kit.connect(lease)
    assert await allocate(first, GIB) == await allocate(second, GIB) == b"had"
    control.set_fault("cuCheckpointProcessCheckpoint", 0, times=1, delay_us=60_000_000)
    kit.host.suspend(lease.id, 1)
    while 1 not in control.states().values():  # noqa: ASYNC110 - locked
        await trio.sleep(0.005)
    worker.kill("it was hit")
    found = await reaches(kit, lease, P.REFUSED)
    assert found.reason == "one of its workers ended meanwhile"
    assert await second.ask(b"r") == b"right"

    control.set_fault("cuCheckpointProcessCheckpoint", 0, times=1, delay_us=60_000_000)
    kit.host.suspend(lease.id, 2)
    while 1 not in control.states().values():  # noqa: ASYNC110
        await trio.sleep(0.005)
    with trio.fail_after(SOON_S):
        await kit.host.kill_lease(lease.id, "it is over")
        assert await second.at_end()
    assert lease.id not in kit.host.suspensions()
