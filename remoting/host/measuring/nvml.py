"""NVML readings, behind a small Protocol, so that nothing else here knows pynvml.

Sizes are bytes. Facts are from NVIDIA's NVML API reference and from its Xid catalogue.
"""

import contextlib
import importlib
import re
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from gpupool.remoting.host.measuring.slow_readings import SLOW_EVERY_S, SlowReader, SlowReadings

DEVICE_COUNT_MAX = 256
PROCESS_COUNT_MAX = 65536
CAPABILITIES = Path("/proc/driver/nvidia/capabilities")
LINK_COUNT_MAX = 36

HARDWARE_XIDS = {
    48: "double-bit ECC error",
    62: "halt of an internal micro-controller",
    64: "failed row remapping",
    79: "the GPU has fallen off the bus",
    95: "uncontained ECC error",
    119: "GSP firmware timeout",
    120: "GSP firmware error",
    140: "unrecovered ECC error",
}
"""Xid errors that are the hardware's or firmware's; most others are caused by programs."""


class NvmlError(Exception):
    """NVML could not answer; ``lost`` when the GPU itself is gone."""

    def __init__(self, text: str, *, lost: bool = False) -> None:
        super().__init__(text)
        self.lost = lost


@dataclass(frozen=True, slots=True)
class NvmlDevice:
    """Constant properties of a GPU or MIG instance."""

    uuid: str
    name: str
    memory_total: int
    memory_reserved: int
    compute_capability: str
    pci_bus_id: str
    parent: str | None = None  # uuid of the physical GPU of a MIG instance
    nodes: tuple[str, ...] = ()  # paths of its own device nodes; none when they are not known


@dataclass(frozen=True, slots=True)
class NvmlSample:
    """One reading of a device; None for a value that the device does not report."""

    memory_used: int  # by processes, without ``memory_reserved``
    #: Bytes per process id; None where the driver does not tell them apart.
    processes: dict[int, int] | None = None
    utilization: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    energy_j: float | None = None
    ecc_errors: int | None = None  # uncorrectable, since the driver was loaded
    row_remap_failed: bool = False
    exclusive: bool = False  # its compute mode admits at most one process
    #: The share of its time, 0 to 1, that each process computed since the last reading; a process
    #: that did not is absent. None where the driver does not say.
    shares: dict[int, float] | None = None
    computes_wrongly: bool = False  # of an emulated one, by a script
    slow: SlowReadings = SlowReadings()  # the latest; made every ten seconds

    @property
    def computing(self) -> frozenset[int] | None:
        """Return the processes that computed since the last reading; None as for ``shares``."""
        return None if self.shares is None else frozenset(self.shares)


@dataclass(frozen=True, slots=True)
class NvmlSystem:
    """Versions of the driver and of the newest CUDA that it supports."""

    driver_version: str
    cuda_version: str


@dataclass(frozen=True, slots=True)
class XidEvent:
    """A critical error that the driver reported; ``uuid`` is the physical GPU."""

    uuid: str
    xid: int


