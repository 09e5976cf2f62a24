"""The observer: a process beside each server that keeps what the pool remembers, and answers.

``python -m gpupool.monitoring.observer FD FOLDER``: the server starts it and talks to it over the
socket pair whose end is FD; FOLDER is the only one that it may read and write. It holds no key of
the pool. Its end stops nothing: the server starts it again, and it reads on where it was. It ends
when the server does, because the socket pair closes then.

One thread writes to the database, and nobody else does. Each kind of frame has one handler, in
``Observer.handle``.
"""

import os
import signal
import socket
import sqlite3
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import trio

from gpupool.monitoring.frames import (
    PAGE_SIZE_MAX,
    Answered,
    Asked,
    Message,
    RecordsWritten,
    frame_reader,
    from_frame,
    to_frame,
)
from gpupool.monitoring.record_writer import RecordWriter, answer
from gpupool.monitoring.sample import Sample
from gpupool.pool.errors import ProtocolError
from gpupool.pool.record_query import RecordPage
from gpupool.remoting.worker import sandbox

READ_SIZE = 64 * 1024
QUERY_COUNT_MAX = 8
"""Questions that are answered at a time; the next ones wait in the socket."""

READERS = 2
IMPORT_EVERY_S = 1.0
"""Without a word of the server, which says when there is something."""


class Observer:
    """All parts of one observer."""

    def __init__(self, stream: trio.SocketStream, folder: Path) -> None:
        self._stream = stream
        self._folder = folder
        self._writer = RecordWriter(folder, _say)
        self.sample: Sample | None = None
        """The latest one."""
        self._written = trio.Event()
        self._sending = trio.Lock()
        self._asking = trio.Semaphore(QUERY_COUNT_MAX)
        self._readers = trio.CapacityLimiter(READERS)
        self._writing = trio.CapacityLimiter(1)

    async def run(self) -> None:
        """Serve until the server is gone."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._import)
            reader = frame_reader()
            try:
                while data := await self._stream.receive_some(READ_SIZE):
                    reader.feed(data)
                    for frame in reader.frames():
                        await self._handle(from_frame(frame), nursery)
            except trio.BrokenResourceError:
                pass
            nursery.cancel_scope.cancel()

    async def _handle(self, message: Message, nursery: trio.Nursery) -> None:
        match message:
            case RecordsWritten():
                self._written.set()
            case Asked():
                await self._asking.acquire()
                nursery.start_soon(self._answer, message)
            case Sample():
                self.sample = message
            case Answered():
                raise ProtocolError("the server sent an answer")

    async def _import(self) -> None:
        """Import what was written, whenever the server says so, on the one thread that writes."""
        while True:
            self._written = trio.Event()
            await trio.to_thread.run_sync(self._writer.step, limiter=self._writing)
            with trio.move_on_after(IMPORT_EVERY_S):
                await self._written.wait()

    async def _answer(self, asked: Asked) -> None:
        try:
            page = await trio.to_thread.run_sync(
                partial(answer, self._folder, asked.query, PAGE_SIZE_MAX), limiter=self._readers
            )
        except (sqlite3.Error, OSError) as error:
            page = RecordPage(problem=f"its observer cannot read the accounts: {error}"[:300])
        finally:
            self._asking.release()
        if self._writer.problem and not page.problem:
            page = replace(page, problem=self._writer.problem)
        async with self._sending:
            # When the server is gone, the reader sees it as well.
            with suppress(trio.BrokenResourceError):
                await self._stream.send_all(to_frame(Answered(asked.number, page)))


def _say(text: str) -> None:
    """Write a line for the server's log: standard error is the server's."""
    sys.stderr.write(f"observer: {text}\n")
    sys.stderr.flush()


def confine(folder: Path) -> None:
    """Leave this process the interpreter's files and ``folder``, by Landlock where it is there.

    Must be called while the process has one thread.
    """
    sandbox.limit_resources(own_uid=False)
    # A source tree is reached by links: Landlock asks for where they lead.
    paths = [str(Path(each).resolve()) for each in (*sys.path, sys.prefix, sys.base_prefix) if each]
    package = Path(__file__).resolve().parents[1]
    sandbox.restrict_files([*paths, str(package)], (str(folder),), ())
    os.chdir(folder)


def main(arguments: list[str]) -> None:
    """Run an observer on the socket and the folder that the command line names."""
    descriptor, folder = int(arguments[0]), Path(arguments[1])
    # A terminal and systemd send signals to all processes; the server decides when this one ends.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    confine(folder)
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(socket.socket(fileno=descriptor)))
    trio.run(Observer(stream, folder).run)


if __name__ == "__main__":
    main(sys.argv[1:])
