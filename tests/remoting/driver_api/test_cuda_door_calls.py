"""Programs that print the same behind the CUDA door as on the driver itself."""

import ctypes
import hashlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fake_cuda.build import build as build_driver
from fake_cuda.control import Control, process_environment
from test_cuda_door import HERE, compiled, in_python, run

from gpupool.remoting.driver_api import build
from gpupool.remoting.driver_api.schema.records import NUMBERS

IMAGE = Path(__file__).resolve().parent / "fake_cuda" / "kernels" / "test_kernels.sm_90.cubin"


def natively(folder: Path, program: list[str], devices: int = 1) -> str:
    """Return a program's output on the fake driver, without the door."""
    (folder / "native").mkdir()
    with Control(folder / "native") as control:
        values = process_environment(control.environment(build_driver(), devices=devices))
        done = subprocess.run(
            program, env=values, capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 0, done.stderr
    return done.stdout


def xla_plugin(folder: Path) -> str:
    """Return a library that has the name of XLA's."""
    plugin, source = str(folder / "xla_cuda_plugin.so"), HERE / "programs" / "xla_cuda_plugin.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", plugin, str(source)], check=True)
    return plugin


def both(name: str, library: Path, tmp_path: Path, *arguments: str, devices: int = 1) -> str:
    """Return a program's output, which is the same natively and behind the door."""
    program = [str(compiled(name, tmp_path, library)), *arguments]
    expected = natively(tmp_path, program, devices)
    with Control(tmp_path) as control:
        done = run(library, control, program, devices=devices)
        assert done.stdout == expected, done.stderr
        assert done.stderr == ""
        assert control.missing_calls() == 0
    return expected


def test_tensor_maps(library: Path, tmp_path: Path) -> None:
    """Of every rank: rank 1 has no strides, and the driver still wants an address for them."""
    printed = both("tensors", library, tmp_path)
    assert printed.count("tiled") == 5
    assert printed.endswith("refused 1 1\n")


def test_what_the_samples_of_cuda_do(library: Path, tmp_path: Path) -> None:
    """Contexts by parameters that ask for nothing, caches of kernels, captures to a given graph."""
    assert both("textbook", library, tmp_path, str(IMAGE)) == "1 node\nresults right\n"


NATIVELY = """\
no room for nodes: 1 1 1 1 1
what was given is there: 1
more when asked for: 1
no cluster: 1
attribute 14 unknown: 0
attribute 15 unknown: 1
attribute 20 unknown: 1
waits: 0 1 0
an empty file: 200
the legacy stream: 906 0
before: 401, on the other stream: 903, at the end: 901
a device beside itself: 101
results right
"""
"""As seen on an H200 in the tests of Lupine and of CuPy."""


def test_what_the_driver_refuses_at_once(library: Path, tmp_path: Path) -> None:
    program = compiled("refused", tmp_path, library)
    with Control(tmp_path) as control:
        done = run(library, control, [str(program), str(IMAGE), str(tmp_path)])
    assert done.stdout == NATIVELY, done.stderr


def test_pointers_streams_and_contexts(library: Path, tmp_path: Path) -> None:
    """The attributes of a pointer, the settings of a stream, and the end of a context."""
    printed = both("owners", library, tmp_path)
    assert "contexts kept memory: 0" in printed
    assert printed.endswith("results right\n")


# What the runtime asks for, cuBLASLt, cuFFT, and CUPTI, without which JAX does not start.
TABLES = [
    *("6bd5fb6c5bf4e74a8987d93912fd9df9", "a094798c2e742e7493f20800200c0a66"),
    *("42d85a8123f6cb478298f6e78a3aecdc", "c693336e1121df11a8c368f355d89593"),
    *("263e88607cd2614392f6bbd5006dfa7e", "d4082055bde6704b8d34ba123c66e1f2"),
    *("21318c60971432488ca641ff7324c8f2", "1734dc26800d47458726c0f1e7dd8bca"),
    *("6e163fbeb958444d835ce182aff1991e", "7cb63f9b9ca48e42a484beb66e6aed7f"),
]


