"""Records in the order of the program: calls, small uploads, transfers.

Each record runs in the context (device and stream) of the thread that queued it, so a change of
context is a record before it. Each call has a number, under which the worker reports its failure
and this side remembers its place in the program.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from cupy._door import cbor, sites, state, wire
from cupy._door.calls import Plan, runs_anywhere
from cupy._door.handles import Handles
from cupy._door.locks import alone
from cupy._door.meta import Meta
from cupy._door.sites import HERE, SITES_MASK, frame_at
from cupy._door.transport.connection import Connection
from cupy._door.transport.flusher import Flusher
from cupy._door.transport.sender import Sender

_local = state.local

GROUP_ROOM = 32
"""Calls for which a batch has room when a group begins."""


class Hooks(NamedTuple):
    """Callbacks from a queue to its session."""

    #: Ask the worker how much memory a device has left.
    low_room: Callable[[int], None]
    #: Wait for a call, where each is waited for.
    blocking_call: Callable[[], None]
    #: Make the error for a current device that is another session's.
    refusal: Callable[[int], Exception]


def room_left(welcome: dict[str, Any], room: list[int]) -> list[int]:
    """Return the bytes that other processes of the lease have left on each device."""
    left = welcome.get("room") or room
    if len(left) != len(room) or not all(isinstance(size, int) for size in left):
        raise TypeError("room that is no number for each device")
    return left


class CallQueue:
    """The records of one session. `begin` and `register` need the lock; the others take it."""

    def __init__(
        self,
        connection: Connection,
        sender: Sender,
        handles: Handles,
        first_device: int,
        hooks: Hooks,
    ) -> None:
        self.lock = sender.lock
        self._turns = map(sender.lock.acquire, itertools.repeat(True))  # each one takes the lock
        self.handles = handles
        self._connection = connection
        self._sender = sender
        self._garbage = sender.garbage
        self._flusher = Flusher(connection, sender)
        self._first_device = first_device
        self._on_low_room = hooks.low_room
        self._wait = hooks.blocking_call
        self._on_blocking_call: Callable[[], None] | None = None
        self._refusal = hooks.refusal
        self._operations: dict[str, int] = {}
        self._version = ""  # of the server
        # Bytes of each device that new arrays may certainly take; below zero, the worker is asked.
        self._room: list[int] = []
        self._context: state.Context | None = None  # of the latest record
        self._where = first_device  # the device of that context
        self._sites: sites.Sites = [None] * sites.SITES_MAX

    def welcome(
        self, operations: dict[str, int], version: str, room: list[int], blocks: bool
    ) -> None:
        """Take the worker's description; wait after each call, or not."""
        self._on_blocking_call = self._wait if blocks else None
        self._operations = operations
        self._version = version
        self._room = room

    def after_fork(self) -> None:
        """Use the lock that the sender has made."""
        self.lock = self._sender.lock
        self._turns = map(self.lock.acquire, itertools.repeat(True))

    def place(self, sequence: int) -> str:
        """Return the file and line of a call by its number; empty if it is not known any more.

        Where each call waits, the traceback of an error names the line.
        """
        return (
            ""
            if self._on_blocking_call
            else sites.place(self._sites, sequence, self._sender.sequence)
        )

    def forget_context(self) -> None:
        """Name the device and the stream again before the next record."""
        self._context = None

    # --- memory of the devices ------------------------------------------------------------------

    def room(self, device: int) -> int:
        """Return the bytes that new arrays may certainly take; below zero if that is unknown."""
        return self._room[device - self._first_device]

    def set_room(self, device: int, size: int) -> None:
        """Set the bytes that new arrays may certainly take."""
        self._room[device - self._first_device] = size

    def forget_room(self) -> None:
        """Make the next allocation ask, because the memory that is left has changed."""
        self._room = [0] * len(self._room)

    # --- any record -----------------------------------------------------------------------------

    def begin(self, name: str) -> None:
        """Prepare for a record of the operation ``name``. The caller holds the lock."""
        if self._connection.failure is not None:
            raise self._connection.failure
        if self._garbage:
            self._sender.sweep()
        # A question has a number and no place; that of a call of long ago is not its own.
        self._sites[(self._sender.sequence + 1) & SITES_MASK] = None
        context = state.local.context
        if context is not self._context:
            self._switch(context, name)

    def register(self, plan: Plan) -> bytes:
        """Return the prefix of a plan's calls, after the definitions that it needs."""
        operation = self._operations.get(plan.name)
        if operation is None:
            raise NotImplementedError(
                f"{plan.name}: the server (gpupool {self._version}) does not offer it"
            )
        prefix = self.handles.register(plan, operation)
        self._sender.weigh(0)  # of the definitions
        return prefix

    def _switch(self, context: state.Context, name: str) -> None:
        device, stream = context
        local = device - self._first_device
        known: state.Context | None = context
        if not 0 <= local < len(self._room):
            # The current device is another server's. As between GPUs without peer access, only
            # an operation that computes nothing is possible; its device makes no difference.
            if not runs_anywhere(name):
                raise self._refusal(device)
            local = stream = 0
            known = None
        self._where = self._first_device + local
        self._sender.parts.append(wire.CONTEXT_RECORD.pack(wire.CONTEXT, local, stream))
        self._context = known

    # --- calls, uploads, transfers --------------------------------------------------------------

    def emit(self, plan: Plan, packed: bytes, frame: Any = None) -> int:
        """Queue one call; return the device on which it runs.

        Nothing waits; errors come back at the next synchronising call. ``frame`` is the program's,
        where the caller knows how far up it is.
        """
        if frame is None:
            # As `program_frame`, without its call: this runs for every call of some functions.
            frame = frame_at(2)
            while frame.f_back is not None and frame.f_code.co_filename.startswith(HERE):
                frame = frame.f_back
        sender = self._sender
        for _ in self._turns:  # takes the lock: see `locks`
            try:
                if self._connection.failure is not None:
                    raise self._connection.failure
                if plan.heavy:
                    self._make_way(plan)
                context = _local.context
                if context is not self._context:
                    self._switch(context, plan.name)
                epoch, prefix = plan.wire
                if epoch is not self.handles.epoch:
                    prefix = self.register(plan)
                site, record = (frame.f_code, frame.f_lasti), prefix + packed
                # No signal's exception comes before the end of these lines, the first call in them,
                # and no garbage is collected, whose destructors may call as well.
                number = sender.sequence + 1
                self._sites[number & SITES_MASK] = site
                sender.sequence = number
                sender.parts.append(record)
                if number >= sender.full_at:
                    self._waited(sender.flush, of=plan, packed=packed)
                elif not self._flusher.awake:
                    self._flusher.arm()
                where = self._where
                if plan.allocates:
                    room, at = self._room, where - self._first_device
                    room[at] = left = room[at] - plan.allocates
                    if left < 0 and self._on_blocking_call is None:
                        self._waited(self._on_low_room, where, of=plan, packed=packed)
            finally:
                self.lock.release()
            if self._on_blocking_call is not None:
                self._waited(self._on_blocking_call, of=plan, packed=packed)
            return where
        raise AssertionError("turns never end")

    def _make_way(self, plan: Plan) -> None:
        """Free dropped arrays before a large result; count the bytes of a long record."""
        if plan.prompt and self._garbage:
            self._sender.sweep()
        self._sender.weigh(plan.packer.size)

    def _waited(self, wait: Callable[..., None], *args: int, of: Plan, packed: bytes) -> None:
        """Wait for a call, or send it; if that fails, drop its results, which no array will own."""
        try:
            wait(*args)
        except BaseException:
            first = int.from_bytes(packed[:8], "little")
            self._garbage.extend(range(first, first + of.outputs))
            raise

    @contextlib.contextmanager
    def group(self) -> Generator[None]:
        """Mark the calls that are made meanwhile as one function, unless they leave before its end.

        They leave when the batch is full, or when something is asked.
        """
        began = self._begin_group()
        try:
            yield
        finally:
            self._end_group(*began)

    @alone
    def _begin_group(self) -> tuple[int, int, int]:
        sender = self._sender
        self.begin("door.same")
        if sender.sequence + GROUP_ROOM > sender.full_at:
            sender.flush()
        sender.held_since = time.monotonic()
        return sender.flushes, len(sender.parts), sender.sequence

    @alone
    def _end_group(self, flushes: int, first: int, sequence: int) -> None:
        sender = self._sender
        sender.held_since = 0.0
        sender.sweep()  # what the function dropped is never computed into memory
        length = sum(map(len, sender.parts[first:]))
        head = (wire.SIZED_RECORD.pack(wire.GROUP, length),)
        # No calls in these lines, so nothing leaves between them.
        if sender.flushes == flushes and sender.sequence > sequence + 1:
            sender.parts[first:first] = head
            sender.size += wire.SIZED_RECORD.size

    @alone
    def put_small(self, handle: int, meta: Meta, data: memoryview) -> int:
        """Queue the bytes of a small array, made under ``handle``; return its device."""
        sender = self._sender
        self.begin("put")
        number = self.handles.meta(meta)
        head = wire.PUT_RECORD.pack(wire.INLINE_PUT, handle, number, data.nbytes)
        record = head + bytes(data)
        # No calls in these lines, so no signal's exception comes between them.
        sender.parts += (record,)
        sender.full_at -= 1  # so that a batch has no more records of this kind either
        sender.size += data.nbytes
        if sender.sequence >= sender.full_at or sender.size >= wire.MAX_BATCH:
            sender.flush()
        elif not self._flusher.awake:
            self._flusher.arm()
        return self._where

    @alone
    def put(self, handle: int, meta: Meta, data: memoryview, *, existing: bool) -> int:
        """Send the bytes of an array in a separate frame; return its device."""
        sender = self._sender
        self.begin("put")
        # The parts that name the meta must be sent before the frame that uses it.
        number = self.handles.meta(meta)
        sender.flush()
        sender.unfinished = True
        body = cbor.encode([handle, number, existing])
        try:
            sender.transmit(wire.PUT, body, data)
        except BaseException:
            if not existing:
                self._garbage.append(handle)  # no array object will ever own it
            raise
        where = self._where
        if not existing:
            self._room[where - self._first_device] -= meta.nbytes
        return where

    @alone
    def post(self, record: bytes) -> None:
        """Send a record that has a place in the program as a call has, after all that is queued."""
        frame = sites.program_frame(frame_at(1))
        sender = self._sender
        self.begin("peer.send")
        site = frame.f_code, frame.f_lasti
        # As in `emit`.
        number = sender.sequence + 1
        self._sites[number & SITES_MASK] = site
        sender.sequence = number
        sender.parts.append(record)
        sender.flush()

    @alone
    def take(self, index: int, number: int, handle: int, meta: Meta, *, existing: bool) -> int:
        """Let the worker take another worker's elements; return the array's device."""
        self.begin("put")
        meta_id = self.handles.meta(meta)
        flag = int(existing)
        fields = (wire.RECEIVE, index, number, handle, meta_id, flag)
        self.post(wire.RECEIVE_RECORD.pack(*fields))
        where = self._where
        if not existing:
            self._room[where - self._first_device] -= meta.nbytes
        return where
