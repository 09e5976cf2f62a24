"""Programs that go to another server in mid-run, on real pools with emulated GPUs."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import LivePool, running

from gpupool.pool.errors import ExitCode

PROGRAM = """
import os, sys, time
import cupy as cp
cp.random.seed(7)
rng = cp.random.default_rng(8)
a = cp.arange(1 << 20, dtype=cp.float64).reshape(1024, 1024)
rows = a[3:9:2]
stream = cp.cuda.Stream()
for n in range(200):
    with stream:
        rows += 1
        a *= 1.001
    print(n, float(a.sum()), float(rng.random(1)[0]), float(cp.random.rand(1)[0]), flush=True)
    while n == 40 and len(sys.argv) > 1 and not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
"""
PYTHON = ("--", sys.executable, "-c")


def lease_of(pool: LivePool) -> dict[str, Any]:
    [lease] = [each for each in pool.view()["leases"] if each["state"] != "ending"]
    return lease


@pytest.mark.long
def test_a_program_prints_what_one_prints_that_stays(live_pool: LivePool, tmp_path: Path) -> None:
    stayed = live_pool.run("run", "-p", "0.5", "--server", "a", *PYTHON, PROGRAM)
    assert stayed.returncode == 0, stayed.stderr
    live_pool.wait_until(lambda view: not view["leases"])

    goes_on = tmp_path / "goes-on"
    words = ("run", "-p", "0.5", "--server", "a", *PYTHON, PROGRAM, str(goes_on))
    program = live_pool.spawn(*words)
    assert program.stdout is not None
    assert program.stderr is not None
    said = [program.stdout.readline() for _ in range(41)]
    lease = lease_of(live_pool)["name"]
    done = live_pool.run("move", lease, "--to", "b")
    assert done.returncode == 0, done.stderr
    assert f"lease {lease}: it is being moved from a to b\n" in done.stderr
    assert f"lease {lease} goes on with GPU 0 of b\n" in done.stderr
    live_pool.wait_until(
        lambda view: [s["name"] for s in view["servers"] if s["gpus"][0]["memory_granted"]] == ["b"]
    )
    goes_on.touch()
    said += program.stdout.readlines()
    errors = program.stderr.read()
    assert program.wait(60) == 0, errors
    assert "".join(said) == stayed.stdout
    assert f"lease {lease}: it goes on with GPU 0 of b\n" in errors
    live_pool.wait_until(lambda view: not view["leases"])
    assert live_pool.granted() == 0


SLEEPS = "import time; time.sleep(1000)"
BUSY = "it is being moved to another server already; try again when that is done"
STOPPED = """
import os, sys, time
import cupy as cp
from cupy._door import moving
step, folder = sys.argv[1:]
real = getattr(moving, step)
def reached(*args, **kwargs):
    with open(folder + '/pid', 'w') as file:
        file.write(str(os.getpid()))
    os.rename(folder + '/pid', folder + '/reached')
    while not os.path.exists(folder + '/goes-on'):
        time.sleep(0.01)
    return real(*args, **kwargs)
setattr(moving, step, reached)
a = cp.zeros(1000, 'i8')
print('begun', flush=True)
for n in range(1, 1_000_000):
    a += 1
    print(n, int(a.sum()) == 1000 * n, flush=True)
    time.sleep(0.01)
