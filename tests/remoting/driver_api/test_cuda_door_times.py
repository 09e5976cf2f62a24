"""Calls without a round trip behind the door: they are the same as natively, and quick."""

import ctypes
import json
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fake_cuda.control import Control
from golden import NAMES, NUMBERS, Run, tapped
from test_cuda_door import (
    KERNELS,
    ScriptedStream,
    calling,
    compiled,
    frame,
    in_one_process,
    record,
    right,
    run,
)
from test_cuda_door_calls import both, natively, xla_plugin

from gpupool.remoting.driver_api.executor.reader import FRAME_MAGIC
from gpupool.remoting.driver_api.schema import table

pytestmark = pytest.mark.long  # CI runs these with sanitizers, too

IMAGE = str(KERNELS / "test_kernels.sm_90.cubin")


KEPT_ROUNDS = Run("kept", "kept", (IMAGE, "rounds"), keeps=True)

ROUNDS = 20
"""Of times.c: ten on each of two streams."""


@pytest.mark.parametrize(
    "option",
    ["", *(pytest.param(one, marks=pytest.mark.slow) for one in ("--old", "--no-launcher"))],
)
def test_times_between_events_and_copies_ahead(option: str, library: Path, tmp_path: Path) -> None:
    """Also with a worker that does not know the records for it."""
    program = Run("times", "times", (IMAGE,), options=(option,) if option else ())
    path = compiled("times", tmp_path, library)
    assert natively(tmp_path, [str(path), IMAGE]) == "results right\n"
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


def test_memory_that_is_freed_and_allocated_again_needs_no_answer(
    library: Path, tmp_path: Path
) -> None:
    """Without it each of 800 allocations is waited for."""
    sent = Counter(NAMES[one.op] for one in tapped(KEPT_ROUNDS, library, tmp_path / "door"))
    assert sent["ALLOCATE"] <= 40 and sent["FREE"] <= sent["ALLOCATE"]
    assert 150 <= sent["AWAIT_DEVICE"] <= 200  # once for the four of a round


@pytest.mark.parametrize("option", ["", pytest.param("--old", marks=pytest.mark.slow)])
def test_nothing_shows_that_memory_is_kept(option: str, library: Path, tmp_path: Path) -> None:
    """Other streams find it idle, it counts as free, and it is free after a moment.

    With ``--old``, streams that wait for a later write are left out: there it hung for ever.
    """
    options, what = ((option,), "former") if option else ((), "all")
    program = Run("kept", "kept", (IMAGE, what), options=options, keeps=True)
    path = compiled("kept", tmp_path, library)
    assert natively(tmp_path, [str(path), IMAGE, what]) == "results right\n"
    sent = Counter(NAMES[one.op] for one in tapped(program, library, tmp_path / "door"))
    assert sent["ALLOCATE"] - 2 <= sent["FREE"] <= sent["ALLOCATE"]
    assert (sent["AWAIT_DEVICE"] > 0) == (option == "")


@pytest.mark.timeout(30)
@pytest.mark.parametrize("how", ["busy", "idle", "several", "kernel", "during"])
def test_no_free_keeps_what_a_stream_waits_for(
    how: str, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream may wait for a later call of the program, which a free under way would hold."""
    monkeypatch.setenv("FAKE_CUDA_LATE_FREES", "1")
    assert both("kept", library, tmp_path, IMAGE, "after", how) == "results right\n"


def test_a_wait_before_memory_is_kept_leaves_captures_and_failures_alone(tmp_path: Path) -> None:
    """Another thread of the program may begin a capture; the failure of a call is the program's."""
    done = in_one_process(tmp_path, "-c", calling("test_cuda_door_times", "serve_capture"))
    expected = "hello 0, waited 0, meanwhile 600, captured 0, failed 600 400\n"
    assert (done.returncode, done.stdout) == (0, expected), done.stderr


def serve_capture() -> None:
    """Wait, and again during a capture, which then ends; runs in a process with the fake driver."""
    from loopback import CountingBudget

    from gpupool.remoting.devices.base import DeviceSpec
    from gpupool.remoting.driver_api.executor.serve import ANSWER, serve

    ctypes.CDLL("libcuda.so.1").cuInit(0)
    stream, graph = 7, 9
    data = frame(
        record("HELLO", 1, table.PROTOCOL, 13000, flags=1)
        + record(NUMBERS["cuStreamCreate"], stream, 1)
        + record("AWAIT_DEVICE", 2, flags=1)
        + record("BEGIN_CAPTURE", stream, 2, graph)
        + record("AWAIT_DEVICE", 3, flags=1)
        + record("END_CAPTURE", 4, stream, graph, flags=1)
        + record("WAIT_EVENT", stream, 8, 0)
        + record("AWAIT_DEVICE", 5, flags=1)
        + record("SYNC_STREAM", 6, stream, flags=1)
    )
    spec = DeviceSpec(0, "GPU-0", "GPU", 1 << 26, emulated=False, ordinal=0)
    script = ScriptedStream(data)
    serve(script, [spec], CountingBudget(1 << 26), lambda _: None)
    found, sent = dict[int, int](), bytes(script.sent)
    while sent:
        _, status, request, size, _, bulk = ANSWER.unpack_from(sent)
        found[request] = status
        sent = sent[ANSWER.size + size + bulk :]
    sys.stdout.write(
        f"hello {found[1]}, waited {found[2]}, meanwhile {found[3]}, captured {found[4]}, "
        f"failed {found[5]} {found[6]}\n"
    )


@pytest.mark.parametrize("wish", ["", pytest.param("wait", marks=pytest.mark.slow)])
def test_functions_that_only_tell(wish: str, library: Path, tmp_path: Path) -> None:
    """Streams do not wait for XLA's functions, and nothing shows that they do not."""
    plugin = xla_plugin(tmp_path)
    program = [str(compiled("tellers", tmp_path, library)), IMAGE, plugin]
    (tmp_path / "taps").mkdir()
    expected = natively(tmp_path, program)
    assert expected == "told 50, sum 50\nresults right\n"
    with Control(tmp_path) as control:
        more = {"GPUPOOL_HOST_FUNCTIONS": wish} if wish else None
        done = run(library, control, program, "--tap", str(tmp_path / "taps"), more=more)
        assert (done.stdout, done.stderr) == (expected, "")
    (tap,) = (tmp_path / "taps").iterdir()
    frames = tap.read_bytes().count(FRAME_MAGIC.to_bytes(4, "little"))
    # Each was sent in a frame of its own: 470. A machine with other things to do needs more.
    assert wish or frames < 300
