"""NVML for tests: a dict of devices with readings set by a test."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from gpupool.remoting.host.measuring.nvml import (
    NvmlDevice,
    NvmlError,
    NvmlSample,
    NvmlSystem,
    XidEvent,
)

GIB = 1 << 30
IDLE = NvmlSample(
    memory_used=0,
    processes={},
    utilization=0.0,
    temperature_c=31.0,
    power_w=75.5,
    energy_j=1000.0,
    ecc_errors=0,
)


def device(number: int, parent: str | None = None) -> NvmlDevice:
    return NvmlDevice(
        uuid=f"GPU-{number}" if parent is None else f"MIG-{number}",
        name="NVIDIA H200",
        memory_total=141 * GIB,
        memory_reserved=GIB,
        compute_capability="9.0",
        pci_bus_id=f"00000000:0{number}:00.0",
        parent=parent,
    )


@dataclass
class FakeNvml:
    """Implements ``Nvml``."""

    found: list[NvmlDevice] = field(default_factory=lambda: [device(0), device(1)])
    samples: dict[str, NvmlSample] = field(default_factory=dict[str, NvmlSample])
    #: Asked at each reading for the bytes of each process; wins over ``samples``.
    processes: Callable[[str], dict[int, int]] | None = None
    broken: dict[str, NvmlError] = field(default_factory=dict[str, NvmlError])
    events: list[XidEvent] = field(default_factory=list[XidEvent])
    absent: bool = False
    hang: threading.Event | None = None  # readings wait for it
    readings: int = 0

    def open(self) -> NvmlSystem:
        if self.absent:
            raise NvmlError("Driver Not Loaded")
        return NvmlSystem("580.65.06", "13.0")

    def devices(self) -> list[NvmlDevice]:
        return self.found

    def sample(self, uuid: str) -> NvmlSample:
        self.readings += 1
        if self.hang is not None:
            self.hang.wait(20)
        if uuid in self.broken:
            raise self.broken[uuid]
        sample = self.samples.get(uuid, IDLE)
        if self.processes is not None:
            used = self.processes(uuid)
            sample = replace(sample, processes=used, memory_used=sum(used.values()))
        return sample

    def xid_events(self) -> list[XidEvent]:
        events, self.events = self.events, []
        return events
