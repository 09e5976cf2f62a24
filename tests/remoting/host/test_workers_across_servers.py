"""Workers of one client on two servers: real worker processes of two hosts that meet over TCP."""

import json
import os
import socket
from dataclasses import dataclass, replace
from typing import Any

import pytest
import trio
from host_kit import GIB, SERVER, EchoClient, HostKit, MakeHost, unix_address

from gpupool.pool.errors import AuthenticationError
from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.state import Lease, Partition
from gpupool.remoting.host.inventory import Inventory
from gpupool.remoting.protocol.sessions import SessionInfo
from gpupool.remoting.transport.data_connection import SessionAddress, prove
from gpupool.remoting.worker.peer_links import INTRODUCTION

SERVERS = (SERVER, ServerId("bbbbbbbbbbbb"))
STRANGER = ServerId("cccccccccccc")
KEYS = (b"a" * 32, b"b" * 32)


@dataclass
class Side:
    """One server of the lease: its host, the client's session there, and its port."""

    kit: HostKit
    info: SessionInfo
    client: EchoClient
    listener: socket.socket
    addresses: dict[ServerId, str]  # of all servers, as both hosts know them

    async def ask(self, command: bytes, *body: Any) -> str:
        answer = await self.client.ask(command, json.dumps(body).encode())
        return answer.decode()

    def peer(self, at: int, encryption: str) -> dict[str, str]:
        return {
            "server": SERVERS[at],
            "name": "ab"[at],
            "session": self.info.session.hex(),
            "certificate": self.info.certificate_sha256.hex(),
            "encryption": encryption,
            "key": KEYS[at].hex(),
        }


async def accept_for_ever(kit: HostKit, listener: socket.socket) -> None:
    """Stand for the control server: take the session from the first bytes, and hand over."""
    listening = trio.socket.from_stdlib_socket(listener)
    while True:
        accepted, _address = await listening.accept()
        own = socket.socket(fileno=os.dup(accepted.fileno()))
        (worker,) = [
            w for w in kit.host.worker_pool.workers.values() if w.session.lease is not None
        ]
        if kit.host.knows_session(worker.session.id):
            await kit.host.hand_over(worker.session.id, own)
        else:
            own.close()
        accepted.close()


async def two_sides(make_host: MakeHost, encryption: str = "tls") -> list[Side]:
    addresses: dict[ServerId, str] = {STRANGER: "127.0.0.1:9"}
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in SERVERS]
    kits: list[HostKit] = []

    def policy(_lease: object) -> str:
        return encryption

    for server, listener in zip(SERVERS, listeners, strict=True):
        addresses[server] = f"127.0.0.1:{listener.getsockname()[1]}"
        inventory = Inventory.discover(server, None, emulated_count=1, emulated_memory=8 * GIB)
        kit = await make_host(
            inventory,
            doors={"peers": "peer_door:serve"},
            address_of=addresses.get,
            data_encryption=policy,
        )
        kit.closers.append(listener.close)
        kit.nursery.start_soon(accept_for_ever, kit, listener)
        kits.append(kit)
    partitions = [
        Partition(server, kit.host.gpus()[0].id, GIB)
        for server, kit in zip(SERVERS, kits, strict=True)
    ]
    sides: list[Side] = []
    for kit, partition, listener in zip(kits, partitions, listeners, strict=True):
        lease: Lease = replace(kit.lease(), partitions=tuple(partitions))
        info = await kit.host.open_session(lease, [partition], door="peers", program="x.py")
        client = await kit.dial(unix_address(info))
        await kit.worker_of(info).connected.wait()
        sides.append(Side(kit, info, client, listener, addresses))
    return sides


async def introduce(sides: list[Side], encryption: str = "tls") -> None:
    known = [side.peer(at, encryption) for at, side in enumerate(sides)]
    for at, side in enumerate(sides):
        others = [None if other == at else known[other] for other in range(len(sides))]
        await side.ask(b"i", KEYS[at].hex(), at, others)
        assert side.kit.host.knows_session(side.info.session)


