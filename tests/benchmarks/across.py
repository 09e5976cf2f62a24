"""Copies between devices of two servers of one lease, beside a plain socket and the way round.

    python tests/benchmarks/across.py [--mib 64] [--rounds 5] [--json] [--csv FILE]

The servers are real ones (``gpupool join --emulate 2``) on loopback, so an emulated GPU's memory is
the target; the plain socket is TCP from this process's child into one buffer of another. The way
round is what copies do where the servers cannot reach each other: to the program and out again,
over TCP as from another machine. What is compared alternates within one run, and of each figure the
best of all rounds is shown: other programs can only make a machine slower.
"""

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

from results import Results, add_options

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.cli.conftest import LivePool

PROGRAM = """
import json, socket, subprocess, sys, time
import numpy as np
from cupy._door.transport import link
connect = link.connect
link.connect = lambda offer: connect({**offer, 'unix': None})
import cupy as cp

size, rounds = int(sys.argv[1]) << 20, int(sys.argv[2])
COPIES = 4
SINK = '''
import socket, sys
size = int(sys.argv[1])
with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    sock, _ = listener.accept()
target = memoryview(bytearray(size))
while True:
    left = size
    while left:
        got = sock.recv_into(target[size - left:])
        if not got:
            sys.exit()
        left -= got
    sock.sendall(b"1")
'''
child = subprocess.Popen([sys.executable, '-c', SINK, str(size)], stdout=subprocess.PIPE)
plain = socket.create_connection(('127.0.0.1', int(child.stdout.readline())))
data = memoryview(bytes(size))

with cp.cuda.Device(0):
    source = cp.arange(size // 8)
with cp.cuda.Device(2):
    target = cp.zeros(size // 8, source.dtype)
    cp.copyto(target, source)
    done = cp.cuda.Device().synchronize
first, second = cp._door.pool.devices()[0], cp._door.pool.devices()[2]
assert first is not second and first.transfers[second.index] is not None
numbers = first.transfers[second.index]

def rate(action, finish):
    began = time.perf_counter()
    for _ in range(COPIES):
        action()
    finish()
    return COPIES * size / (time.perf_counter() - began) / 1e9

def way(numbers, action):
    def run():
        first.transfers[second.index] = numbers
        with cp.cuda.Device(2):
            return rate(action, cp.cuda.Device().synchronize)
    return run

def into():
    cp.copyto(target, source)

def new():
    return cp.asarray(source)

ways = {
    'plain socket': lambda: rate(lambda: (plain.sendall(data), plain.recv(1)), lambda: None),
    'copyto, server to server': way(numbers, into),
    'asarray, server to server': way(numbers, new),
    'copyto, through the program': way(None, into),
    'asarray, through the program': way(None, new),
}
best = dict.fromkeys(ways, 0.0)
for _ in range(rounds):
    for name, run in ways.items():
        best[name] = max(best[name], run())
first.transfers[second.index] = numbers
assert bool((target.get() == np.arange(size // 8)).all())
small = cp.ones(1)
with cp.cuda.Device(2):
    cp.asarray(small)
    began = time.perf_counter()
    for _ in range(500):
        float(cp.asarray(small)[0])
    best['8 bytes and wait, us'] = (time.perf_counter() - began) / 500 * 1e6
plain.close()
child.wait()
print(json.dumps(best))
"""


@contextlib.contextmanager
def servers(encryption: str) -> Generator[LivePool]:
    """Run three servers with two emulated GPUs each."""
    folder = Path(tempfile.mkdtemp(prefix="gpupool-bench-"))
    pool = LivePool(folder)
    first: Any = next(iter(pool.servers.values()))
    start: Any = first.start

    def start_first(*arguments: str) -> None:
        start(*arguments, "--data-encryption", encryption)

    first.start = start_first
    try:
        pool.start()
        yield pool
    finally:
        pool.stop()
        shutil.rmtree(folder, ignore_errors=True)


def measure(encryption: str, mib: int, rounds: int) -> dict[str, float]:
    """Return the GB/s of each way."""
    with servers(encryption) as pool:
        words = [sys.executable, "-c", PROGRAM, str(mib), str(rounds)]
        program = pool.spawn("run", "-n", "4", "--across", "--", *words)
        output, errors = program.communicate(timeout=900)
        if program.returncode:
            raise SystemExit(errors)
        found: dict[str, float] = json.loads(output)
        return found


def record(found: dict[str, dict[str, float]], mib: int, results: Results) -> None:
    """Write the figures of both encryptions as rows; the plain socket is the native baseline."""
    plain = found["off"]["plain socket"]
    for encryption, figures in found.items():
        for name, figure in figures.items():
            case = name.removesuffix(", us")
            if name == case and name != "plain socket":
                case = f"{case}, {mib} MiB, encryption {encryption}"
                results.add(case, "best rate", figure, "GB/s", native=plain)
            elif name != case:
                results.add(f"{case}, encryption {encryption}", "mean", figure, "us")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    add_options(parser)
    options = parser.parse_args()
    results = Results.of("across.py", options)
    found = {each: measure(each, options.mib, options.rounds) for each in ("off", "tls")}
    record(found, options.mib, results)
    if options.json:
        print(json.dumps(found))
        return
    print(f"{f'GB/s, {options.mib} MiB':32}{'off':>8}{'tls':>8}{'off / plain':>14}")
    for name in found["off"]:
        off, tls = found["off"][name], found["tls"][name]
        share = "" if "us" in name else f"{off / found['off']['plain socket']:14.0%}"
        print(f"{name:32}{off:8.2f}{tls:8.2f}{share}")


if __name__ == "__main__":
    main()
