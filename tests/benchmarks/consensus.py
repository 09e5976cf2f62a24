"""Durable commits: latency, throughput and failover over mutual TLS, beside bare pysyncobj.

    python tests/benchmarks/consensus.py [--voters 1,3,5] [--seconds 3] [--failovers 10]

Every server is a process of its own, with a journal on the disk of ``--directory``, connected over
loopback by TLS 1.3 with certificates made for the occasion. The client runs in the leader's
process. Bare pysyncobj runs with its defaults (no journal, no encryption) in the same way.
"""

import argparse
import datetime
import ipaddress
import json
import os
import random
import signal
import socket
import ssl
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trio

from gpupool.consensus.bridge import RaftLedger
from gpupool.consensus.storage import bootstrap, open_storage
from gpupool.pool.ids import Plain, ServerId
from gpupool.pool.ports import Committed, Role

LENGTH = struct.Struct("<I")
COMMAND_BYTES = 64


class Counter:
    """The cheapest state machine there is, so that consensus is what is measured."""

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


class TlsLinks:
    """One mutual TLS connection per pair, dialled by the server with the greater name."""

    def __init__(self, name: str, ports: dict[str, int], directory: Path) -> None:
        self.name, self.ports = name, ports
        self.outgoing: dict[str, list[bytes]] = {}
        self.wake: dict[str, trio.Event] = {}
        self.ledger: RaftLedger | None = None
        ca = str(directory / "ca.pem")
        self.server_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=ca)
        self.server_context.verify_mode = ssl.CERT_REQUIRED
        self.client_context = ssl.create_default_context(cafile=ca)
        for context in (self.server_context, self.client_context):
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.load_cert_chain(directory / f"{name}.pem")

    def send(self, peer: ServerId, frame: bytes) -> bool:
        queue = self.outgoing.get(peer)
        if queue is None:
            return False
        queue += (LENGTH.pack(len(frame)), frame)
        self.wake[peer].set()
        return True

    def set_peers(self, peers: Sequence[ServerId]) -> None:
        """All servers stay connected here."""

    async def run(self, listener: socket.socket) -> None:
        async with trio.open_nursery() as nursery:
            stream = trio.SocketListener(trio.socket.from_stdlib_socket(listener))
            nursery.start_soon(trio.serve_listeners, self._accept, [stream])
            for peer in self.ports:
                if peer < self.name:
                    nursery.start_soon(self._dial, peer)

    async def _accept(self, plain: trio.SocketStream) -> None:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = trio.SSLStream(plain, self.server_context, server_side=True)
        try:
            await stream.do_handshake()
            await self._carry(stream)
        except (OSError, ssl.SSLError, trio.BrokenResourceError, trio.ClosedResourceError):
            await trio.aclose_forcefully(stream)

    async def _dial(self, peer: str) -> None:
        while True:
            try:
                plain = await trio.open_tcp_stream("127.0.0.1", self.ports[peer])
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                stream = trio.SSLStream(plain, self.client_context, server_hostname=peer)
                await stream.do_handshake()
                await self._carry(stream)
            except (OSError, ssl.SSLError, trio.BrokenResourceError, trio.ClosedResourceError):
                pass
            await trio.sleep(0.05)

    async def _carry(self, stream: Any) -> None:
        names = [value for kind, value in stream.getpeercert()["subjectAltName"] if kind == "DNS"]
        peer = ServerId(names[0])
        assert self.ledger is not None
        self.outgoing[peer] = []
        self.wake[peer] = trio.Event()
        self.ledger.connected(peer)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write, peer, stream)
                await self._read(peer, stream)
                nursery.cancel_scope.cancel()
        except* (OSError, ssl.SSLError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            del self.outgoing[peer], self.wake[peer]
            self.ledger.disconnected(peer)

    async def _write(self, peer: ServerId, stream: Any) -> None:
        while True:
            await self.wake[peer].wait()
            self.wake[peer] = trio.Event()
            queue = self.outgoing[peer]
            data = b"".join(queue)
            queue.clear()
            await stream.send_all(data)

    async def _read(self, peer: ServerId, stream: Any) -> None:
        assert self.ledger is not None
        buffer = bytearray()
        while data := await stream.receive_some(262_144):
            buffer += data
            position = 0
            while len(buffer) - position >= LENGTH.size:
                (length,) = LENGTH.unpack_from(buffer, position)
                end = position + LENGTH.size + length
                if len(buffer) < end:
                    break
                self.ledger.received(peer, bytes(buffer[position + LENGTH.size : end]))
                position = end
            del buffer[:position]


# --- one server process ----------------------------------------------------------------------


async def serve(name: str, ports: dict[str, int], directory: Path) -> None:
    """Run one server that obeys JSON lines on its standard input."""
    new = not (directory / name).exists()
    storage = open_storage(directory / name, create=new)
    if new and name == min(ports):
        bootstrap(storage, ServerId(name))
    links = TlsLinks(name, ports, directory)
    machine = Counter()
    ledger = RaftLedger(
        ServerId(name),
        storage=storage,
        machine=machine,
        clock=SystemTime(),
        randomness=random.Random(),
        links=links,
    )
    links.ledger = ledger
    ledger.set_servers([ServerId(server) for server in ports])
    ledger.reconcile_voters([ServerId(server) for server in ports])
    listener = socket.create_server(("127.0.0.1", ports[name]))
    async with trio.open_nursery() as nursery:
        await nursery.start(ledger.run)
        nursery.start_soon(links.run, listener)
        await obey(ledger, machine)
        nursery.cancel_scope.cancel()


async def obey(ledger: RaftLedger, machine: Counter) -> None:
    stdin = trio.lowlevel.FdStream(os.dup(0))
    buffer = b""
    async for data in stdin:
        buffer += data
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            answer = await execute(ledger, machine, json.loads(line))
            print(json.dumps(answer), flush=True)


async def execute(ledger: RaftLedger, machine: Counter, request: dict[str, Any]) -> object:
    match request["do"]:
        case "health":
            health = ledger.health()
            cpu = time.process_time()
            return [health.role is Role.LEADER, list(health.voters), health.leader, cpu]
        case "load":
            return await load(ledger, request["in_flight"], request["seconds"])
        case "count":
            return machine.count if await ledger.barrier(timeout_s=10) else None
        case "first_write":
            outcome = None
            while not isinstance(outcome, Committed):
                outcome = await ledger.propose(["failover"], timeout_s=5, idempotent=True)
            return time.monotonic()
        case other:
            raise ValueError(other)


async def load(ledger: RaftLedger, in_flight: int, seconds: float) -> list[float]:
    latencies: list[float] = []
    payload = os.urandom(COMMAND_BYTES)
    end = time.monotonic() + seconds

    async def client() -> None:
        while (began := time.monotonic()) < end:
            outcome = await ledger.propose(payload, timeout_s=5, idempotent=True)
            assert isinstance(outcome, Committed), outcome
            latencies.append(time.monotonic() - began)

    async with trio.open_nursery() as nursery:
        for _ in range(in_flight):
            nursery.start_soon(client)
    return summary(latencies, seconds)


def summary(latencies: list[float], seconds: float) -> list[float]:
    """Return commits per second, and median and 99th percentile in milliseconds."""
    cuts = statistics.quantiles(latencies, n=100)
    return [len(latencies) / seconds, 1000 * cuts[49], 1000 * cuts[98]]


# --- bare pysyncobj --------------------------------------------------------------------------


def serve_bare(name: str, ports: dict[str, int]) -> None:
    """Run one pysyncobj node with its defaults; the client runs in the leader's process."""
    import pysyncobj

    library: Any = pysyncobj

    class Bare(library.SyncObj):  # pyright: ignore[reportUntypedBaseClass]
        count = 0

        @library.replicated
        def put(self, _payload: bytes) -> int:
            self.count += 1
            return self.count

    addresses = {server: f"127.0.0.1:{port}" for server, port in ports.items()}
    me = addresses.pop(name)
    bare: Any = Bare(me, list(addresses.values()))
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "health":
            answer: object = [
                bare.selfNode == bare.getStatus()["leader"],
                list(ports),
                None,
                time.process_time(),
            ]
        else:
            answer = load_bare(bare, request["in_flight"], request["seconds"])
        print(json.dumps(answer), flush=True)
    os._exit(0)


def load_bare(bare: Any, in_flight: int, seconds: float) -> list[float]:
    latencies: list[float] = []
    payload = os.urandom(COMMAND_BYTES)
    end = time.monotonic() + seconds
    running = threading.Semaphore(0)

    def client() -> None:
        began = time.monotonic()
        if began >= end:
            running.release()
            return

        def done(_result: object, _error: int) -> None:
            latencies.append(time.monotonic() - began)
            client()

        bare.put(payload, callback=done)

    for _ in range(in_flight):
        client()
    for _ in range(in_flight):
        running.acquire(timeout=seconds + 30)
    return summary(latencies, seconds)


# --- the conductor ---------------------------------------------------------------------------


class Process:
    def __init__(self, mode: str, name: str, ports: dict[str, int], directory: Path) -> None:
        arguments = [sys.executable, __file__, mode, name, json.dumps(ports), str(directory)]
        self.process = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, **request: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def do(self, **request: object) -> Any:
        self.ask(**request)
        return self.answer()


class Cluster:
    def __init__(self, mode: str, voters: int, directory: Path) -> None:
        self.names = [f"server-{number}" for number in range(voters)]
        with_sockets = [socket.create_server(("127.0.0.1", 0)) for _ in self.names]
        ports = {n: s.getsockname()[1] for n, s in zip(self.names, with_sockets, strict=True)}
        for held in with_sockets:
            held.close()
        make_certificates(self.names, directory)
        self.mode, self.ports, self.directory = mode, ports, directory
        self.processes = {name: self.start(name) for name in self.names}

    def start(self, name: str) -> Process:
        return Process(self.mode, name, self.ports, self.directory)

    def leader(self) -> str:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            for name, process in self.processes.items():
                leads, voters, _, _ = process.do(do="health")
                if leads and len(voters) == len(self.names):
                    return name
            time.sleep(0.1)
        raise TimeoutError("no leader of all voters within 30 s")

    def cpu_seconds(self) -> float:
        return sum(process.do(do="health")[3] for process in self.processes.values())

    def stop(self) -> None:
        for process in self.processes.values():
            process.process.kill()
            process.process.wait()


def make_certificates(names: Sequence[str], directory: Path) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    now = datetime.datetime.now(datetime.UTC)
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "benchmark")])

    def sign(subject: x509.Name, key: Any, extension: x509.ExtensionType) -> x509.Certificate:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(ca_name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
            .sign(ca_key, hashes.SHA256())
        )

    def pem(certificate: x509.Certificate) -> bytes:
        return certificate.public_bytes(serialization.Encoding.PEM)

    ca = sign(ca_name, ca_key, x509.BasicConstraints(ca=True, path_length=None))
    (directory / "ca.pem").write_bytes(pem(ca))
    for name in names:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        loopback = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        alternative = x509.SubjectAlternativeName([x509.DNSName(name), loopback])
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        (directory / f"{name}.pem").write_bytes(private + pem(sign(subject, key, alternative)))


