"""The GPUs of a lease as ``nvidia-smi`` and NVML show them."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

from gpupool.pool.errors import GpupoolError, UnreachableError
from gpupool.remoting.client.lease_handle import LeaseHandle
from gpupool.remoting.protocol import messages as m

if TYPE_CHECKING:
    from gpupool.pool.telemetry import GpuTelemetry
    from gpupool.pool.view import GpuView, ServerView

ANSWER_S = 2.0


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU or partition; sizes in bytes, None for a value that is not measured."""

    index: int
    server: str
    name: str
    uuid: str
    bus_id: str
    capability: str
    emulated: bool
    memory: int
    used: int
    utilization: float | None = None  # 0 to 1, of the whole GPU
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    memory_temperature_c: float | None = None
    sm_clock_hz: float | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None


READINGS = tuple(each.name for each in fields(Device) if each.default is None)


@dataclass(frozen=True, slots=True)
class Devices:
    """Devices that belong together, with the versions of their drivers."""

    devices: tuple[Device, ...]
    driver: str
    cuda: str

    def fields(self) -> dict[str, object]:
        """Return the answer to NVML's library and ``nvidia-smi``, as JSON carries it."""
        devices = [asdict(device) for device in self.devices]
        return {"driver": self.driver, "cuda": self.cuda, "devices": devices}


def _device(
    index: int,
    server: "ServerView",
    gpu: "GpuView",
    measured: "GpuTelemetry | None",
    *,
    memory: int,
    used: int,
) -> Device:
    return Device(
        index=index,
        server=server.name,
        name=gpu.name,
        uuid=gpu.id,
        bus_id=gpu.pci_bus_id,
        capability=gpu.compute_capability,
        emulated=gpu.emulated,
        memory=memory,
        used=used,
        **{name: getattr(measured, name) for name in READINGS if measured},
    )


def _versions(servers: "Iterable[ServerView]") -> tuple[str, str]:
    for server in servers:
        if server.driver_version:
            return server.driver_version, server.cuda_version
    return "", ""


async def lease_devices(hold: LeaseHandle) -> Devices:
    """Return the partitions of a lease in the program's order.

    What is used is counted by lease and server; where a server gives several partitions, each
    shows its part by size.

    Raises:
        GpupoolError: when no server answers.
    """
    connections = hold.connections()
    found = next(iter(connections.values()), None)
    if found is None:
        raise UnreachableError("no server of the lease is connected")
    view = await found.call(m.GetView(), timeout_s=ANSWER_S)
    servers = {server.id: server for server in view.view.servers}
    measured: dict[str, GpuTelemetry] = {}
    reserved: dict[str, int] = {}
    for server in hold.servers:
        if server not in connections:
            continue
        try:
            answer = await connections[server].call(m.GetTelemetry(), timeout_s=ANSWER_S)
        except GpupoolError:
            continue  # readings are missing then, and nothing else
        measured |= {gpu.gpu: gpu for gpu in answer.telemetry.gpus}
        for session in answer.telemetry.sessions:
            if session.lease == hold.lease:
                reserved[server] = session.memory_reserved
    devices: list[Device] = []
    for partition in sorted(hold.partitions, key=lambda p: hold.servers.index(p.server)):
        server = servers.get(partition.server)
        gpu = next((g for g in server.gpus if g.id == partition.gpu), None) if server else None
        if server is None or gpu is None:
            continue
        whole = sum(p.memory for p in hold.partitions if p.server == partition.server)
        used = reserved.get(partition.server, 0) * partition.memory // max(whole, 1)
        reading = measured.get(gpu.id)
        device = _device(len(devices), server, gpu, reading, memory=partition.memory, used=used)
        devices.append(device)
    return Devices(tuple(devices), *_versions(servers[s] for s in hold.servers if s in servers))
