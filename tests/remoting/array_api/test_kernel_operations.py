"""A hostile client's calls of kernels: any arguments give an answer or an error.

The compiler stands still here: what it is given runs in a worker that may do nothing else.
"""

import contextlib
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import door_cases
import numpy as np
import pytest
from door_cases import refused
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.properties import examples

from gpupool.remoting.devices import sources
from gpupool.remoting.devices.base import DeviceMemoryError, UnsupportedError
from gpupool.remoting.devices.cuda_kernels import kernel_operations
from gpupool.remoting.devices.emulated import EmulatedBackend
from gpupool.remoting.devices.host_kernels import host_compiler, kernel_source, typed_parameters
from gpupool.remoting.devices.host_kernels.kernel_errors import CompileException, CUDADriverError

EXPECTED = (
    *(ArithmeticError, AttributeError, LookupError, TypeError, ValueError, UnsupportedError),
    *(MemoryError, CompileException, CUDADriverError),
)
REDUCTION = ("T x", "T y", "x", "a", "y = a", "0", "k", None, None, "", ())
NAMES = [
    *("ElementwiseKernel", "ReductionKernel", "RawKernel", "RawModule", "module", "function"),
    *("launch", "launch_raw", "compile", "attributes", "global"),
]


@pytest.fixture
def backend() -> Iterator[EmulatedBackend]:
    host_compiler.refuse("this is a test")
    yield door_cases.backend()
    host_compiler.permit()


def element(backend: EmulatedBackend, body: str, inputs: str = "T x") -> Any:
    """Return an elementwise kernel of one output."""
    return backend.operations()["kernel.ElementwiseKernel"](inputs, "T y", body, "k")


WORDS = st.sampled_from(
    ["T x", "T x, raw T y", "T y", "raw", "x" * 99, "", "\0", "k", "float32 x", "datetime64 x",
     '#include "/etc/passwd"', "-std=c++17", "-I/etc", "i", ",", "T x,", "CIndexer _ind"]
)  # fmt: skip
NUMBERS = st.one_of(st.integers(-(1 << 70), 1 << 70), st.floats(), st.complex_numbers())
ARRAYS = st.sampled_from(
    [np.zeros(3), np.zeros((2, 3), "f"), np.zeros(0), np.array(1), np.zeros((4, 4))[::2, ::-1]]
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, WORDS, ARRAYS, st.binary(max_size=9)),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner),
    max_leaves=6,
)


@settings(
    deadline=None,
    max_examples=examples(40),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(name=st.sampled_from(NAMES), arguments=st.lists(VALUES, max_size=13), data=st.data())
def test_any_arguments_of_an_operation(
    backend: EmulatedBackend, name: str, arguments: list[Any], data: Any
) -> None:
    operations = backend.operations()
    kernels = [
        operations["kernel.ElementwiseKernel"]("T x", "T y", "", "k"),
        operations["kernel.ReductionKernel"](*REDUCTION),
        operations["kernel.RawKernel"]("", "k", [], False, False),
        operations["kernel.RawModule"]("", [], True, False, ["f<int>"]),
    ]  # fmt: skip
    if data.draw(st.booleans()):
        arguments = [data.draw(st.sampled_from(kernels)), *arguments]
    words = ("size", "block_size", "axis", "keepdims", "shared_mem", "options", "preamble")
    keywords = data.draw(st.dictionaries(st.sampled_from(words), VALUES, max_size=2))
    with contextlib.suppress(*EXPECTED):
        operations[f"kernel.{name}"](*arguments, **keywords)


@given(st.text(st.sampled_from("{};\"'()[]#\\\n <>_gs=*") | st.characters(), max_size=60))
def test_any_source_becomes_some_text(text: str) -> None:
    parts = [
        "__global__ void f(",
        "__shared__ ",
        'extern "C" {',
        "extern __shared__ int x[];",
        text,
    ]
    for source in (text, *(part.join([text] * 2) for part in parts)):
        names: list[str] = []
        try:
            made = kernel_source.plain(f'# 1 "kernel.cu"\n{source}', names)
        except CompileException:
            continue
        assert all(re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name) for name in names)
        assert made.count("void gpupool_entry_") >= len(names)


