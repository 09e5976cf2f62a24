"""The server's side of its exporter: starts it, starts it again, and asks it.

The exporter's end stops nothing here. While it is away, questions are answered from the records
that the table holds, and the answer says so. Samples wait for it, the latest two minutes of them;
those before are dropped and counted.
"""

import logging
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
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
from gpupool.monitoring.http.http_frames import TokenAsked
from gpupool.monitoring.http.web_link import WebLink
from gpupool.monitoring.pages import with_recent
from gpupool.monitoring.sample import Sample, Sampler
from gpupool.pool.errors import ProtocolError
from gpupool.pool.history_query import HistoryPage
from gpupool.pool.model.forgetting import Forgotten
from gpupool.pool.model.state import PoolState
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
from gpupool.remoting.transport.message_stream import OpenCalls
from gpupool.remoting.transport.watching import keep_watching, told

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
