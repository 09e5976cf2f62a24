"""Executes the records of one client process, in their order."""

import ctypes
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.devices.base import Budget, DeviceSpec
from gpupool.remoting.driver import table
from gpupool.remoting.driver.api import (
    CAPTURE_RELAXED,
    DEVICE_TO_DEVICE,
    DEVICE_TO_HOST,
    HOST_TO_DEVICE,
    INVALID_HANDLE,
    INVALID_VALUE,
    OUT_OF_MEMORY,
    Api,
    CudaError,
)
from gpupool.remoting.driver.launcher import Launcher
from gpupool.remoting.driver.linker import Linker
from gpupool.remoting.driver.snapshot import encode_snapshot
from gpupool.remoting.driver.virtual import VirtualMemory
from gpupool.remoting.driver.waiting import Download, Mirror, Waiter

RECORD = struct.Struct("<HHI")
LAUNCH = struct.Struct("<QQ6III")
WORDS = [struct.Struct(f"<{count}Q") for count in range(64)]
HEADER, REQUEST = 8, 8
LAUNCH_ATTRIBUTE_SIZE = 72
FUNCTION_ATTRIBUTE_COUNT = 16
LEGACY_STREAM = 1
IMAGE_SIZE_MAX = 1 << 30
DOWNLOAD_SIZE_MAX = 64 << 20
"""Larger downloads are waited for piece by piece, so that pinned memory stays bounded."""

MAPPED_SIZE_MAX = 256 << 20
"""Bytes of the client's memory that kernels may see, all together."""

OBJECTS_MAX = 1 << 20
"""Streams, events and so on that one client may have at a time, of each kind."""

SMALL_SIZE = 512
LARGE_SIZE = 1 << 20
PIECE_SIZE = 8 << 20
"""Of a large download: one is sent while the next is copied."""

LARGE_UNIT = 2 << 20
SIGNED = 1 << 63


@dataclass(slots=True)
class Function:
    """A kernel with everything that a launch needs, prepared."""

    handle: int
    kernel: bool
    size: int
    view: memoryview  # of the parameters' bytes, which lie at ``values``
    values: int
    pointers: int  # to one address for each parameter
    keep: tuple[Any, ...]


def charged(size: int) -> int:
    """Return what an allocation costs: small ones share pages of CUDA, large ones fill theirs."""
    unit = LARGE_UNIT if size >= LARGE_SIZE else SMALL_SIZE
    return (size + unit - 1) // unit * unit


def prepare(handle: int, parameters: list[tuple[int, int]], *, kernel: bool) -> Function:
    """Return a function whose launch costs one copy of the parameters' bytes."""
    size = max((offset + length for offset, length in parameters), default=0)
    values = ctypes.create_string_buffer(max(size, 1))
    base = ctypes.addressof(values)
    addresses = [base + offset for offset, _ in parameters]
    pointers = (ctypes.c_void_p * max(len(addresses), 1))(*addresses)
    view = memoryview(values).cast("B")[:size]
    where = ctypes.addressof(pointers)
    return Function(handle, kernel, size, view, base, where, (values, pointers))


