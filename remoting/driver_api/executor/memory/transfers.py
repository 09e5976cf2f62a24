"""Bytes on their way: uploads, downloads, copies and fills."""

import ctypes
from collections.abc import Callable

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.driver_api.executor.api import (
    DEVICE_TO_DEVICE,
    DEVICE_TO_HOST,
    EVENT_DISABLE_TIMING,
    HOST_TO_DEVICE,
    INVALID_HANDLE,
    INVALID_VALUE,
    OUT_OF_MEMORY,
    CudaError,
)
from gpupool.remoting.driver_api.executor.client_state import Client, HandlerGroup
from gpupool.remoting.driver_api.executor.memory.staging_buffers import (
    PIECE_SIZE,
    Buffer,
    downloaded,
)
from gpupool.remoting.driver_api.executor.modules.launcher import SLOT_SIZE, SLOTS, Launcher
from gpupool.remoting.driver_api.executor.sync_waiter import Download

DOWNLOAD_SIZE_MAX = 64 << 20
DOWNLOADS_HELD_MAX = 1 << 30
"""Most bytes of one asynchronous download, and of all unsent ones. The client asks for pieces of 32
MiB and for 512 MiB in all, and waits for the rest."""

SMALL_DOWNLOAD_SIZE = 1 << 20


class Transfers(HandlerGroup):
    """Copies between the client and its devices, and within devices."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._slots: Buffer | None = None  # that the launcher has
        self.methods = {
            "COPY_IN": self._copy_in,
            "DOWNLOAD": self._download,
            "COPY_3D": self._copy_3d,
            "COPY_OUT": self._copy_out,
            "DRAIN": self._drain,
        }

    def replaced(self) -> dict[str, Callable[..., None]]:
        """Return, by name, calls that CuPy's bindings make faster than cuda.bindings."""
        return {"cuMemcpyDtoDAsync": self._copy_across, "cuMemsetD8Async": self._fill}

    def _fill(self, address: int, value: int, size: int, stream: int) -> None:
        self.api.runtime.memsetAsync(address, value, size, self.streams[stream])

    def _copy_across(self, target: int, source: int, size: int, stream: int) -> None:
        self.api.copy(target, source, size, DEVICE_TO_DEVICE, self.streams[stream])

    def _copy_in(self, target: int, size: int, stream: int, piece: memoryview) -> None:
        if self.client.record.bulk:
            if size != self.client.record.bulk:
                raise RemoteProtocolError("malformed upload")
            self.copy_bulk_in(target, size, self.streams.get(stream))
            return
        if self.streams.get(stream) is None:
            raise CudaError(INVALID_HANDLE, "cuMemcpyHtoDAsync")
        # CUDA copies pageable bytes before it returns, so they need not stay.
        address = ctypes.addressof(ctypes.c_char.from_buffer(piece))
        self.api.copy(target, address, size, HOST_TO_DEVICE, self.streams[stream])

    def copy_bulk_in(self, target: int, size: int, stream: int | None) -> None:
        """Copy the bytes behind the frame to device memory, in the order of a stream of CUDA."""
        problem: int = 0
        errors = self.api.errors
        while self.client.record.bulk:
            staging = self.waiter.staging.upload(self.client.device)
            piece = staging.view[: min(self.client.record.bulk, staging.size)]
            self.session.reader.into(piece)
            done = size - self.client.record.bulk
            self.client.record.bulk -= len(piece)
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
        device, handle = self.client.device, self.streams[stream]
        if size > DOWNLOAD_SIZE_MAX or self.waiter.held + size > DOWNLOADS_HELD_MAX:
            raise CudaError(OUT_OF_MEMORY, "cuMemcpyDtoHAsync")
        if size <= SLOT_SIZE and self._slots is None and self.client.launcher is not None:
            self._begin_small(device, self.client.launcher)
        buffer = self.waiter.take(device, size)
        self.api.copy(buffer.address, source, size, DEVICE_TO_HOST, handle)
        self.api.record(buffer.event, handle)
        self.waiter.download(Download(number, device, buffer, size))

    def _begin_small(self, device: int, launcher: Launcher) -> None:
        """Let the launcher take small downloads, on the first device that has one."""
        self._slots = self.waiter.staging.make(SLOTS * SLOT_SIZE)
        make = self.api.runtime.eventCreateWithFlags
        events = [make(EVENT_DISABLE_TIMING) for _ in range(SLOTS)]
        launcher.begin_downloads(device, self._slots.address, events)

    def _copy_out(self, source: int, size: int, stream: int) -> None:
        handle = self.streams[stream]
        if self.client.take_failure():
            return
        request, device = self.client.record.request, self.client.device
        waiter, api = self.waiter, self.api
        if size <= SMALL_DOWNLOAD_SIZE:
            buffer = waiter.take(device, size)
            api.copy(buffer.address, source, size, DEVICE_TO_HOST, handle)
            api.record(buffer.event, handle)
            waiter.answer(request, device, buffer, size)
            return
        event = waiter.event(device)
        api.record(event, handle)
        waiter.start(device, lambda: self._copy_out_large(request, device, source, size, event))

    def _copy_out_large(
        self, request: int, device: int, source: int, size: int, event: int
    ) -> None:
        """Wait for ``event``, then copy in pieces: one is sent while the next is copied."""
        api, waiter = self.api, self.waiter
        buffers = list[Buffer]()
        stream = api.runtime.streamCreateWithFlags(1)  # non-blocking
        status = 0
        try:
            api.runtime.eventSynchronize(event)
            waiter.push()
            buffers += [waiter.take(device, PIECE_SIZE) for _ in range(2)]
            for piece in downloaded(api, buffers, source, size, stream):
                self.session.part(request, piece)
        except api.errors as error:
            status = api.status_of(error)
        self.session.reply(request, status)
        api.runtime.streamDestroy(stream)
        for buffer in buffers:
            waiter.give(device, buffer)
        waiter.give_event(device, event)

    def _drain(self, _unused: int) -> None:
        self.waiter.start(
            self.client.device, self.waiter.guarded(self.client.record.request, self.waiter.drain)
        )

    def _copy_3d(self, *values: int) -> None:
        to, to_pitch, to_slice, of, of_pitch, of_slice, width, height, depth, stream = values
        cu = self.api.cu
        if not (to_pitch and of_pitch):
            raise CudaError(INVALID_VALUE, "cuMemcpy3DAsync")
        copy = cu.CUDA_MEMCPY3D()
        kind = cu.CUmemorytype.CU_MEMORYTYPE_DEVICE
        copy.srcMemoryType = copy.dstMemoryType = kind
        copy.srcDevice, copy.srcPitch = cu.CUdeviceptr(of), of_pitch
        copy.dstDevice, copy.dstPitch = cu.CUdeviceptr(to), to_pitch
        copy.srcHeight, copy.dstHeight = of_slice // of_pitch, to_slice // to_pitch
        copy.WidthInBytes, copy.Height, copy.Depth = width, height, depth
        self.api.call("cuMemcpy3DAsync", copy, self.streams[stream])
