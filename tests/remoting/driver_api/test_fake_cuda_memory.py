"""The fake driver's start, look-up, devices and memory."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fake_cuda.build import build
from fake_cuda.control import Control, process_environment
from fake_cuda.driver import Copy3D, CudaError, Driver

MIB = 1 << 20
INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED, INVALID_CONTEXT = 1, 2, 3, 201
NOT_FOUND, ILLEGAL_ADDRESS, CONTEXT_DESTROYED = 500, 700, 709


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    monkeypatch.setenv("FAKE_CUDA_DEVICES", "2")
    monkeypatch.setenv("FAKE_CUDA_MEMORY", "64m")
    loaded = Driver(build(), tmp_path)
    loaded.start()
    yield loaded
    assert loaded.library.fakeCudaMissingCalls() == 0


def run_child(code: str, tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    head = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).resolve().parent)!r})\n"
        "from pathlib import Path\n"
        "from fake_cuda.build import build\n"
        "from fake_cuda.driver import Driver\n"
        f"driver = Driver(build(), Path({str(tmp_path)!r}))\n"
    )
    return subprocess.run(
        [sys.executable, "-c", head + code],
        env=process_environment(environment),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


# ---- start and look-up ----


def test_calls_before_init_and_without_context_fail(tmp_path: Path) -> None:
    driver = Driver(build(), tmp_path)
    assert driver.code("cuDeviceGetCount", ctypes.byref(ctypes.c_int())) == NOT_INITIALIZED
    driver.call("cuInit", 0)
    assert driver.get("cuDeviceGetCount", kind=ctypes.c_int) == 1
    assert driver.code("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), 16) == INVALID_CONTEXT


def test_no_device_is_said_by_init(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert Driver(build(), tmp_path).code("cuInit", 0) == 100


@pytest.mark.parametrize(
    ("name", "version", "flags", "symbol"),
    [
        ("cuMemAlloc", 13000, 0, "cuMemAlloc_v2"),
        ("cuMemAlloc", 2000, 0, "cuMemAlloc"),
        ("cuCtxSynchronize", 12090, 0, "cuCtxSynchronize"),
        ("cuCtxSynchronize", 13000, 0, "cuCtxSynchronize_v2"),
        ("cuEventElapsedTime", 12070, 0, "cuEventElapsedTime"),
        ("cuEventElapsedTime", 12080, 0, "cuEventElapsedTime_v2"),
        ("cuLaunchKernel", 13000, 2, "cuLaunchKernel_ptsz"),
        ("cuMemcpyHtoD", 13000, 2, "cuMemcpyHtoD_v2_ptds"),
        ("cuDeviceGet", 13000, 2, "cuDeviceGet"),
    ],
)
def test_get_proc_address_chooses_by_version(
    driver: Driver, name: str, version: int, flags: int, symbol: str
) -> None:
    found, status = ctypes.c_void_p(), ctypes.c_int(9)
    where = (name.encode(), ctypes.byref(found), version, flags, ctypes.byref(status))
    driver.call("cuGetProcAddress_v2", *where)
    assert status.value == 0
    expected = ctypes.cast(driver.library[symbol], ctypes.c_void_p)
    assert found.value == expected.value


@pytest.mark.parametrize(("name", "version", "status"), [("cuNo", 13000, 1), ("cuInit", 1000, 2)])
def test_get_proc_address_says_why_not(
    driver: Driver, name: str, version: int, status: int
) -> None:
    found, said = ctypes.c_void_p(7), ctypes.c_int(9)
    where = (name.encode(), ctypes.byref(found), version, 0)
    driver.call("cuGetProcAddress_v2", *where, ctypes.byref(said))
    assert (found.value, said.value) == (None, status)
    assert driver.code("cuGetProcAddress_v2", *where, 0) == NOT_FOUND


def test_errors_have_names_and_sentences(driver: Driver) -> None:
    text = ctypes.c_char_p()
    driver.call("cuGetErrorName", 700, ctypes.byref(text))
    assert text.value == b"CUDA_ERROR_ILLEGAL_ADDRESS"
    driver.call("cuGetErrorString", 2, ctypes.byref(text))
    assert text.value == b"out of memory"
    assert driver.code("cuGetErrorName", 12345, ctypes.byref(text)) == INVALID_VALUE


def test_a_function_that_is_missing_says_so(tmp_path: Path) -> None:
    done = run_child(
        "driver.start()\n"
        "print(driver.code('cuMulticastUnbind', 0), driver.library.fakeCudaMissingCalls())",
        tmp_path,
    )
    assert done.stdout == "801 1\n"
    assert "cuMulticastUnbind is not implemented" in done.stderr


def test_devices_are_chosen_by_uuid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CUDA_DEVICES", "4")
    uuid = "GPU-fa4e0000-0000-4000-8000-00000000000"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"{uuid}2,{uuid}1,{uuid}9,{uuid}0")
    driver = Driver(build(), tmp_path)
    driver.start()
    assert driver.get("cuDeviceGetCount", kind=ctypes.c_int) == 2
    text = ctypes.create_string_buffer(32)
    addresses: list[bytes] = []
    for device in range(2):
        driver.call("cuDeviceGetPCIBusId", text, 32, device)
        addresses.append(text.value)
    assert addresses == [b"0000:3b:00.0", b"0000:2b:00.0"]
    assert driver.get("cuDeviceGetAttribute", 75, 0, kind=ctypes.c_int) == 9


def test_a_forked_child_must_start_again(tmp_path: Path) -> None:
    done = run_child(
        "import os\n"
        "driver.start()\n"
        "if os.fork() == 0:\n"
        "    import ctypes\n"
        "    os._exit(driver.code('cuDeviceGetCount', ctypes.byref(ctypes.c_int())))\n"
        "print(os.waitstatus_to_exitcode(os.wait()[1]))\n",
        tmp_path,
    )
    assert done.stdout == f"{NOT_INITIALIZED}\n", done.stderr


# ---- memory ----


def test_bytes_go_up_and_come_back(driver: Driver) -> None:
    data = os.urandom(100_000)
    assert driver.download(driver.upload(data), len(data)) == data


def test_memory_is_counted_and_ends(driver: Driver) -> None:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    pointer = driver.allocate(60 * MIB)
    driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    assert (free.value, total.value) == (4 * MIB, 64 * MIB)
    with pytest.raises(CudaError) as caught:
        driver.allocate(5 * MIB)
    assert caught.value.code == OUT_OF_MEMORY
    driver.call("cuMemFree_v2", pointer)
    driver.call("cuMemFree_v2", driver.allocate(64 * MIB))


def test_ended_and_foreign_pointers_are_refused(driver: Driver) -> None:
    pointer = driver.upload(b"x" * 64)
    assert driver.code("cuMemcpyDtoH_v2", ctypes.create_string_buffer(99), pointer, 65) == 1
    assert driver.code("cuMemFree_v2", pointer + 1) == INVALID_VALUE
    driver.call("cuMemFree_v2", pointer)
    assert driver.code("cuMemFree_v2", pointer) == INVALID_VALUE
    assert driver.code("cuMemsetD8_v2", pointer, 0, 1) == INVALID_VALUE
    assert driver.allocate(64) != pointer


def test_the_host_cannot_read_device_memory(tmp_path: Path) -> None:
    done = run_child(
        "import ctypes\n"
        "driver.start()\n"
        "pointer = driver.upload(b'secret')\n"
        "print('before', flush=True)\n"
        "ctypes.string_at(pointer, 6)\n",
        tmp_path,
    )
    assert (done.returncode, done.stdout) == (-signal.SIGSEGV, "before\n")


def test_new_memory_never_shows_what_was_there(driver: Driver) -> None:
    driver.call("cuMemFree_v2", driver.upload(b"secret" * 1000))
    assert driver.download(driver.allocate(6000), 6000) == bytes(6000)


@pytest.mark.parametrize(("bits", "value"), [(8, 0xA5), (16, 0xBEEF), (32, 0xDEADBEEF)])
def test_memsets_fill_elements(driver: Driver, bits: int, value: int) -> None:
    size = bits // 8
    pointer = driver.upload(bytes(64))
    driver.call(f"cuMemsetD{bits}_v2", pointer + 8, value, 3)
    one = value.to_bytes(size, "little")
    assert driver.download(pointer, 64) == bytes(8) + one * 3 + bytes(56 - 3 * size)
    driver.call(f"cuMemsetD2D{bits}_v2", pointer, 16, 0, 16 // size, 4)
    assert driver.download(pointer, 64) == bytes(64)


def test_boxes_are_copied_between_pitched_memory(driver: Driver) -> None:
    source = driver.upload(bytes(range(240)))  # 2 planes of 10 rows of 12
    target = driver.upload(bytes(200))
    copy = Copy3D(
        srcX=1, srcY=2, srcZ=1, srcType=2, srcDevice=source, srcPitch=12, srcHeight=10,
        dstX=3, dstY=0, dstType=2, dstDevice=target, dstPitch=8, dstHeight=5,
        width=4, height=3, depth=1,
    )  # fmt: skip
    driver.call("cuMemcpy3D_v2", ctypes.byref(copy))
    got = driver.download(target, 200)
    for row in range(3):
        start = 120 + (2 + row) * 12 + 1
        assert got[row * 8 + 3 : row * 8 + 7] == bytes(range(start, start + 4))
    assert got[24:] == bytes(176)
    copy.dstY = 30
    assert driver.code("cuMemcpy3D_v2", ctypes.byref(copy)) == INVALID_VALUE


def test_pools_keep_what_their_threshold_says(driver: Driver) -> None:
    pool = driver.get("cuDeviceGetDefaultMemPool", 0)
    threshold = ctypes.c_uint64(8 * MIB)
    driver.call("cuMemPoolSetAttribute", pool, 4, ctypes.byref(threshold))
    got = ctypes.c_uint64()
    driver.call("cuMemPoolGetAttribute", pool, 4, ctypes.byref(got))
    assert got.value == 8 * MIB
    pointer = driver.get("cuMemAllocAsync", 10 * MIB, 0)
    driver.call("cuMemsetD8Async", pointer, 1, 10 * MIB, 0)
    driver.call("cuMemFreeAsync", pointer, 0)
    driver.call("cuStreamSynchronize", 0)
    free = ctypes.c_size_t()
    driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(ctypes.c_size_t()))
    assert free.value == 56 * MIB
    driver.call("cuMemPoolTrimTo", pool, 0)
    driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(ctypes.c_size_t()))
    assert free.value == 64 * MIB
    assert driver.code("cuMemFree_v2", pointer) == INVALID_VALUE


class AllocationProp(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint) for name in ("type", "handles", "location", "device")),
        ("meta", ctypes.c_void_p),
        ("flags", ctypes.c_char * 8),
    ]


def test_virtual_memory_is_reserved_mapped_and_shared(driver: Driver) -> None:
    prop = AllocationProp(type=1, location=1, device=0)
    handle = driver.get("cuMemCreate", 2 * MIB, ctypes.byref(prop), 0)
    base = driver.get("cuMemAddressReserve", 8 * MIB, 0, 0, 0)
    for offset in (0, 4 * MIB):
        driver.call("cuMemMap", base + offset, 2 * MIB, 0, handle, 0)
    assert driver.code("cuMemsetD8_v2", base, 7, 16) == INVALID_VALUE  # no access yet
    access = (ctypes.c_uint * 3)(1, 0, 3)
    driver.call("cuMemSetAccess", base, 8 * MIB, access, 1)
    driver.call("cuMemsetD8_v2", base, 7, 16)
    assert driver.download(base + 4 * MIB, 16) == b"\x07" * 16  # the same memory, mapped twice
    assert driver.code("cuMemsetD8_v2", base + 2 * MIB, 7, 16) == INVALID_VALUE
    driver.call("cuMemUnmap", base, 8 * MIB)
    driver.call("cuMemRelease", handle)
    driver.call("cuMemAddressFree", base, 8 * MIB)
    driver.call("cuMemFree_v2", driver.allocate(64 * MIB))


def test_an_address_wish_is_granted(driver: Driver) -> None:
    wish = 0x300000000000
    assert driver.get("cuMemAddressReserve", 4 * MIB, 0, wish, 0) == wish


def test_pointers_say_what_they_are(driver: Driver) -> None:
    def attribute(number: int, pointer: int) -> int:
        value = ctypes.c_uint64()
        driver.call("cuPointerGetAttribute", ctypes.byref(value), number, pointer)
        return value.value

    device = driver.allocate(1024)
    host, _ = driver.pinned(1024)
    managed = driver.get("cuMemAllocManaged", 1024, 1)
    assert [attribute(2, one) for one in (device, host, managed)] == [2, 1, 2]
    assert [attribute(8, one) for one in (device, host, managed)] == [0, 0, 1]
    assert (attribute(11, device + 100), attribute(12, device + 100)) == (device, 1024)
    assert attribute(4, host + 5) == host + 5
    assert driver.get("cuMemHostGetDevicePointer_v2", host, 0) == host
    ctypes.memset(managed, 7, 16)
    assert driver.download(managed, 16) == b"\x07" * 16

    # Many at once succeed for a pointer that is nobody's: type 0, device -2.
    kind, ordinal = ctypes.c_uint(9), ctypes.c_int(9)
    wanted = (ctypes.c_uint * 2)(2, 9)
    answers = (ctypes.c_void_p * 2)(ctypes.addressof(kind), ctypes.addressof(ordinal))
    plain = ctypes.create_string_buffer(8)
    driver.call("cuPointerGetAttributes", 2, wanted, answers, ctypes.addressof(plain))
    assert (kind.value, ordinal.value) == (0, -2)


def test_registering_host_memory_twice_is_refused(driver: Driver) -> None:
    buffer = ctypes.create_string_buffer(8192)
    address = ctypes.addressof(buffer)
    driver.call("cuMemHostRegister_v2", address, 8192, 0)
    assert driver.code("cuMemHostRegister_v2", address, 8192, 0) == 712
    driver.call("cuMemHostUnregister", address)
    assert driver.code("cuMemHostUnregister", address) == 713


def test_ending_the_primary_context_frees_all(driver: Driver) -> None:
    pointer = driver.upload(b"x" * MIB)
    driver.call("cuDevicePrimaryCtxRelease_v2", 0)
    assert driver.code("cuMemFree_v2", pointer) == CONTEXT_DESTROYED
    driver.start()
    driver.call("cuMemFree_v2", driver.allocate(64 * MIB))


def test_copies_between_devices(driver: Driver) -> None:
    first = driver.upload(b"hello" * 10)
    contexts = [driver.get("cuDevicePrimaryCtxRetain", device) for device in range(2)]
    driver.call("cuCtxSetCurrent", contexts[1])
    second = driver.allocate(50)
    driver.call("cuMemcpyPeer", second, contexts[1], first, contexts[0], 50)
    assert driver.download(second, 50) == b"hello" * 10


# ---- several processes ----


def test_processes_share_the_devices_memory(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "driver.start()\n"
        "pointer = driver.allocate(40 << 20)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
    )
    with Control(tmp_path) as control:
        values = control.environment(build(), memory=64 * MIB)
        scratch = tmp_path / "first"
        scratch.mkdir()
        head = (
            f"import sys; sys.path.insert(0, {str(Path(__file__).resolve().parent)!r})\n"
            "from pathlib import Path\n"
            "from fake_cuda.build import build\n"
            "from fake_cuda.driver import Driver\n"
            f"driver = Driver(build(), Path({str(scratch)!r}))\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", head + code],
            env=process_environment(values),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as holder:
            assert holder.stdout is not None and holder.stdin is not None
            assert holder.stdout.readline() == "ready\n"
            assert control.memory_used() == 40 * MIB
            scratch = tmp_path / "second"
            scratch.mkdir()
            refused = run_child("driver.start(); driver.allocate(40 << 20)", scratch, **values)
            assert "cuMemAlloc_v2 returned 2" in refused.stderr
            holder.stdin.write("\n")
            holder.stdin.flush()
            assert holder.wait(10) == 0
        assert control.memory_used() == 0
        granted = run_child("driver.start(); driver.allocate(40 << 20)", scratch, **values)
        assert granted.returncode == 0, granted.stderr
        assert control.calls()["cuMemAlloc_v2"] == 3


def test_memory_is_opened_by_another_process(tmp_path: Path, driver: Driver) -> None:
    pointer = driver.upload(b"shared bytes")
    handle = ctypes.create_string_buffer(64)
    driver.call("cuIpcGetMemHandle", handle, pointer)
    scratch = tmp_path / "other"
    scratch.mkdir()
    done = run_child(
        "import ctypes\n"
        "class Handle(ctypes.Structure):\n"
        "    _fields_ = [('bytes', ctypes.c_char * 64)]\n"
        f"handle = Handle.from_buffer_copy({handle.raw!r})\n"
        "driver.start()\n"
        "pointer = driver.get('cuIpcOpenMemHandle_v2', handle, 1)\n"
        "print(driver.download(pointer, 12))\n"
        "driver.call('cuMemsetD8_v2', pointer, 33, 6)\n"
        "driver.call('cuIpcCloseMemHandle', pointer)\n",
        scratch,
    )
    assert done.stdout == "b'shared bytes'\n", done.stderr
    assert driver.download(pointer, 12) == b"!!!!!! bytes"
