"""Figures of the array door on this machine, beside plain NumPy and a plain socket.

    python tests/benchmarks/arrays.py [--calls 20000]

The worker is another process with one emulated device. With a GPU at hand,
``tests/gpu/array_door_check.py`` measures the same beside native CuPy.
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
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
KIT = ROOT / "tests" / "remoting" / "arrays"
sys.path[:0] = [str(KIT), str(ROOT / "remoting" / "arrays" / "dropin"), str(ROOT / "src")]
MIB = 1 << 20


@contextlib.contextmanager
def server(transport: str) -> Generator[str]:
    """Run a worker with one emulated device in another process; yield its agent's socket."""
    process = subprocess.Popen(
        [sys.executable, str(KIT / "door_kit.py"), "1", transport],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            fresh("")
            process.stdin.close()


def fresh(agent: str) -> Any:
    """Return the drop-in, connected to another agent."""
    import cupy as cp

    for session in cp._door.pool.sessions():
        session.close()
    cp._door.pool.reset()
    os.environ["GPUPOOL_AGENT"] = agent
    return cp


def per_call(
    operation: Callable[[], Any], calls: int, finish: Callable[[], Any]
) -> tuple[float, float]:
    """Return the microseconds of this process's CPU and of the wall per call."""
    for _ in range(100):
        operation()
    finish()
    began, cpu = time.perf_counter(), time.process_time()
    for _ in range(calls):
        operation()
    cpu = time.process_time() - cpu
    finish()
    return cpu / calls * 1e6, (time.perf_counter() - began) / calls * 1e6


def operations(xp: Any) -> dict[str, Callable[[], Any]]:
    """Return the calls that are measured."""
    a, b = xp.ones((16, 16)), xp.ones((16, 16))
    return {
        "a + b": lambda: a + b,
        "a * 2.0": lambda: a * 2.0,
        "a.sum()": a.sum,
        "sqrt(a)": lambda: xp.sqrt(a),
        "a[1]": lambda: a[1],
        "a[1:3, ::2]": lambda: a[1:3, ::2],
        "a.reshape(4, 64)": lambda: a.reshape(4, 64),
        "where(a, a, b)": lambda: xp.where(a, a, b),
        "a += b": lambda: a.__iadd__(b),
        "a @ b": lambda: a @ b,
    }


def calls(agent: str, count: int) -> None:
    """Print what calls cost."""
    cp = fresh(agent)
    sync = cp.cuda.Device().synchronize
    host = operations(np)
    print(f"{'us per call':20}{'client CPU':>12}{'pipelined':>12}{'waited for':>12}{'NumPy':>8}")
    for name, operation in operations(cp).items():
        cpu, wall = per_call(operation, count, sync)

        def waited(operation: Callable[[], Any] = operation) -> None:
            operation()
            sync()

        _, alone = per_call(waited, count // 20, sync)
        _, plain = per_call(host[name], count, lambda: None)
        print(f"{name:20}{cpu:12.2f}{wall:12.2f}{alone:12.1f}{plain:8.2f}")
    print(f"{'float(a[0, 0])':20}{'':12}{'':12}{latency(cp, count // 20):12.1f}")


def latency(cp: Any, count: int) -> float:
    """Return the microseconds of a call that needs its answer."""
    a = cp.ones(4)
    began = time.perf_counter()
    for _ in range(count):
        float(a[0])
    return (time.perf_counter() - began) / count * 1e6


def ping(count: int) -> float:
    """Return the microseconds of 64 bytes there and back between two threads."""
    left, right = socket.socketpair()

    def echo() -> None:
        while piece := right.recv(64):
            right.sendall(piece)

    thread = threading.Thread(target=echo)
    thread.start()
    began = time.perf_counter()
    for _ in range(count):
        left.sendall(bytes(64))
        left.recv(64)
    took = (time.perf_counter() - began) / count * 1e6
    left.close()
    thread.join()
    right.close()
    return took


def plain(transport: str) -> float:
    """Return GB/s of a plain socket of the same kind, 64 MiB at a time into one buffer."""
    door_kit: Any = importlib.import_module("door_kit")

    with tempfile.TemporaryDirectory() as name:
        if transport == "unix":
            left, right = socket.socketpair()
        else:
            listener = socket.create_server(("127.0.0.1", 0))
            left = socket.create_connection(listener.getsockname())
            right, _ = listener.accept()
            listener.close()
        data = bytes(64 * MIB)
        target = memoryview(bytearray(64 * MIB))
        files = door_kit.certificate(Path(name)) if transport == "tls" else None

        def send() -> None:
            out: Any = left
            if files is not None:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
                out = context.wrap_socket(left)
            for _ in range(6):
                out.sendall(data)
            # Closing with a session ticket unread would reset the connection and lose data.
            out.recv(1)
            out.close()

        thread = threading.Thread(target=send)
        thread.start()
        source: Any = right
        if files is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(files[0], files[1])
            source = context.wrap_socket(right, server_side=True)
        began, total = time.perf_counter(), 0
        while total < 6 * len(data):
            total += source.recv_into(target)
        took = time.perf_counter() - began
        source.sendall(b"x")
        thread.join()
        source.close()
    return total / took / 1e9


def bulk(agent: str, transport: str) -> None:
    """Print what copies reach, beside a plain socket in the same run."""
    cp = fresh(agent)
    host = np.ones(64 * MIB, np.uint8)
    array = cp.asarray(host)
    cp.cuda.Device().synchronize()
    began = time.perf_counter()
    for _ in range(6):
        array = cp.asarray(host)
    cp.cuda.Device().synchronize()
    up = 6 * host.nbytes / (time.perf_counter() - began) / 1e9
    array.get(out=host)
    began = time.perf_counter()
    for _ in range(6):
        array.get(out=host)
    down = 6 * host.nbytes / (time.perf_counter() - began) / 1e9
    socket_alone = plain(transport)
    print(
        f"{transport:6} upload {up:5.2f} GB/s, download {down:5.2f} GB/s, "
        f"plain socket {socket_alone:5.2f} GB/s "
        f"({up / socket_alone:.0%}, {down / socket_alone:.0%})"
    )


def main() -> None:
    """Measure everything."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=20000)
    options = parser.parse_args()
    with server("unix") as agent:
        calls(agent, options.calls)
        there_and_back = ping(options.calls // 20)
        print(f"{'64 bytes and back':44}{there_and_back:12.1f}  (plain socket, threads)")
    for transport in ("unix", "tcp", "tls"):
        with server(transport) as agent:
            bulk(agent, transport)


if __name__ == "__main__":
    main()
