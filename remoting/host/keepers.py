"""A host's keeper, as the host calls it: in this process, or in another one (``privileges``)."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, TypeVar

import trio

from gpupool.pool.model.ids import GpuId, LeaseId
from gpupool.remoting.host.worker_keeper import THREAD_COUNT, WorkerKeeper
from gpupool.remoting.protocol import keeper_messages

T = TypeVar("T")


class Keeper(Protocol):
    """A ``WorkerKeeper``, in this process or in another one. Cancellation never cuts a call off."""

    async def open(
        self, *, cuda: bool, nodes: Mapping[GpuId, tuple[str, ...]] | None
    ) -> keeper_messages.Opened:
        """Kill what a former host left, and prepare for workers."""
        ...

    async def start(
        self, number: int, control: int, errors: int, doors: Collection[str] = ()
    ) -> tuple[keeper_messages.Started, int]:
        """Start a worker for some doors, or all; return what it is, and its pidfd."""
        ...

    def kill(self, number: int) -> None:
        """Kill a worker, if it lives."""
        ...

    async def reap(self, number: int) -> int:
        """Return how a worker ended."""
        ...

    async def confine(self, number: int) -> None:
        """Put a worker into a control group, and tell it to confine itself."""
        ...

    async def confinement(self, number: int) -> tuple[str, ...]:
        """Return what holds for a worker that has said that it is ready."""
        ...

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
        ...

    async def suspend(
        self, request: keeper_messages.SuspendWorkers, file: int = -1
    ) -> keeper_messages.Moved:
        """Take workers of a lease off their GPUs: all of them, or none; the file stays ours."""
        ...

    async def resume(self, request: keeper_messages.ResumeWorkers) -> keeper_messages.Moved:
        """Let suspended workers go on, all at once."""
        ...

    async def bury(self, number: int) -> bool:
        """Kill and remove what a worker has left; return whether it ran out of memory."""
        ...

    async def files(self) -> keeper_messages.Files:
        """Return how much of the disk the files of workers take."""
        ...

    async def load_filter(self, networks: Sequence[str] | None) -> int:
        """Load a filter of packets; return its descriptor, which is the caller's."""
        ...

    async def close(self) -> None:
        """Remove the directories of all workers."""
        ...


class OwnKeeper:
    """A keeper within this process, which has the privileges that there are."""

    def __init__(self, keeper: WorkerKeeper) -> None:
        """Call ``keeper``."""
        self.keeper = keeper
        # The journal's sync and others must not wait for workers whose remains take long.
        self._threads = trio.CapacityLimiter(THREAD_COUNT)

    async def open(
        self, *, cuda: bool, nodes: Mapping[GpuId, tuple[str, ...]] | None
    ) -> keeper_messages.Opened:
        """Kill what a former host left, and prepare for workers."""
        return await self._on_thread(lambda: self.keeper.open(cuda=cuda, nodes=nodes))

    async def start(
        self, number: int, control: int, errors: int, doors: Collection[str] = ()
    ) -> tuple[keeper_messages.Started, int]:
        """Start a worker, on the thread that lives as long as this host."""
        return self.keeper.start(number, control, errors, doors)

    def kill(self, number: int) -> None:
        """Kill a worker, if it lives."""
        self.keeper.kill(number)

    async def reap(self, number: int) -> int:
        """Return how a worker ended."""
        return self.keeper.reap(number)

    async def confine(self, number: int) -> None:
        """Put a worker into a control group, and tell it to confine itself."""
        await self._on_thread(lambda: self.keeper.confine(number))

    async def confinement(self, number: int) -> tuple[str, ...]:
        """Return what holds for a worker that has said that it is ready."""
        return await self._on_thread(lambda: self.keeper.confinement(number))

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
        return await self._on_thread(
            lambda: self.keeper.assign(number, lease, gpus, memory, user, across=across)
        )

    async def suspend(
        self, request: keeper_messages.SuspendWorkers, file: int = -1
    ) -> keeper_messages.Moved:
        """Take workers of a lease off their GPUs: all of them, or none."""
        return await self._on_thread(lambda: self.keeper.suspend(request, file))

    async def resume(self, request: keeper_messages.ResumeWorkers) -> keeper_messages.Moved:
        """Let suspended workers go on, all at once."""
        return await self._on_thread(lambda: self.keeper.resume(request))

    async def bury(self, number: int) -> bool:
        """Kill and remove what a worker has left."""
        return await self._on_thread(lambda: self.keeper.bury(number))

    async def files(self) -> keeper_messages.Files:
        """Return how much of the disk the files of workers take."""
        return await self._on_thread(self.keeper.files)

    async def load_filter(self, networks: Sequence[str] | None) -> int:
        """Load a filter of packets; return its descriptor, which is the caller's."""
        return self.keeper.load_filter(networks)

    async def close(self) -> None:
        """Remove the directories of all workers."""
        await self._on_thread(self.keeper.close)

    async def _on_thread(self, call: Callable[[], T]) -> T:
        # A cancellation is noticed when the call has ended.
        return await trio.to_thread.run_sync(call, limiter=self._threads)
