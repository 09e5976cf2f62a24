"""Connections that threads share: lost in one of them, and interrupted at any point of a call."""

import contextlib
import itertools
import os
import socket
import ssl
import sys
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import door_kit
import numpy as np
import pytest
from interrupts import Interrupts


class WaitingThread:
    """A thread of the program that waits for the answer of a worker that says nothing."""

    def __init__(self, door: Any, ours: socket.socket) -> None:
        self.connection = door.transport.connection.Connection(door.transport.link.Link(ours), None)
        self.receiver = door.transport.receiver.Receiver(self.connection)
        self.error: BaseException | None = None
        self.thread = threading.Thread(
            target=self._wait, args=(door.transport.receiver.Reply(None),)
        )
        self.thread.start()
        while not self.receiver.reading.locked():
            os.sched_yield()

    def _wait(self, reply: Any) -> None:
        try:
            while True:
                self.receiver.wait(reply)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error


@pytest.fixture
def pair() -> Any:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_a_waiting_thread_hears_at_once_that_another_has_lost_the_session(
    cp: Any, pair: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = pair
    number = ours.fileno()
    waiting = WaitingThread(cp._door, ours)
    began = time.monotonic()
    waiting.connection.lose("the lease is lost")
    assert ours.fileno() == number  # it stays taken while a thread polls it
    waiting.thread.join(10)
    assert time.monotonic() - began < 0.5  # far less than the second for which it polls
    assert "the lease is lost" in str(waiting.error)
    assert theirs.recv(1) == b""


def test_a_session_that_was_lost_closes_its_socket_at_the_end(cp: Any) -> None:
    ours, theirs = socket.socketpair()
    thread, _ = door_kit.start_worker(theirs, door_kit.emulated(1, door_kit.MIB))
    session = cp._door.pool.attach(ours)
    session.lose("the lease is lost")
    session.close()
    cp._door.pool._sessions.remove(session)
    del cp._door.pool._devices[session.first_device :]
    thread.join(5)
    assert not thread.is_alive()
    assert ours.fileno() == -1


def test_threads_share_a_session(cp: Any) -> None:
    """Each of them uploads, computes on either GPU, copies between them, and downloads."""

    def work(seed: int) -> None:
        wanted = host = np.arange(9000.0) + seed
        array = cp.asarray(host)
        for step in range(30):
            with cp.cuda.Device(step % 2):
                array = cp.asarray(array) * 0.5 - cp.asarray(host)
            wanted = wanted * 0.5 - host
            assert array.device.id == step % 2
            if step % 7 == seed:
                np.testing.assert_array_equal(array.get(), wanted)
        assert float(array.sum()) == pytest.approx(wanted.sum())

    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(work, range(6))) == [None] * 6


class ProbedSocket(ssl.SSLSocket):
    """A TLS socket that waits within each call for another one, which must not come."""

    calls = 0
    met = threading.Event()

    def probed(self) -> None:
        ProbedSocket.calls += 1
        if ProbedSocket.calls > 1:
            ProbedSocket.met.set()
        ProbedSocket.met.wait(0.2)
        ProbedSocket.calls -= 1

    def recv_into(self, *args: Any, **options: Any) -> int:
        self.probed()
        return super().recv_into(*args, **options)

    def send(self, *args: Any, **options: Any) -> int:
        self.probed()
        return super().send(*args, **options)


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel counts on Linux only")

SIZES = [1, 7, 24, 15, 16, 17, 300, 16383, 16384, 16385, 50_000]


class Ends(NamedTuple):
    """Two ends of a TLS connection by TCP, without blocking."""

    ours: ssl.SSLSocket
    theirs: ssl.SSLSocket


