"""Sessions without a client: an executor on emulated GPUs, and links between two of them."""

import struct
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import door_kit
import numpy as np
from door_cases import NoClient

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.array_api.server import array_wire
from gpupool.remoting.array_api.server.array_executor import Executor
from gpupool.remoting.array_api.server.element_types import told
from gpupool.remoting.devices.emulated import EmulatedBackend
from gpupool.remoting.worker.peer_links import Links, Peer, PeerFailedError, PeerLostError, TakeLane


class PipeLinks(Links):
    """Both ends of one link: sent data waits in memory."""

    def __init__(self) -> None:
        self.sent: deque[tuple[int, bytes, str]] = deque()
        self.closed = False
        self._rest = memoryview(b"")

    def introduce(self, key: bytes, index: int, others: Sequence[Peer | None]) -> None: ...

    def connect(self, index: int) -> str:
        return ""

    def send(self, index: int, number: int, size: int, pieces: Iterable[memoryview]) -> None:
        data = b"".join(bytes(piece) for piece in pieces)
        assert len(data) == size
        self.sent.append((number, data, ""))

    def send_failure(self, index: int, number: int, text: str) -> None:
        self.sent.append((number, b"", text))

    def begin(self, index: int, number: int, size: int) -> None:
        if not self.sent:
            raise PeerLostError("its worker ended")
        found, data, text = self.sent.popleft()
        if text:
            raise PeerFailedError(text)
        if (found, len(data)) != (number, size):
            raise PeerLostError(f"transfer {found} of {len(data)} bytes, for {number} of {size}")
        self._rest = memoryview(data)

    def read(self, index: int, target: memoryview) -> None:
        if len(self._rest) < len(target):
            raise PeerLostError("its worker ended")
        target[:] = self._rest[: len(target)]
        self._rest = self._rest[len(target) :]

    def skip(self, index: int, size: int) -> None: ...

    def cut(self, index: int) -> None:
        self.closed = True

    def expect_lanes(self, ids: tuple[bytes, bytes], take: TakeLane, encrypts: Any) -> bool:
        return False

    def forget(self) -> None:
        self.closed = True

    def close(self) -> None:
        self.closed = True


class Silent(NoClient):
    """A client that only records the failures pushed to it."""

    def free_later(self, handles: bytes) -> None: ...


class Worker:
    """One session: calls by name, as a client's records make them."""

    def __init__(self, links: PipeLinks, count: int = 2, memory: int = 64 * door_kit.MIB) -> None:
        devices = door_kit.emulated(count, memory)
        self.budget = door_kit.MemoryBudget([memory] * count)
        self.backend = EmulatedBackend(devices, self.budget)
        self.client, self.links = Silent(), links
        self.lines: list[str] = []
        self.executor = Executor(self.backend, self.client, self.lines.append, links)
        self._next = 1
        self._template = array_wire.FIRST_TEMPLATE

    def _sized(self, code: int, body: Any) -> bytes:
        data = array_wire.encode_body(body)
        return array_wire.SIZED_RECORD.pack(code, len(data)) + data

    def call(
        self, name: str, *args: Any, meta: int = array_wire.META_UNKNOWN, **kwargs: Any
    ) -> int:
        """Run one call, of which handles are `Handle`; return the handle of its result."""
        define, record = self.record(name, *args, meta=meta, **kwargs)
        self.executor.run(memoryview(define + record), ask=False)
        return self._next - 1

    def record(
        self, name: str, *args: Any, meta: int = array_wire.META_UNKNOWN, **kwargs: Any
    ) -> tuple[bytes, bytes]:
        """Return the record of a call's template, and that of the call."""
        values: list[Any] = []
        nodes = [_node(arg, values) for arg in args]
        pairs = [[key, _node(arg, values)] for key, arg in kwargs.items()]
        number, self._template = self._template, self._template + 1
        handle, self._next = self._next, self._next + 1
        operation = self.executor.names.index(name)
        define = self._sized(array_wire.TEMPLATE, [number, operation, 1, nodes, pairs])
        layout = "".join("d" if type(value) is float else "Q" for value in values)
        return define, struct.pack(f"<IIQ{layout}", number, meta, handle, *values)

    def make(self, name: str, *args: Any, **kwargs: Any) -> int:
        """Run a call that makes an object."""
        return self.call(name, *args, meta=array_wire.META_OBJECT, **kwargs)

    def put(self, array: np.ndarray[Any, Any]) -> int:
        """Send an array to the current device."""
        looks = [told(array.dtype), list(array.shape), list(array.strides)]
        handle, self._next = self._next, self._next + 1
        body = [array_wire.FIRST_META + 1, *looks]
        self.executor.run(memoryview(self._sized(array_wire.META, body)), ask=False)
        data = array.tobytes(order="K")

        def fill(target: memoryview) -> None:
            target[:] = data

        assert self.executor.put(handle, array_wire.FIRST_META + 1, len(data), fill)
        return handle

    def use(self, device: int) -> None:
        record = array_wire.CONTEXT_RECORD.pack(array_wire.CONTEXT, device, 0)
        self.executor.run(memoryview(record), ask=False)

    def free(self, handle: int) -> None:
        self.executor.free(handle)

    def array(self, handle: int) -> np.ndarray[Any, Any]:
        return self.executor.find(handle)

    def question(self, name: str, *args: Any) -> Any:
        """Run an operation as a question does, without its answer's form."""
        return self.executor.functions[self.executor.names.index(name)](*args)


class Handle(int):
    """A handle among a call's arguments."""


def _node(value: Any, values: list[Any]) -> Any:
    if isinstance(value, Handle):
        values.append(int(value))
        return "h"
    if isinstance(value, float):
        values.append(value)
        return "f"
    if isinstance(value, (str, bytes)):
        return ["q" if isinstance(value, str) else "b", value]
    given: Any = value
    if isinstance(value, np.dtype):
        return ["d", told(given)]
    if given.__class__ in (tuple, list):
        code = "t" if given.__class__ is tuple else "l"
        return [code, *(_node(item, values) for item in given)]
    if given.__class__ is slice:
        return ["s", given.start, given.stop, given.step]
    return given


def moved(old: Worker) -> Worker:
    """Return a worker with all that another one has."""
    old.question("peer.depart", 1)
    new = Worker(old.links)
    sequence = new.question("peer.arrive", 0)
    assert sequence == old.executor.sequence == new.executor.sequence
    assert not old.links.sent
    new._next, new._template = old._next, old._template  # pyright: ignore[reportPrivateUsage]
    return new


REFUSED = (RemoteProtocolError, PeerFailedError, PeerLostError)
