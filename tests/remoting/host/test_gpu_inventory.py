"""The host's use of NVML's readings, with NVML faked and with a worker that uses a GPU."""

import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from fake_binding import ANSWERS, LINKS, FakeBinding, install
from fake_nvml import IDLE, FakeNvml, device
from host_kit import GIB, HERE, SERVER, HostKit, MakeHost, unix_address, until
from trio.testing import MockClock

import gpupool
from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.commands import GpuReading
from gpupool.pool.model.ids import GpuId
from gpupool.remoting.host.device_lock import DeviceLocks
from gpupool.remoting.host.host_parts import HostLimits
from gpupool.remoting.host.inventory import Inventory, OwnUse, emulated_gpus
from gpupool.remoting.host.measuring.nvml import NvmlError, NvmlSample, PynvmlNvml, XidEvent
from gpupool.remoting.host.measuring.slow_readings import SlowReadings
from gpupool.remoting.host.spawn import kernel_directory
from gpupool.remoting.host.worker_handle import WorkerState

GPU0, GPU1 = GpuId("GPU-0"), GpuId("GPU-1")
MIB = 1 << 20


def nothing() -> dict[GpuId, OwnUse]:
    return {}


def reading(inventory: Inventory, gpu: GpuId = GPU0) -> GpuReading:
    return inventory.readings()[gpu]


def test_gpus_are_those_of_nvml_and_then_the_emulated_ones() -> None:
    nvml = FakeNvml(samples={"GPU-1": replace(IDLE, memory_used=3 * GIB)})
    inventory = Inventory.discover(SERVER, nvml, emulated_count=2, emulated_memory=GIB)
    gpus = inventory.gpus()
    assert [gpu.index for gpu in gpus] == [0, 1, 2, 3]
    assert [gpu.emulated for gpu in gpus] == [False, False, True, True]
    assert gpus[0].memory_total == 141 * GIB
    assert gpus[0].capacity == 140 * GIB
    assert gpus[0].compute_capability == "9.0"
    assert gpus[1].memory_foreign == 3 * GIB
    assert gpus[3].memory_total == GIB
    assert (inventory.driver_version, inventory.cuda_version) == ("580.65.06", "13.0")
    assert inventory.has_real


@pytest.mark.parametrize(
    ("only", "found", "problem"),
    [
        (["1"], [1], ""),
        (["GPU-abcd-2", "0"], [0, 2], ""),
        (["GPU-abcd-1", "7"], [1], "there is no GPU 7 here"),
        (["GPU"], [], "there is no GPU GPU here"),  # too short to be meant
    ],
)
def test_a_server_may_offer_some_gpus_only(only: list[str], found: list[int], problem: str) -> None:
    devices = [replace(device(n), uuid=f"GPU-abcd-{n}") for n in range(3)]
    inventory = Inventory.discover(SERVER, FakeNvml(found=devices), only=only)
    assert [gpu.index for gpu in inventory.gpus()] == found
    assert inventory.problem == problem


def test_mig_instances_know_their_gpu_and_share_its_errors() -> None:
    nvml = FakeNvml(found=[device(0), device(1, "GPU-7"), device(2, "GPU-7")])
    inventory = Inventory.discover(SERVER, nvml)
    assert [gpu.parent for gpu in inventory.gpus()] == [None, "GPU-7", "GPU-7"]


def test_machine_without_driver_offers_emulated_gpus_only() -> None:
    inventory = Inventory.discover(SERVER, FakeNvml(absent=True), emulated_count=1)
    assert [gpu.emulated for gpu in inventory.gpus()] == [True]
    assert "Driver Not Loaded" in inventory.problem
    assert not inventory.has_real
    assert "no GPU" in Inventory.discover(SERVER, FakeNvml(found=[])).problem


def test_emulated_gpus_are_named_for_life_and_per_server() -> None:
    first = emulated_gpus("a", 3, GIB)
    assert [gpu.id for gpu in emulated_gpus("a", 2, GIB)] == [gpu.id for gpu in first[:2]]
    assert len({gpu.id for gpu in [*first, *emulated_gpus("b", 3, GIB)]}) == 6
    with pytest.raises(ValueError, match="at most"):
        emulated_gpus("a", 65, GIB)


