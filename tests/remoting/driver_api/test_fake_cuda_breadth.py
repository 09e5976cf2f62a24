"""The fake driver's smaller parts: textures, links, batches, attributes, tables, threads."""

import ctypes
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fake_cuda.build import build
from fake_cuda.driver import Driver

NOT_SUPPORTED, INVALID_VALUE = 801, 1
EMPTY_PTX = b".version 8.0\n.target sm_90\n.visible .entry %s(.param .u32 a) { ret; }\n"


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    loaded = Driver(build(), tmp_path)
    loaded.start()
    yield loaded
    assert loaded.library.fakeCudaMissingCalls() == 0


class ArrayDescriptor(ctypes.Structure):
    _fields_ = [
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
        ("format", ctypes.c_uint),
        ("channels", ctypes.c_uint),
    ]


class Resource(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_uint64),
        ("words", ctypes.c_uint64 * 16),
        ("flags", ctypes.c_uint64),
    ]


def test_arrays_hold_bytes_and_textures_describe_them(driver: Driver) -> None:
    wanted = ArrayDescriptor(16, 4, 0x20, 1)
    array = driver.get("cuArrayCreate_v2", ctypes.byref(wanted))
    data = bytes(range(64))
    driver.call("cuMemcpyHtoA_v2", array, 0, data, 64)
    back = ctypes.create_string_buffer(32)
    driver.call("cuMemcpyAtoH_v2", back, array, 32, 32)
    assert back.raw == data[32:]
    assert driver.code("cuMemcpyAtoH_v2", back, array, 40, 32) == INVALID_VALUE
    resource = Resource(0)
    resource.words[0] = array
    sampling = (ctypes.c_uint * 26)(1, 1, 1, 1)
    texture = driver.get("cuTexObjectCreate", ctypes.byref(resource), sampling, 0)
    got = Resource()
    driver.call("cuTexObjectGetResourceDesc", ctypes.byref(got), texture)
    assert got.words[0] == array
    driver.call("cuTexObjectDestroy", texture)
    assert driver.code("cuTexObjectDestroy", texture) == INVALID_VALUE
    driver.call("cuArrayDestroy", array)
    assert driver.code("cuTexObjectCreate", ctypes.byref(got), ctypes.byref(got), sampling, 0) == 1


def test_linked_ptx_has_the_kernels_of_all_inputs(driver: Driver) -> None:
    made = ctypes.c_uint64()
    driver.call("cuLinkCreate_v2", 0, 0, 0, ctypes.byref(made))
    state = made.value
    for name in (b"first", b"second"):
        text = EMPTY_PTX % name
        driver.call("cuLinkAddData_v2", state, 1, text, len(text), name, 0, 0, 0)
    image, size = ctypes.c_uint64(), ctypes.c_size_t()
    driver.call("cuLinkComplete", state, ctypes.byref(image), ctypes.byref(size))
    module = driver.get("cuModuleLoadData", image.value)
    driver.call("cuLinkDestroy", state)
    assert driver.function(module, "first") != driver.function(module, "second")


def test_batches_copy_and_write(driver: Driver) -> None:
    one = driver.get("cuStreamCreate", 1)
    source, target = driver.upload(b"abcdefgh"), driver.upload(bytes(8))
    targets = (ctypes.c_uint64 * 2)(target, target + 4)
    sources = (ctypes.c_uint64 * 2)(source + 4, source)
    sizes = (ctypes.c_size_t * 2)(4, 4)
    attributes, first = (ctypes.c_uint32 * 6)(1), (ctypes.c_size_t * 1)(0)
    driver.call("cuMemcpyBatchAsync_v2", targets, sources, sizes, 2, attributes, first, 1, one)
    driver.call("cuStreamSynchronize", one)
    assert driver.download(target, 8) == b"efghabcd"
    write = (ctypes.c_uint64 * 6)(2, target, 0x41414141, 0, 0, 0)
    driver.call("cuStreamBatchMemOp_v2", one, 1, write, 0)
    driver.call("cuStreamSynchronize", one)
    assert driver.download(target, 8) == b"AAAAabcd"


def test_stream_attributes_are_kept(driver: Driver) -> None:
    first, second = (driver.get("cuStreamCreate", 1) for _ in range(2))
    value, got = (ctypes.c_uint64 * 8)(7, 8), (ctypes.c_uint64 * 8)()
    driver.call("cuStreamSetAttribute", first, 1, value)
    driver.call("cuStreamCopyAttributes", second, first)
    driver.call("cuStreamGetAttribute", second, 1, got)
    assert list(got) == list(value)