class Executor:
    """The objects of one client process, and one method per record.

    A method gets the values of its record and whether somebody waits (``request``, 0 for nobody).
    What it returns is the body of the reply; ``None`` means that a reply comes later.
    """

    def __init__(
        self,
        api: Api,
        session: Any,
        devices: Sequence[DeviceSpec],
        budget: Budget,
        log: Callable[[str], None],
    ) -> None:
        self.api = api
        self.session = session
        self.devices = devices
        self.budget = budget
        self.log = log
        self.device = 0
        self.ordinals = [cast("int", spec.ordinal) for spec in devices]
        self.waiter = Waiter(api, session, self.ordinals)
        self.streams: dict[int, int] = {LEGACY_STREAM: 0}
        self.functions: dict[int, Function] = {}
        self.modules: dict[int, tuple[int, bool]] = {}
        self.objects: dict[str, dict[int, int]] = {kind: {} for kind in "egxp"}
        self.objects["s"] = self.streams
        self.allocations: dict[int, tuple[int, int]] = {}
        self.virtual = VirtualMemory(api, budget)
        self.linker = Linker(api)
        self.failed = (0, 0)  # status and record of the first failure nobody has heard of
        self.bulk = 0
        self.request = 0
        self.record_start = 0
        self.record_end = 0
        self.launcher = Launcher.load()
        if self.launcher is not None:
            self.launcher.stream(LEGACY_STREAM, 0)
        self.buffer = bytearray()
        self.buffer_address = 0
        self.view = memoryview(b"")
        self.handlers = self._make_handlers()
        api.runtime.setDevice(self.ordinals[0])

    # --- decoding ---------------------------------------------------------------------------------

    def execute(self, buffer: bytearray, view: memoryview, start: int, end: int, bulk: int) -> None:
        """Execute the records of one frame; ``bulk`` bytes of the stream belong to the last.

        Raises:
            ProtocolError: when a record is malformed.
        """
        if buffer is not self.buffer:
            self.buffer_address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        self.buffer, self.view, self.bulk = buffer, view, 0
        launcher, count = self.launcher, 0
        unpack, unpack_launch = RECORD.unpack_from, LAUNCH.unpack_from
        functions, streams, handlers = self.functions, self.streams, self.handlers
        launch, errors = self.api.launch, self.api.errors
        plain_launch = table.LAUNCH
        while start < end:
            if end - start < HEADER:
                raise RemoteProtocolError("malformed record")
            op, flags, size = unpack(buffer, start)
            if size < HEADER or size & 7 or size > end - start:
                raise RemoteProtocolError("malformed record")
            if launcher is not None and op == plain_launch and flags == 0:
                at, status, launched = launcher.run(self.buffer_address, start, end)
                count += launched
                if status:
                    self._fail(op, status)
                    at += unpack(buffer, at)[2]
                if at > start:
                    start = at
                    continue
            try:
                if op == plain_launch and flags == 0:
                    if size < 56:
                        raise RemoteProtocolError("malformed launch")
                    number, stream, gx, gy, gz, bx, by, bz, shared, length = unpack_launch(
                        buffer, start + 8
                    )
                    function = functions[number]
                    if length != function.size or length > size - 56:
                        raise RemoteProtocolError("malformed launch")
                    if length:
                        function.view[:] = view[start + 56 : start + 56 + length]
                    launch(
                        function.handle, gx, gy, gz, bx, by, bz, shared, streams[stream],
                        function.pointers, 0,
                    )  # fmt: skip
                else:
                    self.record_start, self.record_end = start, start + size
                    if start + size == end:
                        self.bulk, bulk = bulk, 0
                    handler = handlers.get(op)
                    if handler is None:
                        raise RemoteProtocolError("unknown record", why=str(op))
                    handler(flags)
            except errors as error:
                self._fail(op, self.api.status_of(error))
            except OverflowError:
                self._fail(op, INVALID_VALUE)  # a number that no parameter of CUDA holds
            except KeyError:
                # A handle that never was, or is no more: the client's mistake, as with CUDA.
                self._fail(op, INVALID_HANDLE)
            start += size
            count += 1
        if bulk or self.bulk:
            raise RemoteProtocolError("bytes behind a frame that nobody asked for")
        self.session.stream.calls += count

    def _fail(self, op: int, status: int) -> None:
        if self.failed[0] == 0:
            self.failed = (status, op)
            self.log(f"CUDA session: record {op} failed with {status}")

    def _values(self, count: int, offset: int = HEADER) -> tuple[int, ...]:
        """Return ``count`` words of the record."""
        at = self.record_start + offset
        if at + count * 8 > self.record_end:
            raise RemoteProtocolError("malformed record")
        return WORDS[count].unpack_from(self.buffer, at)

    def _rest(self, count: int, size: int, offset: int = HEADER) -> memoryview:
        """Return ``size`` bytes behind ``count`` words."""
        at = self.record_start + offset + count * 8
        if at + size > self.record_end:
            raise RemoteProtocolError("malformed record")
        return self.view[at : at + size]

    def _text(self, count: int) -> bytes:
        """Return the text behind ``count`` words of a request; padding is zero bytes."""
        at = self.record_start + HEADER + REQUEST + count * 8
        return bytes(self.view[at : self.record_end]).rstrip(b"\0")

    def _make_handlers(self) -> dict[int, Callable[[int], None]]:
        asynchronous: dict[int, tuple[int, Callable[..., None]]] = {
            table.SET_DEVICE: (1, self._set_device),
            table.COPY_IN: (3, self._copy_in),
            table.DOWNLOAD: (4, self._download),
            table.FREE: (1, self._free),
            table.FREE_ASYNC: (2, self._free_async),
            table.UNLOAD_LIBRARY: (1, self._unload),
            table.UNLOAD_MODULE: (1, self._unload),
            table.SET_FUNCTION_ATTRIBUTE: (4, self._set_function_attribute),
            table.RECORD_EVENT: (3, self._record_event),
            table.WAIT_EVENT: (3, self._wait_event),
            table.BEGIN_CAPTURE: (2, self._begin_capture),
            table.COPY_3D: (10, self._copy_3d),
            table.RESET_DEVICE: (1, self._reset_device),
            table.MAP_WRITE: (3, self._map_write),
            table.VIRTUAL_RELEASE: (1, self.virtual.release),
            table.VIRTUAL_RETURN: (2, self.virtual.give_back),
            table.VIRTUAL_UNMAP: (2, self.virtual.unmap),
            table.LINK_DESTROY: (1, self.linker.destroy),
        }
        waiting: dict[int, tuple[int, Callable[..., bytes | None]]] = {
            table.HELLO: (2, self._hello),
            table.COPY_OUT: (3, self._copy_out),
            table.DRAIN: (1, self._drain),
            table.ALLOCATE: (1, self._allocate),
            table.ALLOCATE_ASYNC: (3, self._allocate_async),
            table.MEMORY_INFO: (0, self._memory_info),
            table.POOL_GET: (2, self._pool_get),
            table.POOL_SET: (3, self._pool_set),
            table.LOAD_LIBRARY: (2, self._load_library),
            table.LOAD_MODULE: (2, self._load_module),
            table.LIBRARY_MODULE: (2, self._library_module),
            table.FIND_KERNEL: (2, self._find_kernel),
            table.FIND_FUNCTION: (2, self._find_function),
            table.FIND_GLOBAL: (1, self._find_global),
            table.ENUMERATE: (1, self._enumerate),
            table.FUNCTION_ATTRIBUTES: (2, self._function_attributes),
            table.OCCUPANCY: (5, self._occupancy),
            table.OCCUPANCY_SHARED: (5, self._occupancy_shared),
            table.OCCUPANCY_CLUSTERS: (0, self._occupancy_clusters),
            table.SYNC_STREAM: (1, self._sync_stream),
            table.SYNC_EVENT: (1, self._sync_event),
            table.SYNC_DEVICE: (1, self._sync_device),
            table.QUERY_STREAM: (1, self._query_stream),
            table.QUERY_EVENT: (1, self._query_event),
            table.END_CAPTURE: (2, self._end_capture),
            table.GRAPH_NODES: (1, self._graph_nodes),
            table.TENSOR_MAP: (0, self._tensor_map),
            table.MAP_HOST: (2, self._map_host),
            table.MAP_FREE: (1, self._map_free),
            table.GET_LIMIT: (1, self._get_limit),
            table.SET_LIMIT: (2, self._set_limit),
            table.VIRTUAL_CREATE: (3, self._virtual_create),
            table.VIRTUAL_RESERVE: (3, self._virtual_reserve),
            table.VIRTUAL_MAP: (3, self._virtual_map),
            table.VIRTUAL_ACCESS: (4, self._virtual_access),
            table.LINK_CREATE: (5, self._link_create),
            table.LINK_ADD: (3, self._link_add),
            table.LINK_COMPLETE: (1, self.linker.complete),
        }
        handlers: dict[int, Callable[[int], None]] = {
            op: self._posted(count, method) for op, (count, method) in asynchronous.items()
        }
        for op, (count, method) in waiting.items():
            handlers[op] = self._asked(count, method)
        handlers[table.LAUNCH] = self._launch_cooperative
        handlers[table.LAUNCH_EX] = self._launch_ex
        fast: dict[str, Callable[..., None]] = {
            "cuMemcpyDtoDAsync": self._copy_across,
            "cuMemsetD8Async": self._fill,
        }
        for op, (name, tokens, asked) in table.CALLS.items():
            words = tokens.split()
            if name in fast:
                handlers[op] = self._posted(len(words), fast[name])
            elif asked:
                handlers[op] = self._asked(len(words), self._generic(name, words))
            else:
                handlers[op] = self._posted(len(words), self._generic(name, words))
        return handlers

    def _posted(self, count: int, method: Callable[..., Any]) -> Callable[[int], None]:
        def run(_flags: int) -> None:
            method(*self._values(count))

        return run

    def _asked(self, count: int, method: Callable[..., bytes | None]) -> Callable[[int], None]:
        def run(flags: int) -> None:
            if not flags & 1:
                raise RemoteProtocolError("a call that waits came without a request")
            request, *values = self._values(1 + count)
            self.request = request
            try:
                body = method(*values)
            except self.api.errors as error:
                self._skip_bulk()
                self.session.reply(request, self.api.status_of(error))
            except KeyError:
                self._skip_bulk()
                self.session.reply(request, INVALID_HANDLE)
            except OverflowError:
                self._skip_bulk()
                self.session.reply(request, INVALID_VALUE)
            else:
                if body is not None:
                    self.session.reply(request, 0, body)

        return run

    def _skip_bulk(self) -> None:
        """Read the bytes of a request that failed before it read them itself."""
        scratch = memoryview(bytearray(min(self.bulk, 1 << 20)))
        while self.bulk:
            piece = scratch[: min(self.bulk, len(scratch))]
            self.session.reader.into(piece)
            self.bulk -= len(piece)

    # --- calls that need nothing but their parameters ---------------------------------------------

    def _generic(self, name: str, tokens: list[str]) -> Callable[..., bytes]:
        """Return a method that converts the words of a record and calls cuda.bindings."""
        made = next((token[1] for token in tokens if token[0] == "+"), "")
        ended = next((token[1] for token in tokens if token[0] == "!"), "")

        def run(*words: int) -> bytes:
            arguments: list[Any] = []
            new = gone = 0
            for token, word in zip(tokens, words, strict=True):
                if token[0] == "+":
                    new = word
                    continue
                if token[0] == "!":
                    gone = word
                arguments.append(self._argument(token.lstrip("!"), word))
            output = self.api.call(name, *arguments)
            if ended:
                del self.objects[ended][gone]
                if ended == "s" and self.launcher is not None:
                    self.launcher.end_stream(gone)
            if made:
                self._keep(made, new, int(output))
                return b""
            if isinstance(output, float):
                return struct.pack("<f", output)
            return struct.pack("<q", int(output)) if isinstance(output, int) else b""

        return run

    def _argument(self, kind: str, word: int) -> Any:
        if kind == "f":
            return self.functions[word].handle
        if kind in self.objects:
            return self.objects[kind][word]
        if kind == "d":
            return self.ordinals[self._index(word)]
        if kind.startswith("="):
            return self.api.enumerated(kind[1:], word)
        return word - 2 * SIGNED if word >= SIGNED else word

    def _keep(self, kind: str, number: int, handle: int) -> None:
        found = self.objects[kind]
        if number in found or number <= LEGACY_STREAM or len(found) >= OBJECTS_MAX:
            raise RemoteProtocolError("a handle that cannot be made", why=f"{kind} {number}")
        found[number] = handle
        if kind == "s" and self.launcher is not None:
            self.launcher.stream(number, handle)

    def _index(self, device: int) -> int:
        if device >= len(self.devices):
            raise RemoteProtocolError("no such device", why=str(device))
        return device

    # --- the session ------------------------------------------------------------------------------

    def _hello(self, protocol: int, _version: int) -> bytes:
        if protocol != 1:
            raise RemoteProtocolError("the client speaks another version of the CUDA door")
        snapshot = encode_snapshot(self.api, self.devices)
        self.api.runtime.setDevice(self.ordinals[self.device])
        return snapshot

    def _set_device(self, device: int) -> None:
        self.device = self._index(device)
        self.api.runtime.setDevice(self.ordinals[device])

    def _get_limit(self, limit: int) -> bytes:
        name = self.api.enumerated("CUlimit", limit)
        return WORDS[1].pack(int(self.api.call("cuCtxGetLimit", name)))

    def _set_limit(self, limit: int, value: int) -> bytes:
        self.api.call("cuCtxSetLimit", self.api.enumerated("CUlimit", limit), value)
        return b""

    def _reset_device(self, device: int) -> None:
        self._index(device)
        for address, (owner, _) in list(self.allocations.items()):
            if owner == device:
                self._free(address)

    # --- memory -----------------------------------------------------------------------------------

    def _reserve(self, size: int) -> int:
        cost = charged(size)
        if not self.budget.reserve(self.device, cost):
            raise CudaError(OUT_OF_MEMORY, "cuMemAlloc")
        return cost

    def _allocate(self, size: int) -> bytes | None:
        device = self.device
        return self._once_freed(lambda: self._allocate_now(device, size))

    def _once_freed(self, work: Callable[[], bytes]) -> bytes | None:
        """Return what ``work`` gives; if memory is short, answer once frees before it are over."""
        try:
            return work()
        except self.api.errors as error:
            if self.api.status_of(error) != OUT_OF_MEMORY or not self.waiter.freeing.pending:
                raise
        self._after_frees(work)
        return None

    def _allocate_now(self, device: int, size: int) -> bytes:
        cost = charged(size)
        if not self.budget.reserve(device, cost):
            raise CudaError(OUT_OF_MEMORY, "cuMemAlloc")
        try:
            address = self.api.runtime.malloc(size)
        except self.api.errors:
            self.budget.release(device, cost)
            raise
        self.allocations[address] = (device, cost)
        return WORDS[1].pack(address)

    def _after_frees(self, work: Callable[[], bytes]) -> None:
        """Answer the request with what ``work`` gives once nothing is being freed any more."""
        request, waiter = self.request, self.waiter

        def run() -> None:
            waiter.freeing.wait()
            try:
                body = work()
            except self.api.errors as error:
                self.session.reply(request, self.api.status_of(error))
            else:
                self.session.reply(request, 0, body)

        waiter.start(self.device, run)

    def _allocate_async(self, size: int, pool: int, stream: int) -> bytes:
        cost = self._reserve(size)
        try:
            if pool:
                address = int(
                    self.api.call(
                        "cuMemAllocFromPoolAsync",
                        size,
                        self.objects["p"][pool],
                        self.streams[stream],
                    )
                )
            else:
                address = self.api.runtime.mallocAsync(size, self.streams[stream])
        except (*self.api.errors, KeyError):
            self.budget.release(self.device, cost)
            raise
        if size:
            self.allocations[address] = (self.device, cost)
        return WORDS[1].pack(address)

    def _free(self, address: int) -> None:
        """Free memory on a thread of its own: CUDA waits for the GPU before it does."""
        device, cost = self.allocations.pop(address)
        freeing = self.waiter.freeing
        freeing.begin()

        def run() -> None:
            try:
                self.api.runtime.free(address)
            except self.api.errors as error:
                self._fail(table.FREE, self.api.status_of(error))
            finally:
                # In this order: whoever waits must find the memory in the books.
                self.budget.release(device, cost)
                freeing.end()

        self.waiter.start(device, run)

    def _free_async(self, address: int, stream: int) -> None:
        handle = self.streams[stream]
        device, cost = self.allocations.pop(address)
        self.api.runtime.freeAsync(address, handle)
        self.budget.release(device, cost)

    def _memory_info(self) -> bytes | None:
        device = self.device
        if self.waiter.freeing.pending:
            self._after_frees(lambda: self._memory_info_now(device))
            return None
        return self._memory_info_now(device)

    def _memory_info_now(self, device: int) -> bytes:
        total = self.devices[device].memory
        left = max(0, total - self.budget.usage(device))
        free, _ = self.api.runtime.memGetInfo()
        return WORDS[2].pack(min(left, free), total)

    def _pool_get(self, pool: int, attribute: int) -> bytes:
        name = self.api.enumerated("CUmemPool_attribute", attribute)
        return WORDS[1].pack(
            int(self.api.call("cuMemPoolGetAttribute", self.objects["p"][pool], name))
        )

    def _pool_set(self, pool: int, attribute: int, value: int) -> bytes:
        name = self.api.enumerated("CUmemPool_attribute", attribute)
        wrap = self.api.cu.cuuint64_t if attribute > 3 else int
        self.api.call("cuMemPoolSetAttribute", self.objects["p"][pool], name, wrap(value))
        return b""

    def _fill(self, address: int, value: int, size: int, stream: int) -> None:
        self.api.runtime.memsetAsync(address, value, size, self.streams[stream])

    def _copy_across(self, target: int, source: int, size: int, stream: int) -> None:
        self.api.copy(target, source, size, DEVICE_TO_DEVICE, self.streams[stream])

    def _copy_in(self, target: int, size: int, stream: int) -> None:
        if self.bulk:
            if size != self.bulk:
                raise RemoteProtocolError("malformed upload")
            self._copy_bulk_in(target, size, self.streams.get(stream))
            return
        piece = self._rest(3, size)
        if self.streams.get(stream) is None:
            raise CudaError(INVALID_HANDLE, "cuMemcpyHtoDAsync")
        # CUDA copies pageable bytes before it returns, so they need not stay.
        address = ctypes.addressof(ctypes.c_char.from_buffer(piece))
        self.api.copy(target, address, size, HOST_TO_DEVICE, self.streams[stream])

    def _copy_bulk_in(self, target: int, size: int, stream: int | None) -> None:
        problem: int = 0
        errors = self.api.errors
        while self.bulk:
            staging = self.waiter.staging.upload(self.device)
            piece = staging.view[: min(self.bulk, staging.size)]
            self.session.reader.into(piece)
            done = size - self.bulk
            self.bulk -= len(piece)
            if stream is None or problem:
                continue
            try:
                self.api.copy(target + done, staging.address, len(piece), HOST_TO_DEVICE, stream)
                self.api.record(staging.event, stream)
            except errors as error:
                problem = self.api.status_of(
                    error
                )  # the rest is read all the same, to find the next frame
        if stream is None:
            raise CudaError(INVALID_HANDLE, "cuMemcpyHtoDAsync")
        if problem:
            raise CudaError(problem, "cuMemcpyHtoDAsync")

    def _download(self, source: int, size: int, stream: int, number: int) -> None:
        device, handle = self.device, self.streams[stream]
        if size > DOWNLOAD_SIZE_MAX:
            raise CudaError(OUT_OF_MEMORY, "cuMemcpyDtoHAsync")
        buffer = self.waiter.take(device, size)
        self.api.copy(buffer.address, source, size, DEVICE_TO_HOST, handle)
        self.api.record(buffer.event, handle)
        self.waiter.download(Download(number, device, buffer, size))

    def _copy_out(self, source: int, size: int, stream: int) -> None:
        request, device, handle = self.request, self.device, self.streams[stream]
        failed = self._take_failure(request)
        if failed:
            return
        waiter, api, session = self.waiter, self.api, self.session
        if size <= LARGE_SIZE:
            buffer = waiter.take(device, size)
            api.copy(buffer.address, source, size, DEVICE_TO_HOST, handle)
            api.record(buffer.event, handle)

            def finish() -> None:
                status = 0
                try:
                    api.runtime.eventSynchronize(buffer.event)
                    waiter.push()
                except api.errors as error:
                    status = api.status_of(error)
                bulk = () if status else (buffer.view[:size],)
                session.reply(request, status, bulk=bulk)
                waiter.give(device, buffer)

            if waiter.soon(buffer.event):
                finish()
            else:
                waiter.start(device, finish)
            return
        event = waiter.event(device)
        api.record(event, handle)
        waiter.start(device, lambda: self._copy_out_large(request, device, source, size, event))

    def _copy_out_large(
        self, request: int, device: int, source: int, size: int, event: int
    ) -> None:
        """Wait for ``event``, then copy in pieces: one is sent while the next is copied."""
        api, waiter = self.api, self.waiter
        buffers = [waiter.take(device, PIECE_SIZE) for _ in range(2)]
        stream = api.runtime.streamCreateWithFlags(1)  # non-blocking
        starts = range(0, size, PIECE_SIZE)
        status = 0

        def begin(at: int) -> None:
            buffer = buffers[at % 2]
            length = min(PIECE_SIZE, size - starts[at])
            api.copy(buffer.address, source + starts[at], length, DEVICE_TO_HOST, stream)
            api.record(buffer.event, stream)

        def pieces() -> Iterator[memoryview]:
            # Once the first piece is there, the rest fails only when the GPU is lost.
            for at, start in enumerate(starts):
                if at + 1 < len(starts):
                    begin(at + 1)
                api.runtime.eventSynchronize(buffers[at % 2].event)
                yield buffers[at % 2].view[: min(PIECE_SIZE, size - start)]

        try:
            api.runtime.eventSynchronize(event)
            waiter.push()
            begin(0)
            api.runtime.eventSynchronize(buffers[0].event)
        except api.errors as error:
            status = api.status_of(error)
        if status:
            self.session.reply(request, status)
        else:
            self.session.reply_in_parts(request, size, pieces())
        api.runtime.streamDestroy(stream)
        for buffer in buffers:
            waiter.give(device, buffer)
        waiter.give_event(device, event)

    def _drain(self, _unused: int) -> None:
        self.waiter.start(self.device, self.waiter.guarded(self.request, self.waiter.drain))

    def _copy_3d(self, *values: int) -> None:
        to, to_pitch, to_slice, of, of_pitch, of_slice, width, height, depth, stream = values
        cu = self.api.cu
        copy = cu.CUDA_MEMCPY3D()
        kind = cu.CUmemorytype.CU_MEMORYTYPE_DEVICE
        copy.srcMemoryType = copy.dstMemoryType = kind
        copy.srcDevice, copy.srcPitch = cu.CUdeviceptr(of), of_pitch
        copy.dstDevice, copy.dstPitch = cu.CUdeviceptr(to), to_pitch
        copy.srcHeight, copy.dstHeight = of_slice // of_pitch, to_slice // to_pitch
        copy.WidthInBytes, copy.Height, copy.Depth = width, height, depth
        self.api.call("cuMemcpy3DAsync", copy, self.streams[stream])

    def _read_bulk(self, size: int, limit: int) -> bytearray:
        if size != self.bulk or size > limit:
            raise RemoteProtocolError("malformed bytes behind a record")
        data = bytearray(size)
        self.session.reader.into(memoryview(data))
        self.bulk = 0
        return data

    def _map_host(self, number: int, size: int) -> bytes:
        data = self._read_bulk(size, MAPPED_SIZE_MAX)
        mirrors = self.waiter.mirrors
        held = sum(len(mirror.bytes) for mirror in mirrors.values())
        if number in mirrors or held + size > MAPPED_SIZE_MAX:
            raise CudaError(OUT_OF_MEMORY, "cuMemHostGetDevicePointer")
        address = self.api.runtime.hostAlloc(size, 2)  # cudaHostAllocMapped
        memory: Any = (ctypes.c_uint8 * size).from_address(address)
        values = np.frombuffer(memory, np.uint8)
        values[:] = np.frombuffer(data, np.uint8)
        mirrors[number] = Mirror(address, values, np.frombuffer(data, np.uint8))
        return WORDS[1].pack(int(self.api.call("cuMemHostGetDevicePointer", address, 0)))

    def _map_write(self, number: int, first: int, size: int) -> None:
        data = self._read_bulk(size, MAPPED_SIZE_MAX)
        self.waiter.write_mirror(number, first, memoryview(data))

    def _map_free(self, number: int) -> None:
        mirror = self.waiter.mirrors.pop(number)

        def job() -> None:
            self.api.runtime.deviceSynchronize()
            self.api.runtime.freeHost(mirror.address)

        self.waiter.start(self.device, self.waiter.guarded(self.request, job))

    # --- virtual memory management ----------------------------------------------------------------

    def _virtual_create(self, number: int, size: int, device: int) -> bytes | None:
        ordinal, cost = self.ordinals[self._index(device)], charged(size)

        def work() -> bytes:
            self.virtual.create(number, size, device, ordinal, cost)
            return b""

        return self._once_freed(work)

    def _virtual_reserve(self, size: int, alignment: int, wish: int) -> bytes:
        return WORDS[1].pack(self.virtual.reserve(size, alignment, wish))

    def _virtual_map(self, address: int, size: int, number: int) -> bytes:
        self.virtual.map(address, size, number)
        return b""

    def _virtual_access(self, address: int, size: int, device: int, flags: int) -> bytes:
        self.virtual.set_access(address, size, self.ordinals[self._index(device)], flags)
        return b""

    # --- modules ----------------------------------------------------------------------------------

    def _image(self, size: int) -> bytearray:
        if size != self.bulk or size > IMAGE_SIZE_MAX:
            raise RemoteProtocolError("malformed image")
        image = bytearray(size + 1)  # PTX needs a zero behind it
        self.session.reader.into(memoryview(image)[:size])
        self.bulk = 0
        return image

    def _load_library(self, number: int, size: int) -> bytes:
        image = self._image(size)
        address = ctypes.addressof(ctypes.c_char.from_buffer(image))
        library = self.api.call("cuLibraryLoadData", address, [], [], 0, [], [], 0)
        self._keep_module(number, int(library), library=True)
        return b""

    def _load_module(self, number: int, size: int) -> bytes:
        image = self._image(size)
        address = ctypes.addressof(ctypes.c_char.from_buffer(image))
        self._keep_module(number, int(self.api.call("cuModuleLoadData", address)), library=False)
        return b""

    def _link_create(self, number: int, *given: int) -> bytes:
        self.linker.create(number, *given)
        return b""

    def _link_add(self, number: int, kind: int, size: int) -> bytes:
        self.linker.add(number, kind, self._image(size), size, self._text(3))
        return b""

    def _keep_module(self, number: int, handle: int, *, library: bool) -> None:
        if number in self.modules or len(self.modules) >= OBJECTS_MAX:
            raise RemoteProtocolError("a module that cannot be made")
        self.modules[number] = (handle, library)

    def _unload(self, number: int) -> None:
        handle, library = self.modules.pop(number)
        self.api.call("cuLibraryUnload" if library else "cuModuleUnload", handle)

    def _library_module(self, library: int, number: int) -> bytes:
        module = self.api.call("cuLibraryGetModule", self.modules[library][0])
        self._keep_module(number, int(module), library=False)
        return b""

    def _find_kernel(self, library: int, number: int) -> bytes:
        handle = int(self.api.call("cuLibraryGetKernel", self.modules[library][0], self._text(2)))
        return self._keep_function(number, handle, kernel=True)

    def _find_function(self, module: int, number: int) -> bytes:
        handle = int(self.api.call("cuModuleGetFunction", self.modules[module][0], self._text(2)))
        return self._keep_function(number, handle, kernel=False)

    def _keep_function(self, number: int, handle: int, *, kernel: bool) -> bytes:
        if number in self.functions or len(self.functions) >= OBJECTS_MAX:
            raise RemoteProtocolError("a function that cannot be made")
        parameters = self.api.parameters(handle, kernel=kernel)
        made = prepare(handle, parameters, kernel=kernel)
        self.functions[number] = made
        if self.launcher is not None:
            self.launcher.function(number, handle, made.values, made.pointers, made.size)
        flat = [value for pair in parameters for value in pair]
        return struct.pack(f"<II{len(flat)}I", len(parameters), 0, *flat)

    def _find_global(self, number: int) -> bytes:
        handle, library = self.modules[number]
        name = "cuLibraryGetGlobal" if library else "cuModuleGetGlobal"
        address, size = self.api.call(name, handle, self._text(1))
        return WORDS[2].pack(int(address), int(size))

    def _enumerate(self, number: int) -> bytes:
        handle, library = self.modules[number]
        kind, ask = ("Library", "Kernel") if library else ("Module", "Func")
        what = "Kernel" if library else "Function"
        count = int(self.api.call(f"cu{kind}Get{what}Count", handle))
        found: list[Any] = (
            self.api.call(f"cu{kind}Enumerate{what}s", count, handle) if count else []
        )
        names = [self.api.call(f"cu{ask}GetName", one) for one in found]
        return struct.pack("<II", len(names), 0) + b"".join(name + b"\0" for name in names)

    def _function_attributes(self, number: int, device: int) -> bytes:
        function = self.functions[number]
        ordinal = self.ordinals[self._index(device)]
        cu = self.api.cu
        statuses: list[int] = []
        values: list[int] = []
        for attribute in range(FUNCTION_ATTRIBUTE_COUNT):
            name = cu.CUfunction_attribute(attribute)
            if function.kernel:
                status, value = cu.cuKernelGetAttribute(name, function.handle, ordinal)
            else:
                status, value = cu.cuFuncGetAttribute(name, function.handle)
            statuses.append(int(status))
            values.append(0 if status else int(value))
        return struct.pack("<32i", *statuses, *values)

    def _set_function_attribute(self, number: int, device: int, attribute: int, value: int) -> None:
        function = self.functions[number]
        ordinal = self.ordinals[self._index(device)]
        name = self.api.enumerated("CUfunction_attribute", attribute)
        value = value - 2 * SIGNED if value >= SIGNED else value
        if function.kernel:
            self.api.call("cuKernelSetAttribute", name, value, function.handle, ordinal)
        else:
            self.api.call("cuFuncSetAttribute", function.handle, name, value)

    def _launch_head(self) -> tuple[Function, int, tuple[int, ...], int]:
        if self.record_end - self.record_start < HEADER + LAUNCH.size:
            raise RemoteProtocolError("malformed launch")
        number, stream, *head, length = LAUNCH.unpack_from(self.buffer, self.record_start + HEADER)
        function = self.functions[number]
        if length != function.size:
            raise RemoteProtocolError("malformed launch")
        return function, self.streams[stream], tuple(head), length

    def _launch_cooperative(self, _flags: int) -> None:
        function, stream, head, length = self._launch_head()
        function.view[:] = self._rest(0, length, HEADER + LAUNCH.size)
        self.api.driver.launchCooperativeKernel(function.handle, *head, stream, function.pointers)

    def _launch_ex(self, _flags: int) -> None:
        function, stream, head, length = self._launch_head()
        (count,) = self._values(1, HEADER + LAUNCH.size)
        if count > 32:
            raise RemoteProtocolError("malformed launch")
        start = HEADER + LAUNCH.size + 8
        attributes = bytes(self._rest(0, count * LAUNCH_ATTRIBUTE_SIZE, start))
        start += count * LAUNCH_ATTRIBUTE_SIZE
        function.view[:] = self._rest(0, length, start)
        self.api.launch_ex(function.handle, head, attributes, stream, function.pointers)

    def _occupancy(self, number: int, *values: int) -> bytes:
        block, shared, flags, _ = values
        name = "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags"
        handle = self.functions[number].handle
        return WORDS[1].pack(int(self.api.call(name, handle, block, shared, flags)))

    def _occupancy_shared(self, number: int, *values: int) -> bytes:
        blocks, block, _, _ = values
        name = "cuOccupancyAvailableDynamicSMemPerBlock"
        handle = self.functions[number].handle
        return WORDS[1].pack(int(self.api.call(name, handle, blocks, block)))

    def _occupancy_clusters(self) -> bytes:
        number, stream, *head, _ = LAUNCH.unpack_from(self._rest(0, LAUNCH.size, HEADER + REQUEST))
        start = HEADER + REQUEST + LAUNCH.size
        potential, count = self._values(2, start)
        if count > 32:
            raise RemoteProtocolError("malformed launch")
        attributes = bytes(self._rest(2, count * LAUNCH_ATTRIBUTE_SIZE, start))
        config = self.api.config(tuple(head), attributes, self.streams[stream])
        name = "cuOccupancyMaxPotentialClusterSize" if potential else "cuOccupancyMaxActiveClusters"
        return WORDS[1].pack(int(self.api.call(name, self.functions[number].handle, config)))

    def _tensor_map(self) -> bytes:
        at = self.record_start + HEADER + REQUEST
        count = (self.record_end - at) // 8
        if not 18 <= count < len(WORDS):
            raise RemoteProtocolError("malformed tensor map")
        words = self._values(count, HEADER + REQUEST)
        return encode_tensor_map(self.api, words)

    # --- streams and events -----------------------------------------------------------------------

    def _record_event(self, event: int, stream: int, flags: int) -> None:
        if flags:
            self.api.call(
                "cuEventRecordWithFlags", self.objects["e"][event], self.streams[stream], flags
            )
        else:
            self.api.record(self.objects["e"][event], self.streams[stream])

    def _wait_event(self, stream: int, event: int, flags: int) -> None:
        self.api.runtime.streamWaitEvent(self.streams[stream], self.objects["e"][event], flags)

    def _take_failure(self, request: int) -> bool:
        """Answer a synchronising call with the first failure that nobody has heard of."""
        status, op = self.failed
        if not status:
            return False
        self.failed = (0, 0)
        self.session.reply(request, status, failed=op)
        return True

    def _wait(self, event: int, *, lent: bool) -> None:
        """Answer the request when ``event`` has completed."""
        request, device, waiter = self.request, self.device, self.waiter

        def job() -> None:
            self.api.runtime.eventSynchronize(event)

        finish = waiter.guarded(request, job)
        if waiter.soon(event):
            finish()
            if lent:
                waiter.give_event(device, event)
            return

        def run() -> None:
            finish()
            if lent:
                waiter.give_event(device, event)

        waiter.start(device, run)

    def _sync_stream(self, stream: int) -> None:
        if self._take_failure(self.request):
            return
        event = self.waiter.event(self.device)
        self.api.record(event, self.streams[stream])
        self._wait(event, lent=True)

    def _sync_event(self, event: int) -> None:
        if not self._take_failure(self.request):
            self._wait(self.objects["e"][event], lent=False)

    def _sync_device(self, device: int) -> None:
        if self._take_failure(self.request):
            return
        self._index(device)
        job = self.waiter.guarded(self.request, self.api.runtime.deviceSynchronize)
        self.waiter.start(device, job)

    def _query(self, status: int, name: str) -> bytes:
        if status:
            raise CudaError(status, name)
        self.waiter.push()
        return b""

    def _query_stream(self, stream: int) -> bytes | None:
        if self._take_failure(self.request):
            return None
        status = self.api.cu.cuStreamQuery(self.streams[stream])[0]
        return self._query(int(status), "cuStreamQuery")

    def _query_event(self, event: int) -> bytes | None:
        if self._take_failure(self.request):
            return None
        status = self.api.cu.cuEventQuery(self.objects["e"][event])[0]
        return self._query(int(status), "cuEventQuery")

    def _begin_capture(self, stream: int, _mode: int) -> None:
        # Other modes forbid calls to other threads; here all calls come from this one.
        self.api.runtime.streamBeginCapture(self.streams[stream], CAPTURE_RELAXED)

    def _end_capture(self, stream: int, number: int) -> bytes | None:
        graph = int(self.api.runtime.streamEndCapture(self.streams[stream]))
        if self._take_failure(self.request):
            self.api.call("cuGraphDestroy", graph)
            return None
        self._keep("g", number, graph)
        return b""

    def _graph_nodes(self, graph: int) -> bytes:
        outputs = self.api.call("cuGraphGetNodes", self.objects["g"][graph], 0)
        return WORDS[1].pack(int(outputs[-1]))


