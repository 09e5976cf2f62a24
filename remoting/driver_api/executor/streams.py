"""Streams and events: recorded, waited for, queried."""

import struct
from collections.abc import Callable
from functools import partial

from gpupool.remoting.driver_api.executor.api import INVALID_HANDLE, NOT_READY, CudaError
from gpupool.remoting.driver_api.executor.client_state import Client, HandlerGroup
from gpupool.remoting.driver_api.executor.direct import Direct
from gpupool.remoting.driver_api.executor.modules.shared_state import GAVE_UP
from gpupool.remoting.driver_api.executor.sync_waiter import FREES_PATIENCE_S, SPIN_COUNT

IDLE_STREAMS_MAX = 64
"""Streams that are asked one by one whether they are idle, before a thread waits for the device."""

ELAPSED = struct.Struct("<Qf4x")


class Streams(HandlerGroup):
    """Executes a client process's records about streams and events."""

    def __init__(self, client: Client, direct: Direct) -> None:
        super().__init__(client)
        self._direct = direct
        self._contexts: dict[int, int] = {}
        self.methods = {
            "RECORD_EVENT": self._record_event,
            "WAIT_EVENT": self._wait_event,
            "STREAM_VALUES": self._values,
            "CONTEXT_EVENT": self._context_event,
            "PEER_ACCESS": self._peer_access,
            "SYNC_STREAM": self._sync_stream,
            "SYNC_EVENT": self._sync_event,
            "END_EVENT": self._end_event,
            "AWAIT_STREAM": self._await_stream,
            "AWAIT_DEVICE": self._await_device,
            "SYNC_DEVICE": self._sync_device,
            "QUERY_STREAM": self._query_stream,
            "QUERY_EVENT": self._query_event,
        }

    def _record_event(self, event: int, stream: int, flags: int) -> None:
        if flags:
            self.api.call(
                "cuEventRecordWithFlags", self.objects["e"][event], self.streams[stream], flags
            )
        else:
            self.api.record(self.objects["e"][event], self.streams[stream])

    def _wait_event(self, stream: int, event: int, flags: int) -> None:
        self.api.runtime.streamWaitEvent(self.streams[stream], self.objects["e"][event], flags)

    def _wait(self, event: int, *, lent: bool, ended: Callable[[], bytes] = bytes) -> None:
        """Reply with the result of ``ended`` once ``event`` has completed."""
        request, device, waiter = self.client.record.request, self.client.device, self.waiter

        def job() -> bytes:
            self.api.runtime.eventSynchronize(event)
            return ended()

        finish = waiter.guarded(request, job)
        if not self._gave_up() and waiter.soon(event):
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
        if self.client.take_failure():
            return
        handle = self.streams[stream]
        if self._idle_soon([handle]):
            # What a query finds is not a synchronization: memory that was freed in the stream would
            # still count as in use (CUDA driver API, cuMemPoolTrimTo).
            wait = partial(self.api.runtime.streamSynchronize, handle)
            self.waiter.guarded(self.client.record.request, wait)()
            return
        event = self.waiter.event(self.client.device)
        self.api.record(event, handle)
        self._wait(event, lent=True)

    def _sync_event(self, event: int) -> None:
        if not self.client.take_failure():
            self._wait(self.objects["e"][event], lent=False)

    def _end_event(self, event: int, start: int) -> None:
        """Wait for an event, and say how long after another one it came."""
        if self.client.take_failure():
            return
        end, known = self.objects["e"][event], start in self.objects["e"]
        first = self.objects["e"][start] if known else None

        def elapsed() -> bytes:
            if first is None:
                return ELAPSED.pack(INVALID_HANDLE, 0.0)
            try:
                return ELAPSED.pack(0, self.api.call("cuEventElapsedTime", first, end))
            except self.api.errors as error:  # the client asks itself, if it wants to know
                return ELAPSED.pack(self.api.status_of(error), 0.0)

        self._wait(end, lent=False, ended=elapsed)

    def _await_stream(self, stream: int) -> None:
        """Execute nothing more until a stream has come here: the client takes it as over."""
        if stream not in self.streams:
            raise CudaError(INVALID_HANDLE, "cuStreamSynchronize")
        self.client.awaited = stream

    def _await_device(self) -> None:
        """Answer when all that was issued so far is over, as CUDA's cuMemFree returns then.

        It leaves captures alone, so it says no while there are any, and failures, which are the
        program's to hear.
        """
        client, handles = self.client, list(self.streams.values())
        if client.captures.streams or client.failed[0] or len(handles) > IDLE_STREAMS_MAX:
            raise CudaError(NOT_READY, "cuMemFree")
        if self._idle_soon(handles):
            self.waiter.guarded(self.client.record.request, lambda: None)()
            return
        reached = self.waiter.mark(client.device, handles)
        self.waiter.start(client.device, self.waiter.guarded(client.record.request, reached))

    def _sync_device(self, device: int) -> None:
        if self.client.take_failure():
            return
        self.client.index(device)
        freeing = self.waiter.freeing

        def synchronize() -> None:
            self.api.runtime.deviceSynchronize()
            # CUDA's cuMemFree returns only then: another process may be told, and allocate.
            freeing.wait_for_calls()

        job = self.waiter.guarded(self.client.record.request, synchronize)
        # A thread costs more than what most devices have left to do; but to wait here for one that
        # has more would keep the other threads of the program.
        if (
            device == self.client.place
            and not freeing.keeping
            and self._idle_soon(list(self.streams.values()))
        ):
            job()
        else:
            self.waiter.start(device, job)

    def _idle_soon(self, streams: list[int]) -> bool:
        """Say whether streams come to an end within a moment; False where that is not known."""
        if len(streams) > IDLE_STREAMS_MAX or self.client.captures.streams:
            return False
        launcher = self.client.launcher
        if launcher is not None:
            return not self._gave_up() and launcher.idle(streams)
        query = self.api.cu.cuStreamQuery
        return any(not any(int(query(handle)[0]) for handle in streams) for _ in range(SPIN_COUNT))

    def _gave_up(self) -> bool:
        """Say whether the launcher already waited for the current record, and gave up."""
        launcher = self.client.launcher
        return launcher is not None and launcher.outcome.ended == GAVE_UP

    def _query(self, status: int, name: str) -> bytes:
        if status:
            raise CudaError(status, name)
        self.waiter.push()
        return b""

    def _query_stream(self, stream: int) -> bytes | None:
        if self.client.take_failure():
            return None
        status = self.api.cu.cuStreamQuery(self.streams[stream])[0]
        return self._query(int(status), "cuStreamQuery")

    def _query_event(self, event: int) -> bytes | None:
        if self.client.take_failure():
            return None
        status = self.api.cu.cuEventQuery(self.objects["e"][event])[0]
        return self._query(int(status), "cuEventQuery")

    # --- values in memory, and contexts -----------------------------------------------------------

    def _values(self, stream: int, count: int, flags: int, values: memoryview) -> None:
        handle = self.streams[stream]
        self.waiter.freeing.wait_for_calls(FREES_PATIENCE_S)
        self._direct.call("cuStreamBatchMemOp_v2", handle, count, bytes(values), flags)

    def _context(self, device: int) -> int:
        if device not in self._contexts:
            ordinal = self.client.ordinals[self.client.index(device)]
            self._contexts[device] = self._direct.get("cuDevicePrimaryCtxRetain", ordinal)
        return self._contexts[device]

    def _context_event(self, device: int, event: int, waits: int) -> None:
        name = "cuCtxWaitEvent" if waits else "cuCtxRecordEvent"
        self._direct.call(name, self._context(device), self.objects["e"][event])

    def _peer_access(self, device: int, on: int) -> bytes:
        peer = self._context(device)
        if on:
            self._direct.call("cuCtxEnablePeerAccess", peer, 0)
        else:
            self._direct.call("cuCtxDisablePeerAccess", peer)
        return b""
