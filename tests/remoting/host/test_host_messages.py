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
from gpupool.remoting.host.worker_handle import WorkerHandle, WorkerProcess
from gpupool.remoting.protocol import framing, worker_messages
from gpupool.remoting.protocol.driver_variables import ALLOWED, VALUE_LENGTH_MAX
from gpupool.remoting.worker.worker_channel import BudgetClient, HostGoneError, WorkerChannel

text = st.text(max_size=40)
device = st.builds(
    worker_messages.AssignedDevice,
    index=st.integers(0, 255),
    uuid=text,
    name=text,
    memory=st.integers(0, 2**48),
    emulated=st.booleans(),
    ordinal=st.integers(-1, 255),
)
host_message = st.one_of(
    st.builds(
        worker_messages.Start,
        own_uid=st.booleans(),
        cuda=st.booleans(),
        landlock=st.booleans(),
        directory=text,
        readable=st.lists(text, max_size=3).map(tuple),
        expose=st.lists(text, max_size=3).map(tuple),
        doors=st.dictionaries(text, text, max_size=3),
    ),
    st.builds(
        worker_messages.Assign,
        lease=st.integers(0, 2**63 - 1),
        session=st.binary(min_size=16, max_size=16),
        ticket=st.binary(min_size=32, max_size=32),
        door=text,
        program=text,
        cuda_visible=text,
        devices=st.lists(device, max_size=3).map(tuple),
        uid=st.integers(-1, 2**31),
        groups=st.lists(st.integers(0, 2**31), max_size=3).map(tuple),
        settings=st.dictionaries(text, text, max_size=3),
    ),
    st.builds(worker_messages.Connection, plain=st.booleans(), lane=st.binary(max_size=16)),
    st.builds(worker_messages.Proceed),
)
counts = st.integers(0, 2**56)
worker_message = st.one_of(
    st.builds(
        worker_messages.Ready,
        certificate_sha256=st.binary(max_size=32),
        confinement=st.lists(text, max_size=3).map(tuple),
        cuda_problem=text,
    ),
    st.builds(worker_messages.Assigned),
    st.builds(worker_messages.ContextReady),
    st.builds(worker_messages.Connected, transport=text),
    st.builds(worker_messages.Rejected, reason=text),
    st.builds(worker_messages.Report, calls=counts, bytes_in=counts, bytes_out=counts),
    st.builds(worker_messages.Log, text=text),
    st.builds(worker_messages.Ended, reason=text, failed=st.booleans()),
)


def frames_of(data: bytes) -> list[framing.Frame]:
    reader = worker_messages.frame_reader()
    reader.feed(data)
    return list(reader.frames())


@given(host_message)
def test_host_messages_survive_the_wire(message: worker_messages.HostMessage) -> None:
    (frame,) = frames_of(worker_messages.encode(message))
    assert worker_messages.decode_from_host(frame) == message


@given(worker_message)
def test_worker_messages_survive_the_wire(message: worker_messages.WorkerMessage) -> None:
    (frame,) = frames_of(worker_messages.encode(message))
    assert worker_messages.decode_from_worker(frame) == message


@given(st.integers(0, 20), st.binary(max_size=60))
def test_garbage_is_refused_and_nothing_else(kind: int, body: bytes) -> None:
    for decode in (worker_messages.decode_from_host, worker_messages.decode_from_worker):
        try:
            decode(framing.Frame(kind, body))
        except RemoteProtocolError:
            continue


@given(worker_message, st.data())
def test_damaged_messages_are_refused_and_nothing_else(
    message: worker_messages.WorkerMessage, data: st.DataObject
) -> None:
    damaged = bytearray(worker_messages.encode(message))
    position = data.draw(st.integers(0, len(damaged) - 1))
    damaged[position] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(RemoteProtocolError):
        for frame in frames_of(bytes(damaged)):
            worker_messages.decode_from_worker(frame)


def test_oversize_message_is_refused_by_its_header() -> None:
    with pytest.raises(RemoteProtocolError, match="oversize"):
        frames_of(framing.HEADER.pack(worker_messages.MESSAGE_SIZE_MAX + 1, 0))


def test_largest_assignment_fits() -> None:
    device = worker_messages.AssignedDevice(
        255, "GPU-" + "0" * 36, "NVIDIA " + "x" * 40, 2**47, True, 255
    )
    uuids = ",".join([device.uuid] * 256)
    assign = worker_messages.Assign(
        2**63 - 1, bytes(16), bytes(32), "arrays", "p", uuids, (device,) * 256
    )
    assign = replace(assign, settings=dict.fromkeys(ALLOWED, "x" * VALUE_LENGTH_MAX))
    assert len(worker_messages.encode(assign)) < worker_messages.MESSAGE_SIZE_MAX


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
        host.sendall(worker_messages.encode(worker_messages.Proceed()))
        message = worker_messages.Connection(plain=True)
        socket.send_fds(host, [worker_messages.encode(message)], [theirs.fileno()])
        host.sendall(worker_messages.encode(worker_messages.Proceed()))
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
    """Return what the host keeps for a worker that has a client; no process is behind it."""

    async def reap() -> int:
        return 0

    process = WorkerProcess(1, kill=lambda: killed.append(session.hex()), reap=reap)
    sockets = socket.socketpair()
    for end in sockets:
        end.close()
    return WorkerHandle(
        0, process, pidfd=-1, control=sockets[0], errors=-1, directory=Path(), session=session
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
    assert (worker.lanes == lanes) is good
    assert (killed == []) is good
    if good:
        worker.expect_lanes((b"and then" * 2, b"and here" * 2), (worker, other))
        assert killed == [A.hex()]  # once is enough