def test_where_nothing_can_be_compiled_the_error_says_why(
    backend: EmulatedBackend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    refuse, needs = UnsupportedError, partial(element(backend, "y = x"), np.zeros(3))
    refused((refuse, "are not compiled for this emulated GPU: this is a", needs))
    host_compiler.permit()
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        refused((refuse, r"install g\+\+ there", needs))
    monkeypatch.setattr(host_compiler, "LIBRARIES_MAX", 0)
    refused((refuse, "compiled kernels at most", partial(element(backend, "y = -x"), np.zeros(3))))


def test_a_result_that_no_partition_holds_is_not_made(backend: EmulatedBackend) -> None:
    kernel = element(backend, "y = x[0]", "raw T x")
    with pytest.raises(DeviceMemoryError):
        kernel(np.zeros(3), size=1 << 40)


COMPILER = """#!/bin/sh
case "$*" in *-E*) {first};; *) {second};; esac
"""


@pytest.mark.parametrize(
    ("first", "says", "wall_s"),
    [
        # A second of processor time.
        pytest.param("while :; do :; done", "CPU time|ended with", 30, marks=pytest.mark.slow),
        ("sleep 60 & sleep 60", "took more than", 0.3),
        ("head -c 400000000 /dev/zero > kernel.ii", "File size|ended with", 30),
        ("echo first; head -c 200000 /dev/zero | tr '\\\\0' x; exit 1", "first", 30),
    ],
)
def test_a_compiler_is_bounded(
    backend: EmulatedBackend,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    first: str,
    says: str,
    wall_s: float,
) -> None:
    host_compiler.permit()
    monkeypatch.setattr(host_compiler, "CPU_S", 1)
    monkeypatch.setattr(host_compiler, "WALL_S", wall_s)
    program = tmp_path / "g++"
    program.write_text(COMPILER.format(first=first, second="exit 1"))
    program.chmod(0o755)
    monkeypatch.setattr(host_compiler.shutil, "which", lambda _name: str(program))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(host_compiler.tempfile, "tempdir", None)
    kernel = element(backend, first)
    with pytest.raises(CompileException, match=says) as error:
        kernel(np.zeros(3))
    assert len(str(error.value)) <= sources.LOG_MAX
    assert list(tmp_path.iterdir()) == [program]  # no folder is left


def test_dimensions_are_joined_where_all_arrays_allow_it() -> None:
    a, b = np.zeros((2, 3, 4)), np.broadcast_to(np.zeros(4), (2, 3, 4))
    assert typed_parameters.collapse(a.shape, [a])[0] == (24,)
    assert typed_parameters.collapse(a.shape, [a, b])[0] == (6, 4)
    assert typed_parameters.collapse((2, 3, 2), [a[:, :, ::3]])[0] == (6, 2)
    assert typed_parameters.collapse((2, 2, 4), [a[:, ::2]])[0] == (2, 2, 4)
    assert typed_parameters.collapse((1, 1), [np.zeros((1, 1))])[0] == ()


class FakeCuPy:
    """The four classes of kernels: each returns its name and its arguments."""

    def __getattr__(self, name: str) -> Any:
        return lambda **given: (name, given)


def test_a_real_gpu_makes_kernels_of_checked_arguments_alone() -> None:
    table = kernel_operations(FakeCuPy())
    one, reduction = table["kernel.ElementwiseKernel"], table["kernel.ReductionKernel"]
    raw, module = table["kernel.RawKernel"], table["kernel.RawModule"]
    parts = ("T x", "T y", "y = x", "k")
    name, given = one(*parts, reduce_dims=False, options=["-DA=1"], loop_prep="int a;")
    assert (name, given["operation"]) == ("ElementwiseKernel", "y = x")
    assert given["options"] == ("-DA=1",)
    assert reduction(*REDUCTION)[1]["identity"] == "0"
    assert raw("", "k", [], True, False)[1]["translate_cucomplex"] is True
    assert module("", (), False, False, ["f<int>"])[1]["name_expressions"] == ["f<int>"]
    secret = '#include "/etc/passwd"'
    for wrong in (
        lambda: one(*parts, loop_prep=secret),
        lambda: one(*parts, options=["-I/etc"]),
        lambda: one(*parts[:3], b"k"),
        lambda: one(*parts, backend="nvcc"),
        lambda: one(*parts, True),
        lambda: reduction(*REDUCTION[:2], secret, *REDUCTION[3:]),
        lambda: raw("", "k", [], False, False, backend="nvcc"),
        lambda: raw("", "k", [], False, False, "nvcc"),
        lambda: raw(secret, "k", [], False, False),
        lambda: module("", [], False, False, [secret]),
        lambda: module("", [], False, False, None, path="/etc/passwd"),
    ):
        with pytest.raises((TypeError, ValueError, UnsupportedError)):
            wrong()
