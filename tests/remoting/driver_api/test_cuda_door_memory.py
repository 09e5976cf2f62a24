"""The CUDA door's memory: pools, arrays, textures, managed memory, sharing, and accounting."""

import ctypes
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fake_cuda.control import Control
from test_cuda_door import KERNELS, ROOT, compiled, in_python, right, run

from gpupool.remoting.driver_api import build
from gpupool.remoting.driver_api.executor.memory import mirrors
from gpupool.remoting.driver_api.executor.memory.mirrors import (
    MIRROR_LARGE,
    MIRROR_TOGETHER,
    NO_PAGES,
    Mirror,
    Write,
)
from gpupool.remoting.driver_api.executor.modules.image_contents import Contents, contents_of


def test_memory_pools(library: Path, tmp_path: Path) -> None:
    """A pool's memory counts while the pool holds it, also when freed."""
    program = compiled("pools", tmp_path, library)
    with Control(tmp_path) as control:
        right(run(library, control, [str(program)], devices=2))


def test_variables_and_limits_are_counted_and_kernels_print(library: Path, tmp_path: Path) -> None:
    program = compiled("counted", tmp_path, library)
    image = str(KERNELS / "memory_kernels.sm_90.cubin")
    with Control(tmp_path) as control:
        done = run(library, control, [str(program), image])
        said = [f"here {at}: a kernel says {at / 2:.1f}" for at in range(256)]
        expected = ["first", *said[:2], "second", *said[:2], "third", *said, "results right"]
        assert done.stdout.splitlines() == expected, done.stderr


def test_variables_of_images() -> None:
    """Of ELF images, fat binaries and PTX; a compressed image says nothing."""
    elf = (KERNELS / "test_kernels.sm_90.cubin").read_bytes()
    found = contents_of(elf)
    assert found == Contents(4 + 512 + 16, seen=True, prints=False, asserts=False)
    assert contents_of((KERNELS / "test_kernels.ptx").read_bytes()) == found
    assert contents_of((KERNELS / "test_kernels.fatbin").read_bytes()) == found
    hidden = (
        b".version 8.0\n.global/**/.align 8 /*"
        + b"x" * 2000
        + b"""*/ .b8 a[0x1000];
        .const .align 4 .v2 .f32 b[010][2], c; .global .f16x2 d[0b11U];
        .global .texref t; .func f() { }"""
    )
    assert contents_of(hidden) == Contents(4096 + 8 * 16 + 8 + 4 * 3, True, False, False)
    assert contents_of(b".version 8.0\n.global .u32 a[4*4];") == Contents(4, False, False, False)
    compressed = contents_of((KERNELS / "test_kernels.zstd.fatbin").read_bytes())
    assert compressed == Contents(0, seen=False, prints=True, asserts=True)
    special = contents_of((KERNELS / "memory_kernels.sm_90.cubin").read_bytes())
    assert special == Contents(27 + 4096 + (3 << 20), seen=True, prints=True, asserts=False)


@given(
    st.sampled_from(["test_kernels.sm_90.cubin", "test_kernels.fatbin", "test_kernels.ptx"]),
    st.lists(st.tuples(st.integers(0, 1 << 12), st.integers(0, 255)), max_size=8),
    st.integers(0, 1 << 17),
)
def test_no_image_upsets_whoever_looks_into_it(
    name: str, changes: list[tuple[int, int]], length: int
) -> None:
    image = bytearray((KERNELS / name).read_bytes()[:length])
    for at, value in changes:
        if at < len(image):
            image[at] = value
    assert contents_of(image).variables >= 0


def test_arrays_and_textures(library: Path, tmp_path: Path) -> None:
    program = compiled("arrays", tmp_path, library)
    image = str(KERNELS / "memory_kernels.sm_90.cubin")
    with Control(tmp_path) as control:
        right(run(library, control, [str(program), image]))


