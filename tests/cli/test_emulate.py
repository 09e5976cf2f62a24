"""``gpupool emulate`` and the plug-in of pytest: emulated GPUs without a pool."""

import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.page_blocks import ROOT

from gpupool.pool.errors import GpupoolError
from gpupool.remoting.devices.host_kernels.host_compiler import COMPILERS
from gpupool.remoting.program import emulation
from gpupool.remoting.worker import syscall_filter

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux"),
]

Run = Callable[..., subprocess.CompletedProcess[str]]
NEEDS_COMPILER = pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="no C++ compiler")
GPUPOOL = str(Path(sys.executable).parent / "gpupool")

PROGRAM = """
import os, subprocess, sys, cupy
print(int(cupy.arange(5).sum()), cupy.cuda.runtime.getDeviceCount(), flush=True)
child = "import cupy; print(cupy.cuda.runtime.getDeviceCount(), cupy.random.rand())"
for visible in ("0,1", "1"):
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": visible}
    subprocess.run([sys.executable, "-c", child], env=env, check=True)
try:
    os.wait()
except ChildProcessError:
    print("no child")
print(sys.stdin.read())
sys.exit(7)
"""

CRASH = """
import subprocess, sys, cupy
kept = cupy.arange(5)
child = '''
import cupy
source = 'extern "C" __global__ void far(float* x) { x[1L << 40] = 1; }'
try:
    cupy.RawKernel(source, "far")((1,), (1,), (cupy.ones(4, "f4"),))
except cupy.cuda.runtime.CUDARuntimeError as error:
    print(error)
'''
subprocess.run([sys.executable, "-c", child], check=True)
print(int(kept.sum()))
"""

RELIED_ON = """
import warnings
from cupy import *
import cupy, cupyx.scipy.ndimage as ndimage, numpy
testing.assert_array_equal(ndimage.rank_filter(cupy.arange(5), 1, size=3), [0, 1, 2, 3, 4])
cupy.ones(2).flags.writeable = False
try:
    cupy.empty(2, [("a", int), ("b", float)])
except TypeError:
    print("no list as a dtype")
x = cupy.ones(3)
for _ in range(2):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        cupy.polyfit(x, x, 2)
        ndimage.convolve(x, cupy.ones(3, complex), output=cupy.float32)
    print(*((each.category.__name__, each.filename, each.lineno) for each in found))
warnings.simplefilter("error")
try:
    cupy.polyfit(x, x, 2)
except cupy.exceptions.RankWarning as warning:
    print(warning)
"""
MEMORY = """
import subprocess, sys, cupy
kept = cupy.zeros(60 << 20, "u1")
child = '''
import cupy
try:
    cupy.zeros(60 << 20, "u1")
except cupy.cuda.memory.OutOfMemoryError:
    print("full")
'''
subprocess.run([sys.executable, "-c", child], check=True)
del kept
cupy.get_default_memory_pool().free_all_blocks()
subprocess.run([sys.executable, "-c", child + "else: print('room')"], check=True)
subprocess.run([sys.executable, "-c", child + "else: print('room')"], check=True)
"""