@in_python
def test_the_tables_that_libraries_ask_for(library: Path) -> None:
    shim = ctypes.CDLL(str(library / build.LIBRARY))
    table = ctypes.c_void_p()
    for name in TABLES:
        status = shim.cuGetExportTable(ctypes.byref(table), bytes.fromhex(name))
        assert (status, bool(table)) == (0, True), name


def test_host_functions(library: Path, tmp_path: Path) -> None:
    """Between the operations before and behind them, in streams, graphs and mapped memory."""
    printed = both("hosts", library, tmp_path, str(IMAGE))
    assert printed.splitlines() == [
        *("in order 15 15", "in order 15 15", "across streams 42"),
        *("to an array 1004 11", "many 500 2500"),
        *("with other calls 20", "slow 4004", "callback 1, calls of CUDA 800, refused 1 1"),
        *("captured 4 8, callback 900", "pinned 7 8 8 7 0", "behind a host function 1001 1001"),
        "large graph 100 100200 2",
    ]


def test_failed_assertions_say_so_to_the_program(library: Path, tmp_path: Path) -> None:
    """On its standard error, between its text before the wait and the error that it gets."""
    image = IMAGE.with_name("assert_kernels.ptx")
    program = [str(compiled("asserts", tmp_path, library)), str(image)]
    with Control(tmp_path) as control:
        done = run(library, control, program)
    assert done.stdout == "results right\n"
    assert done.stderr.splitlines() == [
        *("waiting 1", "status 0", "waiting 0"),
        "assert.cu:7: void insist(int): block: [0,0,0], thread: [0,0,0] Assertion `n > 0` failed.",
        "status 710",
    ]


@pytest.mark.long
def test_calls_while_a_host_function_waits_for_them(library: Path, tmp_path: Path) -> None:
    """Those that the driver does not keep return; for the others the function ends in vain."""
    program = [str(compiled("ahead", tmp_path, library)), str(IMAGE), "20000", "100"]
    expected = natively(tmp_path, program)
    assert [line for line in expected.splitlines() if not line.endswith(" goes on")] == [
        *("module load kept", "module unload kept", "free kept", "unregister kept"),
        "results right",
    ]
    with Control(tmp_path) as control:
        done = run(library, control, program)
    assert done.stdout == expected.replace("free kept", "free goes on"), done.stderr
    assert done.stderr == ""


def test_values_and_contexts(library: Path, tmp_path: Path) -> None:
    """Streams that wait for values in memory, events of contexts, access between devices."""
    program = compiled("values", tmp_path, library)
    with Control(tmp_path) as control:
        done = run(library, control, [str(program)], devices=2)
        assert done.stdout == "results right\n", done.stderr
        assert done.stderr == ""
        assert control.missing_calls() == 0


def test_a_thread_without_a_context(library: Path, tmp_path: Path) -> None:
    program = compiled("contextless", tmp_path, library)
    with Control(tmp_path) as control:
        done = run(library, control, [str(program), str(IMAGE)])
        assert done.stdout == "results right\n", done.stderr
        assert done.stderr == ""


