"""Surroundings of a worker in tests: a tap on its line, and its host's part."""

import contextlib
import json
import os
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpupool.remoting.devices.base import Budget
from gpupool.remoting.driver_api.executor import client_state, executor
from gpupool.remoting.driver_api.executor.reader import Stream
from gpupool.remoting.driver_api.schema import table
from gpupool.remoting.driver_api.schema.records import Record
from gpupool.remoting.protocol import handshake, worker_messages
from gpupool.remoting.transport.tally import Tally
from gpupool.remoting.worker.certificate import WorkerContext
from gpupool.remoting.worker.client_handshake import accept_client
from gpupool.remoting.worker.peer_links import Links, Peer, PeerLostError, TakeLane


class TappedStream:
    """A stream that also writes its received bytes to a file."""

    def __init__(self, stream: Stream, path: Path) -> None:
        self.stream = stream
        self.calls = 0
        self.tally = Tally()
        self.file = path.open("wb", buffering=0)

    def recv_into(self, buffer: memoryview, /) -> int:
        """Receive some bytes."""
        count = self.stream.recv_into(buffer)
        self.file.write(buffer[:count])
        return count

    def send_buffers(self, buffers: list[bytes | memoryview], /) -> None:
        """Send everything."""
        self.stream.send_buffers(buffers)

    def close(self) -> None:
        """Close the stream."""
        self.stream.close()


class Counts:
    """A stream that writes counts of the worker's operations in Python to a file at its end.

    Received and sent: system calls, at least. Records, by their names: those that it executed.
    Settled: waits for streams that the client takes as over.
    """

    def __init__(self, stream: Stream, path: Path) -> None:
        self.stream = stream
        self.calls = 0
        self.tally = Tally()
        self.path = path
        self.counts: Counter[str] = Counter()
        add = executor.Executor._add  # pyright: ignore[reportPrivateUsage]
        counts = self.counts

        def counting(
            self: executor.Executor, op: int, record: Record, method: Callable[..., Any]
        ) -> None:
            add(self, op, record, method)
            handler = self.handlers[op]

            def counted(flags: int) -> None:
                counts[table.NAMES[op]] += 1
                handler(flags)

            self.handlers[op] = counted

        executor.Executor._add = counting  # pyright: ignore[reportPrivateUsage]
        settle = client_state.Client.settle

        def settling(self: client_state.Client) -> None:
            counts["settled"] += 1
            settle(self)

        client_state.Client.settle = settling

    def recv_into(self, buffer: memoryview, /) -> int:
        """Receive some bytes."""
        count = self.stream.recv_into(buffer)
        self.counts["received"] += 1
        if not count:
            self.path.write_text(json.dumps(self.counts))
        return count

    def send_buffers(self, buffers: list[bytes | memoryview], /) -> None:
        """Send everything."""
        self.counts["sent"] += 1
        self.stream.send_buffers(buffers)

    def close(self) -> None:
        """Close the stream."""
        self.stream.close()


class LyingStream:
    """A stream that sends some true answers, then some false ones, and then ends.

    A number decides which: sizes, ids and kinds of answers, bytes in them, too much, or too little.
    A client may wait for more than a lie brings, so the first lie is followed by the end in time.
    """

    LIES = 4
    END_S = 2.0
    TRUE_MAX = 60

    def __init__(self, stream: Stream, number: int) -> None:
        self.stream = stream
        self.calls = 0
        self.tally = Tally()
        self.random = random.Random(number)
        self.true_left = self.random.randrange(self.TRUE_MAX)
        self.lies_left = self.LIES

    def recv_into(self, buffer: memoryview, /) -> int:
        """Receive some bytes; none after the last lie."""
        return self.stream.recv_into(buffer) if self.lies_left else 0

    def send_buffers(self, buffers: list[bytes | memoryview], /) -> None:
        """Send everything, or something else."""
        if self.true_left:
            self.true_left -= 1
            self.stream.send_buffers(buffers)
        elif self.lies_left:
            if self.lies_left == self.LIES:
                threading.Timer(self.END_S, os._exit, (0,)).start()
            self.lies_left -= 1
            self.stream.send_buffers([self._lie(b"".join(bytes(each) for each in buffers))])
            if not self.lies_left:
                self.stream.close()

    def _lie(self, truth: bytes) -> bytes:
        draw, told = self.random, bytearray(truth)
        way = draw.choice(("head", "bytes", "longer", "shorter", "noise"))
        if way == "head":  # a field of it: the largest, the smallest, or any number
            at, size = draw.choice(((0, 4), (4, 4), (8, 8), (16, 4), (20, 4), (24, 8)))
            value = draw.choice((b"\xff" * size, bytes(size), draw.randbytes(size)))
            told[at : at + size] = value
        elif way == "bytes":
            for _ in range(draw.randrange(1, 9)):
                told[draw.randrange(len(told))] = draw.randrange(256)
        elif way == "longer":
            told += draw.randbytes(draw.choice((1, 24, 5000)))
        elif way == "shorter":
            del told[draw.randrange(len(told)) :]
        else:
            told[:] = draw.randbytes(draw.choice((1, 24, 100, 70000)))
        return bytes(told)

    def close(self) -> None:
        """Close the stream."""
        self.stream.close()