@pytest.mark.parametrize(
    "refused",
    [
        "",
        *(
            pytest.param(each, marks=pytest.mark.long)
            for each in ("cuMemAddressReserve", "cuMemSetAccess")
        ),
    ],
)
def test_managed_memory(refused: str, library: Path, tmp_path: Path) -> None:
    """One address on both sides; writes of either side are there when CUDA says so.

    Also where the driver does not take the client's addresses, or no peer may have the memory.
    """
    program = compiled("managed", tmp_path, library)
    images = [str(KERNELS / f"{name}_kernels.sm_90.cubin") for name in ("test", "memory")]
    with Control(tmp_path) as control:
        if refused:
            control.set_fault(refused, 2, after=refused == "cuMemSetAccess", times=1)
        right(run(library, control, [str(program), *images], devices=2))


def test_managed_memory_beside_the_programs_own(library: Path, tmp_path: Path) -> None:
    """Where the program has memory at the first addresses of the server, others are found."""
    program = compiled("occupied", tmp_path, library)
    with Control(tmp_path) as control:
        right(run(library, control, [str(program)]))


def test_memory_is_freed_before_host_functions_that_come_later(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However late the driver comes to it: it would wait for the function, and keep its pages."""
    monkeypatch.setenv("FAKE_CUDA_LATE_FREES", "1")
    program = compiled("managed", tmp_path, library)
    images = [str(KERNELS / f"{name}_kernels.sm_90.cubin") for name in ("test", "memory")]
    with Control(tmp_path) as control:
        right(run(library, control, [str(program), *images], devices=2))


@pytest.mark.parametrize("servers", ["1", pytest.param("2", marks=pytest.mark.long)])
def test_kernels_follow_addresses_of_pinned_memory(
    servers: str, library: Path, tmp_path: Path
) -> None:
    """The program's memory has its own address on the GPU, which structures there hold."""
    program = compiled("mapped", tmp_path, library)
    image = str(KERNELS / "memory_kernels.sm_90.cubin")
    with Control(tmp_path) as control:
        right(run(library, control, [str(program), image], "--servers", servers))


@pytest.mark.parametrize("size", ["64", pytest.param("65536", marks=pytest.mark.long)])
def test_two_threads_and_kernels_write_words_side_by_side(
    size: str, library: Path, tmp_path: Path
) -> None:
    """One writes and launches while kernels' words arrive for the other: none is lost."""
    program = compiled("mailbox", tmp_path, library)
    image = str(KERNELS / "test_kernels.sm_90.cubin")
    with Control(tmp_path) as control:
        right(run(library, control, [str(program), image, "200", size]))


@pytest.mark.long
def test_system_calls_fill_memory_that_kernels_see(library: Path, tmp_path: Path) -> None:
    """Memory just allocated, managed or mapped; and mapped memory that was filled before."""
    program = compiled("reads", tmp_path, library)
    image = str(KERNELS / "test_kernels.sm_90.cubin")
    with Control(tmp_path) as control:
        right(run(library, control, [str(program), image, str(tmp_path / "file"), "10"]))


SHARED = """
import ctypes, mmap, os, sys
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
for name in sys.argv[1:]:
    path = f"/dev/shm/{name}-{os.getpid()}"
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.unlink(path)
    os.ftruncate(file, 8192)
    memory = mmap.mmap(file, 8192)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    print([cuda.cuMemHostRegister_v2(ctypes.c_void_p(address), 8192, flags) for flags in (2, 0)])
"""


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="a kernel without large pages"
)
def test_large_pinned_memory_has_large_pages(library: Path, tmp_path: Path) -> None:
    program = compiled("large_pages", tmp_path, library)
    with Control(tmp_path) as control:
        right(run(library, control, [str(program)]))


@in_python
def test_memory_in_which_nccls_kernels_wait_needs_a_host(library: Path, tmp_path: Path) -> None:
    """It is shared among workers; without their host NCCL fails, and is told why."""
    with Control(tmp_path) as control:
        done = run(library, control, [sys.executable, "-c", SHARED, "nccl", "other"])
        assert done.stdout == "[801, 0]\n[0, 712]\n", done.stderr  # 712: already registered
        assert "no memory in which NCCL's kernels could wait for each other" in done.stderr


def test_copies_kernels_and_events_in_their_order(library: Path, tmp_path: Path) -> None:
    """On memory that both sides see, with nothing of the program's that waits in between."""
    program = compiled("ordered", tmp_path, library)
    image = str(KERNELS / "test_kernels.sm_90.cubin")
    with Control(tmp_path) as control:
        right(run(library, control, [str(program), image]))


