"""Measures how long views of a full table hold the event loop of a real control server.

``python -m tests.benchmarks.view_times 1000 10000`` asks for views over TLS, one after
another, and then subscribes to updates. The client is a thread that only reads bytes. All
is measured twice in one run: with views that are made at once in the loop, however large, and as
servers do it.
"""

import json
import logging
import socket
import ssl
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, cast

import trio
from tests.benchmarks.full_table import IdleHost, Steps, full_machine
from tests.benchmarks.scale import server_id
from tests.remoting.control.control_kit import make_control_server

from gpupool.consensus.garbage import Exemption
from gpupool.pool.model.commands import CreateToken, wrap
from gpupool.pool.model.ids import Milliseconds, TokenId
from gpupool.pool.model.state import TokenKind
from gpupool.pool.ports import RaftHealth, Role
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.protocol.framing import ANSWER_SIZE_MAX, HEADER
from gpupool.remoting.protocol.token_text import hash_secret
from gpupool.remoting.server.control_server import ControlServer
from gpupool.remoting.server.server_settings import ControllerSettings, Software
from gpupool.remoting.transport.authority.certificate_renewal import ServerCertificates
from gpupool.remoting.transport.peer_transport import PeerTransport
from gpupool.remoting.transport.pki import (
    Identity,
    TlsContexts,
    control_context,
    create_ca,
    create_key_and_csr,
    sign_server,
)
from gpupool.remoting.transport.system_clock import SystemClock

CLUSTER, NAME = "scale", "view"
TOKEN, SECRET = TokenId("b" * 12), bytes(32)
LOG = logging.getLogger(__name__)


class _IdleLog:
    """The log of a server without a vote, to which nobody says anything."""

    def role(self) -> Role:
        return Role.LEARNER

    def health(self) -> RaftHealth:
        return RaftHealth(Role.LEARNER, None, 1, 1, 1, (), (), 0.0, {}, 0)

    def majority_age_s(self) -> float:
        return 0.0

    def submit(self, *_command: object) -> None:
        pass


class _Client:
    """A client in a thread, which reads frames and decodes none of them."""

    def __init__(self, end: socket.socket, context: ssl.SSLContext) -> None:
        self._stream = context.wrap_socket(end, server_hostname=NAME)
        self._call = 0
        self._ask(m.Hello(m.PROTOCOL, "", TOKEN, SECRET, "view_times"))
        self._await(m.Welcome)

    def view(self) -> int:
        """Return the size of a view."""
        self._ask(m.GetView())
        return self._await(m.ViewNow)

    def subscribe(self) -> None:
        """Ask for updates as often as a client can."""
        self._ask(m.Subscribe(0.2))

    def updates(self, count: int) -> None:
        """Read some updates."""
        for _ in range(count):
            self._await(m.Update)

    def close(self) -> None:
        """Go."""
        self._stream.close()

    def _ask(self, message: m.Message) -> None:
        self._call += 1
        self._stream.sendall(m.to_frame(self._call, message, size_max=ANSWER_SIZE_MAX))

    def _await(self, kind: type[m.Message]) -> int:
        while True:
            size, number = HEADER.unpack(self._read(HEADER.size))
            self._read(size)
            if number == kind.declared.number:
                return size

    def _read(self, size: int) -> bytes:
        data = bytearray(size)
        view, done = memoryview(data), 0
        while done < size:
            if not (count := self._stream.recv_into(view[done:])):
                raise ConnectionError("the server has hung up")
            done += count
        return bytes(data[: HEADER.size])


def _identity(folder: Path) -> Identity:
    authority, now = create_ca(CLUSTER, datetime.now(UTC)), datetime.now(UTC)
    key, csr = create_key_and_csr(server_id(0))
    (folder / "key.pem").write_bytes(key)
    (folder / "cert.pem").write_bytes(sign_server(authority, csr, server_id(0), now))
    return Identity(
        server_id(0), CLUSTER, folder / "cert.pem", folder / "key.pem", authority.certificate_pem
    )


def _server(machine: PoolMachine, identity: Identity, rows_at_once: int) -> ControlServer:
    clock, rng, me = SystemClock(), Random(1), server_id(0)
    links = PeerTransport(identity, clock=clock, rng=rng, address_of=lambda _peer: None, log=LOG)
    software = Software(machine.state.servers[me].address, "")
    return make_control_server(
        machine,
        cast(Any, _IdleLog()),
        cast(Any, IdleHost(tuple(machine.state.servers[me].gpus.values()))),
        links,
        ServerCertificates(contexts=TlsContexts(identity)),
        software,
        clock=clock,
        rng=rng,
        log=LOG,
        controller_settings=ControllerSettings(view_rows_at_once=rows_at_once),
    )


def _let_in(machine: PoolMachine) -> None:
    command = CreateToken(
        TOKEN, TokenKind.USER, "user", hash_secret(SECRET), Milliseconds(2**50), "root"
    )
    machine.apply(machine.state.index + 1, wrap(command, at_ms=machine.state.now, ttl_ms=0))
    assert TOKEN in machine.state.tokens


async def _measure(
    server: ControlServer, identity: Identity, views: int, rest_s: float
) -> dict[str, float]:
    """Return the milliseconds of a view, of the loop's longest step, and of its latest timer."""
    near, far = socket.socketpair()
    found: dict[str, float] = {}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    steps = Steps()
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, [])
        stream = trio.SSLStream(
            trio.SocketStream(trio.socket.from_stdlib_socket(near)),
            control_context(identity),
            server_side=True,
            https_compatible=True,
        )
        nursery.start_soon(server.streams.serve, stream, "client")
        client = await trio.to_thread.run_sync(_Client, far, context)
        trio.lowlevel.add_instrument(steps)
        nursery.start_soon(steps.tick)
        await trio.sleep(rest_s / 2)
        steps.take()
        await trio.sleep(rest_s)
        found["rest_step"], found["rest_late"] = steps.take()
        began = trio.current_time()
        for _ in range(views):
            found["bytes"] = await trio.to_thread.run_sync(client.view)
        found["view"] = 1e3 * (trio.current_time() - began) / views
        found["view_step"], found["view_late"] = steps.take()
        await trio.to_thread.run_sync(client.subscribe)
        began = trio.current_time()
        await trio.to_thread.run_sync(client.updates, views)
        found["update"] = 1e3 * (trio.current_time() - began) / views
        found["update_step"], found["update_late"] = steps.take()
        trio.lowlevel.remove_instrument(steps)
        client.close()
        nursery.cancel_scope.cancel()
    return found


def measure_views(
    servers: int, leases: int, *, views: int = 5, rest_s: float = 1.0
) -> dict[str, dict[str, float]]:
    """Return milliseconds (and bytes): views made at once, and as servers do it."""
    machine = full_machine(servers, leases)
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        _let_in(machine)
        identity = _identity(Path(folder))
        Exemption()()
        shipped = ControllerSettings().view_rows_at_once
        for name, rows in (("at once", 1 << 40), ("as shipped", shipped)):
            server = _server(machine, identity, rows)
            found[name] = trio.run(_measure, server, identity, views, rest_s)
    return found


def main() -> None:
    """Measure ``SERVERS LEASES`` of the command line; one JSON object a line."""
    logging.disable(logging.CRITICAL)
    servers, leases = [int(each) for each in sys.argv[1:]] or [1000, 10_000]
    for name, found in measure_views(servers, leases).items():
        rounded = {key: round(value, 2) for key, value in found.items()}
        print(json.dumps({"views": name, **rounded}), flush=True)


if __name__ == "__main__":
    main()
