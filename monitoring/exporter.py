"""The exporter: a process beside each server that keeps the pool's records, and answers queries.

``python -m gpupool.monitoring.exporter FOLDER FD DOOR SETTINGS``: the server starts it and talks to
it over the socket pair whose end is FD; FOLDER is the only one that it may write to. Over DOOR come
the connections of HTTPS (``http/http_door``), or it is -1. SETTINGS are those
of the history. It holds no key of the pool. Its end stops nothing: the server starts it again, and
it reads on where it was. It ends when the server does, because the socket pair closes then.

One thread writes to each database, and nobody else does. Each kind of frame has one handler, in
``Exporter.handle``.
"""

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio

from gpupool.monitoring.frames import (
    EXPORTER,
    PAGE_SIZE_MAX,
    Answered,
    Asked,
    ExporterMessage,
    Forget,
    HistoryAnswered,
    HistoryAsked,
    RecordsWritten,
    ServerMessage,
)
from gpupool.monitoring.history.history_file import storage_of
from gpupool.monitoring.history.history_reader import read_history
from gpupool.monitoring.history.history_settings import HistorySettings
from gpupool.monitoring.history.history_writer import HistoryWriter
from gpupool.monitoring.history.series import SLOT_S
from gpupool.monitoring.http.http_door import HttpDoor
from gpupool.monitoring.http.http_frames import (
    Targets,
    TokenAnswered,
    TokenAsked,
    TokensSeen,
    WebSetup,
)
from gpupool.monitoring.record_writer import RecordWriter, answer
from gpupool.monitoring.sample import Sample
from gpupool.pool.errors import ProtocolError
from gpupool.pool.history_query import HistoryPage
from gpupool.pool.model.state import LeaseRecord
from gpupool.pool.record_query import RecordPage
from gpupool.remoting.protocol.framing import Frame
from gpupool.remoting.transport.connections import give_back_memory
from gpupool.remoting.transport.watching import keep_watching, told
from gpupool.remoting.worker import sandbox

T = TypeVar("T")

READ_SIZE = 64 * 1024
PRIORITY = min(19, os.getpriority(os.PRIO_PROCESS, 0) + sandbox.NICE)
"""Of each thread, relative to that of the server, which started this process."""

READERS = 2
"""Questions that are answered at a time. The server bounds how many wait (``admin_service``)."""

SAMPLES_MAX = 600
"""Samples that wait for a thread that is still writing."""

KEEP_EVERY_MS = 1000 * SLOT_S
IMPORT_EVERY_S = 1.0
"""Without a word of the server, which says when there is something."""


def give_way() -> None:
    """Let this thread, and those that it starts, compute when nothing else of the server does.

    Seeing must not slow doing down, however many strangers send requests. The exporter gives way
    once it can serve, because what serves a page takes long to import at a low priority.
    """
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), PRIORITY)


