"""The worker's side of the array API: frames in, calls executed, answers out.

One thread per session reads a frame, runs it and answers it, so calls run in the order in which
the client sent them. There is one exception to that order: a worker that is out of memory asks the
client for its garbage, and reads on until the answer comes. The frames that it reads meanwhile
wait in the backlog, and run later in their order.
"""

import importlib
import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any

from gpupool.pool.errors import ProtocolError, RemoteProtocolError
from gpupool.remoting.array_api.server import array_wire
from gpupool.remoting.array_api.server.array_exchange import introduction
from gpupool.remoting.array_api.server.array_executor import Executor
from gpupool.remoting.array_api.server.array_results import Download, describe_error
from gpupool.remoting.array_api.server.shared_memory import make_region
from gpupool.remoting.devices.base import Backend, Budget, DeviceSpec
from gpupool.remoting.transport.session_stream import Buffer, SessionStream
from gpupool.remoting.worker import launch_gate
from gpupool.remoting.worker.peer_links import Links

BACKLOG_MAX = 32 << 20
"""Bytes of frames that may wait in the backlog while the client is asked for its garbage."""

WARNING_MAX = 1000
"""Letters of a warning that the client is told."""

_READ = 1 << 18
_WHOLE = array_wire.encode_body({"value": ["w"]})
_DONE = array_wire.encode_body({"value": None})


class ClosedError(Exception):
    """The client has closed the connection."""


class Reader:
    """Reads frames from a stream with few system calls, and bulk bytes without a copy."""

    def __init__(self, stream: SessionStream) -> None:
        self._stream = stream
        self._buffer = memoryview(bytearray(array_wire.HEADER.size + array_wire.MAX_BODY + _READ))
        self._start = self._end = 0

    def exactly(self, count: int) -> memoryview:
        """Return ``count`` bytes, valid until the next call; at most a header and a body."""
        if count > len(self._buffer) - self._start:
            have = self._end - self._start
            self._buffer[:have] = bytes(self._buffer[self._start : self._end])
            self._start, self._end = 0, have
        while self._end - self._start < count:
            got = self._stream.recv_into(self._buffer[self._end :])
            if not got:
                raise ClosedError
            self._end += got
        piece = self._buffer[self._start : self._start + count]
        self._start += count
        if self._start == self._end:
            # The bytes stay where they are until the next read overwrites them, which is after
            # the caller has used them.
            self._start = self._end = 0
        return piece

    def into(self, target: memoryview) -> None:
        """Fill ``target``: first with bytes read ahead, then straight from the stream."""
        have = min(target.nbytes, self._end - self._start)
        target[:have] = self._buffer[self._start : self._start + have]
        self._start += have
        if self._start == self._end:
            self._start = self._end = 0
        while have < target.nbytes:
            got = self._stream.recv_into(target[have:])
            if not got:
                raise ClosedError
            have += got

    def skip(self, count: int) -> None:
        """Read and drop ``count`` bytes."""
        scratch = memoryview(bytearray(min(count, 1 << 20)))
        while count:
            piece = scratch[: min(count, len(scratch))]
            self.into(piece)
            count -= len(piece)


