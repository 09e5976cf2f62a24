"""A host's keeper, as the host calls it: in this process, or in another one (``privileges``)."""

from abc import ABC, abstractmethod
from typing import Any, TypeVar, cast

import trio

from gpupool.remoting.host.worker_keeper import QUICK, THREAD_COUNT, WorkerKeeper
from gpupool.remoting.protocol.keeper_messages import Answer, RequestFor

A = TypeVar("A", bound=Answer)


class Keeper(ABC):
    """Carries out the requests of ``keeper_messages``. Cancellation never cuts a call off."""

    async def ask(self, asked: RequestFor[A], *descriptors: int) -> A:
        """Return the answer; the descriptors go with the request, and stay the caller's.

        Raises:
            GpupoolError, OSError: when it cannot be done.
        """
        return (await self.ask_for(asked, *descriptors))[0]

    @abstractmethod
    async def ask_for(self, asked: RequestFor[A], *descriptors: int) -> tuple[A, int]:
        """Do the same; return also the descriptor with the answer, which is the caller's."""

    @abstractmethod
    def kill(self, number: int) -> None:
        """Kill a worker, if it lives."""


class OwnKeeper(Keeper):
    """A keeper within this process, which has the privileges that there are."""

    def __init__(self, keeper: WorkerKeeper) -> None:
        """Call ``keeper``."""
        self.keeper = keeper
        # The journal's sync and others must not wait for workers whose remains take long.
        self._threads = trio.CapacityLimiter(THREAD_COUNT)

    async def ask_for(self, asked: RequestFor[A], *descriptors: int) -> tuple[A, int]:
        """Return the answer, and the descriptor with it."""
        done: Any
        if isinstance(asked, QUICK):
            done = self.keeper.carry_out(asked, descriptors)
        else:
            # A cancellation is noticed when the call has ended.
            call = self.keeper.carry_out
            done = await trio.to_thread.run_sync(call, asked, descriptors, limiter=self._threads)
        return cast("tuple[A, int]", done)

    def kill(self, number: int) -> None:
        """Kill a worker, if it lives."""
        self.keeper.kill(number)
