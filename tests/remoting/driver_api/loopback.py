"""One program behind the CUDA door, with nothing else of gpupool: an agent and a worker each.

    python tests/remoting/driver_api/loopback.py --library DIR [--driver DIR] [--tcp] -- PROGRAM...

A worker process is started for each process of the program that asks for a session; with ``--tls``
it encrypts, by a certificate of its own, as real ones do for other machines. ``--driver`` is put on
the workers' loader path: a folder with a fake libcuda.so.1; ``--bindings`` on their PYTHONPATH.
Everything runs on this machine; the program gets the shim of ``--library`` through LD_LIBRARY_PATH.
"""

import argparse
import contextlib
import importlib
import json
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PLACE = Path(__file__).resolve().relative_to(ROOT)


class CountingBudget:
    """The memory account of one process."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used: dict[int, int] = {}
        self.lock = threading.Lock()

    def reserve(self, device_index: int, nbytes: int) -> bool:
        with self.lock:
            used = self.used.get(device_index, 0)
            if used + nbytes > self.limit:
                return False
            self.used[device_index] = used + nbytes
            return True

    def release(self, device_index: int, nbytes: int) -> None:
        with self.lock:
            self.used[device_index] -= nbytes

    def usage(self, device_index: int) -> int:
        return self.used.get(device_index, 0)


def uuid_of(place: int, ordinal: int) -> str:
    """Return the name of a device of the driver without a GPU; see fake_cuda/device.c."""
    return f"GPU-fa4e0000-0000-4000-8000-00000000{place:02x}{ordinal:02x}"


def run_worker(arguments: argparse.Namespace) -> None:
    """Serve one session on an inherited listener."""
    sys.path.insert(0, str(ROOT / "src"))
    from stand_ins import (
        Counts,
        LaneListener,
        LinksInVain,
        LyingStream,
        SharingBudget,
        TappedStream,
    )

    from gpupool.remoting.devices.base import Budget, DeviceSpec
    from gpupool.remoting.devices.cuda_objects import cupy_bindings
    from gpupool.remoting.driver_api.executor import contexts, line_tls
    from gpupool.remoting.driver_api.executor.memory import address_slices
    from gpupool.remoting.driver_api.executor.modules import launcher
    from gpupool.remoting.driver_api.executor.reader import Stream
    from gpupool.remoting.driver_api.executor.serve import serve
    from gpupool.remoting.driver_api.schema.records import BASE_RECORDS
    from gpupool.remoting.protocol import handshake
    from gpupool.remoting.protocol.worker_messages import Assign
    from gpupool.remoting.transport.session_stream import PlainStream, TlsStream
    from gpupool.remoting.worker.certificate import worker_context
    from gpupool.remoting.worker.client_handshake import accept_client
    from gpupool.remoting.worker.peer_links import Links

    if arguments.old:
        contexts.RECORDS = contexts.RECORDS[:BASE_RECORDS]
    if arguments.no_launcher:
        launcher.ABI = -1
    listener = socket.socket(fileno=arguments.worker)
    secret = json.loads(sys.stdin.readline())
    session, ticket = bytes.fromhex(secret["session"]), bytes.fromhex(secret["ticket"])
    if arguments.servers > 1:
        address_slices.confine(arguments.place, arguments.servers)
    # As the real worker does while it is warm.
    importlib.import_module("cuda.bindings.driver")
    runtime, _driver = cupy_bindings.load()
    for ordinal in reversed(range(arguments.devices)):
        runtime.setDevice(ordinal)
        runtime.free(0)
    with tempfile.TemporaryDirectory(prefix="gpupool-") as name:
        context, digest = worker_context(Path(name))
    sys.stdout.write(f"warm {digest.hex() if arguments.tls else ''}\n")
    sys.stdout.flush()
    connected = threading.Event()

    def end_unused() -> None:
        sys.stdin.read()  # to its end, which is the program's
        if not connected.is_set():
            os._exit(0)

    threading.Thread(target=end_unused, daemon=True).start()
    sock, _ = listener.accept()
    connected.set()
    if arguments.verbose:
        sys.stderr.write(f"worker {arguments.place}: connected\n")
    if sock.family == socket.AF_INET:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    assign = Assign(0, session, ticket, "cuda", "", "", ())
    stream: Stream | None = None
    if arguments.tls:
        stream = line_tls.accept(sock, context.identity, ticket)
    if stream is None:
        proven = accept_client(sock, context, assign, plain=not arguments.tls)
        is_encrypted = isinstance(proven, ssl.SSLSocket)
        stream = TlsStream(proven) if is_encrypted else PlainStream(proven)
    stream.send_buffers([handshake.ACCEPTED])
    memory = arguments.memory
    specs = [
        DeviceSpec(
            index, uuid_of(arguments.place, index), "GPU", memory, emulated=False, ordinal=index
        )
        for index in range(arguments.devices)
    ]

    def log(text: str) -> None:
        if arguments.verbose:
            sys.stderr.write(f"worker: {text}\n")

    budget: Budget = CountingBudget(memory)
    if arguments.share:
        budget = SharingBudget(budget, Path(arguments.share))
    links: Links | None = LinksInVain() if arguments.links else None
    if arguments.lanes:
        links = LaneListener(listener, context, assign)
    if arguments.tap:
        stream = TappedStream(stream, Path(arguments.tap) / f"{arguments.place}-{os.getpid()}")
    if arguments.count:
        stream = Counts(stream, Path(arguments.count))
    if arguments.lie >= 0:
        stream = LyingStream(stream, arguments.lie)
    profile = os.environ.get("LOOPBACK_PROFILE")
    if profile:
        import cProfile

        cProfile.runctx(
            "serve(stream, specs, budget, log, links)",
            {
                "serve": serve,
                "stream": stream,
                "specs": specs,
                "budget": budget,
                "log": log,
                "links": links,
            },
            {},
            profile,
        )
    else:
        serve(stream, specs, budget, log, links)
    os._exit(0)


class LoopbackAgent:
    """Answers each process of the program with a separate worker."""

    def __init__(self, folder: Path, arguments: argparse.Namespace) -> None:
        self.path = str(folder / "agent.sock")
        self.folder = folder
        self.arguments = arguments
        self.workers: list[subprocess.Popen[str]] = []
        self.proxies: list[subprocess.Popen[str]] = []
        self.warm = [self.start_all()]
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            with contextlib.suppress(OSError):
                sock, _ = self.listener.accept()
                threading.Thread(target=self.answer, args=(sock,), daemon=True).start()

    def answer(self, sock: socket.socket) -> None:
        # A program that ends has not read the answer to its last line.
        with contextlib.suppress(ConnectionError), sock, sock.makefile("rwb") as lines:
            for line in lines:
                request = json.loads(line)
                if request["op"] == "broken":
                    lines.write(b'{"ok":true}\n')
                    lines.flush()
                    continue
                if request["op"] == "nvml":
                    lines.write(json.dumps(self.described()).encode() + b"\n")
                    lines.flush()
                    continue
                if request["op"] != "session":
                    reason = f"unknown request {request['op']!r}"
                    lines.write(json.dumps({"ok": False, "what": reason}).encode() + b"\n")
                    lines.flush()
                    continue
                found = self.warm.pop() if self.warm else self.start_all()
                reply = {"ok": True, "lease": "0000", "notices": [], "sessions": found}
                lines.write(json.dumps(reply).encode() + b"\n")
                lines.flush()

    def described(self) -> dict[str, object]:
        """Return the data of NVML's library, as ``gpupool run`` gives it."""
        memory, count = self.arguments.memory, self.arguments.devices
        found = [
            (f"00000000:{0x1B + 0x10 * at:02X}:00.0", "9.0", "580.65.06") for at in range(count)
        ]
        if not self.arguments.driver:
            # XLA ends a program whose devices NVML does not find at their places on the bus.
            query = ["nvidia-smi", "--query-gpu=pci.bus_id,compute_cap,driver_version"]
            said = subprocess.run(
                [*query, "--format=csv,noheader"], capture_output=True, text=True, check=True
            )
            rows = [line.split(", ") for line in said.stdout.splitlines()]
            found = [(row[0], row[1], row[2]) for row in rows]
        devices: list[dict[str, object]] = [
            {
                "server": f"loopback{place}",
                "name": "GPU",
                "uuid": uuid_of(place, at),
                "memory": memory,
                "used": 0,
                "capability": found[(place * count + at) % len(found)][1],
                "bus_id": found[(place * count + at) % len(found)][0],
            }
            for place in range(self.arguments.servers)
            for at in range(count)
        ]
        answer: dict[str, object] = {"ok": True, "lease": "0000", "processes": []}
        return answer | {"driver": found[0][2], "cuda": "13.0", "devices": devices}

    def start_all(self) -> list[dict[str, object]]:
        """Start a worker for each server."""
        return [self.start(place) for place in range(self.arguments.servers)]

    def start(self, place: int) -> dict[str, object]:
        """Start a worker of one server and return how to reach it."""
        session, ticket = secrets.token_hex(16), secrets.token_hex(32)
        path, address = None, ["127.0.0.1", 0]
        if self.arguments.tcp:
            listener = socket.create_server(("127.0.0.1", 0))
            address = ["127.0.0.1", self.through(listener.getsockname()[1])]
        else:
            listener = socket.socket(socket.AF_UNIX)
            path = str(self.folder / f"data{len(self.workers)}.sock")
            listener.bind(path)
            listener.listen()
        os.set_inheritable(listener.fileno(), True)
        environment = dict(os.environ) | {"FAKE_CUDA_SERVER": str(place)}
        environment.pop("CUDA_VISIBLE_DEVICES", None)  # the program's
        count = self.arguments.devices
        if self.arguments.servers > 1 and not self.arguments.driver:
            own = range(place * count, (place + 1) * count)
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, own))
        if self.arguments.driver:
            environment["LD_LIBRARY_PATH"] = self.arguments.driver
        if self.arguments.bindings:
            environment["PYTHONPATH"] = self.arguments.bindings
        command = [
            *(sys.executable, str(Path(self.arguments.root) / PLACE)),
            *("--worker", str(listener.fileno())),
            *("--memory", str(self.arguments.memory), "--devices", str(self.arguments.devices)),
            *("--place", str(place), "--servers", str(self.arguments.servers)),
            *(["--verbose"] if self.arguments.verbose else []),
            *(["--share", self.arguments.share] if self.arguments.share else []),
            *(["--links"] if self.arguments.links else []),
            *(["--lanes"] if self.arguments.lanes else []),
            *(["--tap", self.arguments.tap] if self.arguments.tap else []),
            *(["--count", self.arguments.count] if self.arguments.count else []),
            *(["--old"] if self.arguments.old else []),
            *(["--no-launcher"] if self.arguments.no_launcher else []),
            *(["--tls"] if self.arguments.tls else []),
            *("--lie", str(self.arguments.lie)),
        ]
        worker = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            pass_fds=[listener.fileno()],
        )
        self.workers.append(worker)
        assert worker.stdin is not None
        worker.stdin.write(json.dumps({"session": session, "ticket": ticket}) + "\n")
        worker.stdin.flush()
        listener.close()
        assert worker.stdout is not None
        said, _, digest = worker.stdout.readline().strip().partition(" ")
        if said != "warm":
            raise RuntimeError("the worker did not start")
        return {
            "server": f"loopback{place}",
            "pid": worker.pid,
            "address": address,
            "unix": path,
            "session": session,
            "ticket": ticket,
            "encryption": "tls" if self.arguments.tls else "off",
            "certificate_sha256": digest,
            "devices": [{"uuid": uuid_of(place, at)} for at in range(self.arguments.devices)],
        }

    def through(self, port: int) -> int:
        """Return a port from which a proxy passes a connection on with a delay, if one is asked."""
        if not self.arguments.peer:
            return port
        command = [self.arguments.peer, "proxy", str(port), str(self.arguments.delay_us)]
        proxy = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.proxies.append(proxy)
        assert proxy.stdout is not None
        return int(proxy.stdout.readline())

    def close(self) -> None:
        """End the workers that are left."""
        for proxy in self.proxies:
            proxy.kill()
            proxy.wait()
        for worker in self.workers:
            assert worker.stdin is not None
            worker.stdin.close()
            try:
                worker.wait(10)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", default="")
    parser.add_argument("--driver", default="")
    parser.add_argument("--bindings", default="", help="a folder with stand-ins for CuPy and so on")
    parser.add_argument("--root", default=str(ROOT), help="the checkout whose worker serves")
    parser.add_argument("--memory", type=int, default=8 << 30)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--servers", type=int, default=1, help="of the lease")
    parser.add_argument("--place", type=int, default=0)
    parser.add_argument("--tcp", action="store_true")
    parser.add_argument("--tls", action="store_true", help="with --tcp")
    parser.add_argument("--no-launcher", action="store_true", help="launch by Python alone")
    parser.add_argument("--tap", default="", help="a folder for the bytes that workers receive")
    parser.add_argument("--count", default="", help="a file for what the worker did in Python")
    parser.add_argument("--share", default="", help="a folder for what processes share")
    parser.add_argument("--lie", type=int, default=-1, help="which false answers workers give")
    parser.add_argument("--links", action="store_true", help="between servers, which break")
    parser.add_argument("--lanes", action="store_true", help="large copies by several connections")
    parser.add_argument("--peer", default="", help="benchmarks/cuda_programs/peer.c, compiled")
    parser.add_argument("--delay-us", type=int, default=0, help="round trip that it adds")
    parser.add_argument("--old", action="store_true", help="workers know the first records only")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--worker", type=int, default=-1)
    parser.add_argument("program", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    if arguments.worker >= 0:
        run_worker(arguments)
    with tempfile.TemporaryDirectory(prefix="gpupool-") as name:
        agent = LoopbackAgent(Path(name), arguments)
        # A program may have its last server ended.
        signal.signal(signal.SIGUSR1, lambda _number, _frame: agent.workers[-1].kill())
        environment = dict(os.environ)
        older = environment.get("LD_LIBRARY_PATH", "")
        environment["LD_LIBRARY_PATH"] = ":".join(
            part for part in (arguments.library, older) if part
        )
        environment["GPUPOOL_AGENT"] = agent.path
        if arguments.verbose:
            environment["GPUPOOL_VERBOSE"] = "1"
        program = arguments.program[1:] if arguments.program[:1] == ["--"] else arguments.program
        code = subprocess.run(program, env=environment, check=False).returncode
        agent.close()
    return code


if __name__ == "__main__":
    sys.exit(main())
