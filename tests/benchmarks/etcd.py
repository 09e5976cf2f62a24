"""Commits and failover of three servers, beside three members of etcd, in turns on the same disk.

    python tests/benchmarks/etcd.py [--etcd PATH] [--rounds 3] [--seconds 3] [--failovers 5]
        [--election 300] [--csv FILE]

Both sides use mutual TLS, journals below ``--directory``, and a client in a process of its own that
asks the leader over TLS. Ours is ``consensus_server.py``: consensus without the pool around it. The
client of etcd is grpcio's (``pip install grpcio``). Each command is 64 bytes drawn anew. etcd is
Debian's ``etcd-server``. It waits ``--election`` ms to twice as long for its leader, and its
heartbeats come five times as often, as it demands: 200 is the wait of ours, 60 ms its heartbeat.
Where etcd or grpcio is missing, the program says so and ends.

A failover is timed from the signal to the leader (SIGKILL or SIGSTOP), until a survivor has
committed a write. An attempt on a member of etcd takes 0.1 s at most; ours
answers by itself when there is no leader, or another one. The next attempt follows 0.01 s later.
"""

import argparse
import collections
import importlib
import importlib.util
import json
import math
import os
import shutil
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from results import Results, add_options

consensus: Any = importlib.import_module("consensus")  # the file beside this one

NAMES = [f"server-{number}" for number in range(3)]
CLIENT = "client"
ATTEMPT_S = 0.1
PAUSE_S = 0.01
COMMAND_BYTES = 64
DOORS = "doors.json"
FAILOVER = "took"


# --- the two clients, in a process of their own -----------------------------------------------


def open_socket(port: int) -> socket.socket:
    """Connect to a server of ours, which may only just have been started again."""
    deadline = time.monotonic() + 10
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=5)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


class OurClient:
    """One TLS connection; answers come in any order, and each is one byte."""

    def __init__(self, port: int, folder: Path) -> None:
        context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(folder / f"{CLIENT}.pem")
        plain = open_socket(port)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream = context.wrap_socket(plain, server_hostname="127.0.0.1")

    def attempt(self) -> bool:
        self.stream.sendall(os.urandom(COMMAND_BYTES))
        return self.stream.recv(1) == b"\x01"

    def load(self, in_flight: int, seconds: float) -> list[float]:
        latencies = list[float]()
        began: collections.deque[float] = collections.deque()
        end = time.monotonic() + seconds
        self.stream.sendall(os.urandom(COMMAND_BYTES * in_flight))
        began.extend([time.monotonic()] * in_flight)
        while began:
            answers = self.stream.recv(4096)
            now = time.monotonic()
            assert answers == b"\x01" * len(answers) != b"", answers
            latencies += [now - began.popleft() for _ in answers]
            if now < end:
                self.stream.sendall(os.urandom(COMMAND_BYTES * len(answers)))
                began.extend([now] * len(answers))
        return latencies


class EtcdClient:
    """One gRPC channel; requests and answers are protobuf, written by hand."""

    PUT = b"\x0a\x03key\x12" + bytes([COMMAND_BYTES])

    def __init__(self, port: int, folder: Path) -> None:
        import grpc  # pyright: ignore[reportMissingImports, reportMissingModuleSource]

        library: Any = grpc
        pem = (folder / f"{CLIENT}.pem").read_bytes()
        credentials = library.ssl_channel_credentials(
            (folder / "ca.pem").read_bytes(), private_key=pem, certificate_chain=pem
        )
        channel = library.secure_channel(f"127.0.0.1:{port}", credentials)
        library.channel_ready_future(channel).result(timeout=10)
        self.errors: Any = library.RpcError
        self.put: Any = channel.unary_unary("/etcdserverpb.KV/Put")
        self.status: Any = channel.unary_unary("/etcdserverpb.Maintenance/Status")

    def attempt(self) -> bool:
        try:
            self.put(self.PUT + os.urandom(COMMAND_BYTES), timeout=ATTEMPT_S)
        except self.errors:
            return False
        return True

    def load(self, in_flight: int, seconds: float) -> list[float]:
        latencies = list[float]()
        end = time.monotonic() + seconds
        if in_flight == 1:
            while (began := time.monotonic()) < end:
                self.put(self.PUT + os.urandom(COMMAND_BYTES), timeout=5)
                latencies.append(time.monotonic() - began)
            return latencies
        left = threading.Semaphore(0)

        def send() -> None:
            began = time.monotonic()

            def done(call: Any) -> None:
                call.result()
                latencies.append(time.monotonic() - began)
                if time.monotonic() < end:
                    send()
                else:
                    left.release()

            command = self.PUT + os.urandom(COMMAND_BYTES)
            self.put.future(command, timeout=5).add_done_callback(done)

        for _ in range(in_flight):
            send()
        for _ in range(in_flight):
            left.acquire()
        return latencies

    def leads(self) -> bool:
        """Tell whether the member asked is the leader: its id is in the header of its answer."""
        fields = dict(protobuf(self.status(b"", timeout=2)))
        member = dict(protobuf(fields[1]))[2]
        return fields.get(4) == member


