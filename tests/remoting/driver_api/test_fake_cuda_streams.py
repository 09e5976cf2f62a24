"""The fake driver's streams, events, callbacks, captures and graphs."""

import ctypes
import struct
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fake_cuda.build import build
from fake_cuda.control import Control, process_environment
from fake_cuda.driver import CudaError, Driver, pointers

NOT_READY, NOT_PERMITTED, ILLEGAL_STATE = 600, 800, 401
CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED, CAPTURE_UNMATCHED = 900, 901, 903
CAPTURE_UNJOINED, CAPTURE_ISOLATION, CAPTURE_IMPLICIT = 904, 905, 906
NON_BLOCKING = 1
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    loaded = Driver(build(), tmp_path)
    loaded.start()
    yield loaded
    assert loaded.library.fakeCudaMissingCalls() == 0


def stream(driver: Driver, flags: int = NON_BLOCKING) -> int:
    return driver.get("cuStreamCreate", flags)


class Kernels:
    """The test kernels of one module, by name."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.handle = driver.module()

    def increment(self, data: int, count: int, on: int = 0) -> None:
        function = self.driver.function(self.handle, "increment")
        self.driver.launch(function, ctypes.c_uint64(data), ctypes.c_int(count), stream=on)

    def wait_for(self, flag: int, on: int) -> None:
        function = self.driver.function(self.handle, "wait_for_flag")
        self.driver.launch(function, ctypes.c_uint64(flag), stream=on)


@pytest.fixture
def kernels(driver: Driver) -> Kernels:
    return Kernels(driver)


class Gate:
    """Mapped host memory that a kernel in a stream waits for; opened at the latest at the end."""

    def __init__(self, driver: Driver) -> None:
        self.address, self.buffer = driver.pinned(4)

    def open(self) -> None:
        self.buffer[0] = b"\x01"


@pytest.fixture
def gate(driver: Driver) -> Iterator[Gate]:
    made = Gate(driver)
    yield made
    made.open()
    driver.call("cuCtxSynchronize")


def ints(driver: Driver, pointer: int, count: int) -> tuple[int, ...]:
    return struct.unpack(f"{count}i", driver.download(pointer, 4 * count))


# ---- streams ----


def test_work_runs_in_the_order_of_its_stream(driver: Driver, kernels: Kernels, gate: Gate) -> None:
    first = stream(driver)
    data = driver.upload(bytes(8))
    address, buffer = driver.pinned(8)
    kernels.wait_for(gate.address, first)
    kernels.increment(data, 2, first)
    driver.call("cuMemcpyDtoHAsync_v2", address, data, 8, first)
    driver.call("cuMemsetD8Async", data, 0, 8, first)
    assert driver.code("cuStreamQuery", first) == NOT_READY
    assert buffer.raw == bytes(8)
    gate.open()
    driver.call("cuStreamSynchronize", first)
    assert driver.code("cuStreamQuery", first) == 0
    assert buffer.raw == struct.pack("2i", 1, 1)
    assert ints(driver, data, 2) == (0, 0)


def test_streams_do_not_wait_for_each_other(driver: Driver, kernels: Kernels, gate: Gate) -> None:
    stuck, free = stream(driver), stream(driver)
    data = driver.upload(bytes(4))
    kernels.wait_for(gate.address, stuck)
    kernels.increment(data, 1, free)
    driver.call("cuStreamSynchronize", free)
    assert driver.code("cuStreamQuery", stuck) == NOT_READY


def test_the_legacy_stream_waits_for_blocking_streams_only(
    driver: Driver, kernels: Kernels, gate: Gate
) -> None:
    stuck = stream(driver, NON_BLOCKING)
    data = driver.upload(bytes(4))
    kernels.wait_for(gate.address, stuck)
    kernels.increment(data, 1)
    driver.call("cuStreamSynchronize", 0)  # not held up by the non-blocking stream
    gate.open()
    driver.call("cuStreamSynchronize", stuck)

    gate.buffer[0] = b"\0"
    blocking = stream(driver, 0)
    kernels.wait_for(gate.address, blocking)
    kernels.increment(data, 1)
    other = stream(driver, 0)
    kernels.increment(data, 1, other)  # behind the legacy stream's work
    assert driver.code("cuStreamQuery", 0) == NOT_READY
    assert driver.code("cuStreamQuery", other) == NOT_READY
    gate.open()
    driver.call("cuStreamSynchronize", other)
    assert ints(driver, data, 1) == (3,)


def test_each_thread_has_its_own_default_stream(
    driver: Driver, kernels: Kernels, gate: Gate
) -> None:
    context = driver.get("cuCtxGetCurrent")
    per_thread = 2
    kernels.wait_for(gate.address, per_thread)
    codes: list[int] = []

    def elsewhere() -> None:
        driver.call("cuCtxSetCurrent", context)
        codes.append(driver.code("cuStreamQuery", per_thread))
        codes.append(driver.code("cuStreamQuery_ptsz", 0))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join(30)
    assert codes == [0, 0]
    assert driver.code("cuStreamQuery_ptsz", 0) == NOT_READY


def test_pageable_sources_are_read_at_once_and_pinned_ones_later(
    driver: Driver, kernels: Kernels, gate: Gate
) -> None:
    one = stream(driver)
    kernels.wait_for(gate.address, one)
    pageable = ctypes.create_string_buffer(b"before", 6)
    address, pinned = driver.pinned(6)
    pinned[:] = b"before"
    first, second = driver.allocate(6), driver.allocate(6)
    driver.call("cuMemcpyHtoDAsync_v2", first, pageable, 6, one)
    driver.call("cuMemcpyHtoDAsync_v2", second, address, 6, one)
    pageable.raw, pinned[:] = b"after.", b"after."
    gate.open()
    driver.call("cuStreamSynchronize", one)
    assert (driver.download(first, 6), driver.download(second, 6)) == (b"before", b"after.")


def test_destroyed_streams_finish_and_are_refused(driver: Driver, kernels: Kernels) -> None:
    one = stream(driver)
    data = driver.upload(bytes(4))
    kernels.increment(data, 1, one)
    driver.call("cuStreamDestroy_v2", one)
    assert driver.code("cuStreamSynchronize", one) == 400
    driver.call("cuCtxSynchronize")
    assert ints(driver, data, 1) == (1,)


def test_host_functions_run_in_order_and_may_not_call_the_driver(driver: Driver) -> None:
    one = stream(driver)
    seen: list[int] = []

    @HOST_FUNCTION
    def note(value: int | None) -> None:
        seen.append(value or 0)
        seen.append(driver.code("cuCtxSynchronize"))

    for value in (1, 2):
        driver.call("cuLaunchHostFunc", one, note, value)
    driver.call("cuStreamSynchronize", one)
    assert seen == [1, NOT_PERMITTED, 2, NOT_PERMITTED]


def test_values_in_memory_are_waited_for_and_written(driver: Driver) -> None:
    first, second = stream(driver), stream(driver)
    flag = driver.upload(bytes(4))
    driver.call("cuStreamWaitValue32_v2", first, flag, 5, 0)
    assert driver.code("cuStreamQuery", first) == NOT_READY
    driver.call("cuStreamWriteValue32_v2", second, flag, 6, 0)
    driver.call("cuStreamSynchronize", first)


def test_a_full_queue_blocks_the_caller(driver: Driver, kernels: Kernels, gate: Gate) -> None:
    context = driver.get("cuCtxGetCurrent")
    one = stream(driver)
    empty = driver.function(kernels.handle, "empty")
    driver.library.fakeCudaLaunchCount.restype = ctypes.c_uint64
    kernels.wait_for(gate.address, one)

    def launch_many() -> None:
        driver.call("cuCtxSetCurrent", context)
        for _ in range(1100):
            driver.launch(empty, stream=one)

    thread = threading.Thread(target=launch_many)
    thread.start()
    while driver.library.fakeCudaLaunchCount() < 1022 and thread.is_alive():
        time.sleep(0.001)
    thread.join(0.05)
    assert thread.is_alive()
    assert driver.library.fakeCudaLaunchCount() == 1022
    gate.open()
    thread.join(30)
    driver.call("cuStreamSynchronize", one)
    assert driver.library.fakeCudaLaunchCount() == 1101


def test_pausing_from_another_process_holds_all_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Control(tmp_path) as control:
        for name, value in control.environment(build()).items():
            if name.startswith("FAKE"):
                monkeypatch.setenv(name, value)
        (tmp_path / "own").mkdir()
        driver = Driver(build(), tmp_path / "own")
        driver.start()
        one = stream(driver)
        kernels, data = Kernels(driver), driver.upload(bytes(4))
        control.pause()
        kernels.increment(data, 1, one)
        assert driver.code("cuStreamQuery", one) == NOT_READY
        control.pause(False)
        driver.call("cuStreamSynchronize", one)
        control.set_fault("cuStreamQuery", 999, times=1)
        assert [driver.code("cuStreamQuery", one) for _ in range(2)] == [999, 0]
        assert [launch.kernel for launch in control.launches()] == ["increment"]
        assert control.calls()["cuLaunchKernel"] == 1
        assert control.missing_calls() == 0
        assert process_environment({"A": "b"})["A"] == "b"


# ---- events ----


def test_events_order_streams(driver: Driver, kernels: Kernels, gate: Gate) -> None:
    first, second = stream(driver), stream(driver)
    event = driver.get("cuEventCreate", 0)
    data = driver.upload(bytes(4))
    assert driver.code("cuEventQuery", event) == 0  # never recorded
    kernels.wait_for(gate.address, first)
    kernels.increment(data, 1, first)
    driver.call("cuEventRecord", event, first)
    driver.call("cuStreamWaitEvent", second, event, 0)
    address, buffer = driver.pinned(4)
    driver.call("cuMemcpyDtoHAsync_v2", address, data, 4, second)
    assert driver.code("cuEventQuery", event) == NOT_READY
    assert driver.code("cuStreamQuery", second) == NOT_READY
    gate.open()
    driver.call("cuStreamSynchronize", second)
    driver.call("cuEventSynchronize", event)
    assert buffer.raw == struct.pack("i", 1)


def test_events_measure_time(driver: Driver, kernels: Kernels) -> None:
    one = stream(driver)
    start, end = (driver.get("cuEventCreate", 0) for _ in range(2))
    untimed = driver.get("cuEventCreate", 2)
    elapsed = ctypes.c_float()
    where = (ctypes.byref(elapsed), start, end)
    assert driver.code("cuEventElapsedTime_v2", *where) == 400
    driver.call("cuEventRecord", start, one)
    sleep = driver.function(kernels.handle, "sleep_us")
    driver.launch(sleep, ctypes.c_longlong(20_000), stream=one)
    driver.call("cuEventRecord", end, one)
    assert driver.code("cuEventElapsedTime_v2", *where) == NOT_READY
    began = time.monotonic()
    driver.call("cuEventSynchronize", end)
    driver.call("cuEventElapsedTime_v2", *where)
    assert 20 <= elapsed.value < 20 + 1000 * (time.monotonic() - began) + 1000
    driver.call("cuEventRecord", untimed, one)
    driver.call("cuStreamSynchronize", one)
    assert driver.code("cuEventElapsedTime", ctypes.byref(elapsed), start, untimed) == 400


# ---- graphs ----


def instantiate(driver: Driver, graph: int) -> int:
    return driver.get("cuGraphInstantiateWithFlags", graph, 0)


def capture(driver: Driver, one: int) -> None:
    driver.call("cuStreamBeginCapture_v2", one, 0)


def end_capture(driver: Driver, one: int) -> int:
    graph = ctypes.c_uint64()
    driver.call("cuStreamEndCapture", one, ctypes.byref(graph))
    return graph.value


def node_types(driver: Driver, graph: int) -> list[int]:
    count = ctypes.c_size_t()
    driver.call("cuGraphGetNodes", graph, 0, ctypes.byref(count))
    nodes = (ctypes.c_uint64 * count.value)()
    driver.call("cuGraphGetNodes", graph, nodes, ctypes.byref(count))
    kind = ctypes.c_uint()
    types: list[int] = []
    for node in nodes:
        driver.call("cuGraphNodeGetType", node, ctypes.byref(kind))
        types.append(kind.value)
    return types


def test_captured_work_runs_at_each_launch(driver: Driver, kernels: Kernels) -> None:
    one = stream(driver)
    data = driver.upload(bytes(8))
    source = ctypes.create_string_buffer(struct.pack("2i", 10, 20), 8)
    address, result = driver.pinned(8)
    capture(driver, one)
    driver.call("cuMemcpyHtoDAsync_v2", data, source, 8, one)
    kernels.increment(data, 2, one)
    driver.call("cuMemcpyDtoHAsync_v2", address, data, 8, one)
    driver.call("cuMemsetD8Async", data, 0, 8, one)
    graph = end_capture(driver, one)
    assert result.raw == bytes(8)
    assert driver.launches() == []
    assert node_types(driver, graph) == [1, 0, 1, 2]
    executable = instantiate(driver, graph)
    driver.call("cuGraphDestroy", graph)
    for value in (10, 30):  # pageable memory in a graph is read at each launch
        source.raw = struct.pack("2i", value, 20)
        driver.call("cuGraphLaunch", executable, one)
        driver.call("cuStreamSynchronize", one)
        assert result.raw == struct.pack("2i", value + 1, 21)
    assert len(driver.launches()) == 2
    driver.call("cuGraphExecDestroy", executable)
    assert driver.code("cuGraphLaunch", executable, one) == 1


def test_captures_fork_and_join(driver: Driver, kernels: Kernels) -> None:
    first, second = stream(driver), stream(driver)
    fork, join = (driver.get("cuEventCreate", 2) for _ in range(2))
    data = driver.upload(bytes(4))
    capture(driver, first)
    kernels.increment(data, 1, first)
    driver.call("cuEventRecord", fork, first)
    driver.call("cuStreamWaitEvent", second, fork, 0)
    kernels.increment(data, 1, second)
    driver.call("cuEventRecord", join, second)
    driver.call("cuStreamWaitEvent", first, join, 0)
    kernels.increment(data, 1, first)
    graph = end_capture(driver, first)
    count = ctypes.c_size_t()
    driver.call("cuGraphGetEdges", graph, 0, 0, ctypes.byref(count))
    assert count.value == 3
    status = ctypes.c_uint(9)
    driver.call("cuStreamIsCapturing", second, ctypes.byref(status))
    assert status.value == 0
    driver.call("cuGraphLaunch", instantiate(driver, graph), first)
    driver.call("cuStreamSynchronize", first)
    assert ints(driver, data, 1) == (3,)


def test_a_fork_that_does_not_come_back_spoils_the_capture(
    driver: Driver, kernels: Kernels
) -> None:
    first, second = stream(driver), stream(driver)
    event = driver.get("cuEventCreate", 2)
    data = driver.upload(bytes(4))
    capture(driver, first)
    driver.call("cuEventRecord", event, first)
    driver.call("cuStreamWaitEvent", second, event, 0)
    kernels.increment(data, 1, second)
    graph = ctypes.c_uint64(9)
    where = (ctypes.byref(graph),)
    assert driver.code("cuStreamEndCapture", second, *where) == CAPTURE_UNMATCHED
    assert driver.code("cuStreamEndCapture", first, *where) == CAPTURE_UNJOINED
    assert graph.value == 0
    assert driver.code("cuStreamEndCapture", first, *where) == ILLEGAL_STATE
    kernels.increment(data, 1, second)  # usable again


def test_forbidden_calls_spoil_a_capture(driver: Driver, kernels: Kernels) -> None:
    one, blocking = stream(driver), stream(driver, 0)
    data = driver.upload(bytes(4))
    capture(driver, one)
    assert driver.code("cuStreamSynchronize", one) == CAPTURE_UNSUPPORTED
    status = ctypes.c_uint()
    driver.call("cuStreamIsCapturing", one, ctypes.byref(status))
    assert status.value == 2
    with pytest.raises(CudaError) as caught:
        kernels.increment(data, 1, one)
    assert caught.value.code == CAPTURE_INVALIDATED
    with pytest.raises(CudaError) as caught:
        end_capture(driver, one)
    assert caught.value.code == CAPTURE_INVALIDATED

    capture(driver, blocking)
    with pytest.raises(CudaError) as caught:
        kernels.increment(data, 1, 0)  # the legacy stream would depend on the capture
    assert caught.value.code == CAPTURE_IMPLICIT
    event = driver.get("cuEventCreate", 2)
    driver.call("cuEventRecord", event, one)
    assert driver.code("cuStreamWaitEvent", blocking, event, 0) == CAPTURE_ISOLATION


class KernelNode(ctypes.Structure):
    _fields_ = [
        ("function", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("params", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    ]


def test_graphs_are_made_node_by_node_and_changed(driver: Driver, kernels: Kernels) -> None:
    data = driver.upload(bytes(16))
    function = driver.function(kernels.handle, "increment")
    arguments = pointers((ctypes.c_uint64(data), count := ctypes.c_int(2)))
    node = KernelNode(function, (1, 1, 1), (32, 1, 1), 0, ctypes.addressof(arguments))
    graph = driver.get("cuGraphCreate", 0)
    first = driver.get("cuGraphAddKernelNode_v2", graph, 0, 0, ctypes.byref(node))
    after = (ctypes.c_uint64 * 1)(first)
    called: list[bytes] = []

    @HOST_FUNCTION
    def note(_: int | None) -> None:
        called.append(b"x")

    host = (ctypes.c_void_p * 2)(ctypes.cast(note, ctypes.c_void_p).value, None)
    driver.get("cuGraphAddHostNode", graph, after, 1, host)
    executable = instantiate(driver, graph)
    driver.call("cuGraphLaunch", executable, 0)
    count.value = 4
    driver.call("cuGraphExecKernelNodeSetParams_v2", executable, first, ctypes.byref(node))
    driver.call("cuGraphLaunch", executable, 0)
    driver.call("cuCtxSynchronize")
    assert ints(driver, data, 4) == (2, 2, 1, 1)
    assert called == [b"x", b"x"]

    got = KernelNode()
    driver.call("cuGraphKernelNodeGetParams_v2", first, ctypes.byref(got))
    assert (got.function, list(got.block)) == (function, [32, 1, 1])
    values = ctypes.cast(got.params, ctypes.POINTER(ctypes.POINTER(ctypes.c_uint64)))
    assert values[0][0] == data
    clone = driver.get("cuGraphClone", graph)
    assert node_types(driver, clone) == [0, 3]
    result = (ctypes.c_uint64 * 3)()
    driver.call("cuGraphExecUpdate_v2", executable, clone, result)
    driver.get("cuGraphAddEmptyNode", clone, 0, 0)
    assert driver.code("cuGraphExecUpdate_v2", executable, clone, result) == 910
    assert result[0] & 0xFFFFFFFF == 2
