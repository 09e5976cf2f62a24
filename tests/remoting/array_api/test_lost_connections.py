"""A connection that one thread loses while another one reads from it."""

import os
import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Any

import door_kit
import pytest


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


def test_one_thread_at_a_time_uses_tls(
    cp: Any, pair: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    """OpenSSL allows no more: one call could find the answer to the other one."""
    server, _ = door_kit.certificate(tmp_path)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    client.sslsocket_class = ProbedSocket
    ours, theirs = pair
    other: list[ssl.SSLSocket] = []
    accepting = threading.Thread(target=lambda: other.append(server.wrap_socket(theirs, True)))
    accepting.start()
    with client.wrap_socket(ours) as secured:
        accepting.join(10)
        link = cp._door.transport.link.Link(secured)
        reading = threading.Thread(target=lambda: link.receive_into(memoryview(bytearray(10))))
        reading.start()
        assert link.send_some([memoryview(b"x" * 10)])
        reading.join(10)
        assert other[0].recv(10) == b"x" * 10
    other[0].close()
    assert link.sent == [10]
    assert not ProbedSocket.met.is_set()
