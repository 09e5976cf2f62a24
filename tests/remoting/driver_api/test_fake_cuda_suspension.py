"""The process that suspends others, on the driver without a GPU."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fake_cuda.build import build
from fake_cuda.control import Control, process_environment

from gpupool.remoting.host.suspension import checkpointer
from gpupool.remoting.host.suspension.checkpointer import CallProcess, Outcome

MIB = 1 << 20
PROGRAM = """
import ctypes, sys
cuda, word = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint()
context, pointer = ctypes.c_uint64(), ctypes.c_uint64()
assert not cuda.cuInit(0) and not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
assert not cuda.cuCtxSetCurrent(context)
assert not cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(sys.argv[1])))
assert not cuda.cuMemsetD32_v2(pointer, ctypes.c_uint(7), ctypes.c_size_t(1))
print("ready", flush=True)
for _line in sys.stdin:
    assert not cuda.cuMemcpyDtoH_v2(ctypes.byref(word), pointer, ctypes.c_size_t(4))
    print(word.value, flush=True)
"""


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Control]:
    with Control(tmp_path) as found:
        for name, value in found.environment(build(), memory=256 * MIB).items():
            monkeypatch.setenv(name, value)
        yield found


@contextmanager
def program(control: Control, size: int = MIB) -> Generator["subprocess.Popen[str]"]:
    """Run a program with some memory; it answers each line with its memory's content."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(size)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=process_environment({}),
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def answers(process: "subprocess.Popen[str]") -> bool:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline() == "7\n"


def test_calls_wait_and_another_gets_the_memory_meanwhile(control: Control) -> None:
    with program(control, 200 * MIB) as first:
        assert checkpointer.suspend([first.pid], 200 * MIB) == Outcome()
        assert control.memory_used() == 0
        told = threading.Event()
        thread = threading.Thread(target=lambda: answers(first) and told.set())
        thread.start()
        with program(control, 200 * MIB) as second:
            assert answers(second)
            assert "not enough memory" in checkpointer.resume([first.pid], 200 * MIB).problem
        assert not told.is_set()
        assert checkpointer.resume([first.pid], 200 * MIB) == Outcome()
        assert told.wait(10)
        thread.join()


def test_all_or_none_with_the_driver_in_the_way(control: Control) -> None:
    with program(control) as first, program(control) as second:
        pids = [first.pid, second.pid]
        control.set_fault("cuCheckpointProcessCheckpoint", 801, after=1, times=1)
        assert "cannot suspend a program" in checkpointer.suspend(pids, 0).problem
        assert control.states()[first.pid] == control.states()[second.pid] == 0
        control.pause()
        checkpointer_lock = checkpointer.LOCK_TIMEOUT_S
        try:
            checkpointer.LOCK_TIMEOUT_S = 0.05
            assert "did not come to rest" in checkpointer.suspend(pids, 0).problem
        finally:
            checkpointer.LOCK_TIMEOUT_S = checkpointer_lock
            control.pause(False)
        assert answers(first)
        assert answers(second)


def test_a_death_in_the_middle_ends_the_wait(control: Control) -> None:
    """Neither the process that calls nor one that is suspended keeps anybody waiting."""
    with program(control) as first, program(control) as second:
        control.set_fault("cuCheckpointProcessCheckpoint", 0, times=1, delay_us=60_000_000)
        killer = threading.Timer(0.3, os.kill, (first.pid, signal.SIGKILL))
        killer.start()
        began = time.monotonic()
        processes = {first.pid: first, second.pid: second}
        outcome = checkpointer.suspend(
            list(processes), 0, lambda: CallProcess(lambda pid: processes[pid].poll() is None)
        )
        killer.join()
        assert outcome.problem
        assert time.monotonic() - began < 10
        assert answers(second)
