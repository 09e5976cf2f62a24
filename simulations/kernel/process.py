"""A process that can be stopped, continued and killed at any instant."""

from collections import deque
from collections.abc import Callable
from functools import partial

from gpupool.simulations.kernel.scheduler import Scheduler


class Process:
    """One process on one machine; everything that it does runs through ``run``.

    While it is stopped (SIGSTOP, or a machine that stalls), what happens to it waits in order, as
    it waits in the kernel's buffers; a killed one does nothing any more.
    """

    def __init__(self, scheduler: Scheduler, machine: str) -> None:
        self.scheduler = scheduler
        self.machine = machine
        """Name of the machine that it runs on: its address in the network."""
        self.alive = True
        self.paused = False
        self._waiting: deque[Callable[[], None]] = deque()

    def run(self, action: Callable[[], None]) -> None:
        """Let ``action`` happen in this process: now, when it continues, or never."""
        if not self.alive:
            return
        if self.paused:
            self._waiting.append(action)
        else:
            action()

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Let ``action`` happen in this process ``delay_s`` virtual seconds from now."""
        self.scheduler.after(delay_s, partial(self.run, action))

    def pause(self) -> None:
        """Stop it."""
        self.paused = True

    def resume(self) -> None:
        """Continue it, and let everything happen that has been waiting."""
        self.paused = False
        while self._waiting and self.alive and not self.paused:
            self._waiting.popleft()()

    def kill(self) -> None:
        """End the process; its pending actions never happen."""
        self.alive = False
        self._waiting.clear()
