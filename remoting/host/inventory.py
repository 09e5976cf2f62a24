"""The GPUs of one server: their identity, the memory that foreign processes use, and their faults.

NVML's calls can hang on a faulty GPU, so they run on a thread of their own, and the caller waits
at most ``SAMPLE_TIMEOUT_S``. All other readers get the last result.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import trio

from gpupool.pool.model.commands import GpuReading
from gpupool.pool.model.ids import GpuId
from gpupool.pool.model.state import Gpu
from gpupool.pool.telemetry import GpuTelemetry
from gpupool.remoting.devices.nvml import (
    HARDWARE_XIDS,
    Nvml,
    NvmlDevice,
    NvmlError,
    NvmlSample,
    NvmlSystem,
    XidEvent,
)
from gpupool.remoting.host.device_lock import DeviceLocks

SAMPLE_TIMEOUT_S = 5.0
"""A healthy H200 answers everything in milliseconds; one that hangs for this long is at fault."""

EMULATED_COUNT_MAX = 64
EMULATED_NAME = "Emulated GPU"

Log = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class OwnUse:
    """The memory of our workers on one GPU, by which foreign memory is found in NVML's readings."""

    pids: frozenset[int]
    accounted: int  # bytes that the budget counts as taken


@dataclass(frozen=True, slots=True)
class DeviceState:
    """The latest state of one GPU."""

    gpu: Gpu
    telemetry: GpuTelemetry
    #: NVML's bytes of each of our workers by pid; None where NVML does not tell them apart.
    own_processes: dict[int, int] | None = None
    #: Those of our workers that computed lately; None where NVML does not tell.
    computing: frozenset[int] | None = None
    ecc_at_start: int | None = None
    xid: int = 0  # of the hardware error seen since the start, which lasts until a restart


def emulated_gpus(server_id: str, count: int, memory: int, *, first_index: int = 0) -> list[Gpu]:
    """Return ``count`` emulated GPUs with ``memory`` bytes each, named for life by the server."""
    if not 0 <= count <= EMULATED_COUNT_MAX:
        raise ValueError(f"{count} emulated GPUs, at most {EMULATED_COUNT_MAX}")
    gpus: list[Gpu] = []
    for number in range(count):
        digest = hashlib.sha256(f"gpupool emulated {server_id} {number}".encode()).hexdigest()
        parts = (digest[0:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32])
        gpus.append(
            Gpu(
                id=GpuId("EMU-" + "-".join(parts)),
                index=first_index + number,
                name=EMULATED_NAME,
                memory_total=memory,
                emulated=True,
            )
        )
    return gpus


def gpu_of(device: NvmlDevice, index: int) -> Gpu:
    """Return the table's form of an NVML device."""
    return Gpu(
        id=GpuId(device.uuid),
        index=index,
        name=device.name,
        memory_total=device.memory_total,
        memory_reserved=device.memory_reserved,
        compute_capability=device.compute_capability,
        pci_bus_id=device.pci_bus_id,
        parent=GpuId(device.parent) if device.parent else None,
    )


def chosen_gpus(gpus: Sequence[Gpu], only: Sequence[str]) -> tuple[list[Gpu], str]:
    """Return the GPUs that ``only`` names, and which of the names fits none.

    A name is nvidia-smi's number of a GPU, or the beginning of its UUID.
    """

    def fits(gpu: Gpu, name: str) -> bool:
        return name == str(gpu.index) or (len(name) >= 8 and gpu.id.startswith(name))

    unknown = [name for name in only if not any(fits(gpu, name) for gpu in gpus)]
    problem = f"there is no GPU {unknown[0]} here" if unknown else ""
    return [gpu for gpu in gpus if any(fits(gpu, name) for name in only)], problem


def fault_of(state: DeviceState, sample: NvmlSample) -> str:
    """Return why a GPU that answered must not be granted; empty when it is healthy."""
    if state.xid:
        return f"Xid {state.xid}: {HARDWARE_XIDS[state.xid]}; the GPU needs a reset"
    if sample.row_remap_failed:
        return "a memory row could not be remapped; the GPU needs service"
    if sample.exclusive:
        return "its compute mode admits one process only; set it with nvidia-smi -c DEFAULT"
    if sample.ecc_errors and sample.ecc_errors > (state.ecc_at_start or 0):
        return f"{sample.ecc_errors} uncorrectable memory errors; the GPU needs a reset"
    return ""