def measure(mode: str, voters: int, seconds: float, directory: Path) -> None:
    cluster = Cluster(mode, voters, directory)
    try:
        leader = cluster.leader()
        time.sleep(0.5)
        for in_flight in (1, 64):
            before = cluster.cpu_seconds()
            rate, median, p99 = cluster.processes[leader].do(
                do="load", in_flight=in_flight, seconds=seconds
            )
            # On a busy machine this says more than the rate does.
            cpu_us = 1e6 * (cluster.cpu_seconds() - before) / (rate * seconds)
            row = f"{mode:8} {voters} voters {in_flight:3} in flight"
            latency = f"p50 {median:7.2f} ms  p99 {p99:7.2f} ms"
            print(f"{row} {rate:9.0f}/s  {latency}  {cpu_us:6.0f} us of CPU in all", flush=True)
        if mode == "ours":
            measure_rest(cluster)
    finally:
        cluster.stop()


def measure_rest(cluster: Cluster) -> None:
    """Print what each server costs while nothing happens."""
    time.sleep(1)
    before = {name: process.do(do="health")[3] for name, process in cluster.processes.items()}
    time.sleep(5)
    shares = [
        (process.do(do="health")[3] - before[name]) / 5
        for name, process in cluster.processes.items()
    ]
    text = ", ".join(f"{100 * share:.1f} %" for share in shares)
    print(f"ours     {len(shares)} voters at rest: {text} of a core", flush=True)


