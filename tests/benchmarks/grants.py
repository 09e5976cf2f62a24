"""Grants: latency with 3 and 5 servers, and 20 clients racing for 7 slots, over TLS and real Raft.

    python tests/benchmarks/grants.py [--servers 3,5] [--grants 300] [--rounds 200] [--csv FILE]

Every server is a process of its own with its journal on the disk of ``--directory``, reached over
loopback. Workers are fake, so that the control plane is what is measured. All clients run in this
process. One grant is ``Pool.allocate``: ask all servers, choose, claim, one Raft commit.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import trio
from results import Results, add_options

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.remoting.control.control_cluster import CLUSTER_ID, request, secret_of, token_id
from tests.remoting.control.control_kit import until
from tests.remoting.control.real_pool import RealServer

from gpupool.pool.model.state import TokenKind
from gpupool.remoting.client.credentials import Credentials
from gpupool.remoting.client.pool_client import connect_pool
from gpupool.remoting.protocol.addresses import Address


class Servers:
    """The server processes of one pool."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[str]] = []
        self.addresses: list[Address] = []
        self.ca_pem = ""

    def start_one(self, gpu_count: int, token: str = "") -> None:
        number = len(self.processes) + 1
        command = [sys.executable, __file__, "--serve", str(number), "--gpus", str(gpu_count)]
        process = subprocess.Popen(
            [*command, "--token", token, "--directory", str(self.folder)],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        self.addresses.append(Address("127.0.0.1", ready["port"]))
        self.ca_pem = ready["ca_pem"]

    def credentials(self, user: str) -> Credentials:
        return Credentials(
            CLUSTER_ID,
            "lab",
            user,
            token_id(user),
            secret_of(user),
            self.ca_pem,
            tuple(self.addresses),
        )

    async def start(self, gpu_counts: list[int]) -> None:
        await trio.to_thread.run_sync(self.start_one, gpu_counts[0])
        for count in gpu_counts[1:]:
            async with connect_pool(self.credentials("root")) as pool:
                token = await pool.create_token(TokenKind.SERVER, "bench", 600)
            await trio.to_thread.run_sync(self.start_one, count, token)
        with trio.fail_after(60):
            async with connect_pool(self.credentials("root")) as pool:
                while True:
                    view = await pool.view()
                    states = [server.state for server in view.servers]
                    voters = len(view.raft.voters)
                    if states == ["idle"] * len(gpu_counts) and voters == len(gpu_counts):
                        return
                    await trio.sleep(0.05)

    def stop(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGKILL)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


async def serve(number: int, gpu_count: int, token: str, folder: Path) -> None:
    """Run one server, in a separate process."""
    server = RealServer(folder, number, gpu_count)
    listener = await server.listen()
    if token:
        await server.join(token)
    else:
        server.found()
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run, listener)
        if not token:
            await server.create_pool()
        assert server.authority is not None
        ca_pem = server.authority.certificate_pem.decode()
        print(json.dumps({"port": server.port, "ca_pem": ca_pem}), flush=True)
        parent = os.getppid()
        await until(lambda: os.getppid() != parent, every_s=0.5)
        nursery.cancel_scope.cancel()


def percentiles(seconds: list[float], case: str, results: Results) -> str:
    """Return the percentiles in words, and add them to the results of ``case``."""
    ordered = sorted(seconds)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000

    shares = {"p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "max": ordered[-1] * 1000}
    for metric, figure in shares.items():
        results.add(case, metric, figure, "ms")
    mean = statistics.fmean(ordered) * 1000
    words = "  ".join(f"{metric} {figure:7.1f} ms" for metric, figure in shares.items())
    return f"{words}  mean {mean:7.1f} ms  n {len(ordered)}"


async def measure_latency(
    folder: Path, server_count: int, grant_count: int, results: Results
) -> None:
    servers = Servers(folder / f"latency-{server_count}")
    try:
        await servers.start([2] * server_count)
        grants: list[float] = []
        releases: list[float] = []
        async with connect_pool(servers.credentials("ada")) as pool:
            await until(lambda: len(pool.connections.by_server) == server_count)
            for _ in range(grant_count):
                before = time.perf_counter()
                hold = await pool.allocate(request(pool, 1, 0.5), wait_s=0)
                granted = time.perf_counter()
                await hold.release()
                grants.append(granted - before)
                releases.append(time.perf_counter() - granted)
        for name, times in (("grant", grants), ("release", releases)):
            shown = percentiles(times, f"{name}, {server_count} servers", results)
            print(f"{server_count} servers, {name:8} {shown}")
    finally:
        servers.stop()


async def measure_race(folder: Path, rounds: int, hold_s: float, results: Results) -> None:
    """20 clients, 7 whole GPUs on 5 servers; each client takes and holds a GPU again and again."""
    client_count, slot_count = 20, 7
    servers = Servers(folder / "race")
    waits: list[float] = []
    held: set[tuple[str, str]] = set()
    most = 0
    left = rounds * slot_count

    async def one_client() -> None:
        nonlocal left, most
        async with connect_pool(servers.credentials("ada")) as pool:
            while left > 0:
                left -= 1
                before = time.perf_counter()
                async with await pool.allocate(request(pool)) as hold:
                    waits.append(time.perf_counter() - before)
                    [slot] = {(p.server, p.gpu) for p in hold.partitions}
                    assert slot not in held, "granted twice"
                    held.add(slot)
                    most = max(most, len(held))
                    await trio.sleep(hold_s)
                    held.discard(slot)

    try:
        await servers.start([2, 2, 1, 1, 1])
        before = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(client_count):
                nursery.start_soon(one_client)
        took_s = time.perf_counter() - before
        ideal_s = len(waits) * hold_s / slot_count
        ordered = sorted(waits)
        p99_s = ordered[int(0.99 * len(ordered))]
        case = f"wait of {client_count} clients for {slot_count} slots, hold {hold_s:g} s"
        print(
            f"race: {client_count} clients, {slot_count} slots, hold {hold_s} s: "
            f"{percentiles(waits, case, results)}\n"
            f"race: never over-granted, at most {most} at once; slots in use "
            f"{ideal_s / took_s:.0%} of {took_s:.1f} s; p99 {p99_s:.2f} s, "
            f"allowed {3 * hold_s + 5:.2f} s"
        )
        assert most == slot_count
        assert p99_s <= 3 * hold_s + 5
    finally:
        servers.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", default="3,5")
    parser.add_argument("--grants", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--hold", type=float, default=0.2, help="seconds, in the race")
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--gpus", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--token", default="", help=argparse.SUPPRESS)
    add_options(parser)
    options = parser.parse_args()
    if options.serve is not None:
        trio.run(serve, options.serve, options.gpus, options.token, options.directory)
        return
    results = Results.of("grants.py", options)
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        for count in filter(None, options.servers.split(",")):
            trio.run(measure_latency, Path(name), int(count), options.grants, results)
        if options.rounds:
            trio.run(measure_race, Path(name), options.rounds, options.hold, results)


if __name__ == "__main__":
    main()
