"""Linearizability: whether one sequential object could have produced a concurrent history.

The algorithm of Wing and Gong (1993) with the memoised search of Lowe (2017), as in Knossos and
Porcupine. No maintained checker exists on PyPI. An operation whose outcome nobody learnt may have
taken effect at any time after it began, or never.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Generic, TypeVar

State = TypeVar("State", bound=Hashable)
Input = TypeVar("Input")

STEP_COUNT_MAX = 200_000
"""Search steps for one object; beyond it the verdict is that nobody knows."""


@dataclass(frozen=True, slots=True)
class Operation(Generic[Input]):
    """One call of a client."""

    called_at: float
    returned_at: float  # ``inf`` when the outcome was never learnt
    what: Input  # with its outcome, as the model wants it

    @property
    def known(self) -> bool:
        """Return whether the outcome is known, so that the operation must have taken effect."""
        return self.returned_at != inf


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one object's history. ``linearizable`` is None when the search gave up."""

    linearizable: bool | None
    steps: int


Model = Callable[[State, Input], State | None]
"""The sequential object: its next state, or None where the operation could not have that
outcome."""


def check(
    operations: Sequence[Operation[Input]],
    model: Callable[[State, Input], State | None],
    initial: State,
    *,
    steps_max: int = STEP_COUNT_MAX,
) -> Verdict:
    """Search for an order of the operations that agrees with time and with ``model``."""
    return _Search(operations, model, initial).run(steps_max)


class _Search(Generic[State, Input]):
    """The events in a doubly linked list, from which operations are lifted as they are placed."""

    def __init__(
        self,
        operations: Sequence[Operation[Input]],
        model: Callable[[State, Input], State | None],
        initial: State,
    ) -> None:
        self._operations = operations
        self._model = model
        self._state = initial
        # At the same instant, calls come before returns: such operations are concurrent.
        events = sorted(
            [(o.called_at, 0, i) for i, o in enumerate(operations)]
            + [(o.returned_at, 1, i) for i, o in enumerate(operations)]
        )
        self._end = len(events) + 1
        self._events = [None, *events, None]
        self._next = list(range(1, self._end + 2))
        self._previous = list(range(-1, self._end + 1))
        self._return_of = {i: at for at, (_, kind, i) in enumerate(events, 1) if kind == 1}

    def run(self, steps_max: int) -> Verdict:
        missing = sum(o.known for o in self._operations)
        placed = 0  # bits of the operations that have taken effect
        seen: set[tuple[int, State]] = {(0, self._state)}
        stack: list[tuple[int, State, int]] = []
        at = self._next[0]
        for step in range(steps_max):
            if missing == 0:
                return Verdict(linearizable=True, steps=step)
            event = self._events[at]
            if event is not None and event[1] == 0:
                index = event[2]
                after = self._model(self._state, self._operations[index].what)
                placed_after = placed | (1 << index)
                if after is not None and (placed_after, after) not in seen:
                    seen.add((placed_after, after))
                    stack.append((at, self._state, placed))
                    self._state, placed = after, placed_after
                    missing -= self._operations[index].known
                    self._lift(at)
                    self._lift(self._return_of[index])
                    at = self._next[0]
                else:
                    at = self._next[at]
                continue
            # Here something has returned that could not take effect before: go back a step.
            if not stack:
                return Verdict(linearizable=False, steps=step)
            at, self._state, placed = stack.pop()
            undone = self._events[at]
            assert undone is not None
            missing += self._operations[undone[2]].known
            self._put_back(self._return_of[undone[2]])
            self._put_back(at)
            at = self._next[at]
        return Verdict(linearizable=None, steps=steps_max)

    def _lift(self, at: int) -> None:
        self._next[self._previous[at]] = self._next[at]
        self._previous[self._next[at]] = self._previous[at]

    def _put_back(self, at: int) -> None:
        self._next[self._previous[at]] = at
        self._previous[self._next[at]] = at