def apply_sample(state: DeviceState, sample: NvmlSample, own: OwnUse) -> DeviceState:
    """Return ``state`` as ``sample`` shows it.

    Foreign memory is everything in use that is not our workers'. By process that is exact. Where
    NVML does not name processes, or names none of ours although they hold memory (it knows other
    process ids inside some containers), our part is what the budget accounts; reservations
    that are not yet in use then hide as much foreign memory.
    """
    if state.ecc_at_start is None and sample.ecc_errors is not None:
        state = replace(state, ecc_at_start=sample.ecc_errors)
    processes = sample.processes
    mine = {pid: size for pid, size in (processes or {}).items() if pid in own.pids}
    known = processes is not None and (bool(mine) or not own.accounted)
    ours = sum(mine.values()) if known else own.accounted
    return replace(
        state,
        gpu=replace(
            state.gpu,
            memory_foreign=max(0, sample.memory_used - ours),
            fault=fault_of(state, sample),
        ),
        telemetry=GpuTelemetry(
            gpu=state.gpu.id,
            memory_used=sample.memory_used,
            utilization=sample.utilization,
            temperature_c=sample.temperature_c,
            power_w=sample.power_w,
            energy_j=sample.energy_j,
            ecc_errors=sample.ecc_errors,
        ),
        own_processes=mine if known else None,
        computing=_computing(sample, own, known=bool(mine)),
    )


def _computing(sample: NvmlSample, own: OwnUse, *, known: bool) -> frozenset[int] | None:
    """Return which of our workers computed, as exactly as NVML tells.

    Where it does not name processes, or knows ours by other ids, a GPU that is busy counts as used
    by all of them: to keep a lease that is idle does less harm than to end one that computes.
    """
    if sample.utilization is not None and not sample.utilization:
        return frozenset()
    if sample.computing is not None and known:
        return sample.computing & own.pids
    return None if sample.utilization is None else own.pids


def apply_failure(state: DeviceState, fault: str) -> DeviceState:
    """Return ``state`` of a device that did not answer; its last readings stay."""
    return replace(state, gpu=replace(state.gpu, fault=fault), own_processes=None, computing=None)


def apply_xids(
    states: Mapping[GpuId, DeviceState], events: list[XidEvent]
) -> dict[GpuId, DeviceState]:
    """Return ``states`` with hardware errors recorded for the GPUs, and MIG instances, they hit."""
    changed = dict(states)
    for event in events:
        for uuid, state in states.items():
            if event.xid in HARDWARE_XIDS and event.uuid in (uuid, state.gpu.parent):
                changed[uuid] = replace(state, xid=event.xid)
    return changed


@dataclass(slots=True)
class _Found:
    """The results of the sampling thread."""

    samples: dict[GpuId, NvmlSample] = field(default_factory=dict[GpuId, NvmlSample])
    failures: dict[GpuId, str] = field(default_factory=dict[GpuId, str])
    events: list[XidEvent] = field(default_factory=list[XidEvent])


