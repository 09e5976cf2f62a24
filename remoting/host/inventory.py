"""The GPUs of one server: their identity, the memory that foreign processes use, and their faults.

NVML's calls can hang on a faulty GPU, so they run on a thread of their own, and the caller waits
at most ``SAMPLE_TIMEOUT_S``. All other readers get the last result.
"""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import trio

from gpupool.pool.model.commands import GpuReading
from gpupool.pool.model.ids import EMULATED_PREFIX, GpuId, Milliseconds
from gpupool.pool.model.state import Gpu
from gpupool.pool.telemetry import GpuTelemetry
from gpupool.remoting.host.device_lock import DeviceLocks
from gpupool.remoting.host.measuring.gpu_shares import UNSEEN_AFTER_S, GpuUse, is_unseen
from gpupool.remoting.host.measuring.nvml import (
    HARDWARE_XIDS,
    Nvml,
    NvmlDevice,
    NvmlError,
    NvmlSample,
    NvmlSystem,
    XidEvent,
)

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


NO_USE = GpuUse(None, None)


@dataclass(frozen=True, slots=True)
class DeviceState:
    """The latest state of one GPU."""

    gpu: Gpu
    telemetry: GpuTelemetry
    #: NVML's bytes of each of our workers by pid; None where NVML does not tell them apart.
    own_processes: dict[int, int] | None = None
    #: Those of our workers that computed lately; None where NVML does not tell.
    computing: frozenset[int] | None = None
    use: GpuUse = NO_USE
    unseen_since: float | None = None  # that it computes for nobody whom we know
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
                id=GpuId(EMULATED_PREFIX + "-".join(parts)),
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
    """Return the GPUs that ``only`` names, and an error text for the first unknown name.

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
        telemetry=telemetry_of(state, sample),
        own_processes=mine if known else None,
        computing=_computing(sample, own, known=bool(mine)),
        use=GpuUse(
            sample.utilization,
            sample.shares,
            sample.slow.sm_activity if state.gpu.parent is not None else None,
        ),
    )


def telemetry_of(state: DeviceState, sample: NvmlSample) -> GpuTelemetry:
    """Return the telemetry of a GPU from an NVML sample."""
    return GpuTelemetry(
        gpu=state.gpu.id,
        memory_used=sample.memory_used,
        utilization=sample.utilization,
        temperature_c=sample.temperature_c,
        power_w=sample.power_w,
        energy_j=sample.energy_j,
        ecc_errors=sample.ecc_errors,
        xids=state.telemetry.xids,
        xid_at=state.telemetry.xid_at,
        **{each.name: getattr(sample.slow, each.name) for each in fields(sample.slow)},
    )


def note_unseen(state: DeviceState, own: OwnUse, now: float) -> DeviceState:
    """Return ``state`` with how long the GPU has computed for processes of unknown ids."""
    if not is_unseen(state.use, own.pids, own.accounted):
        return replace(state, unseen_since=None)
    since = now if state.unseen_since is None else state.unseen_since
    use = replace(state.use, unseen=now - since >= UNSEEN_AFTER_S)
    return replace(state, unseen_since=since, use=use)


def _computing(sample: NvmlSample, own: OwnUse, *, known: bool) -> frozenset[int] | None:
    """Return the pids of our workers that computed, as exactly as NVML tells.

    Where it does not name processes, or knows ours by other ids, a GPU that is busy counts as used
    by all of them: to keep a lease that is idle does less harm than to end one that computes.
    """
    if sample.utilization is not None and not sample.utilization:
        return frozenset()
    if sample.computing is not None and known:
        return sample.computing & own.pids
    return None if sample.utilization is None else own.pids


def apply_failure(state: DeviceState, fault: str) -> DeviceState:
    """Return ``state`` of a device that cannot be used, with its readings."""
    return replace(state, gpu=replace(state.gpu, fault=fault), own_processes=None, computing=None)


def apply_silence(state: DeviceState, fault: str) -> DeviceState:
    """Return ``state`` of a device that did not answer: its former readings are not the present."""
    known = state.telemetry
    telemetry = GpuTelemetry(
        gpu=known.gpu, memory_used=known.memory_used, xids=known.xids, xid_at=known.xid_at
    )
    return replace(apply_failure(state, fault), telemetry=telemetry, use=NO_USE)


def apply_xids(
    states: Mapping[GpuId, DeviceState], events: list[XidEvent], now_ms: Milliseconds
) -> dict[GpuId, DeviceState]:
    """Return ``states`` with the errors counted for the GPUs, and MIG instances, that they hit."""
    changed = dict(states)
    for event in events:
        for uuid in states:
            state = changed[uuid]
            if event.uuid not in (uuid, state.gpu.parent):
                continue
            known = state.telemetry
            xids = {**known.xids, event.xid: known.xids.get(event.xid, 0) + 1}
            changed[uuid] = replace(
                state,
                xid=event.xid if event.xid in HARDWARE_XIDS else state.xid,
                telemetry=replace(known, xids=xids, xid_at=now_ms),
            )
    return changed


@dataclass(slots=True)
class _Found:
    """The results of the sampling thread."""

    samples: dict[GpuId, NvmlSample] = field(default_factory=dict[GpuId, NvmlSample])
    failures: dict[GpuId, str] = field(default_factory=dict[GpuId, str])
    events: list[XidEvent] = field(default_factory=list[XidEvent])


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


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
        script: Nvml | None = None,
        log: Log = lambda _text: None,
        monotonic: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], int] = _wall_ms,
    ) -> None:
        self._monotonic, self._wall_ms = monotonic, wall_ms
        self._nodes = dict(nodes or {})
        self.driver_version = system.driver_version if system else ""
        self.cuda_version = system.cuda_version if system else ""
        self.problem = problem  # why no real GPU was found
        self._nvml, self._script = nvml, script
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
        script: Callable[[Sequence[str]], Nvml] | None = None,
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
            script: given the names of the emulated GPUs, returns where their readings come from;
                None: they have none.
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
            script=script([gpu.id for gpu in emulated]) if script is not None else None,
            log=log,
        )
        inventory._take(inventory._read(), {})
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

    def computes_wrongly(self, uuid: GpuId) -> bool:
        """Return whether a script says so of an emulated GPU."""
        if self._script is None:
            return False
        try:
            return self._script.sample(uuid).computes_wrongly
        except NvmlError:
            return False

    def free_on(self, uuid: GpuId) -> int:
        """Return the bytes of a real GPU that no process had at the latest sample."""
        state = self._states[uuid]
        reserved = state.gpu.memory_reserved or 0
        return max(0, state.gpu.memory_total - reserved - state.telemetry.memory_used)

    def own_processes(self, uuid: GpuId) -> dict[int, int] | None:
        """Return NVML's bytes of our workers by pid; None where it does not tell."""
        return self._states[uuid].own_processes

    def use(self, uuid: GpuId) -> GpuUse:
        """Return the driver's utilization figures of a GPU."""
        return self._states[uuid].use

    def computing(self, uuid: GpuId) -> frozenset[int]:
        """Return the pids of our workers that computed on a GPU lately; none where NVML is mute."""
        return self._states[uuid].computing or frozenset()

    async def sample(self, own: Callable[[], Mapping[GpuId, OwnUse]]) -> None:
        """Read all real GPUs; return within ``SAMPLE_TIMEOUT_S`` even if NVML hangs.

        Args:
            own: asked after the reading, for what our workers hold.
        """
        if self._nvml is None and self._script is None:
            return
        async with self._sampling:
            if self._hanging:
                return  # The thread of an earlier sample is still inside NVML.
            found = None
            self._hanging = True
            with trio.move_on_after(SAMPLE_TIMEOUT_S):
                found = await trio.to_thread.run_sync(self._read_on_thread, abandon_on_cancel=True)
            if found is None:
                self._fail_all(f"the NVIDIA driver has not answered for {SAMPLE_TIMEOUT_S:.0f} s")
            else:
                self._take(found, own())

    def _read_on_thread(self) -> _Found:
        try:
            return self._read()
        finally:
            self._hanging = False

    def _read(self) -> _Found:
        """Read everything; touches nothing but the sources of readings."""
        found = _Found()
        if self._nvml is not None:
            _read(self._nvml, self._real(), found)
        if self._script is not None:
            emulated = [uuid for uuid, state in self._states.items() if state.gpu.emulated]
            _read(self._script, emulated, found)
        return found

    def _real(self) -> list[GpuId]:
        return [uuid for uuid, state in self._states.items() if not state.gpu.emulated]

    def _take(self, found: _Found, own: Mapping[GpuId, OwnUse]) -> None:
        for event in found.events:
            self._log(f"the driver reports Xid {event.xid} on {event.uuid}")
        before, now = self._states, self._monotonic()
        self._states = apply_xids(self._states, found.events, Milliseconds(self._wall_ms()))
        nothing = OwnUse(frozenset(), 0)
        for uuid, sample in found.samples.items():
            ours = own.get(uuid, nothing)
            state = note_unseen(apply_sample(self._states[uuid], sample, ours), ours, now)
            if self._device_locks is not None and (why := self._device_locks.refusal(uuid)):
                state = apply_failure(state, why)
            self._states[uuid] = state
        for uuid, fault in found.failures.items():
            self._states[uuid] = apply_silence(self._states[uuid], fault)
        self._log_faults(before)

    def _fail_all(self, fault: str) -> None:
        before = dict(self._states)
        for uuid in self._real():
            self._states[uuid] = apply_silence(self._states[uuid], fault)
        self._log_faults(before)

    def _log_faults(self, before: Mapping[GpuId, DeviceState]) -> None:
        for uuid, state in self._states.items():
            if state.gpu.fault != before[uuid].gpu.fault:
                self._log(f"GPU {state.gpu.index} ({uuid}): {state.gpu.fault or 'healthy again'}")


def _read(nvml: Nvml, uuids: list[GpuId], found: _Found) -> None:
    """Read the devices of one source."""
    for uuid in uuids:
        try:
            found.samples[uuid] = nvml.sample(uuid)
        except NvmlError as error:
            lost = "the GPU has fallen off the bus" if error.lost else "NVML cannot read it"
            found.failures[uuid] = f"{lost}: {error}"
    found.events += nvml.xid_events()
