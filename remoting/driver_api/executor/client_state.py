"""The state of one client process for the areas of the executor, and the base class of areas.

``executor.py`` decodes frames and calls one method per record. The methods live in areas: one
module each for memory, transfers, kernels and so on. All that areas share is here.
"""

import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.devices.base import Budget, DeviceSpec
from gpupool.remoting.driver_api.executor.api import Api
from gpupool.remoting.driver_api.executor.modules.function import Function
from gpupool.remoting.driver_api.executor.modules.launcher import Launcher
from gpupool.remoting.driver_api.executor.modules.shared_state import Shared
from gpupool.remoting.driver_api.executor.sync_waiter import Waiter
from gpupool.remoting.driver_api.schema.decoding import AtHand
from gpupool.remoting.driver_api.schema.layout import HEADER, Record
from gpupool.remoting.driver_api.schema.records import NUMBERS
from gpupool.remoting.driver_api.schema.table import NAMES
from gpupool.remoting.worker import launch_gate

WORDS = [struct.Struct(f"<{count}Q") for count in range(64)]
LEGACY_STREAM = 1
GREEN_FIRST = 1024
"""Numbers of green contexts among those of devices start here."""

ISSUED_OBJECTS = "se"
"""Kinds of objects that the launcher may name as soon as they are there."""

OBJECTS_MAX = 1 << 20
"""Streams, events and so on that one client may have at a time, of each kind."""

Methods = dict[str, Callable[..., bytes | None]]
"""Handler of each record: a test compares its parameters with the record's row."""

Calls = dict[int, tuple[Record, Callable[..., bytes | None]]]
"""Record and handler of each call of ``table.CALLS``, by number."""


@dataclass(frozen=True, slots=True)
class Green:
    """A green context: its handle, itself as a context, and its device's own context."""

    handle: int
    context: int
    primary: int
    device: int


class Events(dict[int, int]):
    """Handles of events: those that Python has made, and those that the launcher has."""

    def __init__(self, launcher: Launcher | None) -> None:
        super().__init__()
        self._launcher = launcher

    def __missing__(self, number: int) -> int:
        handle = self._launcher.event(number) if self._launcher is not None else 0
        if not handle:
            raise KeyError(number)
        return handle

    def __contains__(self, number: object) -> bool:
        return super().__contains__(number) or (
            isinstance(number, int)
            and self._launcher is not None
            and bool(self._launcher.event(number))
        )

    def __delitem__(self, number: int) -> None:
        self.pop(number, None)  # the launcher forgets its own by ``end``


class Captures:
    """The streams in which captures began that have not ended."""

    def __init__(self, shared: Shared) -> None:
        self.lock = threading.Lock()
        """Held while a capture begins."""
        self.streams: set[int] = set()
        self._shared = shared

    def begin(self, stream: int) -> None:
        """Note that a stream is captured from now on."""
        self.streams.add(stream)
        self._shared.capturing = len(self.streams)

    def end(self, stream: int) -> None:
        """Note that it is not any more."""
        self.streams.discard(stream)
        self._shared.capturing = len(self.streams)


