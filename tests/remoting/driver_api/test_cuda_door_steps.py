"""The cost of a program's step behind the door: round trips, and records that Python executes."""

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fake_cuda.control import Control
from test_cuda_door import KERNELS, compiled, right, run
from test_cuda_door_calls import natively, xla_plugin

pytestmark = pytest.mark.long  # CI runs these with sanitizers, too

IMAGE = str(KERNELS / "test_kernels.sm_90.cubin")
STEPS = 50


def counted(library: Path, folder: Path, *program: str) -> Counter[str]:
    """Return counts of the worker's operations in Python for a program with right results."""
    (folder / "door").mkdir()
    path = folder / "counts.json"
    with Control(folder / "door") as control:
        right(run(library, control, list(program), "--count", str(path)))
        assert control.missing_calls() == 0
    return Counter(json.loads(path.read_text()))


@pytest.mark.parametrize("kind", ["fed", pytest.param("free", marks=pytest.mark.slow)])
def test_steps_like_those_of_jax(kind: str, library: Path, tmp_path: Path) -> None:
    """Graphs and functions that only tell go to the driver without Python between them.

    Before, a free step had 14 records in Python, and a fed one 17.
    """
    plugin = xla_plugin(tmp_path)
    words = [str(compiled("steps", tmp_path, library)), IMAGE, plugin, str(STEPS), kind]
    assert natively(tmp_path, words) == "results right\n"
    counts = counted(library, tmp_path, *words)
    assert counts["GRAPH_SET"] <= 12  # the first of each node
    assert counts["GRAPH_LAUNCH"] == 0
    assert counts["HOST_CALL"] == 1
    assert counts["DOWNLOAD"] <= 1  # which had the memory for the others made


def test_waits_and_small_downloads(library: Path, tmp_path: Path) -> None:
    """Short work is waited for without Python, and small downloads go out with the answer.

    Before, Python executed all of these.
    """
    words = [str(compiled("items", tmp_path, library)), IMAGE]
    assert natively(tmp_path, words) == "results right\n"
    counts = counted(library, tmp_path, *words)
    assert counts["DOWNLOAD"] <= 120  # what is too large, and what is behind it; of 353
    # A machine that has other things to do may take longer than is waited.
    waits = ("SYNC_STREAM", "SYNC_DEVICE", "SYNC_EVENT", "END_EVENT")
    assert sum(counts[what] for what in waits) <= 155


def test_host_functions_in_a_row(library: Path, tmp_path: Path) -> None:
    """They have one turn, where nothing lies between them: 70 turns, and 1,570 before."""
    words = [str(compiled("rows", tmp_path, library)), IMAGE]
    assert natively(tmp_path, words) == "results right\n"
    counts = counted(library, tmp_path, *words)
    # Some come when the one before them has run already.
    assert counts["HOST_DONE"] <= 500
    assert counts["HOST_CALL"] == counts["HOST_DONE"]
