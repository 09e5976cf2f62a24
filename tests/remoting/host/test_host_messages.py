import contextlib
import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.host.worker_handle import WorkerHandle, WorkerProcess, WorkerSession
from gpupool.remoting.protocol import helper_messages, worker_messages
from gpupool.remoting.protocol.driver_variables import ALLOWED, VALUE_LENGTH_MAX
from gpupool.remoting.worker.worker_channel import BudgetClient, HostGoneError, WorkerChannel


def test_largest_assignment_fits() -> None:
    device = worker_messages.AssignedDevice(
        255, "GPU-" + "0" * 36, "NVIDIA " + "x" * 40, 2**47, True, 255
    )
    uuids = ",".join([device.uuid] * 256)
    assign = worker_messages.Assign(
        2**63 - 1, bytes(16), bytes(32), "arrays", "p", uuids, (device,) * 256
    )
    assign = replace(assign, settings=dict.fromkeys(ALLOWED, "x" * VALUE_LENGTH_MAX))
    assert len(worker_messages.WORKER.encode(assign)) < worker_messages.WORKER.size_max


@given(st.text())
def test_shortened_text_fits_and_prints_on_one_line(text: str) -> None:
    short = worker_messages.shortened(text * 50)
    assert len(short) <= worker_messages.TEXT_SIZE_MAX + 3
    assert "\n" not in short


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 65535), st.integers(0, 2**64 - 1))),
    st.integers(1, 40),
)
def test_budget_calls_survive_being_cut_anywhere(
    calls: list[tuple[int, int, int]], step: int
) -> None:
    # To find and to share have as many bytes behind them as they say.
    expected = [
        worker_messages.BudgetCall(operation, device, size % 99, b"x" * (size % 99))
        if operation > worker_messages.USAGE
        else worker_messages.BudgetCall(operation, device, size)
        for operation, device, size in calls
    ]
    data = b"".join(
        worker_messages.BUDGET_CALL.pack(call.operation, call.device, call.size) + call.payload
        for call in expected
    )
    buffer, found = bytearray(), list[worker_messages.BudgetCall]()
    for start in range(0, len(data), step):
        buffer += data[start : start + step]
        found += worker_messages.decode_budget_calls(buffer)
    assert found == expected
    assert not buffer


@given(st.binary(max_size=100))
def test_malformed_budget_calls_are_refused_and_nothing_else(data: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        worker_messages.decode_budget_calls(bytearray(data))


def test_descriptor_arrives_with_its_message() -> None:
    host, worker = socket.socketpair()
    ours, theirs = socket.socketpair()
    with host, worker, ours, theirs:
        host.sendall(worker_messages.WORKER.encode(worker_messages.Proceed()))
        message = worker_messages.Connection(plain=True)
        socket.send_fds(host, [worker_messages.WORKER.encode(message)], [theirs.fileno()])
        host.sendall(worker_messages.WORKER.encode(worker_messages.Proceed()))
        channel = WorkerChannel(worker)
        assert channel.receive() == worker_messages.Proceed()
        assert channel.receive() == message
        with channel.take_descriptor() as received:
            ours.sendall(b"through")
            assert received.recv(10) == b"through"
            assert received.family == socket.AF_UNIX
        with pytest.raises(RemoteProtocolError):
            channel.take_descriptor()
        assert channel.receive() == worker_messages.Proceed()
        host.close()
        with pytest.raises(HostGoneError):
            channel.receive()
        with pytest.raises(HostGoneError):
            channel.send(worker_messages.Assigned())


def test_budget_client_asks_and_hears() -> None:
    host, worker = socket.socketpair()
    with host, worker:
        heard: list[Any] = []

        def answer() -> None:
            buffer = bytearray()
            while data := host.recv(100):
                buffer += data
                for call in worker_messages.decode_budget_calls(buffer):
                    heard.append((call.operation, call.device, call.size))
                    if call.operation != worker_messages.RELEASE:
                        host.sendall(worker_messages.BUDGET_ANSWER.pack(call.size < 50, 7))

        thread = threading.Thread(target=answer)
        thread.start()
        client = BudgetClient(worker)
        assert client.reserve(3, 10)
        client.release(3, 4)
        assert not client.reserve(0, 60)
        assert client.usage(2) == 7
        with pytest.raises(ValueError, match="negative"):
            client.reserve(0, -1)
        worker.shutdown(socket.SHUT_RDWR)
        thread.join(10)
        assert heard == [(1, 3, 10), (2, 3, 4), (1, 0, 60), (3, 2, 0)]
        with pytest.raises(HostGoneError):
            client.usage(0)


def handle(session: bytes, killed: list[str]) -> WorkerHandle:
    """Return the host's record of a worker with a client; no process is behind it."""

    async def reap() -> helper_messages.Reaped:
        return helper_messages.Reaped(0)

    process = WorkerProcess(1, -1, kill=lambda: killed.append(session.hex()), reap=reap)
    sockets = socket.socketpair()
    for end in sockets:
        end.close()
    return WorkerHandle(
        0, process, sockets[0], errors=-1, directory=Path(), session=WorkerSession(session)
    )


A, B, C, D = (bytes([number]) * 16 for number in range(4))


@pytest.mark.parametrize(
    ("lanes", "good"),
    [
        ((C, D), True),
        ((C, A), False),  # its own session, whose connection is there
        ((C, B), False),
        ((b"taken up" * 2, C), False),
        ((C,), False),
        ((C, D, D), False),
        ((C, D[:15]), False),
        ((C, b""), False),
    ],
    ids=["right", "its session", "another's", "another's lane", "one", "three", "short", "empty"],
)
def test_a_worker_expects_no_connections_of_another_s_client(
    lanes: tuple[bytes, ...], good: bool
) -> None:
    killed: list[str] = []
    worker, other = handle(A, killed), handle(B, killed)
    other.expect_lanes((b"taken up" * 2, b"taken go" * 2), (worker, other))
    assert not killed
    worker.expect_lanes(lanes, (worker, other))
    assert (worker.session.lanes == lanes) is good
    assert (killed == []) is good
    if good:
        worker.expect_lanes((b"and then" * 2, b"and here" * 2), (worker, other))
        assert killed == [A.hex()]  # once is enough