@pytest.mark.parametrize(
    ("sample", "own", "foreign"),
    [
        # NVML names the processes: whatever is not ours is foreign.
        (NvmlSample(10 * GIB, {1: 4 * GIB, 2: 5 * GIB}), OwnUse(frozenset({1}), GIB), 6 * GIB),
        (NvmlSample(4 * GIB, {1: 4 * GIB}), OwnUse(frozenset({1}), GIB), 0),
        (NvmlSample(3 * GIB, {9: 3 * GIB}), OwnUse(frozenset({1}), 0), 3 * GIB),
        # It does not, or knows other process ids: what the budget accounts is ours.
        (NvmlSample(10 * GIB, None), OwnUse(frozenset({1}), 4 * GIB), 6 * GIB),
        (NvmlSample(10 * GIB, {77: 10 * GIB}), OwnUse(frozenset({1}), 4 * GIB), 6 * GIB),
        (NvmlSample(GIB, None), OwnUse(frozenset({1}), 4 * GIB), 0),
    ],
)
async def test_foreign_memory(sample: NvmlSample, own: OwnUse, foreign: int) -> None:
    inventory = Inventory.discover(SERVER, FakeNvml(samples={"GPU-0": sample}))
    await inventory.sample(lambda: {GPU0: own})
    assert reading(inventory) == GpuReading(foreign, "")


@pytest.mark.parametrize(
    ("sample", "computing"),
    [
        (NvmlSample(2, {1: 1, 2: 1}, 0.5, shares={2: 0.5, 9: 0.5}), {2}),
        (NvmlSample(2, {1: 1, 2: 1}, 0.5, shares={}), set[int]()),
        (NvmlSample(2, {1: 1, 2: 1}, 0.0, shares=None), set[int]()),
        # It is busy, and NVML does not say by whom: rather by all of ours than by nobody.
        (NvmlSample(2, {1: 1, 2: 1}, 0.5, shares=None), {1, 2}),
        (NvmlSample(2, {77: 2}, 0.5, shares={77: 0.5}), {1, 2}),
        (NvmlSample(2, {1: 1, 2: 1}, None, shares=None), set[int]()),  # a MIG instance
    ],
)
async def test_who_computes(sample: NvmlSample, computing: set[int]) -> None:
    inventory = Inventory.discover(SERVER, FakeNvml(samples={"GPU-0": sample}))
    await inventory.sample(lambda: {GPU0: OwnUse(frozenset({1, 2}), 2)})
    assert inventory.computing(GPU0) == computing


async def test_faults_and_recovery() -> None:
    log: list[str] = []
    nvml = FakeNvml()
    inventory = Inventory.discover(SERVER, nvml, log=log.append)
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: nvml.broken.update({"GPU-0": NvmlError("lost", lost=True)}), "off the bus"),
        (lambda: nvml.broken.update({"GPU-0": NvmlError("odd")}), "cannot read it: odd"),
        (nvml.broken.clear, ""),
        (lambda: nvml.samples.update({"GPU-0": replace(IDLE, ecc_errors=2)}), "memory errors"),
        (lambda: nvml.samples.update({"GPU-0": replace(IDLE, row_remap_failed=True)}), "remapped"),
        (lambda: nvml.samples.update({"GPU-0": replace(IDLE, exclusive=True)}), "compute mode"),
        (nvml.samples.clear, ""),
        (lambda: nvml.events.append(XidEvent("GPU-0", 13)), ""),  # a program's fault
        (lambda: nvml.events.append(XidEvent("GPU-0", 79)), "Xid 79"),
        (nvml.samples.clear, "Xid 79"),  # stays until the server is started again
    ]
    for change, fault in cases:
        change()
        await inventory.sample(nothing)
        if fault:
            assert fault in reading(inventory).fault
        else:
            assert reading(inventory).fault == ""
        assert reading(inventory, GPU1).fault == ""
    assert any("Xid 13" in line for line in log)
    assert any("healthy again" in line for line in log)
    assert inventory.gpus()[0].memory_free == 0


