"""Plays a client that wants more than its partition; runs in a process with the fake driver.

    overspend.py CASE

Gives the worker's real code records, one by one, and compares its books with what the driver has.
"""

import ctypes
import struct
import sys
import threading
from collections.abc import Callable

from loopback import CountingBudget
from test_cuda_door import ScriptedStream, record

from gpupool.remoting.devices.base import DeviceSpec
from gpupool.remoting.driver_api.executor.api import Api
from gpupool.remoting.driver_api.executor.executor import Executor
from gpupool.remoting.driver_api.executor.memory import mapped, staging_buffers
from gpupool.remoting.driver_api.executor.modules import linker
from gpupool.remoting.driver_api.executor.modules.image_cache import Images
from gpupool.remoting.driver_api.executor.serve import ANSWER, REPLY, Session
from gpupool.remoting.driver_api.schema import table
from gpupool.remoting.driver_api.schema.records import NUMBERS

MIB = 1 << 20
PARTITION = 64 * MIB
LEGACY, ONE, OTHER = 1, 65, 66
GRAPH, FORGED, EXECUTABLE, POOL = 70, 71, 72, 73
THRESHOLD, PTX = 4, 1  # CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, CU_JIT_INPUT_PTX
NON_BLOCKING = 1
LIBRARY = ctypes.CDLL("libcuda.so.1")
STREAM_CREATE = next(op for op, call in table.CALLS.items() if call[0] == "cuStreamCreate")


class AnsweredStream(ScriptedStream):
    """Lets a thread wait for an answer."""

    def __init__(self) -> None:
        super().__init__(b"")
        self.changed = threading.Condition()

    def send_buffers(self, buffers: list[bytes | memoryview], /) -> None:
        with self.changed:
            super().send_buffers(buffers)
            self.changed.notify_all()


class HostileClient:
    """A client with its records executed at once, in the calling thread."""

    def __init__(self) -> None:
        self.stream, self.budget = AnsweredStream(), CountingBudget(PARTITION)
        spec = DeviceSpec(0, "GPU-0", "GPU", PARTITION, emulated=False, ordinal=0)
        self.executor = Executor(
            Api(), Session(self.stream), [spec], self.budget, lambda _text: None, Images(None)
        )
        self.requests, self.at = 0, 0
        self.answers: dict[int, tuple[int, bytes]] = {}
        self.before = self.taken()

    def taken(self) -> int:
        """Return the bytes that the driver has given this process."""
        left, total = ctypes.c_size_t(), ctypes.c_size_t()
        assert LIBRARY.cuMemGetInfo_v2(ctypes.byref(left), ctypes.byref(total)) == 0
        return total.value - left.value

    def physical(self) -> int:
        """Return the bytes that the driver has given since the start."""
        return self.taken() - self.before

    @property
    def charged(self) -> int:
        return self.budget.usage(0)

    def send(self, op: int | str, *words: int, flags: int = 0, bulk: bytes = b"") -> None:
        """Execute one record."""
        body = bytearray(record(op, *words, flags=flags))
        self.stream.data = bulk
        self.executor.execute(body, memoryview(body), 0, len(body), len(bulk))

    def begin(self, op: int | str, *words: int, bulk: bytes = b"") -> int:
        """Execute one record that is answered at some time; return the request."""
        self.requests += 1
        self.send(op, self.requests, *words, flags=1, bulk=bulk)
        return self.requests

    def ask(self, op: int | str, *words: int, bulk: bytes = b"") -> tuple[int, bytes]:
        """Execute one record and return its status and answer."""
        return self.answer(self.begin(op, *words, bulk=bulk))

    def answer(self, request: int) -> tuple[int, bytes]:
        """Wait for the status and the answer of a request."""
        with self.stream.changed:
            assert self.stream.changed.wait_for(lambda: self._found(request), 20)
        return self.answers[request]

    def _found(self, request: int) -> bool:
        sent = self.stream.sent
        while self.at < len(sent):
            kind, status, number, size, _, bulk = ANSWER.unpack_from(sent, self.at)
            start = self.at + ANSWER.size
            if kind == REPLY:
                self.answers[number] = (status, bytes(sent[start : start + size]))
            self.at = start + size + bulk
        return request in self.answers

    def get(self, op: int | str, *words: int) -> int:
        """Execute one record that must succeed, and return its first word."""
        status, body = self.ask(op, *words)
        assert status == 0, (op, status)
        return struct.unpack_from("<Q", body)[0] if len(body) >= 8 else 0

    def idle(self) -> None:
        """Wait until the worker has finished its pending frees."""
        self.executor.client.waiter.freeing.wait()


CASES: dict[str, Callable[[HostileClient], None]] = {}


