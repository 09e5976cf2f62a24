"""Suspended leases of a host: the orders, their progress, and the memory that they take.

``suspend`` and ``resume`` only note what is wanted; a task for each lease brings it about. So an
order may be repeated, and one that comes while the one before is carried out waits for that.
"""

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from gpupool.pool.errors import GpupoolError
from gpupool.pool.host_suspension import HostSuspension, SuspensionPhase
from gpupool.pool.model.ids import GpuId, LeaseId
from gpupool.pool.model.suspension import MIG_INSTANCE, USES_NCCL
from gpupool.pool.model.units import MIB
from gpupool.remoting.host.budget import Budget
from gpupool.remoting.host.privileged_helper import PrivilegedHelper
from gpupool.remoting.host.sharing.arbiter import Arbiter
from gpupool.remoting.host.suspension.room import Place, Room
from gpupool.remoting.host.worker_handle import WorkerHandle, WorkerState
from gpupool.remoting.protocol import helper_messages
from gpupool.remoting.protocol.sessions import NO_MOVES

if TYPE_CHECKING:
    from gpupool.remoting.host.session_opener import SessionOpener

SETTLE_TIMEOUT_S = 10.0
"""For sessions that are being opened: their clients connect within milliseconds."""

SETTLE_POLL_S = 0.02

RESUME_TIMEOUT_S, RESUME_EVERY_S = 600.0, 0.5
"""Another's process may still hold memory of the GPU; after this time the lease's workers end."""

MOVE_TIMEOUT_S = 30.0
"""When the GPU that a lease was moved to has no room for so long, it goes back."""

CALM_S = 30.0
"""After a resumption a worker's own memory may stay as large for so long."""

COUNT_AT_ONCE = 4
"""Suspensions at a time: a privileged helper has threads for few, and does other things besides."""

SLACK = 256 * MIB
"""Bytes of a context's bookkeeping, on top of its contents."""

P = SuspensionPhase


@dataclass(slots=True)
class Means:
    """Parts of the host that suspensions use."""

    workers: Mapping[int, WorkerHandle]
    helper: PrivilegedHelper
    budget: Budget
    allowance: Callable[[LeaseId], int]  # bytes of the machine's memory that a lease may have
    sample: Callable[[], Awaitable[None]]  # reads the GPUs' memory anew
    free_on: Callable[[GpuId], int]  # bytes that a GPU had left when it was read last
    instances: Callable[[], frozenset[GpuId]]  # the GPUs that are MIG instances
    shared_by_mps: Callable[[], bool]  # whether NVIDIA's daemon shares the GPUs of this machine
    note_use: Callable[[LeaseId], None]
    arbiter: Arbiter | None  # of the GPUs' time
    log: Callable[[str], None]


@dataclass(slots=True, eq=False)
class _Order:
    """The wanted state of one lease, and the progress towards it."""

    number: int
    wanted: bool  # that it is suspended
    phase: SuspensionPhase = P.RUNNING
    bytes: int = 0
    on_disk: int = 0  # of the bytes
    besides: int = 0  # bytes of this machine's memory that the lease may have besides
    reason: str = ""
    moves: Mapping[GpuId, GpuId] = field(default_factory=lambda: NO_MOVES)  # of what is resumed
    moved: Mapping[GpuId, GpuId] = field(default_factory=lambda: NO_MOVES)  # counted, not done yet
    tried: bool = False  # its privileged helper has been asked to resume it, and may have done so
    goes_back: bool = False  # the table has given it the GPUs back that it was moved from
    driven: bool = False  # a task brings it about
    gone: bool = False  # the lease has ended
    stopped: tuple[int, ...] = ()  # numbers of workers that were only stopped
    saved: tuple[int, ...] = ()
    since: float = float("-inf")  # trio's time of the last change of phase
    running: trio.Event = field(default_factory=trio.Event)

    def enter(self, phase: SuspensionPhase, reason: str = "") -> None:
        self.phase, self.reason, self.since = phase, reason, trio.current_time()
        if phase in (P.RUNNING, P.REFUSED):
            self.running.set()
        elif self.running.is_set():
            self.running = trio.Event()


