"""One server process of the benchmarks of consensus: ours, or bare pysyncobj with its defaults.

It obeys JSON lines on its standard input, one answer each. The client runs inside the process that
it is asked in, so the time of a commit holds no other hop than those between the servers.
"""

import json
import logging
import math
import os
import random
import socket
import ssl
import statistics
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import trio

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks.scale import big_state

from gpupool.consensus.driver import RaftDriver
from gpupool.consensus.storage.store import bootstrap, open_storage
from gpupool.pool.model.commands import Command, EndLease, FreeLease, Grant, wrap
from gpupool.pool.model.ids import Incarnation, LeaseId, Plain, RequestId, ServerId, TokenId
from gpupool.pool.model.state import Partition, PoolState, Request
from gpupool.pool.ports import Committed, Outcome, PeerEvents, Role, StateMachine
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.remoting.protocol.addresses import Address
from gpupool.remoting.transport.link_stream import LinkStream
from gpupool.remoting.transport.peer_transport import PeerTransport

LENGTH = struct.Struct("<I")
COMMAND_BYTES = 64


class Counter:
    """The cheapest possible state machine, so that the measurement is of consensus."""

    def __init__(self) -> None:
        self.count = 0

    def apply(self, index: int, command: Plain) -> Plain:
        self.count += 1
        return self.count

    def snapshot(self) -> Plain:
        return self.count

    def restore(self, snapshot: Plain) -> None:
        assert isinstance(snapshot, int)
        self.count = snapshot


class SystemTime:
    def monotonic(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


class Links:
    """The product's links over one mutual TLS connection per pair, with the benchmark's keys."""

    def __init__(self, name: str, ports: dict[str, int], directory: Path) -> None:
        ca = str(directory / "ca.pem")
        self.server_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=ca)
        self.server_context.verify_mode = ssl.CERT_REQUIRED
        self.server_context.num_tickets = 0
        self.client_context = ssl.create_default_context(cafile=ca)
        for context in (self.server_context, self.client_context):
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.load_cert_chain(directory / f"{name}.pem")
        identity: Any = SimpleNamespace(server=ServerId(name))
        contexts: Any = SimpleNamespace()  # nobody measures the way to another server here
        self.transport = PeerTransport(
            identity,
            clock=SystemTime(),
            rng=random.Random(),
            address_of=lambda peer: f"127.0.0.1:{ports[peer]}",
            log=logging.getLogger("links"),
            dial=self._dial,
            contexts=contexts,
        )

    async def run(self, events: PeerEvents, listener: socket.socket) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.transport.run, events)
            stream = trio.SocketListener(trio.socket.from_stdlib_socket(listener))
            await trio.serve_listeners(self._accept, [stream])

    async def _accept(self, tcp: trio.SocketStream) -> None:
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = LinkStream.accepted(tcp, self.server_context)
        try:
            await stream.do_handshake()
        except (OSError, trio.BrokenResourceError):
            await trio.aclose_forcefully(stream)
            return
        names = [value for kind, value in stream.getpeercert()["subjectAltName"] if kind == "DNS"]
        await self.transport.accept(stream, ServerId(names[0]))

    async def _dial(self, peer: ServerId, address: Address) -> trio.abc.Stream:
        tcp = await trio.open_tcp_stream(address.host, address.port)
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = LinkStream.dialled(tcp, self.client_context, peer)
        await stream.do_handshake()
        return stream


# --- one server process ----------------------------------------------------------------------


