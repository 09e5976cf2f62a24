"""Memory of a suspended worker on a disk: by a process with its native code, without a driver."""

import os
import random
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpupool.remoting.driver_api import build
from gpupool.remoting.host import host_memory
from gpupool.remoting.host.suspension import spilled_memory
from gpupool.remoting.host.suspension.spilled_memory import Area, SpilledMemory, SpillError

MIB = 1 << 20
SIZE = 24 * MIB

WORKER = """
import ctypes, hashlib, mmap, random, sys
from gpupool.remoting.driver_api.executor import spilled
spilled.serve(int(sys.argv[1]))
size = int(sys.argv[2])
print("ready", flush=True)
input()
held = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
held[:] = random.Random(7).randbytes(size)
print("has", flush=True)
for line in sys.stdin:
    if line.strip() == "look":
        print(hashlib.sha256(held).hexdigest(), flush=True)
"""


class Worker:
    """A process that gives memory back as its privileged helper says."""

    def __init__(self) -> None:
        build.ensure()
        self.line, theirs = socket.socketpair()
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(theirs.fileno()), str(SIZE)],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        theirs.close()
        assert self._said() == "ready"
        before = spilled_memory.anonymous(self.process.pid)
        assert self.ask("") == "has"
        after = spilled_memory.anonymous(self.process.pid)
        self.areas = spilled_memory.mapped_since(before, after)

    def _said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, word: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return self._said()

    def resident(self) -> int:
        return host_memory.resident(self.process.pid)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.line.close()


@contextmanager
def file_in(folder: Path) -> Generator[int]:
    descriptor = spilled_memory.open_file(folder)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Generator[Worker]:
    monkeypatch.setattr(spilled_memory, "AREA_MIN", SIZE)
    monkeypatch.setattr(spilled_memory, "MARGIN", MIB)
    monkeypatch.setattr(spilled_memory, "SYNC_EVERY", 8 * MIB)
    made = Worker()
    try:
        yield made
    finally:
        made.end()


def test_memory_goes_to_the_disk_and_comes_back(worker: Worker, tmp_path: Path) -> None:
    digest, had = worker.ask("look"), worker.resident()
    with file_in(tmp_path) as file:
        memory = SpilledMemory(worker.process.pid, worker.line, file, 100)
        memory.save(worker.areas)
        assert worker.resident() > had - MIB
        memory.drop(worker.areas)
        assert memory.size == sum(area.size for area in worker.areas) >= SIZE - 3 * MIB
        assert worker.resident() < had - memory.size + MIB
        written = os.pread(file, memory.end, 0)
        assert memory.size < len(written) - 100 < memory.size * 1.01
        piece = random.Random(7).randbytes(SIZE)[5 * MIB : 5 * MIB + 64]
        assert not os.listdir(tmp_path)
        assert piece not in written
        memory.bring_back()
        assert memory.size == 0
        memory.close()
    assert worker.ask("look") == digest


def test_what_uses_memory_that_is_on_the_disk_fails(worker: Worker, tmp_path: Path) -> None:
    with file_in(tmp_path) as file:
        memory = SpilledMemory(worker.process.pid, worker.line, file, 0)
        memory.save(worker.areas)
        memory.drop(worker.areas)
        assert not worker.ask("look")
        assert worker.process.wait() < 0
        with pytest.raises(SpillError):
            memory.bring_back()
        memory.close()


def test_a_disk_that_changes_it_is_noticed(worker: Worker, tmp_path: Path) -> None:
    with file_in(tmp_path) as file:
        memory = SpilledMemory(worker.process.pid, worker.line, file, 0)
        memory.save(worker.areas)
        memory.drop(worker.areas)
        os.pwrite(file, b"x", 9 * MIB)
        with pytest.raises(SpillError, match="damaged"):
            memory.bring_back()
        memory.close()


def test_a_full_disk_costs_nothing(worker: Worker) -> None:
    digest = worker.ask("look")
    with open("/dev/full", "rb+") as file:
        memory = SpilledMemory(worker.process.pid, worker.line, file.fileno(), 0)
        with pytest.raises(SpillError, match="No space left"):
            memory.save(worker.areas)
        memory.bring_back()
        memory.close()
    assert worker.ask("look") == digest


def test_a_worker_that_keeps_its_memory_or_makes_no_sense(worker: Worker, tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with file_in(tmp_path) as file, ours, theirs:
        memory = SpilledMemory(worker.process.pid, ours, file, 0)
        memory.save(worker.areas)
        # As one would answer that has given everything back.
        for number in range(1, len(worker.areas) + 1):
            theirs.sendall(number.to_bytes(8, sys.byteorder) + bytes(8))
        with pytest.raises(SpillError, match="did not give"):
            memory.drop(worker.areas)
        theirs.sendall(bytes(16))
        with pytest.raises(SpillError, match="no sense"):
            memory.drop(worker.areas)
        theirs.close()
        with pytest.raises(SpillError):
            memory.drop(worker.areas)
        memory.close()


def test_only_what_was_mapped_meanwhile_is_taken_and_not_its_ends() -> None:
    margin, least = spilled_memory.MARGIN, spilled_memory.AREA_MIN
    before = [Area(0, least), Area(9 * least, 10 * least)]
    after = [Area(0, 4 * least), Area(5 * least, 6 * least - 1), Area(8 * least, 20 * least)]
    assert spilled_memory.mapped_since(before, after) == [
        Area(least + margin, 4 * least - margin),
        Area(8 * least + margin, 9 * least - margin),
        Area(10 * least + margin, 20 * least - margin),
    ]
