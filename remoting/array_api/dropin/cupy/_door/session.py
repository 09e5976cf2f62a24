"""One session with one worker: batches of calls out; replies, descriptions and errors in."""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import contextlib
import gc
import itertools
import os
import struct
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from cupy._door import cbor, state, wire
from cupy._door.calls import Plan, Remote, plan_of, runs_anywhere
from cupy._door.errors import DoorError, exception_named
from cupy._door.link import Agent, ConnectionLostError, Link, watch
from cupy._door.meta import Meta
from cupy._door.shared import Shared

BATCH_CALLS = 64
IDLE_S, IDLE_MAX_S = 0.0003, 0.002
IDLE_TICKS = 16
POLL_S = 0.05
SPIN_S = 0.00005
"""How long an answer is awaited awake: sleeping and waking cost about as much."""
SPIN_PAUSE = 32
"""Waits without spinning after one in which that was in vain: the network is slower than that."""
SITES_MAX = 1 << 16
ASIDE_MIN = 1 << 20
"""Bytes from which a frame that TLS encrypts is worth a thread of its own."""
DEFERRED_MAX = 16
INLINE_MAX = 4096
_READ = 1 << 16
_U32 = struct.Struct("<I")
_FREE = wire.FREE_RECORD.pack
_U32S = tuple(struct.Struct(f"<{count}I") for count in range(34))
_NO_RESULTS = frozenset(
    ("door.sync", "door.get", "door.touch", "door.fill", "door.fetch", "cuda.device.synchronize")
)
"""Questions whose answer is never an array or another object, so that they take no handles."""
DEVICES_UNAVAILABLE = 46
"""The status of a session that is lost, and of copies from and to one: CUDA's own."""
WORKER_ENDED = "the GPU server closed the connection: its worker ended"
_COMMON = {cbor.encode(value): value for value in ({"value": ["w"]}, {"value": None})}
"""Bodies of nearly all answers; nobody changes what they stand for."""
_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Reply:
    """Where the answer to one question goes."""

    __slots__ = ("body", "bulk", "done", "first", "request", "sequence", "sink")

    def __init__(self, sink: Callable[[Any, int], memoryview] | None) -> None:
        self.sink = sink
        self.request = self.sequence = 0
        self.first = 0  # of the handles that its results may take
        self.body: Any = None
        self.bulk: memoryview | None = None
        self.done = False


