"""The server's side of its exporter: starts it, starts it again, and asks it.

The exporter's end stops nothing here. While it is away, questions are answered from the records
that the table holds, and the answer says so. Samples wait for it, the latest two minutes of them;
those before are dropped and counted.

``WebLink`` is the part for HTTP: it hands connections over, and judges their tokens. A connection
keeps its place among the strangers (``remoting/server/listener/preauth_limits.py``) until the
server itself has found a token good that came over it. The server keeps a descriptor of each one,
so that it can end a connection whatever the exporter does.
"""

import itertools
import logging
import os
import socket
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import astuple, replace
from pathlib import Path

import trio

from gpupool.monitoring.frames import (
    EXPORTER,
    Answered,
    Asked,
    ExporterMessage,
    Forget,
    HistoryAnswered,
    HistoryAsked,
    RecordsWritten,
    ServerMessage,
)
from gpupool.monitoring.history.history_settings import HistorySettings
from gpupool.monitoring.http.http_frames import (
    PACKET,
    Target,
    Targets,
    TokenAnswered,
    TokenAsked,
    TokensSeen,
    WebSetup,
)
from gpupool.monitoring.pages import with_recent
from gpupool.monitoring.sample import Sample, Sampler
from gpupool.pool.errors import (
    AuthenticationError,
    GpupoolError,
    ProtocolError,
    RemoteProtocolError,
)
from gpupool.pool.fair_access import Holder, UserBound
from gpupool.pool.history_query import HistoryPage
from gpupool.pool.model.forgetting import Forgotten
from gpupool.pool.model.ids import Milliseconds, TokenId
from gpupool.pool.model.state import PoolState, Server, Token
from gpupool.pool.ports import RaftHealth
from gpupool.pool.record_query import (
    CheckPage,
    ExporterPage,
    ExporterQuery,
    RecordPage,
    RecordQuery,
    ServerTest,
)
from gpupool.pool.telemetry import Telemetry
from gpupool.remoting.transport.descriptor_passing import receive_packet, send_packet
from gpupool.remoting.transport.message_stream import OpenCalls
from gpupool.remoting.transport.watching import keep_watching, told

# --- HTTP -----------------------------------------------------------------------------------------

UNPROVEN_S = 30.0
"""Lifetime in seconds of a connection without a good token."""
PROVEN_MAX, PROVEN_BOUND = 512, UserBound(user=64, token=48)
"""Connections with a good token: of all, and of one user or token. When all are taken, the user
with the most loses the oldest for the next one."""
HAND_OVER_S = 2.0
TARGETS_EVERY_S = 1.0
TOKENS_EVERY_S = 0.5
NO_CLOCK_MS = 1 << 62
"""When every token has ended: without the pool's time, none is taken as good for longer."""

Say = Callable[[WebSetup | Targets | TokenAnswered | TokensSeen], bool]


