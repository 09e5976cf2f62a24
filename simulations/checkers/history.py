"""Histories of clients, as operations on small sequential objects: one per GPU, one per request.

They hold the calls of clients and their answers, with the instants of both: an outsider can judge
by nothing else. Of suspensions, which no client asks for, they hold when they were committed.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import inf

from gpupool.pool.model.ids import GpuId, LeaseId, RequestId
from gpupool.pool.model.state import Lease, Partition
from gpupool.simulations.checkers.linearizability import Operation, Verdict, check


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
    """A claim whose answer never came."""


GpuOperation = Take | TakeAgain | GiveBack
RequestOperation = Granted | Closed | Cancelled | MaybeGranted

GpuState = tuple[LeaseId, frozenset[tuple[LeaseId, int]]]
"""The newest lease so far, and who has how much."""

OPEN, GRANTED, OVER = -1, -2, -3
"""States of a request: nothing yet, granted under an id that no client knows, over. A lease id,
which is never negative, says that the lease was granted under it."""


def gpu_model(capacity: int, state: GpuState, operation: GpuOperation) -> GpuState | None:
    """Step a GPU: what is taken fits, and leases are numbered in the order of their grants."""
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
        """Record what happened on all GPUs of a lease."""
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
        """Check every object; yields its name and what came out."""
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
