"""Devices: partitions of GPUs, numbered over all servers of the lease."""

import functools
from typing import Any

from cupy._door import pool, state
from cupy._door.cuda_errors import CUDARuntimeError


def get_device_id() -> int:
    """Return the number of this thread's current device."""
    return state.local.context[0]


def set_device(number: int) -> None:
    """Make a device current in this thread."""
    count = len(pool.devices())
    if not 0 <= number < count:
        raise CUDARuntimeError(101, "cudaErrorInvalidDevice: invalid device ordinal")
    state.use(number)


def description(number: int) -> dict[str, Any]:
    """Return the server's description of a device."""
    found = pool.devices()
    if not 0 <= number < len(found):
        raise CUDARuntimeError(101, "cudaErrorInvalidDevice: invalid device ordinal")
    session = found[number]
    return session.devices[number - session.first_device]


@functools.total_ordering
class Device:
    """One device; ``with Device(1):`` makes it current."""

    def __init__(self, device: Any = None) -> None:
        if isinstance(device, Device):
            self.id = device.id
        else:
            self.id = get_device_id() if device is None else int(device)

    def __int__(self) -> int:
        return self.id

    def __index__(self) -> int:
        return self.id

    def __enter__(self) -> "Device":
        before = state.local.context[0]
        if self.id != before:
            set_device(self.id)
        state.local.devices.append(before)
        return self

    def __exit__(self, *_: object) -> None:
        state.use(state.local.devices.pop())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and self.id == other.id

    def __lt__(self, other: Any) -> bool:
        return self.id < other.id if isinstance(other, Device) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<CUDA Device {self.id}>"

    def use(self) -> "Device":
        """Make this device current in this thread."""
        set_device(self.id)
        return self

    @staticmethod
    def from_pci_bus_id(pci_bus_id: str) -> "Device":
        """Return the device with a bus address."""
        for number in range(len(pool.devices())):
            if str(description(number)["pci_bus_id"]).lower() == pci_bus_id.lower():
                return Device(number)
        raise CUDARuntimeError(101, "cudaErrorInvalidDevice: invalid device ordinal")

    def synchronize(self) -> None:
        """Wait until all calls are done; raise the first error."""
        state.waits()
        with self:
            pool.current().ask("cuda.device.synchronize")

    @property
    def compute_capability(self) -> str:
        """Version of the architecture, such as '90'."""
        return str(description(self.id)["compute_capability"])

    @property
    def pci_bus_id(self) -> str:
        """Bus address on the server."""
        return str(description(self.id)["pci_bus_id"])

    @property
    def attributes(self) -> dict[str, int]:
        """All attributes that CUDA has of a device."""
        with self:
            return pool.current().ask("cuda.attributes")

    @property
    def mem_info(self) -> tuple[int, int]:
        """Free and total bytes of the partition."""
        with self:
            free, total = pool.current().numbers("cuda.mem_info", 2)
        return free, total


from_pci_bus_id = Device.from_pci_bus_id
