"""The Unix socket on which clients of the same host reach their workers."""

import errno
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

from gpupool.pool.errors import GpupoolError
from gpupool.remoting.protocol import handshake

SOCKET_NAME = "data.sock"
SOCKET_PATH_MAX = 107
"""Bytes of a Unix socket's path (sun_path, unix(7)), less its final zero."""

PREAMBLE_TIMEOUT_S = 2.0
PREAMBLE_POLL_S = 0.01
"""A preamble normally arrives whole. Peeking cannot wait for more than the first byte of it."""

PENDING_COUNT_MAX = 64
"""Most connections with a pending preamble; further ones wait in the kernel."""

HandOver = Callable[[bytes, socket.socket], Awaitable[None]]
Log = Callable[[str], None]


def bind_unix_listener(runtime_dir: Path) -> socket.socket | None:
    """Return the listening socket, open to all users of the machine; None if the path is too long.

    Who connects proves that it knows the ticket of its session, so file modes decide nothing.
    """
    path = runtime_dir / SOCKET_NAME
    if len(os.fsencode(path)) > SOCKET_PATH_MAX:
        return None
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    path.chmod(0o666)
    listener.listen(PENDING_COUNT_MAX)
    return listener


async def serve_unix_listener(listener: socket.socket, hand_over: HandOver, log: Log) -> None:
    """Accept connections and route each to the worker of the session that it names."""
    listening = trio.socket.from_stdlib_socket(listener)
    slots = trio.Semaphore(PENDING_COUNT_MAX)

    async def route(connection: trio.socket.SocketType) -> None:
        try:
            await _route(connection, hand_over)
        except (GpupoolError, OSError) as error:
            log(f"a connection on {SOCKET_NAME} was refused: {error}")
        finally:
            slots.release()

    async with trio.open_nursery() as nursery:
        while True:
            await slots.acquire()
            try:
                connection, _address = await listening.accept()
            except OSError as error:
                slots.release()
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ECONNABORTED):
                    raise
                log(f"a connection on {SOCKET_NAME} cannot be accepted: {error}")
                await trio.sleep(PREAMBLE_TIMEOUT_S)
                continue
            nursery.start_soon(route, connection)


async def _route(connection: trio.socket.SocketType, hand_over: HandOver) -> None:
    with connection:
        with trio.move_on_after(PREAMBLE_TIMEOUT_S):
            session = await _peek_session(connection)
            if session is not None:
                own = socket.socket(fileno=os.dup(connection.fileno()))
                await hand_over(session, own)


async def _peek_session(connection: trio.socket.SocketType) -> bytes | None:
    """Return the session that the preamble names, unread; None when the client closes."""
    size = len(handshake.PREAMBLE) + handshake.SESSION_SIZE
    while True:
        first = await connection.recv(size, socket.MSG_PEEK)
        if not first:
            return None
        session = handshake.session_of_preamble(first)
        if session is not None:
            return session
        await trio.sleep(PREAMBLE_POLL_S)