def measure_failover(count: int, directory: Path) -> None:
    """Kill the leader of three, and time the first commit of either survivor."""
    times: list[float] = []
    for number in range(count):
        run = directory / f"failover-{number}"
        run.mkdir()
        cluster = Cluster("ours", 3, run)
        try:
            leader = cluster.leader()
            time.sleep(0.5 + 0.1 * random.random())
            survivors = [p for name, p in cluster.processes.items() if name != leader]
            killed = time.monotonic()
            cluster.processes[leader].process.send_signal(signal.SIGKILL)
            for survivor in survivors:
                survivor.ask(do="first_write")
            times.append(min(survivor.answer() for survivor in survivors) - killed)
        finally:
            cluster.stop()
    times.sort()
    median = statistics.median(times)
    text = f"median {median:.3f} s  max {times[-1]:.3f} s  of {count}"
    print(f"ours     3 voters failover after kill -9: {text}", flush=True)


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] in ("ours", "bare"):
        mode, name, ports, directory = sys.argv[1:]
        if mode == "bare":
            serve_bare(name, json.loads(ports))
        else:
            trio.run(serve, name, json.loads(ports), Path(directory))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--voters", default="1,3,5")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--failovers", type=int, default=10)
    parser.add_argument("--directory", type=Path, help="where the journals go")
    parser.add_argument("--no-bare", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        for voters in [int(text) for text in options.voters.split(",")]:
            for mode in ("ours",) if options.no_bare else ("ours", "bare"):
                directory = Path(name) / f"{mode}-{voters}"
                directory.mkdir()
                measure(mode, voters, options.seconds, directory)
        if options.failovers:
            measure_failover(options.failovers, Path(name))


if __name__ == "__main__":
    main()