@pytest.fixture
def ends(tmp_path: Path, request: pytest.FixtureRequest) -> Generator[Ends]:
    server, _ = door_kit.certificate(tmp_path)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    client.sslsocket_class = getattr(request, "param", ssl.SSLSocket)
    accepted: list[ssl.SSLSocket] = []

    def accept() -> None:
        connection = server.wrap_socket(listener.accept()[0], server_side=True)
        connection.sendall(b"\x01")  # as a worker does, and behind the tickets
        accepted.append(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept)
        thread.start()
        with client.wrap_socket(socket.create_connection(listener.getsockname())) as ours:
            assert ours.recv(1) == b"\x01"
            thread.join(10)
            with accepted[0] as theirs:
                yield Ends(ours, theirs)


@pytest.mark.parametrize("ends", [ProbedSocket], indirect=True)
def test_one_thread_at_a_time_uses_tls(cp: Any, ends: Ends) -> None:
    """OpenSSL allows no more: one call could find the answer to the other one."""
    link = cp._door.transport.link.Link(ends.ours)
    reading = threading.Thread(target=lambda: link.receive_into(memoryview(bytearray(10))))
    reading.start()
    assert link.send_some([memoryview(b"x" * 10)])
    assert ends.theirs.recv(10) == b"x" * 10
    ends.theirs.sendall(b"y")
    reading.join(10)
    assert link.sent == [10]
    assert not ProbedSocket.met.is_set()


def streams(cp: Any, ends: Ends) -> tuple[Any, Any, list[int], list[int]]:
    counts: list[int] = []
    sent: list[int] = []
    tls = cp._door.transport.tls
    return tls.TlsStream(ends.theirs, counts, []), tls.TlsStream(ends.ours, [], sent), counts, sent


POINTS = [*((at,) for at in range(12)), (9, 4), (7, 5, 3), (10, 2, 2)]
"""Events at which attempts at one piece are interrupted; a call has about a dozen of them."""


def pieces(largest: int) -> list[tuple[bytes, tuple[int, ...]]]:
    """Return pieces of all sizes up to this one, each with the points of its interrupts."""
    made = [
        bytes((turn * 31 + number) % 251 for number in range(size))
        for turn, size in enumerate(SIZES)
        if size <= largest
    ]
    return list(itertools.product(made, POINTS))


@pytest.mark.parametrize("room", [5, 16, 40, 70_000])
def test_a_read_counts_all_that_came_however_it_ends(cp: Any, ends: Ends, room: int) -> None:
    reader, _, counts, _ = streams(cp, ends)
    ends.theirs.settimeout(5)
    data, interrupted = bytearray(room), 0
    all_pieces = pieces(1000 * room)
    for piece, at in all_pieces:
        ends.ours.sendall(piece)
        points = itertools.chain(at, itertools.repeat(10_000))
        got = b""
        while len(got) < len(piece):
            interrupts = Interrupts(next(points))
            with contextlib.suppress(KeyboardInterrupt), interrupts:
                assert reader.settle_read()
                if not counts:
                    reader.read(memoryview(data))
            interrupted += interrupts.raised
            if counts:
                assert reader.settle_read()  # what was counted may not be booked
                got += data[: counts.pop()]
        assert got == piece
        assert not counts
    assert interrupted > len(all_pieces) - len(SIZES)


def test_a_write_counts_all_that_left_however_it_ends(cp: Any, ends: Ends) -> None:
    _, writer, _, sent = streams(cp, ends)
    interrupted = 0
    ends.theirs.settimeout(5)
    all_pieces = pieces(SIZES[-1])
    for piece, at in all_pieces:
        points = itertools.chain(at, itertools.repeat(10_000))
        while not sent:
            interrupts = Interrupts(next(points))
            with contextlib.suppress(KeyboardInterrupt), interrupts:
                assert writer.settle_write()
                if not sent:
                    writer.write(memoryview(piece))
            interrupted += interrupts.raised
        assert writer.settle_write()
        assert sent == [len(piece)]
        del sent[:]
        got = b""
        while len(got) < len(piece):
            got += ends.theirs.recv(1 << 16)
        assert got == piece
    assert interrupted > len(all_pieces) - len(SIZES)
