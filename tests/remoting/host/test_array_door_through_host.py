"""Programs that use the drop-in cupy, against real workers of a host with emulated GPUs."""

import json
import os
import shutil
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from host_kit import GIB, HostKit, MakeHost

from gpupool.pool.measures import Measures
from gpupool.pool.model.ids import LeaseId
from gpupool.pool.model.state import Lease
from gpupool.remoting.devices.host_kernels import host_compiler
from gpupool.remoting.protocol import handshake
from gpupool.remoting.worker import kernel_permission

DROPIN = Path(__file__).parents[3] / "remoting" / "array_api" / "dropin"
with_compiler = pytest.mark.skipif(
    not any(map(shutil.which, host_compiler.COMPILERS)), reason="no C++ compiler here"
)
DOORS = {"arrays": "gpupool.remoting.array_api.server.serve:serve"}
MIB = 1 << 20


class Agent:
    """Answers like the ``gpupool run`` parent: one session for each connection."""

    def __init__(self, kit: HostKit, lease: Lease, encryption: str) -> None:
        self.kit = kit
        self.lease = lease
        self.encryption = encryption
        self.path = kit.directory / "agent.sock"
        self.front = socket.create_server(("127.0.0.1", 0))
        self.agent = socket.socket(socket.AF_UNIX)
        self.agent.bind(str(self.path))
        self.agent.listen()
        kit.closers += [self.front.close, self.agent.close]
        self.sessions: list[bytes] = []
        self.holds: tuple[str, ...] = ()  # what confines the worker

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._accept, self.agent, self._serve)
            nursery.start_soon(self._accept, self.front, self._route)

    async def _accept(self, listener: socket.socket, handle: Callable[..., Any]) -> None:
        listening = trio.socket.from_stdlib_socket(listener)
        async with trio.open_nursery() as nursery:
            while True:
                accepted, _address = await listening.accept()
                nursery.start_soon(handle, accepted)

    async def _route(self, accepted: trio.socket.SocketType) -> None:
        own = socket.socket(fileno=os.dup(accepted.fileno()))
        accepted.close()
        await self.kit.host.hand_over(self.sessions[-1], own)

    async def _serve(self, accepted: trio.socket.SocketType) -> None:
        async with trio.SocketStream(accepted) as stream:
            request = json.loads(await stream.receive_some(65536))
            if request["op"] != "session":  # as a run that has no orders for its program
                await stream.send_all(b'{"ok": false}\n')
                return
            info = await self.kit.host.open_session(
                self.lease,
                self.lease.partitions,
                door=request["door"],
                program=request["program"],
            )
            self.sessions.append(info.session)
            self.holds = self.kit.host.confinement()
            local = self.encryption == "unix"
            answer = {
                "ok": True,
                "lease": "7f3a",
                "notices": [],
                "sessions": [
                    {
                        "server": "one",
                        "address": list(self.front.getsockname()),
                        "unix": info.unix_path if local else None,
                        "session": info.session.hex(),
                        "server_name": handshake.server_name(info.session),
                        "certificate_sha256": info.certificate_sha256.hex(),
                        "ticket": info.ticket.hex(),
                        "encryption": "off" if local else self.encryption,
                        "devices": [
                            {
                                "index": d.index,
                                "name": d.name,
                                "uuid": d.uuid,
                                "memory": d.memory,
                                "emulated": d.emulated,
                            }
                            for d in info.devices
                        ],
                    }
                ],
            }
            await stream.send_all(json.dumps(answer).encode() + b"\n")
            await stream.receive_some(1)  # open for as long as the program lives


async def run_program(agent: Agent, text: str) -> "subprocess.CompletedProcess[bytes]":
    environment = {
        **{name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ},
        "PYTHONPATH": str(DROPIN),
        "GPUPOOL_AGENT": str(agent.path),
    }
    return await trio.run_process(
        [sys.executable, "-c", textwrap.dedent(text)],
        env=environment,
        capture_stdout=True,
        capture_stderr=True,
        check=False,
    )


@pytest.mark.parametrize(
    "encryption", ["tls", *(pytest.param(each, marks=pytest.mark.long) for each in ("unix", "off"))]
)
async def test_program_computes_in_a_confined_worker(make_host: MakeHost, encryption: str) -> None:
    def encryption_of(_lease: LeaseId) -> str:
        return encryption.replace("unix", "tls")

    measures = Measures()
    kit = await make_host(doors=DOORS, data_encryption=encryption_of, measures=measures)
    agent = Agent(kit, kit.lease(memory=64 * MIB), encryption)
    kit.nursery.start_soon(agent.run)
    done = await run_program(
        agent,
        """
        import cupy
        import numpy
        a = cupy.arange(1_000_000, dtype=cupy.float64)
        print(float((a * 2 + 1).sum()))
        there = numpy.random.default_rng(1).random((300, 700))
        back = cupy.asnumpy(cupy.asarray(there) * 2)
        print(bool((back == there * 2).all()))
        b = cupy.random.default_rng(0).random((50, 50)) + 50 * cupy.eye(50)
        print(round(float(cupy.linalg.norm(cupy.linalg.inv(b) @ b - cupy.eye(50))), 6))
        print(abs(float(cupy.fft.ifft(cupy.fft.fft(a)).real[7])) > 6)
        """,
    )
    assert done.stderr == b"", kit.log
    assert done.stdout.split() == [b"1000000000000.0", b"True", b"0.0", b"True"]
    with trio.fail_after(10):
        for worker in list(kit.host.worker_pool.workers.values()):
            if worker.session.lease is not None:
                await worker.ended.wait()
    (session,) = kit.host.telemetry()[1]
    assert session.calls >= 20
    assert (session.door, session.transport) == ("arrays", encryption.replace("off", "tcp"))
    assert session.waits is not None
    assert 4 <= session.waits < session.calls  # the three printed values, and the download
    assert session.wait_us
    counted = {"worker_start_seconds"}
    if encryption != "unix":
        counted.add(f"session_rtt_seconds:{session.transport}")
    assert set(measures.histograms()) == counted
    assert measures.counters["workers_serving"] == 0
    assert kit.host.budget.used_on(kit.host.gpus()[0].id) == 0


