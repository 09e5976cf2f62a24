"""Machines: disk, clock, GPUs and running workers, which survive a server process.

The memory that workers occupy is the truth that the table is compared with: a worker occupies the
partitions of its lease from its start until it is gone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random

from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.commands import GpuReading
from gpupool.pool.model.formats import VERSION
from gpupool.pool.model.ids import GpuId, Incarnation, LeaseId, ServerId
from gpupool.pool.model.state import Gpu, Lease, Partition, PoolState
from gpupool.remoting.protocol.sessions import Departure
from gpupool.simulations.kernel.ca_files import CaFiles
from gpupool.simulations.kernel.drifting_clock import DriftingClock
from gpupool.simulations.kernel.process import Process
from gpupool.simulations.kernel.scheduler import Scheduler
from gpupool.simulations.kernel.simulated_disk import SimulatedDisk
from gpupool.simulations.kernel.simulated_suspensions import SimulatedSuspensions
from gpupool.simulations.kernel.trace import Trace

RACKS = ("r1", "r2")

REST_S = 2.0
"""Mean time after which a program that rests at times does."""

RESTS_S = 4.0
"""Mean time for which it does."""

NOTICE_S = 0.001
"""From the end of a process to the moment at which its server knows of it."""


@dataclass(eq=False, slots=True)
class Worker:
    """One worker process, with the memory that it may occupy."""

    lease: LeaseId
    partitions: tuple[Partition, ...]
    server: ServerId  # the identity under which it was started
    incarnation: Incarnation  # of the server process that started it
    rested_since: tuple[float, float] | None = None  # virtual time and the machine's seconds
    rested: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """The rests that are over, in virtual time."""
    counted: bool = False  # by its server, once it is ready or to die; its memory counts at once
    dying: bool = False
    away: bool = False  # suspended: it occupies nothing
    gone: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    """Called once it is really gone, by those that have killed it."""


class Machine:
    """One machine of the pool."""

    def __init__(
        self,
        name: str,
        server: ServerId,
        *,
        scheduler: Scheduler,
        trace: Trace,
        random: Random,
        clock: DriftingClock,
        gpus_gib: Sequence[int],
        idle: float,
        kill_s: float,
        workers_changed: Callable[["Machine"], None],
    ) -> None:
        self.name = name
        self.server = server
        """The server's identity; another one after it was removed and joined again."""
        self.rack = random.choice(RACKS)
        """Its label when its server starts."""
        self.clock = clock
        self.disk = SimulatedDisk(random)
        self.authorities = CaFiles()
        self.incarnation = Incarnation(0)
        self.address = f"{name}:7470"
        self.places: tuple[str, ...] = ()
        """Where its operator says that other servers are."""
        self.remembered: dict[ServerId, str] = {}
        """The addresses of the pool's servers, as its server knew them last."""
        self.formats = VERSION
        """The version of its server's program."""
        self.process: Process | None = None
        self.workers: list[Worker] = []
        self.rests_before: dict[LeaseId, list[tuple[float, float]]] = {}
        """Of workers that are gone, in virtual time."""
        self.kill_s = kill_s
        """Mean time that a worker takes to be gone once it is killed."""
        self.dark = False
        """Without power."""
        self.signs: dict[tuple[GpuId, str], str] = {}
        """Of failing GPUs, as ``pool.automatic_drains`` has them; each text is another episode."""
        self.stranded: set[LeaseId] = set()
        """Leases that could not go on with the GPUs that they were moved to, once."""
        self._idle = idle
        self._scheduler = scheduler
        self._trace = trace
        self._random = random
        self._workers_changed = workers_changed
        self._gpus = tuple(
            Gpu(
                id=self.gpu_id(index),
                index=index,
                name=f"Simulated-{gib}",
                memory_total=gib << 30,
                emulated=True,
            )
            for index, gib in enumerate(gpus_gib)
        )

    def gpus(self) -> tuple[Gpu, ...]:
        """Return the devices of this machine."""
        return self._gpus

    def remember(self, state: PoolState) -> None:
        """Keep the addresses of the pool's servers, as a real one does on its disk."""
        self.remembered = {each.id: each.address for each in state.servers.values()}

    def gpu_id(self, index: int) -> GpuId:
        """Return the name of one device."""
        return GpuId(f"EMU-{self.name}-{index}")

    def occupied(self) -> dict[GpuId, int]:
        """Return the bytes that live workers may occupy on each GPU, each lease counted once."""
        leases = {
            (w.lease, p.gpu): p.memory for w in self.workers if not w.away for p in w.partitions
        }
        sums: dict[GpuId, int] = {}
        for (_, gpu), memory in leases.items():
            sums[gpu] = sums.get(gpu, 0) + memory
        return sums

    def set_away(self, lease: LeaseId, away: bool) -> None:
        """Release the memory of a lease's workers, or restore it."""
        for worker in self.workers:
            if worker.lease == lease:
                worker.away = away
        self._trace.note(self.name, "worker", f"lease {lease} {'lets go' if away else 'goes on'}")
        self._workers_changed(self)

    def relocate(self, lease: LeaseId, moves: Mapping[GpuId, GpuId]) -> None:
        """Move the memory of a lease's workers from some GPUs to others."""
        for worker in self.workers:
            if worker.lease == lease:
                worker.partitions = tuple(
                    Partition(part.server, moves.get(part.gpu, part.gpu), part.memory)
                    for part in worker.partitions
                )
        self._trace.note(self.name, "worker", f"lease {lease} is moved: {dict(moves)}")
        self._workers_changed(self)

    def strand(self, lease: LeaseId) -> None:
        """Take note that a lease cannot go on with the GPUs that it was moved to."""
        self.stranded.add(lease)
        self._trace.note(self.name, "worker", f"lease {lease} is stranded")

    def lose(self, lease: LeaseId) -> None:
        """Let all workers of a lease end, because the driver has lost their memory."""
        self._trace.note(self.name, "worker", f"lease {lease} is lost by the driver")
        for worker in [each for each in self.workers if each.lease == lease]:
            self.kill(worker)

    def memory_of(self, lease: LeaseId) -> tuple[Partition, ...]:
        """Return the partitions of a lease that its workers occupy."""
        found = {p for w in self.workers if w.lease == lease and not w.away for p in w.partitions}
        return tuple(sorted(found, key=lambda part: part.gpu))

    def new_random(self) -> Random:
        """Return a separate random source, which draws nothing from this machine's."""
        return Random(repr(self._random.getstate()))  # noqa: S311 - chance, no secret

    def start_worker(self, lease: LeaseId, partitions: Sequence[Partition]) -> Worker:
        """Start a worker, which occupies its memory from now on."""
        worker = Worker(lease, tuple(partitions), self.server, self.incarnation)
        self.workers.append(worker)
        if self._idle and self._random.random() < self._idle:
            self._scheduler.after(
                REST_S * self._random.expovariate(1.0), partial(self._rest, worker)
            )
        self._trace.note(self.name, "worker", f"starts for lease {lease}")
        self._workers_changed(self)
        return worker

    def _rest(self, worker: Worker) -> None:
        """Let a program make no more calls for a while."""
        if worker in self.workers:
            worker.rested_since = (self._scheduler.now, self.clock.monotonic())
            self._scheduler.after(
                RESTS_S * self._random.expovariate(1.0), partial(self._work, worker)
            )

    def _work(self, worker: Worker) -> None:
        if worker in self.workers:
            if worker.rested_since is not None:
                worker.rested.append((worker.rested_since[0], self._scheduler.now))
            worker.rested_since = None
            self._scheduler.after(
                REST_S * self._random.expovariate(1.0), partial(self._rest, worker)
            )

    def kill(self, worker: Worker, gone: Callable[[], None] | None = None) -> None:
        """Kill a worker; ``gone`` is called once it is really gone, which takes a while."""
        delay_s = self._random.expovariate(1.0) * self.kill_s if not worker.dying else self.kill_s
        worker.dying = True
        if gone is not None:
            worker.gone.append(gone)
        self._scheduler.after(delay_s, partial(self._remove, worker))

    def hurry(self) -> None:
        """Let workers that are dying be gone as soon as those that are killed from now on."""
        for worker in self.workers:
            if worker.dying:
                self._scheduler.after(self.kill_s, partial(self._remove, worker))

    def lose_workers(self) -> None:
        """Let every worker be gone at once, as when the power fails."""
        self.workers.clear()

    def _remove(self, worker: Worker) -> None:
        """Let a worker be gone, for all that have killed it (seed 10213174)."""
        if worker in self.workers:
            self.workers.remove(worker)
            if worker.rested_since is not None:
                worker.rested.append((worker.rested_since[0], self._scheduler.now))
            self.rests_before[worker.lease] = worker.rested
            self._trace.note(self.name, "worker", f"of lease {worker.lease} is gone")
            self._workers_changed(self)
        while worker.gone:
            worker.gone.pop(0)()


