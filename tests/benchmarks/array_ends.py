"""The other ends of ``arrays.py``: a worker, and plain sockets, each a process of this script.

python tests/benchmarks/array_ends.py --serve|--plain unix|tcp|tls [--delay-us 0] [--gpu]
"""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import argparse
import contextlib
import importlib
import os
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np

ENDS = __file__
others_core = -1
"""The core of processes that this one starts; any without it."""
ROOT = Path(__file__).resolve().parents[2]
KIT = ROOT / "tests" / "remoting" / "array_api"
DROPIN = ROOT / "remoting" / "array_api" / "dropin"
MIB = 1 << 20
TRANSPORTS = ("unix", "tcp", "tls")
COPIES = 3
ALONE = 2000
"""Calls of the worker's own NumPy or CuPy, in each round."""
PING, INTO, INTO_NEW, OUT_OF = 1, 2, 3, 4
ORDER = struct.Struct("<IQQ")


@contextlib.contextmanager
def proxied(port: int, delay_us: int) -> Generator[int]:
    """Yield the port of a proxy that adds a delay; the given one without a delay."""
    if not delay_us:
        yield port
        return
    with tempfile.TemporaryDirectory() as name:
        source, peer = Path(__file__).with_name("peer.c"), name + "/peer"
        subprocess.run(["gcc", "-O2", "-pthread", "-o", peer, str(source)], check=True)
        words = [peer, "proxy", str(port), str(delay_us)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as proxy:
            assert proxy.stdout is not None
            yield int(proxy.stdout.readline())
            proxy.kill()


def serve(transport: str, delay_us: int, *, gpu: bool) -> None:
    """Serve one device over ``transport`` until standard input ends."""
    sys.path[:0] = [str(KIT), str(ROOT / "src")]
    door_kit: Any = importlib.import_module("door_kit")
    memory = 8 << 30
    devices = door_kit.emulated(1, memory)
    if gpu:
        from gpupool.remoting.devices.base import DeviceSpec

        runtime: Any = importlib.import_module("cupy").cuda.runtime
        name = runtime.getDeviceProperties(0)["name"].decode()
        devices = [DeviceSpec(0, "GPU-0", name, memory, emulated=False, ordinal=0)]
    with contextlib.ExitStack() as stack:
        agent = stack.enter_context(door_kit.pool(transport=transport, devices=devices))
        if delay_us:
            server = agent.servers[0]
            port = server.listener.getsockname()[1]
            server.proxy = stack.enter_context(proxied(port, delay_us))
        took = timed_calls()
        print(agent.path, flush=True)
        xp: Any = importlib.import_module("cupy") if gpu else np
        operations = importlib.import_module("arrays").operations(xp)
        for line in sys.stdin:
            if name := line.rstrip("\n"):
                print(timed_alone(xp, operations[name]), flush=True)
                continue
            us = took[0] / max(1, took[1]) / 1e3
            took[:] = 0, 0  # before the answer, after which calls come
            print(us, flush=True)


def timed_alone(xp: Any, operation: Callable[[], Any]) -> float:
    """Return the mean us of calls of the worker's own NumPy or CuPy."""
    began = time.perf_counter()
    for _ in range(ALONE):
        operation()
    us = (time.perf_counter() - began) / ALONE * 1e6
    if xp is not np:
        xp.cuda.Device().synchronize()
    return us


def timed_calls() -> list[int]:
    """Time the executor's calls that nobody waits for; return a list of their ns and count."""
    executor: Any = importlib.import_module("gpupool.remoting.array_api.server.array_executor")
    run, took = executor.Executor.run, [0, 0]

    def timed(self: Any, body: memoryview, *, ask: bool) -> Any:
        if ask:
            return run(self, body, ask=ask)
        before, began = self.sequence, time.perf_counter_ns()
        run(self, body, ask=ask)
        took[0] += time.perf_counter_ns() - began
        took[1] += self.sequence - before
        return None

    executor.Executor.run = timed
    return took


def partner(transport: str, delay_us: int) -> None:
    """Be the other end of a plain socket."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        if transport == "unix":
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(name + "/plain.sock")
            listener.listen()
            print(name + "/plain.sock", flush=True)
        else:
            listener = socket.create_server(("127.0.0.1", 0))
            port = listener.getsockname()[1]
            print(stack.enter_context(proxied(port, delay_us)), flush=True)
        end: Any = listener.accept()[0]
        if transport == "tls":
            sys.path[:0] = [str(KIT), str(ROOT / "src")]
            context, _ = importlib.import_module("door_kit").certificate(Path(name))
            end = context.wrap_socket(end, server_side=True)
        if transport != "unix":
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        kept = np.ones(256 * MIB, np.uint8)
        while order := end.recv(ORDER.size):
            kind, size, times = ORDER.unpack(order)
            for _ in range(times):
                if kind == PING:
                    end.sendall(end.recv(64))
                elif kind == OUT_OF:
                    end.sendall(kept[:size].data)
                else:
                    target = kept[:size] if kind == INTO else np.empty(size, np.uint8)
                    fill(end, target.data)
            if kind in (INTO, INTO_NEW):
                end.sendall(b"x")


def fill(end: Any, target: memoryview) -> None:
    """Receive until ``target`` is full."""
    done = 0
    while done < target.nbytes:
        got = end.recv_into(target[done:])
        assert got
        done += got


class Other:
    """Another process, and the first line that it has printed."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        assert child.stdout is not None
        assert child.stdin is not None
        self.stdin, self.stdout = child.stdin, child.stdout
        self.said = self.stdout.readline().strip()

    def worker_us(self) -> float:
        """Return the mean us of the calls that the worker has run since it was asked before."""
        self.stdin.write("\n")
        self.stdin.flush()
        return float(self.stdout.readline())

    def alone_us(self, name: str) -> float:
        """Return the mean us of the operation in the worker's process, without a worker."""
        self.stdin.write(name + "\n")
        self.stdin.flush()
        return float(self.stdout.readline())


@contextlib.contextmanager
def process(script: str, *words: str) -> Generator[Other]:
    """Run a script until the end of the block."""
    if others_core >= 0 and script == ENDS:
        words = (*words, f"--core={others_core}")
    child = subprocess.Popen(
        [sys.executable, script, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        other = Other(child)
        try:
            yield other
        finally:
            other.stdin.close()
            other.stdout.read()


@contextlib.contextmanager
def worker(transport: str, delay_us: int = 0, *, gpu: bool) -> Generator[tuple[Any, Other]]:
    """Run a worker; yield the drop-in, connected to it, and the worker."""
    words = ["--serve", transport, f"--delay-us={delay_us}", *(["--gpu"] if gpu else [])]
    with process(ENDS, *words) as other:
        if str(DROPIN) not in sys.path:
            sys.path.insert(0, str(DROPIN))
        os.environ["GPUPOOL_AGENT"] = other.said
        cp: Any = importlib.import_module("cupy")
        assert "dropin" in cp.__file__
        try:
            yield cp, other
        finally:
            for session in cp._door.pool.sessions():
                session.close()
            cp._door.pool.reset()


class Plain:
    """A plain socket of one kind to a process that does as it is told."""

    def __init__(self, transport: str, where: str) -> None:
        if transport == "unix":
            self.end: Any = socket.socket(socket.AF_UNIX)
            self.end.connect(where)
        else:
            self.end = socket.create_connection(("127.0.0.1", int(where)))
            self.end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if transport == "tls":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            self.end = context.wrap_socket(self.end)

    def ping(self, times: int) -> float:
        """Return the microseconds of 64 bytes there and back."""
        self.end.sendall(ORDER.pack(PING, 64, times))
        began = time.perf_counter()
        for _ in range(times):
            self.end.sendall(bytes(64))
            self.end.recv(64)
        return (time.perf_counter() - began) / times * 1e6

    def up(self, source: np.ndarray[Any, Any], *, new: bool) -> float:
        """Return the seconds of `COPIES` copies to the other end."""
        began = time.perf_counter()
        self.end.sendall(ORDER.pack(INTO_NEW if new else INTO, source.nbytes, COPIES))
        for _ in range(COPIES):
            self.end.sendall(source.data)
        assert self.end.recv(1)
        return time.perf_counter() - began

    def down(self, target: np.ndarray[Any, Any], *, new: bool) -> float:
        """Return the seconds of `COPIES` copies from the other end."""
        began = time.perf_counter()
        self.end.sendall(ORDER.pack(OUT_OF, target.nbytes, COPIES))
        for _ in range(COPIES):
            fill(self.end, (np.empty_like(target) if new else target).data)
        return time.perf_counter() - began


def main() -> None:
    """Be one end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpu", action="store_true")
    for mode in ("--serve", "--plain"):
        parser.add_argument(mode, choices=TRANSPORTS)
    parser.add_argument("--delay-us", type=int, default=0)
    parser.add_argument("--core", type=int, default=-1)
    options = parser.parse_args()
    if options.core >= 0:
        os.sched_setaffinity(0, [options.core])
    if options.serve:
        serve(options.serve, options.delay_us, gpu=options.gpu)
    else:
        partner(options.plain, options.delay_us)


if __name__ == "__main__":
    main()
