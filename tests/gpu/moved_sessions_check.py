"""Moves sessions of the array door between two workers on real GPUs; needs CuPy and one GPU.

    python tests/gpu/moved_sessions_check.py [--memory GIB]

Two *workers*, each a process with CuPy, serve a partition of the first GPU. A *program* computes
and is moved between them, and another one is not; both must print the same. Exit status 0 means
that.
"""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import argparse
import contextlib
import importlib
import json
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
KIT = ROOT / "tests" / "remoting" / "array_api"
GIB = 1 << 30
NAMES = ("here", "there")

PROGRAM = """
import json, sys, time
import cupy as cp, numpy as np
from cupy._door import moving, pool
offers = json.loads(sys.argv[1])
def go_on(name):
    if sys.argv[2] == 'moves':
        began = time.perf_counter()
        moving.go_on(pool.sessions()[0], offers[name])
        sys.stderr.write(f'to {name} in {time.perf_counter() - began:.3f} s\\n')
kinds = '?bBhHiIlLqQefdFD'
all_kinds = [cp.asarray((np.arange(60) % 2).astype(kind).reshape(6, 10)) for kind in kinds]
bits = cp.random.default_rng(8)
philox = cp.random.Generator(cp.random.Philox4x3210(3))
a = cp.asarray(np.arange(1 << 22, dtype='f4').reshape(2048, 2048))
rows, turned, plain = a[3:9:2], a.T, cp.asarray(np.asfortranarray(np.arange(12.).reshape(3, 4)))
raw = cp.RawKernel('extern "C" __global__ void add(float *a, int n, float by) {'
    'int i = blockDim.x * blockIdx.x + threadIdx.x; if (i < n) a[i] += by; }', 'add')
source = 'template <class T> __global__ void twice(T *a) { a[threadIdx.x] *= 2; }'
module = cp.RawModule(code=source, name_expressions=['twice<double>'])
twice = module.get_function('twice<double>')
square = cp.ElementwiseKernel('T x', 'T y', 'y = x * x', 'square')
total = cp.ReductionKernel('T x', 'T y', 'x', 'a + b', 'y = a', '0', 'total')
stream, event = cp.cuda.Stream(non_blocking=True), cp.cuda.Event()
found = []
def step():
    raw((8,), (128,), (a, np.int32(1000), np.float32(0.5)))
    twice((1,), (4,), (plain,))
    with stream:
        turned[5] += 1
        event.record()
    stream.wait_event(event)
    stream.synchronize()
    rows[...] = rows * 3
    for each in all_kinds:
        each[1:4, ::3] = each[2:5, ::3]
    found.extend((bits.random(4), philox.standard_normal(3), bits.integers(0, 9, 5), a.sum(),
        square(plain), total(a), rows.copy(), plain.copy(), cp.fft.fft(a[1, :64]),
        cp.matmul(a[:64, :64], a[64:128, :64])))
    found.extend(each.copy() for each in all_kinds)
step()
go_on('there')
step()
go_on('here')
step()
big = cp.asarray(np.arange(1 << 26, dtype='f8'))
go_on('there')
found.append(big.sum())
for each in found:
    print(each.dtype, each.shape, cp.asnumpy(each).tobytes().hex()[:400])
try:
    state = cp.random.RandomState(3)
    state.normal()
    go_on('here')
    if sys.argv[2] == 'moves':
        sys.stderr.write('a random state went along\\n')
except moving.MoveRefusedError as error:
    sys.stderr.write(f'{error}\\n')
print(float(state.uniform(size=2).size), pool.sessions()[0].failure)
"""


def worker(
    name: str, memory: int, ports: dict[str, list[int]], proofs: dict[str, list[str]]
) -> None:
    """Serve the first GPU until standard input ends."""
    sys.path[:0] = [str(KIT), str(ROOT / "src")]
    cupy: Any = importlib.import_module("cupy")
    door_kit: Any = importlib.import_module("door_kit")

    from gpupool.remoting.devices.base import DeviceSpec
    from gpupool.remoting.worker.peer_links import Links

    model = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    devices = [DeviceSpec(0, f"GPU-{name}", model, memory, emulated=False, ordinal=0)]
    session, ticket = (bytes.fromhex(text) for text in proofs[name])
    listener = socket.create_server(("127.0.0.1", ports[name][0]))
    server = door_kit.Server(name, listener, devices, session, ticket)
    server.peer_listener = socket.create_server(("127.0.0.1", ports[name][1]))

    def dial(other: str) -> socket.socket:
        return socket.create_connection(("127.0.0.1", ports[other][1]))

    server.make_links = lambda: Links(dial, lambda _numbers: None)
    for target in (server.serve, server.serve_peers):
        threading.Thread(target=target, daemon=True).start()
    print(json.dumps(server.offer()), flush=True)
    sys.stdin.read()
    sys.stderr.write("".join(f"{name}: {line}\n" for line in server.log))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@contextlib.contextmanager
def workers(memory: int) -> Generator[dict[str, Any]]:
    """Run both workers; give their offers."""
    ports = {name: [free_port(), free_port()] for name in NAMES}
    proofs = {name: [bytes([at + 1]) * 16, bytes([at + 7]) * 32] for at, name in enumerate(NAMES)}
    told = json.dumps({name: [part.hex() for part in both] for name, both in proofs.items()})
    with contextlib.ExitStack() as stack:
        offers: dict[str, Any] = {}
        for name in NAMES:
            argv = [sys.executable, __file__, "--worker", name, "--memory", str(memory / GIB)]
            process = stack.enter_context(
                subprocess.Popen(
                    [*argv, json.dumps(ports), told],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            assert process.stdout is not None
            offers[name] = json.loads(process.stdout.readline())
            assert process.stdin is not None
            stack.callback(process.stdin.close)
        yield offers


def output(door_kit: Any, offers: dict[str, Any], word: str) -> str:
    class Offered:
        peer_listener = None
        connections: tuple[()] = ()
        listener = socket.socket()

        def offer(self) -> dict[str, Any]:
            return offers["here"]

    with tempfile.TemporaryDirectory() as folder:
        agent = door_kit.Agent(Path(folder), [])
        agent.servers = [Offered()]
        done = door_kit.run_program(agent, PROGRAM, json.dumps(offers), word, timeout_s=300)
        agent.servers = []
        agent.close()
    sys.stderr.write(done.stderr)
    assert done.returncode == 0
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--memory", type=float, default=16.0)
    parser.add_argument("--worker", default="")
    parser.add_argument("rest", nargs="*")
    arguments = parser.parse_args()
    memory = int(arguments.memory * GIB)
    if arguments.worker:
        ports, proofs = (json.loads(text) for text in arguments.rest)
        worker(arguments.worker, memory, ports, proofs)
        return
    sys.path[:0] = [str(KIT), str(ROOT / "src")]
    door_kit: Any = importlib.import_module("door_kit")
    with workers(memory) as offers:
        stayed = output(door_kit, offers, "stays")
        moved = output(door_kit, offers, "moves")
    lines = stayed.splitlines()
    wrong = [at for at, line in enumerate(moved.splitlines()) if lines[at : at + 1] != [line]]
    print(f"{len(lines)} results, {len(wrong)} differ {wrong[:5]}")
    sys.exit(bool(wrong) or len(lines) != len(moved.splitlines()))


if __name__ == "__main__":
    main()