LIBRARY = {
    "pyproject.toml": "[tool.pytest.ini_options]\npythonpath = ['.']\n",
    "small.py": """
        import cupy
        import cupyx.scipy.sparse
        _SOURCE = 'extern "C" __global__ void scale(float* x, float by) { x[threadIdx.x] *= by; }'
        _SCALE = cupy.RawKernel(_SOURCE, "scale")
        def scaled(x, by):
            _SCALE((1,), (x.size,), (x, cupy.float32(by)))
            return x
        def spread(x):
            return cupy.sqrt((x * x).mean() - x.mean() ** 2)
        def trace(n):
            return cupyx.scipy.sparse.eye(n).diagonal().sum()
    """,
    "tests/test_small.py": """
        import os
        import cupy, pytest, small
        def test_elementwise():
            assert float(small.spread(cupy.arange(5.0))) == pytest.approx(2**0.5)
        def test_sparse():
            assert int(small.trace(4)) == 4
        def test_kernel():
            assert small.scaled(cupy.ones(4, "f4"), 3).tolist() == [3.0] * 4
        def test_strict():
            assert os.environ.get("GPUPOOL_STRICT") in (None, "1")
    """,
}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs a command in an empty folder of a user without any pool."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("GPUPOOL_", "XDG_", "PYTEST_"))}
    env |= {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"

    def command(*words: str, stdin: str = "", **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            cwd=tmp_path,
            env=env | more,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    return command


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """Return the folder of a small library on CuPy, with its tests."""
    for name, text in LIBRARY.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return tmp_path


def servers(folder: Path) -> list[int]:
    """Return the processes that were started for programs with this folder of temporary files."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue  # it has ended
        if b"emulated_sessions" in words and os.fsencode(folder) in words:
            found.append(int(path.parent.name))
    return found


def nothing_is_left(folder: Path) -> bool:
    """Wait until the servers of a program have ended; say whether they left no file."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if not servers(folder) and not list(folder.glob("gpupool-run-*")):
            return True
        time.sleep(0.02)
    return False


def test_a_program_and_its_children_have_gpus_and_nothing_is_left(run: Run, tmp_path: Path) -> None:
    done = run(GPUPOOL, "emulate", "-n", "2", "--", "python", "-c", PROGRAM, stdin="its input")
    first, two, one, *rest = done.stdout.splitlines()
    assert (done.returncode, first, rest, done.stderr) == (7, "10 2", ["no child", "its input"], "")
    assert (two[:4], one[:4]) == ("2 0.", "1 0.")
    assert two[2:] != one[2:], "two sessions have the same random numbers"
    assert nothing_is_left(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] in ([], [".cache"])


def test_a_program_ends_by_its_signal(run: Run) -> None:
    assert run(GPUPOOL, "emulate", "--", "sh", "-c", "kill -TERM $$").returncode == -signal.SIGTERM


def test_kill_9_of_the_command_leaves_nothing(run: Run, tmp_path: Path) -> None:
    script = "import cupy, os, signal; cupy.ones(3).sum(); os.kill(os.getpid(), signal.SIGKILL)"
    assert run(GPUPOOL, "emulate", "--", "python", "-c", script).returncode == -signal.SIGKILL
    assert nothing_is_left(tmp_path)


def test_libraries_rely_on_how_cupy_refuses_and_warns(run: Run) -> None:
    said = run(GPUPOOL, "emulate", "--", "python", "-c", RELIED_ON).stdout.splitlines()
    warned = "('RankWarning', '<string>', 15) ('UserWarning', '<string>', 16)"
    assert said == ["no list as a dtype", warned, warned, "Polyfit may be poorly conditioned"]


def test_all_processes_share_the_memory_of_a_gpu(run: Run) -> None:
    done = run(GPUPOOL, "emulate", "-m", "100M", "--", "python", "-c", MEMORY)
    assert done.stdout.split() == ["full", "room", "room"], done.stderr


@NEEDS_COMPILER
def test_a_kernel_that_crashes_ends_its_own_session_alone(run: Run) -> None:
    done = run(GPUPOOL, "emulate", "--", "python", "-c", CRASH)
    assert "cudaErrorDevicesUnavailable" in done.stdout
    assert done.stdout.endswith("\n10\n")
    assert "gpupool: the worker of this process's GPUs has ended by SIGSEGV" in done.stderr


def test_no_compiler_and_no_home_are_no_riddles(run: Run, tmp_path: Path) -> None:
    script = "import cupy; cupy.RawKernel('void f() {}', 'f')((1,), (1,), ())"
    words = ("emulate", "--", sys.executable, "-c", script)
    done = run(GPUPOOL, *words, HOME="/dev/null", PATH=str(tmp_path))
    error = done.stderr.splitlines()[-1]
    assert "apt install g++" in error


def test_a_worker_is_confined(run: Run) -> None:
    script = (
        "import cupy, os, subprocess; cupy.ones(3).sum()\n"
        "folder = os.path.dirname(os.environ['GPUPOOL_AGENT'])\n"
        "subprocess.run(f'for each in $(pgrep -f {folder}); do grep -H -e NoNewPrivs -e Seccomp:"
        " /proc/$each/status; done', shell=True)"
    )
    said = run(GPUPOOL, "emulate", "--", "python", "-c", script).stdout
    assert len(re.findall("NoNewPrivs:\t1", said)) == 2, said  # the server and its worker
    if syscall_filter.available():
        assert len(re.findall("Seccomp:\t2", said)) == 1, said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_second_user_cannot_connect(run: Run) -> None:
    other = "import os, socket; os.setuid(65534); socket.socket(1, 1).connect(os.environ['AGENT'])"
    script = (
        "import os, subprocess, sys\n"
        f"subprocess.run([sys.executable, '-c', {other!r}],"
        " env={'AGENT': os.environ['GPUPOOL_AGENT']})"
    )
    said = run(GPUPOOL, "emulate", "--", "python", "-c", script, TMPDIR="/tmp").stderr
    assert "PermissionError" in said


def test_packages_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulation, "PACKAGES", {"no_numpy": "NumPy", "no_scipy": "SciPy"})
    with pytest.raises(GpupoolError, match="has no NumPy and no SciPy") as found:
        emulation.check_packages()
    assert found.value.hint.endswith("-m pip install 'gpupool[emulate]'")


@NEEDS_COMPILER
def test_the_plug_in_serves_one_test_session(run: Run, library: Path) -> None:
    words = ("pytest", "-q", "-p", "gpupool.pytest_plugin")
    done = run(*words)
    assert "4 passed" in done.stdout, done.stdout
    done = run(*words, "-n", "2", "--gpupool-strict", "--gpupool-gpus=2", "--gpupool-memory=1G")
    assert "4 passed" in done.stdout, done.stdout
    assert nothing_is_left(library)
    done = run(GPUPOOL, "emulate", "--strict", "--", *words, "-n", "2")
    assert "4 passed" in done.stdout, done.stdout


@NEEDS_COMPILER
def test_a_conftest_may_name_the_plug_in(run: Run, library: Path) -> None:
    conftest = library / "conftest.py"
    conftest.write_text('pytest_plugins = ["gpupool.pytest_plugin"]\n')
    assert "4 passed" in run("pytest", "-q").stdout
    conftest.write_text("import sys\nsys.modules['cupy'] = sys\n" + conftest.read_text())
    done = run("pytest", "-q")
    assert (done.returncode, "name the plug-in by -p" in done.stderr) == (4, True)


def test_the_plug_in_says_what_is_wrong_and_changes_nothing_unasked(
    run: Run, library: Path
) -> None:
    done = run("pytest", "-q", "-p", "gpupool.pytest_plugin", "--gpupool-memory=4")
    assert (done.returncode, "--gpupool-memory: '4' is not a size" in done.stderr) == (4, True)
    assert "No module named 'cupy'" in run("pytest", "-q").stdout
    del library


@NEEDS_COMPILER
def test_the_workflow_of_the_page_runs_a_library(run: Run, library: Path) -> None:
    page = (ROOT / "docs" / "emulate.md").read_text(encoding="utf-8")
    [workflow] = re.findall(r"(?ms)^```yaml\n(.*?)^```$", page)
    commands = re.findall(r"^ *- run: (.*)$", workflow, re.MULTILINE)
    installs = [each for each in commands if "pip install" in each]
    tests = [each for each in commands if each not in installs]
    assert installs
    assert tests
    for each in tests:
        done = run("sh", "-ec", each)
        assert "4 passed" in done.stdout, f"{each}\n{done.stdout}{done.stderr}"
    assert ".cache/gpupool" in workflow
    assert list((library / ".cache" / "gpupool" / "kernels").glob("*.so"))