async def test_errors_before_the_start_are_not_held_against_a_gpu() -> None:
    nvml = FakeNvml(samples={"GPU-0": replace(IDLE, ecc_errors=5)})
    inventory = Inventory.discover(SERVER, nvml)
    await inventory.sample(nothing)
    assert reading(inventory).fault == ""


async def test_error_of_a_divided_gpu_hits_its_instances() -> None:
    nvml = FakeNvml(found=[device(0), device(1, "GPU-7")], events=[XidEvent("GPU-7", 48)])
    inventory = Inventory.discover(SERVER, nvml)
    await inventory.sample(nothing)
    assert "Xid 48" in inventory.readings()[GpuId("MIG-1")].fault
    assert reading(inventory).fault == ""


async def test_nvml_that_hangs_holds_up_nobody(autojump_clock: MockClock) -> None:
    nvml = FakeNvml()
    inventory = Inventory.discover(SERVER, nvml)
    nvml.hang = threading.Event()
    before = nvml.readings
    await inventory.sample(nothing)
    assert "has not answered" in reading(inventory).fault
    while nvml.readings == before:  # its thread begins in real time
        await trio.lowlevel.checkpoint()
    await inventory.sample(nothing)  # does not pile up threads
    assert nvml.readings == before + 1
    nvml.hang.set()
    nvml.hang = None
    autojump_clock.autojump_threshold = float("inf")  # a thread takes real time
    while reading(inventory).fault:
        await inventory.sample(nothing)
        await trio.lowlevel.checkpoint()


def test_telemetry_keeps_unsupported_readings_apart() -> None:
    bare = NvmlSample(memory_used=GIB)
    inventory = Inventory.discover(
        SERVER, FakeNvml(samples={"GPU-1": bare}), emulated_count=1, emulated_memory=GIB
    )
    emulated = inventory.gpus()[2].id
    full, without, pretended = inventory.telemetry({emulated: 123}, {emulated: 0.5})
    assert (full.temperature_c, full.power_w, full.energy_j) == (31.0, 75.5, 1000.0)
    assert without.memory_used == GIB
    assert without.utilization is without.temperature_c is without.ecc_errors is None
    assert (pretended.memory_used, pretended.utilization) == (123, 0.5)


# --- with workers -------------------------------------------------------------------------------

MakeGpuHost = Callable[..., Awaitable[HostKit]]


@pytest.fixture
def fake_cupy(monkeypatch: pytest.MonkeyPatch, door_on_path: None) -> None:
    """Give workers a CuPy that touches no GPU."""
    import os

    monkeypatch.setenv("PYTHONPATH", f"{HERE / 'fake_cupy'}:{os.environ['PYTHONPATH']}")