def case(function: Callable[[HostileClient], None]) -> Callable[[HostileClient], None]:
    CASES[function.__name__] = function
    return function


def captured(client: HostileClient, size: int) -> None:
    """Make a graph that allocates, by a capture that names another graph."""
    client.send(STREAM_CREATE, ONE, NON_BLOCKING)
    client.send("GRAPH_CREATE", FORGED)
    client.send("BEGIN_CAPTURE", ONE, 0, GRAPH)
    client.ask("CAPTURE_ALLOCATE", ONE, FORGED, size, 80)
    client.ask("END_CAPTURE", ONE, GRAPH)


@case
def a_synchronization_is_answered_once_freed_memory_is_free(client: HostileClient) -> None:
    """As natively, where cuMemFree returns only then: another process may be told, and allocate."""
    address = client.get("ALLOCATE", 48 * MIB)
    runtime = client.executor.client.api.runtime
    free, begun = runtime.free, threading.Event()

    def free_late(freed: int) -> None:
        begun.wait(0.2)  # nobody says so: the driver is slow
        free(freed)

    runtime.free = free_late
    client.send("FREE", address)
    assert client.ask("SYNC_DEVICE", 0)[0] == 0
    assert client.charged == 0, client.charged


@case
def capture_under_another_name(client: HostileClient) -> None:
    captured(client, 48 * MIB)
    status, _ = client.ask("GRAPH_INSTANTIATE", EXECUTABLE, GRAPH, 0, 0)
    if status == 0:
        client.send("GRAPH_LAUNCH", EXECUTABLE, ONE)
    assert client.physical() <= client.charged


@case
def capture_that_never_began(client: HostileClient) -> None:
    client.send(STREAM_CREATE, ONE, NON_BLOCKING)
    client.send("GRAPH_CREATE", GRAPH)
    status, _ = client.ask("CAPTURE_ALLOCATE", ONE, GRAPH, 48 * MIB, 80)
    assert status != 0
    address = client.get("ALLOCATE", 8 * MIB)
    client.send("CAPTURE_FREE", ONE, GRAPH, address)
    assert client.physical() == client.charged == 8 * MIB


@case
def plain_allocation_in_a_capture(client: HostileClient) -> None:
    client.send(STREAM_CREATE, ONE, NON_BLOCKING)
    client.send("BEGIN_CAPTURE", ONE, 0, GRAPH)
    assert client.ask("ALLOCATE_ASYNC", 48 * MIB, 0, ONE)[0] == 900
    client.ask("END_CAPTURE", ONE, GRAPH)
    assert client.physical() <= client.charged


@case
def plain_free_in_a_capture(client: HostileClient) -> None:
    client.send(STREAM_CREATE, ONE, NON_BLOCKING)
    address = client.get("ALLOCATE", 48 * MIB)
    client.send("BEGIN_CAPTURE", ONE, 0, GRAPH)
    client.send("FREE_ASYNC", address, ONE)
    client.ask("END_CAPTURE", ONE, GRAPH)
    assert client.physical() <= client.charged


@case
def free_behind_what_does_not_end(client: HostileClient) -> None:
    client.send(STREAM_CREATE, ONE, NON_BLOCKING)
    address = client.get("ALLOCATE", 48 * MIB)
    small = [client.get("ALLOCATE", 512) for _ in range(300)]
    LIBRARY.fakeCudaPause(1)
    client.send("FREE_ASYNC", address, ONE)
    for one in small:
        client.send("FREE_ASYNC", one, ONE)
    assert client.physical() <= client.charged
    # Whatever else waits still has a thread, of those that there are at most.
    done = threading.Event()
    client.executor.client.waiter.start(0, done.set)
    assert done.wait(20)
    LIBRARY.fakeCudaPause(0)
    client.idle()
    assert client.physical() == client.charged == 0


@case
def graph_destroyed_while_it_runs(client: HostileClient) -> None:
    client.send(STREAM_CREATE, ONE, NON_BLOCKING)
    client.send("BEGIN_CAPTURE", ONE, 0, GRAPH)
    address = client.get("CAPTURE_ALLOCATE", ONE, GRAPH, 48 * MIB, 80)
    client.send("CAPTURE_FREE", ONE, GRAPH, address)
    client.get("END_CAPTURE", ONE, GRAPH)
    client.get("GRAPH_INSTANTIATE", EXECUTABLE, GRAPH, 0, 0)
    LIBRARY.fakeCudaPause(1)
    client.send("GRAPH_LAUNCH", EXECUTABLE, ONE)
    client.send("GRAPH_EXEC_DESTROY", EXECUTABLE)
    for _ in range(200):  # time enough for whoever does not wait
        client.get("GET_LIMIT", 0)
    assert client.charged >= 48 * MIB
    LIBRARY.fakeCudaPause(0)
    client.idle()
    assert client.charged == 0


