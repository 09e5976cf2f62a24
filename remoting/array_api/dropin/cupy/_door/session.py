"""One session with one worker: batches of calls out; replies, descriptions and errors in.

Parts
    `connection`  the socket, and the one reason for which the session ended
    `receiver`    frames from the worker
    `sender`      records that wait, and frames to the worker
    `handles`     numbers of arrays, templates and metas that both ends know
    `flusher`     the thread that sends the records of a program that pauses
    `sites`       where in the program each of the latest calls was made
    `judged`      which calls wait once for the worker's checks
    `queue`       records in the order of the program, each in its context
    `Session`     calls, questions, uploads; the only part that other modules use
    Each part uses only those above it. A part that must cause something further down calls a
    hook that it was given.

What is sent, and when
    A call is a record. It waits in the batch, and the program goes on with a handle for the
    result. A batch leaves as one CALLS frame when it has 64 calls or 64 KiB, or after about
    0.3 ms without another frame. A question (`ask`) leaves at once as an ASK frame that holds the
    batch and the question. An upload sends the batch first, then a PUT frame with the bytes; a
    small one is a record of the batch. The worker runs all records in the order of this queue.

Who waits
    `emit`, `call` and `put` wait for room in the socket only, never for the worker's result; three
    exceptions are a device whose memory may be full, GPUPOOL_BLOCKING=1, and the first call of a
    kind that the worker's library checks (`judged`). `answer`,
    `synchronize` and `describe` wait for the worker. Errors of a call come back with the next
    answer, with a note of the place of the call; a call that waits for the worker's checks raises
    its own error only. Destructors never lock, send or wait: they
    append a handle to `garbage`.

Threads and locks
    Any thread of the program may call any method. The sender's lock (reentrant) protects the
    batch, the numbers, the sequence and the socket's sending side. `Receiver.reading` protects
    the inbox and the socket's receiving side; the thread that holds it reads for all threads. A
    thread that holds the sender's lock may take `reading`, but only without waiting for it; a
    thread that holds `reading` never takes the sender's lock. So no two threads wait for each
    other, unless a handler of a signal, which comes while a thread sleeps with `reading`, waits
    for another thread, by that lock or by itself. Where the memory of a device may be full, the
    thread that allocates waits for the worker and holds the sender's lock meanwhile. Besides the
    program's threads there is one that flushes, and for a large frame under TLS one that sends in
    place of the main thread.

What is never true
    - A record uses a number that no earlier record defined.
    - Bytes of two frames are mixed, even after an exception of a signal's handler. Such a frame
      is finished before the next one, or the session ends.
    - A number is defined here and unknown to the worker. Lines marked "no calls" hold this
      through a signal's exception: Python runs handlers between calls only.
    - `failure` changes once it is set, or a byte is sent afterwards.
    - A forked child sends a byte to its parent's worker: `abandon` ends the session there.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import contextlib
import itertools
import warnings
from typing import Any

import numpy as np

from cupy._door import answers, cbor, sites, state, waits, wire
from cupy._door.calls import Plan, plan_of
from cupy._door.cuda_errors import exception_named
from cupy._door.errors import MALFORMED, DoorError, nonsense, visible
from cupy._door.handles import Handles
from cupy._door.judged import Judged, each_waits, is_judged, is_strict
from cupy._door.locks import WAIT, alone
from cupy._door.meta import Meta
from cupy._door.older import add_note
from cupy._door.queue import CallQueue, Hooks, room_left
from cupy._door.transport.connection import Connection
from cupy._door.transport.link import Agent, Link
from cupy._door.transport.receiver import Receiver, Reply, Sink
from cupy._door.transport.sender import Sender
from cupy._door.transport.shared import Shared

#: Bytes up to which an upload is a record of the batch, not a frame of its own.
INLINE_MAX = 4096
DEVICES_MAX = 256  # of one worker
#: Questions whose answer is never an array or another object, so that they take no handles.
_NO_RESULTS = frozenset(
    (
        *("door.sync", "door.get", "door.touch", "door.fill", "door.fetch"),
        *("cuda.device.synchronize", "peer.arrive", "peer.depart", "peer.prepare"),
    )
)


class Session:
    """One worker: its connection, and everything that this side must remember about it."""

    def __init__(
        self, link: Link, agent: Agent | None, first_device: int, index: int = 0, name: str = ""
    ) -> None:
        self.agent = agent
        self.first_device = first_device
        self.index = index  # among the sessions of this process
        self.name = name  # of the server
        self.offer: dict[str, Any] | None = None  # by which the agent named the worker
        self.introduced = False  # to the workers of the other sessions
        # Numbers of the transfers to each of them, by its index; None where it cannot be reached.
        self.transfers: dict[int, itertools.count[int] | None] = {}
        self.plans: dict[Any, Plan] = {}
        self.operations: dict[str, int] = {}
        self.devices: list[dict[str, Any]] = []
        self.server: dict[str, Any] = {}
        self.shared: Shared | None = None  # memory in common with a worker of this machine
        self._connection = Connection(link, agent)
        self._receiver = Receiver(self._connection)
        self._sender = Sender(self._connection, self._receiver)
        self._handles = Handles(self._sender, first_device)
        hooks = Hooks(
            low_room=self._look_for_room,
            blocking_call=self.synchronize,
            refusal=self.refusal,
        )
        self._queue = CallQueue(self._connection, self._sender, self._handles, first_device, hooks)
        # Members of the parts under a name of the session, because every call uses them.
        self.garbage = self._sender.garbage
        self.handles = self._handles.counter
        self.emit = self._queue.emit
        self.post = self._queue.post
        self.group = self._queue.group
        self.takes_groups = False
        self._requests = itertools.count(1)
        self.judged = Judged()
        self._judged_names: frozenset[str] = frozenset()
        self._gets: dict[str, Plan] = {}  # of `door.get`, by the order of the elements
        self.waits = waits.made()

    @property
    def failure(self) -> BaseException | None:
        """Why the session ended; None while it is usable."""
        return self._connection.failure

    # --- start and end --------------------------------------------------------------------------

    def greet(self, version: str, peers: dict[str, Any] | None = None) -> None:
        """Exchange versions; learn the worker's operations and devices.

        Args:
            version: of this drop-in.
            peers: an introduction to the workers of the program's other sessions.

        Raises:
            DoorError: the worker speaks another protocol.
        """
        hello: dict[str, Any] = {"protocol": wire.PROTOCOL, "version": version}
        hello["numpy"] = np.__version__
        if peers is not None:
            hello["peers"] = peers
        if is_strict():
            hello["strict"] = True
        reply = self._receiver.replies[0] = Reply(None)
        if self._connection.link.expect_descriptor():
            hello["shared"] = [wire.SHARED_SLOTS, wire.SHARED_SLOT]
        self._sender.transmit(wire.HELLO, cbor.encode(hello), None)
        self._sender.await_reply(reply)
        descriptor = self._connection.link.take_descriptor()
        if descriptor is not None:
            self.shared = Shared(self, descriptor)
        try:
            self._heed(reply.body, version)
        except MALFORMED as error:
            raise self._connection.lose(nonsense(error)) from error
        self.introduced = peers is not None

    def _heed(self, welcome: dict[str, Any], version: str) -> None:
        """Apply the worker's welcome message."""
        if "error" in welcome:
            raise ValueError(visible(welcome["error"]))
        if welcome.get("protocol") != wire.PROTOCOL:
            theirs, number = visible(welcome.get("version")), visible(welcome.get("protocol"))
            raise DoorError(
                f"this drop-in (gpupool {version}) speaks array protocol {wire.PROTOCOL}, the "
                f"server (gpupool {theirs}) speaks {number}; install the same version on both"
            )
        if is_strict() and welcome.get("strict") is not True:
            raise DoorError(
                "GPUPOOL_STRICT asks for strict mode, which this server's GPUs do not have: it is "
                "for emulated GPUs of this gpupool or a later one. Unset GPUPOOL_STRICT, or use "
                "compute-sanitizer on a real GPU"
            )
        names, devices = welcome["operations"], welcome["devices"]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise TypeError("operations that are no list of names")
        if not isinstance(devices, list) or not 0 < len(devices) <= DEVICES_MAX:
            raise TypeError("devices that are no list of some")
        room = [device["memory"] for device in devices]
        if not all(isinstance(memory, int) for memory in room):
            raise TypeError("a device whose memory is no number")
        self.operations = {name: number for number, name in enumerate(names)}
        self._judged_names = frozenset(filter(is_judged, names))
        self._handles.structures = "ndarray.field" in self.operations
        self.takes_groups = welcome.get("groups") is True
        self.devices = devices
        self.server = welcome
        room = [*map(min, room, room_left(welcome, room))]
        blocks = each_waits(devices)
        self._queue.welcome(self.operations, visible(welcome.get("version")), room, blocks)

    def close(self, *, wait: bool = True) -> None:
        """End the session: at once without ``wait``, else after queued calls, with their errors."""
        try:
            if not wait or self.failure is not None or self._sender.interrupted:
                return  # there is nothing to send, or a frame that is never finished
            self.synchronize()
            with contextlib.suppress(Exception):  # nothing is lost if it has gone already
                self._sender.transmit(wire.BYE, b"", None)
        finally:
            self._connection.close(DoorError("the GPU session is closed"))

    def abandon(self, reason: str) -> None:
        """Mark as unusable in a forked child, without a byte to the worker of the parent."""
        self._sender.after_fork()
        self._receiver.after_fork()
        self._queue.after_fork()
        self.shared = None
        # Without an end of the stream, which is the parent's too.
        self._connection.close(DoorError(reason))

    def lose(self, reason: str) -> BaseException:
        """End the session for a reason; return the exception that its use raises from now on."""
        return self._connection.lose(reason)

    # --- calls ----------------------------------------------------------------------------------

    def call(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], *metas: Meta | int
    ) -> tuple[int, int]:
        """Queue one call by name; return the handle of its first result, and its device."""
        plan, values = plan_of(self.plans, name, args, kwargs, metas, self)
        handle = next(self.handles) if plan.outputs == 1 else self.reserve(plan.outputs)
        packed = plan.packer.pack(handle, *values)
        if name not in self._judged_names:
            return handle, self.emit(plan, packed)
        try:
            return handle, self._emit_judged(plan, packed, args, kwargs)
        except BaseException:
            # No array will ever own the results.
            self.garbage.extend(range(handle, handle + plan.outputs))
            raise

    def _emit_judged(
        self, plan: Plan, packed: bytes, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> int:
        """Queue one call; if such a one was not accepted yet, wait for it, and raise its error."""
        kind = self.judged.must_wait(plan.name, args, kwargs)
        if kind is None:
            return self.emit(plan, packed)
        receiver, sender, number = self._receiver, self._sender, 0
        try:
            (_,) = map(sender.lock.acquire, WAIT)  # so that the call gets the number
            try:
                number = sender.sequence + 1
                own = receiver.watched[number] = []
                device = self.emit(plan, packed)
            finally:
                sender.lock.release()
            ran = self._has_run(args, kwargs)
            if own:
                raise self._connection.or_lost(own.pop())
        finally:
            # An error that is left is told later: an interrupt, or another error, came before it.
            receiver.deferred += [(number, error) for error in receiver.watched.pop(number, ())]
        if ran and not self.warn():
            self.judged.accept(kind)
        return device

    def warn(self) -> bool:
        """Give the program the worker's warnings; say whether there are any.

        A kind of call with a warning is not accepted, so that each such call waits and warns.
        """
        warned, self._receiver.warned = self._receiver.warned, []
        frame = sites.program_frame(sites.frame_at(1))
        name, line = frame.f_code.co_filename, frame.f_lineno
        registry = frame.f_globals.setdefault("__warningregistry__", {})
        module = frame.f_globals.get("__name__")
        for each in warned:
            warnings.warn_explicit(each, type(each), name, line, module, registry)
        return bool(warned)

    def _has_run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Wait for a call; False if the worker did not run it, for an argument's call failed."""
        try:
            # Texts are long, and touch nothing.
            touched = [each for each in (*args, *kwargs.values()) if not isinstance(each, str)]
            self.ask("door.touch", (touched,), own_error=True)
        except Exception:
            if self.failure is not None:
                raise
            return False
        return True

    def call_unknown(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], array: Any
    ) -> None:
        """Queue one call with the result ``array``; the worker describes it later."""
        plan, values = plan_of(self.plans, name, args, kwargs, (wire.META_UNKNOWN,), self)
        packed = self.expect(plan, values, array)
        array._gp_device = self._emit_judged(plan, packed, args, kwargs)

    def expect(self, plan: Plan, values: list[Any], array: Any) -> bytes:
        """Give ``array`` a handle, under which the worker describes it; return the call, packed."""
        array._gp_handle = next(self.handles)
        # Before the call leaves, because its description may be here before `emit` returns.
        self._receiver.described[array._gp_handle] = array
        return plan.packer.pack(array._gp_handle, *values)

    @property
    def lock(self) -> Any:
        """The lock of the sending side."""
        return self._sender.lock

    @alone
    def reserve(self, count: int) -> int:
        """Return the first of ``count`` consecutive new handles."""
        return self._handles.reserve(count)

    def refuse(self, value: Any) -> None:
        """Raise for a remote object of another session."""
        other = value._gp_session
        if other.failure is not None:
            raise other.failure
        raise other.refusal(state.local.context[0], getattr(value, "_gp_device", None))

    def refusal(self, current: int, device: int | None = None) -> ValueError:
        """Return CuPy's error for arrays of this session where another device is to compute."""
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
        return ValueError(
            f"{text}. Peer access is unavailable between these devices: they are on different "
            "servers. Make the array's device current, or copy the array to the current one with "
            "cupy.asarray(a)."
        )

    def _look_for_room(self, device: int) -> None:
        """Make an allocation that may not fit fail here and now, as it does in CuPy.

        Programs catch OutOfMemoryError around the call that allocates. Asking after every call
        would cost a round trip each, so it is done once as much has been allocated as was free
        when last asked, whatever was freed since.
        """
        free, _total = self.numbers("cuda.mem_info", 2)  # raises the errors of the calls before it
        used, held, limit, _blocks = self.numbers("cuda.pool.numbers", 4)
        self._queue.set_room(device, min(free + held, limit or free + held) - used)

    def check_room(self, device: int) -> None:
        """Ask the worker if the allocations on a device may have been too large."""
        if self._queue.room(device) < 0:
            self._look_for_room(device)

    def forget_room(self) -> None:
        """Make the next allocation ask, because the memory that is left has changed."""
        self._queue.forget_room()

    # --- questions ------------------------------------------------------------------------------

    def ask(
        self,
        name: str,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        sink: Sink | None = None,
        own_error: bool = False,
    ) -> Any:
        """Run everything queued and then one operation; return its answer.

        This waits for the worker. ``sink`` gives the memory for bulk bytes. With ``own_error``
        the errors of earlier calls stay for the next answer.
        """
        return self.answer(self.begin(name, args, kwargs, sink=sink), own_error=own_error)

    @alone
    def begin(
        self,
        name: str,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        sink: Sink | None = None,
    ) -> Reply:
        """Send everything queued and then one question; return where its answer will be."""
        reply = Reply(sink)
        reply.request = next(self._requests) & 0xFFFFFFFF
        if self._connection.failure is not None:
            raise self._connection.failure
        if self.waits is not None:
            self.waits.count(name)
        plan, values = self._question(name, args, kwargs)
        self._queue.begin(name)
        epoch, prefix = plan.wire
        if epoch is not self._handles.epoch:
            prefix = self._queue.register(plan)
        reply.first = 0 if name in _NO_RESULTS else self._handles.reserve(64)
        record = prefix + plan.packer.pack(reply.first, *values)
        # One frame with the batch, so that the worker wakes up once.
        self._sender.transmit(wire.ASK, record, None, batch=True, reply=reply)
        return reply

    def _question(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any] | None
    ) -> tuple[Plan, Any]:
        if name == "door.get":  # by far the most frequent one: an array, and a letter
            found = self._gets.get(args[1])
            if found is not None and args[0]._gp_session is self:
                return found, (args[0]._gp_handle,)
        plan, values = plan_of(self.plans, name, args, kwargs or {}, (), self)
        if name == "door.get":
            self._gets[args[1]] = plan
        return plan, values

    def answer(self, reply: Reply, *, own_error: bool = False) -> Any:
        """Wait for the answer to a question; raise the error of an earlier call, or its own."""
        try:
            self._sender.await_reply(reply)
        finally:
            self._receiver.replies.pop(reply.request, None)
        if reply.sequence == self._sender.sequence:
            self._sender.unfinished = False
        if not own_error:
            self._raise_deferred()
            if self._receiver.warned:
                self.warn()
        failed: BaseException | None = None
        value: Any = None
        try:
            error = reply.body.get("error")
            if error is None:
                value = answers.read(self, reply.body.get("value"), reply)
                if reply.sink is not None and value is not reply:
                    raise ValueError("an answer without the bytes that were asked for")
            else:
                name, message, details = error
                if not isinstance(name, str) or not isinstance(message, str):
                    raise TypeError("an error without words")
                failed = exception_named(name, message, details)
        except MALFORMED as wrong:
            raise self.lose(nonsense(wrong)) from wrong
        if failed is not None:
            raise self._connection.or_lost(failed)
        return value

    def numbers(self, name: str, count: int) -> list[int]:
        """Ask for so many numbers, without arguments; another answer ends the session."""
        found = self.ask(name)
        good = isinstance(found, (list, tuple)) and len(found) == count
        if not good or not all(isinstance(one, int) for one in found):
            raise self.lose(nonsense(TypeError(f"an answer to {name} without {count} numbers")))
        return list(found)

    def finish(self, reply: Reply) -> None:
        """Wait until the worker has answered; the next answer raises the errors until then."""
        self._sender.await_reply(reply)
        self.forget(reply)

    def forget(self, reply: Reply) -> None:
        """Drop an answer that is not needed any more, whether it came or not."""
        self._receiver.replies.pop(reply.request, None)

    def synchronize(self) -> None:
        """Wait until the worker has run everything; raise the first error."""
        sender = self._sender
        waits = sender.unfinished or sender.parts or self._receiver.deferred
        if waits or self.failure is not None:
            self.ask("door.sync")

    def _raise_deferred(self) -> None:
        """Raise the first error of the calls that were not waited for; the others stay."""
        try:
            sequence, error = self._receiver.deferred.pop(0)
        except IndexError:
            return
        found = self._connection.or_lost(error)
        if found is not error:
            raise found
        place = self._queue.place(sequence)
        if place:
            add_note(
                error,
                f"by the call at {place}; it was sent without waiting, so its error shows here "
                "(GPUPOOL_BLOCKING=1 waits after every call)",
            )
        raise error

    def raise_cause(self, error: Exception) -> None:
        """Raise the error of an earlier call if a question that needs its result ended with it."""
        deferred = self._receiver.deferred
        for at, (_, earlier) in enumerate(deferred):
            if type(earlier) is type(error) and str(earlier) == str(error):
                deferred.insert(0, deferred.pop(at))
                self._raise_deferred()

    def describe(self, array: Any) -> None:
        """Wait for the worker's description of ``array``; raise the error if there is none."""
        self._sender.listen()
        if array._gp_known is None:
            self.ask("door.touch", (array,))
            if array._gp_known is None:
                raise DoorError("the worker did not describe a result")

    # --- arrays in, and between workers -----------------------------------------------------------

    def put(self, handle: int, meta: Meta, data: memoryview, *, existing: bool = False) -> int:
        """Send the bytes of a contiguous array, made under ``handle``; return its device.

        With ``existing`` the array is there already, and only filled.
        """
        if data.nbytes <= INLINE_MAX and not existing:
            return self._queue.put_small(handle, meta, data)
        device = self._queue.put(handle, meta, data, existing=existing)
        self.check_room(device)
        return device

    def take(self, index: int, number: int, handle: int, meta: Meta, *, existing: bool) -> int:
        """Let the worker take another worker's elements; return the array's device."""
        return self._queue.take(index, number, handle, meta, existing=existing)