class Exporter:
    """All parts of one exporter."""

    def __init__(
        self,
        stream: trio.SocketStream,
        folder: Path,
        settings: HistorySettings | None = None,
        door: socket.socket | None = None,
        give_way: Callable[[], None] = lambda: None,
    ) -> None:
        """Make it; ``give_way`` is called by each thread that is to give way from then on."""
        self._stream = stream
        self._folder = folder
        self._give_way = give_way
        self._door = (
            HttpDoor(door, folder, ask=self._ask, say=_say, ready=give_way)
            if door is not None
            else None
        )
        self._nursery: trio.Nursery | None = None
        self._writer = RecordWriter(folder, _say, self._ended)
        self.sample: Sample | None = None
        """The latest one."""
        self._settings = settings or HistorySettings()
        self._history = HistoryWriter(folder, self._settings, _say)
        self._samples: list[Sample] = []
        self._sampled = trio.Event()
        self._keeping = trio.CapacityLimiter(1)
        self._written = trio.Event()
        self._has_accounts = trio.Event()  # the file is made, or cannot be
        self._sending = trio.Lock()
        self._readers = trio.CapacityLimiter(READERS)
        self._writing = trio.CapacityLimiter(1)

    async def run(self) -> None:
        """Serve until the server is gone; then close both databases."""
        try:
            await self._serve()
        finally:  # no thread writes any more: the nursery has waited for them
            self._writer.close()
            self._history.close()

    async def _serve(self) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(keep_watching, _say, "what keeps the accounts", self._import)
            nursery.start_soon(keep_watching, _say, "what keeps the history", self._keep)
            nursery.start_soon(give_back_memory)
            if self._door is not None:
                nursery.start_soon(self._door.run)
            else:
                self._give_way()
            reader = EXPORTER.reader()
            take = told("the server's word", partial(self._handle, nursery), _say)
            try:
                while data := await self._stream.receive_some(READ_SIZE):
                    reader.feed(data)
                    for frame in reader.frames():
                        take(frame)
            except trio.BrokenResourceError:
                pass
            nursery.cancel_scope.cancel()

    def _handle(self, nursery: trio.Nursery, frame: Frame) -> None:
        match message := EXPORTER.decode(ServerMessage, frame):
            case RecordsWritten():
                self._written.set()
            case Asked():
                nursery.start_soon(self._answer, message)
            case Sample():
                self._take(message)
            case HistoryAsked():
                nursery.start_soon(self._answer_history, message)
            case Forget():
                self._writer.forgotten = self._history.forgotten = message.users
                self._written.set()
                self._sampled.set()
            case WebSetup() if self._door is not None:
                self._door.set_up(message)
            case Targets() if self._door is not None:
                self._door.targets = message
            case TokenAnswered() if self._door is not None:
                self._door.answered(message)
            case TokensSeen() if self._door is not None:
                self._door.tokens_seen(message)
            case _:
                raise ProtocolError(f"the server sent {type(message).__name__}")

    def _ended(self, records: Sequence[LeaseRecord]) -> None:
        """Count the leases that have ended on this server; on the thread that imports."""
        me = self.sample.telemetry.server if self.sample is not None else None
        for record in records:
            if self._door is not None and record.server == me:
                self._door.ended(record)

    def _ask(self, asked: TokenAsked) -> None:
        if self._nursery is not None:
            self._nursery.start_soon(self._send, asked)

    async def _send(self, message: ExporterMessage) -> None:
        async with self._sending:
            # When the server is gone, the reader sees it as well.
            with suppress(trio.BrokenResourceError):
                await self._stream.send_all(EXPORTER.encode(message))

    def _take(self, sample: Sample) -> None:
        before, self.sample = self.sample, sample
        self._samples.append(sample)
        if len(self._samples) > SAMPLES_MAX:
            # The disk does not answer. What is left out is a gap in the history.
            self._samples.pop(0)
        if before is None or before.at // KEEP_EVERY_MS != sample.at // KEEP_EVERY_MS:
            self._sampled.set()
        if self._door is not None:
            self._door.sampled(sample)

    async def _keep(self) -> None:
        """Write samples every ten seconds, on a thread that does nothing else."""
        while True:
            self._sampled = trio.Event()
            samples, self._samples = self._samples, []
            await self._in_thread(partial(self._history.take, samples), limiter=self._keeping)
            await self._sampled.wait()

    async def _import(self) -> None:
        """Import new records, whenever the server reports some, on the one writing thread."""
        while True:
            self._written = trio.Event()
            await self._in_thread(self._writer.step, limiter=self._writing)
            self._has_accounts.set()
            with trio.move_on_after(IMPORT_EVERY_S):
                await self._written.wait()

    async def _in_thread(self, job: Callable[[], T], limiter: trio.CapacityLimiter) -> T:
        """Run a job on a thread that gives way from its first one on."""

        def aside() -> T:
            self._give_way()
            return job()

        return await trio.to_thread.run_sync(aside, limiter=limiter)

    async def _answer(self, asked: Asked) -> None:
        await self._has_accounts.wait()
        try:
            page = await self._in_thread(
                partial(answer, self._folder, asked.query, PAGE_SIZE_MAX), limiter=self._readers
            )
        except Exception as error:  # noqa: BLE001 - a question ends no exporter
            page = RecordPage(problem=f"its exporter cannot read the accounts: {error}"[:300])
        if self._writer.problem and not page.problem:
            page = replace(page, problem=self._writer.problem)
        await self._send(Answered(asked.number, page))

    async def _answer_history(self, asked: HistoryAsked) -> None:
        if asked.query.of == "storage":
            job = partial(storage_of, self._folder, self._settings)
        else:
            job = partial(read_history, self._folder, asked.query)
        try:
            page = await self._in_thread(job, limiter=self._readers)
        except Exception as error:  # noqa: BLE001 - a question ends no exporter
            page = HistoryPage(problem=f"its exporter cannot read the history: {error}"[:300])
        page = replace(page, lost=self._history.lost)
        if self._history.problem and not page.problem:
            page = replace(page, problem=self._history.problem)
        await self._send(HistoryAnswered(asked.number, page))


def _say(text: str) -> None:
    """Write a line for the server's log: standard error is the server's."""
    sys.stderr.write(f"exporter: {text}\n")
    sys.stderr.flush()


def confine(folder: Path, *, connects: bool) -> None:
    """Leave this process the interpreter's files and ``folder``, by Landlock where it is there.

    It never listens, and connects only for the people who are logged in to its web page. Must be
    called while the process has one thread.
    """
    sandbox.set_oom_score(0)
    sandbox.limit_resources(own_uid=False)
    # A source tree is reached by links: Landlock asks for where they lead.
    paths = [str(Path(each).resolve()) for each in (*sys.path, sys.prefix, sys.base_prefix) if each]
    package = Path(__file__).resolve().parents[1]
    sandbox.restrict_files(
        [*paths, str(package)], (str(folder),), (), connects=connects, private=[str(folder.parent)]
    )
    os.chdir(folder)


def main(arguments: list[str]) -> None:
    """Run an exporter on the socket and the folder that the command line names."""
    folder, door = Path(arguments[0]), int(arguments[2])
    settings = HistorySettings(*(int(each) for each in arguments[3:]))
    # A terminal and systemd send signals to all processes; the server decides when this one ends.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    confine(folder, connects=door >= 0)
    line, *doors = (socket.socket(fileno=each) for each in (int(arguments[1]), door) if each >= 0)
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(line))
    exporter = Exporter(stream, folder, settings, *doors, give_way=give_way)
    trio.run(exporter.run)


if __name__ == "__main__":
    main(sys.argv[1:])