@pytest.mark.parametrize("encryption", ["tls", pytest.param("off", marks=pytest.mark.slow)])
async def test_two_workers_send_to_each_other(make_host: MakeHost, encryption: str) -> None:
    a, b = await two_sides(make_host, encryption)
    await introduce([a, b], encryption)
    assert await a.ask(b"c", 1) == ""
    assert await a.ask(b"c", 1) == ""  # once is enough
    assert await b.ask(b"c", 0) == ""
    for number in range(3):
        await a.ask(b"s", 1, number, f"number {number}")
        assert await b.ask(b"r", 0, number, 8) == f"number {number}"
    await b.ask(b"s", 0, 0, "back")
    assert await a.ask(b"r", 1, 0, 4) == "back"
    await a.ask(b"f", 1, 3, "LinAlgError: no")
    assert await b.ask(b"r", 0, 3, 8) == "PeerFailedError: LinAlgError: no"
    # What comes out of turn ends the link, and says so from then on.
    await a.ask(b"s", 1, 9, "later")
    assert "out of turn" in await b.ask(b"r", 0, 4, 5)
    assert (await b.ask(b"r", 0, 5, 5)).startswith("PeerLostError: no copies with server a")


async def test_a_worker_reaches_the_servers_of_its_lease_only(make_host: MakeHost) -> None:
    a, b = await two_sides(make_host)
    other = a.peer(0, "tls") | {"server": STRANGER}
    await b.ask(b"i", KEYS[1].hex(), 1, [other, None])
    assert await b.ask(b"c", 0) == f"server {STRANGER} is none of this lease"
    await a.ask(b"i", KEYS[0].hex(), 0, [None, b.peer(1, "tls")])
    a.addresses[SERVERS[1]] = "127.0.0.1:1"
    assert "127.0.0.1" in await a.ask(b"c", 1)
    assert (await a.ask(b"s", 1, 0, "x")).endswith("it is not connected")
    assert a.kit.worker_of(a.info).state.value == "connected"


async def test_who_does_not_know_the_key_gets_no_link(make_host: MakeHost) -> None:
    a, b = await two_sides(make_host)
    address = a.listener.getsockname()

    async def try_link(**changes: Any) -> None:
        target = SessionAddress(a.info.session, KEYS[0], a.info.certificate_sha256)
        target = replace(target, **changes.pop("target", {}))

        def connect() -> None:
            sock = socket.create_connection(address)
            index = INTRODUCTION.pack(changes.get("index", 1))
            stream = prove(sock, target, 5.0, introduction=index)
            a.kit.closers.append(stream.close)

        await trio.to_thread.run_sync(connect)

    # Nobody has been introduced: the front does not know the session any more.
    assert not a.kit.host.knows_session(a.info.session)
    with pytest.raises(AuthenticationError):
        await try_link()
    await introduce([a, b])
    for wrong in (
        {"target": {"ticket": a.info.ticket}},  # the client's own, for its one connection
        {"target": {"ticket": KEYS[1]}},
        {"target": {"certificate_sha256": bytes(32)}},
        {"target": {"encryption": "off"}},
        {"index": 0},  # itself
        {"index": 2},
    ):
        with pytest.raises(AuthenticationError):
            await try_link(**wrong)
    await try_link()
    with pytest.raises(AuthenticationError):
        await try_link()  # there is one already
    await a.kit.logged("no worker 1 is due")
    assert a.kit.worker_of(a.info).state.value == "connected"


async def test_the_end_of_a_worker_ends_what_the_other_waits_for(make_host: MakeHost) -> None:
    a, b = await two_sides(make_host)
    await introduce([a, b])
    assert await a.ask(b"c", 1) == ""
    answers: list[str] = []

    async def wait() -> None:
        answers.append(await b.ask(b"r", 0, 0, 1 << 20))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await a.kit.host.kill_lease(a.kit.lease().id, "its server died")
    assert answers == ["PeerLostError: a copy between servers failed: lost a: its worker ended"]


async def test_sessions_of_one_server_expect_nobody(make_host: MakeHost) -> None:
    kit = await make_host(doors={"peers": "peer_door:serve"})
    info = await kit.open(kit.lease(), door="peers")
    client = await kit.dial(unix_address(info))
    await kit.worker_of(info).connected.wait()
    await client.ask(b"i", json.dumps([KEYS[0].hex(), 0, [None]]).encode())
    assert not kit.host.knows_session(info.session)