class Session:
    """All of one worker: its connection, and what this side must remember about it."""

    def __init__(
        self, link: Link, agent: Agent | None, first_device: int, index: int = 0, name: str = ""
    ) -> None:
        self.link = link
        self.agent = agent
        self.first_device = first_device
        self.index = index  # among the sessions of this process
        self.name = name  # of the server
        self.introduced = False  # to the workers of the other sessions
        # Numbers of the transfers to each of them, by its index; None where it cannot be reached.
        self.transfers: dict[int, itertools.count[int] | None] = {}
        self.failure: BaseException | None = None  # set once; ends the session
        self.garbage: deque[int] = deque()
        # No two servers have one in common, since handles of streams name them to the program.
        self.handles = itertools.count((first_device << 40) + 1)
        self.plans: dict[Any, Plan] = {}
        self.operations: dict[str, int] = {}
        self.devices: list[dict[str, Any]] = []
        self.server: dict[str, Any] = {}
        self.shared: Shared | None = None  # memory in common with a worker of this machine
        self.blocking = os.environ.get("GPUPOOL_BLOCKING", "") not in ("", "0")
        self.unfinished = False  # calls were sent, and no answer has covered them yet
        self.sequence = 0
        self.flushes = 0
        # Bytes of each device that new arrays may certainly take; below zero, the worker is asked.
        self._room: list[int] = []
        self._lock = threading.RLock()
        self._sending = False
        self._parts: list[bytes] = []
        # Of the frame that leaves at this moment, or that an interrupt stopped half-way.
        self._unsent: list[memoryview] = []
        self._stop = False  # asks the thread that sends to leave it at that for now
        self._calls = 0
        self._size = 0
        self._context: state.Context | None = None
        self._where = first_device
        self._epoch: object = object()
        self._templates: dict[Any, int] = {}
        self._gets: dict[str, Plan] = {}
        self._metas: dict[Meta, int] = {}
        # Of the latest calls: the number, and where in the program it was made.
        self._sites: deque[tuple[int, Any, int]] = deque(maxlen=SITES_MAX)
        self._requests = itertools.count(1)
        self._replies: dict[int, Reply] = {}
        self._described: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._deferred: list[tuple[int, BaseException]] = []
        self._reading = threading.Lock()
        self._ready: Callable[[float], set[int]] | None = None  # used under `_reading` only
        self._changed = threading.Condition()
        self._waiting = 0
        self._inbox = bytearray(wire.MAX_BODY + wire.HEADER.size + _READ)
        self._inbox_view = memoryview(self._inbox)
        self._start = self._end = 0
        self._bulk: tuple[Reply, memoryview] | None = None
        self._bulk_left = 0
        self._collect = False
        self._wake = threading.Event()
        self._flusher: threading.Thread | None = None
        self._flusher_awake = False
        self._spin_pause = 0 if (os.cpu_count() or 1) > 1 else 1 << 62

    # --- start ----------------------------------------------------------------------------------

    def greet(self, version: str, peers: dict[str, Any] | None = None) -> None:
        """Exchange versions; learn the worker's operations and devices.

        Args:
            version: of this drop-in.
            peers: what the worker is told of the program's other workers.

        Raises:
            DoorError: the worker speaks another protocol.
        """
        hello: dict[str, Any] = {"protocol": wire.PROTOCOL, "version": version}
        hello["numpy"] = np.__version__
        if peers is not None:
            hello["peers"] = peers
        reply = self._replies[0] = Reply(None)
        if self.link.expect_descriptor():
            hello["shared"] = [wire.SHARED_SLOTS, wire.SHARED_SLOT]
        self._transmit(wire.HELLO, cbor.encode(hello), 0, None)
        self._await(reply)
        welcome = reply.body
        descriptor = self.link.take_descriptor()
        if descriptor is not None:
            self.shared = Shared(self, descriptor)
        if welcome.get("protocol") != wire.PROTOCOL:
            raise DoorError(
                f"this drop-in (gpupool {version}) speaks array protocol {wire.PROTOCOL}, the "
                f"server (gpupool {welcome.get('version')}) speaks {welcome.get('protocol')}; "
                "install the same version on both"
            )
        self.operations = {name: number for number, name in enumerate(welcome["operations"])}
        self.devices = welcome["devices"]
        self._room = [device["memory"] for device in self.devices]
        self.server = welcome
        self.introduced = peers is not None

    # --- calls ----------------------------------------------------------------------------------

    def refuse(self, value: Any) -> None:
        """Raise for a remote object of another session."""
        other = value._session
        if other.failure is not None:
            raise other.failure
        other.refuse_device(state.local.context[0], getattr(value, "_device", None))

    def refuse_device(self, current: int, device: int | None = None) -> None:
        """Raise CuPy's error for arrays of this session where another device is to compute."""
        if device in (None, current):
            count = len(self.devices)
            last = self.first_device + count - 1
            place = f"{self.first_device} to {last}" if count > 1 else f"{last}"
            text = f"An array resides on another server ({self.name}, device {place})"
        else:
            text = (
                f"The device where the array resides ({device}) is different from the current "
                f"device ({current})"
            )
        raise ValueError(
            f"{text}. Peer access is unavailable between these devices: they are on different "
            "servers. Make the array's device current, or copy the array to the current one with "
            "cupy.asarray(a)."
        )

    def emit(self, plan: Plan, packed: bytes, frame: Any = None) -> int:
        """Queue one call; return the device on which it runs.

        Nothing waits; errors come back at the next synchronising call. ``frame`` is the program's,
        where the caller knows how far up it is.
        """
        if frame is None:
            frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
            while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
                frame = frame.f_back
        with self._lock:
            if self.failure is not None:
                raise self.failure
            garbage = self.garbage
            if garbage:
                # In the place where the program dropped it, so that no more memory is in use
                # there than here. To free it twice would be harmless.
                self._parts.append(_FREE(wire.FREE, garbage[0]))
                del garbage[0]
                if garbage:
                    self._sweep()
            context = state.local.context
            if context is not self._context:
                self._switch(context, plan.name)
            epoch, prefix = plan.wire
            if epoch is not self._epoch:
                prefix = self._register(plan)
            self._size += len(packed)
            number = self.sequence + 1
            self._sites.append((number, frame.f_code, frame.f_lasti))
            # No signal's exception comes before the end of these lines, the first call in them.
            self.sequence = number
            self._calls += 1
            self._parts.append(prefix + packed)
            if self._calls >= BATCH_CALLS or self._size >= wire.MAX_BATCH:
                self.flush()
            elif not self._flusher_awake:
                self._arm()
            where = self._where
            if plan.allocates:
                left = self._room[where - self.first_device] - plan.allocates
                self._room[where - self.first_device] = left
                if left < 0 and not self.blocking:
                    self._look_for_room(where)
        if self.blocking:
            self.synchronize()
        return where

    def _look_for_room(self, where: int) -> None:
        """Have an allocation that may not fit fail here and now, as it does in CuPy.

        Programs catch OutOfMemoryError around the call that allocates. Asking after every call
        would cost a round trip each, so it is done once as much has been allocated as was free
        when last asked, whatever was freed since.
        """
        free, _total = self.ask("cuda.mem_info")  # raises what the calls before it have met
        used, held, limit, _blocks = self.ask("cuda.pool.numbers")
        self._room[where - self.first_device] = min(free + held, limit or free + held) - used

    def forget_room(self) -> None:
        """Have the next allocation ask, because how much there is has changed."""
        self._room = [0] * len(self._room)

    def call(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], *metas: Meta | int
    ) -> tuple[int, int]:
        """Queue one call by name; return the handle of its first result, and its device."""
        plan, values = plan_of(self.plans, name, args, kwargs, metas, self)
        handle = next(self.handles) if plan.outputs == 1 else self.reserve(plan.outputs)
        return handle, self.emit(plan, plan.packer.pack(handle, *values))

    def call_unknown(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], array: Any
    ) -> None:
        """Queue one call whose result is ``array``, which the worker will describe."""
        plan, values = plan_of(self.plans, name, args, kwargs, (wire.META_UNKNOWN,), self)
        array._handle = next(self.handles)
        # Before the call leaves, because its description may be here before `emit` returns.
        self._described[array._handle] = array
        array._device = self.emit(plan, plan.packer.pack(array._handle, *values))

    def reserve(self, count: int) -> int:
        """Return the first of ``count`` consecutive new handles."""
        if count == 0:
            return 0
        with self._lock:
            first = next(self.handles)
            for _ in range(count - 1):
                next(self.handles)
            return first

    def _switch(self, context: state.Context, name: str) -> None:
        device, stream = context
        local = device - self.first_device
        known: state.Context | None = context
        if not 0 <= local < len(self.devices):
            # The current device is another server's. As between GPUs without peer access, only
            # what computes nothing is possible, and its device makes no difference.
            if not runs_anywhere(name):
                self.refuse_device(device)
            local = stream = 0
            known = None
        self._where = self.first_device + local
        self._parts.append(wire.CONTEXT_RECORD.pack(wire.CONTEXT, local, stream))
        self._context = known

    def _sweep(self) -> None:
        garbage = self.garbage
        for _ in range(len(garbage)):
            self._parts.append(_FREE(wire.FREE, garbage[0]))
            del garbage[0]
            self._size += wire.FREE_RECORD.size
            if self._size >= wire.MAX_BATCH:
                self.flush()

    def _define(self, code: int, known: dict[Any, int], key: Any, body: list[Any]) -> int:
        """Tell the worker what a number means from now on: ``body``'s first; return that."""
        data = cbor.encode(body)
        record = wire.SIZED_RECORD.pack(code, len(data)) + data
        size, number = len(record), body[0]
        # No calls in these lines, so no signal's exception comes between them: the worker hears
        # of every number that is known here.
        known[key] = number
        self._parts += (record,)
        self._size += size
        return number

    def _register(self, plan: Plan) -> bytes:
        number = self.operations.get(plan.name)
        if number is None:
            raise NotImplementedError(
                f"{plan.name}: the server (gpupool {self.server.get('version')}) does not offer it"
            )
        if len(self._templates) >= wire.MAX_TEMPLATES or len(self._metas) >= wire.MAX_METAS - 64:
            record, epoch = _U32.pack(wire.RESET), object()
            # No calls in these lines, as below.
            self._parts += (record,)
            self._templates, self._metas = {}, {}
            self._epoch = epoch
        key = (plan.name, plan.nodes, plan.keywords, plan.outputs)
        template = self._templates.get(key)
        if template is None:
            new = wire.FIRST_TEMPLATE + len(self._templates)
            body = [new, number, plan.outputs, plan.nodes, plan.keywords]
            template = self._define(wire.TEMPLATE, self._templates, key, body)
        metas = [self._meta_id(meta) for meta in plan.metas]
        prefix = _U32S[1 + len(metas)].pack(template, *metas)
        plan.wire = (self._epoch, prefix)
        return prefix

    def _meta_id(self, meta: Meta | int) -> int:
        if isinstance(meta, int):
            return meta
        found = self._metas.get(meta)
        if found is None:
            new = wire.FIRST_META + len(self._metas)
            body = [new, meta.dtype.str, meta.shape, meta.strides]
            found = self._define(wire.META, self._metas, meta, body)
        return found

    # --- sending --------------------------------------------------------------------------------

    def _arm(self) -> None:
        if self._flusher is None:
            self._flusher = threading.Thread(target=self._idle, name="cupy-flush", daemon=True)
            self._flusher.start()
        self._flusher_awake = True
        self._wake.set()

    def _idle(self) -> None:
        """Send what waits when the program pauses, and hear the worker while it computes."""
        while self.failure is None:
            while not self._wake.wait(POLL_S if self.unfinished else None):
                # The worker may have run out of memory and wait for this side's garbage.
                with contextlib.suppress(Exception):
                    self._listen(agent=True)
            self._wake.clear()
            self._mind()

    def _mind(self) -> None:
        """Flush for a program that pauses; return once it has been quiet for some ticks."""
        quiet, pause_s = 0, IDLE_S
        while self.failure is None:
            seen = self.flushes
            time.sleep(pause_s)
            if self.flushes != seen:
                # It flushes by itself: each look at it would cost it a switch of threads.
                quiet, pause_s = 0, min(2 * pause_s, IDLE_MAX_S)
                continue
            pause_s = IDLE_S
            with contextlib.suppress(Exception):  # raised again by the next call
                self.flush()
            quiet = quiet + 1 if self.flushes == seen else 0
            with self._lock:
                if quiet >= IDLE_TICKS and not self._parts:
                    self._flusher_awake = False
                    return

    def flush(self) -> None:
        """Send what is queued."""
        with self._lock:
            if self._sending or not self._parts:
                return
            body = b"".join(self._parts)
            self._transmit(wire.CALLS, body, self._calls, None, queued=len(self._parts))
        self._listen()

    def _transmit(
        self,
        kind: int,
        body: bytes,
        calls: int,
        bulk: memoryview | None,
        *,
        queued: int = 0,
        reply: Reply | None = None,
    ) -> None:
        """Send one frame whole, reading meanwhile what the worker may have to say.

        A signal's exception, such as KeyboardInterrupt, leaves the frame either unsent as a
        whole, or to be continued before the next one. ``queued`` of the parts are in it, and
        ``reply`` is where the answer to its question goes.
        """
        if self.failure is not None:
            raise self.failure
        if self._sending:
            # Only a destructor that the garbage collector ran in the middle of a frame gets here.
            raise DoorError("a destructor cannot wait for the GPU server at this moment")
        if self._unsent:
            self._send()
        size = bulk.nbytes if bulk is not None else 0
        request = 0 if reply is None else reply.request
        header = wire.HEADER.pack(len(body), kind, 0, 0, request, calls, size)
        frame = [memoryview(header + body)]
        if bulk is not None and size:
            frame.append(bulk)
        self.flushes += 1
        # No calls in these lines, so no signal's exception comes between them.
        self._unsent = frame
        if queued:
            self.unfinished = True
            del self._parts[:queued]
            self._calls = self._size = 0
        if reply is not None:
            self._replies[request] = reply
            self.sequence += 1
            reply.sequence = self.sequence
        self._send()

    def _send(self) -> None:
        """Send what is in ``_unsent``."""
        aside = (
            self.link.tls
            and sum(part.nbytes for part in self._unsent) >= ASIDE_MIN
            and threading.current_thread() is threading.main_thread()
        )
        self._sending = True
        try:
            if aside:
                self._send_aside()
            else:
                self._send_here()
        except ConnectionError as error:
            with contextlib.suppress(Exception):
                self._listen()  # the worker may have said why before it went
            raise self._cut_off(WORKER_ENDED) from error
        except OSError as error:
            raise self._cut_off(f"the connection to the GPU server broke ({error})") from error
        finally:
            self._sending = False
            if (self._stop or self.link.writes_in_doubt) and self.failure is None:
                self.lose("a transfer to the GPU server was interrupted half-way")

    def _send_here(self) -> None:
        sent = self.link.sent
        while self._unsent and not self._stop:
            if not sent and not self.link.send_some(self._unsent):
                self._wait_to_send()
                continue
            left, rest = sent[0], list(self._unsent)
            while rest and left >= rest[0].nbytes:
                left -= rest.pop(0).nbytes
            if left:
                rest[0] = rest[0][left:]
            # No calls in these lines, so no signal's exception comes between them.
            self._unsent = rest
            del sent[0]

    def _send_aside(self) -> None:
        """Send from another thread, for signals' exceptions are raised in the main thread only.

        One in the middle of OpenSSL's work would hide how much it has taken.
        """
        failures: list[BaseException] = []
        done = threading.Event()  # Thread.join takes a thread for dead once it was interrupted

        def send() -> None:
            try:
                self._send_here()
            except BaseException as error:  # noqa: BLE001 - raised below
                failures.append(error)
            finally:
                done.set()

        threading.Thread(target=send, name="cupy-send", daemon=True).start()
        try:
            done.wait()
        except BaseException:
            self._stop = True
            done.wait()  # for the piece of 1 MiB that leaves at this moment
            self._stop = False
            raise
        if failures:
            raise failures[0]

    def _wait_to_send(self) -> None:
        reading = self._reading.acquire(blocking=False)
        try:
            readers: list[Any] = [self.link.socket] if reading else []
            if self.agent is not None:
                readers.append(self.agent.socket)
            ready = watch(readers, [self.link.socket])(POLL_S)
            if self.agent is not None and self.agent.socket.fileno() in ready:
                self._hear_agent()
            if reading:
                self._pump()
        finally:
            if reading:
                self._reading.release()

    # --- receiving ------------------------------------------------------------------------------

    def ask(
        self,
        name: str,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        sink: Callable[[Any, int], memoryview] | None = None,
    ) -> Any:
        """Run everything queued and then one operation; return its answer.

        This is how to wait for the worker. ``sink`` gives the memory for bulk bytes.
        """
        return self.answer(self.begin(name, args, kwargs, sink=sink))

    def begin(
        self,
        name: str,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        sink: Callable[[Any, int], memoryview] | None = None,
    ) -> Reply:
        """Send everything queued and then one question; return where its answer will be."""
        reply = Reply(sink)
        reply.request = next(self._requests) & 0xFFFFFFFF
        with self._lock:
            if self.failure is not None:
                raise self.failure
            plan, values = self._question(name, args, kwargs)
            if self.garbage:
                self._sweep()
            context = state.local.context
            if context is not self._context:
                self._switch(context, name)
            epoch, prefix = plan.wire
            if epoch is not self._epoch:
                prefix = self._register(plan)
            reply.first = 0 if name in _NO_RESULTS else self.reserve(64)
            record = prefix + plan.packer.pack(reply.first, *values)
            # One frame with what waits, so that the worker wakes up once.
            body = b"".join((*self._parts, record))
            self._transmit(wire.ASK, body, 1, None, queued=len(self._parts), reply=reply)
        return reply

    def _question(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any] | None
    ) -> tuple[Plan, Any]:
        if name == "door.get":  # by far the most frequent one: an array, and a letter
            found = self._gets.get(args[1])
            if found is not None and args[0]._session is self:
                return found, (args[0]._handle,)
        plan, values = plan_of(self.plans, name, args, kwargs or {}, (), self)
        if name == "door.get":
            self._gets[args[1]] = plan
        return plan, values

    def answer(self, reply: Reply) -> Any:
        """Wait for the answer to a question; raise what it or an earlier call met."""
        try:
            self._await(reply)
        finally:
            self._replies.pop(reply.request, None)
        if reply.sequence == self.sequence:
            self.unfinished = False
        self._raise_deferred()
        error = reply.body.get("error")
        if error is not None:
            raise self._or_lost(exception_named(error[0], error[1], error[2]))
        return self._value(reply.body.get("value"), reply.first, reply)

    def finish(self, reply: Reply) -> None:
        """Wait until the worker has answered; what went wrong is told by the next answer."""
        self._await(reply)
        self.forget(reply)

    def forget(self, reply: Reply) -> None:
        """Do not care for an answer any more, whether it came or not."""
        self._replies.pop(reply.request, None)

    def synchronize(self) -> None:
        """Wait until the worker has run everything; raise what went wrong there."""
        if self.unfinished or self._parts or self._deferred or self.failure is not None:
            self.ask("door.sync")

    def _value(self, node: Any, first: int, reply: Reply) -> Any:
        if not isinstance(node, list):
            return node
        code: Any = node[0]
        if code == "h":
            _, index, dtype, shape, strides, device = node
            make = state.hooks["adopt"]
            return make(self, first + index, dtype, tuple(shape), tuple(strides), device)
        if code == "o":
            return first + node[1]
        if code == "c":
            return complex(node[1], node[2])
        if code == "w":
            return reply
        items = [self._value(item, first, reply) for item in node[1:]]
        return tuple(items) if code == "t" else items

    def describe(self, array: Any) -> None:
        """Wait until the worker has told what ``array`` looks like; raise why it cannot."""
        self._listen()
        if array._known is None:
            self.ask("door.touch", (array,))
            if array._known is None:
                raise DoorError("the worker did not describe a result")

    def _await(self, reply: Reply) -> None:
        while not reply.done:
            if self.failure is not None:
                raise self.failure
            if self._reading.acquire(blocking=False):
                try:
                    if not reply.done:
                        self._read_blocking()
                finally:
                    self._reading.release()
                    if self._waiting:
                        with self._changed:
                            self._changed.notify_all()
                if self._collect:
                    self._answer_collect()
            else:
                # Another thread reads for all. The time-out only bounds a lost wake-up.
                with self._changed:
                    self._waiting += 1
                    self._changed.wait(0.02)
                    self._waiting -= 1

    def _read_blocking(self) -> None:
        if self._bulk is not None:
            if self._pump_bulk(all_of_it=True):
                return
        elif self._pump() or self._spin():
            return
        if self._ready is None:
            readers: list[Any] = [self.link.socket]
            if self.agent is not None:
                readers.append(self.agent.socket)
            self._ready = watch(readers, [])
        ready = self._ready(1.0)
        if self.agent is not None and self.agent.socket.fileno() in ready:
            self._hear_agent()
        self._pump()

    def _spin(self) -> bool:
        """Look for an answer without sleeping; say whether it came."""
        if self._spin_pause:
            self._spin_pause -= 1
            return False
        until = time.perf_counter() + SPIN_S
        readable = self.link.readable
        while time.perf_counter() < until:
            if readable() and self._pump():
                return True
        self._spin_pause = SPIN_PAUSE
        return False

    def _listen(self, *, agent: bool = False) -> None:
        """Take in what has arrived, without waiting."""
        if self._reading.acquire(blocking=False):
            try:
                while self._pump():
                    pass
                if agent and self.agent is not None:
                    self._hear_agent()
            finally:
                self._reading.release()
        if self._collect and not self._sending:
            self._answer_collect()

    def _hear_agent(self) -> None:
        assert self.agent is not None
        if self.agent.hear():
            raise self._lose_lease()

    def _lose_lease(self) -> BaseException:
        """End the sessions with all servers, because a lease is whole; return what use raises."""
        assert self.agent is not None
        what = self.agent.lost
        for session in self.agent.sessions:
            session.lose(what)
        return self.lose(what)

    def _cut_off(self, what: str) -> BaseException:
        """End the session, whose connection is gone, and all others if the lease is lost."""
        if self.failure is None and self.agent is not None and self.agent.check():
            return self._lose_lease()
        return self.lose(what)

    def _or_lost(self, error: BaseException) -> BaseException:
        """Return the loss of the lease in place of an error that comes of it.

        Of a server that is lost, the workers of the others may hear first.
        """
        if getattr(error, "status", None) == DEVICES_UNAVAILABLE:
            if self.failure is None and self.agent is not None and self.agent.check():
                return self._lose_lease()
            return self.failure or error
        return error

    def lose(self, what: str) -> BaseException:
        """End the session for a reason; return what its use raises from now on."""
        if self.failure is None:
            make = state.hooks.get("ConnectionLost")
            lost = f"{what}; the arrays of this session are gone"
            failure: BaseException = (
                make(DEVICES_UNAVAILABLE, lost) if make is not None else ConnectionLostError(lost)
            )
            self.failure = failure
            self.link.close()
            self._wake.set()
        return self.failure

    def _pump(self) -> bool:
        """Read once and handle every whole frame; say whether anything came."""
        if self.failure is not None:
            raise self.failure
        if self._bulk is not None:
            return self._pump_bulk()
        counts = self.link.counts
        if not counts:
            if self.link.reads_in_doubt:
                raise self.lose("a transfer from the GPU server was interrupted half-way")
            if len(self._inbox) - self._end < _READ:
                self._inbox[: self._end - self._start] = self._inbox[self._start : self._end]
                self._start, self._end = 0, self._end - self._start
            if not self.link.receive_into(self._inbox_view[self._end : self._end + _READ]):
                return False
        # No calls in these lines, so no signal's exception comes between them. If one came
        # before, the bytes are there already, and were not counted yet.
        count = counts[0]
        self._end += count
        del counts[0]
        if count == 0:
            raise self._cut_off(WORKER_ENDED)
        self._parse()
        return True

    def _pump_bulk(self, *, all_of_it: bool = False) -> bool:
        assert self._bulk is not None
        reply, target = self._bulk
        counts = self.link.counts
        if not counts:
            if self.link.reads_in_doubt:
                raise self.lose("a transfer from the GPU server was interrupted half-way")
            rest = target[target.nbytes - self._bulk_left :]
            if not self.link.receive_into(rest, all_of_it=all_of_it):
                return False
        count = counts[0]
        self._bulk_left -= count
        del counts[0]
        if count == 0:
            raise self._cut_off("the GPU server closed the connection in the middle of a transfer")
        if not self._bulk_left:
            self._bulk = None
            reply.done = True
        return True

    def _parse(self) -> None:
        size = wire.HEADER.size
        while self._bulk is None and self._end - self._start >= size:
            length, kind, _, _, request, _, bulk = wire.HEADER.unpack_from(self._inbox, self._start)
            if length > wire.MAX_BODY or bulk > wire.MAX_BULK:
                raise self.lose("the GPU server sent a frame that is too large")
            if self._end - self._start < size + length:
                break
            begin = self._start + size
            body = bytes(self._inbox_view[begin : begin + length])
            self._start = begin + length
            try:
                known = _COMMON.get(body)
                if known is None and body:
                    known = cbor.decode(body)
                self._handle(kind, request, known, bulk)
            except (cbor.CborError, KeyError, IndexError, TypeError, ValueError) as error:
                raise self.lose(f"the GPU server sent a malformed frame ({error})") from error
        if self._start == self._end:
            self._start = self._end = 0

    def _handle(self, kind: int, request: int, body: Any, bulk: int) -> None:
        if kind in (wire.REPLY, wire.WELCOME):
            reply = self._replies.get(request)
            if reply is None:  # its thread was interrupted; the bytes still have to be read
                reply = Reply(None)
            reply.body = body
            if bulk:
                self._begin_bulk(reply, body, bulk)
            else:
                reply.done = True
        elif kind == wire.DESCRIBED:
            for handle, dtype, shape, strides in body:
                array = self._described.pop(handle, None)
                if array is not None:
                    state.hooks["describe"](array, dtype, tuple(shape), tuple(strides))
        elif kind == wire.FAILED:
            sequence, name, message, details = body
            if len(self._deferred) < DEFERRED_MAX:
                error = exception_named(name, message, details)
                self._deferred.append((sequence, error))
        elif kind == wire.COLLECT:
            self._collect = True
        elif kind == wire.NOTICE:
            if body.get("lost"):
                raise self.lose(str(body["lost"]))
        else:
            raise ValueError(f"frame kind {kind}")

    def _begin_bulk(self, reply: Reply, body: Any, bulk: int) -> None:
        target = memoryview(bytearray(bulk)) if reply.sink is None else reply.sink(body, bulk)
        if target.nbytes != bulk:
            raise ValueError("bulk of another size than announced")
        reply.bulk = target
        have = min(bulk, self._end - self._start)
        target[:have] = self._inbox_view[self._start : self._start + have]
        self._start += have
        self._bulk_left = bulk - have
        if self._bulk_left:
            self._bulk = (reply, target)
        else:
            reply.done = True

    def _answer_collect(self) -> None:
        """Drop this program's garbage, because the worker has no memory left, and say so."""
        self._collect = False
        gc.collect()
        with self._lock:
            if self._sending:
                self._collect = True
                return
            handles: list[int] = []
            while self.garbage and len(handles) < wire.MAX_BODY // 8:
                handles.append(self.garbage.popleft())
            body = struct.pack(f"<{len(handles)}Q", *handles)
            # Calls queued here may still use what is freed, so they go first.
            self.flush()
            self._transmit(wire.COLLECTED, body, 0, None)

    def _raise_deferred(self) -> None:
        if not self._deferred:
            return
        sequence, error = self._deferred[0]
        self._deferred.clear()
        found = self._or_lost(error)
        if found is not error:
            raise found
        place = self._site(sequence)
        if place:
            error.add_note(
                f"by the call at {place}; it was sent without waiting, so its error shows here "
                "(GPUPOOL_BLOCKING=1 waits after every call)"
            )
        raise error

    def _site(self, sequence: int) -> str:
        found = (site for site in reversed(self._sites) if site[0] == sequence)
        _, code, instruction = next(found, (0, None, 0))
        if code is None:
            return ""
        line = next(
            (at[0] for index, at in enumerate(code.co_positions()) if index * 2 == instruction),
            None,
        )
        return f"{code.co_filename}:{line or code.co_firstlineno}"

    # --- arrays in and out ------------------------------------------------------------------------

    def put(self, handle: int, meta: Meta, data: memoryview, *, existing: bool = False) -> int:
        """Send the bytes of a contiguous array, made under ``handle``; return its device.

        With ``existing`` the array is there already, and only filled.
        """
        with self._lock:
            self._begin("put")
            if data.nbytes <= INLINE_MAX and not existing:
                number = self._meta_id(meta)
                head = wire.PUT_RECORD.pack(wire.INLINE_PUT, handle, number, data.nbytes)
                record = head + bytes(data)
                # No calls in these lines, so no signal's exception comes between them.
                self._parts += (record,)
                self._size += data.nbytes
                self._calls += 1
                if self._calls >= BATCH_CALLS or self._size >= wire.MAX_BATCH:
                    self.flush()
                elif not self._flusher_awake:
                    self._arm()
                return self._where
            # The parts that name the meta must be sent before the frame that uses it.
            number = self._meta_id(meta)
            self.flush()
            self.unfinished = True
            body = cbor.encode([handle, number, existing])
            try:
                self._transmit(wire.PUT, body, 0, data)
            except BaseException:
                if not existing:
                    self.garbage.append(handle)  # nobody will ever have it
                raise
            where = self._where
            if not existing:
                self._room[where - self.first_device] -= meta.nbytes
        self.check_room(where)
        return where

    def check_room(self, where: int) -> None:
        """Ask the worker if what was allocated on a device may have been too much."""
        if self._room[where - self.first_device] < 0:
            self._look_for_room(where)

    def _begin(self, name: str) -> None:
        if self.failure is not None:
            raise self.failure
        if self.garbage:
            self._sweep()
        context = state.local.context
        if context is not self._context:
            self._switch(context, name)

    # --- to and from other workers ----------------------------------------------------------------

    def post(self, record: bytes) -> None:
        """Send a record that has a place in the program as a call has, after all that is queued."""
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
            frame = frame.f_back
        with self._lock:
            self._begin("peer.send")
            number = self.sequence + 1
            self._sites.append((number, frame.f_code, frame.f_lasti))
            # No signal's exception comes before the end of these lines, the first call in them.
            self.sequence = number
            self._calls += 1
            self._parts.append(record)
            self.flush()

    def take(self, index: int, number: int, handle: int, meta: Meta, *, existing: bool) -> int:
        """Have the worker take what another sends, as `put`; return the array's device."""
        with self._lock:
            self._begin("put")
            meta_id = self._meta_id(meta)
            flag = int(existing)
            fields = (wire.RECEIVE, index, number, handle, meta_id, flag)
            self.post(wire.RECEIVE_RECORD.pack(*fields))
            where = self._where
            if not existing:
                self._room[where - self.first_device] -= meta.nbytes
        return where

    def close(self) -> None:
        """End the session. What is queued is run first, and what failed is reported."""
        if self.failure is None:
            try:
                if self._unsent:
                    return  # an interrupt stopped a frame, and this program does not go on
                if self.unfinished or self._parts:
                    self.synchronize()
                with contextlib.suppress(Exception):  # nothing is lost if it has gone already
                    self._transmit(wire.BYE, b"", 0, None)
            finally:
                if self.failure is None:
                    self.failure = DoorError("the GPU session is closed")
                self.link.close()

    def abandon(self, reason: str) -> None:
        """Mark as unusable in a forked child, without a byte to the worker, who is the parent's."""
        self.failure = DoorError(reason)
        self._lock = threading.RLock()
        self._reading = threading.Lock()
        self._changed = threading.Condition()
        self.shared = None
        self.link.close()


def remote_object(kind: Any, session: Session, handle: int) -> Any:
    """Return a new instance of ``kind``, a `Remote`, for a handle."""
    made: Remote = kind.__new__(kind)
    made._handle = handle  # pyright: ignore[reportPrivateUsage]
    made._session = session  # pyright: ignore[reportPrivateUsage]
    return made