@pytest.mark.parametrize("large", [MIRROR_LARGE, MIRROR_TOGETHER // 2], ids=["", "by threads"])
@given(
    st.integers(1, 3 * MIRROR_TOGETHER // 2),
    st.lists(st.tuples(st.integers(0, 2 * MIRROR_TOGETHER), st.integers(1, 100_000)), max_size=20),
)
@settings(max_examples=examples(40), deadline=None)
def test_what_has_changed_in_a_mirror(
    large: int, size: int, changes: list[tuple[int, int]]
) -> None:
    """All of it, and at its edges nothing that has not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mirrors, "MIRROR_LARGE", large)
        check_changes(size, changes)


def check_changes(size: int, changes: list[tuple[int, int]]) -> None:
    memory = np.zeros(size, np.uint8)
    mirror = Mirror(memory.ctypes.data, memory, np.zeros(size, np.uint8), 0, NO_PAGES)
    for start, length in changes:
        memory[start : start + length] = 1
    found = list(mirror.changes())
    for first, last in found:
        assert memory[first]
        assert memory[last - 1]
        memory[first:last] = 0
    assert not memory.any()
    assert all(one[1] <= other[0] for one, other in pairwise(found))


@given(st.data())
@settings(max_examples=examples(60), deadline=None)
def test_what_both_sides_of_a_mirror_write_stays(data: st.DataObject) -> None:
    """Each its own bytes, at the same time: both end up with all of them."""
    size = data.draw(st.integers(1, 200))
    owners = data.draw(st.lists(st.integers(0, 2), min_size=size, max_size=size))
    fresh = data.draw(st.binary(min_size=size, max_size=size))
    memory, client = (np.zeros(size, np.uint8) for _ in range(2))
    mirror = Mirror(memory.ctypes.data, memory, np.zeros(size, np.uint8), 0, NO_PAGES)
    for at, owner in enumerate(owners):
        if owner:
            (memory if owner == 1 else client)[at] = fresh[at]
    changes = [(first, bytes(new), mask) for first, new, mask in mirror.take_changes()]
    written = np.flatnonzero(client)
    if len(written):
        first, last = int(written[0]), int(written[-1]) + 1
        mask = np.packbits(client[first:last] != 0, bitorder="little").tobytes()
        sent = client[first:last].tobytes() + mask
        mirror.write(Write.of(first, last - first, 1, sent))
    for first, new, mask in changes:
        for at, value in enumerate(new):
            if not mask or mask[at // 8] >> at % 8 & 1:
                client[first + at] = value
    assert memory.tobytes() == client.tobytes()
    assert list(mirror.take_changes()) == []


@pytest.fixture(scope="module")
def merge(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Build the library's code for merging, which the library does not export."""
    made = tmp_path_factory.mktemp("merge") / "merge.so"
    source = ROOT / "remoting" / "driver_api" / "shim" / "hostmem" / "merge.c"
    command = ["gcc", "-shared", "-fPIC", "-O2", f"-I{build.HEADERS}", "-o", str(made)]
    subprocess.run([*command, str(source)], check=True)
    return ctypes.CDLL(str(made))


@given(st.integers(0, 7), st.binary(min_size=1, max_size=100), st.data())
@settings(max_examples=examples(60), deadline=None)
def test_the_library_merges_new_bytes_alone(
    merge: ctypes.CDLL, start: int, fresh: bytes, data: st.DataObject
) -> None:
    """At any address, and with masks that it has made itself."""
    size = len(fresh)
    known = data.draw(st.binary(min_size=size, max_size=size))
    mask = ctypes.create_string_buffer(size)
    count = merge.gp_find_new(fresh, known, mask, ctypes.c_size_t(size))
    assert count == sum(one != other for one, other in zip(fresh, known, strict=True))
    target = ctypes.create_string_buffer(bytes(size) + bytes(start) + known + b"end")
    base = size + start
    before = bytes(target.raw)
    merge.gp_merge(ctypes.byref(target, base), fresh, mask, ctypes.c_size_t(size))
    expected = bytearray(before)
    for at in range(size):
        if fresh[at] != known[at]:
            expected[base + at] = fresh[at]
    assert target.raw == bytes(expected)
