"""The CUDA door in rare situations: crowds of threads, ends in the middle of things."""

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fake_cuda.control import Control
from test_cuda_door import HERE, KERNELS, ROOT, compiled, in_one_process, in_python, right, run

from gpupool.remoting.driver_api import build
from gpupool.remoting.driver_api.executor.memory import cuda_arrays

IMAGE = str(KERNELS / "test_kernels.sm_90.cubin")
ROOMY = ("--memory", str(1 << 30))
OVERSPENDING = re.findall(r"^@case\ndef (\w+)", (HERE / "overspend.py").read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def corners(tmp_path_factory: pytest.TempPathFactory, library: Path) -> str:
    return str(compiled("corners", tmp_path_factory.mktemp("programs"), library))


@pytest.mark.parametrize(
    ("servers", "ms"), [("1", "500"), pytest.param("2", "500", marks=pytest.mark.long)]
)
def test_a_crowd_of_threads(servers: str, ms: str, library: Path, tmp_path: Path) -> None:
    """Each with streams, events and memory that come and go, on one server and on two."""
    program = compiled("crowd", tmp_path, library)
    with Control(tmp_path) as control:
        words = [str(program), IMAGE, servers, ms]
        right(run(library, control, words, *ROOMY, "--servers", servers))


@pytest.mark.parametrize(
    "count",
    [pytest.param(2000, marks=pytest.mark.long), pytest.param(100_000, marks=pytest.mark.slow)],
)
def test_a_threads_own_stream_ends_with_it(count: int, library: Path, tmp_path: Path) -> None:
    """Also when a destructor of the program's uses it again, and in a fork."""
    program = compiled("thread_streams", tmp_path, library)
    with Control(tmp_path) as control:
        right(run(library, control, [str(program), str(count)]))
        calls = control.calls()
    assert calls["cuStreamCreateWithPriority"] == count + 3  # one thread has had two
    assert calls["cuStreamDestroy_v2"] == count + 3


@pytest.mark.parametrize(
    "what",
    [
        pytest.param("sizes,large,early,fails", marks=pytest.mark.long),
        pytest.param("many", marks=pytest.mark.slow),  # 30 s in the fake driver
    ],
)
def test_what_is_seldom_done(what: str, corners: str, library: Path, tmp_path: Path) -> None:
    """Impossible sizes, large downloads, memory that is freed early, a failure meanwhile."""
    with Control(tmp_path) as control:
        right(run(library, control, [corners, what, IMAGE], *ROOMY))


def test_default_streams_of_threads_wait_for_no_other(library: Path, tmp_path: Path) -> None:
    program = compiled("own_streams", tmp_path, library)
    with Control(tmp_path) as control:
        right(run(library, control, [str(program), IMAGE]))


@pytest.mark.parametrize(
    "what",
    [
        "upload",
        *(pytest.param(each, marks=pytest.mark.long) for each in ("callback", "callback, lost")),
    ],
)
def test_what_stands_behind_a_failure(
    what: str, corners: str, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upload of more than one piece; a callback, called by the driver or not."""
    if what.endswith("lost"):
        monkeypatch.setenv("FAKE_CUDA_LOSES_CALLBACKS", "1")
    with Control(tmp_path) as control:
        right(run(library, control, [corners, what, IMAGE], *ROOMY))


@pytest.mark.slow
@pytest.mark.parametrize("what", ["signal"] * 3 + ["transfers"])
def test_a_program_ends_at_once(what: str, corners: str, library: Path, tmp_path: Path) -> None:
    """By a signal in the middle of a call, and while the server takes nothing any more."""
    timed = ["timeout", "-s", "KILL", "3", corners, what, IMAGE]
    with Control(tmp_path) as control:
        done = run(library, control, timed, *ROOMY)
    assert done.returncode == 0, done.stderr


@in_python
def test_a_library_that_is_closed_stays(corners: str, library: Path, tmp_path: Path) -> None:
    """Its threads run on, and forks call it."""
    code = "import _ctypes, ctypes, os, time; c = ctypes.CDLL('libcuda.so.1'); c.cuInit(0)"
    code += "; _ctypes.dlclose(c._handle); time.sleep(0.05); os.fork() and print('results right')"
    # From 3.12 on Python warns of a fork beside threads, and the library has some.
    program = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code]
    with Control(tmp_path) as control:
        right(run(library, control, program))


def test_an_installation_builds_the_same_library(library: Path) -> None:
    """setup.py cannot import how build.py links; programs may ask for either name."""
    text = (ROOT / "setup.py").read_text()
    assert [flag for flag in build.LINK if flag != "-shared" and f'"{flag}"' not in text] == []
    assert (library / "libcuda.so").exists()


# The others start a client process each, for the same books.
@pytest.mark.parametrize(
    "case",
    [*OVERSPENDING[:1], *(pytest.param(each, marks=pytest.mark.long) for each in OVERSPENDING[1:])],
)
def test_a_client_that_wants_more_than_its_partition(case: str, tmp_path: Path) -> None:
    """The books have all that the driver has, as long as it has it; and the server's is bounded."""
    done = in_one_process(tmp_path, str(HERE / "overspend.py"), case)
    assert done.returncode == 0, done.stderr


def test_faces_of_a_cube_count_at_each_level() -> None:
    """And rows and lines as they lie in tiles, unless there is one line alone."""
    cube = cuda_arrays.array_size(256, 256, 6, 4, levels=2, flags=cuda_arrays.CUBEMAP)
    assert cube == 6 * 4 * (256 * 256 + 128 * 128)
    volume = cuda_arrays.array_size(256, 256, 6, 4, levels=2, flags=0)
    assert volume == 4 * (6 * 256 * 256 + 3 * 128 * 128)
    assert cuda_arrays.array_size(1, 1000, 0, 1, levels=1, flags=0) == 64 * 1000
    assert cuda_arrays.array_size(1000, 0, 0, 1, levels=1, flags=0) == 1000


@pytest.mark.parametrize(
    "seeds", [pytest.param(("0", "60"), marks=pytest.mark.long), ("20175", "1")]
)
def test_records_that_no_library_sends(seeds: tuple[str, str], tmp_path: Path) -> None:
    """Whole and broken ones, with words of all kinds: calls fail, or the session ends, no more."""
    done = in_one_process(tmp_path, str(HERE / "hostile.py"), *seeds)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 500, done.stdout  # MiB of memory, and no other line
