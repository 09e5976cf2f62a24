"""A TLS connection of the array door while signals' exceptions end calls at any point of them."""

import contextlib
import itertools
import socket
import ssl
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

import door_kit
import pytest
from interrupts import Interrupts

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel counts on Linux only")

SIZES = [1, 7, 24, 15, 16, 17, 300, 16383, 16384, 16385, 50_000]


class Ends(NamedTuple):
    """Two ends of a TLS connection by TCP, without blocking."""

    ours: ssl.SSLSocket
    theirs: ssl.SSLSocket


@pytest.fixture
def ends(tmp_path: Path) -> Generator[Ends]:
    server, _ = door_kit.certificate(tmp_path)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
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