@pytest.mark.usefixtures("fake_cupy")
class TestWorkersOnGpus:
    """The overhead of contexts, and the watchdog."""

    #: What NVML reports for each worker beyond nothing; tests change it.
    used = 300 * MIB

    async def host(self, make_host: MakeHost, **limits: Any) -> tuple[HostKit, FakeNvml]:
        nvml = FakeNvml()
        kit = await make_host(Inventory.discover(SERVER, nvml), limits=HostLimits(**limits))
        nvml.processes = lambda uuid: {
            w.process.pid: self.used
            for w in kit.host.worker_pool.workers.values()
            if w.session.contexts and uuid in w.session.real
        }
        return kit, nvml

    async def test_overhead_is_measured_before_the_program_allocates(
        self, make_host: MakeHost
    ) -> None:
        kit, _nvml = await self.host(make_host)
        lease = kit.lease(memory=2 * GIB)
        info = await kit.open(lease)
        gpu = kit.host.gpus()[0].id
        worker = kit.worker_of(info)
        client = await kit.dial(unix_address(info))
        assert await client.usage() == 300 * MIB  # the door starts after the measurement
        assert kit.host.budget.held(worker.number, gpu) == (0, 300 * MIB)
        assert not await client.reserve(2 * GIB - 300 * MIB + 1)
        assert await client.reserve(2 * GIB - 300 * MIB)
        assert "ordinal=0" in (await client.ask(b"d")).decode()
        assert kit.host.readings()[gpu].memory_foreign == 0

    async def test_a_worker_waits_for_the_cuda_door_without_cupy_and_one_for_all_doors(
        self, make_host: MakeHost
    ) -> None:
        """CuPy maps CUDA's libraries, of which the CUDA door's programs bring their own."""
        doors = {"cuda": "echo_door:serve", "arrays": "echo_door:serve"}
        inventory = Inventory.discover(SERVER, FakeNvml())
        kit = await make_host(inventory, warm_workers=1, doors=doors)
        workers = kit.host.worker_pool.workers
        await until(lambda: [w.state for w in workers.values()] == [WorkerState.WARM] * 2)
        lean, full = workers.values()
        assert (lean.doors, full.doors) == ({"cuda"}, {"cuda", "arrays"})
        caches = [kernel_directory(each.directory) for each in (lean, full)]
        assert [each.exists() for each in caches] == [False, True], "made when CuPy is imported"
        assert kit.worker_of(await kit.open(kit.lease(1), door="cuda")) is lean
        assert kit.worker_of(await kit.open(kit.lease(2), door="arrays")) is full

        assert kit.host.worker_pool.workers[lean.number].doors == {"cuda"}

    @pytest.mark.long
    async def test_overhead_that_nvml_does_not_tell_stays_as_assumed(
        self, make_host: MakeHost
    ) -> None:
        kit, nvml = await self.host(make_host)
        nvml.processes = None
        nvml.samples["GPU-0"] = NvmlSample(memory_used=3 * GIB, processes=None)
        client, _ = await kit.connect(kit.lease(memory=2 * GIB))
        assert await client.usage() == 512 * MIB

    @pytest.mark.long
    async def test_overhead_that_grows_is_charged(self, make_host: MakeHost) -> None:
        kit, _nvml = await self.host(make_host, sample_interval_s=0.01)
        client, worker = await kit.connect(kit.lease(memory=2 * GIB))
        assert await client.usage() == 300 * MIB
        assert await client.reserve(GIB)
        self.used = 500 * MIB + GIB
        gpu = kit.host.gpus()[0].id
        with trio.fail_after(10):
            while kit.host.budget.held(worker.number, gpu) != (GIB, 500 * MIB):
                await client.usage()

    @pytest.mark.parametrize(
        "made_in", [pytest.param(1, marks=pytest.mark.long), 2]
    )  # its free comes in the second
    async def test_what_is_freed_while_nvml_is_read_is_not_charged_for_ever(
        self, made_in: int, make_host: MakeHost
    ) -> None:
        """A reading from before a free, less the books from after it, was taken for overhead."""
        kit, nvml = await self.host(make_host, sample_interval_s=0.01)
        client, worker = await kit.connect(kit.lease(memory=2 * GIB))
        assert await client.usage() == self.used, "its contexts are measured before the door opens"
        gpu, told, budget = kit.host.gpus()[0].id, nvml.processes, kit.host.budget
        assert told is not None
        reads = 0

        def read(uuid: str) -> dict[int, int]:
            nonlocal reads
            if uuid != gpu:
                return told(uuid)
            reads += 1
            if reads == made_in:
                assert budget.reserve(worker.number, gpu, GIB)
            if reads != 2:
                return told(uuid)
            budget.release(worker.number, gpu, GIB)
            return {worker.process.pid: GIB + self.used}

        nvml.processes = read
        await until(lambda: reads > 4)
        assert budget.held(worker.number, gpu) == (0, self.used)

    @pytest.mark.long
    async def test_who_computes_uses_its_lease_without_a_call(self, make_host: MakeHost) -> None:
        kit, nvml = await self.host(make_host, sample_interval_s=0.01)
        first, second = kit.lease(0x7F3A), kit.lease(0x7F3B)
        _, worker = await kit.connect(first)
        await kit.connect(second)
        assert kit.host.idle_s()[first.id] > kit.host.idle_s()[second.id]
        nvml.samples["GPU-0"] = replace(IDLE, utilization=0.9, shares={worker.process.pid: 0.5})
        await until(lambda: kit.host.idle_s()[first.id] < kit.host.idle_s()[second.id])

    async def test_worker_far_over_its_partition_is_killed(self, make_host: MakeHost) -> None:
        kit, _nvml = await self.host(make_host, sample_interval_s=0.01)
        client, worker = await kit.connect(kit.lease(memory=2 * GIB))
        neighbour, _ = await kit.connect(kit.lease(0x7F3B, memory=20 * GIB))
        self.used = 2 * GIB + 257 * MIB
        with trio.fail_after(10):
            assert await client.at_end()
            await worker.ended.wait()
        assert worker.exit_reason() == (
            "its lease used 2305 MiB of GPU memory, its partition has 2048 MiB"
        )
        assert await neighbour.ask(b"e", b"x") == b"x"

    async def test_partition_without_room_for_a_context(self, make_host: MakeHost) -> None:
        kit, _nvml = await self.host(make_host)
        with pytest.raises(GpupoolError, match="CUDA context") as caught:
            await kit.open(kit.lease(memory=511 * MIB))
        assert "larger partition" in caught.value.hint
        lease = kit.lease(0x7F3B, memory=GIB)
        client, _ = await kit.connect(lease)
        assert await client.reserve(600 * MIB)
        with pytest.raises(GpupoolError, match="124 MiB of the partition's 1024 MiB are left"):
            await kit.open(lease)
        assert kit.host.worker_count() == {kit.lease().id: 0, lease.id: 1}

    async def test_faulty_gpu_opens_no_session(self, make_host: MakeHost) -> None:
        kit, nvml = await self.host(make_host)
        nvml.events.append(XidEvent("GPU-0", 79))
        await kit.host.inventory.sample(dict)
        with pytest.raises(GpupoolError, match="Xid 79"):
            await kit.open(kit.lease())

    async def test_real_and_emulated_gpus_do_not_mix(self, make_host: MakeHost) -> None:
        inventory = Inventory.discover(SERVER, FakeNvml(), emulated_count=1)
        kit = await make_host(inventory)
        with pytest.raises(GpupoolError, match="cannot mix"):
            await kit.open(kit.lease(gpus=3))

    async def test_two_mig_instances_cannot_be_one_session(self, make_host: MakeHost) -> None:
        nvml = FakeNvml(found=[device(0, "GPU-7"), device(1, "GPU-8")])
        kit = await make_host(Inventory.discover(SERVER, nvml))
        with pytest.raises(GpupoolError, match="one MIG instance"):
            await kit.open(kit.lease(gpus=2))


