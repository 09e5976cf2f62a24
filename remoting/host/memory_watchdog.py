"""Compares the use of memory and disk by workers with their leases' limits, and kills those over.

NVML reports the GPU memory of each process. Memory beyond a worker's reservations is charged to its
lease as overhead, such as CUDA contexts. The kernel reports the host memory of each worker, and
their privileged helper the files that they have left.
"""

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

import trio

from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.ids import GpuId, LeaseId
from gpupool.pool.model.units import MIB
from gpupool.remoting.host import host_memory
from gpupool.remoting.host.host_parts import HostParts
from gpupool.remoting.host.inventory import OwnUse
from gpupool.remoting.host.measuring.worker_files import UNSEEN_SIZE, lacking
from gpupool.remoting.host.spawn import WorkerFailedError
from gpupool.remoting.host.worker_handle import WorkerHandle, WorkerState
from gpupool.remoting.protocol import helper_messages, worker_messages


class MemoryWatchdog:
    """Samples the GPUs and the workers of one host; ``run`` must be running."""

    def __init__(
        self,
        host: HostParts,
        workers: Mapping[int, WorkerHandle],
        *,
        note_use: Callable[[WorkerHandle], None],
        suspended: Callable[[], Collection[LeaseId]] = tuple,
        besides: Callable[[LeaseId], int] = lambda _lease: 0,
    ) -> None:
        """Prepare; nothing is sampled yet.

        Args:
            host: its GPUs, budget, privileged helper and limits.
            workers: all live workers by number, as the worker pool keeps them.
            note_use: called for each worker that was seen computing.
            suspended: says which leases have nothing on the GPUs, though it is in the books.
            besides: says how much of this machine's memory a lease may have for its suspension.
        """
        self._host, self._budget, self._limits = host, host.budget, host.limits
        self._workers = workers
        self._note_use = note_use
        self._suspended, self._besides = suspended, besides
        self._machine = host_memory.machine_memory()
        self._others: Mapping[int, int] = {}  # bytes that workers have besides, by number
        self._making_room = -1  # number of the worker that was killed for it last

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            self._budget.begin_reading()
            await self._host.inventory.sample(self.own_use)
            self._reconcile()
            self._watch_host_memory()
            await trio.sleep(self._limits.sample_interval_s)

    async def run_for_files(self) -> None:
        """Look at the workers' files until cancelled."""
        while True:
            await trio.sleep(self._limits.sample_interval_s)
            if any(worker.session.lease is not None for worker in self._workers.values()):
                with suppress(GpupoolError):  # It could not be measured this time.
                    files = await self._host.helper.ask(helper_messages.MeasureFiles())
                    self._others = files.memory
                    self._watch_files(files)

    async def measure_contexts(self, worker: WorkerHandle) -> None:
        """Charge the memory of the worker's contexts, while it has allocated nothing else."""
        await self._host.inventory.sample(self.own_use)
        if worker.state is WorkerState.ENDED:
            return
        for gpu in worker.session.real:
            used = (self._host.inventory.own_processes(gpu) or {}).get(worker.process.pid)
            if used is not None:
                self._budget.charge(worker.number, gpu, used)
        try:
            worker.send(worker_messages.Proceed())
        except WorkerFailedError as error:
            worker.kill(str(error))

    def own_use(self) -> dict[GpuId, OwnUse]:
        """Return the processes of workers with their reservations, which are not foreign memory."""
        pids = frozenset(worker.process.pid for worker in self._workers.values())
        return {gpu.id: OwnUse(pids, self.used_on(gpu.id)) for gpu in self._host.inventory.gpus()}

    def used_on(self, gpu: GpuId) -> int:
        """Return the bytes of unsuspended leases on ``gpu``."""
        away = sum(self._budget.usage(lease, gpu) for lease in self._suspended())
        return self._budget.used_on(gpu) - away

    def _reconcile(self) -> None:
        """Charge the memory beyond the reservations; kill workers far over the partition.

        NVML may have been read at any time since the reading began, so the most that was reserved
        meanwhile counts. A charge never shrinks, so what is there for a moment must not be taken
        for overhead.
        """
        over: dict[tuple[LeaseId, GpuId], list[tuple[int, WorkerHandle]]] = {}
        found: dict[tuple[LeaseId, GpuId], int] = {}
        for worker in self._workers.values():
            if worker.session.lease is None or not worker.session.contexts:
                continue
            for gpu in worker.session.real:
                if worker.process.pid in self._host.inventory.computing(gpu):
                    self._note_use(worker)
                used = (self._host.inventory.own_processes(gpu) or {}).get(worker.process.pid)
                if used is None:
                    continue
                _, charged = self._budget.held(worker.number, gpu)
                reserved = self._budget.peak(worker.number, gpu)
                if used - reserved > charged:
                    self._budget.charge(worker.number, gpu, used - reserved)
                key = (worker.session.lease, gpu)
                found[key] = found.get(key, 0) + used
                over.setdefault(key, []).append((used - reserved, worker))
        for (lease, gpu), used in found.items():
            partition = self._budget.partition(lease, gpu)
            if used > partition + self._limits.watchdog_slack:
                _most, worker = max(over[lease, gpu], key=lambda each: each[0])
                worker.kill(
                    f"its lease used {used // MIB} MiB of GPU memory, "
                    f"its partition has {partition // MIB} MiB"
                )

    def kernel_limit(self, lease: LeaseId) -> int:
        """Return how much of this machine's memory the kernel is to let a lease have now."""
        return self.lasting_limit(lease) + self._besides(lease)

    def lasting_limit(self, lease: LeaseId) -> int:
        """Return how much of it the kernel is to let a lease have that is not suspended.

        It is more than what workers are killed for here, where the reason can be said: one more
        worker's part, for what the kernel counts besides.
        """
        workers = sum(worker.session.lease == lease for worker in self._workers.values())
        return self._allowance(lease, workers + 1)

    def _allowance(self, lease: LeaseId, workers: int) -> int:
        has = {gpu: self._budget.partition(lease, gpu.id) for gpu in self._host.inventory.gpus()}
        whole = sum(gpu.memory_total for gpu in has)
        floor = host_memory.floor(
            self._machine, self._limits.host_memory, workers * self._limits.host_memory_each
        )
        may = host_memory.allowance(self._machine, sum(has.values()), whole, floor)
        return may + sum(
            size for gpu, size in has.items() if gpu.emulated
        )  # which is memory of ours

    def _watch_host_memory(self) -> None:
        """Kill the largest worker of a lease that takes too much of this server's memory."""
        found: dict[LeaseId, list[tuple[int, WorkerHandle]]] = {}
        for worker in self._workers.values():
            if worker.session.lease is not None:
                used = host_memory.resident(worker.process.pid)
                used += self._others.get(worker.number, 0)
                found.setdefault(worker.session.lease, []).append((used, worker))
        for lease, each in found.items():
            used = sum(size for size, _ in each)
            may = self._allowance(lease, len(each)) + self._besides(lease)
            if used > may:
                much = f"{used // MIB} MiB" if used < UNSEEN_SIZE else "more than can be counted"
                max(each, key=lambda one: one[0])[1].kill(
                    f"its lease used {much} of this server's memory, and may have {may // MIB} MiB"
                )

    def _watch_files(self, files: helper_messages.Files) -> None:
        """Kill the workers of a lease with too many bytes of files on this server's disk.

        Where the disk is nearly full, the worker with the most files goes, whosever it is; unless
        others have filled it, so that all workers together could not make the room that it lacks.
        """
        lacks = lacking(files.whole, files.left)
        if lacks and self._making_room not in files.sizes and sum(files.sizes.values()) >= lacks:
            self._making_room, size = max(files.sizes.items(), key=lambda each: each[1])
            if (worker := self._workers.get(self._making_room)) is not None:
                worker.kill(
                    f"its files take {size // MIB} MiB, the most on this server, whose disk has "
                    f"{files.left // MIB} MiB left"
                )
                return
        may = min(self._limits.files, int(files.whole * self._limits.files_part))
        found: dict[LeaseId, list[tuple[int, WorkerHandle]]] = {}
        for number, size in files.sizes.items():
            worker = self._workers.get(number)
            if worker is not None and worker.session.lease is not None:
                found.setdefault(worker.session.lease, []).append((size, worker))
        for each in found.values():
            used = sum(size for size, _ in each)
            if used <= may:
                continue
            much = f"{used // MIB} MiB" if used < UNSEEN_SIZE else "too many to be counted"
            max(each, key=lambda one: one[0])[1].kill(
                f"the files of its lease take {much} on this server, and may take {may // MIB} MiB"
            )
