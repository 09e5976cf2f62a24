"""Programs that are moved to other GPUs in mid-run, on a real pool with emulated GPUs."""

import subprocess
import sys
from typing import Any

import pytest

from gpupool.pool.errors import ExitCode

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
PYTHON = ("--", sys.executable, "-c")


def gpu_of(pool: Any, lease: str) -> tuple[str, int]:
    """Return the server and the number of a lease's only GPU."""
    view = pool.view()
    [part] = next(each["partitions"] for each in view["leases"] if each["name"] == lease)
    return next(
        (server["name"], gpu["index"])
        for server in view["servers"]
        for gpu in server["gpus"]
        if gpu["id"] == part["gpu"]
    )


def goes_on(program: "subprocess.Popen[str]", last: int, until: int) -> int:
    assert program.stdout is not None
    while last < until:
        last += 1
        assert program.stdout.readline() == f"{last} {1000 * last}\n"
    return last


@pytest.mark.long
def test_a_program_goes_on_with_another_gpu_and_loses_nothing(live_pool: Any) -> None:
    program = live_pool.spawn("run", "-p", "0.5", "--server", "a", *PYTHON, PROGRAM)
    last = goes_on(program, 0, 10)
    (lease,) = [each["name"] for each in live_pool.view()["leases"]]
    assert gpu_of(live_pool, lease) == ("a", 0)

    done = live_pool.run("move", lease, "--to", "1")
    assert done.returncode == 0, done.stderr
    assert f"lease {lease}: it is being moved from GPU 0 to GPU 1 of a" in done.stderr
    assert f"lease {lease} goes on with GPU 1 of a" in done.stderr
    assert gpu_of(live_pool, lease) == ("a", 1)
    last = goes_on(program, last, last + 200)

    # By its server's name, the pool chooses; the other GPU has room now.
    done = live_pool.run("move", lease, "--to", "a")
    assert done.returncode == 0, done.stderr
    assert gpu_of(live_pool, lease) == ("a", 0)
    last = goes_on(program, last, last + 100)

    done = live_pool.run("drain", "a", "--gpu", "0", "--reason", "hot", "--move")
    assert done.returncode == 0, done.stderr
    assert f"lease {lease} goes on with GPU 1 of a" in done.stderr
    assert gpu_of(live_pool, lease) == ("a", 1)
    last = goes_on(program, last, last + 100)

    done = live_pool.run("drain", "a", "--gpu", "1", "--reason", "hot too", "--move")
    assert done.returncode == 0, done.stderr
    text = f"gpupool: lease {lease} of root stays: no other GPU of a like GPU 1 has "
    assert text in done.stderr
    for options in (("--gpu", "0"), ("--gpu", "1")):
        assert live_pool.run("undrain", "a", *options).returncode == 0
    last = goes_on(program, last, last + 100)

    for words, code, said in (
        (("--to", "1"), ExitCode.USAGE, f"lease {lease} has these GPUs already"),
        (("--to", "7"), ExitCode.USAGE, "a has no GPU 7"),
        (("--to", "nowhere"), ExitCode.USAGE, "nowhere is no GPU of a, and no server of the pool"),
        (("--to", "1", "--to", "b"), ExitCode.USAGE, "b is a server, and is named alone: "),
        (("--to", "0", "--to", "1"), ExitCode.USAGE, f"lease {lease} has 1 GPU of a: name as many"),
        ((), ExitCode.USAGE, "missing option '--to'"),
    ):
        done = live_pool.run("move", lease, *words)
        assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    done = live_pool.run("move", "ffff", "--to", "1")
    assert (done.returncode, "the pool has no lease ffff" in done.stderr) == (1, True)
    assert [each["kind"] for each in audit(live_pool)].count("lease-moved") == 3

    # It is suspended with GPU 1, and goes on with GPU 0 and comes back.
    assert live_pool.run("suspend", lease).returncode == 0
    done = live_pool.run("move", lease, "--to", "0")
    assert done.returncode == 0, done.stderr
    assert f"lease {lease}: it is resumed, and moved from GPU 1 to GPU 0 of a\n" in done.stderr
    assert f"lease {lease} goes on with GPU 0 of a\n" in done.stderr
    last = goes_on(program, last, last + 100)
    assert live_pool.run("move", lease, "--to", "1").returncode == 0
    assert live_pool.run("suspend", lease).returncode == 0
    done = live_pool.run("move", lease, "--to", "1")
    assert f"lease {lease} has these GPUs already" in done.stderr
    done = live_pool.run("drain", "a", "--gpu", "1", "--reason", "hot", "--move")
    text = f"gpupool: lease {lease} of root stays suspended, and has nothing on a GPU"
    assert text in done.stderr
    assert live_pool.run("undrain", "a", "--gpu", "1").returncode == 0
    done = live_pool.run("suspend", lease)
    assert done.stderr == f"gpupool: lease {lease}: it is suspended already\n"
    assert live_pool.run("resume", lease).returncode == 0
    done = live_pool.run("resume", lease)
    assert done.stderr == f"gpupool: lease {lease}: it is not suspended\n"

    # GPU 0 has too little room while somebody else has most of it.
    other = live_pool.spawn("run", "-p", "0.8", "--server", "a", *PYTHON, HOLDER)
    assert other.stdout.readline() == "3\n"
    done = live_pool.run("move", lease, "--to", "0")
    assert done.returncode == ExitCode.NOT_NOW
    assert f"gpupool: lease {lease} was not moved, and runs on with GPU 1 of a\n" in done.stderr
    assert "\n  GPU 0 of a has no room: 4096 MiB are needed, and " in done.stderr
    assert '\n  hint: "gpupool gpus" shows ' in done.stderr
    other.kill()
    program.kill()


def audit(pool: Any) -> list[dict[str, Any]]:
    import json

    return json.loads(pool.run("audit", "--json").stdout)["acts"]
