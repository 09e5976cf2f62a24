"""``gpupool analyze record``: readings of this machine's GPUs by ``Nvml``, into a recording.

The tables and the rules of the script (``portable_recorder``) are used, so that both make the same
files. A GPU that does not answer has no reading: a gap is a gap, and the others are read on.
"""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import trio

from gpupool.monitoring.analysis import portable_recorder
from gpupool.monitoring.analysis.portable_recorder import EVERY_S, Gpu, Owner, Reading, Store
from gpupool.monitoring.analysis.trace_form import TraceError
from gpupool.remoting.devices.nvml import Nvml, NvmlDevice, NvmlError, NvmlSample

ANSWER_S = 5.0
T = TypeVar("T")

Ask = Callable[[str], Awaitable[NvmlSample | None]]


def reading_of(uuid: str, sample: NvmlSample) -> Reading:
    """Return a sample as what is recorded.

    NVML's sample says which processes computed, not how much each did: it is known of one that did
    so alone, and of those that did not.
    """
    busy = None if sample.utilization is None else round(sample.utilization * 1000)
    processes: dict[int, tuple[int, int | None]] = {}
    for pid, memory in (sample.processes or {}).items():
        share: int | None = None
        if sample.computing is not None:
            alone = sample.computing == frozenset({pid})
            share = busy if alone else None if pid in sample.computing else 0
        processes[pid] = (memory, share)
    return Reading(uuid, busy, sample.memory_used, processes)


def open_store(path: Path, machine: str, every_s: int = EVERY_S) -> Store:
    """Open a recording, or begin one.

    Raises:
        TraceError: when it is another machine's, or no recording.
    """
    try:
        return Store(path, machine, every_s)
    except (ValueError, OSError, portable_recorder.sqlite3.Error) as error:
        raise TraceError(
            f"cannot record into {path}",
            why=str(error),
            hint="name another file with --out",
        ) from error


def open_nvml(nvml: Nvml) -> list[NvmlDevice]:
    """Return the devices to record.

    Raises:
        TraceError: when there is no driver, or no GPU.
    """
    try:
        nvml.open()
        devices = nvml.devices()
    except (NvmlError, ImportError) as error:
        raise TraceError(
            "there is nothing to record",
            why=str(error),
            hint="run it on a machine with an NVIDIA GPU and its driver",
        ) from error
    if not devices:
        raise TraceError("there is nothing to record", why="this machine has no NVIDIA GPU")
    return devices


def asking(nvml: Nvml) -> Ask:
    """Return how to read a GPU: in a thread, because a sick one may not answer for long."""
    limiter = trio.CapacityLimiter(1)

    async def ask(uuid: str) -> NvmlSample | None:
        with trio.move_on_after(ANSWER_S):
            try:
                return await trio.to_thread.run_sync(
                    nvml.sample, uuid, abandon_on_cancel=True, limiter=limiter
                )
            except NvmlError:
                return None
        return None

    return ask


async def record(
    store: Store,
    devices: Sequence[NvmlDevice],
    ask: Ask,
    owner: Callable[[int], Owner],
    now: Callable[[], float],
    for_s: float,
) -> int:
    """Record until the time is over; return the number of readings."""
    store.add_gpus([Gpu(each.uuid, each.name, each.memory_total) for each in devices])
    end = now() + for_s
    count = 0
    while now() < end:
        at = now()
        readings: list[Reading] = []
        for device in devices:
            sample = await ask(device.uuid)
            if sample is not None:
                readings.append(reading_of(device.uuid, sample))
        store.add(at, readings, owner)
        count += len(readings)
        await trio.sleep(store.every_s - now() % store.every_s)
    return count


def script() -> str:
    """Return the program that records where gpupool is not installed."""
    return Path(portable_recorder.__file__).read_text(encoding="utf-8")
