"""Lanes: further connections of a session, for large copies side by side."""

import contextlib
import fcntl
import hashlib
import os
import select
import socket
import ssl
import struct
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpupool.pool.errors import AuthenticationError, RemoteProtocolError
from gpupool.remoting.driver_api import build
from gpupool.remoting.driver_api.executor import lanes as lanes_module
from gpupool.remoting.driver_api.executor.lanes import Lanes, LaneSet
from gpupool.remoting.protocol import handshake
from gpupool.remoting.worker.certificate import worker_context

CHUNK = 256 << 10
HEAD = struct.Struct("<IIQQ")
MAGIC = 0x4C504730
LIMIT_S = 10.0
TICKET = bytes(range(32))


@pytest.fixture(scope="module", autouse=True)
def _library() -> None:
    build.ensure()


def loaded(*, sends: bool, due: int = 3) -> LaneSet:
    found = LaneSet.load(sends=sends, due=due)
    assert found is not None
    return found


def joined(lanes: LaneSet, count: int) -> list[socket.socket]:
    """Add plain connections, and return their other ends, which have been accepted."""
    ends: list[socket.socket] = []
    for _ in range(count):
        here, there = socket.socketpair()
        there.settimeout(LIMIT_S)
        assert lanes.add(here, None, b"")
        assert there.recv(1) == handshake.ACCEPTED
        ends.append(there)
    return ends


@pytest.fixture
def receiving() -> Iterator[tuple[LaneSet, list[socket.socket]]]:
    lanes = loaded(sends=False)
    ends = joined(lanes, 2)
    yield lanes, ends
    lanes.end()
    for end in ends:
        end.close()


def head(stripe: int, offset: int, size: int, magic: int = MAGIC) -> bytes:
    return HEAD.pack(magic, size, stripe, offset)


def test_stripes_arrive_whole_whatever_their_parts() -> None:
    """Of whole chunks and of odd sizes; the receiver takes them in different parts."""
    sender, receiver = loaded(sends=True), loaded(sends=False)
    pairs = list(zip(joined(sender, 3), joined(receiver, 3), strict=True))
    passing = [threading.Thread(target=passed_on, args=pair) for pair in pairs]
    for thread in passing:
        thread.start()
    for size in (1, CHUNK, CHUNK + 1, 9 * CHUNK + 77, 32 * CHUNK):
        sent = bytearray(os.urandom(size))
        found = memoryview(bytearray(size))
        thread = threading.Thread(target=sender.send, args=(memoryview(sent),))
        thread.start()
        for offset in range(0, size, 4 * CHUNK):
            receiver.receive(found[offset : offset + 4 * CHUNK], offset)
        thread.join(LIMIT_S)
        assert hashlib.sha256(found).digest() == hashlib.sha256(sent).digest()
    sender.end()
    receiver.end()
    for thread in passing:
        thread.join(LIMIT_S)


