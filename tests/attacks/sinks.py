"""Sink ports for control runs of attacks: an attack's cost to the machine alone.

Each port has a process of its own, as each server has. It takes connections at the pace of a
server, holds as many, and does as much for each as it is told.
"""

import contextlib
import os
import select
import signal
import socket
import ssl
import tempfile
import time
from collections import deque
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import NoReturn

from gpupool.remoting.daemon.listen_address import SILENT_S
from gpupool.remoting.server.listener.preauth_limits import BURST_S
from gpupool.remoting.server.server_settings import ServerSettings
from gpupool.remoting.transport.client_tls import harden
from gpupool.remoting.transport.pki import create_ca

SETTINGS = ServerSettings()
ANSWER = bytes(1400)
"""As many bytes as a server's first flight of a handshake."""

PEEK_SIZE = 4096


class Work(Enum):
    """The work of a sink for a connection."""

    HOLD = "hold"  # and nothing else
    ANSWER = "answer"  # in its turn
    HANDSHAKE = "handshake"  # in its turn, as far as the other side goes on


class Sinks:
    """Some sinks; entering gives their ports."""

    def __init__(self, count: int, work: Work) -> None:
        self.work = work
        self.doors = [socket.create_server(("127.0.0.1", 0), backlog=4096) for _ in range(count)]
        for door in self.doors:
            door.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, SILENT_S)
        self.pids: list[int] = []

    def __enter__(self) -> list[int]:
        context = new_context()
        for door in self.doors:
            self.pids.append(os.fork())
            if self.pids[-1] == 0:
                serve(door, self.work, context)
        return [int(door.getsockname()[1]) for door in self.doors]

    def __exit__(self, *_error: object) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def new_context() -> ssl.SSLContext:
    """Return a server's settings of TLS, with a certificate that nobody trusts."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    harden(context)
    made = create_ca("sink", datetime.now(UTC))
    with tempfile.TemporaryDirectory() as name:
        certificate, key = Path(name, "certificate"), Path(name, "key")
        certificate.write_bytes(made.certificate_pem)
        key.write_bytes(made.key_pem)
        context.load_cert_chain(certificate, key)
    return context


def serve(door: socket.socket, work: Work, context: ssl.SSLContext) -> NoReturn:
    """Be one sink until killed."""
    door.setblocking(False)
    waiting, held = deque[socket.socket](), deque[tuple[socket.socket, object]]()
    if work is Work.HOLD:
        held_max, interval_s = SETTINGS.unauthenticated_count_max, 0.0
    else:
        held_max = SETTINGS.unauthenticated_tls_count_max
        interval_s = 1 / SETTINGS.handshakes_per_s
    next_at = time.monotonic()
    while True:
        wait_s = max(0.0, next_at - time.monotonic()) if waiting else None
        for _ in select.select([door], [], [], wait_s)[0]:
            with contextlib.suppress(OSError):
                waiting.append(door.accept()[0])
        next_at = max(next_at, time.monotonic() - BURST_S)
        while waiting and next_at <= time.monotonic():
            next_at += interval_s
            one = waiting.popleft()
            held.append((one, take(one, work, context)))
        while len(held) > held_max:
            held.popleft()[0].close()


def take(one: socket.socket, work: Work, context: ssl.SSLContext) -> object:
    """Do a connection's work; return the object to keep with the connection, or None."""
    with contextlib.suppress(OSError):
        if work is Work.ANSWER:
            one.recv(PEEK_SIZE, socket.MSG_DONTWAIT)
            one.send(ANSWER, socket.MSG_DONTWAIT)
        elif work is Work.HANDSHAKE:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            incoming.write(one.recv(PEEK_SIZE, socket.MSG_DONTWAIT))
            tls = context.wrap_bio(incoming, outgoing, server_side=True)
            with contextlib.suppress(ssl.SSLWantReadError):
                tls.do_handshake()
            one.send(outgoing.read(), socket.MSG_DONTWAIT)
            return tls
    return None
