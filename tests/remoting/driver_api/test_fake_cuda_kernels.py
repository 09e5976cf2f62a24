"""The fake driver's images, launches, faults and occupancy."""

import ctypes
import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fake_cuda.build import build
from fake_cuda.driver import KERNELS, CudaError, Driver, pointers

IMAGES = (
    "test_kernels.sm_90.cubin",
    "test_kernels.ptx",
    "test_kernels.fatbin",
    "test_kernels.lz4.fatbin",
    "test_kernels.zstd.fatbin",
)
# The layouts that the CUDA C++ ABI gives the kernels of test_kernels.cu: (offset, size) each.
LAYOUTS = {
    "vector_add": [(0, 8), (8, 8), (16, 8), (24, 4)],
    "saxpy": [(0, 4), (8, 8), (16, 8), (24, 4)],
    "mixed_params": [(0, 8), (8, 1), (16, 32), (48, 2)],
    "large_param": [(0, 8), (8, 8192)],
    "empty": [],
}
INVALID_VALUE, INVALID_IMAGE, NO_BINARY, INVALID_PTX = 1, 200, 209, 218
INVALID_HANDLE, NOT_FOUND, ILLEGAL_ADDRESS, LAUNCH_FAILED = 400, 500, 700, 719


class Mixed(ctypes.Structure):
    _fields_ = [
        ("tag", ctypes.c_char),
        ("weight", ctypes.c_double),
        ("values", ctypes.c_int * 3),
    ]


class Attribute(ctypes.Structure):
    """A launch attribute: 8 bytes of id and padding, 64 of value."""

    _fields_ = [("id", ctypes.c_uint64), ("value", ctypes.c_uint32 * 16)]


class Config(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    ]


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    loaded = Driver(build(), tmp_path)
    loaded.start()
    yield loaded
    assert loaded.library.fakeCudaMissingCalls() == 0


def floats(*values: float) -> bytes:
    return struct.pack(f"{len(values)}f", *values)