def test_some_connections_are_for_wide_stripes_alone() -> None:
    """A wide stripe fills the buffers of all that nobody reads; less than that stays with four."""
    sender = loaded(sends=True, due=6)
    ends = joined(sender, 6)
    for _ in range(50):
        sender.send(memoryview(bytearray(CHUNK // 2)))  # as much as one buffer takes
        for end in ends[:4]:
            while readable(end):
                assert end.recv(1 << 20)
        assert [end.fileno() for end in ends[4:] if readable(end)] == []
    thread = threading.Thread(target=failing, args=(sender, bytearray(64 * CHUNK)))
    thread.start()
    for end in ends[4:]:
        assert HEAD.unpack(end.recv(HEAD.size))[2] == 51
    sender.end()
    thread.join(LIMIT_S)
    for end in ends:
        end.close()


def readable(end: socket.socket) -> bool:
    return bool(select.select([end], [], [], 0)[0])


def failing(sender: LaneSet, data: bytearray) -> None:
    with contextlib.suppress(ConnectionError):
        sender.send(memoryview(data))


def passed_on(source: socket.socket, target: socket.socket) -> None:
    with source, target:
        while data := source.recv(1 << 16):
            target.sendall(data)


def test_what_comes_before_it_is_wanted_is_kept(
    receiving: tuple[LaneSet, list[socket.socket]],
) -> None:
    """Or a worker that stands still could not hear the messages that get past it."""
    lanes, (first, second) = receiving
    pieces = [os.urandom(CHUNK) for _ in range(6)]
    for at, piece in enumerate(pieces):
        (first, second)[at % 2].sendall(head(1 + at // 3, at % 3 * CHUNK, CHUNK) + piece)
    for stripe in (0, 1):
        found = bytearray(3 * CHUNK)
        lanes.receive(memoryview(found), 0)
        assert bytes(found) == b"".join(pieces[3 * stripe : 3 * stripe + 3])


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(head(1, 0, CHUNK, magic=7), id="no chunk"),
        pytest.param(head(1, 0, 0), id="empty"),
        pytest.param(head(1, 0, CHUNK + 1), id="too large"),
        pytest.param(head(1, 0, 1 << 31), id="far too large"),
        pytest.param(head(1, 100, 100), id="between chunks"),
        pytest.param(head(0, 0, CHUNK), id="of a stripe that is over"),
        pytest.param(head(1, CHUNK, CHUNK), id="beyond its end"),
        pytest.param(head(1, 0, 100) + bytes(100) + head(1, 0, CHUNK), id="more than there is"),
        pytest.param(head(1, 0, CHUNK)[:10], id="half a head"),
        pytest.param(head(1, 0, CHUNK) + b"half", id="half a chunk"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_a_lane_that_says_what_it_may_not_ends_all_of_them(
    said: bytes, receiving: tuple[LaneSet, list[socket.socket]]
) -> None:
    lanes, (first, second) = receiving
    first.sendall(said)
    first.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionError, match="large copies"):
        lanes.receive(memoryview(bytearray(CHUNK + 50)), 0)
    assert second.recv(1) == b""
    with pytest.raises(ConnectionError):  # for good
        lanes.receive(memoryview(bytearray(10)), 0)


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes_module, "AHEAD_SIZE_MAX", 2 * CHUNK + 1024)
    lanes = loaded(sends=False)
    (end,) = joined(lanes, 1)
    end.settimeout(0.5)
    sent = 0
    with contextlib.suppress(TimeoutError):
        while sent < 64 * CHUNK:
            end.sendall(head(100 + sent // CHUNK, 0, CHUNK) + bytes(CHUNK))
            sent += CHUNK
    assert 2 * CHUNK <= sent < 16 * CHUNK  # what the sockets hold comes on top
    lanes.end()
    end.close()


def test_small_chunks_that_are_kept_cost_what_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of one byte took 64 times the memory that was counted."""
    monkeypatch.setattr(lanes_module, "AHEAD_SIZE_MAX", 1000)
    lanes = loaded(sends=False)
    here, there = socket.socketpair()
    with there, socket.socket(fileno=os.dup(here.fileno())) as same:
        assert lanes.add(here, None, b"")
        assert there.recv(1) == handshake.ACCEPTED
        there.sendall(b"".join(head(100 + number, 0, 1) + b"x" for number in range(400)))
        time.sleep(1)  # each waits for 5 ms
        unread = struct.unpack("i", fcntl.ioctl(same, termios.FIONREAD, bytes(4)))[0]
        taken = 400 - unread // (HEAD.size + 1)
        assert 1000 // 80 <= taken <= 1000 // 40
        lanes.end()


def test_a_set_takes_no_more_than_it_was_made_for() -> None:
    """Also where two prove themselves at the same time."""
    lanes = loaded(sends=False, due=2)
    ends = joined(lanes, 2)
    assert lanes.complete
    here, there = socket.socketpair()
    assert not lanes.add(here, None, b"")
    there.settimeout(LIMIT_S)
    assert there.recv(2) in (b"", handshake.ACCEPTED)
    assert there.recv(1) == b""
    for end in (there, *ends):
        end.close()
    lanes.end()


def test_a_sender_hears_of_a_broken_lane() -> None:
    lanes = loaded(sends=True)
    first, second = joined(lanes, 2)
    first.close()
    with pytest.raises(ConnectionError):
        lanes.send(memoryview(bytearray(64 * CHUNK)))
    second.settimeout(LIMIT_S)
    while second.recv(1 << 20):
        pass
    lanes.end()
    second.close()


def taken(lanes: LaneSet, said: bytes, identity: tuple[bytes, bytes]) -> tuple[bool, bytes]:
    """Connect with TLS, send a message, and return the decision and the answer."""
    here, there = socket.socketpair()
    there.settimeout(LIMIT_S)
    here.setblocking(True)
    decided: list[bool] = []
    thread = threading.Thread(target=lambda: decided.append(lanes.add(here, identity, TICKET)))
    thread.start()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    answer = b""
    try:
        with context.wrap_socket(there) as wrapped:
            assert wrapped.version() == "TLSv1.3"
            assert wrapped.getpeercert(binary_form=True) == identity[0]
            wrapped.sendall(said)
            answer = wrapped.recv(1)
            if answer:
                wrapped.sendall(head(1, 0, 5) + b"bytes")
                found = bytearray(5)
                lanes.receive(memoryview(found), 0)
                assert found == b"bytes"
    except OSError:
        there.close()
    thread.join(LIMIT_S)
    return decided[0], answer


def test_a_lane_with_tls_has_the_worker_s_certificate_and_wants_the_ticket(tmp_path: Path) -> None:
    context, fingerprint = worker_context(tmp_path)
    lanes = loaded(sends=False)
    assert lanes.encrypts()
    assert hashlib.sha256(context.identity[0]).digest() == fingerprint
    wrong = handshake.lane_ticket(TICKET, bytes(16))
    assert taken(lanes, wrong, context.identity) == (False, b"")
    assert taken(lanes, TICKET[:31] + b"x", context.identity) == (False, b"")
    assert lanes.count == 0
    assert taken(lanes, TICKET, context.identity) == (True, handshake.ACCEPTED)
    assert lanes.count == 1
    lanes.end()


def client_of(session: object) -> Any:
    return SimpleNamespace(session=session, api=None, waiter=None, streams={}, objects={})


class FakeLinks:
    """The links of a worker with a host that lets further connections come."""

    def __init__(self) -> None:
        self.ids = (b"", b"")
        self.take: Any = None

    def expect_lanes(self, ids: tuple[bytes, bytes], take: object, _encrypts: object) -> bool:
        self.ids, self.take = ids, take
        return True


def test_a_client_asks_once_and_gets_no_more_than_there_may_be() -> None:
    session = SimpleNamespace(reader=SimpleNamespace(lanes=None), lanes=None)
    client = client_of(session)
    links = FakeLinks()
    area = Lanes(client, cast("Any", links))
    answer = cast("Any", area.methods)["LANES"](1 << 40)
    assert answer == b"".join(links.ids) + lanes_module.LANES_MAX.to_bytes(8, "little")
    assert len(set(links.ids)) == 2
    with contextlib.ExitStack() as ends:
        for _ in range(lanes_module.LANES_MAX):
            here, there = socket.socketpair()
            ends.enter_context(there)
            links.take(lanes_module.UP, here, None, b"")
        refused(session, links)
    with pytest.raises(RemoteProtocolError):
        cast("Any", area.methods)["LANES"](2)
    session.reader.lanes.end()


def refused(session: Any, links: FakeLinks) -> None:
    assert session.reader.lanes.complete
    assert not session.lanes.complete
    here, there = socket.socketpair()
    with here, there, pytest.raises(AuthenticationError, match="refused"):
        links.take(lanes_module.UP, here, None, b"")


def test_without_links_there_are_none() -> None:
    assert cast("Any", Lanes(client_of(None), None).methods)["LANES"](4) == bytes(40)