"""
STEPS = ("_greeted", "_prepare", "_transfer", "_take_over")
"""After the order; before the old worker connects; before the state goes; once the pool agreed."""


def wait_for(path: Path) -> None:
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.01)


def goes_on(program: "subprocess.Popen[str]", count: int = 300) -> bool:
    """Return whether a program computes on, and rightly; False when it has ended."""
    assert program.stdout is not None
    lines = [program.stdout.readline() for _ in range(count)]
    assert all(each.endswith(" True\n") for each in lines if each)
    return bool(lines[-1])


@pytest.mark.long
@pytest.mark.parametrize("killed", ["a", "b", "client", "program"])
@pytest.mark.parametrize("step", STEPS)
def test_what_is_killed_on_the_way(step: str, killed: str, tmp_path: Path) -> None:
    """The program goes on where the pool has its lease, and nowhere else."""
    with running() as pool:
        tmp_path.chmod(0o755)
        words = ("run", "-p", "0.5", "--server", "a", *PYTHON, STOPPED, step, str(tmp_path))
        program = pool.spawn(*words)
        assert program.stdout is not None
        assert program.stdout.readline() == "begun\n"
        lease = lease_of(pool)["name"]
        mover = pool.spawn("move", lease, "--to", "b")
        wait_for(tmp_path / "reached")
        if killed == "client":
            program.kill()
        elif killed == "program":
            os.kill(int((tmp_path / "reached").read_text()), signal.SIGKILL)
        else:
            pool.servers[killed].end(signal.SIGKILL)
        (tmp_path / "goes-on").touch()
        has_gone = step == "_take_over"
        if killed == ("a" if has_gone else "b"):
            assert goes_on(program)
            found = lease_of(pool)
            here = {server["id"]: server["name"] for server in pool.view()["servers"]}
            assert {here[part["server"]] for part in found["partitions"]} >= {
                "b" if has_gone else "a"
            }
            program.kill()
        elif killed in ("a", "b"):
            assert not goes_on(program, 10_000)
            assert program.wait(60) == ExitCode.RUN_FAILED, program.stderr
        mover.wait(60)
        pool.wait_until(lambda view: not [e for e in view["leases"] if e["state"] == "held"])


@pytest.mark.long
def test_a_held_lease_goes_while_nobody_uses_it(live_pool: LivePool) -> None:
    taken = live_pool.run("alloc", "-p", "0.5", "--server", "a")
    assert taken.returncode == 0, taken.stderr
    lease = taken.stdout.strip()
    done = live_pool.run("move", lease, "--to", "b")
    assert done.returncode == 0, done.stderr
    assert f"lease {lease} goes on with GPU 0 of b\n" in done.stderr
    source = "import cupy; print(int(cupy.arange(3).sum()), flush=True)"
    one = live_pool.run("run", "--lease", lease, *PYTHON, source)
    assert one.stdout == "3\n", one.stderr
    program = live_pool.spawn("run", "--lease", lease, *PYTHON, f"{source}; {SLEEPS}")
    assert program.stdout is not None
    assert program.stdout.readline() == "3\n"
    done = live_pool.run("move", lease, "--to", "a")
    assert done.returncode == ExitCode.NOT_NOW
    assert "its lease is held by gpupool alloc or a Python program, which does not" in done.stderr
    program.kill()
    assert live_pool.run("release", lease).returncode == 0


@pytest.mark.long
def test_what_stays_says_why(live_pool: LivePool) -> None:
    source = (
        "import cupyx.scipy.sparse as s, cupy as c; m = s.csr_matrix(c.eye(3)); print(1, flush=1)"
    )
    program = live_pool.spawn(
        "run", "-p", "0.5", "--server", "a", *PYTHON, f"{source}; import time; time.sleep(1000)"
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "1\n"
    lease = lease_of(live_pool)["name"]
    done = live_pool.run("move", lease, "--to", "b")
    assert done.returncode == ExitCode.NOT_NOW
    assert f"lease {lease} was not moved, and runs on with GPU 0 of a\n" in done.stderr
    assert "it has an object of type csr_matrix, which cannot be sent" in done.stderr
    drain = ("drain", "a", "--reason", "new fan", "--move")
    while BUSY in (said := live_pool.run(*drain).stderr):
        pass  # The server that it did not go to has not freed its part yet.
    assert "csr_matrix, which cannot be sent" in said
    assert live_pool.run("undrain", "a").returncode == 0
    program.kill()


@pytest.mark.long
def test_a_program_of_two_processes_stays(live_pool: LivePool) -> None:
    source = "import os, cupy, time; os.fork(); print(int(cupy.arange(3).sum()), flush=True)"
    words = ("run", "-p", "0.5", "--server", "a", *PYTHON, f"{source}; {SLEEPS}")
    program = live_pool.spawn(*words)
    assert program.stdout is not None
    assert [program.stdout.readline() for _ in range(2)] == ["3\n"] * 2
    lease = lease_of(live_pool)["name"]
    done = live_pool.run("move", lease, "--to", "b")
    assert done.returncode == ExitCode.NOT_NOW
    assert "it has 2 processes, and one alone can be moved" in done.stderr
    program.kill()


@pytest.mark.long
def test_a_drained_server_is_left_by_all_that_can_go(live_pool: LivePool) -> None:
    program = live_pool.spawn("run", "-p", "0.5", "--server", "a", *PYTHON, ENDLESS)
    assert goes_on(program, 10)
    lease = lease_of(live_pool)["name"]
    done = live_pool.run("drain", "a", "--reason", "new fan", "--move")
    assert done.returncode == 0, done.stderr
    assert f"lease {lease}: it is being moved from a to " in done.stderr
    assert f"lease {lease} goes on with GPU 0 of " in done.stderr
    assert goes_on(program)
    assert live_pool.run("undrain", "a").returncode == 0
    program.kill()


ENDLESS = """
import time
import cupy as cp
a = cp.zeros(1000, 'i8')
for n in range(1, 1_000_000):
    a += 1
    print(n, int(a.sum()) == 1000 * n, flush=True)
    time.sleep(0.01)
"""
