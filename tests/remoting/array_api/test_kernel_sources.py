"""Kernel source and options from a client cannot make the compiler read the server's files."""

import pytest

from gpupool.remoting.devices.base import UnsupportedError
from gpupool.remoting.devices.sources import check_options, check_source

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
