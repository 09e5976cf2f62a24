"""Check the host on a machine with a real NVIDIA GPU; prints one line per check.

Usage: PYTHONPATH=src python tests/gpu/host_check.py [--skip-scrub]

It needs CuPy, and takes nearly all of the first GPU's free memory for a minute. The exit status
is the number of checks that failed.
"""

import argparse
import functools
import os
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import trio

from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.ids import LeaseId, Milliseconds, RequestId, ServerId, TokenId
from gpupool.pool.model.state import Gpu, Lease, Partition
from gpupool.remoting.host.inventory import Inventory
from gpupool.remoting.host.measuring.nvml import PynvmlNvml
from gpupool.remoting.host.supervisor import HostSupervisor
from gpupool.remoting.host.worker_handle import WorkerHandle
from gpupool.remoting.host.worker_helper import HelperSettings
from gpupool.remoting.transport.data_connection import SessionAddress, dial
from gpupool.remoting.transport.session_stream import SessionStream

HERE = Path(__file__).resolve().parent
FRAME = struct.Struct(">cQ")
SERVER = ServerId("check0000000")
MIB, GIB = 1 << 20, 1 << 30
STEP = 512 * MIB


class Probe:
    """One session: a client of ``probe_door``, and the worker that serves it."""

    def __init__(self, stream: SessionStream, worker: WorkerHandle) -> None:
        self.stream = stream
        self.worker = worker

    async def ask(self, command: bytes, size: int = 0) -> str:
        with trio.fail_after(300):
            return await trio.to_thread.run_sync(self._ask, command, size, abandon_on_cancel=True)

    def _ask(self, command: bytes, size: int) -> str:
        self.stream.send_buffers([FRAME.pack(command, size)])
        (length,) = struct.unpack(">I", self._read(4))
        return self._read(length).decode()

    def _read(self, size: int) -> bytes:
        data, count = bytearray(size), 0
        while count < size:
            received = self.stream.recv_into(memoryview(data)[count:])
            if not received:
                raise EOFError("the worker has closed the connection")
            count += received
        return bytes(data)

    async def fill(self) -> int:
        """Allocate from the budget until it refuses; return the bytes."""
        taken, step = 0, STEP
        while step >= 2 * MIB:
            answer = await self.ask(b"a", step)
            if answer == "granted":
                taken += step
            else:
                step //= 2
        return taken