class WebLink:
    """One server's door for HTTPS: ``router.WebDoor``."""

    def __init__(self, state: Callable[[], PoolState], *, sd_labels: Iterable[str] = ()) -> None:
        self._state = state
        self._sd_labels = tuple(sd_labels)
        self._numbers = itertools.count(1)
        self._open: dict[int, _Connection] = {}
        self._door: socket.socket | None = None
        self._sending = trio.Lock()  # two tasks must not wait for one socket
        self._say: Say = lambda _message: False
        self._setup: WebSetup | None = None
        self.check_token: Callable[[str], Token] = _nobody
        self.ca_pem: Callable[[], bytes] = bytes
        self.now_ms: Callable[[], int] = lambda: NO_CLOCK_MS
        self._tokens: Mapping[TokenId, Token] | None = None
        self._tokens_number = 0

    # --- for the server --------------------------------------------------------------------------

    def set_up(self, setup: WebSetup) -> None:
        """Apply this setup in the exporter from now on; nobody is served before."""
        self._setup = setup
        self._say(setup)

    async def serve(self, stream: trio.SocketStream, prove: Callable[[], None]) -> None:
        """Hand a connection over, and wait for its end.

        Raises:
            RemoteProtocolError: when no exporter takes it.
        """
        if self._door is None or self._setup is None:
            raise RemoteProtocolError("nobody serves HTTP here now")
        number, connection = next(self._numbers), _Connection(prove)
        self._open[number] = connection
        try:
            with trio.fail_after(HAND_OVER_S):
                async with self._sending:
                    await send_packet(self._door, PACKET.pack(number), [stream.socket.fileno()])
            connection.scope.deadline = trio.current_time() + UNPROVEN_S
            with connection.scope:
                await connection.ended.wait()
        finally:
            del self._open[number]
            with suppress(OSError):
                stream.socket.shutdown(socket.SHUT_RDWR)

    # --- for the link to the exporter ------------------------------------------------------------

    def pair(self) -> tuple[socket.socket, socket.socket]:
        """Return both ends of a pair for connections: the server's and the exporter's."""
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        pair[0].setblocking(False)
        return pair

    async def run(self, door: socket.socket, say: Say) -> None:
        """Serve by the exporter with the other end of ``door``, until cancelled."""
        self._door, self._say = door, say
        try:
            if self._setup is not None:
                say(self._setup)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._tell_targets)
                nursery.start_soon(self._tell_tokens)
                await self._hear_ends(door)
        finally:
            trio.lowlevel.notify_closing(door)
            door.close()
            self._door, self._say = None, lambda _message: False
            for connection in self._open.values():
                connection.ended.set()

    def asked(self, asked: TokenAsked) -> None:
        """Answer the exporter, and note that a connection has proven itself."""
        tokens = self._tokens_now()
        try:
            token = self.check_token(asked.text)
        except AuthenticationError as error:
            self._say(TokenAnswered(asked.number, why=str(error)))
            return
        except GpupoolError as error:
            self._say(TokenAnswered(asked.number, why=str(error), later=True))
            return
        connection = self._open.get(asked.connection)
        if connection is not None and connection.holder is None:
            holder = Holder(token.user, token.id)
            if not self._has_room(holder):
                connection.ended.set()
                return
            connection.prove(holder)
        self._say(
            TokenAnswered(
                asked.number,
                token.user,
                token.kind.value,
                tokens=tokens,
                expires_at=token.expires_at,
            )
        )

    def _has_room(self, holder: Holder) -> bool:
        """Return whether one may have one more connection; another one's may end for it."""
        proven = [
            (each.holder, each)
            for each in self._open.values()
            if each.holder is not None and not each.ended.is_set()
        ]
        if PROVEN_BOUND.reached(holder, [each for each, _ in proven]):
            return False
        if len(proven) < PROVEN_MAX:
            return True
        counts = Counter(each.user for each, _ in proven)
        user, count = counts.most_common(1)[0]
        if counts[holder.user] >= count:
            user = holder.user
        next(connection for each, connection in proven if each.user == user).ended.set()
        return True

    async def _hear_ends(self, door: socket.socket) -> None:
        while True:
            try:
                data, _ = await receive_packet(door, PACKET.size + 1, 0)
            except OSError:
                return  # the exporter has ended, and the other socket says so as well
            if len(data) == PACKET.size and (found := self._open.get(*PACKET.unpack(data))):
                found.ended.set()

    def _tokens_now(self) -> int:
        """Return a number of the table's tokens, which grows whenever any of them changes."""
        tokens = self._state().tokens
        if tokens is not self._tokens:
            self._tokens = tokens
            self._tokens_number += 1
        return self._tokens_number

    async def _tell_tokens(self) -> None:
        """Tell the exporter, while it has connections, whether tokens are as they were."""
        while True:
            if self._open:
                at = Milliseconds(self.now_ms())
                self._say(TokensSeen(self._tokens_now(), at, time.monotonic()))
            await trio.sleep(TOKENS_EVERY_S)

    async def _tell_targets(self) -> None:
        """Tell the exporter the list of servers, whenever that changes."""
        said, seen, trusted = None, None, b""
        while True:
            state, ca_pem = self._state(), self.ca_pem()
            if state.servers is not seen or ca_pem != trusted:
                targets = targets_of(state, self._sd_labels, ca_pem)
                if targets != said and self._say(targets):
                    said = targets
                seen, trusted = state.servers if targets == said else None, ca_pem
            await trio.sleep(TARGETS_EVERY_S)


class _Connection:
    """One that the exporter has."""

    def __init__(self, prove: Callable[[], None]) -> None:
        self._prove = prove
        self.scope = trio.CancelScope()
        self.ended = trio.Event()
        self.holder: Holder | None = None  # of the first good token that came over it

    def prove(self, holder: Holder) -> None:
        self.holder = holder
        self.scope.deadline = float("inf")
        self._prove()


