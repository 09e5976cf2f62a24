"""The server's side of its keeper: a ``Keeper`` whose calls another process carries out."""

import itertools
import os
import socket
from collections import deque
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeVar

import trio

from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.ids import GpuId, LeaseId
from gpupool.remoting.host.worker_handle import WorkerFailedError
from gpupool.remoting.protocol import keeper_messages
from gpupool.remoting.transport.descriptor_passing import receive_with_descriptors

A = TypeVar("A")

UNDO_S, UNDO_EVERY_S = 5.0, 0.05
"""A killed process ends within milliseconds, unless it hangs in the kernel."""


@dataclass(slots=True)
class _Waiting:
    answer: keeper_messages.Answer | None = None
    descriptors: list[int] = field(default_factory=list[int])
    came: trio.Event = field(default_factory=trio.Event)


class RemoteKeeper:
    """Implements ``host.keepers.Keeper``; calls need ``running``."""

    def __init__(self, sock: socket.socket, pid: int = -1) -> None:
        """Talk over ``sock``, a packet socket, to the keeper ``pid``, which may be our child."""
        sock.setblocking(False)
        self._socket = sock
        self.pid = pid
        self._numbers = itertools.count(1)
        self._waiting: dict[int, _Waiting] = {}
        self._outgoing: deque[tuple[bytes, Sequence[int]]] = deque()
        self._more = trio.Event()
        self._gone = False

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Carry calls and answers while the body runs.

        Raises:
            GpupoolError: when the keeper ends before; then its workers have ended, too.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read)
            nursery.start_soon(self._write)
            try:
                yield
            finally:
                nursery.cancel_scope.cancel()

    async def open(
        self, *, cuda: bool, nodes: Mapping[GpuId, tuple[str, ...]] | None
    ) -> keeper_messages.Opened:
        """Kill what a former host left, and prepare for workers."""
        plain = None if nodes is None else {str(gpu): each for gpu, each in nodes.items()}
        return await self._ask(keeper_messages.Open(cuda, plain), keeper_messages.Opened)

    async def start(
        self, number: int, control: int, errors: int, doors: Collection[str] = ()
    ) -> tuple[keeper_messages.Started, int]:
        """Start a worker for some doors, or all; return what it is, and its pidfd."""
        request = keeper_messages.StartWorker(number, tuple(sorted(doors)))
        waiting = await self._call(request, (control, errors))
        started = _answer(waiting, keeper_messages.Started)
        if not waiting.descriptors:  # which the kernel drops where there is no room for it
            await self._undo_start(number)
            raise WorkerFailedError("no worker can be started", why="there are no descriptors")
        (pidfd,) = waiting.descriptors
        return started, pidfd

    async def _undo_start(self, number: int) -> None:
        """Kill and bury a worker whose end cannot be awaited."""
        self.kill(number)
        with trio.move_on_after(UNDO_S, shield=True):
            while True:
                with suppress(WorkerFailedError):  # It lives yet.
                    await self.bury(number)
                    return
                await trio.sleep(UNDO_EVERY_S)

    def kill(self, number: int) -> None:
        """Kill a worker, if it lives."""
        self._send(0, keeper_messages.KillWorker(number))

    async def reap(self, number: int) -> int:
        """Return how a worker ended."""
        request = keeper_messages.ReapWorker(number)
        return (await self._ask(request, keeper_messages.Reaped)).returncode

    async def confine(self, number: int) -> None:
        """Put a worker into a control group, and tell it to confine itself."""
        await self._ask(keeper_messages.ConfineWorker(number), keeper_messages.Done)

    async def confinement(self, number: int) -> tuple[str, ...]:
        """Return what holds for a worker that has said that it is ready."""
        request = keeper_messages.AskConfinement(number)
        return (await self._ask(request, keeper_messages.Confinement)).holds

    async def assign(
        self,
        number: int,
        lease: LeaseId,
        gpus: tuple[GpuId, ...],
        memory: int,
        user: str,
        *,
        across: bool,
    ) -> keeper_messages.AssignedUser:
        """Give a worker to a lease."""
        request = keeper_messages.AssignWorker(number, lease, gpus, memory, user, across)
        return await self._ask(request, keeper_messages.AssignedUser)

    async def suspend(
        self, request: keeper_messages.SuspendWorkers, file: int = -1
    ) -> keeper_messages.Moved:
        """Take workers of a lease off their GPUs: all of them, or none."""
        files = (file,) if file >= 0 else ()
        return _answer(await self._call(request, files), keeper_messages.Moved)

    async def resume(self, request: keeper_messages.ResumeWorkers) -> keeper_messages.Moved:
        """Let suspended workers go on, all at once."""
        return await self._ask(request, keeper_messages.Moved)

    async def bury(self, number: int) -> bool:
        """Kill and remove what a worker has left; return whether it ran out of memory."""
        request = keeper_messages.BuryWorker(number)
        return (await self._ask(request, keeper_messages.Buried)).out_of_memory

    async def files(self) -> keeper_messages.Files:
        """Return how much of the disk the files of workers take."""
        return await self._ask(keeper_messages.MeasureFiles(), keeper_messages.Files)

    async def load_filter(self, networks: Sequence[str] | None) -> int:
        """Load a filter of packets; return its descriptor, which is the caller's."""
        known = None if networks is None else tuple(networks)
        waiting = await self._call(keeper_messages.LoadFilter(known))
        _answer(waiting, keeper_messages.Loaded)
        if not waiting.descriptors:
            raise WorkerFailedError("no filter can be loaded", why="there are no descriptors")
        return waiting.descriptors[0]

    async def close(self) -> None:
        """Remove the directories of all workers."""
        await self._ask(keeper_messages.Close(), keeper_messages.Done)

    # --- calls ----------------------------------------------------------------------------------

    async def _ask(self, request: keeper_messages.Request, kind: type[A]) -> A:
        return _answer(await self._call(request), kind)

    async def _call(
        self, request: keeper_messages.Request, descriptors: Sequence[int] = ()
    ) -> _Waiting:
        if self._gone:
            raise WorkerFailedError("the keeper has ended")
        number = next(self._numbers)
        waiting = self._waiting[number] = _Waiting()
        self._send(number, request, descriptors)
        with trio.CancelScope(shield=True):  # What it does must be known.
            await waiting.came.wait()
        return waiting

    def _send(
        self, number: int, request: keeper_messages.Request, descriptors: Sequence[int] = ()
    ) -> None:
        self._outgoing.append((keeper_messages.encode(number, request), descriptors))
        self._more.set()

    async def _write(self) -> None:
        while True:
            await self._more.wait()
            self._more = trio.Event()
            while self._outgoing:
                packet, descriptors = self._outgoing[0]
                try:
                    socket.send_fds(self._socket, [packet], descriptors)
                except BlockingIOError:
                    await trio.lowlevel.wait_writable(self._socket)
                    continue
                except OSError:
                    return  # ``_read`` says so
                self._outgoing.popleft()

    async def _read(self) -> None:
        try:
            while await self._read_one():
                pass
        finally:
            self._gone = True
            for waiting in self._waiting.values():
                waiting.answer = keeper_messages.Failed("the keeper has ended", "")
                waiting.came.set()
            self._waiting.clear()
        raise GpupoolError("this server's keeper has ended", why="all workers ended with it")

    async def _read_one(self) -> bool:
        await trio.lowlevel.wait_readable(self._socket)
        try:
            packet, descriptors = receive_with_descriptors(
                self._socket, keeper_messages.PACKET_SIZE_MAX, 1
            )
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not packet:
            return False
        number, answer = keeper_messages.decode_answer(packet)
        waiting = self._waiting.pop(number)
        waiting.answer, waiting.descriptors = answer, descriptors
        waiting.came.set()
        return True

    def hang_up(self) -> None:
        """Close our end of the socket."""
        self._socket.close()

    def end(self) -> None:
        """Let the keeper end, and wait for it, if it is our child; blocks."""
        self.hang_up()
        if self.pid > 0:
            os.waitpid(self.pid, 0)


def _answer(waiting: _Waiting, kind: type[A]) -> A:
    answer = waiting.answer
    if isinstance(answer, kind):
        return answer
    for descriptor in waiting.descriptors:
        os.close(descriptor)
    if isinstance(answer, keeper_messages.Failed):
        raise WorkerFailedError(answer.what, why=answer.why, hint=answer.hint)
    raise WorkerFailedError("the keeper makes no sense", why=type(answer).__name__)