class Client:
    """The objects of a client process, the present record, and the first failure."""

    def __init__(
        self,
        api: Api,
        session: Any,
        devices: Sequence[DeviceSpec],
        budget: Budget,
        log: Callable[[str], None],
    ) -> None:
        self.record = AtHand(bytearray())
        self.api = api
        self.session = session
        self.devices = devices
        self.budget = budget
        self.log = log
        self.device = 0
        self.place = 0  # the same, or the number of the green context that is current
        self.green_contexts: dict[int, Green] = {}
        self.waiter = Waiter(api, session, self.ordinals)
        self.streams: dict[int, int] = {LEGACY_STREAM: 0}
        self.functions: dict[int, Function] = {}
        self.launcher = Launcher.load()
        self.objects: dict[str, dict[int, int]] = {
            "e": Events(self.launcher), "g": {}, "s": self.streams, "x": {},
        }  # fmt: skip
        self.captures = Captures(self.waiter.shared)
        self.ended: list[Callable[[str, int], None]] = []  # told which of these are no more
        # Told of executable graphs that the launcher failed to launch.
        self.failed_launches: list[Callable[[int], None]] = []
        self.allocations: dict[int, tuple[int, int]] = {}  # device and cost, by address
        self.failed = (0, 0)  # status and record of the first failure nobody has heard of
        self.awaited: int | None = None  # a stream that is waited for before anything else goes on
        if self.launcher is not None:
            self.launcher.keep("s", LEGACY_STREAM, 0)
            self.launcher.share(self.waiter.shared, getattr(session.stream, "descriptor", -1))
            self.waiter.launcher = self.launcher
            self.launcher.gate(launch_gate.of_worker().gates)

    @cached_property
    def ordinals(self) -> list[int]:
        """Return the numbers of the devices on this server."""
        return [cast("int", spec.ordinal) for spec in self.devices]

    # --- the record at hand -----------------------------------------------------------------------

    def read_bulk(self, size: int, limit: int) -> bytearray:
        """Return the bytes behind the frame, which must be ``size``."""
        if size != self.record.bulk or size > limit:
            raise RemoteProtocolError("malformed bytes behind a record")
        data = bytearray(size)
        self.session.reader.into(memoryview(data))
        self.record.bulk = 0
        return data

    def skip_bulk(self) -> None:
        """Read the bytes behind a record that failed before it read them itself."""
        scratch = memoryview(bytearray(min(self.record.bulk, 1 << 20)))
        while self.record.bulk:
            piece = scratch[: min(self.record.bulk, len(scratch))]
            self.session.reader.into(piece)
            self.record.bulk -= len(piece)

    # --- the stream that is waited for ------------------------------------------------------------

    def goes_on(self, op: int, start: int, size: int) -> bool:
        """Say whether a record may be executed although the awaited stream has not ended.

        More copies of pageable memory in that stream come behind those that it has, and what they
        overwrite is theirs. So a row of copies waits once, and not once each.
        """
        if op == NUMBERS["AWAIT_STREAM"] and size >= HEADER.size + WORDS[1].size:
            (stream,) = WORDS[1].unpack_from(self.record.buffer, start + HEADER.size)
        elif op == NUMBERS["COPY_IN"] and size >= HEADER.size + WORDS[3].size:
            _, _, stream = WORDS[3].unpack_from(self.record.buffer, start + HEADER.size)
        else:
            return False
        return stream == self.awaited

    def settle(self) -> None:
        """Wait for the awaited stream; its failure is that of an earlier call."""
        awaited, self.awaited = self.awaited, None
        handle = None if awaited is None else self.streams.get(awaited)
        if handle is None:
            return
        event = self.waiter.event(self.device)
        try:
            self.api.record(event, handle)
            self.waiter.soon(event)  # awake for a moment, as the driver would not be
            self.api.runtime.eventSynchronize(event)
        except self.api.errors as error:
            self.fail(NUMBERS["AWAIT_STREAM"], self.api.status_of(error))
        finally:
            self.waiter.give_event(self.device, event)

    # --- objects ----------------------------------------------------------------------------------

    def index(self, device: int) -> int:
        """Return the number of a device of the session."""
        if device >= len(self.devices):
            raise RemoteProtocolError("no such device", why=str(device))
        return device

    def select(self, place: int) -> None:
        """Make a device current, or a green context."""
        if place >= GREEN_FIRST:
            green = self.green_contexts[place]
            self.api.call("cuCtxSetCurrent", green.context)
            self.device, self.place = green.device, place
            if self.launcher is not None:
                self.launcher.select(green.device, plain=False)
            return
        device = self.index(place)
        if self.place >= GREEN_FIRST:
            # The runtime may do nothing where it finds the device current already.
            self.api.call("cuCtxSetCurrent", self.green_contexts[self.place].primary)
        self.api.runtime.setDevice(self.ordinals[device])
        self.device = self.place = device
        if self.launcher is not None:
            self.launcher.select(device, plain=True)

    def keep(self, kind: str, number: int, handle: int) -> None:
        """Remember an object under the number that the client gave it."""
        found = self.objects[kind]
        if number in found or number <= LEGACY_STREAM or len(found) >= OBJECTS_MAX:
            raise RemoteProtocolError("a handle that cannot be made", why=f"{kind} {number}")
        found[number] = handle
        if kind in ISSUED_OBJECTS and self.launcher is not None:
            self.launcher.keep(kind, number, handle)

    def end_issuing(self, kind: str, number: int) -> None:
        """Unregister an ended object from the launcher."""
        if self.launcher is not None:
            self.launcher.end(kind, number)

    # --- failures ---------------------------------------------------------------------------------

    def fail(self, op: int, status: int) -> None:
        """Remember the first failure of a record without an answer."""
        if self.failed[0] == 0:
            self.failed = (status, op)
            self.waiter.shared.failed = 1
            self.log(f"CUDA session: {NAMES[op]} failed with {status}")

    def forget_failure(self) -> None:
        """Let the next failure be the first again."""
        self.failed = (0, 0)
        self.waiter.shared.failed = 0

    def take_failure(self) -> bool:
        """Answer a synchronising call with the first failure that was not reported yet."""
        status, op = self.failed
        if not status:
            return False
        self.forget_failure()
        self.session.reply(self.record.request, status, failed=op)
        return True


class HandlerGroup:
    """Executes a group of records, and holds the state that only they need.

    A method gets the fields of its record, and the bytes behind them if it has any. What it returns
    is the body of the reply; ``None`` means that a reply comes later.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.api = client.api
        self.session = client.session
        self.waiter = client.waiter
        self.streams = client.streams
        self.objects = client.objects
        self.methods: Methods = {}
        self.calls: Calls = {}
