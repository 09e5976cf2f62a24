"""Steer and watch a fake driver in another process, through the control file that both map."""

import json
import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

# The layout of struct control in fake.h.
_MAGIC = 0x46434431
_HEAD = struct.Struct("<IIIIQQ")
_FAULT = struct.Struct("<IiIIII64s")
_PROCESS = struct.Struct("<iI16Q16iII")
_COUNTER = struct.Struct("<64sQ")
_FAULTS, _PROCESSES, _COUNTERS = 16, 64, 1024
_FAULTS_AT = _HEAD.size
_PROCESSES_AT = _FAULTS_AT + _FAULTS * _FAULT.size
_COUNTERS_AT = _PROCESSES_AT + _PROCESSES * _PROCESS.size
SIZE = _COUNTERS_AT + _COUNTERS * _COUNTER.size
CHECKPOINTED = 2  # of a process's state: its memory is on no device
_KINDS = {"return": 0, "sticky": 1, "later": 2}


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch, as FAKE_CUDA_RECORD holds it; `params` are packed as on the device."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    shared_bytes: int
    device: int
    stream: int
    pid: int
    params: bytes


class Control:
    """The control block of every fake driver that was started with `environment()`.

    All of it works while those processes run: pause their streams, set faults, read how often a
    function was called, which kernels were launched, and how much memory each process holds.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "fake-cuda-control"
        self.record = folder / "fake-cuda-launches"
        with self.path.open("a+b") as file:
            file.truncate(SIZE)
            self._map = mmap.mmap(file.fileno(), SIZE)
        self._map[0:8] = struct.pack("<II", _MAGIC, SIZE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._map.close()

    def environment(
        self, library: Path, *, devices: int = 1, memory: int | None = None
    ) -> dict[str, str]:
        """Give the variables that make a process load `library` (of build.py) as its driver."""
        values = {
            "LD_LIBRARY_PATH": str(library.parent),
            "FAKE_CUDA_CONTROL": str(self.path),
            "FAKE_CUDA_RECORD": str(self.record),
            "FAKE_CUDA_DEVICES": str(devices),
        }
        if memory is not None:
            values["FAKE_CUDA_MEMORY"] = str(memory)
        return values

    def pause(self, paused: bool = True) -> None:
        """Let streams begin no further work, or let them go on."""
        struct.pack_into("<I", self._map, 8, int(paused))

    def set_fault(
        self,
        function: str,
        error: int,
        *,
        after: int = 0,
        times: int = 0,
        kind: str = "return",
        delay_us: int = 0,
    ) -> None:
        """Make a function fail: `after` calls that pass, then `times` that fail (0: all).

        `function` is a symbol, or its base name for all its versions. `kind` is "return" (just the
        error), "sticky" (the context is broken from then on), or "later" (the call succeeds, and
        its work fails on the stream, which breaks the context). Error 0 with `delay_us` only slows.
        """
        for index in range(_FAULTS):
            at = _FAULTS_AT + index * _FAULT.size
            if struct.unpack_from("<I", self._map, at)[0]:
                continue
            name = function.encode("ascii")
            _FAULT.pack_into(self._map, at, 0, error, after, times, _KINDS[kind], delay_us, name)
            # Last, so that no process acts on half a fault.
            struct.pack_into("<I", self._map, at, 1)
            count: int = struct.unpack_from("<I", self._map, 12)[0]
            struct.pack_into("<I", self._map, 12, count + 1)
            return
        raise RuntimeError("all fault slots of the fake driver are taken")

    def clear_faults(self) -> None:
        for index in range(_FAULTS):
            struct.pack_into("<I", self._map, _FAULTS_AT + index * _FAULT.size, 0)

    def calls(self) -> dict[str, int]:
        """Give how often each exported function was called, in all processes together."""
        found: dict[str, int] = {}
        for index in range(_COUNTERS):
            name, count = _COUNTER.unpack_from(self._map, _COUNTERS_AT + index * _COUNTER.size)
            if not name.rstrip(b"\0"):
                break
            found[name.rstrip(b"\0").decode("ascii")] = count
        return found

    def missing_calls(self) -> int:
        """Give how many calls reached a function that the fake does not implement."""
        missing: int = struct.unpack_from("<Q", self._map, 24)[0]
        return missing

    def memory_used(self, device: int = 0) -> int:
        """Give the bytes in use on a device, over all live processes, as a GPU's NVML would."""
        total = 0
        for index in range(_PROCESSES):
            at = _PROCESSES_AT + index * _PROCESS.size
            pid, state, *used = _PROCESS.unpack_from(self._map, at)
            if pid != 0 and state != CHECKPOINTED and Path(f"/proc/{pid}").exists():
                total += used[device]
        return total

    def states(self) -> dict[int, int]:
        """Return the ``cuCheckpointProcessGetState`` state of each live process."""
        rows = [
            _PROCESS.unpack_from(self._map, _PROCESSES_AT + index * _PROCESS.size)
            for index in range(_PROCESSES)
        ]
        return {pid: state for pid, state, *_ in rows if pid and Path(f"/proc/{pid}").exists()}

    def launches(self) -> list[Launch]:
        if not self.record.exists():
            return []
        lines = self.record.read_text(encoding="ascii").splitlines()
        return [_launch(json.loads(line)) for line in lines]


def _launch(row: dict[str, Any]) -> Launch:
    return Launch(
        kernel=row["kernel"],
        grid=tuple(row["grid"]),
        block=tuple(row["block"]),
        cluster=tuple(row["cluster"]),
        shared_bytes=row["shared_bytes"],
        device=row["device"],
        stream=row["stream"],
        pid=row["pid"],
        params=bytes.fromhex(row["params"]),
    )


def process_environment(values: dict[str, str]) -> dict[str, str]:
    """Give this process's environment with `values` over it, for a child process."""
    return {**os.environ, **values}