class SimulatedHost:
    """The workers of one server process, as ``protocol.sessions.SessionHost`` has them.

    What is a coroutine there takes a callback here, since nothing awaits under virtual time.
    """

    def __init__(self, machine: Machine, process: Process, *, start_s: float) -> None:
        self._machine = machine
        self._process = process
        self._start_s = start_s
        self._openings: dict[LeaseId, list[_Opening]] = {}
        self._readings = {gpu.id: GpuReading(0, "") for gpu in machine.gpus()}
        self._suspensions = SimulatedSuspensions(machine, process, self._openings)
        self.suspend, self.resume = self._suspensions.suspend, self._suspensions.resume
        self.suspensions = self._suspensions.phases
        self.weights: Mapping[LeaseId, float] = {}

    def weigh(self, weights: Mapping[LeaseId, float]) -> None:
        """Note the weights of leases' shares; nothing here takes turns."""
        self.weights = weights

    def depart(self, lease: LeaseId, target: ServerId | None) -> Departure:
        """Let the one worker of a lease go, once it is ready."""
        mine = [worker for worker in self._machine.workers if worker.lease == lease]
        if target is None or any(each.dying or not each.counted for each in mine):
            return Departure()
        if len(mine) > 1:
            return Departure(refusal=f"it has {len(mine)} processes")
        return Departure(ready=True, session=b"a single process" if mine else b"")

    def sweep(self, done: Callable[[], None]) -> None:
        """Kill all workers of former incarnations; ``done`` follows once every one is gone."""
        waiting = list(self._machine.workers)
        if not waiting:
            self._process.run(done)
            return

        def gone(worker: Worker) -> None:
            waiting.remove(worker)
            if not waiting:
                self._process.run(done)

        for worker in list(waiting):
            self._machine.kill(worker, partial(gone, worker))

    def gpus(self) -> tuple[Gpu, ...]:
        """Return the devices to offer."""
        return self._machine.gpus()

    def readings(self) -> dict[GpuId, GpuReading]:
        """Return foreign memory and fault of every GPU: none."""
        return self._readings

    def worker_count(self) -> dict[LeaseId, int]:
        """Return how many live workers each lease has, without those that are starting.

        As in ``worker_pool``: a real worker belongs to no lease before it is ready.
        """
        counts: dict[LeaseId, int] = {}
        for worker in self._machine.workers:
            if not worker.counted:
                continue
            counts[worker.lease] = counts.get(worker.lease, 0) + 1
        return counts

    def confinement(self) -> tuple[str, ...]:
        """Return nothing: simulated workers reach nothing by themselves."""
        return ()

    def unconfined(self) -> tuple[str, ...]:
        """Return nothing."""
        return ()

    def idle_s(self) -> dict[LeaseId, float]:
        """Return for how many seconds each lease has not been used."""
        now = self._machine.clock.monotonic()
        found: dict[LeaseId, float] = {}
        for worker in self._machine.workers:
            rested_s = now - worker.rested_since[1] if worker.rested_since is not None else 0.0
            found[worker.lease] = min(rested_s, found.get(worker.lease, rested_s))
        return found

    def open_session(
        self,
        lease: Lease,
        partitions: Sequence[Partition],
        opened: Callable[[GpupoolError | None], None],
    ) -> None:
        """Start a worker; ``opened`` follows once it is ready, or with why it will never be."""
        if self._suspensions.holds(lease.id):
            start = partial(self.open_session, lease, partitions, opened)
            error = GpupoolError("no session can be opened", why="the lease has ended")
            self._suspensions.when_running(lease.id, start, partial(opened, error))
            return
        opening = _Opening(opened)
        self._openings.setdefault(lease.id, []).append(opening)
        worker = self._machine.start_worker(lease.id, partitions)
        self._process.after(self._start_s, partial(self._ready, lease.id, opening, worker))

    def kill_lease(self, lease: LeaseId, gone: Callable[[], None]) -> None:
        """Kill every worker of a lease, starting ones too; ``gone`` follows once all are."""
        self._suspensions.forget(lease)
        for opening in list(self._openings.get(lease, ())):
            error = GpupoolError("no session can be opened", why="the lease has ended")
            self._process.after(0.0, partial(self._finish, lease, opening, error))
        waiting = [worker for worker in self._machine.workers if worker.lease == lease]

        def ended(worker: Worker) -> None:
            waiting.remove(worker)
            if not waiting:
                self._process.after(NOTICE_S, gone)

        for worker in list(waiting):
            worker.counted = True  # until it is gone, though its session is given up at once
            self._machine.kill(worker, partial(ended, worker))
        if not waiting:
            self._process.after(NOTICE_S, gone)

    def _ready(self, lease: LeaseId, opening: "_Opening", worker: Worker) -> None:
        worker.counted = True
        self._finish(lease, opening, None)

    def _finish(self, lease: LeaseId, opening: "_Opening", error: GpupoolError | None) -> None:
        openings = self._openings.get(lease, [])
        if opening in openings:
            openings.remove(opening)
            if not openings:
                del self._openings[lease]
            opening.opened(error)


@dataclass(eq=False, slots=True)
class _Opening:
    """A session with a worker that is not ready yet."""

    opened: Callable[[GpupoolError | None], None]
