"""A TCP proxy in front of every real server, which cuts, holds back and breaks connections.

Network namespaces would need rights that a test has not. The proxy learns from ``/proc`` which
process opened a connection, and so between which two a fault lies.
"""

import os
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import trio

CHUNK_BYTES = 64 * 1024
GONE = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)


LOOK_COUNT = 5
"""The kernel's table of sockets is read in pieces: where others open and close theirs, a row can be
missed."""


class FaultProxy:
    """All proxies of one run. A pair names the source and the target of a direction."""

    def __init__(self, name_of_pid: Callable[[int], str | None]) -> None:
        self._name_of_pid = name_of_pid
        self._cut: set[tuple[str, str]] = set()
        self._mended = trio.Event()
        self._scopes: dict[trio.CancelScope, frozenset[str]] = {}

    async def serve(
        self,
        target: str,
        target_port: Callable[[], int],
        *,
        task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Stand before the server ``target``; starts with the port that others know."""
        handler = partial(self._handle, target, target_port)
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(partial(trio.serve_tcp, handler, 0, host="127.0.0.1"))
            task_status.started(listeners[0].socket.getsockname()[1])

    def cut(self, source: str, target: str) -> None:
        """Drop all bytes in this direction silently."""
        self._cut.add((source, target))

    def mend(self, *pairs: tuple[str, str]) -> None:
        """Let these directions through again; without any, all."""
        self._cut -= set(pairs) if pairs else self._cut.copy()
        self._mended.set()
        self._mended = trio.Event()

    def reset(self, one: str, other: str) -> None:
        """Break every connection between two processes."""
        for scope, pair in list(self._scopes.items()):
            if pair == frozenset((one, other)):
                scope.cancel()

    async def _handle(
        self, target: str, target_port: Callable[[], int], stream: trio.SocketStream
    ) -> None:
        source = self._source(stream)
        with trio.CancelScope() as scope, suppress(*GONE):
            self._scopes[scope] = frozenset((source, target))
            try:
                while (source, target) in self._cut or (target, source) in self._cut:
                    await self._mended.wait()
                onward = await trio.open_tcp_stream("127.0.0.1", target_port())
                async with onward, trio.open_nursery() as nursery:
                    nursery.start_soon(self._pump, stream, onward, (source, target))
                    await self._pump(onward, stream, (target, source))
                    nursery.cancel_scope.cancel()
            except* GONE:
                pass
            finally:
                del self._scopes[scope]
        await trio.aclose_forcefully(stream)

    async def _pump(
        self, here: trio.SocketStream, there: trio.SocketStream, direction: tuple[str, str]
    ) -> None:
        while data := await here.receive_some(CHUNK_BYTES):
            while direction in self._cut:
                await self._mended.wait()
            await there.send_all(data)
        with suppress(*GONE):
            await there.send_eof()

    def _source(self, stream: trio.SocketStream) -> str:
        port = stream.socket.getpeername()[1]
        own_port = stream.socket.getsockname()[1]
        for _ in range(LOOK_COUNT):
            table = Path("/proc/net/tcp").read_text(encoding="ascii")
            inode = inode_of_connection(table, port, own_port)
            for pid in _pids_with(inode) if inode else ():
                if (name := self._name_of_pid(pid)) is not None:
                    return name
        return "stranger"


def inode_of_connection(table: str, port: int, other_port: int) -> str:
    """Return the inode of the socket of loopback at ``port`` that is connected to ``other_port``.

    ``table`` is the text of ``/proc/net/tcp`` (proc(5)). One port can have several rows: an ended
    connection to another port stays for a minute as TIME_WAIT, with the inode 0.
    """
    wanted = [f"0100007F:{port:04X}", f"0100007F:{other_port:04X}"]
    for line in table.splitlines()[1:]:
        fields = line.split()
        if fields[1:3] == wanted and fields[9] != "0":
            return fields[9]
    return ""


def _pids_with(inode: str) -> list[int]:
    """Return the processes of ours that hold a socket."""
    wanted, found = f"socket:[{inode}]", list[int]()
    for folder in Path("/proc").iterdir():
        if not re.fullmatch(r"\d+", folder.name):
            continue
        with suppress(OSError):
            if any(os.readlink(entry) == wanted for entry in (folder / "fd").iterdir()):
                found.append(int(folder.name))
    return found