class Check:
    """The checks, in an order in which each needs the results of the one before it."""

    def __init__(self, host: HostSupervisor, gpu: Gpu) -> None:
        self.host = host
        self.gpu = gpu
        self.failures = 0
        self._lease = 0

    def say(self, ok: bool, name: str, facts: str) -> None:
        self.failures += not ok
        print(f"{'pass' if ok else 'FAIL'}  {name}: {facts}", flush=True)

    def note(self, name: str, facts: str) -> None:
        print(f"note  {name}: {facts}", flush=True)

    def lease(self, memory: int) -> Lease:
        self._lease += 1
        return Lease(
            id=LeaseId(self._lease),
            request=RequestId(self._lease.to_bytes(16, "big")),
            user="check",
            token=TokenId("check"),
            partitions=(Partition(SERVER, self.gpu.id, memory // MIB * MIB),),
            parts={},
            ticket_hash=b"",
            granted_at=Milliseconds(0),
        )

    async def open(self, lease: Lease) -> tuple[Probe, float, float]:
        """Return a session, with the seconds that opening and connecting took."""
        started = time.perf_counter()
        info = await self.host.open_session(lease, lease.partitions, door="probe", program="check")
        opened = time.perf_counter()
        worker = next(
            w for w in self.host.worker_pool.workers.values() if w.session.id == info.session
        )
        target = SessionAddress(
            info.session, info.ticket, info.certificate_sha256, unix=info.unix_path
        )
        probe = Probe(await trio.to_thread.run_sync(dial, target), worker)
        await probe.ask(b"w")
        return probe, opened - started, time.perf_counter() - opened

    async def end(self, *leases: Lease) -> float:
        started = time.perf_counter()
        for lease in leases:
            await self.host.kill_lease(lease.id, "the check is done")
        return time.perf_counter() - started

    async def used(self) -> int:
        """Return the GPU memory in use now, by NVML."""
        await self.host.inventory.sample(self.host.watchdog.own_use)
        return self.host.telemetry()[0][0].memory_used

    async def settle(self, most: int) -> tuple[int, float]:
        """Wait until no more than ``most`` bytes are in use; return bytes and seconds."""
        started = time.perf_counter()
        while True:
            used, waited_s = await self.used(), time.perf_counter() - started
            if used <= most or waited_s > 10:
                return used, waited_s
            await trio.sleep(0.02)

    # --- the checks -----------------------------------------------------------------------------

    async def spare(self) -> int:
        """See that a warm worker holds no GPU memory: CuPy is imported, CUDA not initialised."""
        before = await self.used()
        started = time.perf_counter()
        while not self.host.worker_pool.workers:
            await trio.lowlevel.checkpoint()
        worker = next(iter(self.host.worker_pool.workers.values()))
        await worker.ready.wait()
        warm_s = time.perf_counter() - started
        after = await self.used()
        self.say(
            not worker.said.cuda_problem,
            "CuPy",
            worker.said.cuda_problem or f"warm in {warm_s:.1f} s",
        )
        self.say(after - before < 16 * MIB, "spare worker", f"{(after - before) // MIB} MiB of GPU")
        self.note("confinement", ", ".join(self.host.confinement()))
        return before

    async def quarters(self, idle: int) -> None:
        """Four workers at once, each with a quarter of the GPU, all full."""
        share = (self.gpu.capacity - idle) // 4
        leases = [self.lease(share) for _ in range(4)]
        probes: list[Probe] = []
        for lease in leases:
            probe, open_s, connect_s = await self.open(lease)
            probes.append(probe)
            held = self.host.budget.held(probe.worker.number, self.gpu.id)
            measured = self.host.inventory.own_processes(self.gpu.id)
            self.note(
                f"session {lease.id}",
                f"opened in {open_s * 1000:.1f} ms, context and connection {connect_s:.2f} s, "
                f"overhead charged {held[1] // MIB} MiB, by process: {measured is not None}",
            )
        for probe in probes:
            info = (await probe.ask(b"i")).split()
            uid = int(info[1])
            self.say(info[2] == "1", "visible devices", f"{info[2]} {info[3]}, uid {uid}")
        answers = [await probe.ask(b"c") for probe in probes]
        right = "1099511627776 256 7.00"
        self.say(answers == [right] * 4, "compiler, cuBLAS, cuFFT", answers[0])
        await self.used()
        overhead = [self.host.budget.held(p.worker.number, self.gpu.id)[1] // MIB for p in probes]
        self.note("overhead after the libraries were used", f"{overhead} MiB")
        taken = [0] * 4

        async def fill(at: int) -> None:
            taken[at] = await probes[at].fill()

        async with trio.open_nursery() as nursery:
            for at in range(4):
                nursery.start_soon(fill, at)
        used = await self.used()
        fits = all(size + 1024 * MIB > share for size in taken)
        self.say(fits, "four full quarters", f"{[t // MIB for t in taken]} of {share // MIB} MiB")
        self.say(used <= self.gpu.capacity, "the GPU", f"{used // MIB} MiB in use")
        refused = [await probe.ask(b"a", 64 * MIB) for probe in probes]
        self.say(refused == ["refused"] * 4, "beyond the partition", str(refused))
        await self.kill_one(probes, share)
        ended_s = await self.end(*leases)
        left, waited_s = await self.settle(idle + 16 * MIB)
        self.say(
            left <= idle + 16 * MIB,
            "end of four leases",
            f"{ended_s * 1000:.0f} ms, memory back {waited_s:.2f} s later, {left // MIB} MiB left",
        )

    async def kill_one(self, probes: list[Probe], share: int) -> None:
        victim = probes[0]
        before = await self.used()
        os.kill(victim.worker.process.pid, signal.SIGKILL)
        started = time.perf_counter()
        try:
            await victim.ask(b"w")
            saw = "nothing"
        except (EOFError, OSError) as error:
            saw = type(error).__name__
        seen_s = time.perf_counter() - started
        await victim.worker.ended.wait()
        after, waited_s = await self.settle(before - share // 2)
        others = [await probe.ask(b"c") for probe in probes[1:]]
        self.say(
            saw != "nothing" and after < before - share // 2,
            "kill -9 of a worker",
            f"client saw {saw} after {seen_s * 1000:.0f} ms, {(before - after) // MIB} MiB "
            f"back after {waited_s:.2f} s",
        )
        self.say(len(set(others)) == 1, "its neighbours", others[0])

    async def watchdog(self) -> None:
        lease = self.lease(2 * GIB)
        neighbour_lease = self.lease(2 * GIB)
        neighbour, _, _ = await self.open(neighbour_lease)
        thief, _, _ = await self.open(lease)
        started = time.perf_counter()
        answer = await thief.ask(b"s", 3 * GIB)
        with trio.move_on_after(10):
            await thief.worker.ended.wait()
        reason = thief.worker.exit_reason() if thief.worker.ended.is_set() else "it lives on"
        self.say(
            "its partition has" in reason,
            "watchdog",
            f"{answer}; {reason}; after {time.perf_counter() - started:.1f} s",
        )
        self.say(await neighbour.ask(b"w") == "idle", "neighbour of a thief", "unharmed")
        await self.end(lease, neighbour_lease)

    async def out_of_memory(self, idle: int) -> None:
        """CUDA's own refusal stays in the process that asked."""
        lease, other_lease = self.lease(self.gpu.capacity - idle), self.lease(GIB)
        probe, _, _ = await self.open(lease)
        other, _, _ = await self.open(other_lease)
        answer = await probe.ask(b"s", 4 * self.gpu.memory_total)
        alive = await probe.ask(b"c")
        self.say(answer.startswith("cuda:") and bool(alive), "CUDA out of memory", answer)
        self.say(await other.ask(b"w") == "idle", "neighbour of it", "unharmed")
        await self.end(lease, other_lease)

    async def busy(self) -> None:
        """End a lease while a kernel runs that would run for a minute."""
        lease = self.lease(2 * GIB)
        probe, _, _ = await self.open(lease)
        await probe.ask(b"k", 60)
        with trio.move_on_after(30):
            seconds = await self.end(lease)
            self.say(True, "end of a lease with a kernel running", f"{seconds:.2f} s")
            return
        self.say(False, "end of a lease with a kernel running", "not within 30 s")

    async def scrub(self, idle: int, how: str) -> None:
        """Fill the GPU with a pattern, end, and look for it in memory that was never written."""
        # What is left out is for the reader's own arrays.
        size = self.gpu.capacity - idle - GIB
        lease = self.lease(size)
        writer, _, _ = await self.open(lease)
        await writer.fill()
        marked = int(await writer.ask(b"m"))
        if how == "kill -9":
            os.kill(writer.worker.process.pid, signal.SIGKILL)
        else:
            writer.stream.close()
        await writer.worker.ended.wait()
        await self.end(lease)
        await self.settle(idle + 16 * MIB)
        lease = self.lease(size)
        reader, _, _ = await self.open(lease)
        searched = await reader.fill()
        found, other = (int(text) for text in (await reader.ask(b"f")).split())
        await self.end(lease)
        self.say(
            found == 0,
            f"memory of an ended session ({how})",
            f"{marked // MIB} MiB marked, {searched // MIB} MiB searched, "
            f"{found * 8 // MIB} MiB found ({found} words), {other} words not zero",
        )


async def main(*, skip_scrub: bool) -> int:
    inventory = await trio.to_thread.run_sync(
        functools.partial(Inventory.discover, SERVER, PynvmlNvml(), log=print)
    )
    if not inventory.gpus():
        print(f"FAIL  inventory: {inventory.problem}")
        return 1
    for gpu in inventory.gpus():
        print(f"note  GPU {gpu.index}: {gpu}")
    print(f"note  driver {inventory.driver_version}, CUDA {inventory.cuda_version}")
    directory = tempfile.mkdtemp(prefix="gpupool-check-")
    os.chmod(directory, 0o711)
    host = HostSupervisor(
        inventory,
        HelperSettings(Path(directory), Path(directory), {"probe": "probe_door:serve"}),
        log=lambda text: print(f"log   {text}", flush=True),
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(host.run)
        check = Check(host, inventory.gpus()[0])
        try:
            idle = await check.spare()
            await check.quarters(idle)
            await check.watchdog()
            await check.out_of_memory(idle)
            await check.busy()
            for how in () if skip_scrub else ("client closes", "kill -9"):
                await check.scrub(idle, how)
        except (EOFError, OSError, GpupoolError, trio.TooSlowError) as error:
            check.say(False, "the check itself", repr(error))
        print(f"note  telemetry: {host.telemetry()[0][0]}")
        nursery.cancel_scope.cancel()
    return check.failures


def run(entry: Callable[[], int]) -> None:
    path = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    os.environ["PYTHONPATH"] = path
    sys.exit(entry())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--skip-scrub", action="store_true", help="leave out the slow checks")
    options = parser.parse_args()
    run(lambda: trio.run(functools.partial(main, skip_scrub=options.skip_scrub)))