async def serve(name: str, ports: dict[str, int], directory: Path) -> None:
    """Run one server of ours."""
    new = not (directory / name).exists()
    storage = open_storage(directory / name, create=new)
    if new and name == min(ports):
        bootstrap(storage, ServerId(name))
    links = Links(name, ports, directory)
    machine = machine_of(directory)
    replicated_log = RaftDriver(
        ServerId(name),
        storage=storage,
        machine=machine,
        clock=SystemTime(),
        randomness=random.Random(),
        links=links.transport,
    )
    replicated_log.set_servers([ServerId(server) for server in ports])
    replicated_log.reconcile_voters([ServerId(server) for server in ports])
    listener = socket.create_server(("127.0.0.1", ports[name]))
    async with trio.open_nursery() as nursery:
        await nursery.start(replicated_log.run)
        nursery.start_soon(links.run, replicated_log, listener)
        if (doors := directory / "doors.json").exists():
            door = socket.create_server(("127.0.0.1", json.loads(doors.read_text())[name]))
            stream = trio.SocketListener(trio.socket.from_stdlib_socket(door))
            handle = Door(replicated_log, links.server_context).converse
            nursery.start_soon(trio.serve_listeners, handle, [stream])
        await obey(replicated_log, machine)
        nursery.cancel_scope.cancel()


class Door:
    """Commits the 64 bytes of outside clients, for ``etcd.py``; one byte answers each command."""

    def __init__(self, replicated_log: RaftDriver, context: ssl.SSLContext) -> None:
        self.replicated_log, self.context = replicated_log, context

    async def converse(self, tcp: trio.SocketStream) -> None:
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = LinkStream.accepted(tcp, self.context)
        answers, more, in_flight = bytearray(), trio.Event(), 0

        def decided(outcome: Outcome) -> None:
            nonlocal in_flight
            in_flight -= 1
            answers.append(isinstance(outcome, Committed))
            if not in_flight and stream.send_now(bytes(answers)):
                answers.clear()
            if answers or stream.has_rest:
                more.set()

        async def write() -> None:
            nonlocal more
            while True:
                await more.wait()
                more = trio.Event()
                data = bytes(answers)
                answers.clear()
                await stream.send_all(data)

        try:
            await stream.do_handshake()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(write)
                buffer = b""
                while data := await stream.receive_some(262_144):
                    buffer += data
                    while len(buffer) >= COMMAND_BYTES:
                        in_flight += 1
                        self.replicated_log.submit(buffer[:COMMAND_BYTES], 5, decided)
                        buffer = buffer[COMMAND_BYTES:]
                nursery.cancel_scope.cancel()
        except* (OSError, trio.BrokenResourceError):
            pass
        await trio.aclose_forcefully(stream)


async def obey(replicated_log: RaftDriver, machine: StateMachine) -> None:
    stdin = trio.lowlevel.FdStream(os.dup(0))
    buffer = b""
    async for data in stdin:
        buffer += data
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            answer = await execute(replicated_log, machine, json.loads(line))
            print(json.dumps(answer), flush=True)


async def execute(
    replicated_log: RaftDriver, machine: StateMachine, request: dict[str, Any]
) -> object:
    match request["do"]:
        case "health":
            health = replicated_log.health()
            cpu = time.process_time()
            return [health.role is Role.LEADER, list(health.voters), health.leader, cpu]
        case "load":
            return await load(replicated_log, request["in_flight"], request["seconds"])
        case "commits":
            await commit(replicated_log, request["count"], request["in_flight"])
            return replicated_log.health().commit_index
        case "grants":
            assert isinstance(machine, PoolMachine)
            return await grant(
                replicated_log, machine.state, request["in_flight"], request["seconds"]
            )
        case "applied":
            return replicated_log.health().applied_index
        case "count":
            assert isinstance(machine, Counter)
            return machine.count if await replicated_log.barrier(timeout_s=10) else None
        case "journal":
            return replicated_log.node.storage.journal.bytes_since_rewrite
        case "first_write":
            await commit(replicated_log, 1, 1)
            return time.monotonic()
        case other:
            raise ValueError(other)


