"""Fakes and helpers that the tests of the control plane share."""

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import trio

from gpupool.pool.model.ids import Incarnation, ServerId
from gpupool.pool.ports import Clock, Randomness, ReplicatedLog
from gpupool.pool.table_clock import TableClock
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.remoting.protocol.sessions import SessionHost
from gpupool.remoting.server.control_server import ControlServer
from gpupool.remoting.server.controller import Controller
from gpupool.remoting.server.server_settings import ControllerSettings, ServerInstance, Software
from gpupool.remoting.transport.authority.certificate_renewal import ServerCertificates
from gpupool.remoting.transport.authority.server_authorities import ServerAuthorities
from gpupool.remoting.transport.peer_transport import PeerTransport
from gpupool.remoting.transport.pki import (
    Authority,
    Identity,
    create_ca,
    create_key_and_csr,
    sign_server,
)


class VirtualClock:
    """Both clocks of a server, from trio's clock, so that virtual time moves them."""

    def __init__(self, wall_start_ms: int = 1_700_000_000_000, skew_s: float = 0.0) -> None:
        self.wall_start_ms = wall_start_ms
        self.skew_s = skew_s
        self._zero = trio.current_time()

    def monotonic(self) -> float:
        return trio.current_time()

    def wall_ms(self) -> int:
        elapsed = trio.current_time() - self._zero
        return self.wall_start_ms + int((elapsed + self.skew_s) * 1000)


class RealClock:
    """The clocks of this machine."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


class SeededRng:
    """Repeatable chance."""

    def __init__(self, seed: int = 1) -> None:
        self._random = random.Random(seed)

    def random(self) -> float:
        return self._random.random()

    def randbytes(self, n: int, /) -> bytes:
        return self._random.randbytes(n)


def make_identity(folder: Path, authority: Authority, server: str) -> Identity:
    key, csr = create_key_and_csr(ServerId(server))
    certificate = sign_server(authority, csr, ServerId(server), datetime.now(UTC))
    folder.mkdir(parents=True, exist_ok=True)
    certificate_path, key_path = folder / f"{server}.pem", folder / f"{server}.key"
    certificate_path.write_bytes(certificate)
    key_path.write_bytes(key)
    return Identity(
        ServerId(server), "cluster-1", certificate_path, key_path, authority.certificate_pem
    )


def make_authority() -> Authority:
    return create_ca("cluster-1", datetime.now(UTC))


@dataclass
class PeerLog:
    """A ``PeerEvents`` that remembers."""

    events: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    frames: list[tuple[str, bytes]] = field(default_factory=list[tuple[str, bytes]])

    def connected(self, peer: ServerId) -> None:
        self.events.append(("connected", peer))

    def disconnected(self, peer: ServerId) -> None:
        self.events.append(("disconnected", peer))

    def received(self, peer: ServerId, frame: bytes, *, more: bool = False) -> None:
        del more
        self.frames.append((peer, frame))


async def until(
    condition: Callable[[], object], every_s: float = 0.005, *, within_s: float = 600.0
) -> None:
    """Return once ``condition`` holds."""
    with trio.fail_after(within_s):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await trio.sleep(every_s)


def make_control_server(
    machine: PoolMachine,
    replicated_log: ReplicatedLog,
    host: SessionHost,
    links: PeerTransport,
    certificates: ServerCertificates,
    software: Software,
    *,
    clock: Clock,
    rng: Randomness,
    log: logging.Logger,
    incarnation: int = 1,
    controller_settings: ControllerSettings | None = None,
    **options: Any,
) -> ControlServer:
    """Put a control server together, as ``remoting.daemon.compose`` does."""
    me = ServerInstance(certificates.contexts.identity.server, Incarnation(incarnation), software)
    table_clock = TableClock(
        lambda: machine.state, self_id=me.id, clock=clock, sample=links.clock_sample
    )
    authorities = ServerAuthorities(
        certificates, machine=machine, links=links, table_clock=table_clock, log=log
    )
    controller = Controller(
        machine,
        me=me,
        consensus=replicated_log,
        authorities=authorities,
        host=host,
        table_clock=table_clock,
        rng=rng,
        settings=controller_settings,
    )
    return ControlServer(
        controller, replicated_log, authorities=authorities, links=links, log=log, **options
    )
