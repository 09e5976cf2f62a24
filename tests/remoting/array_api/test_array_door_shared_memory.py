"""Large copies between a program and a worker of the same machine, through shared memory."""

import mmap
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import door_kit
import numpy as np
import pytest
from door_cases import NoClient, backend, refused

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.array_api.server import array_wire
from gpupool.remoting.array_api.server.array_executor import Executor
from gpupool.remoting.array_api.server.shared_memory import make_region

SLOT = array_wire.SHARED_SLOT
MIB = door_kit.MIB


@pytest.mark.parametrize(
    "size", [256 * 1024 - 1, 256 * 1024, SLOT - 1, SLOT, SLOT + 1, 4 * SLOT, 9 * SLOT + 5]
)
def test_every_byte_arrives_whatever_the_size(cp: Any, size: int) -> None:
    assert cp._door.pool.current().shared is not None
    host = np.random.default_rng(size).integers(0, 255, size, np.uint8)
    array = cp.asarray(host)
    assert np.array_equal(array.get(), host)
    array.set(host[::-1].copy())
    out = np.empty_like(host)
    assert array.get(out=out) is out
    assert np.array_equal(out, host[::-1])


@pytest.mark.parametrize("order", ["C", "F"])
def test_orders_and_parts_arrive(cp: Any, order: str) -> None:
    host = np.asarray(np.random.default_rng(1).random((700, 900)), order=order)  # type: ignore[call-overload]
    array = cp.asarray(host)
    assert array.flags.f_contiguous == (order == "F")
    for wanted in "CFA":
        assert np.array_equal(array.get(order=wanted), host)
    assert np.array_equal(array[::2, ::-1].get(), host[::2, ::-1])
    assert np.array_equal(array.T.get(), host.T)


def test_what_was_sent_may_be_changed_at_once(cp: Any) -> None:
    host = np.zeros(3 * SLOT, np.uint8)
    arrays: list[Any] = []
    for value in range(5):
        host[:] = value
        arrays.append(cp.asarray(host))
    for value, array in enumerate(arrays):
        assert (array.get() == value).all()


def test_threads_copy_at_the_same_time(cp: Any) -> None:
    def arrives(number: int) -> bool:
        host = np.full(SLOT + 1000 * number, number, np.uint8)
        return all((cp.asarray(host).get() == number).all() for _ in range(6))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(arrives, range(4)))


def test_an_upload_that_has_no_room_fails_and_the_next_arrives(cp: Any) -> None:
    with pytest.raises(cp.cuda.memory.OutOfMemoryError):
        cp.asarray(np.zeros(600 * MIB, np.uint8))
    host = np.arange(SLOT, dtype=np.uint32)
    assert np.array_equal(cp.asarray(host).get(), host)


def test_a_client_that_takes_no_memory_gets_everything_by_the_socket() -> None:
    source = """
import cupy, numpy
from cupy._door.transport import link
link.Link.expect_descriptor = lambda self: False
host = numpy.arange(3_000_000)
array = cupy.asarray(host)
assert array._gp_session.shared is None
assert (array.get() == host).all()
"""
    with door_kit.pool(1) as agent:
        door_kit.output(agent, source)


def executor(*, shared: bool = True) -> Executor:
    device = backend(64 * MIB)
    made = Executor(device, NoClient(), lambda line: None)
    if shared:
        made.slots.share(mmap.mmap(-1, array_wire.SHARED_SLOTS * SLOT))
    made.objects[1] = device.adopt(np.zeros(1000, np.uint8))
    made.objects[2] = made.objects[1][::2]
    made.objects[3] = "no array"
    return made


OUTSIDE: list[tuple[int, int, int, Any]] = [
    *((1, 0, slot, 10) for slot in (8, -1)),
    *((1, offset, 0, 10) for offset in (991, -1)),
    *((1, 0, 0, size) for size in (0, SLOT + 1, 10.0)),
    *((2, 0, 0, 10), (3, 0, 0, 1), (9, 0, 0, 1)),
]


@pytest.mark.parametrize(("handle", "offset", "slot", "size"), OUTSIDE)
def test_a_copy_beyond_an_array_or_a_slot_is_refused(
    handle: int, offset: int, slot: int, size: Any
) -> None:
    made = executor()
    calls = [lambda: made.slots.fill(handle, offset, slot, size)]
    if handle in made.objects:
        calls.append(lambda: made.slots.fetch(made.find(handle), offset, slot, size))
    refused(*((RemoteProtocolError, "", call) for call in calls))


def test_a_copy_without_shared_memory_is_refused() -> None:
    made = executor(shared=False)
    refused((RemoteProtocolError, "", lambda: made.slots.fill(1, 0, 0, 10)))


def test_the_client_cannot_cut_the_memory_off() -> None:
    region = make_region()
    assert region is not None
    descriptor, memory = region
    for size in (0, 1 << 40):
        refused((PermissionError, "", lambda size=size: os.ftruncate(descriptor, size)))
    memory.close()
    os.close(descriptor)


def test_descriptors_that_nobody_asked_for_are_closed(dropin: Any) -> None:
    ours, theirs = socket.socketpair()
    link = dropin._door.transport.link.Link(ours)
    assert link.expect_descriptor()
    before = len(os.listdir("/proc/self/fd"))
    pipes = [os.pipe() for _ in range(2)]
    socket.send_fds(theirs, [b"hello"], [pipes[0][0], pipes[0][1], pipes[1][0]])
    assert link.receive_into(memoryview(bytearray(100)))
    assert link.counts == [5]
    taken = link.take_descriptor()
    for descriptor in (taken, *pipes[0], *pipes[1]):
        os.close(descriptor)
    assert len(os.listdir("/proc/self/fd")) == before
    link.close()
    theirs.close()