class Session:
    """One client: its connection and the executor of its calls."""

    def __init__(
        self,
        stream: SessionStream,
        backend: Backend,
        log: Callable[[str], None],
        links: Links | None = None,
        room: Sequence[int] = (),
    ) -> None:
        self.room = room  # that other processes of the lease have left on each device
        self.stream = stream
        self.backend = backend
        self.reader = Reader(stream)
        self.log = log
        self._backlog: deque[tuple[array_wire.Header, bytes]] = deque()
        self._uploading = False
        self.links = links
        self.executor = Executor(backend, self, log, links)

    # --- the executor's client ------------------------------------------------------------------

    def push(self, kind: array_wire.Kind, body: Any) -> None:
        """Send a frame that answers no question."""
        self.stream.send_buffers([array_wire.encode_frame(kind, array_wire.encode_body(body))])

    def collect(self) -> bytes | None:
        """Ask the client for its garbage; queue the frames that arrive before its answer.

        Returns None when it sent more than the limit, or an upload, before it answered.
        """
        if self._uploading or (
            self._backlog
            and self._backlog[-1][0].kind in (array_wire.Kind.PUT, array_wire.Kind.BYE)
        ):
            return None  # an upload's bytes come next, so nothing beyond it can be read
        self.push(array_wire.Kind.COLLECT, None)
        size = 0
        while size < BACKLOG_MAX:
            header, body = self._read()
            if header.kind == array_wire.Kind.COLLECTED:
                if len(body) % 8:
                    raise RemoteProtocolError("malformed frame", why="handles are 8 bytes")
                return body
            self._backlog.append((header, body))
            size += len(body)
            if header.kind in (array_wire.Kind.PUT, array_wire.Kind.BYE):
                return None
        return None

    def names(self, handle: int) -> bool:
        """Say whether a waiting frame contains the bytes of a handle; it may be by coincidence."""
        packed = handle.to_bytes(8, "little")
        return any(
            packed in body
            for header, body in self._backlog
            if header.kind != array_wire.Kind.COLLECTED
        )

    def free_later(self, handles: bytes) -> None:
        """Free packed handles after the frames that wait, where the answer stood in the stream."""
        header = array_wire.Header(array_wire.Kind.COLLECTED, len(handles), 0, 0, 0)
        self._backlog.append((header, handles))

    # --- frames ---------------------------------------------------------------------------------

    def _read(self) -> tuple[array_wire.Header, bytes]:
        header = array_wire.decode_header(self.reader.exactly(array_wire.HEADER.size))
        return header, bytes(self.reader.exactly(header.length)) if header.length else b""

    def _next(self) -> tuple[array_wire.Header, bytes]:
        return self._backlog.popleft() if self._backlog else self._read()

    def greet(self) -> None:
        """Answer the client's HELLO with the operations and devices of this worker."""
        header, body = self._read()
        hello = array_wire.decode_body(body)
        if header.kind != array_wire.Kind.HELLO or type(hello) not in (dict,):
            raise RemoteProtocolError("the client did not greet")
        if self.links is not None and hello.get("peers") is not None:
            self.links.introduce(*introduction(hello["peers"]))
        strict = hello.get("strict") is True and self.executor.be_strict()
        welcome = {
            "protocol": array_wire.PROTOCOL,
            "version": _version(),
            "operations": self.executor.names,
            "devices": list(self.backend.describe_devices()),
            "groups": self.backend.fuses,
            "room": list(self.room),
            "strict": strict,
        }
        if not self._share(header.request, hello, welcome):
            self._reply(header.request, welcome)
        found: Any = hello.get("protocol")
        if found != array_wire.PROTOCOL:
            raise RemoteProtocolError(
                "the client speaks another version",
                why=f"array protocol {found}, this server {array_wire.PROTOCOL}",
            )

    def _share(self, request: int, hello: dict[str, Any], welcome: dict[str, Any]) -> bool:
        """Send the welcome with shared memory; False, and nothing sent, if there is none."""
        if hello.get("shared") != [array_wire.SHARED_SLOTS, array_wire.SHARED_SLOT]:
            return False
        region = make_region()
        if region is None:
            return False
        descriptor, memory = region
        try:
            frame = array_wire.encode_frame(
                array_wire.Kind.REPLY, array_wire.encode_body(welcome), request=request
            )
            if not self.stream.send_descriptor(frame, descriptor):
                return False
        finally:
            os.close(descriptor)
        self.executor.slots.share(memory)
        return True

    def run(self) -> None:
        """Serve frames until the client leaves."""
        self.greet()
        tally = self.stream.tally
        timed = tally.executed_ns is not None
        gate = launch_gate.of_worker()
        while True:
            gate.executing = False
            header, body = self._next()
            gate.begin(self.executor.device)
            if timed:
                tally.begin()
            if header.kind == array_wire.Kind.CALLS:
                self.executor.run(memoryview(body), ask=False)
            elif header.kind == array_wire.Kind.ASK:
                self._ask(header, body)
            elif header.kind == array_wire.Kind.PUT:
                self._put(header, body)
            elif header.kind == array_wire.Kind.BYE:
                return
            elif header.kind == array_wire.Kind.COLLECTED:
                self._collected(body)
            else:
                raise RemoteProtocolError("unexpected frame", why=header.kind.name)
            self.stream.calls = self.executor.sequence
            if self.executor.described:
                self._send_descriptions()
            if timed:
                tally.end()

    def _collected(self, body: bytes) -> None:
        # The worker had stopped to wait for this answer. It is an ordinary free, at its place in
        # the stream.
        if len(body) % 8:
            raise RemoteProtocolError("malformed frame", why="handles are 8 bytes")
        for start in range(0, len(body), 8):
            self.executor.free(int.from_bytes(body[start : start + 8], "little"))

    def _send_descriptions(self) -> None:
        described, self.executor.described = self.executor.described, []
        for start in range(0, len(described), 1024):
            self.push(array_wire.Kind.DESCRIBED, described[start : start + 1024])

    def _put(self, header: array_wire.Header, body: bytes) -> None:
        value = array_wire.decode_body(body)
        if not array_wire.is_list(value) or len(value) != 3:
            raise RemoteProtocolError("malformed upload")
        handle, number, existing = value
        if type(handle) is not int or type(number) is not int or type(existing) is not bool:
            raise RemoteProtocolError("malformed upload")
        put = self.executor.put_into if existing else self.executor.put
        self._uploading = True
        try:
            if not put(handle, number, header.bulk, self.reader.into):
                self.reader.skip(header.bulk)
        finally:
            self._uploading = False

    def _ask(self, header: array_wire.Header, body: bytes) -> None:
        tally, began = self.stream.tally, time.perf_counter_ns()
        try:
            asked = self.executor.run(memoryview(body), ask=True)
            assert asked is not None
            value, answer = asked
            if isinstance(value, Download):
                if self.executor.described:
                    self._send_descriptions()
                self._send_array(header.request, value, began)
                return
            plain = answer.encode(value)
            tally.answered(began)
        except ProtocolError:
            raise
        except Exception as error:  # noqa: BLE001 - every failure is reported to the client
            tally.answered(began)
            if self.executor.described:
                self._send_descriptions()
            self._reply(header.request, {"error": list(describe_error("call", error))})
            return
        if self.executor.described:
            self._send_descriptions()
        if plain is None:
            frame = array_wire.encode_frame(array_wire.Kind.REPLY, _DONE, request=header.request)
            self.stream.send_buffers([frame])
        else:
            self._reply(header.request, {"value": plain})

    def _reply(self, request: int, value: Any) -> None:
        body = array_wire.encode_body(value)
        if len(body) > array_wire.MAX_BODY:
            body = array_wire.encode_body(
                {"error": ["ValueError", "the answer is too large", None]}
            )
        self.stream.send_buffers(
            [array_wire.encode_frame(array_wire.Kind.REPLY, body, request=request)]
        )

    def _send_array(self, request: int, download: Download, began: int) -> None:
        pieces = self.backend.download(download.array, download.order)
        nbytes = download.array.nbytes
        head = array_wire.encode_frame(array_wire.Kind.REPLY, _WHOLE, request=request, bulk=nbytes)
        buffers: list[Buffer] = [head]
        # The first piece is made before the header leaves, so that a failing copy can still be
        # answered with its error.
        for piece in pieces:
            if began:
                self.stream.tally.answered(began)
                began = 0
            buffers.append(piece)
            self.stream.send_buffers(buffers)
            buffers = []
        if buffers:
            self.stream.tally.answered(began)  # an array without elements
            self.stream.send_buffers(buffers)


