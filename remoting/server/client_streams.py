"""The streams of the clients: each is read when it is its user's turn, and has a task that writes.

A client's message is not decoded before its turn. A message to a client waits in an outbox with a
bound; a client that does not read is hung up on.

All control messages are handled in one thread, which also keeps this server in touch with the
others. A user with many connections could keep it busy with theirs alone: each connection
may have sent hundreds at once. So a message is handled at once only while messages take less than
half of the time. Else it waits in the line of its user. ``give`` goes round the users, takes one
message of each, and lets the other tasks of the thread run every ``STEP_S``.
"""

import itertools
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import trio

from gpupool.remoting.protocol import messages as m
from gpupool.remoting.protocol.connection import Connection, End
from gpupool.remoting.server.actions import Action, Hangup, Send
from gpupool.remoting.server.controller import Controller
from gpupool.remoting.server.server_settings import ServerSettings
from gpupool.remoting.transport.failures import GONE, RateLimitedLog, explain, within
from gpupool.remoting.transport.message_stream import MessageStream

STEP_S = 0.004
"""Messages are handled for so long in one step of the loop, and the last one to its end."""

PART = 0.5
"""The part of the time that messages may take before they wait in lines."""


class _Turn:
    """A message that waits."""

    __slots__ = ("done", "error", "result", "work")

    def __init__(self, work: Callable[[], bool]) -> None:
        self.work: Callable[[], bool] | None = work
        self.done = trio.Event()
        self.result = False
        self.error: BaseException | None = None

    def take(self) -> None:
        work, self.work = self.work, None
        if work is None:
            return  # nobody waits for it any more
        try:
            self.result = work()
        except GONE as error:
            self.error = error  # of the connection; others end the server, as anywhere else
        finally:
            self.done.set()


class Turns:
    """The lines of all users. Each connection has one message in them at most."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Begin without messages; ``clock`` measures the work."""
        self._clock = clock
        self._lines: dict[str, deque[_Turn]] = {}  # the user whose turn it is comes first
        self._asked = trio.Event()
        self._used_s, self._at = 0.0, clock()

    async def take(self, user: str, work: Callable[[], bool]) -> bool:
        """Run ``work`` in the user's turn, and return its result; its exceptions propagate.

        A user is any text; strangers have texts of their own.
        """
        if not self._lines and self._has_time():
            began = self._clock()
            try:
                return work()
            finally:
                self._used_s += self._clock() - began
        turn = _Turn(work)
        self._lines.setdefault(user, deque()).append(turn)
        self._asked.set()
        try:
            await turn.done.wait()
        finally:
            turn.work = None
        if turn.error is not None:
            raise turn.error
        return turn.result

    async def give(self) -> None:
        """Give turns, until cancelled."""
        while True:
            await self._asked.wait()
            self._asked = trio.Event()
            while self._lines:
                await trio.lowlevel.checkpoint()
                end = self._clock() + STEP_S
                while self._lines and self._clock() < end:
                    self._give_one()

    def _give_one(self) -> None:
        user = next(iter(self._lines))
        line = self._lines.pop(user)
        turn = line.popleft()
        if line:
            self._lines[user] = line  # behind the others
        turn.take()

    def _has_time(self) -> bool:
        now = self._clock()
        self._used_s = max(0.0, self._used_s - (now - self._at) * PART)
        self._at = now
        return self._used_s < STEP_S


@dataclass(eq=False, slots=True)
class _Served:
    """One client connection."""

    number: int
    who: str
    outbox: trio.MemorySendChannel[Send | None]
    scope: trio.CancelScope
    dismissed: bool = False  # it read nothing, so nothing more is for it


class ClientStreams:
    """See the module.

    Args:
        controller: gets what arrives.
        do: carries out its actions.
        settings: have the bounds.
        log: of connections that end.
    """

    def __init__(
        self,
        controller: Controller,
        do: Callable[[list[Action]], None],
        *,
        settings: ServerSettings,
        log: RateLimitedLog,
    ) -> None:
        self._controller, self._do = controller, do
        self._settings, self._log = settings, log
        self._numbers, self._served = itertools.count(1), dict[int, _Served]()
        self.turns = Turns()

    def __len__(self) -> int:
        """Return how many connections there are."""
        return len(self._served)

    async def serve(
        self, stream: trio.abc.Stream, who: str, proven: Callable[[], None] = lambda: None
    ) -> None:
        """Serve one client over a stream that needs no more authentication of this server.

        The stream's first message must come within ``unauthenticated_timeout_s``; returns, and
        closes the stream, when either side is done with it. ``proven`` is called once the client
        has shown a good token.
        """
        number = next(self._numbers)
        outbox, queue = trio.open_memory_channel[Send | None](self._settings.outbox_count_max)
        served = _Served(number, who, outbox, trio.CancelScope())
        connection = MessageStream(stream, Connection(End.SERVER))
        reason = ""
        try:
            async with connection:
                with served.scope:
                    self._served[number] = served
                    self._do(self._controller.opened(number))
                    # A stranger has one task, and an end of his costs no group of errors.
                    limit_s = self._settings.unauthenticated_timeout_s
                    first = await within(limit_s, connection.receive)
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._write, connection, queue, nursery.cancel_scope)
                        if first is not None:
                            await self._read(served, connection, first, proven)
                        nursery.cancel_scope.cancel()
        except* GONE as group:
            reason = explain(group)
        finally:
            del self._served[number]
            self._do(self._controller.closed(number))
        if reason:
            self._log.say(f"lost {who}: {reason}")

    def send(self, action: Send) -> None:
        """Put a message into the outbox of its client, if that is still there."""
        served = self._served.get(action.connection)
        if served is None or served.dismissed:
            return
        # A client that reads slowly gets the next update instead of this one.
        is_update = m.type_of(action.message) in (m.Update, m.TelemetryUpdate)
        if is_update and served.outbox.statistics().current_buffer_used:
            return
        try:
            served.outbox.send_nowait(action)
        except trio.WouldBlock:
            self._log.say(f"hung up on {served.who}: it reads nothing")
            served.dismissed = True
            served.scope.cancel()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # on its way out; ``closed`` follows

    def hang_up(self, action: Hangup) -> None:
        """Close a connection after the messages in its outbox."""
        served = self._served.get(action.connection)
        if served is None:
            return
        if action.reason:
            self._log.say(f"hung up on {served.who}: {action.reason}")
        try:
            served.outbox.send_nowait(None)
        except (trio.WouldBlock, trio.BrokenResourceError, trio.ClosedResourceError):
            served.scope.cancel()

    async def _read(
        self,
        served: _Served,
        connection: MessageStream,
        first: tuple[int, m.Message],
        proven: Callable[[], None],
    ) -> None:
        def handle(received: tuple[int, m.Message] | None) -> bool:
            if received is None:
                return False
            self._do(self._controller.received(served.number, *received))
            return True

        def handle_next() -> bool:
            return handle(connection.next_arrived())

        address = served.who.rpartition(":")[0]
        await self.turns.take(address, partial(handle, first))
        user = self._controller.user_of(served.number)
        if user is not None:
            proven()
        while await self.turns.take(user or address, handle_next) or await connection.read():
            pass

    async def _write(
        self,
        connection: MessageStream,
        queue: trio.MemoryReceiveChannel[Send | None],
        scope: trio.CancelScope,
    ) -> None:
        async for action in queue:
            if action is None:
                break
            await connection.send(action.call, action.message)
        scope.cancel()