class Nvml(Protocol):
    """NVML as the inventory uses it. Every call may block for long on a sick GPU."""

    def open(self) -> NvmlSystem:
        """Start using NVML.

        Raises:
            NvmlError: where there is no driver.
        """
        ...

    def devices(self) -> list[NvmlDevice]:
        """Return all GPUs in nvidia-smi's order; MIG instances in place of a divided GPU."""
        ...

    def sample(self, uuid: str) -> NvmlSample:
        """Read one device.

        Raises:
            NvmlError: when it does not answer.
        """
        ...

    def xid_events(self) -> list[XidEvent]:
        """Return the critical errors since the last call; does not wait for any."""
        ...


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a device is found: its GPU, and the number of its GPU instance if it is a part."""

    physical: Any
    instance: int | None


@dataclass(slots=True)
class _Handles:
    by_uuid: dict[str, Any] = field(default_factory=dict[str, Any])
    places: dict[str, _Place] = field(default_factory=dict[str, _Place])
    physical: dict[str, Any] = field(default_factory=dict[str, Any])


class PynvmlNvml:
    """``Nvml`` by NVIDIA's own binding. Used by one thread at a time."""

    def __init__(
        self, *, gpm: bool = False, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Prepare; with ``gpm``, the GPM counters of GPUs since Hopper are read as well."""
        self._nvml: Any = importlib.import_module("pynvml")
        self._monotonic = monotonic
        self._handles = _Handles()
        self._events: Any = None
        self._seen_us: dict[str, int] = {}  # time of the last utilization sample of each device
        self._slow_reader = SlowReader(self._nvml, self._optional, gpm=gpm)
        self._slow: dict[str, tuple[float, SlowReadings]] = {}  # with the time of each

    def open(self) -> NvmlSystem:
        """Load NVML and return its versions."""
        with self._errors():
            self._nvml.nvmlInit()
            cuda = int(self._nvml.nvmlSystemGetCudaDriverVersion_v2())
            driver = str(self._nvml.nvmlSystemGetDriverVersion())
        self._slow_reader.driver(driver)
        return NvmlSystem(driver, f"{cuda // 1000}.{cuda % 1000 // 10}")

    def devices(self) -> list[NvmlDevice]:
        """Return all devices, and keep their handles."""
        found: list[NvmlDevice] = []
        self._handles = _Handles()
        with self._errors():
            for index in range(min(self._nvml.nvmlDeviceGetCount(), DEVICE_COUNT_MAX)):
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                physical = self._describe(handle, handle, None)
                self._handles.physical[physical.uuid] = handle
                instances = list(self._mig_instances(handle))
                if instances or self._divided(handle):
                    found += [self._describe(each, handle, physical.uuid) for each in instances]
                else:
                    found.append(physical)
        self._subscribe()
        return found

    def sample(self, uuid: str) -> NvmlSample:
        """Read one device."""
        nvml, handle = self._nvml, self._handles.by_uuid[uuid]
        with self._errors():
            memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        power = self._optional(nvml.nvmlDeviceGetPowerUsage, handle)
        energy = self._optional(nvml.nvmlDeviceGetTotalEnergyConsumption, handle)
        rates = self._optional(nvml.nvmlDeviceGetUtilizationRates, handle)
        mode = self._optional(nvml.nvmlDeviceGetComputeMode, handle)
        rows = self._optional(nvml.nvmlDeviceGetRemappedRows, handle)
        return NvmlSample(
            memory_used=int(memory.used),
            processes=self._processes(handle),
            utilization=None if rates is None else rates.gpu / 100,
            temperature_c=self._optional(
                nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU
            ),
            power_w=None if power is None else power / 1000,
            energy_j=None if energy is None else energy / 1000,
            ecc_errors=self._optional(
                nvml.nvmlDeviceGetTotalEccErrors,
                handle,
                nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                nvml.NVML_VOLATILE_ECC,
            ),
            row_remap_failed=bool(rows and rows[3]),
            exclusive=mode is not None and mode != nvml.NVML_COMPUTEMODE_DEFAULT,
            shares=self._shares(uuid, handle),
            slow=self._slow_readings(uuid, handle),
        )

    def xid_events(self) -> list[XidEvent]:
        """Drain the events that have been reported."""
        events: list[XidEvent] = []
        while self._events is not None and len(events) < DEVICE_COUNT_MAX:
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._events, 0)
                uuid = str(self._nvml.nvmlDeviceGetUUID(event.device))
            except self._nvml.NVMLError:
                break  # A timeout means that there are no more; a lost GPU shows in its sample.
            events.append(XidEvent(uuid, int(event.eventData)))
        return events

    def _describe(self, handle: object, physical: object, parent: str | None) -> NvmlDevice:
        nvml = self._nvml
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(physical)
        uuid = str(nvml.nvmlDeviceGetUUID(handle))
        self._handles.by_uuid[uuid] = handle
        instance = None
        if parent is not None:
            instance = self._optional(nvml.nvmlDeviceGetGpuInstanceId, handle)
        unknown = parent is not None and instance is None
        self._handles.places[uuid] = _Place(None if unknown else physical, instance)
        return NvmlDevice(
            uuid=uuid,
            name=str(nvml.nvmlDeviceGetName(handle)),
            memory_total=int(memory.total),
            memory_reserved=int(memory.reserved),
            compute_capability=f"{major}.{minor}",
            pci_bus_id=str(nvml.nvmlDeviceGetPciInfo(physical).busId),
            parent=parent,
            nodes=self._nodes(handle, physical, instance=parent is not None),
        )

    def _nodes(self, handle: object, physical: object, *, instance: bool) -> tuple[str, ...]:
        nvml = self._nvml
        minor = self._optional(nvml.nvmlDeviceGetMinorNumber, physical)
        if minor is None or not instance:
            return () if minor is None else (f"/dev/nvidia{minor}",)
        whole = self._optional(nvml.nvmlDeviceGetGpuInstanceId, handle)
        part = self._optional(nvml.nvmlDeviceGetComputeInstanceId, handle)
        if whole is None or part is None:
            return ()
        nodes = mig_nodes(int(minor), int(whole), int(part))
        return (f"/dev/nvidia{minor}", *nodes) if nodes else ()

    def _divided(self, handle: object) -> bool:
        mode = self._optional(self._nvml.nvmlDeviceGetMigMode, handle)
        return bool(mode and mode[0] == self._nvml.NVML_DEVICE_MIG_ENABLE)

    def _mig_instances(self, handle: object) -> Iterator[Any]:
        if not self._divided(handle):
            return
        for index in range(self._nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            instance = self._optional(self._nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
            if instance is not None:
                yield instance

    def _processes(self, handle: object) -> dict[int, int] | None:
        nvml = self._nvml
        used: dict[int, int] = {}
        for function in (
            nvml.nvmlDeviceGetComputeRunningProcesses,
            nvml.nvmlDeviceGetGraphicsRunningProcesses,
        ):
            rows = self._optional(function, handle)
            if rows is None:
                return None
            for row in rows[:PROCESS_COUNT_MAX]:
                if row.usedGpuMemory is None:
                    return None
                used[int(row.pid)] = max(used.get(int(row.pid), 0), int(row.usedGpuMemory))
        return used

    def _slow_readings(self, uuid: str, handle: object) -> SlowReadings:
        now, known = self._monotonic(), self._slow.get(uuid)
        if known is not None and now - known[0] < SLOW_EVERY_S:
            return known[1]
        place = self._handles.places[uuid]
        found = self._slow_reader.read(uuid, handle, place.physical, place.instance)
        self._slow[uuid] = now, found
        return found

    def _shares(self, uuid: str, handle: object) -> dict[int, float] | None:
        nvml, since_us = self._nvml, self._seen_us.get(uuid, 0)
        try:
            rows = nvml.nvmlDeviceGetProcessUtilization(handle, since_us)
        except nvml.NVMLError as error:
            # No sample since then: no process has computed.
            nothing = (nvml.NVML_SUCCESS, nvml.NVML_ERROR_NOT_FOUND)
            return {} if error.value in nothing else None
        self._seen_us[uuid] = max([since_us, *(int(row.timeStamp) for row in rows)])
        found: dict[int, list[int]] = {}
        for row in rows:
            if int(row.timeStamp) > since_us:
                found.setdefault(int(row.pid), []).append(int(row.smUtil))
        means = {pid: sum(each) / len(each) / 100 for pid, each in found.items()}
        return {pid: min(mean, 1.0) for pid, mean in means.items() if mean > 0}

    def _subscribe(self) -> None:
        with contextlib.suppress(self._nvml.NVMLError):  # Not every GPU reports Xid errors.
            self._events = self._nvml.nvmlEventSetCreate()
            for handle in self._handles.physical.values():
                self._nvml.nvmlDeviceRegisterEvents(
                    handle, self._nvml.nvmlEventTypeXidCriticalError, self._events
                )

    def _optional(self, function: Callable[..., Any], *arguments: object) -> Any:
        """Return a reading, or None where the device does not give it."""
        try:
            return function(*arguments)
        except self._nvml.NVMLError as error:
            if error.value == self._nvml.NVML_ERROR_GPU_IS_LOST:
                raise NvmlError(str(error), lost=True) from error
            return None

    @contextlib.contextmanager
    def _errors(self) -> Generator[None]:
        try:
            yield
        except self._nvml.NVMLError as error:
            lost = error.value == self._nvml.NVML_ERROR_GPU_IS_LOST
            raise NvmlError(str(error), lost=lost) from error


def mig_nodes(
    minor: int, gpu_instance: int, compute_instance: int, capabilities: Path = CAPABILITIES
) -> tuple[str, ...]:
    """Return the device nodes that let a process use one MIG instance; none if not known.

    Args:
        minor: of the physical GPU.
        gpu_instance: its number on the GPU.
        compute_instance: its number in the GPU instance.
        capabilities: where the driver says which node stands for what.
    """
    whole = capabilities / f"gpu{minor}" / "mig" / f"gi{gpu_instance}"
    found: list[str] = []
    for place in (whole, whole / f"ci{compute_instance}"):
        try:
            text = (place / "access").read_text()
        except OSError:
            return ()
        number = re.search(r"^DeviceFileMinor:\s*(\d+)$", text, re.MULTILINE)
        if number is None:
            return ()
        found.append(f"/dev/nvidia-caps/nvidia-cap{number[1]}")
    return tuple(found)


def count_links(uuid: str) -> int:
    """Return how many NVLinks of a GPU are up and reach other GPUs; 0 where NVML does not say."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return 0
    count = 0
    with contextlib.suppress(nvml.NVMLError):
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        for link in range(LINK_COUNT_MAX):
            # It says "invalid argument" for a link that a GPU of this kind does not have.
            if nvml.nvmlDeviceGetNvLinkState(handle, link) == nvml.NVML_FEATURE_ENABLED:
                count += bool(
                    nvml.nvmlDeviceGetNvLinkCapability(
                        handle, link, nvml.NVML_NVLINK_CAP_P2P_SUPPORTED
                    )
                )
    return count
