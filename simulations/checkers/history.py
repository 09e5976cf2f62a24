"""Histories of clients, as operations on small sequential objects: one per GPU, one per request.

They hold the calls of clients and their answers, with the instants of both: an outsider can judge
by nothing else. Of suspensions, which no client asks for, they hold when they were committed.

A history is linearizable if one sequential object could have produced it. The algorithm is that of
Wing and Gong (1993) with the memoised search of Lowe (2017), as in Knossos and Porcupine. No
maintained checker exists on PyPI. An operation whose outcome nobody learnt may have taken effect
at any time after it began, or never.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Generic, TypeVar

from gpupool.pool.model.ids import GpuId, LeaseId, RequestId
from gpupool.pool.model.state import Lease, Partition

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


@dataclass(frozen=True, slots=True)
class Take:
    """A lease with ``memory`` bytes of this GPU was granted."""

    lease: LeaseId
    memory: int


@dataclass(frozen=True, slots=True)
class TakeAgain:
    """A suspended lease got its memory again, under the number that it had."""

    lease: LeaseId
    memory: int


@dataclass(frozen=True, slots=True)
class GiveBack:
    """The client said that it needs the lease no more, or got the answer that it has ended."""

    lease: LeaseId


@dataclass(frozen=True, slots=True)
class Granted:
    """A claim of the request was answered with this lease."""

    lease: LeaseId


@dataclass(frozen=True, slots=True)
class Closed:
    """A claim was refused because the request is cancelled, or its lease over."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A cancellation was confirmed, or may have been done."""


@dataclass(frozen=True, slots=True)
class MaybeGranted:
    """A claim without an answer."""


GpuOperation = Take | TakeAgain | GiveBack
RequestOperation = Granted | Closed | Cancelled | MaybeGranted

GpuState = tuple[LeaseId, frozenset[tuple[LeaseId, int]]]
"""The newest lease so far, and the memory of each holder."""

OPEN, GRANTED, OVER = -1, -2, -3
"""States of a request: nothing yet, granted under an id that no client knows, over. A lease id,
which is never negative, says that the lease was granted under it."""


def gpu_model(capacity: int, state: GpuState, operation: GpuOperation) -> GpuState | None:
    """Step a GPU: taken memory fits, and leases are numbered in the order of their grants."""
    newest, holders = state
    if isinstance(operation, GiveBack):
        return newest, frozenset(h for h in holders if h[0] != operation.lease)
    used = sum(memory for _, memory in holders)
    if used + operation.memory > capacity:
        return None
    if isinstance(operation, TakeAgain):
        return newest, holders | {(operation.lease, operation.memory)}
    # The id is the fencing token: a later grant of the same memory must have a greater one.
    if operation.lease <= newest:
        return None
    return operation.lease, holders | {(operation.lease, operation.memory)}


def request_model(state: int, operation: RequestOperation) -> int | None:
    """Step a request: at most one lease ever, and none after a cancellation."""
    match operation:
        case Granted(lease):
            if state in (OPEN, GRANTED):
                return lease
            return state if state == lease else None
        case Closed():
            # Even the first claim may get this answer: its lease was granted, and ended at once.
            return OVER
        case Cancelled():
            return OVER
        case MaybeGranted():
            return GRANTED if state == OPEN else state