def targets_of(state: PoolState, labels: Iterable[str], ca_pem: bytes = b"") -> Targets:
    """Return the servers of the table, by name, with those of their labels."""
    wanted = tuple(labels)

    def target(server: Server) -> Target:
        found = {name: server.labels[name] for name in wanted if name in server.labels}
        return Target(server.name, server.address, found)

    servers = sorted(state.servers.values(), key=lambda server: server.name)
    told = tuple(target(server) for server in servers)
    return Targets(state.name, told, state.cluster_id, ca_pem)


def _nobody(_text: str) -> Token:
    raise AuthenticationError("this server knows no token")


# --- all else -------------------------------------------------------------------------------------

ANSWER_TIMEOUT_S = 1.5
SUM_TIMEOUT_S = 30.0
"""A server's records of two years take about ten seconds to sum."""
HISTORY_TIMEOUT_S = 6.0
STOP_S = 2.0
OUTBOX_MAX = 64
SAMPLE_EVERY_S = 1.0
SAMPLES_MAX = 120
"""Samples that wait for an exporter that is away."""
READ_SIZE = 256 * 1024
NO_HISTORY = "its exporter does not answer"
AWAY = "its exporter does not answer: only the latest records are known"


class ExporterLink:
    """One server's exporter; see the module."""

    def __init__(
        self,
        folder: Path,
        state: Callable[[], PoolState],
        log: logging.Logger,
        settings: HistorySettings | None = None,
        web: WebLink | None = None,
    ) -> None:
        """Make the link; ``run`` starts the exporter, which speaks HTTP if there is ``web``."""
        self._settings = settings or HistorySettings()
        self._web = web
        self._folder = folder
        self._state = state
        self._log = log
        self._calls = OpenCalls[ExporterPage]()
        self._outbox: trio.MemorySendChannel[ServerMessage] | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._samples: deque[Sample] = deque()
        self._sampled = trio.Event()
        self._told: tuple[Forgotten, ...] = ()
        """Forgotten users known to this exporter."""
        self.dropped = 0
        """Samples that no exporter got, and other words for it that were too large."""
        self._said = ""
        self._silent = False
        self.restarts = 0
        """How often an exporter has ended."""
        self.process: trio.Process | None = None
        """The exporter that runs now."""

    async def run(self) -> None:
        """Keep an exporter running until cancelled."""
        self._token = trio.lowlevel.current_trio_token()

        async def run_one() -> str:
            try:
                return await self._run_one()
            finally:
                self.restarts += 1

        await keep_watching(self._log.warning, "the exporter", run_one)

    async def send_samples(
        self,
        telemetry: Callable[[], Telemetry],
        health: Callable[[], RaftHealth],
        now_ms: Callable[[], int],
    ) -> None:
        """Send the exporter a sample once a second, until cancelled; never wait for it."""
        sampler = Sampler()

        def take(at: Callable[[], int]) -> None:
            self.add_sample(sampler.sample(self._state(), telemetry(), health(), at()))

        tell = told("what takes samples", take, self._log.warning)
        while True:
            began = trio.current_time()
            tell(now_ms)
            await trio.sleep_until(began + SAMPLE_EVERY_S)

    def add_sample(self, sample: Sample) -> None:
        """Queue a sample for the exporter, sent as soon as it reads."""
        if len(self._samples) >= SAMPLES_MAX:
            self._samples.popleft()
            self.dropped += 1
        self._samples.append(replace(sample, dropped=self.dropped))
        self._sampled.set()
        users = self.forgotten()
        if users != self._told and self._send(Forget(users)):
            self._told = users

    def forgotten(self) -> tuple[Forgotten, ...]:
        """Return the users forgotten by the pool."""
        return self._state().forgotten

    def records_written(self) -> None:
        """Tell the exporter that ``leases.jsonl`` has new lines; from any thread."""
        if self._token is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._send, RecordsWritten())

    async def ask(self, query: RecordQuery) -> RecordPage:
        """Return a page of the records that this server has, the latest of the table included."""
        timeout_s = SUM_TIMEOUT_S if query.by else ANSWER_TIMEOUT_S
        page = await self._ask(lambda number: Asked(number, query), timeout_s)
        state = self._state()
        if not isinstance(page, RecordPage):
            page = RecordPage(problem=AWAY)
        return with_recent(page, state.records, state.record_count, query)

    async def answer(self, query: ExporterQuery) -> ExporterPage:
        """Return a page of the exporter's records or history."""
        if isinstance(query, RecordQuery):
            return await self.ask(query)
        if isinstance(query, ServerTest):
            return CheckPage()
        page = await self._ask(lambda number: HistoryAsked(number, query), HISTORY_TIMEOUT_S)
        return page if isinstance(page, HistoryPage) else HistoryPage(problem=NO_HISTORY)

    async def _ask(
        self, question: Callable[[int], ServerMessage], timeout_s: float
    ) -> ExporterPage | None:
        """Return the answer to the question with the number that it gets; None: there is none."""
        with self._calls.opened() as call:
            if not self._send(question(call.number)):
                return None
            # One that has just not answered is not waited for as long as for a sum of years.
            await call.wait(ANSWER_TIMEOUT_S if self._silent else timeout_s)
            self._silent = not call.done.is_set()
            return call.answer

    def _send(self, message: ServerMessage) -> bool:
        """Queue a message; return False when there is no exporter, or it reads nothing."""
        if self._outbox is None:
            return False
        try:
            self._outbox.send_nowait(message)
        except (trio.WouldBlock, trio.BrokenResourceError):
            return False
        return True

    async def _run_one(self) -> str:
        """Run one exporter to its end, and return why it has ended."""
        ours, theirs = socket.socketpair()
        door, their_door = self._web.pair() if self._web is not None else (None, None)
        with theirs, their_door or nullcontext():
            passed = [theirs.fileno()] + ([their_door.fileno()] if their_door else [])
            process = await start_beside(
                *("gpupool.monitoring.exporter", str(self._folder.resolve())),
                *(str(theirs.fileno()), str(their_door.fileno() if their_door else -1)),
                *(str(each) for each in astuple(self._settings)),
                passed=passed,
            )
        self.process = process
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        sending = trio.Lock()
        outbox, queue = trio.open_memory_channel[ServerMessage](OUTBOX_MAX)
        self._outbox, why = outbox, "the connection was closed"
        self._calls = OpenCalls[ExporterPage]()
        self._told = ()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._pump, queue, stream, sending)
                nursery.start_soon(self.pump_samples, stream, sending)
                if self._web is not None and door is not None:
                    nursery.start_soon(self._web.run, door, self._send)
                try:
                    await self._receive(stream)
                except (ProtocolError, trio.BrokenResourceError) as error:
                    why = str(error) or "the connection was reset"
                nursery.cancel_scope.cancel()
        finally:
            self._outbox = self.process = None
            self._calls.end()
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)
            await end_beside(process)
        return f"{why}, status {process.returncode}"

    async def pump_samples(self, stream: trio.SocketStream, sending: trio.Lock) -> None:
        """Send the samples that wait, and those that come."""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while True:
                self._sampled = trio.Event()
                while self._samples:
                    frame = self._frame(self._samples.popleft())
                    async with sending:
                        await stream.send_all(frame)
                await self._sampled.wait()

    async def _pump(
        self,
        queue: trio.MemoryReceiveChannel[ServerMessage],
        stream: trio.SocketStream,
        sending: trio.Lock,
    ) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for message in queue:
                async with sending:
                    await stream.send_all(self._frame(message))

    def _frame(self, message: ServerMessage) -> bytes:
        """Return a frame; an empty one, which is counted, for a message that cannot be encoded."""
        try:
            return EXPORTER.encode(message)
        except ProtocolError as error:
            self.dropped += 1
            if str(error) != self._said:
                self._said = str(error)
                self._log.warning("the exporter is not told of something: %s", error)
            return b""

    async def _receive(self, stream: trio.SocketStream) -> None:
        reader = EXPORTER.reader()
        while data := await stream.receive_some(READ_SIZE):
            reader.feed(data)
            for frame in reader.frames():
                match EXPORTER.decode(ExporterMessage, frame):
                    case Answered(number, page) | HistoryAnswered(number, page):
                        self._calls.answered(number, page)
                    case TokenAsked() as asked if self._web is not None:
                        self._web.asked(asked)
                    case _:
                        raise ProtocolError("the exporter asks")


KEPT_VARIABLES = ("PATH", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "PYTHONHASHSEED", "LD_LIBRARY_PATH")
"""No more of the server's environment is that of the processes beside it."""


async def start_beside(module: str, *arguments: str, passed: Sequence[int]) -> trio.Process:
    """Start a module as a process beside the server, with these descriptors of it."""
    return await trio.lowlevel.open_process(
        [sys.executable, "-P", "-m", module, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=passed,
        env={name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ},
    )


async def end_beside(process: trio.Process) -> None:
    """Let it end by itself, since its socket is closed; then end it."""
    with trio.CancelScope(shield=True):
        with trio.move_on_after(STOP_S):
            await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()