async def test_server_without_cupy_says_so(make_host: MakeHost) -> None:
    if _has_cupy():
        pytest.skip("CuPy is installed here")
    kit = await make_host(Inventory.discover(SERVER, FakeNvml()))
    with pytest.raises(GpupoolError, match="CuPy cannot be imported"):
        await kit.open(kit.lease())


def _has_cupy() -> bool:
    import importlib.util

    return importlib.util.find_spec("cupy") is not None


# --- the adapter, over a fake of the binding ----------------------------------------------------


@pytest.fixture
def binding(monkeypatch: pytest.MonkeyPatch) -> FakeBinding:
    return install(monkeypatch)


def test_adapter_reads_devices_and_samples(binding: FakeBinding) -> None:
    nvml = PynvmlNvml()
    assert nvml.open().cuda_version == "13.1"
    found = nvml.devices()
    assert [(d.uuid, d.parent) for d in found] == [
        ("GPU-0", None),
        ("MIG-0", "GPU-1"),
        ("MIG-2", "GPU-1"),
    ]
    assert found[0].memory_reserved == GIB
    assert [d.nodes for d in found] == [("/dev/nvidia7",), (), ()]  # no capabilities here
    sample = nvml.sample("GPU-0")
    assert sample == NvmlSample(
        memory_used=5 * GIB,
        processes={7: 3 * GIB, 8: GIB},
        utilization=0.42,
        temperature_c=55,
        power_w=700.5,
        energy_j=5.0,
        ecc_errors=1,
        row_remap_failed=False,
        exclusive=True,
        shares={8: 0.12},
        slow=SlowReadings(power_limit_w=700.0, sm_clock_hz=1.98e9, shutdown_c=92, **LINKS),
    )
    assert nvml.sample("GPU-0").computing == frozenset()  # the same readings are not news
    binding.xids = [("GPU-0", 79), ("GPU-0", 13)]
    assert nvml.xid_events() == [XidEvent("GPU-0", 13), XidEvent("GPU-0", 79)]
    assert nvml.xid_events() == []


