"""The first process of a PID namespace reaps for all, and its child is the server."""

import os
import shutil
import subprocess
import sys

import pytest

ALONE = ["unshare", "-rpf", "--mount-proc"]

PROGRAM = """
import os, signal
from pathlib import Path
from gpupool.remoting.privileges.first_process import leave_first_place

leave_first_place()
assert os.getpid() != 1
told, tell = os.pipe()
if os.fork() == 0:
    orphan = os.fork()
    if orphan:
        os.write(tell, b"%d\\n" % orphan)
    os._exit(0)
pid = int(os.read(told, 20))
os.wait()
while Path(f"/proc/{pid}").exists():
    os.sched_yield()
print("reaped", flush=True)
END
"""


def ran(end: str) -> "subprocess.CompletedProcess[str]":
    if shutil.which("unshare") is None or subprocess.run([*ALONE, "true"], check=False).returncode:
        pytest.skip("no PID namespace can be made here")
    command = [*ALONE, sys.executable, "-c", PROGRAM.replace("END", end)]
    return subprocess.run(command, text=True, capture_output=True, timeout=20, check=False)


def test_orphans_are_reaped_and_the_exit_code_is_the_childs() -> None:
    done = ran("os._exit(7)")
    assert (done.stdout, done.returncode) == ("reaped\n", 7), done.stderr


def test_signals_reach_the_child() -> None:
    wait = (
        "signal.signal(signal.SIGTERM, lambda *_: os._exit(8)); os.kill(1, signal.SIGTERM)\n"
        "while True: signal.pause()"
    )
    assert ran(wait).returncode == 8


def test_a_child_that_a_signal_ends_is_told_by_the_exit_code() -> None:
    assert ran("os.kill(os.getpid(), signal.SIGKILL)").returncode == 137


def test_it_does_nothing_elsewhere() -> None:
    from gpupool.remoting.privileges.first_process import leave_first_place

    before = os.getpid()
    leave_first_place()
    assert os.getpid() == before
