"""What waits for an outcome of the driver: attempts, and barriers that several share."""

from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from gpupool.pool.ports import Outcome

Callback = Callable[[Outcome], None]


@dataclass(eq=False, slots=True)
class Submitted:
    """One attempt that has no outcome yet; ``decided`` gets it."""

    decided: Callable[["Submitted", Outcome], None]
    callback: Callback
    began: float
    until: float

    def resolve(self, outcome: Outcome) -> None:
        """Hand the outcome on."""
        self.decided(self, outcome)


@dataclass(eq=False, slots=True)
class Waiter:
    """One outcome on its way to one task."""

    event: trio.Event = field(default_factory=trio.Event)
    outcome: Outcome | None = None

    def resolve(self, outcome: Outcome) -> None:
        """Wake the task."""
        self.outcome = outcome
        self.event.set()


@dataclass(eq=False, slots=True)
class SharedBarrier:
    """One barrier entry and those who wait for it."""

    leader_task: bool = False
    passed: bool = False
    done: trio.Event = field(default_factory=trio.Event)