def encode_tensor_map(api: Api, words: Sequence[int]) -> bytes:
    """Return the 128 bytes of a CUtensorMap; ``words`` as shim/module.c packs them."""
    cu = api.cu
    rank = words[2]
    if words[0] == 2:
        tensor = cu.CUtensorMap()
        tensor.opaque = [cu.cuuint64_t(word) for word in words[2:18]]
        api.call("cuTensorMapReplaceAddress", tensor, words[1])
        return ctypes.string_at(tensor.getPtr(), 128)
    tiled = words[0] == 0
    base = 8 if tiled else 10
    if not 1 <= rank <= 5 or len(words) != base + (20 if tiled else 25):
        raise RemoteProtocolError("malformed tensor map")

    def narrow(start: int, count: int) -> list[Any]:
        return [cu.cuuint32_t(word) for word in words[base + start : base + start + count]]

    def wide(start: int, count: int) -> list[Any]:
        return [cu.cuuint64_t(word) for word in words[base + start : base + start + count]]

    def signed(start: int, count: int) -> list[int]:
        found = words[base + start : base + start + count]
        return [word - 2 * SIGNED if word >= SIGNED else word for word in found]

    tail = (
        api.enumerated("CUtensorMapInterleave", words[4]),
        api.enumerated("CUtensorMapSwizzle", words[5]),
        api.enumerated("CUtensorMapL2promotion", words[6]),
        api.enumerated("CUtensorMapFloatOOBfill", words[7]),
    )
    kind = api.enumerated("CUtensorMapDataType", words[1])
    head = (kind, cu.cuuint32_t(rank), words[3], wide(0, rank), wide(5, rank - 1))
    if tiled:
        made = api.call("cuTensorMapEncodeTiled", *head, narrow(10, rank), narrow(15, rank), *tail)
    else:
        made = api.call(
            "cuTensorMapEncodeIm2col",
            *head,
            signed(10, rank - 2),
            signed(15, rank - 2),
            cu.cuuint32_t(words[8]),
            cu.cuuint32_t(words[9]),
            narrow(20, rank),
            *tail,
        )
    return ctypes.string_at(made.getPtr(), 128)