class Inventory:
    """All devices of one server. ``sample`` refreshes it; everything else answers at once."""

    def __init__(
        self,
        devices: list[Gpu],
        nvml: Nvml | None = None,
        *,
        system: NvmlSystem | None = None,
        problem: str = "",
        device_locks: DeviceLocks | None = None,
        nodes: Mapping[GpuId, tuple[str, ...]] | None = None,
        log: Log = lambda _text: None,
    ) -> None:
        self._nodes = dict(nodes or {})
        self.driver_version = system.driver_version if system else ""
        self.cuda_version = system.cuda_version if system else ""
        self.problem = problem  # why no real GPU was found
        self._nvml = nvml
        self._device_locks = device_locks
        self._log = log
        self._hanging = False
        self._sampling = trio.Lock()
        self._states = {
            gpu.id: DeviceState(gpu, GpuTelemetry(gpu=gpu.id, memory_used=0)) for gpu in devices
        }

    @staticmethod
    def discover(
        server_id: str,
        nvml: Nvml | None,
        *,
        emulated_count: int = 0,
        emulated_memory: int = 16 << 30,
        only: Sequence[str] = (),
        device_locks: DeviceLocks | None = None,
        log: Log = lambda _text: None,
    ) -> "Inventory":
        """Return the inventory of this machine; blocks while the driver wakes the GPUs.

        Args:
            server_id: the prefix of the names of emulated GPUs.
            nvml: None offers emulated GPUs only.
            emulated_count: how many emulated GPUs to offer after the real ones.
            emulated_memory: bytes that each pretends to have; only accounted, not allocated.
            only: the real GPUs to offer, by nvidia-smi's numbers or beginnings of UUIDs; all, if
                there are none.
            device_locks: asked before a real GPU is offered; a GPU that is not ours is at fault.
            log: takes one line about what happens to a GPU.
        """
        real: list[Gpu] = []
        nodes: dict[GpuId, tuple[str, ...]] = {}
        system, problem = None, ""
        if nvml is not None:
            try:
                system = nvml.open()
                found = nvml.devices()
                nodes = {GpuId(device.uuid): device.nodes for device in found}
                real = [gpu_of(device, index) for index, device in enumerate(found)]
                problem = "" if real else "the NVIDIA driver reports no GPU"
                real, problem = chosen_gpus(real, only) if real and only else (real, problem)
            except NvmlError as error:
                problem = f"no NVIDIA driver answers: {error}"
        emulated = emulated_gpus(server_id, emulated_count, emulated_memory, first_index=len(real))
        inventory = Inventory(
            real + emulated,
            nvml if real else None,
            system=system,
            problem=problem,
            device_locks=device_locks,
            nodes={gpu.id: nodes[gpu.id] for gpu in real},
            log=log,
        )
        if real and nvml is not None:
            inventory._take(_read(nvml, inventory._real()), {})
        return inventory

    @property
    def has_real(self) -> bool:
        """Return whether any GPU is not emulated."""
        return bool(self._real())

    def gpus(self) -> tuple[Gpu, ...]:
        """Return all devices with their latest readings, in nvidia-smi's order."""
        return tuple(state.gpu for state in self._states.values())

    def gpu(self, uuid: GpuId) -> Gpu | None:
        """Return one device."""
        state = self._states.get(uuid)
        return state.gpu if state else None

    def device_nodes(self) -> Mapping[GpuId, tuple[str, ...]] | None:
        """Return the paths of each GPU's own device nodes; None when those of one are not known."""
        if any(not self._nodes.get(uuid) for uuid in self._real()):
            return None
        return self._nodes

    def readings(self) -> dict[GpuId, GpuReading]:
        """Return the latest foreign memory and fault of every device."""
        return {
            uuid: GpuReading(state.gpu.memory_foreign, state.gpu.fault)
            for uuid, state in self._states.items()
        }

    def telemetry(
        self, accounted: Mapping[GpuId, int], busy: Mapping[GpuId, float]
    ) -> tuple[GpuTelemetry, ...]:
        """Return the latest telemetry.

        Args:
            accounted: the memory that the budget says is used; that of an emulated GPU.
            busy: the share of time in which workers execute calls on an emulated GPU.
        """
        return tuple(
            replace(
                state.telemetry,
                memory_used=accounted.get(uuid, 0),
                utilization=round(busy.get(uuid, 0.0), 4),
            )
            if state.gpu.emulated
            else state.telemetry
            for uuid, state in self._states.items()
        )

    def own_processes(self, uuid: GpuId) -> dict[int, int] | None:
        """Return NVML's bytes of our workers by pid; None where it does not tell."""
        return self._states[uuid].own_processes

    def computing(self, uuid: GpuId) -> frozenset[int]:
        """Return the pids of our workers that computed on a GPU lately; none where NVML is mute."""
        return self._states[uuid].computing or frozenset()

    async def sample(self, own: Callable[[], Mapping[GpuId, OwnUse]]) -> None:
        """Read all real GPUs; return within ``SAMPLE_TIMEOUT_S`` even if NVML hangs.

        Args:
            own: asked after the reading, for what our workers hold.
        """
        if self._nvml is None:
            return
        async with self._sampling:
            if self._hanging:
                return  # The thread of an earlier sample is still inside NVML.
            nvml, found = self._nvml, None
            self._hanging = True
            with trio.move_on_after(SAMPLE_TIMEOUT_S):
                found = await trio.to_thread.run_sync(
                    self._read_on_thread, nvml, abandon_on_cancel=True
                )
            if found is None:
                self._fail_all(f"the NVIDIA driver has not answered for {SAMPLE_TIMEOUT_S:.0f} s")
            else:
                self._take(found, own())

    def _read_on_thread(self, nvml: Nvml) -> _Found:
        try:
            return _read(nvml, self._real())
        finally:
            self._hanging = False

    def _real(self) -> list[GpuId]:
        return [uuid for uuid, state in self._states.items() if not state.gpu.emulated]

    def _take(self, found: _Found, own: Mapping[GpuId, OwnUse]) -> None:
        for event in found.events:
            self._log(f"the driver reports Xid {event.xid} on {event.uuid}")
        before = self._states
        self._states = apply_xids(self._states, found.events)
        nothing = OwnUse(frozenset(), 0)
        for uuid, sample in found.samples.items():
            state = apply_sample(self._states[uuid], sample, own.get(uuid, nothing))
            if self._device_locks is not None and (why := self._device_locks.refusal(uuid)):
                state = apply_failure(state, why)
            self._states[uuid] = state
        for uuid, fault in found.failures.items():
            self._states[uuid] = apply_failure(self._states[uuid], fault)
        self._log_faults(before)

    def _fail_all(self, fault: str) -> None:
        before = dict(self._states)
        for uuid in self._real():
            self._states[uuid] = apply_failure(self._states[uuid], fault)
        self._log_faults(before)

    def _log_faults(self, before: Mapping[GpuId, DeviceState]) -> None:
        for uuid, state in self._states.items():
            if state.gpu.fault != before[uuid].gpu.fault:
                self._log(f"GPU {state.gpu.index} ({uuid}): {state.gpu.fault or 'healthy again'}")


def _read(nvml: Nvml, uuids: list[GpuId]) -> _Found:
    """Read everything; runs on a thread, and touches nothing but NVML."""
    found = _Found()
    for uuid in uuids:
        try:
            found.samples[uuid] = nvml.sample(uuid)
        except NvmlError as error:
            lost = "the GPU has fallen off the bus" if error.lost else "NVML cannot read it"
            found.failures[uuid] = f"{lost}: {error}"
    found.events = nvml.xid_events()
    return found
