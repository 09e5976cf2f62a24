"""What needs no round trip behind the door: it is the same as natively, and it is quick."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fake_cuda.control import Control
from golden import NAMES, Run, tapped
from test_cuda_door import HERE, KERNELS, compiled, right, run
from test_cuda_door_calls import natively

from gpupool.remoting.driver_api.executor.reader import FRAME_MAGIC

IMAGE = str(KERNELS / "test_kernels.sm_90.cubin")


ROUNDS = 20
"""Of times.c: ten on each of two streams."""


@pytest.mark.parametrize(
    "option",
    ["", *(pytest.param(one, marks=pytest.mark.slow) for one in ("--old", "--no-launcher"))],
)
def test_times_between_events_and_copies_ahead(option: str, library: Path, tmp_path: Path) -> None:
    """Also with a worker that does not know the records for it."""
    program = Run("times", "times", (IMAGE,), options=(option,) if option else ())
    (tmp_path / "native").mkdir()
    with Control(tmp_path / "native") as control:
        path = compiled("times", tmp_path / "native", library)
        assert natively(control, [str(path), IMAGE]) == "results right\n"
    sent = Counter(NAMES[one.op] for one in tapped(program, library, tmp_path / "door"))
    assert sent["QUERY_EVENT"] == sent["QUERY_STREAM"] == 0
    assert ROUNDS // 2 <= sent["SYNC_DEVICE"] <= ROUNDS  # of 203 waits
    if option == "--old":
        assert sent["END_EVENT"] == sent["AWAIT_STREAM"] == 0
        assert sent["SYNC_EVENT"] >= ROUNDS
    else:
        assert ROUNDS <= sent["END_EVENT"] <= ROUNDS + 6
        assert sent["AWAIT_STREAM"] >= 2 * ROUNDS
        assert sent["cuEventElapsedTime"] <= 8


def test_copies_in_a_row_are_waited_for_once(library: Path, tmp_path: Path) -> None:
    """Before something else comes, which may be in another stream."""
    path, rows, copies = tmp_path / "counts", 5, 20
    program = [str(compiled("copies_ahead", tmp_path, library)), IMAGE]
    with Control(tmp_path) as control:
        right(run(library, control, program, "--count", str(path)))
    counts = json.loads(path.read_text())
    assert counts["AWAIT_STREAM"] == rows * copies
    assert counts["settled"] == rows


@pytest.mark.parametrize("wish", ["", pytest.param("wait", marks=pytest.mark.slow)])
def test_functions_that_only_tell(wish: str, library: Path, tmp_path: Path) -> None:
    """Streams do not wait for XLA's functions, and nothing shows that they do not."""
    plugin = tmp_path / "xla_cuda_plugin.so"
    source = HERE / "programs" / "xla_cuda_plugin.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(plugin), str(source)], check=True)
    program = [str(compiled("tellers", tmp_path, library)), IMAGE, str(plugin)]
    (tmp_path / "native").mkdir()
    (tmp_path / "taps").mkdir()
    with Control(tmp_path / "native") as control:
        expected = natively(control, program)
    assert expected == "told 50, sum 50\nresults right\n"
    with Control(tmp_path) as control:
        more = {"GPUPOOL_HOST_FUNCTIONS": wish} if wish else None
        done = run(library, control, program, "--tap", str(tmp_path / "taps"), more=more)
        assert (done.stdout, done.stderr) == (expected, "")
    (tap,) = (tmp_path / "taps").iterdir()
    frames = tap.read_bytes().count(FRAME_MAGIC.to_bytes(4, "little"))
    # Each was sent in a frame of its own: 470. A machine with other things to do needs more.
    assert wish or frames < 300
