"""Programs that are suspended in mid-run on a real pool with emulated GPUs."""

import sys
from collections.abc import Callable
from typing import Any

import pytest

PROGRAM = """
import time
import cupy
a = cupy.arange(1000, dtype=cupy.float64)
for n in range(1, 1_000_000):
    a += 1
    print(n, int(a.sum()) - 499500, flush=True)
    time.sleep(0.01)
"""
HOLDER = "import cupy, time; print(int(cupy.arange(3).sum()), flush=True); time.sleep(1000)"


def state_of(pool: dict[str, Any], lease: str) -> str:
    return next((each["state"] for each in pool["leases"] if each["name"] == lease), "over")


def in_state(lease: str, state: str) -> Callable[[dict[str, Any]], bool]:
    return lambda pool: state_of(pool, lease) == state


@pytest.mark.long
def test_a_program_gives_way_comes_back_and_ends(live_pool: Any) -> None:
    """Its GPU is another's meanwhile; it goes on by itself once there is room; kill -9 ends it."""
    python = ["--", sys.executable, "-c"]
    program = live_pool.spawn("run", "-p", "1", "--server", "a", *python, PROGRAM)
    assert program.stdout.readline() == "1 1000\n"
    (lease,) = [each["name"] for each in live_pool.view()["leases"]]
    done = live_pool.run("suspend", lease, "--reason", "for a test")
    assert done.returncode == 0, done.stderr
    live_pool.wait_until(in_state(lease, "suspended"))
    assert live_pool.granted() == 0

    holder = live_pool.spawn("run", "-n", "2", "-p", "1", "--server", "a", *python, HOLDER)
    assert holder.stdout.readline() == "3\n"
    done = live_pool.run("resume", lease)
    assert done.returncode == 0, done.stderr
    assert state_of(live_pool.view(), lease) == "suspended"
    holder.kill()
    live_pool.wait_until(in_state(lease, "held"))
    last = 1
    while last < 200:
        line = program.stdout.readline()
        last += 1
        assert line == f"{last} {1000 * last}\n", live_pool.logs()

    assert live_pool.run("suspend", lease).returncode == 0
    live_pool.wait_until(in_state(lease, "suspended"))
    program.kill()
    live_pool.wait_until(in_state(lease, "over"))
    assert live_pool.granted() == 0