class SharingBudget:
    """A budget that passes handles on between the workers of one program, as files of a folder."""

    def __init__(self, budget: Budget, folder: Path) -> None:
        self.budget, self.folder = budget, folder

    def reserve(self, device_index: int, nbytes: int) -> bool:
        """Reserve memory of this worker."""
        return self.budget.reserve(device_index, nbytes)

    def release(self, device_index: int, nbytes: int) -> None:
        """Return memory of this worker."""
        self.budget.release(device_index, nbytes)

    def usage(self, device_index: int) -> int:
        """Return how much this worker has reserved."""
        return self.budget.usage(device_index)

    def share(self, token: bytes, value: bytes, descriptor: int = -1) -> bool:
        """Let the other workers find a handle; its descriptor by its name under /proc."""
        name = f"/proc/{os.getpid()}/fd/{os.dup(descriptor)}" if descriptor >= 0 else ""
        fresh = self.folder / f"{token.hex()}.{os.getpid()}"
        fresh.write_bytes(name.encode() + b"\n" + value)
        fresh.rename(self.folder / token.hex())
        return True

    def find(self, token: bytes, *, opens: bool = False) -> tuple[bytes, int] | None:
        """Return a handle, and its descriptor or -1."""
        with contextlib.suppress(FileNotFoundError):
            name, _, value = (self.folder / token.hex()).read_bytes().partition(b"\n")
            return value, os.open(name, os.O_RDWR) if name else -1
        return None

    def forget(self, token: bytes) -> None:
        """Let nobody find a handle any more."""
        (self.folder / token.hex()).unlink(missing_ok=True)

    def pledge(self, token: bytes, device_index: int, nbytes: int) -> None:
        """Do nothing: no memory is counted here."""

    def take_back(self, token: bytes, nbytes: int) -> None:
        """Do nothing: no memory is counted here."""

    def let_go(self, token: bytes) -> None:
        """Do nothing: no memory is counted here."""


class LinksInVain(Links):
    """Connects to every other worker, and loses it at the first copy."""

    def __init__(self) -> None:
        """Start without links."""

    def introduce(self, key: bytes, index: int, others: Sequence[Peer | None]) -> None:
        """Take the client's word for it."""

    def expect_lanes(
        self, ids: tuple[bytes, bytes], take: TakeLane, encrypts: Callable[[], bool]
    ) -> bool:
        """Expect no further connections."""
        return False

    def connect(self, index: int) -> str:
        """Say that the other worker is connected."""
        return ""

    def send(self, index: int, number: int, size: int, pieces: Iterable[memoryview]) -> None:
        """Lose the other worker."""
        raise PeerLostError("a link of a test")

    def send_failure(self, index: int, number: int, text: str) -> None:
        """Lose the other worker."""
        raise PeerLostError("a link of a test")

    def begin(self, index: int, number: int, size: int) -> None:
        """Lose the other worker."""
        raise PeerLostError("a link of a test")

    def read(self, index: int, target: memoryview) -> None:
        """Lose the other worker."""
        raise PeerLostError("a link of a test")

    def skip(self, index: int, size: int) -> None:
        """Lose the other worker."""
        raise PeerLostError("a link of a test")

    def cut(self, index: int) -> None:
        """Do nothing: there is no link."""

    def forget(self) -> None:
        """Do nothing: there is no link."""

    def close(self) -> None:
        """Do nothing: there is no link."""


class LaneListener(LinksInVain):
    """Takes the further connections of one session, as a server and its worker do together."""

    OPENING_SIZE = 4096
    """Of a ClientHello, at most."""

    def __init__(
        self, listener: socket.socket, context: WorkerContext, assign: worker_messages.Assign
    ) -> None:
        """Wait to be asked for connections to ``listener``."""
        self._listener = listener
        self._context = context
        self._assign = assign

    def expect_lanes(
        self, ids: tuple[bytes, bytes], take: TakeLane, encrypts: Callable[[], bool]
    ) -> bool:
        """Take the connections in another thread."""
        if not encrypts():
            return False
        threading.Thread(target=self._accept, args=(ids, take), daemon=True).start()
        return True

    def _accept(self, ids: tuple[bytes, bytes], take: TakeLane) -> None:
        # What it imports takes as long as a start of a worker, and few workers have lanes.
        from gpupool.remoting.server.listener.router import ToSession, route

        while True:
            sock, _ = self._listener.accept()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opening, found = b"", None
            while found is None and len(opening) < self.OPENING_SIZE:
                opening = sock.recv(self.OPENING_SIZE, socket.MSG_PEEK)
                found = route(opening)
            assert isinstance(found, ToSession)
            ticket = handshake.lane_ticket(self._assign.ticket, found.session)
            identity: tuple[bytes, bytes] | None = self._context.identity
            if opening[0] != handshake.TLS_FIRST_BYTE:
                expected = replace(self._assign, session=found.session, ticket=ticket)
                sock, identity = accept_client(sock, self._context, expected, plain=True), None
            sock.setblocking(True)
            take(ids.index(found.session), sock, identity, ticket)
