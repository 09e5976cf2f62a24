"""Tests' operations on a running host: leases, sessions, a client for ``echo_door``."""

import os
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import trio

from gpupool.pool.model.ids import LeaseId, Milliseconds, RequestId, ServerId, TokenId
from gpupool.pool.model.state import Lease, Partition
from gpupool.remoting.host.privileged_helper import OwnHelper
from gpupool.remoting.host.spawn import KeptWorker
from gpupool.remoting.host.supervisor import HostSupervisor
from gpupool.remoting.host.worker_handle import WorkerHandle, WorkerState
from gpupool.remoting.protocol.sessions import SessionInfo
from gpupool.remoting.transport.data_connection import SessionAddress, dial
from gpupool.remoting.transport.session_stream import SessionStream

HERE = Path(__file__).parent
FRAME = struct.Struct(">cI")
SERVER = ServerId("aaaaaaaaaaaa")
GIB = 1 << 30


class EchoClient:
    """A client of the door in ``echo_door.py``; each command waits for its answer."""

    def __init__(self, stream: SessionStream) -> None:
        self.stream = stream

    async def ask(self, command: bytes, body: bytes = b"") -> bytes:
        return await trio.to_thread.run_sync(self._ask, command, body, abandon_on_cancel=True)

    async def send(self, command: bytes, body: bytes = b"") -> None:
        buffers = [FRAME.pack(command, len(body)), body]
        await trio.to_thread.run_sync(self.stream.send_buffers, buffers)

    async def reserve(self, size: int, device: int = 0) -> bool:
        return await self.ask(b"r", struct.pack(">HQ", device, size)) == b"\x01"

    async def release(self, size: int, device: int = 0) -> None:
        await self.ask(b"f", struct.pack(">HQ", device, size))

    async def usage(self, device: int = 0) -> int:
        return int.from_bytes(await self.ask(b"u", bytes([device])), "big")

    async def at_end(self) -> bool:
        """Return whether the worker has closed; waits for it."""
        count = await trio.to_thread.run_sync(
            self.stream.recv_into, memoryview(bytearray(1)), abandon_on_cancel=True
        )
        return count == 0

    def _ask(self, command: bytes, body: bytes) -> bytes:
        self.stream.send_buffers([FRAME.pack(command, len(body)), body])
        echoed, size = FRAME.unpack(self._read(FRAME.size))
        assert echoed == command
        return self._read(size)

    def _read(self, size: int) -> bytes:
        data = bytearray(size)
        count = 0
        while count < size:
            received = self.stream.recv_into(memoryview(data)[count:])
            if not received:
                raise EOFError
            count += received
        return bytes(data)


@dataclass
class HostKit:
    """A running host and the tests' operations on it."""

    host: HostSupervisor
    directory: Path
    log: "LogLines"
    nursery: trio.Nursery
    clients: list[EchoClient] = field(default_factory=list[EchoClient])
    closers: list[Callable[[], object]] = field(default_factory=list[Callable[[], object]])

    def lease(self, number: int = 0x7F3A, memory: int = GIB, gpus: int = 1) -> Lease:
        chosen = self.host.gpus()[:gpus]
        return Lease(
            id=LeaseId(number),
            request=RequestId(number.to_bytes(16, "big")),
            user="ada",
            token=TokenId("0" * 12),
            partitions=tuple(Partition(SERVER, gpu.id, memory) for gpu in chosen),
            parts={},
            ticket_hash=b"",
            granted_at=Milliseconds(0),
        )

    async def open(
        self, lease: Lease, door: str = "echo", settings: dict[str, str] | None = None
    ) -> SessionInfo:
        return await self.host.open_session(
            lease, lease.partitions, door=door, program="x.py", settings=settings
        )

    async def connect(self, lease: Lease) -> tuple[EchoClient, WorkerHandle]:
        """Open a session and connect by the Unix socket; return the client and its worker."""
        info = await self.open(lease)
        client = await self.dial(unix_address(info))
        worker = self.worker_of(info)
        await worker.connected.wait()
        return client, worker

    async def dial(self, target: SessionAddress) -> EchoClient:
        client = EchoClient(await trio.to_thread.run_sync(dial, target))
        self.clients.append(client)
        return client

    def worker_of(self, info: SessionInfo) -> WorkerHandle:
        return next(
            w for w in self.host.worker_pool.workers.values() if w.session.id == info.session
        )

    def kept(self, worker: WorkerHandle) -> KeptWorker:
        """Return the privileged helper's record of ``worker``."""
        assert isinstance(self.host.helper, OwnHelper)
        return self.host.helper.helper.workers[worker.number]

    async def warm(self) -> WorkerHandle:
        """Return a spare worker once it is warm."""
        while True:
            for worker in self.host.worker_pool.workers.values():
                if not worker.claimed:
                    await worker.ready.wait()
                    if worker.state is WorkerState.WARM:
                        return worker
            await trio.sleep(0.001)

    async def logged(self, text: str) -> None:
        """Wait until the host has logged ``text``."""
        with trio.fail_after(60):
            while not any(text in line for line in self.log):
                await self.log.event.wait()


class LogLines(list[str]):
    """A log that wakes the task that waits for its next line."""

    def __init__(self) -> None:
        super().__init__()
        self.event = trio.Event()

    def append(self, line: str) -> None:
        super().append(line)
        self.event.set()
        self.event = trio.Event()


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition without an event."""
    with trio.fail_after(10):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.01)


def unix_address(info: SessionInfo) -> SessionAddress:
    return SessionAddress(info.session, info.ticket, info.certificate_sha256, unix=info.unix_path)


MakeHost = Callable[..., Awaitable[HostKit]]


def nest_directories(top: Path, depth: int = 1500) -> None:
    """Nest directories beyond Python's limit of recursion."""
    here = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