def protobuf(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a message: numbers, and the bytes of nested messages."""
    position = 0

    def number() -> int:
        nonlocal position
        value, shift = 0, 0
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while position < len(data):
        tag = number()
        if tag & 7 == 0:
            yield tag >> 3, number()
        else:
            length = number()
            yield tag >> 3, data[position : position + length]
            position += length


def serve_client(side: str, ports: list[int], folder: Path) -> None:
    """Obey JSON lines: connect, load, the first write after a failure, the leader's ports."""
    make: Callable[[int, Path], Any] = OurClient if side == "ours" else EtcdClient
    clients: dict[int, Any] = {}
    for line in sys.stdin:
        request = json.loads(line)
        answer: object = None
        match request["do"]:
            case "connect":
                clients = {port: make(port, folder) for port in ports}
            case "load":
                client = clients[request["port"]]
                answer = client.load(request["in_flight"], request["seconds"])
            case "leads":
                answer = [port for port in ports if clients[port].leads()]
            case _:
                answer = first_write([clients[port] for port in request["ports"]])
        print(json.dumps(answer), flush=True)


def first_write(clients: list[Any]) -> float:
    """Return the instant at which one of ``clients`` has committed a write."""
    found: list[float] = []

    def attempts(client: Any) -> None:
        while not found:
            if client.attempt():
                found.append(time.monotonic())
            time.sleep(PAUSE_S)

    threads = [threading.Thread(target=attempts, args=[client]) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return min(found)


class Client:
    """The process of one client."""

    def __init__(self, side: str, ports: list[int], folder: Path) -> None:
        words = [sys.executable, __file__, "--client", side, json.dumps(ports), str(folder)]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def do(self, **request: object) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


# --- the two sides ----------------------------------------------------------------------------


class Ours:
    """Three servers of ours, with doors for the client."""

    side = "ours"

    def __init__(self, folder: Path) -> None:
        self.doors: dict[str, int] = {name: consensus.free_port() for name in NAMES}
        (folder / DOORS).write_text(json.dumps(self.doors))
        self.cluster = consensus.Cluster("ours", 3, folder, more=[CLIENT])
        self.cluster.leader()
        self.client = Client(self.side, list(self.doors.values()), folder)
        self.connect()

    def connect(self) -> None:
        self.client.do(do="connect")

    def leader(self) -> str:
        return self.cluster.leader()

    def process(self, name: str) -> subprocess.Popen[Any]:
        return self.cluster.processes[name].process

    def restart(self, name: str) -> None:
        self.cluster.processes[name] = self.cluster.start(name)

    def stop(self) -> None:
        self.client.process.kill()
        self.cluster.stop()


class Etcd:
    """Three members of etcd."""

    side = "etcd"

    def __init__(self, folder: Path, program: str, election_ms: int) -> None:
        self.election_ms = election_ms
        consensus.make_certificates([*NAMES, CLIENT], folder)
        self.folder, self.program = folder, program
        self.doors: dict[str, int] = {name: consensus.free_port() for name in NAMES}
        self.peers: dict[str, int] = {name: consensus.free_port() for name in NAMES}
        self.processes: dict[str, subprocess.Popen[Any]] = {}
        for name in NAMES:
            self.restart(name)
        self.client = Client(self.side, list(self.doors.values()), folder)
        self.connect()

    def connect(self) -> None:
        self.client.do(do="connect")

    def restart(self, name: str) -> None:
        peer, door = (f"https://127.0.0.1:{book[name]}" for book in (self.peers, self.doors))
        pem, ca = str(self.folder / f"{name}.pem"), str(self.folder / "ca.pem")
        members = ",".join(f"{n}=https://127.0.0.1:{port}" for n, port in self.peers.items())
        words = [self.program, "--name", name, "--data-dir", str(self.folder / name)]
        words += ["--listen-client-urls", door, "--advertise-client-urls", door]
        words += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        words += ["--initial-cluster", members, "--initial-cluster-state", "new"]
        words += ["--heartbeat-interval", str(self.election_ms // 5)]
        words += ["--election-timeout", str(self.election_ms)]
        for kind in ("", "peer-"):
            words += [f"--{kind}cert-file", pem, f"--{kind}key-file", pem]
            words += [f"--{kind}trusted-ca-file", ca, f"--{kind}client-cert-auth"]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(words, stdout=log, stderr=log)

    def leader(self) -> str:
        names = {port: name for name, port in self.doors.items()}
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            leading = self.client.do(do="leads")
            if len(leading) == 1:
                return names[leading[0]]
            time.sleep(0.1)
        raise TimeoutError("etcd has no leader")

    def process(self, name: str) -> subprocess.Popen[Any]:
        return self.processes[name]

    def stop(self) -> None:
        self.client.process.kill()
        for process in self.processes.values():
            process.kill()
            process.wait()


Side = Ours | Etcd
Found = dict[tuple[str, str], dict[str, list[float]]]
"""Figures of one case and metric, of both sides."""


def note(found: Found, case: str, metric: str, side: str, figure: float) -> None:
    found.setdefault((case, metric), {}).setdefault(side, []).append(figure)


def measure_load(side: Side, seconds: float, found: Found) -> None:
    port = side.doors[side.leader()]
    for in_flight in (1, 64):
        latencies = side.client.do(do="load", port=port, in_flight=in_flight, seconds=seconds)
        rate, p50 = len(latencies) / seconds, 1000 * statistics.median(latencies)
        p99 = 1000 * statistics.quantiles(latencies, n=100)[98]
        row = f"{side.side:4} {in_flight:3} in flight {rate:8.0f}/s  p50 {p50:.2f} ms"
        print(f"{row}  p99 {p99:.2f} ms", flush=True)
        case = f"commits of an outside client, 3 voters, {in_flight} in flight"
        for metric, figure in (("rate", rate), ("p50", p50), ("p99", p99)):
            note(found, case, metric, side.side, figure)


def measure_failover(side: Side, number: signal.Signals, found: Found) -> None:
    leader = side.leader()
    time.sleep(0.5)
    survivors = [port for name, port in side.doors.items() if name != leader]
    process, began = side.process(leader), time.monotonic()
    process.send_signal(number)
    took_s = side.client.do(do="first write", ports=survivors) - began
    print(f"{side.side:4} {number.name} of the leader: {took_s:.3f} s", flush=True)
    note(found, f"next commit after {number.name} of the leader", FAILOVER, side.side, took_s)
    if number is signal.SIGSTOP:
        process.send_signal(signal.SIGCONT)
    else:
        process.wait()
        side.restart(leader)
    time.sleep(1.5)
    side.connect()


def report(found: Found, results: Results, election_ms: int) -> None:
    for (case, metric), sides in found.items():
        both = [sides.get(side) or [float("nan")] for side in ("ours", "etcd")]
        beside, unit = "beside etcd", {"rate": "1/s"}.get(metric, "ms")
        figures = {metric: statistics.median}
        if metric == FAILOVER:
            beside, unit = f"beside etcd with elections of {election_ms} ms", "s"
            figures = {"p50": statistics.median, "p99": p99}
        for name, of in figures.items():
            ours, etcd = map(of, both)
            print(f"{case}, {name}: ours {ours:.4g} {unit}, etcd {etcd:.4g} {unit}", flush=True)
            results.add(f"{case}, {beside}", name, ours, unit, native=etcd)


def p99(figures: list[float]) -> float:
    """Return the one that a hundredth exceed: the worst of fewer than a hundred."""
    return sorted(figures)[math.ceil(0.99 * len(figures)) - 1]


def main() -> None:
    if sys.argv[1:2] == ["--client"]:
        serve_client(sys.argv[2], json.loads(sys.argv[3]), Path(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--etcd", default=shutil.which("etcd") or "", help="the program")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each load")
    parser.add_argument("--failovers", type=int, default=5, help="of each signal")
    parser.add_argument("--election", type=int, default=300, help="etcd's election timeout, ms")
    parser.add_argument("--directory", type=Path, help="where the journals go")
    add_options(parser)
    options = parser.parse_args()
    if not options.etcd:
        raise SystemExit("etcd is not installed: apt-get install etcd-server, or say --etcd PATH")
    if importlib.util.find_spec("grpc") is None:
        raise SystemExit("the client of etcd needs grpcio: pip install grpcio")
    results, found = Results.of("etcd.py", options), Found()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        folders = [Path(name) / side for side in ("ours", "etcd")]
        for folder in folders:
            folder.mkdir()
        sides: list[Side] = [Ours(folders[0])]
        try:
            sides.append(Etcd(folders[1], options.etcd, options.election))
            for number in range(options.rounds):
                for side in sides if number % 2 == 0 else sides[::-1]:
                    measure_load(side, options.seconds, found)
            for kind in (signal.SIGKILL, signal.SIGSTOP):
                for number in range(options.failovers):
                    for side in sides if number % 2 == 0 else sides[::-1]:
                        measure_failover(side, kind, found)
        finally:
            for side in sides:
                side.stop()
    report(found, results, options.election)
    print("load averages: " + " ".join(f"{load:.1f}" for load in os.getloadavg()), flush=True)


if __name__ == "__main__":
    main()