def test_generic_nodes_run_and_can_be_switched_off(driver: Driver) -> None:
    data = driver.upload(bytes(16))
    graph = driver.get("cuGraphCreate", 0)
    # CUgraphNodeParams: the type, 12 bytes, then the union; a memset is 7 words.
    fill = (ctypes.c_uint64 * 32)(2, 0, data, 0, 5 | 4 << 32, 4, 1, 0)
    node = driver.get("cuGraphAddNode_v2", graph, 0, 0, 0, fill)
    executable = driver.get("cuGraphInstantiateWithFlags", graph, 0)
    driver.call("cuGraphNodeSetEnabled", executable, node, 0)
    driver.call("cuGraphLaunch", executable, 0)
    assert driver.download(data, 16) == bytes(16)
    driver.call("cuGraphNodeSetEnabled", executable, node, 1)
    driver.call("cuGraphLaunch", executable, 0)
    assert driver.download(data, 16) == struct.pack("4i", 5, 5, 5, 5)
    semaphore = (ctypes.c_uint64 * 32)(8)
    where = (ctypes.byref(ctypes.c_uint64()), graph, 0, 0, 0, semaphore)
    assert driver.code("cuGraphAddNode_v2", *where) == NOT_SUPPORTED


def test_tensor_maps_depend_on_their_arguments_alone(driver: Driver) -> None:
    def encode(address: int) -> bytes:
        room = ctypes.create_string_buffer(256)
        at = (ctypes.addressof(room) + 127) // 128 * 128
        sizes = (ctypes.c_uint64 * 2)(64, 64)
        box = (ctypes.c_uint32 * 2)(16, 16)
        shape = (sizes, sizes, box, box)
        driver.call("cuTensorMapEncodeTiled", at, 7, 2, address, *shape, 0, 0, 0, 0)
        return ctypes.string_at(at, 128)

    assert encode(4096) == encode(4096) != encode(8192)


@pytest.mark.parametrize(
    ("message", "digest"),
    [
        (b"", "d39ad9dde006587a8be949b11b9288f8"),
        (b"abc", "f85b118422da4ccb735b71f398e24539"),
        (b"message digest of more than one block", "0fd2e04bc1881446bb683100c61866da"),
    ],
)
def test_the_runtimes_check_uses_hmac_md2(driver: Driver, message: bytes, digest: str) -> None:
    """Expected values by another implementation of RFC 1319 and RFC 2104."""
    out = ctypes.create_string_buffer(16)
    size = ctypes.c_size_t(len(message))
    driver.library.fakeCudaHmacMd2(bytes(range(16)), message, size, out)
    assert out.raw.hex() == digest


def test_export_tables_are_given_or_refused(driver: Driver) -> None:
    table = ctypes.c_uint64()
    known = bytes.fromhex("6bd5fb6c5bf4e74a8987d93912fd9df9")
    driver.call("cuGetExportTable", ctypes.byref(table), known)
    assert ctypes.c_uint64.from_address(table.value).value == 13 * 8
    unknown = bytes.fromhex("da9151d33ae6cc41a5c04f26d533e328")
    assert driver.code("cuGetExportTable", ctypes.byref(table), unknown) == INVALID_VALUE


def test_context_local_values_are_dropped_with_the_context(driver: Driver) -> None:
    table = ctypes.c_uint64()
    storage = bytes.fromhex("c693336e1121df11a8c368f355d89593")
    driver.call("cuGetExportTable", ctypes.byref(table), storage)
    put, delete, get = (ctypes.c_void_p * 3).from_address(table.value)
    dropped: list[int | None] = []
    drop_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)

    @drop_type
    def drop(_context: int | None, _key: int | None, value: int | None) -> None:
        dropped.append(value)

    def function(address: Any, *kinds: Any) -> Any:
        return ctypes.CFUNCTYPE(ctypes.c_uint, *kinds)(address)

    word = ctypes.c_uint64
    store = function(put, word, word, word, drop_type)
    load = function(get, ctypes.POINTER(word), word, word)
    remove = function(delete, word, word)
    value = word()
    assert load(ctypes.byref(value), 0, 11) == 400
    for key in (11, 12):
        assert store(0, key, key * 10, drop) == 0
    assert load(ctypes.byref(value), 0xFFFFFFFFFFFFFFFF, 11) == 0
    assert value.value == 110
    assert remove(0, 11) == 0
    driver.call("cuDevicePrimaryCtxReset_v2", 0)
    assert dropped == [120]


def test_threads_work_at_once(driver: Driver) -> None:
    context = driver.get("cuCtxGetCurrent")
    module = driver.module()
    increment = driver.function(module, "increment")
    wrong: list[object] = []

    def work(rounds: int) -> None:
        driver.call("cuCtxSetCurrent", context)
        one = driver.get("cuStreamCreate", 1)
        event = driver.get("cuEventCreate", 2)
        for number in range(rounds):
            data = driver.get("cuMemAllocAsync", 4 * 64, one)
            driver.call("cuMemsetD32Async", data, number, 64, one)
            driver.launch(increment, ctypes.c_uint64(data), ctypes.c_int(64), stream=one)
            driver.call("cuEventRecord", event, one)
            driver.call("cuStreamWaitEvent", one, event, 0)
            back = ctypes.create_string_buffer(256)
            driver.call("cuMemcpyDtoHAsync_v2", back, data, 256, one)
            driver.call("cuMemFreeAsync", data, one)
            if back.raw != struct.pack("i", number + 1) * 64:
                wrong.append((number, back.raw))
        driver.call("cuStreamSynchronize", one)
        driver.call("cuStreamDestroy_v2", one)

    threads = [threading.Thread(target=work, args=(100,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
    assert len(driver.launches()) == 400