def _version() -> str:
    try:
        return metadata.version("gpupool")
    except metadata.PackageNotFoundError:
        return "unknown"


def make_backend(
    devices: Sequence[DeviceSpec], budget: Budget, log: Callable[[str], None]
) -> Backend:
    """Return the backend that fits these devices, which must all be of one kind."""
    if all(spec.emulated for spec in devices):
        from gpupool.remoting.devices.emulated import EmulatedBackend

        return EmulatedBackend(devices, budget)
    if any(spec.emulated for spec in devices):
        raise ValueError("one session cannot mix emulated and real GPUs")
    from gpupool.remoting.devices.cuda import CudaBackend

    return CudaBackend(devices, budget, log)


def _end_turns_of(devices: Sequence[DeviceSpec]) -> None:
    """Make the launch gate wait for real GPUs at the end of each turn."""
    gate = launch_gate.of_worker()
    runtime: Any = importlib.import_module("cupy").cuda.runtime
    ordinals = [spec.ordinal for spec in devices]

    def drain(device: int) -> None:
        gate.until_executed(device)
        runtime.setDevice(ordinals[device])
        runtime.deviceSynchronize()

    gate.drain = drain


_thread = threading.local()


def _tell_warnings(session: Session, *, emulated: bool) -> None:
    """Let this thread's calls warn the client from now on."""
    _thread.session = session
    warnings.showwarning = _warn
    warnings.simplefilter("ignore" if emulated else "always")
    if emulated:  # of the warnings of NumPy and SciPy, CuPy has these
        warnings.simplefilter("always", UserWarning)
        warnings.filterwarnings("always", "Polyfit")


def _warn(message: object, category: type[Warning], *_: object) -> None:
    session: Session | None = getattr(_thread, "session", None)
    if session is not None:
        told = [category.__name__, str(message)[:WARNING_MAX]]
        session.push(array_wire.Kind.NOTICE, {"warning": told})


def serve(
    stream: SessionStream,
    devices: Sequence[DeviceSpec],
    budget: Budget,
    log: Callable[[str], None],
    links: Links | None = None,
) -> None:
    """Serve one client of the array door until it leaves; blocks.

    Args:
        stream: connected and authenticated; closed on return.
        devices: the partitions of this session, in the client's order.
        budget: where their memory is reserved.
        log: takes one line for the operator.
        links: to the client's workers on other servers; None where there can be none.
    """
    backend = make_backend(devices, budget, log)
    if all(spec.emulated for spec in devices):
        stream.tally.executed_ns = 0
    else:
        _end_turns_of(devices)
    try:
        room = [max(0, spec.memory - budget.usage(spec.index)) for spec in devices]
        session = Session(stream, backend, log, links, room)
        _tell_warnings(session, emulated=stream.tally.executed_ns is not None)
        session.run()
    except ClosedError:
        pass  # the client's process is gone; nothing is left to answer
    except (ConnectionError, TimeoutError) as error:
        log(f"array session: the connection broke ({error})")
    except ProtocolError as error:
        log(f"array session: ended because of the client: {error}")
        farewell = array_wire.encode_body({"lost": f"the server refused the session: {error}"})
        try:
            stream.send_buffers([array_wire.encode_frame(array_wire.Kind.NOTICE, farewell)])
        except OSError:
            log("array session: the client had already gone")
    finally:
        backend.close()
        stream.close()
        if links is not None:
            links.close()