@pytest.mark.long
def test_an_image_travels_once(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next process of the user asks for it by its hash; an altered image is not used."""
    kept = tmp_path / "images"
    monkeypatch.setenv("GPUPOOL_IMAGES", str(kept))
    program = compiled("everything", tmp_path, library)

    def loads() -> set[str]:
        monkeypatch.setenv("GPUPOOL_VERBOSE", "2")
        with Control(tmp_path) as control:
            done = run(library, control, [str(program), str(IMAGE)])
        assert done.stdout == "results right\n", done.stderr
        names = {
            NUMBERS["LOAD_LIBRARY"]: "sent",
            NUMBERS["LOAD_MODULE"]: "sent",
            NUMBERS["LOAD_KNOWN"]: "known",
        }
        waits = re.findall(r"waited for the server (\d+) times: record (\d+) ", done.stderr)
        return {names[int(record)] for _, record in waits if int(record) in names}

    assert loads() == {"sent"}
    (image,) = kept.iterdir()
    assert image.name == hashlib.sha256(image.read_bytes()).hexdigest()
    assert loads() == {"known"}
    image.unlink()
    image.with_name("0" * 64).write_bytes(IMAGE.read_bytes())  # of the right size
    assert loads() == {"sent"}


def test_texture_references(library: Path, tmp_path: Path) -> None:
    """A launch reads the bindings from before it, despite other bindings while it waits."""
    printed = both("references", library, tmp_path, str(IMAGE.with_name("reference_kernels.ptx")))
    assert printed.splitlines() == [
        *("unbound 1", "line 5050", "line 338350", "line 5050", "line 348450"),
        *(
            "offset 40: 54400",
            "refused 1 1 0",
            "unbound again 1",
            "none 500 500",
            "painted 29529920",
        ),
        *("pitched 9585584, refused 1 1", "flags 1, not of it 400"),
        "8 4, modes 3 2 1, filters 1 1, -1.50 0.50 6.25, 8, 0.25 0.50 0.75 1.00, 3",
        *("no such 1 1", "not to be destroyed 1", "unloaded 400"),
    ]


def test_batches(library: Path, tmp_path: Path) -> None:
    """Copies between pointers, boxes of arrays, and hints about managed memory."""
    assert both("batches", library, tmp_path).splitlines() == [
        *("copied 45 3 3 186, 0 191 3", "refused 1 1 1 1 1", "boxes 2890 2891 2970 2909, 80 239"),
        *("refused 1 1 at 0 1 at 1 1 1", "refused 1 1 1 1"),
    ]


def test_old_launches(library: Path, tmp_path: Path) -> None:
    """As before CUDA 4; and of two devices together, and contexts that are counted."""
    assert both("legacy", library, tmp_path, str(IMAGE), devices=2).splitlines() == [
        *("no shape 1", "old 8.5 8.5 7.5 7.5", "refused 1 1 1 1 1", "together 1010103 1010103"),
        *("together 2020203 2020203", "refused 1 1 1", "attached 1, not current 201, gone 201"),
    ]


def test_questions_that_few_ask(library: Path, tmp_path: Path) -> None:
    """Of arrays and atomics, and decompression."""
    assert both("queries", library, tmp_path, devices=2).splitlines() == [
        *("plane 32 24, 1, 2, 0 10, no such 1, its own 400", "with it 400"),
        *("takes 12288 65536, refused 1 1 1 1 400", "atomics 1 2 16, refused 1 101 1"),
        *("written 100, 1 7", "refused 1 at 1, 1"),
    ]


def test_streams_of_another_device_than_the_current_one(library: Path, tmp_path: Path) -> None:
    """A copy by cuFFT from two GPUs failed so: the worker waits by events of the current device."""
    assert both("other_device", library, tmp_path, devices=2).splitlines() == [
        *("current 0: memory of device 1", "current 1: memory of device 0"),
    ]


def test_what_the_door_answers_by_itself(library: Path, tmp_path: Path) -> None:
    """Core dumps, notifications, atomics with the host: nothing of it reaches a server."""
    program = compiled("settings", tmp_path, library)
    with Control(tmp_path) as control:
        done = run(library, control, [str(program), str(IMAGE)])
        assert (done.stdout, done.stderr) == ("results right\n", "")


@pytest.mark.long
def test_green_contexts(library: Path, tmp_path: Path) -> None:
    """Work without a stream goes to the context's own."""
    assert both("green", library, tmp_path, str(IMAGE)).splitlines() == [
        "whole 1 132 8 8, 5 of 20, 3 of 32, left 36, 16 of 8",
        *("refused 1 1 914 101, most 128, left 4", "no default stream 1, has 32, others 1"),
        "blocking 1, current 32, 9000 9000",
        "again 15000, not by cuCtxDestroy 201, gone 201 201, memory stays 15000",
    ]
    (tmp_path / "again").mkdir()
    with Control(tmp_path / "again") as control:
        done = run(library, control, [str(tmp_path / "green"), str(IMAGE)])
        assert done.returncode == 0, done.stderr
        before, *inside, named = [launch.stream for launch in control.launches()]
    assert len(inside) == 3
    assert len({before, *inside, named}) == 3
