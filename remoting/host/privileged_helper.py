"""A host's privileged helper, as the host calls it: in this process or another one."""

from abc import ABC, abstractmethod
from typing import Any, TypeVar, cast

import trio

from gpupool.remoting.host.worker_helper import QUICK, THREAD_COUNT, WorkerHelper
from gpupool.remoting.protocol.helper_messages import Answer, RequestFor

A = TypeVar("A", bound=Answer)


class PrivilegedHelper(ABC):
    """Carries out the requests of ``helper_messages``. Cancellation never cuts a call off."""

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


class OwnHelper(PrivilegedHelper):
    """A privileged helper within this process, which has the privileges that there are."""

    def __init__(self, helper: WorkerHelper) -> None:
        """Call ``helper``."""
        self.helper = helper
        # The journal's sync and others must not wait for workers whose remains take long.
        self._threads = trio.CapacityLimiter(THREAD_COUNT)

    async def ask_for(self, asked: RequestFor[A], *descriptors: int) -> tuple[A, int]:
        """Return the answer, and the descriptor with it."""
        done: Any
        if isinstance(asked, QUICK):
            done = self.helper.carry_out(asked, descriptors)
        else:
            # A cancellation is noticed when the call has ended.
            call = self.helper.carry_out
            done = await trio.to_thread.run_sync(call, asked, descriptors, limiter=self._threads)
        return cast("tuple[A, int]", done)

    def kill(self, number: int) -> None:
        """Kill a worker, if it lives."""
        self.helper.kill(number)