class Suspensions:
    """All suspensions of one host; ``run`` must be running for anything to happen."""

    def __init__(self, means: Means, room: Room) -> None:
        """Prepare.

        Args:
            means: what the host has for it.
            room: where what suspended leases have on GPUs goes.
        """
        self._means = means
        self.room = room
        self._orders: dict[LeaseId, _Order] = {}
        self._openings: SessionOpener | None = None
        self._nursery: trio.Nursery | None = None
        self._gpus: dict[GpuId, trio.Lock] = {}
        self._places = trio.Semaphore(COUNT_AT_ONCE)

    async def run(
        self,
        openings: "SessionOpener",
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Carry out orders until cancelled."""
        self._openings = openings
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                task_status.started()
                for lease, order in self._orders.items():
                    self._start(lease, order)
                await trio.sleep_forever()
        finally:
            self._nursery = None

    # --- orders ---------------------------------------------------------------------------------

    def suspend(self, lease: LeaseId, number: int) -> None:
        """Suspend a lease; return at once."""
        self._order(lease, number, wanted=True)

    def resume(self, lease: LeaseId, number: int, moves: Mapping[GpuId, GpuId] = NO_MOVES) -> None:
        """Resume a lease, on other GPUs as ``moves`` says; return at once."""
        self._order(lease, number, wanted=False, moves=moves)

    def _order(
        self,
        lease: LeaseId,
        number: int,
        *,
        wanted: bool,
        moves: Mapping[GpuId, GpuId] = NO_MOVES,
    ) -> None:
        order = self._orders.get(lease)
        if order is None:
            self._drop_old()
            order = self._orders[lease] = _Order(number, wanted)
            order.enter(P.RUNNING)
        elif (number, not wanted) <= (order.number, not order.wanted):
            # A suspension and its end have one number, and the end is later.
            if order.phase is P.STRANDED and number == order.number and not moves:
                order.goes_back = True
                self._start(lease, order)
            return
        order.number, order.wanted, order.moves = number, wanted, moves
        if order.phase is P.REFUSED:
            order.enter(P.RUNNING)
        # The table had it wait with the old GPUs, and may send it to others from there.
        order.goes_back = order.phase is P.STRANDED
        self._start(lease, order)

    def _drop_old(self) -> None:
        """Forget leases that run, or have ended without a worker that would have said so."""
        having = {worker.session.lease for worker in self._means.workers.values()}
        old = trio.current_time() - CALM_S
        for lease, order in list(self._orders.items()):
            if order.phase in (P.RUNNING, P.REFUSED) and order.since < old and lease not in having:
                self.forget(lease)

    def phases(self) -> dict[LeaseId, HostSuspension]:
        """Return every lease that has had an order, and how far it is."""
        return {
            lease: HostSuspension(each.number, each.phase, each.bytes, each.reason)
            for lease, each in self._orders.items()
        }

    def holds(self, lease: LeaseId) -> bool:
        """Return whether a lease does not run, or not for long: its program is not to blame."""
        order = self._orders.get(lease)
        return order is not None and (
            order.phase in (P.SUSPENDING, P.SUSPENDED, P.RESUMING, P.STRANDED)
            or (order.wanted and order.phase is P.RUNNING)
        )

    def away(self) -> frozenset[LeaseId]:
        """Return the leases that have nothing on the GPUs at the moment."""
        return frozenset(
            lease
            for lease, order in self._orders.items()
            if order.phase in (P.SUSPENDED, P.STRANDED)
        )

    def memory(self, lease: LeaseId) -> int:
        """Return how much of this machine's memory a lease may have besides, for its suspension."""
        order = self._orders.get(lease)
        if order is None:
            return 0
        calm = order.phase in (P.RUNNING, P.REFUSED)
        if calm and trio.current_time() - order.since > CALM_S:
            return 0
        return order.besides

    async def wait_running(self, lease: LeaseId) -> None:
        """Return once a lease runs, or has ended."""
        while self.holds(lease):
            order = self._orders[lease]
            if order.running.is_set():  # It is about to be suspended.
                order.running = trio.Event()
            await order.running.wait()

    def forget(self, lease: LeaseId) -> None:
        """Drop a lease that has ended; all its workers are gone."""
        order = self._orders.pop(lease, None)
        if order is not None:
            order.gone = True
            order.running.set()

    # --- carried out ----------------------------------------------------------------------------

    def _start(self, lease: LeaseId, order: _Order) -> None:
        if not order.driven and self._nursery is not None:
            order.driven = True
            self._nursery.start_soon(self._drive, lease, order)

    async def _drive(self, lease: LeaseId, order: _Order) -> None:
        try:
            while not order.gone:
                if order.wanted and order.phase is P.RUNNING:
                    await self._suspend(lease, order)
                elif not order.wanted and order.phase is P.SUSPENDED:
                    await self._resume(lease, order)
                elif order.phase is P.STRANDED and order.goes_back:
                    self._return(lease, order)
                    await self._resume(lease, order)
                else:
                    return
        finally:
            order.driven = False

    async def _suspend(self, lease: LeaseId, order: _Order) -> None:
        order.enter(P.SUSPENDING)
        await self._settle(lease)
        workers = self._workers(lease)
        async with self._turn(gpu for worker in workers for gpu in worker.session.real):
            workers = self._workers(lease)
            real = {gpu for worker in workers for gpu in worker.session.real}
            size = sum(self._means.budget.usage(lease, gpu) for gpu in real)
            place = self._place(size)
            problem = self.objection(workers) or place.problem
            if problem or order.gone:
                order.enter(P.REFUSED, problem)
                return
            # Counted before it begins, so that no other one counts on the same memory.
            order.bytes, order.besides = size, self._memory_besides(lease)
            order.on_disk = size if place.on_disk else 0
            order.saved = tuple(worker.number for worker in workers if worker.session.real)
            order.stopped = tuple(worker.number for worker in workers if not worker.session.real)
            allowance = self._means.allowance(lease)
            request = helper_messages.SuspendWorkers(
                *(order.stopped, order.saved, size, allowance + order.besides, allowance),
                spill=place.on_disk,
            )
            moved = helper_messages.Moved()
            try:
                if workers:
                    self._rest(lease, rests=True)
                    moved = await self._let_go(request)
            except (GpupoolError, OSError) as error:
                moved = helper_messages.Moved(str(error))
        if moved.problem:
            self._end(moved.lost, f"it could not be suspended: {moved.problem}")
            order.bytes, order.on_disk, order.stopped, order.saved = 0, 0, (), ()
            self._rest(lease, rests=False)
            order.enter(P.REFUSED, moved.problem)
            self._means.note_use(lease)
            self._means.log(f"lease {lease:04x} could not be suspended: {moved.problem}")
            return
        order.stopped += moved.stopped
        order.saved = tuple(number for number in order.saved if number not in moved.stopped)
        order.bytes = sum(self._means.budget.usage(lease, gpu) for gpu in real)
        order.on_disk = moved.spilled
        disk = f", of which {order.on_disk // MIB} MiB on the disk" if order.on_disk else ""
        self._say(lease, f"suspended, {order.bytes // MIB} MiB{disk}", order.since)
        order.enter(P.SUSPENDED)

    async def _resume(self, lease: LeaseId, order: _Order) -> None:
        order.enter(P.RESUMING)
        order.tried = False
        if order.moves:
            self._relocate(lease, order)
        deadline = trio.current_time() + RESUME_TIMEOUT_S
        while not order.gone:
            workers = self._workers(lease)
            async with self._turn(gpu for worker in workers for gpu in worker.session.real):
                moved = await self._try_resume(lease, order)
            if not moved.problem:
                self._say(lease, f"resumed, {order.bytes // MIB} MiB", order.since)
                break
            if not order.reason:  # Later ones may differ in figures alone.
                self._means.log(f"lease {lease:04x} is not resumed yet: {moved.problem}")
            order.reason = moved.problem
            late = trio.current_time() > deadline
            if order.moved and moved.unmoved and not moved.lost:
                self._means.log(f"lease {lease:04x} cannot go on elsewhere: {moved.problem}")
                order.enter(P.STRANDED, moved.problem)
                return
            # One that cannot go on would leave the others waiting for it.
            if late or moved.lost:
                reason = f"it could not be resumed: {moved.problem}"
                self._end((*order.saved, *order.stopped), reason)
                break
            await trio.sleep(RESUME_EVERY_S)
        order.bytes, order.on_disk, order.stopped, order.saved = 0, 0, (), ()
        order.moved = NO_MOVES
        self._rest(lease, rests=False)
        order.enter(P.RUNNING)
        self._means.note_use(lease)

    def _relocate(self, lease: LeaseId, order: _Order) -> None:
        """Count a lease's memory on other GPUs, which the table has assigned to it."""
        moves, order.moves = order.moves, NO_MOVES
        order.moved = moves
        self._count_elsewhere(lease, moves)
        if self._openings is not None:
            self._openings.refuse_waiting(lease)
        goes = ", ".join(f"{gpu} to {other}" for gpu, other in moves.items())
        self._means.log(f"lease {lease:04x} goes on elsewhere: {goes}")

    def _count_elsewhere(self, lease: LeaseId, moves: Mapping[GpuId, GpuId]) -> None:
        self._means.budget.move(lease, moves)
        for worker in self._workers(lease):
            worker.session.devices = tuple(moves.get(gpu, gpu) for gpu in worker.session.devices)
            worker.session.real = tuple(moves.get(gpu, gpu) for gpu in worker.session.real)
        if self._means.arbiter is not None:
            self._means.arbiter.move(lease, moves)

    def _return(self, lease: LeaseId, order: _Order) -> None:
        """Count a lease's memory on the GPUs that it was moved from."""
        back = {new: old for old, new in order.moved.items()}
        order.moved, order.goes_back = NO_MOVES, False
        self._count_elsewhere(lease, back)
        self._means.log(f"lease {lease:04x} goes on where it was")

    def _say(self, lease: LeaseId, done: str, since: float) -> None:
        self._means.log(f"lease {lease:04x} {done} in {trio.current_time() - since:.1f} s")

    def _rest(self, lease: LeaseId, *, rests: bool) -> None:
        """Pass a lease over in the turns on its GPUs, or count it again."""
        if self._means.arbiter is not None:
            (self._means.arbiter.rest if rests else self._means.arbiter.come_back)(lease)

    async def _try_resume(self, lease: LeaseId, order: _Order) -> helper_messages.Moved:
        if problem := await self._no_room_on_gpus(lease, order):
            patient = trio.current_time() - order.since < MOVE_TIMEOUT_S
            return helper_messages.Moved(problem, unmoved=not patient and not order.tried)
        workers = self._workers(lease)
        there = {worker.number for worker in workers}
        real = {gpu for worker in workers for gpu in worker.session.real}
        idle = any(worker.session.real and worker.number in order.stopped for worker in workers)
        if order.moved and idle:
            why = (
                "one of its processes has not begun to use its GPU, and would look for the old one"
            )
            return helper_messages.Moved(why, unmoved=True)
        old = {new: gpu for gpu, new in order.moved.items()}
        request = helper_messages.ResumeWorkers(
            tuple(number for number in order.stopped if number in there),
            tuple(number for number in order.saved if number in there),
            order.bytes,
            self._means.allowance(lease),
            {old.get(gpu, gpu): gpu for gpu in sorted(real)} if order.moved and real else {},
        )
        if not there:
            return helper_messages.Moved()
        try:
            # What gives no answer in time may be done later, on the new GPUs.
            order.tried = True
            moved = await self._means.helper.ask(request)
            order.on_disk = 0  # It was read first.
            order.tried = not moved.unmoved
            return moved
        except (GpupoolError, OSError) as error:
            return helper_messages.Moved(str(error))

    async def _no_room_on_gpus(self, lease: LeaseId, order: _Order) -> str:
        """Return why it is too early to resume: a failed restore loses the data for good."""
        if not order.saved:
            return ""
        if problem := self.room.no_memory(order.on_disk):
            return problem
        await self._means.sample()
        for gpu in {gpu for worker in self._workers(lease) for gpu in worker.session.real}:
            free, size = self._means.free_on(gpu), self._means.budget.usage(lease, gpu)
            if size > free:
                return (
                    f"it needs {size // MIB} MiB of GPU {gpu}, of which {free // MIB} MiB are free"
                )
        return ""

    async def _settle(self, lease: LeaseId) -> None:
        """Wait until no session of a lease is being opened; new ones wait for the resumption."""
        with trio.move_on_after(SETTLE_TIMEOUT_S):
            while not self._settled(lease):  # noqa: ASYNC110 - workers' states have no event
                await trio.sleep(SETTLE_POLL_S)

    def _settled(self, lease: LeaseId) -> bool:
        if self._openings is not None and self._openings.are_under_way(lease):
            return False
        return all(
            worker.state is not WorkerState.WAITING
            and (worker.session.contexts or not worker.session.real)
            for worker in self._workers(lease)
        )

    def objection(self, workers: Sequence[WorkerHandle]) -> str:
        """Return why a lease with these workers cannot be suspended at all; empty: try it."""
        instances = self._means.instances()
        if any(worker.session.real for worker in workers) and self._means.shared_by_mps():
            return "programs on GPUs that NVIDIA's MPS shares cannot be suspended"
        if any(gpu in instances for worker in workers for gpu in worker.session.real):
            return MIG_INSTANCE
        # The driver takes it, and cannot give it back (580.159: memory mapped by two processes).
        if any(worker.session.imports and worker.session.real for worker in workers):
            return "its processes share GPU memory with each other, which cannot be suspended"
        if any(worker.session.totals.nccl and worker.session.real for worker in workers):
            return USES_NCCL
        return ""

    def _place(self, size: int) -> Place:
        orders = self._orders.values()
        taken = sum(order.bytes - order.on_disk for order in orders)
        moving = sum(order.bytes for order in orders if order.phase is P.SUSPENDING)
        return self.room.place(size, taken, moving)

    async def _let_go(self, request: helper_messages.SuspendWorkers) -> helper_messages.Moved:
        files = [self.room.open_file()] if request.spill else []
        try:
            return await self._means.helper.ask(request, *files)
        finally:
            for file in files:
                os.close(file)

    def _memory_besides(self, lease: LeaseId) -> int:
        """Return bytes for all that a lease may have on real GPUs."""
        gpus = {gpu for worker in self._workers(lease) for gpu in worker.session.real}
        whole = sum(self._means.budget.partition(lease, gpu) for gpu in gpus)
        return whole + SLACK if whole else 0

    def _workers(self, lease: LeaseId) -> list[WorkerHandle]:
        found = (worker for worker in self._means.workers.values() if worker.session.lease == lease)
        return [worker for worker in found if not worker.process.exited.is_set()]

    def _end(self, numbers: Iterable[int], reason: str) -> None:
        for number in numbers:
            worker = self._means.workers.get(number)
            if worker is not None:
                worker.kill(reason)

    @asynccontextmanager
    async def _turn(self, gpus: Iterable[GpuId]) -> AsyncGenerator[None]:
        """Wait until nothing else is suspended or resumed on these GPUs, in an order for all."""
        async with AsyncExitStack() as stack:
            for gpu in sorted(set(gpus)):
                await stack.enter_async_context(self._gpus.setdefault(gpu, trio.Lock()))
            await stack.enter_async_context(self._places)
            yield