@dataclass(slots=True)
class History:
    """The operations of all clients, in the order in which they were called."""

    capacity: dict[GpuId, int] = field(default_factory=dict[GpuId, int])
    gpus: dict[GpuId, list[Operation[GpuOperation]]] = field(
        default_factory=dict[GpuId, list[Operation[GpuOperation]]]
    )
    requests: dict[RequestId, list[Operation[RequestOperation]]] = field(
        default_factory=dict[RequestId, list[Operation[RequestOperation]]]
    )

    stamp_s: float = 0.0
    """By which the instants of the pool may differ from those of the clients."""

    held: set[LeaseId] = field(default_factory=set[LeaseId])
    _has: dict[LeaseId, tuple[Partition, ...]] = field(
        default_factory=dict[LeaseId, tuple[Partition, ...]]
    )
    """Where each lease has memory; one that is suspended has it nowhere."""
    _resumed: dict[LeaseId, Lease] = field(default_factory=dict[LeaseId, Lease])
    ended_at: dict[LeaseId, float] = field(default_factory=dict[LeaseId, float])
    """When the pool ended a lease. A client that is cut off learns of it later, or never."""

    def pool_holds(self, leases: Iterable[Lease], now: float) -> None:
        """Take note of the leases that the pool holds after a command."""
        rows = {lease.id: lease for lease in leases if lease.held}
        held = set(rows)
        for lease in self.held - held:
            self.ended_at[lease], _ = self._about(now)
            if lease in self._resumed:  # also one whose client never heard of its grant
                self._at(self._resumed.pop(lease), GiveBack(lease), self.ended_at[lease], inf)
        self.held = held
        has = {each.id: () if each.is_away else each.partitions for each in rows.values()}
        for lease_id, parts in has.items():
            before = self._has.get(lease_id, rows[lease_id].partitions)
            if before != parts:
                self._changed(rows[lease_id], before, parts, now)
        self._has = has

    def _changed(
        self,
        lease: Lease,
        before: tuple[Partition, ...],
        after: tuple[Partition, ...],
        now: float,
    ) -> None:
        """Record that a lease has given memory back, has taken some again, or both in one step."""
        about = self._about(now)
        for part in before:
            if part not in after:
                gone: Operation[GpuOperation] = Operation(*about, GiveBack(lease.id))
                self.gpus.setdefault(part.gpu, []).append(gone)
        for part in after:
            if part not in before:
                again: Operation[GpuOperation] = Operation(*about, TakeAgain(lease.id, part.memory))
                self.gpus.setdefault(part.gpu, []).append(again)
        if after:
            self._resumed[lease.id] = lease

    def _about(self, now: float) -> tuple[float, float]:
        """Return from when to when something may have happened that the pool says was ``now``."""
        return now - self.stamp_s, now + self.stamp_s

    def _at(self, lease: Lease, what: GpuOperation, since: float, until: float) -> None:
        """Record an operation on all GPUs of a lease."""
        for part in lease.partitions:
            self.gpus.setdefault(part.gpu, []).append(Operation(since, until, what))

    def granted(
        self,
        request: RequestId,
        lease: LeaseId,
        memory: dict[GpuId, int],
        called_at: float,
        returned_at: float,
    ) -> None:
        """Record a claim that was answered with a lease."""
        self._of_request(request, called_at, returned_at, Granted(lease))
        for gpu, size in memory.items():
            operation: Operation[GpuOperation] = Operation(
                called_at, returned_at, Take(lease, size)
            )
            self.gpus.setdefault(gpu, []).append(operation)

    def over(
        self, lease: LeaseId, gpus: tuple[GpuId, ...], called_at: float, returned_at: float
    ) -> None:
        """Record that a lease was given back, or lost, between two instants.

        If the pool ended it earlier, for a reason of its own, then from that instant on.
        """
        called_at = min(called_at, self.ended_at.get(lease, inf))
        for gpu in gpus:
            operation: Operation[GpuOperation] = Operation(called_at, returned_at, GiveBack(lease))
            self.gpus.setdefault(gpu, []).append(operation)

    def refused_for_good(self, request: RequestId, called_at: float, returned_at: float) -> None:
        """Record a claim that was refused because the request is over."""
        self._of_request(request, called_at, returned_at, Closed())

    def unanswered(self, request: RequestId, called_at: float) -> None:
        """Record a claim that nobody answered."""
        self._of_request(request, called_at, inf, MaybeGranted())

    def cancelled(self, request: RequestId, called_at: float, returned_at: float) -> None:
        """Record a cancellation; ``returned_at`` is ``inf`` when nobody confirmed it."""
        self._of_request(request, called_at, returned_at, Cancelled())

    def verdicts(self) -> Iterator[tuple[str, Verdict]]:
        """Check every object; yield its name and the verdict."""
        nobody: GpuState = (LeaseId(0), frozenset())
        for gpu, operations in self.gpus.items():
            capacity = self.capacity[gpu]

            def model(
                state: GpuState, what: GpuOperation, capacity: int = capacity
            ) -> GpuState | None:
                return gpu_model(capacity, state, what)

            yield f"GPU {gpu}", check(operations, model, nobody)
        for request, operations in self.requests.items():
            yield f"request {request.hex()[:8]}", check(operations, request_model, OPEN)

    def _of_request(
        self, request: RequestId, called_at: float, returned_at: float, what: RequestOperation
    ) -> None:
        operation: Operation[RequestOperation] = Operation(called_at, returned_at, what)
        self.requests.setdefault(request, []).append(operation)
