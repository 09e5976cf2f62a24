"""How the native libraries are linked: hardening against exploits of faults."""

import ast
import os
import re
import struct
import subprocess
import zipfile
from pathlib import Path

import pytest

from gpupool.remoting.driver_api import build

PT_DYNAMIC, PT_GNU_STACK, PT_GNU_RELRO = 2, 0x6474E551, 0x6474E552
DT_FLAGS, DT_FLAGS_1, DT_TEXTREL, DT_RPATH, DT_RUNPATH = 30, 0x6FFFFFFB, 22, 15, 29
DF_BIND_NOW, DF_TEXTREL, DF_1_NOW = 8, 4, 1
PF_X, PF_W = 1, 2
ET_DYN = 3

LIBRARIES = (build.LIBRARY, build.NVML, build.LAUNCHER, build.NCCL, *build.ABSENT)
GUARDED = (build.LIBRARY, build.NVML, build.LAUNCHER, build.NCCL)
"""The libraries with functions that have arrays."""


def weaknesses(data: bytes, *, guarded: bool = True) -> set[str]:
    """Return the missing hardening of a 64-bit ELF library; ``guarded``: it has array functions."""
    assert data[:5] == b"\x7fELF\x02"
    kind = struct.unpack_from("<H", data, 16)[0]
    table, size, count = (
        struct.unpack_from("<Q", data, 32)[0],
        *struct.unpack_from("<HH", data, 54),
    )
    headers = [struct.unpack_from("<IIQQQQ", data, table + at * size) for at in range(count)]
    flags = {head[0]: head[1] for head in headers}
    tags: dict[int, int] = {}
    for head in headers:
        if head[0] == PT_DYNAMIC:
            for at in range(head[2], head[2] + head[5], 16):
                tag, value = struct.unpack_from("<QQ", data, at)
                tags[tag] = tags.get(tag, 0) | value
    found: set[str] = set()
    if kind != ET_DYN:
        found.add("position-independent")
    if not (tags.get(DT_FLAGS, 0) & DF_BIND_NOW or tags.get(DT_FLAGS_1, 0) & DF_1_NOW):
        found.add("BIND_NOW")
    if PT_GNU_RELRO not in flags:
        found.add("RELRO")
    if flags.get(PT_GNU_STACK, PF_X) & PF_X:
        found.add("no executable stack")
    if any(head[1] & PF_X and head[1] & PF_W for head in headers):
        found.add("nothing written and executed")
    if DT_TEXTREL in tags or tags.get(DT_FLAGS, 0) & DF_TEXTREL:
        found.add("no relocations of code")
    if DT_RPATH in tags or DT_RUNPATH in tags:
        found.add("no paths of libraries")
    if guarded and b"\0__stack_chk_fail\0" not in data:
        found.add("stack protector")
    return found


@pytest.mark.parametrize("name", LIBRARIES)
def test_the_libraries_are_hardened(library: Path, name: str) -> None:
    data = (library / name).read_bytes()
    assert weaknesses(data, guarded=name in GUARDED) == set()
    # FORTIFY, beside the stack protector's own __stack_chk_fail.
    fortified = set(re.findall(rb"\0(__\w+_chk)\0", data))
    assert bool(fortified) is (name in GUARDED)


def test_a_library_without_all_that_is_told_from_them(tmp_path: Path) -> None:
    source = tmp_path / "soft.c"
    source.write_text("int soft(void) { return 0; }\n")
    soft = tmp_path / "soft.so"
    flags = ["-shared", "-fPIC", "-fno-stack-protector", "-Wl,-z,norelro,-z,lazy,-z,execstack"]
    subprocess.run(["cc", *flags, "-o", str(soft), str(source)], check=True)
    missing = {"BIND_NOW", "RELRO", "no executable stack", "stack protector"}
    assert weaknesses(soft.read_bytes()) >= missing


@pytest.mark.skipif("GPUPOOL_WHEEL" not in os.environ, reason="make check-wheel sets GPUPOOL_WHEEL")
def test_the_libraries_of_the_wheel_are_hardened() -> None:
    with zipfile.ZipFile(os.environ["GPUPOOL_WHEEL"]) as wheel:
        names = [name for name in wheel.namelist() if ".so" in Path(name).name]
        assert len(names) == 5 + len(build.ABSENT)
        for name in names:
            guarded = Path(name).name in GUARDED
            assert weaknesses(wheel.read(name), guarded=guarded) == set(), name


def test_the_installation_compiles_as_the_tests_do() -> None:
    text = (Path(__file__).resolve().parents[3] / "setup.py").read_text(encoding="utf-8")
    values = {
        ast.unparse(node.targets[0]): ast.unparse(node.value)
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign)
    }
    # A flag that is missing there may cost an optional library, and nobody notices.
    flags = set(eval(values["FLAGS"], {"BUILD": vars(build)}))
    ours = {word for word in build.COMPILE if not word.startswith(("-W", "-fPIC"))}
    assert flags == {*ours, "-pthread"}
    assert {*ast.literal_eval(values["LINK"])} == {*build.SHARED} - {"-shared"}
