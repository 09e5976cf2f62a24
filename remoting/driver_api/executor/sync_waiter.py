"""Waits for the GPU on behalf of a client's thread, while its other threads go on."""

import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpupool.remoting.driver_api.executor.api import EVENT_DISABLE_TIMING, Api
from gpupool.remoting.driver_api.executor.memory.mirrors import Mirror, Write
from gpupool.remoting.driver_api.executor.memory.staging_buffers import Buffer, Staging
from gpupool.remoting.driver_api.executor.modules.launcher import Launcher
from gpupool.remoting.driver_api.executor.modules.shared_state import Outcome, Shared

if TYPE_CHECKING:
    from gpupool.remoting.driver_api.executor.serve import Session

THREADS_MAX, THREADS_KEPT = 256, 4
IDLE_S = 5.0
"""A thread beyond those that are kept ends when it has waited for no GPU for so long."""

FREES_PATIENCE_S = 0.5
"""A stream's wait for a value is held up by frees under way for so long."""

SPIN_COUNT = 12
"""Queries of an event before a thread is woken for it: about as long as a small copy takes."""

BREAKING = frozenset({214, 220, 226, 700, 702, 710, *range(714, 720), 721})
"""Errors that stay, by CUresult: of memory, of links, of kernels."""


@dataclass(slots=True)
class Lent:
    """An event that several downloads wait for."""

    event: int
    count: int


@dataclass(slots=True)
class Window:
    """Bytes of memory with another owner, in place of a buffer."""

    event: int
    view: memoryview
    lent: Lent


@dataclass(slots=True)
class Owner:
    """Owner of memory with downloads as windows into it; keeps their bytes until sent."""

    windows: int = 0


@dataclass(slots=True)
class Download:
    """Bytes on their way to pinned memory of the client."""

    number: int
    device: int
    buffer: Buffer | Window
    size: int
    sent: bool = False
    """Before its event had completed: see early_pieces.py."""
    owner: Owner | None = None
    """Of a window."""


class Freeing:
    """Counts the frees under way, because CUDA waits for the GPU before it frees."""

    def __init__(self, shared: Shared) -> None:
        self.pending = 0
        self._shared = shared
        self._changed = threading.Condition()

    def begin(self, *, keeps: bool = False) -> None:
        """Note that something is being freed; ``keeps``: by a call that others wait for in CUDA."""
        with self._changed:
            self.pending += 1
            self._shared.keeping += keeps

    def end(self, *, keeps: bool = False) -> None:
        """Note that it is free."""
        with self._changed:
            self.pending -= 1
            self._shared.keeping -= keeps
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait until nothing is being freed."""
        with self._changed:
            while self.pending:
                self._changed.wait()

    @property
    def keeping(self) -> bool:
        """Whether a call is freeing something."""
        return self._shared.keeping > 0

    def wait_for_calls(self, limit_s: float | None = None) -> None:
        """Wait until no call is freeing anything, for a time at most if there is a limit.

        Before a synchronization of the device is answered: another process of the lease may be told
        then, and allocate what was freed here. Before a host function is given to the driver: a
        call that came to it only then would wait for the function, and keep what the function waits
        for, such as its managed memory. Before a stream waits for a value, which the program may
        write by a later call; there, a free may wait for such a value, too, so it has a limit.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self.keeping, limit_s)


