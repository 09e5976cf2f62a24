"""Streams and events. Their calls are queued like all others, except those that wait."""

import weakref
from collections.abc import Callable
from typing import Any

from cupy._door import absent, pool, state
from cupy._door.calls import Remote, remote_object, remote_of
from cupy._door.cuda_errors import CUDARuntimeError

PER_THREAD = 2
"""CUDA's number of a thread's default stream (``cudaStreamPerThread`` of driver_types.h)."""

EXTERNAL = "a stream of another library cannot be used on a remote GPU"


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
        return self._gp_session

    @property
    def done(self) -> bool:
        """Whether everything before the event has been computed."""
        return self._gp_session.ask("cuda.event.done", (self,))

    def record(self, stream: Any = None) -> None:
        """Put the event into a stream, the current one by default."""
        remote = remote_of(stream)
        if (pool.current() if remote is None else remote._gp_session) is not self._gp_session:
            raise _invalid_handle()
        self._gp_session.call("cuda.event.record", (self, remote), {})

    def synchronize(self) -> None:
        """Wait for the event."""
        self._gp_session.ask("cuda.event.synchronize", (self,))


def get_elapsed_time(start_event: Event, end_event: Event) -> float:
    """Return the milliseconds between two events."""
    if start_event.session is not end_event.session:
        raise _invalid_handle()
    return start_event.session.ask("cuda.event.elapsed", (start_event, end_event))


def _invalid_handle() -> CUDARuntimeError:
    return CUDARuntimeError(400, "cudaErrorInvalidResourceHandle: invalid resource handle")


class _RemoteStream(Remote):
    __slots__ = ()


class _BaseStream:
    """Base of every stream."""

    is_non_blocking = False
    """Whether the stream does not wait for the default one."""
    priority = 0
    _remote: Any = None
    _per_thread = False

    def __init__(self, device_id: int = -1) -> None:
        self.device_id = device_id

    @property
    def handle(self) -> int:
        """The number by which the worker knows the stream; 0 for the default one."""
        return 0 if self._remote is None else self._remote._gp_handle

    @property
    def ptr(self) -> int:
        """A number that names the stream in this program; those of default streams are CUDA's."""
        return self.handle or (PER_THREAD if self._per_thread else 0)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BaseStream) and self.ptr == other.ptr

    def __hash__(self) -> int:
        return hash(self.ptr)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.ptr} (device {self.device_id})>"

    def _use(self) -> int:
        """Make it current; return its device."""
        here = state.local.context[0]
        device = self.device_id if self.device_id >= 0 else here
        if device != here:
            raise RuntimeError(
                f"The device that the stream is created on ({device}) "
                f"does not match with the current device ({here})"
            )
        state.use_stream(device, self)
        return device

    def __enter__(self) -> Any:
        device = self._use()
        state.local.entered.setdefault(device, []).append(self)
        return self

    def __exit__(self, *_: object) -> None:
        # The streams of `with` alone are gone back to, as in CuPy: one of `use` is forgotten.
        device = self.device_id if self.device_id >= 0 else state.local.context[0]
        entered = state.local.entered[device]
        entered.pop()
        state.use_stream(device, entered[-1] if entered else None)

    def use(self) -> Any:
        """Make this the current stream of its device in this thread."""
        self._use()
        return self

    def _ask(self, name: str, *args: Any) -> Any:
        session = pool.current() if self._remote is None else self._remote._gp_session
        return session.ask(name, (self._remote, *args))

    @property
    def done(self) -> bool:
        """Whether everything in the stream has been computed."""
        return self._ask("cuda.stream.done")

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
        if (pool.current() if self._remote is None else self._remote._gp_session) is event.session:
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

    __getattr__ = absent.of_class("cupy.cuda.Stream")


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
        self._per_thread = ptds
        self.is_non_blocking = non_blocking
        self.priority = priority or 0
        if not (null or ptds):
            args = (bool(non_blocking), priority)
            self._remote = remote_object(_RemoteStream, pool.current(), "cuda.stream.create", args)
            _streams[self._remote._gp_handle] = self

    @classmethod
    def from_external(cls, obj: Any) -> Any:
        """Raise NotImplementedError: another library's stream is on another machine."""
        raise NotImplementedError(EXTERNAL)


class ExternalStream(_BaseStream):
    """Not available: another library's stream is on another machine."""

    def __init__(self, ptr: int, device_id: int = -1) -> None:
        raise NotImplementedError(EXTERNAL)


Stream.null = Stream(null=True)
Stream.ptds = Stream(ptds=True)
_streams: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""All streams by the number that names them, which no two servers of a lease have in common."""


def get_current_stream(device_id: int = -1) -> Any:
    """Return this thread's current stream."""
    device = state.local.context[0] if device_id == -1 else device_id
    found = state.local.streams.get(device)
    return Stream.null if found is None else found