async def commit(replicated_log: RaftDriver, count: int, in_flight: int) -> None:
    """Commit so many commands."""
    left = iter(range(count))

    async def client() -> None:
        for _ in left:
            outcome = await replicated_log.propose(["payload"], timeout_s=5)
            while not isinstance(outcome, Committed):
                await trio.sleep(0.02)  # no leader yet
                outcome = await replicated_log.propose(["payload"], timeout_s=5)

    async with trio.open_nursery() as nursery:
        for _ in range(in_flight):
            nursery.start_soon(client)


async def load(replicated_log: RaftDriver, in_flight: int, seconds: float) -> list[float]:
    latencies: list[float] = []
    payload = os.urandom(COMMAND_BYTES)
    end = time.monotonic() + seconds

    async def client() -> None:
        while (began := time.monotonic()) < end:
            outcome = await replicated_log.propose(payload, timeout_s=5)
            assert isinstance(outcome, Committed), outcome
            latencies.append(time.monotonic() - began)

    async with trio.open_nursery() as nursery:
        for _ in range(in_flight):
            nursery.start_soon(client)
    return summary(latencies, seconds)


async def grant(
    replicated_log: RaftDriver, state: PoolState, in_flight: int, seconds: float
) -> list[float]:
    """Grant, end and free leases, as the servers of a pool do; return the summary of the grants."""
    latencies: list[float] = []
    journal = replicated_log.node.storage.journal
    written, granted_before = journal.bytes_since_rewrite, time.monotonic()
    end = granted_before + seconds

    async def client(number: int) -> None:
        for cycle in cycles(state, number):
            began = time.monotonic()
            if began >= end:
                return
            lease: LeaseId | None = None
            for step in cycle:
                outcome = await replicated_log.propose(sealed(step(lease)), timeout_s=5)
                assert isinstance(outcome, Committed), outcome
                lease = lease_of(outcome.result)
                if step is cycle[0]:
                    latencies.append(time.monotonic() - began)

    async with trio.open_nursery() as nursery:
        for number in range(in_flight):
            nursery.start_soon(client, number)
    written = journal.bytes_since_rewrite - written
    return [*summary(latencies, seconds), written / len(latencies)]


def machine_of(directory: Path) -> Any:
    """Return the state machine of a run: a counter, or the table of a pool with 64 GPUs."""
    return PoolMachine(big_state(8)) if (directory / "table").exists() else Counter()