@case
def graph_memory_that_outlives_its_graph(client: HostileClient) -> None:
    """Check that CUDA keeps no freed graph memory for other graphs."""
    client.send(STREAM_CREATE, ONE, NON_BLOCKING)
    client.send("BEGIN_CAPTURE", ONE, 0, GRAPH)
    address = client.get("CAPTURE_ALLOCATE", ONE, GRAPH, 48 * MIB, 80)
    client.get("END_CAPTURE", ONE, GRAPH)
    client.get("GRAPH_INSTANTIATE", EXECUTABLE, GRAPH, 0, 0)
    client.send("GRAPH_LAUNCH", EXECUTABLE, ONE)
    client.send("GRAPH_EXEC_DESTROY", EXECUTABLE)
    client.idle()
    assert client.charged == 48 * MIB
    trims = LIBRARY.fakeCudaCalls(b"cuDeviceGraphMemTrim")
    client.send("FREE_ASYNC", address, ONE)
    client.idle()
    assert client.charged == 0
    assert LIBRARY.fakeCudaCalls(b"cuDeviceGraphMemTrim") == trims + 1


@case
def memory_of_a_failed_context(client: HostileClient) -> None:
    """After a sticky error, no call frees anything."""
    address = client.get("ALLOCATE", 48 * MIB)
    LIBRARY.fakeCudaSetFault(b"cuMemFree", 700, 0, 0, 0, 0)
    client.send("FREE", address)
    client.idle()
    assert client.physical() <= client.charged


@case
def pool_that_grows_while_frees_wait(client: HostileClient) -> None:
    """Check that the pool keeps none of the refused memory, at any threshold."""
    client.send(STREAM_CREATE, ONE, NON_BLOCKING)
    client.send(STREAM_CREATE, OTHER, NON_BLOCKING)
    client.get("POOL_DEFAULT", POOL, 0)
    client.get("POOL_SET", POOL, THRESHOLD, (1 << 64) - 1)
    address = client.get("ALLOCATE_ASYNC", 40 * MIB, POOL, ONE)
    LIBRARY.fakeCudaPause(1)
    client.send("FREE_ASYNC", address, ONE)
    request = client.begin("ALLOCATE_ASYNC", 40 * MIB, POOL, OTHER)
    LIBRARY.fakeCudaPause(0)
    assert client.answer(request)[0] == 0
    assert client.physical() == client.charged == 40 * MIB


@case
def pinned_memory_in_small_pieces(client: HostileClient) -> None:
    """Each takes a page at least, of the server's own memory."""
    staging_buffers.PINNED_MAX = MIB
    for number in range(MIB // 4096):
        client.send("SLOT_MAKE", 100 + number, 1)
    assert client.executor.client.failed == (0, 0)
    client.send("SLOT_MAKE", 99, 1)
    assert client.executor.client.failed == (2, NUMBERS["SLOT_MAKE"])
    for number in range(MIB // 4096):
        client.send("SLOT_FREE", 100 + number)
    staging_buffers.KEPT_MAX = 0
    mapped.MAPPED_SIZE_MAX = 8192
    found = [client.ask("MAP_HOST", number, 1, 0)[0] for number in (80, 81, 82)]
    assert found == [0, 0, 2]


@case
def answers_that_wait(client: HostileClient) -> None:
    """Each has pinned memory, and a client may ask without ever waiting."""
    staging_buffers.PINNED_MAX = 4 * MIB
    client.send(STREAM_CREATE, ONE, NON_BLOCKING)
    address = client.get("ALLOCATE", MIB)
    LIBRARY.fakeCudaPause(1)
    requests = [client.begin("COPY_OUT", address, MIB, ONE) for _ in range(4)]
    assert client.ask("COPY_OUT", address, MIB, ONE)[0] == 2
    LIBRARY.fakeCudaPause(0)
    assert [client.answer(request)[0] for request in requests] == [0] * 4
    assert client.ask("COPY_OUT", address, MIB, ONE)[0] == 0


@case
def input_of_links_that_never_end(client: HostileClient) -> None:
    linker.ADDED_SIZE_MAX = 100
    text = b".version 8.0\n.target sm_90\n".ljust(60)
    for number in (1, 2):
        client.get("LINK_CREATE", number, *(0 for _ in linker.PASSED_ON))
    found = [client.ask("LINK_ADD", number, PTX, len(text), bulk=text)[0] for number in (1, 2)]
    assert found == [0, 2]
    client.send("LINK_DESTROY", 1)
    assert client.ask("LINK_ADD", 2, PTX, len(text), bulk=text)[0] == 0


def main() -> None:
    LIBRARY.cuInit(0)
    CASES[sys.argv[1]](HostileClient())


if __name__ == "__main__":
    main()