def test_adapter_tells_a_lost_gpu_from_a_missing_reading(binding: FakeBinding) -> None:
    nvml = PynvmlNvml()
    nvml.devices()
    binding.failing = {"nvmlDeviceGetPowerUsage": 3, "nvmlDeviceGetUtilizationRates": 3}
    sample = nvml.sample("GPU-0")
    assert sample.power_w is sample.utilization is None
    for code, computing in ((3, None), (6, frozenset[int]()), (0, frozenset[int]())):
        binding.failing = {"nvmlDeviceGetProcessUtilization": code}
        assert nvml.sample("GPU-0").computing == computing
    binding.failing = {"nvmlDeviceGetPowerUsage": 15}
    with pytest.raises(NvmlError) as caught:
        nvml.sample("GPU-0")
    assert caught.value.lost
    binding.failing = {"nvmlDeviceGetMemoryInfo": 999}
    with pytest.raises(NvmlError) as caught:
        nvml.sample("GPU-0")
    assert not caught.value.lost
    binding.failing = {"nvmlInit": 9}
    with pytest.raises(NvmlError):
        nvml.open()


def test_real_binding_has_every_name_that_the_adapter_uses() -> None:
    import pynvml

    fake = FakeBinding()
    names = {name for name in vars(FakeBinding) if name.startswith(("NVML", "nvml"))}
    names |= {name[1:] for name in vars(FakeBinding) if name.startswith("_nvml")}
    names |= {"nvmlDeviceGetHandleByUUID", "nvmlDeviceGetNvLinkState", "NVML_FEATURE_ENABLED"}
    names |= {"nvmlDeviceGetNvLinkCapability", "NVML_NVLINK_CAP_P2P_SUPPORTED"}
    for name in names | set(ANSWERS):
        assert hasattr(pynvml, name), name
    for name in (
        "NVML_SUCCESS",
        "NVML_ERROR_NOT_FOUND",
        "NVML_ERROR_GPU_IS_LOST",
        "NVML_DEVICE_MIG_ENABLE",
        "nvmlEventTypeXidCriticalError",
    ):
        assert getattr(pynvml, name) == getattr(fake, name)


async def test_a_gpu_is_offered_by_one_server_of_a_machine() -> None:
    prefix = f"gpupool-test-{os.getpid()}-"
    first, second = DeviceLocks(prefix), DeviceLocks(prefix)
    ours = Inventory.discover(SERVER, FakeNvml(), emulated_count=1, device_locks=first)
    theirs = Inventory.discover(SERVER, FakeNvml(), emulated_count=1, device_locks=second)
    assert [gpu.fault for gpu in ours.gpus()] == ["", "", ""]
    taken = "another gpupool server on this machine offers it"
    assert [gpu.fault for gpu in theirs.gpus()] == [taken, taken, ""]
    await ours.sample(nothing)
    await theirs.sample(nothing)
    assert [gpu.fault for gpu in ours.gpus()] == ["", "", ""]
    assert [gpu.fault for gpu in theirs.gpus()] == [taken, taken, ""]
    first.close()  # as the kernel does when that process ends
    await theirs.sample(nothing)
    assert [gpu.fault for gpu in theirs.gpus()] == ["", "", ""]
    await ours.sample(nothing)
    assert [gpu.fault for gpu in ours.gpus()] == [taken, taken, ""]
    second.close()


def test_a_claim_ends_with_its_process() -> None:
    prefix = f"gpupool-test-{os.getpid()}-"
    code = (
        "import sys; from gpupool.remoting.host.device_lock import DeviceLocks\n"
        f"locks = DeviceLocks({prefix!r}); print(repr(locks.refusal('GPU-x')), flush=True)\n"
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(gpupool.__file__).parents[1])},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "''\n"
        mine = DeviceLocks(prefix)
        assert mine.refusal(GpuId("GPU-x")) == "another gpupool server on this machine offers it"
        process.kill()
        process.wait()
    assert mine.refusal(GpuId("GPU-x")) == ""
    mine.close()
