"""Sources of kernels read no file of the server; a real GPU's log comes to the call that asks."""

import os
from typing import Any

import pytest

from gpupool.remoting.devices.base import UnsupportedError
from gpupool.remoting.devices.cuda_kernels import kernel_operations
from gpupool.remoting.devices.sources import LOG_MAX, check_options, check_source

READING = [
    *(f"{words} {name}" for words in ("#include", "  #  include", "%:include", "??=include")
      for name in ('"/etc/passwd"', "</etc/passwd>", "<../../etc/passwd>", '"a/../../b.h"')),
    *(f'{words} "/etc/passwd"' for words in ("#/* x */include", "#/*\n*/include", "#inc\\\nlude",
      "#include \\\n", "??=inc??/\nlude", "#embed", "// harmless \\\n/*\n#include", "/* #include")),
    "#define X </etc/passwd>\n#include X",
    '#include_next "x.h"',
    '#import "x.h"',
    "#if __has_include(</etc/passwd>)",
    'asm(".incbin \\"/etc/passwd\\"");',
]  # fmt: skip


@pytest.mark.parametrize("source", READING)
def test_source_that_reads_a_file_is_refused(source: str) -> None:
    with pytest.raises(UnsupportedError):
        check_source(f"int a;\n{source}\nint b;")


@pytest.mark.parametrize(
    "source",
    [
        "#include <cuda_fp16.h>\n#include <cupy/complex.cuh>\n#include <cooperative_groups.h>",
        '#include "cuda_runtime.h"\n#define N 3\n#pragma unroll\n#if N\n#endif',
        "y = x; // include the last one #1\nint embed = 3;",
        "",
    ],
)
def test_ordinary_source_passes(source: str) -> None:
    check_source(source, "T x")


OPTIONS = (
    '-I/etc --include-path=/ -include=/etc/passwd --pre-include=x -DX="/etc" -o '
    "--output-file=/tmp/x -Xptxas -time=/tmp/x --pch -ewp"
)


@pytest.mark.parametrize("option", [*OPTIONS.split(), "-DX=a b"])
def test_options_that_name_files_are_refused(option: str) -> None:
    with pytest.raises(UnsupportedError, match="is not allowed on a remote GPU"):
        check_options([option])


def test_ordinary_options_pass() -> None:
    options = ("-std=c++17", "-DN=32", "-DFLAG", "--use_fast_math", "-lineinfo", "-maxrregcount=32")
    assert check_options(list(options)) == options


def test_source_that_is_too_long_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="too long"):
        check_source("x" * (1 << 21))


IN_MEMORY = "CUPY_CACHE_IN_MEMORY"
WARNING = "kern.cu(3): warning: j was declared but never referenced"


class Kept:
    """A kernel of which an earlier session has left the compiled code on the disk."""

    def __init__(self, said: str = WARNING) -> None:
        self.said = said
        self.read = 0

    def compile(self, log_stream: Any = None) -> None:
        """Compile as CuPy does: with a kept kernel it reads that, and has no log to write."""
        if os.environ.get(IN_MEMORY) != "1":
            self.read += 1
        elif log_stream is not None:
            log_stream.write(self.said)


def compiled(*args: Any) -> str:
    """Return the answer of a real GPU's operation."""
    return kernel_operations(None)["kernel.compile"](*args)


@pytest.mark.parametrize("before", [None, "0"])
def test_the_log_comes_although_the_compiled_kernel_is_kept(
    monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    monkeypatch.delenv(IN_MEMORY, raising=False)
    if before is not None:
        monkeypatch.setenv(IN_MEMORY, before)
    kernel = Kept()
    assert compiled(kernel, True) == WARNING
    assert os.environ.get(IN_MEMORY) == before
    assert (compiled(kernel), kernel.read) == ("", 1)  # without a log the kept kernel is read


def test_a_long_log_is_cut_off() -> None:
    assert len(compiled(Kept("w" * (LOG_MAX + 7)), True)) < LOG_MAX + 100
    assert compiled(Kept("w" * (LOG_MAX + 7)), True).endswith(
        "(7 more characters of the log are left out)\n"
    )