class Waiter:
    """Threads that wait, downloads that go out when they are done, events that are lent."""

    def __init__(self, api: Api, replies: "Session", ordinals: list[int]) -> None:
        self._api = api
        self._replies = replies
        self._ordinals = ordinals
        self._jobs: queue.SimpleQueue[tuple[int, Callable[[], None]]] = queue.SimpleQueue()
        self._idle = 0
        self._threads = 0
        self._lock = threading.Lock()
        self._downloads: list[Download] = []
        self.held = 0
        """Bytes of downloads that have not been sent."""
        self._download_lock = threading.Lock()
        self.mirrors: dict[int, Mirror] = {}
        self._overtaken: set[int] = set()  # frames whose writes to mirrors were executed early
        self._staging_lock = threading.Lock()
        self.staging = Staging(api)
        self._events: dict[int, list[int]] = {}
        self.shared = Shared()
        self.launcher: Launcher | None = None
        self.freeing = Freeing(self.shared)
        self.when_broken: list[Callable[[int], None]] = []
        """Told of an error after which nothing that was queued is executed any more."""
        self.after: list[Callable[[], None]] = []
        """Called after each wait for the GPU, before the reply, to look for changes."""

    def heard(self, status: int) -> None:
        """Take note of an error that a synchronisation ended with."""
        if status in BREAKING:
            for tell in self.when_broken:
                tell(status)

    def event(self, device: int) -> int:
        """Lend an event of a device."""
        with self._lock:
            free = self._events.setdefault(device, [])
            if free:
                return free.pop()
        return self._api.runtime.eventCreateWithFlags(EVENT_DISABLE_TIMING)

    def give_event(self, device: int, event: int) -> None:
        """Take an event back."""
        with self._lock:
            self._events[device].append(event)

    def mark(self, device: int, streams: Sequence[int]) -> Callable[[], None]:
        """Return a wait, for another thread, until all these streams of a device have come here."""
        marks = contextlib.ExitStack()
        with marks:
            events: list[int] = []
            for stream in streams:
                events.append(self.event(device))
                marks.callback(self.give_event, device, events[-1])
                self._api.record(events[-1], stream)
            kept = marks.pop_all()

        def reached() -> None:
            with kept:
                for event in events:
                    self._api.runtime.eventSynchronize(event)

        return reached

    def take(self, device: int, size: int) -> Buffer:
        """Lend a staging buffer."""
        with self._staging_lock:
            found = self.staging.take(device, size)
        # Without the lock: making one may wait for the GPU, and who gives one back does not.
        return found or self.staging.make(size)

    def give(self, device: int, buffer: Buffer | Window) -> None:
        """Take a staging buffer back, or the event of a window once all of its windows are."""
        if isinstance(buffer, Window):
            buffer.lent.count -= 1
            if not buffer.lent.count:
                self.give_event(device, buffer.lent.event)
            return
        with self._staging_lock:
            self.staging.give(device, buffer)

    def start(self, device: int, job: Callable[[], None]) -> None:
        """Run ``job`` in a thread that has this device current."""
        with self._lock:
            new = self._idle == 0 and self._threads < THREADS_MAX
            if new:
                self._threads += 1
            else:
                self._idle -= 1
        self._jobs.put((device, job))
        if new:
            threading.Thread(target=self._work, daemon=True).start()

    def _may_end(self) -> bool:
        """Return whether a thread without a job is one too many, and count it out if it is.

        A job that has just come is for one of the threads that are not counted as idle any more.
        """
        with self._lock:
            ends = self._idle > 0 and self._threads > THREADS_KEPT
            if ends:
                self._idle -= 1
                self._threads -= 1
        return ends

    def _work(self) -> None:
        current = -1
        while True:
            try:
                device, job = self._jobs.get(timeout=IDLE_S)
            except queue.Empty:
                if self._may_end():
                    return
                continue
            if device != current:
                self._api.runtime.setDevice(self._ordinals[device])
                current = device
            try:
                job()
            except ConnectionError:
                return  # the client has gone, and the main thread notices as well
            except BaseException:
                self._replies.end()
                raise
            with self._lock:
                self._idle += 1

    def soon(self, event: int) -> bool:
        """Say whether an event completes within a moment."""
        return any(self._api.done(event) for _ in range(SPIN_COUNT))

    def download(self, download: Download) -> None:
        """Remember bytes that go out before the next synchronisation that covers them ends."""
        with self._download_lock:
            self._downloads.append(download)
            if download.owner is not None:
                download.owner.windows += 1
            self.shared.large = len(self._downloads)
            self.held += download.size

    def push(self, *, replies: bool = False) -> None:
        """Send all downloads that are done; ``replies``: this thread replies to a request next.

        All work that a synchronisation covers is completed by then. So a call between the
        synchronisation and its reply puts every byte in place in time.
        """
        for look in self.after:
            look()
        self.deliver(replies=replies)

    def deliver(self, *, replies: bool = False) -> None:
        """Send the downloads that are done, and nothing else: it waits for no lock of an area."""
        if self.mirrors:
            self._push_mirrors()
        if not self._downloads and not self.shared.small:
            return
        with self._download_lock:
            # Those came first, see native/downloads.c.
            if self.launcher is not None and self.shared.small:
                count, answers = self.launcher.take_downloads()
                if count:
                    self._replies.answers(answers, replies=replies)
                    self.launcher.downloads_sent(count)
            ready: list[Download] = []
            left: list[Download] = []
            for entry in self._downloads:  # an error comes before anything is sent
                (ready if self._api.done(entry.buffer.event) else left).append(entry)
            for entry in ready:
                if not entry.sent:
                    view = entry.buffer.view[: entry.size]
                    self._replies.data(entry.number, view, replies=replies)
                self.give(entry.device, entry.buffer)
                if entry.owner is not None:
                    entry.owner.windows -= 1
                self.held -= entry.size
            # Not before: another thread that finds none here answers at once.
            self._downloads = left
            self.shared.large = len(left)

    def deliver_early(self, downloads: Sequence[Download]) -> None:
        """Send downloads of which it is known that their bytes are there, and none twice."""
        with self._download_lock:
            for entry in downloads:
                if not entry.sent:
                    entry.sent = True
                    self._replies.data(entry.number, entry.buffer.view[: entry.size])

    def _push_mirrors(self) -> None:
        with self._download_lock:
            for number, mirror in self.mirrors.items():
                for first, fresh, mask in mirror.take_changes():
                    self._replies.mirror(number, first, fresh.data, mask)

    def add_mirror(self, number: int, mirror: Mirror) -> None:
        """Look after a mirror from now on."""
        with self._download_lock:
            self.mirrors[number] = mirror

    def take_mirror(self, number: int) -> Mirror:
        """Forget a mirror, which is not compared any more.

        Raises:
            KeyError: when there is none.
        """
        with self._download_lock:
            return self.mirrors.pop(number)

    def write_mirror(self, frame: int, number: int, write: Write) -> None:
        """Take over the client's writes in a record of this frame."""
        with self._download_lock:
            if frame in self._overtaken:
                self._overtaken.remove(frame)  # and what kernels have written since stays
            else:
                self.mirrors[number].write(write)

    def overtake_mirror(self, frame: int, number: int, write: Write) -> None:
        """Take over the client's writes before the record's turn has come."""
        with self._download_lock:
            if frame not in self._overtaken:
                self.mirrors[number].write(write)
                self._overtaken.add(frame)

    def drain(self) -> None:
        """Wait for all downloads, and send them."""
        with self._download_lock:
            waiting = list(self._downloads)
        if self.launcher is not None and self.shared.small:
            self.launcher.await_downloads()
        for entry in waiting:
            self._api.runtime.eventSynchronize(entry.buffer.event)
        self.push()

    def answer(self, request: int, device: int, buffer: Buffer, size: int) -> None:
        """Answer a request with ``size`` bytes of a buffer once its event has completed."""

        def finish() -> None:
            status = 0
            try:
                self._api.runtime.eventSynchronize(buffer.event)
                self.push()
            except self._api.errors as error:
                status = self._api.status_of(error)
            bulk = () if status else (buffer.view[:size],)
            self._replies.reply(request, status, bulk=bulk)
            self.heard(status)
            self.give(device, buffer)

        if self.soon(buffer.event):
            finish()
        else:
            self.start(device, finish)

    def end(self, outcome: Outcome) -> None:
        """Reply to a request that the launcher has waited for."""
        status, body = outcome.status, b""
        try:
            if not status:
                self.push(replies=True)
                body = bytes(outcome.body)[: outcome.body_size]
        except self._api.errors as error:
            status, body = self._api.status_of(error), b""
        self._replies.waited(outcome.request, status, body, outcome.waited_ns)
        self.heard(status)

    def guarded(self, request: int, job: Callable[[], Any]) -> Callable[[], None]:
        """Return ``job`` followed by the reply, of the bytes that it gives, or that it failed."""

        def run() -> None:
            status, body = 0, None
            try:
                body = job()
                self.push(replies=True)
            except self._api.errors as error:
                status, body = self._api.status_of(error), None
            self._replies.reply(request, status, body or b"")
            self.heard(status)

        return run
