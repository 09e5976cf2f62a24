"""What the variables of loaded modules take of the partition, and whether kernels may print."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from gpupool.remoting.driver_api.executor.api import CudaError
from gpupool.remoting.driver_api.executor.client_state import Client
from gpupool.remoting.driver_api.executor.memory.memory import Memory, charged
from gpupool.remoting.driver_api.executor.modules.image_contents import contents_of
from gpupool.remoting.driver_api.executor.modules.printed import ERRORS, OUTPUT, Printed

NAMES_MAX = 4096
"""Variables of one compressed module that are counted one by one."""


@dataclass(slots=True)
class Loaded:
    """A module or library, and what is charged for its variables."""

    device: int
    cost: int
    seen: bool  # whether its image could be read; else its variables count as they are asked for
    names: set[bytes] = field(default_factory=set[bytes])


class Variables:
    """The variables of a client process's modules, by the client's numbers."""

    def __init__(self, client: Client, memory: Memory) -> None:
        self._client = client
        self._memory = memory
        self._loaded: dict[int, Loaded] = {}
        self._printed = Printed(client.session, OUTPUT)
        self._asserted = Printed(client.session, ERRORS)

    @contextmanager
    def charged(self, number: int, image: bytes | bytearray) -> Generator[None]:
        """Charge what an image's variables take while it is loaded; keep that if it is.

        Raises:
            CudaError: when the partition has not so much left.
        """
        contents, device = contents_of(image), self._client.device
        cost = charged(contents.variables)
        self._memory.reserve(device, cost)
        try:
            if contents.prints and not self._printed.started:
                self._printed.start()
                self._client.waiter.after.append(self._printed.push)
            if contents.asserts and not self._asserted.started:
                self._asserted.start()
                self._client.session.before_assert = self._asserted.push
            yield
        except BaseException:
            if cost:
                self._client.budget.release(device, cost)
            raise
        self._loaded[number] = Loaded(device, cost, contents.seen)

    def found(self, number: int, name: bytes, size: int) -> None:
        """Count a variable that the client asked for, if its image could not be read."""
        loaded = self._loaded.get(number)
        if loaded is None or loaded.seen or name in loaded.names or len(loaded.names) >= NAMES_MAX:
            return
        loaded.names.add(name)
        # It exists already, so an excess is left to the comparison of the books with NVML.
        try:
            self._memory.reserve(loaded.device, charged(size))
        except CudaError:
            return
        loaded.cost += charged(size)

    def release(self, number: int) -> None:
        """Give back what a module's variables took."""
        loaded = self._loaded.pop(number, None)
        if loaded is not None and loaded.cost:
            self._client.budget.release(loaded.device, loaded.cost)