def sealed(command: Command) -> Plain:
    return wrap(command, at_ms=time.time_ns() // 1_000_000, ttl_ms=10_000)


def lease_of(result: Plain) -> LeaseId:
    assert isinstance(result, dict) and result["ok"] is True, result
    lease = result["lease"]
    return LeaseId(lease if isinstance(lease, int) else 0)


Step = Callable[[LeaseId | None], Command]


def cycles(state: PoolState, client: int) -> Iterator[tuple[Step, Step, Step]]:
    """Yield grant, end and free of one lease after the other: 1 MiB on the client's own GPU."""
    server = list(state.servers.values())[client % len(state.servers)]
    gpu = list(server.gpus)[client // len(state.servers) % len(server.gpus)]
    while True:
        key = os.urandom(16)
        made = Grant(
            request=Request(id=RequestId(key), count=1, memory=1 << 20),
            user="user",
            token=TokenId("a" * 12),
            ticket_hash=bytes(32),
            partitions=(Partition(server.id, gpu, 1 << 20),),
            incarnations={server.id: server.incarnation},
        )
        held: list[LeaseId] = []

        def end(lease: LeaseId | None, held: list[LeaseId] = held) -> Command:
            assert lease is not None
            held.append(lease)
            return EndLease(lease, "released")

        def free(_lease: LeaseId | None, held: list[LeaseId] = held) -> Command:
            return FreeLease(held[0], server.id, Incarnation(1))

        yield lambda _lease, made=made: made, end, free


def summary(latencies: list[float], seconds: float) -> list[float]:
    """Return commits per second, and median and 99th percentile in milliseconds."""
    if len(latencies) < 2:
        return [len(latencies) / seconds, math.nan, math.nan]
    cuts = statistics.quantiles(latencies, n=100)
    return [len(latencies) / seconds, 1000 * cuts[49], 1000 * cuts[98]]


# --- bare pysyncobj --------------------------------------------------------------------------


def serve_bare(name: str, ports: dict[str, int], directory: Path) -> None:
    """Run one pysyncobj node with its defaults: no journal, no encryption, a tick each 50 ms."""
    import pysyncobj

    library: Any = pysyncobj
    machine = machine_of(directory)

    class Bare(library.SyncObj):  # pyright: ignore[reportUntypedBaseClass]
        applied = 0

        @library.replicated
        def put(self, command: Any) -> Any:
            self.applied += 1
            return machine.apply(self.applied, command)

    addresses = {server: f"127.0.0.1:{port}" for server, port in ports.items()}
    me = addresses.pop(name)
    bare: Any = Bare(me, list(addresses.values()))
    for line in sys.stdin:
        print(json.dumps(execute_bare(bare, machine, list(ports), json.loads(line))), flush=True)
    os._exit(0)


def execute_bare(bare: Any, machine: Any, names: list[str], request: dict[str, Any]) -> object:
    match request["do"]:
        case "health":
            status = bare.getStatus()
            return [bare.selfNode == status["leader"], names, None, time.process_time()]
        case "load":
            payload = os.urandom(COMMAND_BYTES)
            return load_bare(bare, lambda _: iter(lambda: [payload], None), request)
        case "commits":
            left = iter(range(request["count"]))
            request["seconds"] = 600.0
            load_bare(bare, lambda _: ([["payload"]] for _ in left), request)
            return bare.applied
        case "grants":
            return [*load_bare(bare, lambda n: bare_cycles(machine.state, n), request), 0.0]
        case "applied":
            return bare.applied
        case "first_write":
            while True:
                try:
                    bare.put("payload", sync=True, timeout=0.2)
                except Exception:  # noqa: BLE001 - whatever it says, the next attempt follows
                    continue
                return time.monotonic()
        case other:
            raise ValueError(other)


def bare_cycles(state: PoolState, client: int) -> Iterator[list[Any]]:
    def lazily(step: Step) -> Callable[[LeaseId | None], Plain]:
        return lambda lease: sealed(step(lease))

    for cycle in cycles(state, client):
        yield [lazily(step) for step in cycle]


def load_bare(
    bare: Any, works: Callable[[int], Iterator[list[Any]]], request: dict[str, Any]
) -> list[float]:
    """Let clients do one work after the other: its steps in turn, timing the first of them."""
    latencies: list[float] = []
    end = time.monotonic() + request["seconds"]
    over = threading.Semaphore(0)

    def next_work(source: Iterator[list[Any]]) -> None:
        work = next(source, None)
        if work is None or time.monotonic() >= end:
            over.release()
            return
        next_step(source, work, 0, None, time.monotonic())

    def next_step(
        source: Iterator[list[Any]], work: list[Any], place: int, lease: Any, began: float
    ) -> None:
        if place == len(work):
            next_work(source)
            return
        step = work[place]

        def done(result: Any, _error: int) -> None:
            if place == 0:
                latencies.append(time.monotonic() - began)
            after = lease_of(result) if callable(step) else None
            next_step(source, work, place + 1, after, began)

        bare.put(step(lease) if callable(step) else step, callback=done)

    for number in range(request["in_flight"]):
        next_work(works(number))
    for _ in range(request["in_flight"]):
        over.acquire(timeout=request["seconds"] + 30)
    return summary(latencies, request["seconds"])


def main() -> None:
    mode, name, ports, directory = sys.argv[1:]
    if mode == "bare":
        serve_bare(name, json.loads(ports), Path(directory))
    else:
        trio.run(serve, name, json.loads(ports), Path(directory))


if __name__ == "__main__":
    main()
