"""The server's side of its privileged helper: calls to another process."""

import os
import socket
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TypeVar, cast

import trio

from gpupool.pool.errors import GpupoolError
from gpupool.remoting.host.privileged_helper import PrivilegedHelper
from gpupool.remoting.host.spawn import WorkerFailedError
from gpupool.remoting.privileges.forked import ForkedProcess
from gpupool.remoting.protocol.helper_messages import (
    HELPER,
    Answer,
    BuryWorker,
    Failed,
    KillWorker,
    LoadFilter,
    Request,
    RequestFor,
    StartWorker,
)
from gpupool.remoting.transport.descriptor_passing import receive_packet, send_packet
from gpupool.remoting.transport.message_stream import OpenCalls

A = TypeVar("A", bound=Answer)

UNDO_S, UNDO_EVERY_S = 5.0, 0.05
"""A killed process ends within milliseconds, unless it hangs in the kernel."""


class RemoteHelper(ForkedProcess, PrivilegedHelper):
    """Implements ``host.privileged_helper.PrivilegedHelper``; calls need ``running``."""

    def __init__(self, sock: socket.socket, pid: int = -1) -> None:
        """Talk over ``sock``, a packet socket, to the helper ``pid``, which may be our child."""
        super().__init__(sock, pid)
        sock.setblocking(False)
        self._calls = OpenCalls[tuple[Answer, list[int]]]()
        self._outgoing: deque[tuple[bytes, Sequence[int]]] = deque()
        self._more = trio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Carry calls and answers while the body runs.

        Raises:
            GpupoolError: when the privileged helper ends before; then its workers have ended, too.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read)
            nursery.start_soon(self._write)
            try:
                yield
            finally:
                nursery.cancel_scope.cancel()

    async def ask_for(self, asked: RequestFor[A], *descriptors: int) -> tuple[A, int]:
        """Return the answer, and the descriptor with it."""
        with self._calls.opened() as call:
            if not self._calls.ended:
                self._send(call.number, asked, descriptors)
            with trio.CancelScope(shield=True):  # What it does must be known.
                await call.wait()
        answer, passed = call.answer or (Failed("the privileged helper has ended", ""), [])
        if isinstance(answer, asked.declared.answered_by or Answer):
            # The kernel drops a descriptor that this process has no room for.
            if isinstance(asked, StartWorker) and not passed:
                await self._undo_start(asked.worker)
                raise WorkerFailedError("no worker can be started", why="there are no descriptors")
            if isinstance(asked, LoadFilter) and not passed:
                raise WorkerFailedError("no filter can be loaded", why="there are no descriptors")
            return cast(A, answer), passed[0] if passed else -1
        for descriptor in passed:
            os.close(descriptor)
        if isinstance(answer, Failed):
            raise WorkerFailedError(answer.what, why=answer.why, hint=answer.hint)
        raise WorkerFailedError("the privileged helper makes no sense", why=type(answer).__name__)

    def kill(self, number: int) -> None:
        """Kill a worker, if it lives."""
        self._send(0, KillWorker(number))

    async def _undo_start(self, number: int) -> None:
        """Kill and bury a worker when its end cannot be awaited."""
        self.kill(number)
        with trio.move_on_after(UNDO_S, shield=True):
            while True:
                with suppress(WorkerFailedError):  # It lives yet.
                    await self.ask(BuryWorker(number))
                    return
                await trio.sleep(UNDO_EVERY_S)

    def _send(self, number: int, asked: Request, descriptors: Sequence[int] = ()) -> None:
        self._outgoing.append((HELPER.encode(asked, number), descriptors))
        self._more.set()

    async def _write(self) -> None:
        while True:
            await self._more.wait()
            self._more = trio.Event()
            with suppress(OSError):  # ``_read`` says so
                while self._outgoing:
                    await send_packet(self._socket, *self._outgoing.popleft())

    async def _read(self) -> None:
        try:
            while await self._read_one():
                pass
        finally:
            self._calls.end()
        raise GpupoolError(
            "this server's privileged helper has ended", why="all workers ended with it"
        )

    async def _read_one(self) -> bool:
        try:
            packet, descriptors = await receive_packet(self._socket, HELPER.size_max, 1)
        except OSError:
            return False
        if not packet:
            return False
        number, answer = HELPER.decode(Answer, packet)
        self._calls.answered(number, (answer, descriptors))
        return True
