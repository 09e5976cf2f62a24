"""Streams and events. Their calls are queued like all others, except those that wait."""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import threading
import weakref
from collections.abc import Callable
from typing import Any

from cupy._door import pool, state
from cupy._door.calls import Remote, remote_object
from cupy.cuda.errors import CUDARuntimeError


class Event(Remote):
    """A point in a stream."""

    __slots__ = ("_timing",)

    def __new__(
        cls, block: bool = False, disable_timing: bool = False, interprocess: bool = False
    ) -> Any:
        """Make an event on the current device."""
        args = (bool(block), bool(disable_timing))
        made = remote_object(cls, pool.current(), "cuda.event.create", args)
        made._timing = not disable_timing
        return made

    @property
    def session(self) -> Any:
        """The session of the server that has the event."""
        return self._session

    @property
    def done(self) -> bool:
        """Whether everything before the event has been computed."""
        return self._session.ask("cuda.event.done", (self,))

    def record(self, stream: Any = None) -> None:
        """Put the event into a stream, the current one by default."""
        remote = _handle_of(stream)
        if (pool.current() if remote is None else remote._session) is not self._session:
            raise _invalid_handle()
        self._session.call("cuda.event.record", (self, remote), {})

    def synchronize(self) -> None:
        """Wait for the event."""
        self._session.ask("cuda.event.synchronize", (self,))


def get_elapsed_time(start_event: Event, end_event: Event) -> float:
    """Return the milliseconds between two events."""
    if start_event.session is not end_event.session:
        raise _invalid_handle()
    return start_event.session.ask("cuda.event.elapsed", (start_event, end_event))


def _invalid_handle() -> CUDARuntimeError:
    return CUDARuntimeError(400, "cudaErrorInvalidResourceHandle: invalid resource handle")


def _handle_of(stream: Any) -> Any:
    return None if stream is None else stream._remote


class _RemoteStream(Remote):
    __slots__ = ()


class _BaseStream:
    """What every stream can do."""

    _remote: Any = None

    def __init__(self, device_id: int = -1) -> None:
        self.device_id = device_id
        self._before = threading.local()

    @property
    def ptr(self) -> int:
        """A number that names the stream in this program; 0 for the default stream."""
        return 0 if self._remote is None else self._remote._handle

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BaseStream) and self.ptr == other.ptr

    def __hash__(self) -> int:
        return hash(self.ptr)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.ptr} (device {self.device_id})>"

    def _use(self) -> tuple[int, Any]:
        """Make it current; return its device, and the stream that was current there before."""
        here = state.local.context[0]
        device = self.device_id if self.device_id >= 0 else here
        if device != here:
            raise RuntimeError(
                f"The device that the stream is created on ({device}) "
                f"does not match with the current device ({here})"
            )
        before = state.local.streams.get(device)
        state.use_stream(device, self)
        return device, before

    def __enter__(self) -> Any:
        stack: list[tuple[int, Any]] = self._before.__dict__.setdefault("stack", [])
        stack.append(self._use())
        return self

    def __exit__(self, *_: object) -> None:
        state.use_stream(*self._before.stack.pop())

    def use(self) -> Any:
        """Make this the current stream of its device in this thread."""
        self._use()
        return self

    def _ask(self, name: str) -> Any:
        session = pool.current() if self._remote is None else self._remote._session
        return session.ask(name, (self._remote,))

    @property
    def done(self) -> bool:
        """Whether everything in the stream has been computed."""
        return self._ask("cuda.stream.done")

    @property
    def is_non_blocking(self) -> bool:
        """Whether the stream does not wait for the default one."""
        return False

    @property
    def priority(self) -> int:
        """The stream's priority."""
        return 0

    def synchronize(self) -> None:
        """Wait until everything in the stream has been computed; raise the first error."""
        self._ask("cuda.stream.synchronize")

    def record(self, event: Any = None) -> Any:
        """Put an event into the stream, a new one by default."""
        made = Event() if event is None else event
        made.record(self)
        return made

    def wait_event(self, event: Event) -> None:
        """Make later work in this stream wait for an event.

        For an event of another server this program waits itself.
        """
        if (pool.current() if self._remote is None else self._remote._session) is event.session:
            event.session.call("cuda.stream.wait_event", (self._remote, event), {})
        else:
            event.synchronize()

    def add_callback(self, callback: Callable[..., Any], arg: Any) -> None:
        """Call a function here once the stream has come to this point; waits for it."""
        self.synchronize()
        callback(self, 0, arg)

    def launch_host_func(self, callback: Callable[..., Any], arg: Any) -> None:
        """Call a function here once the stream has come to this point; waits for it."""
        self.synchronize()
        callback(arg)

    def is_capturing(self) -> bool:
        """Whether a graph is being captured: never, capture is not offered."""
        return False


class Stream(_BaseStream):
    """A queue of work on one device; ``with stream:`` makes it current."""

    null: "Stream"
    ptds: "Stream"

    def __init__(
        self,
        null: bool = False,
        non_blocking: bool = False,
        ptds: bool = False,
        priority: Any = None,
    ) -> None:
        super().__init__(-1 if null or ptds else state.local.context[0])
        self._non_blocking = non_blocking
        self._priority = priority or 0
        if not (null or ptds):
            args = (bool(non_blocking), priority)
            self._remote = remote_object(_RemoteStream, pool.current(), "cuda.stream.create", args)
            _streams[self._remote._handle] = self

    @property
    def is_non_blocking(self) -> bool:
        """Whether the stream does not wait for the default one."""
        return self._non_blocking

    @property
    def priority(self) -> int:
        """The stream's priority."""
        return self._priority


class ExternalStream(_BaseStream):
    """Not available: another library's stream is on another machine."""

    def __init__(self, ptr: int, device_id: int = -1) -> None:
        raise NotImplementedError("a stream of another library cannot be used on a remote GPU")


Stream.null = Stream(null=True)
Stream.ptds = Stream(ptds=True)
_streams: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""All streams by the number that names them, which no two servers of a lease have in common."""


def get_current_stream(device_id: int = -1) -> Any:
    """Return this thread's current stream."""
    device = state.local.context[0] if device_id == -1 else device_id
    found = state.local.streams.get(device)
    return Stream.null if found is None else found