def layout(driver: Driver, function: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    while True:
        where = (function, len(found), ctypes.byref(offset), ctypes.byref(size))
        code = driver.code("cuFuncGetParamInfo", *where)
        if code != 0:
            assert code == INVALID_VALUE
            return found
        found.append((offset.value, size.value))


# ---- images ----


@pytest.mark.parametrize("image", IMAGES)
def test_every_form_of_image_gives_the_same_kernels(driver: Driver, image: str) -> None:
    module = driver.module(image)
    count = driver.get("cuModuleGetFunctionCount", module, kind=ctypes.c_uint)
    handles = (ctypes.c_void_p * count)()
    driver.call("cuModuleEnumerateFunctions", handles, count, module)
    names: set[str] = set()
    name = ctypes.c_char_p()
    for handle in handles:
        driver.call("cuFuncGetName", ctypes.byref(name), ctypes.c_void_p(handle))
        assert name.value is not None
        names.add(name.value.decode())
    source = (KERNELS / "test_kernels.cu").read_text()
    assert all(f"{one}(" in source for one in names)
    assert len(names) == source.count("__global__")
    for kernel, expected in LAYOUTS.items():
        assert layout(driver, driver.function(module, kernel)) == expected


@pytest.mark.parametrize("image", IMAGES)
def test_variables_have_sizes_and_first_values(driver: Driver, image: str) -> None:
    module = driver.module(image)
    expected = {
        "offset": struct.pack("i", 100),
        "table": bytes(512),
        "coefficient": floats(1, 2, 3, 4),
    }
    for name, value in expected.items():
        pointer, size = ctypes.c_uint64(), ctypes.c_size_t()
        where = (ctypes.byref(pointer), ctypes.byref(size), module, name.encode())
        driver.call("cuModuleGetGlobal_v2", *where)
        assert driver.download(pointer.value, size.value) == value
        assert driver.code("cuMemFree_v2", pointer.value) == INVALID_VALUE
    missing = (ctypes.byref(ctypes.c_uint64()), 0, module, b"absent")
    assert driver.code("cuModuleGetGlobal_v2", *missing) == NOT_FOUND


@pytest.mark.parametrize("image", ["test_kernels.sm_90.cubin", "test_kernels.ptx"])
def test_resources_are_read(driver: Driver, image: str) -> None:
    function = driver.function(driver.module(image), "resources")

    def attribute(number: int) -> int:
        return driver.get("cuFuncGetAttribute", number, function, kind=ctypes.c_int)

    assert attribute(0) == 256  # threads at most
    assert attribute(1) == 1200  # static shared memory
    assert [attribute(number) for number in (11, 12, 13)] == [2, 1, 1]
    assert attribute(6) == 90
    driver.call("cuFuncSetAttribute", function, 8, 200_000)
    assert attribute(8) == 200_000
    assert driver.code("cuFuncSetAttribute", function, 8, 232_448) == INVALID_VALUE


@pytest.mark.parametrize(
    ("image", "error"),
    [
        ((KERNELS / "test_kernels.sm_80.cubin").read_bytes(), NO_BINARY),
        (b".version 8.0\n.target sm_100\n", INVALID_PTX),
        (b".version 99.0\n.target sm_90\n", 222),
        (b"not a program", INVALID_PTX),
        (b"\x7fELF" + bytes(60), INVALID_IMAGE),
        (b"\x01\x02\x03\x04" * 8, INVALID_IMAGE),
        (b".version 8.0\n.target sm_90\n.entry f(.param .u64 a", INVALID_PTX),
    ],
)
def test_bad_images_are_refused(driver: Driver, image: bytes, error: int) -> None:
    with pytest.raises(CudaError) as caught:
        driver.module(image)
    assert caught.value.code == error


def test_ptx_corners_are_read(driver: Driver) -> None:
    text = b"""
    // .entry in_a_comment()
    .version 8.4 /* .entry in_another() */
    .target sm_70
    .address_size 64
    .extern .shared .align 16 .b8 dynamic[];
    .extern .global .u32 elsewhere;
    .global .align 4 .f32 pi[2] = {0f40490FDB, -0f00000000};
    .const .u32 limit = 7;
    .visible .func (.param .b32 out) helper(.param .b32 in) { ret; }
    .weak .entry corner(
        .param .u8 a, .param .u64 .ptr .global .align 1 b, .param .align 16 .b8 c[20],
        .param .f64 d)
    .maxntid 8, 4, 2
    .minnctapersm 1
    {
        .shared .align 8 .b8 row[12];
        .shared .f64 sum;
        ld.shared.f64 %fd1, [sum];
        { ret; }
    }
    """
    module = driver.module(text)
    function = driver.function(module, "corner")
    assert layout(driver, function) == [(0, 1), (8, 8), (16, 20), (40, 8)]
    assert driver.get("cuFuncGetAttribute", 0, function, kind=ctypes.c_int) == 64
    assert driver.get("cuFuncGetAttribute", 1, function, kind=ctypes.c_int) == 24
    assert driver.get("cuModuleGetFunctionCount", module, kind=ctypes.c_uint) == 1
    where = (ctypes.byref(pointer := ctypes.c_uint64()), 0, module, b"limit")
    driver.call("cuModuleGetGlobal_v2", *where)
    assert driver.download(pointer.value, 4) == b"\x07\0\0\0"
    absent = (ctypes.byref(pointer), 0, module, b"elsewhere")
    assert driver.code("cuModuleGetGlobal_v2", *absent) == NOT_FOUND


# ---- running ----


@pytest.mark.parametrize("image", IMAGES)
def test_kernels_compute(driver: Driver, image: str) -> None:
    module = driver.module(image)
    a = driver.upload(floats(*range(300)))
    b = driver.upload(floats(*(10 * i for i in range(300))))
    c = driver.upload(bytes(1200))
    where = [ctypes.c_uint64(one) for one in (a, b, c)]
    driver.launch(driver.function(module, "vector_add"), *where, ctypes.c_int(300), grid=2)
    assert driver.download(c, 1200) == floats(*(11 * i for i in range(300)))
    saxpy = driver.function(module, "saxpy")
    driver.launch(saxpy, ctypes.c_float(2), where[0], where[2], ctypes.c_int(300), grid=2)
    assert driver.download(c, 1200) == floats(*(13 * i for i in range(300)))
    driver.launch(driver.function(module, "reduce_sum"), where[0], where[1], ctypes.c_int(300))
    assert driver.download(b, 4) == floats(sum(range(300)))
    driver.launch(driver.function(module, "polynomial"), where[0], ctypes.c_int(2))
    assert driver.download(a, 12) == floats(1, 10, 2)


def test_threads_beyond_the_grid_do_nothing(driver: Driver) -> None:
    data = driver.upload(bytes(4 * 100))
    function = driver.function(driver.module(), "increment")
    driver.launch(function, ctypes.c_uint64(data), ctypes.c_int(100), grid=2, block=32)
    assert driver.download(data, 400) == struct.pack("100i", *([1] * 64 + [0] * 36))


def test_kernels_use_the_modules_variables(driver: Driver) -> None:
    module = driver.module("test_kernels.ptx")
    pointer = ctypes.c_uint64()
    driver.call("cuModuleGetGlobal_v2", ctypes.byref(pointer), 0, module, b"offset")
    driver.call("cuMemcpyHtoD_v2", pointer.value, struct.pack("i", -5), 4)
    data = driver.upload(struct.pack("4i", 1, 2, 3, 4))
    function = driver.function(module, "add_offset")
    driver.launch(function, ctypes.c_uint64(data), ctypes.c_int(4))
    assert driver.download(data, 16) == struct.pack("4i", -4, -3, -2, -1)


def test_structures_and_large_parameters_arrive(driver: Driver) -> None:
    module = driver.module()
    out = driver.upload(bytes(56))
    mixed = Mixed(b"x", 2.5, (1, -2, 3))
    driver.launch(
        driver.function(module, "mixed_params"),
        ctypes.c_uint64(out), ctypes.c_char(b"c"), mixed, ctypes.c_short(-7),
    )  # fmt: skip
    assert driver.download(out, 56) == struct.pack("7d", ord("c"), ord("x"), 2.5, 1, -2, 3, -7)
    words = (ctypes.c_int * 2048)(*range(2048))
    driver.launch(driver.function(module, "large_param"), ctypes.c_uint64(out), words)
    assert driver.download(out, 8) == struct.pack("q", sum(range(2048)))


def test_parameters_may_come_packed(driver: Driver) -> None:
    data = driver.upload(bytes(16))
    function = driver.function(driver.module(), "increment")
    packed = struct.pack("Qi", data, 4)
    size = ctypes.c_size_t(len(packed))
    extra = (ctypes.c_void_p * 5)()
    buffer = ctypes.create_string_buffer(packed, len(packed))
    extra[:4] = [1, ctypes.addressof(buffer), 2, ctypes.addressof(size)]
    shape = (1, 1, 1, 32, 1, 1, 0, 0)
    driver.call("cuLaunchKernel", function, *shape, 0, extra)
    assert driver.download(data, 16) == struct.pack("4i", 1, 1, 1, 1)
    size.value = 8
    assert driver.code("cuLaunchKernel", function, *shape, 0, extra) == 701


def test_library_kernels_launch_as_functions(driver: Driver) -> None:
    image = (KERNELS / "test_kernels.fatbin").read_bytes()
    library = driver.get("cuLibraryLoadData", image, 0, 0, 0, 0, 0, 0)
    kernel = driver.get("cuLibraryGetKernel", library, b"increment")
    data = driver.upload(bytes(16))
    driver.launch(kernel, ctypes.c_uint64(data), ctypes.c_int(4))
    function = driver.get("cuKernelGetFunction", kernel)
    driver.launch(function, ctypes.c_uint64(data), ctypes.c_int(4))
    assert driver.download(data, 16) == struct.pack("4i", 2, 2, 2, 2)
    driver.call("cuKernelSetAttribute", 8, 60_000, kernel, 0)
    assert driver.get("cuFuncGetAttribute", 8, function, kind=ctypes.c_int) == 60_000
    driver.call("cuLibraryUnload", library)
    nothing = pointers(())
    assert driver.code("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, 0, nothing, 0) == 400


@pytest.mark.parametrize("shape", [(0, 1, 0), (1, 1025, 0), (1, 32, 49153)])
def test_impossible_launches_are_refused(driver: Driver, shape: tuple[int, int, int]) -> None:
    grid, block, shared = shape
    function = driver.function(driver.module(), "empty")
    where = (function, grid, 1, 1, block, 1, 1, shared, 0, pointers(()), 0)
    assert driver.code("cuLaunchKernel", *where) == INVALID_VALUE
    assert driver.launches() == []


def test_launches_are_recorded(
    tmp_path: Path, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_CUDA_RECORD", str(tmp_path / "record"))
    module = driver.module()
    data = driver.upload(bytes(16))
    driver.launch(driver.function(module, "increment"), ctypes.c_uint64(data), ctypes.c_int(3))
    cluster = Attribute(4, (2, 1, 1))
    config = Config((4, 1, 1), (32, 2, 1), 64, 0, ctypes.addressof(cluster), 1)
    where = (ctypes.byref(config), driver.function(module, "empty"), pointers(()), 0)
    driver.call("cuLaunchKernelEx", *where)
    driver.call("cuCtxSynchronize")
    (first, params), (second, _) = driver.launches()
    assert first.kernel == b"increment"
    assert (list(first.grid), list(first.block)) == ([1, 1, 1], [256, 1, 1])
    assert params == struct.pack("Qi", data, 3)
    assert (list(second.grid), list(second.cluster), second.shared_bytes) == (
        [4, 1, 1],
        [2, 1, 1],
        64,
    )
    lines = [json.loads(line) for line in (tmp_path / "record").read_text().splitlines()]
    assert [line["kernel"] for line in lines] == ["increment", "empty"]
    assert bytes.fromhex(lines[0]["params"]) == params


# ---- faults ----


@pytest.mark.parametrize(
    ("kernel", "error"), [("out_of_bounds", ILLEGAL_ADDRESS), ("trap", LAUNCH_FAILED)]
)
def test_a_kernels_fault_breaks_the_context(driver: Driver, kernel: str, error: int) -> None:
    function = driver.function(driver.module(), kernel)
    arguments = (ctypes.c_uint64(0),) if kernel == "out_of_bounds" else ()
    driver.launch(function, *arguments)
    assert driver.code("cuCtxSynchronize") == error
    assert driver.code("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), 16) == error
    driver.call("cuDevicePrimaryCtxReset_v2", 0)
    driver.start()
    driver.call("cuCtxSynchronize")


def test_a_kernel_on_ended_memory_is_an_illegal_address(driver: Driver) -> None:
    function = driver.function(driver.module(), "increment")
    data = driver.upload(bytes(16))
    driver.call("cuMemFree_v2", data)
    driver.launch(function, ctypes.c_uint64(data), ctypes.c_int(4))
    assert driver.code("cuCtxSynchronize") == ILLEGAL_ADDRESS


def set_fault(driver: Driver, name: str, error: int, *more: int) -> None:
    assert driver.library.fakeCudaSetFault(name.encode(), error, *more) >= 0


def test_faults_begin_after_some_calls_and_end(driver: Driver) -> None:
    set_fault(driver, "cuMemAlloc", 2, 1, 2, 0, 0)
    codes = [driver.code("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), 16) for _ in range(4)]
    assert codes == [0, 2, 2, 0]
    set_fault(driver, "cuMemAlloc_v2", 2, 0, 0, 0, 0)
    driver.library.fakeCudaClearFaults()
    driver.allocate(16)


def test_a_sticky_fault_stays(driver: Driver) -> None:
    set_fault(driver, "cuMemsetD8", 719, 0, 1, 1, 0)
    pointer = driver.allocate(16)
    assert driver.code("cuMemsetD8_v2", pointer, 0, 16) == 719
    assert driver.code("cuMemFree_v2", pointer) == 719


def test_a_later_fault_shows_at_synchronisation(driver: Driver) -> None:
    function = driver.function(driver.module(), "empty")
    set_fault(driver, "cuLaunchKernel", 700, 0, 1, 2, 0)
    with driver.paused():
        driver.launch(function)
        driver.call("cuMemGetInfo_v2", *[ctypes.byref(ctypes.c_size_t()) for _ in range(2)])
    assert driver.code("cuStreamSynchronize", 0) == 700


def test_faults_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "cuMemAlloc=2,after=1;cuModuleLoadData=200,times=1"
    monkeypatch.setenv("FAKE_CUDA_FAULTS", text)
    (tmp_path / "own").mkdir()
    driver = Driver(build(), tmp_path / "own")
    driver.start()
    driver.allocate(16)
    for code, call in ((2, lambda: driver.allocate(16)), (INVALID_IMAGE, driver.module)):
        with pytest.raises(CudaError) as caught:
            call()
        assert caught.value.code == code
    assert driver.module() != 0
    driver.library.fakeCudaCalls.restype = ctypes.c_uint64
    assert driver.library.fakeCudaCalls(b"cuMemAlloc_v2") == 2


# ---- occupancy ----


def test_occupancy_follows_the_limits_of_the_architecture(driver: Driver) -> None:
    function = driver.function(driver.module(), "empty")

    def blocks(threads: int, shared: int = 0) -> int:
        name = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        return driver.get(name, function, threads, shared, kind=ctypes.c_int)

    assert (blocks(1024), blocks(128), blocks(32)) == (2, 16, 32)
    assert blocks(128, 100_000) == 2
    grid, block = ctypes.c_int(), ctypes.c_int()
    where = (ctypes.byref(grid), ctypes.byref(block), function, 0, 0, 0)
    driver.call("cuOccupancyMaxPotentialBlockSize", *where)
    assert grid.value * block.value == 2048 * 132