async def test_program_meets_the_end_of_its_partition(make_host: MakeHost) -> None:
    kit = await make_host(doors=DOORS)
    agent = Agent(kit, kit.lease(memory=64 * MIB), "unix")
    kit.nursery.start_soon(agent.run)
    done = await run_program(
        agent,
        """
        import cupy
        free, total = cupy.cuda.Device().mem_info
        print(total)
        keep = cupy.zeros(40 << 20, dtype=cupy.uint8)
        try:
            more = cupy.zeros(40 << 20, dtype=cupy.uint8)
            print(int(more.sum()))
        except MemoryError:
            print("out of memory")
        print(int(keep.sum()))
        """,
    )
    assert done.stdout.split(b"\n")[:3] == [str(64 * MIB).encode(), b"out of memory", b"0"], done


@pytest.mark.long
async def test_two_programs_share_one_partition(make_host: MakeHost) -> None:
    kit = await make_host(doors=DOORS)
    agent = Agent(kit, kit.lease(memory=GIB), "unix")
    kit.nursery.start_soon(agent.run)
    program = """
        import cupy
        a = cupy.ones(1 << 20)
        print(float(a.sum()))
    """
    results: list[bytes] = []

    async def run() -> None:
        results.append((await run_program(agent, program)).stdout.strip())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        nursery.start_soon(run)
    assert results == [b"1048576.0"] * 2


KERNEL = """
    import cupy
    x = cupy.arange(100, dtype=cupy.float32)
    print(float(cupy.ElementwiseKernel("T x", "T y", "y = x + 1", "plus")(x).sum()))
    cupy.RawKernel('extern "C" __global__ void far(float *x) { x[1ll << 40] = 1; }', "far")(
        (1,), (1,), (x,)
    )
    print(float(x.sum()))
"""


@pytest.mark.slow  # two compilations, and the start of a worker
@with_compiler
async def test_a_confined_worker_compiles_kernels_and_dies_of_a_wrong_one(
    make_host: MakeHost,
) -> None:
    kit = await make_host(doors=DOORS)
    agent = Agent(kit, kit.lease(memory=64 * MIB), "unix")
    kit.nursery.start_soon(agent.run)
    done = await run_program(agent, KERNEL)
    if kernel_permission.refusal(agent.holds, cuda=False, root=os.geteuid() == 0):
        assert b"kernels from source are not compiled" in done.stderr
        pytest.skip(f"workers are confined by {agent.holds} alone here")
    assert done.stdout.split() == [b"5050.0"], (done.stderr, kit.log)
    assert b"the arrays of this session are gone" in done.stderr
    await kit.logged("SIGSEGV")


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root's workers can stay root")
async def test_a_worker_that_stays_root_compiles_nothing(make_host: MakeHost) -> None:
    kit = await make_host(doors=DOORS, own_uids=False)
    agent = Agent(kit, kit.lease(memory=64 * MIB), "unix")
    kit.nursery.start_soon(agent.run)
    done = await run_program(agent, KERNEL)
    assert done.stdout == b""
    assert b"NotImplementedError: kernels from source are not compiled for this" in done.stderr


ALL = (
    *("own-uid", "landlock", "own-signals", "no-new-privileges", "system-call-filter"),
    "few-system-calls",
)


@pytest.mark.parametrize(
    ("lacks", "cuda", "root", "says"),
    [
        ((), False, True, ""),
        (("landlock",), False, True, ""),
        (("own-uid",), False, False, ""),
        (("own-uid",), False, True, "start that server as root, or"),
        (("own-uid", "landlock", "own-signals"), False, False, "start that server as root, or"),
        (("own-uid", "own-signals"), False, False, "Linux 6.12 or newer"),
        (("own-uid", "few-system-calls"), False, False, "its server's workers have its user"),
        (("system-call-filter",), False, False, "no filter of system calls"),
        ((), True, False, "real GPUs"),
    ],
)
def test_who_may_compile_kernels(lacks: tuple[str, ...], cuda: bool, root: bool, says: str) -> None:
    holds = [each for each in ALL if each not in lacks]
    found = kernel_permission.refusal(holds, cuda=cuda, root=root)
    assert says in found
    assert bool(found) == bool(says)
