"""Failover: the leader is killed or hangs, and the time until a new one grants again.

    python tests/benchmarks/failover.py [--servers 5] [--kills 100] [--idle 10] [--pools 3]
        [--signal KILL|STOP] [--csv FILE]

The servers are real ones (`gpupool join --emulate 1`), on loopback, with TLS and their journals on
the disk of ``--directory``. After ``--idle`` seconds without a request the leader gets the signal:
SIGKILL, or SIGSTOP, after which it neither answers nor closes a connection. One client, connected
all along, asks for a GPU at once. What counts is the time from the signal to the lease, and to
another leader, as the servers that are left see it. The server then comes back, and the next round
begins. ``--pools`` run side by side.
"""

import argparse
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import trio
from results import Results, add_options

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.remoting.control.control_cluster import request

from gpupool.pool.errors import GpupoolError
from gpupool.remoting.client.credentials import load_credentials
from gpupool.remoting.client.pool_client import Pool, connect_pool
from gpupool.remoting.protocol import messages as m

START_S = 120.0
"""For a pool to be made, beside other work."""

TOLD_SIZE = 2000


class Servers:
    """The server processes of one pool."""

    def __init__(
        self,
        folder: Path,
        count: int,
        gpus: str = "1:1G",
        program: Sequence[str] = ("-m", "gpupool.cli.main"),
    ) -> None:
        """Prepare ``count`` servers; each is Python with ``program``, and emulates ``gpus``."""
        self.folder = folder
        self.gpus, self.program = gpus, program
        folder.chmod(0o711)  # servers that give up their privileges have a user of their own
        self.names = [f"s{number}" for number in range(1, count + 1)]
        self.ports = {name: free_port() for name in self.names}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("GPUPOOL_")}
        self.env["GPUPOOL_CREDENTIALS"] = str(folder / "credentials.json")
        self.env["XDG_CONFIG_HOME"] = str(folder / "config")
        self.env["RUNTIME_DIRECTORY"] = self.env["TMPDIR"] = str(folder)

    def start(self, name: str, token: str = "") -> None:
        argv = [sys.executable, *self.program, "join", "--emulate", self.gpus]
        argv += ["--listen", f"127.0.0.1:{self.ports[name]}", "--name", name]
        argv += ["--state-dir", str(self.folder / name), "--pool-name", "failover"]
        argv += ["--token", token] if token else []
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                argv, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    async def create(self) -> None:
        first, *others = self.names
        self.start(first)
        log = self.folder / f"{first}.log"
        with trio.move_on_after(START_S):
            while "is listening" not in log.read_text():
                if self.processes[first].poll() is not None:
                    break
                await trio.sleep(0.1)
        if "is listening" not in log.read_text():
            status = self.processes[first].poll()
            how = "does not listen" if status is None else f"ended with {status}"
            raise RuntimeError(f"the first server {how}: {log.read_text()[-TOLD_SIZE:]}")
        for name in others:
            argv = [sys.executable, "-m", "gpupool.cli.main", "token", "create", "--server"]
            made = await trio.run_process(
                argv, env=self.env, capture_stdout=True, stderr=subprocess.DEVNULL
            )
            found = re.search(r"gpupool-\S+", made.stdout.decode())
            assert found is not None
            self.start(name, found[0])

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


async def whole(pool: Pool, servers: Servers) -> str:
    """Wait until every server is there, and return the leader's name."""
    with trio.fail_after(START_S):
        while True:
            view = await pool.view()
            states = [server.state for server in view.servers]
            voters = len(view.raft.voters)
            connected = len(pool.connections.by_server)
            if states == ["idle"] * len(servers.names) and voters == connected == len(states):
                return view.raft.leader
            await trio.sleep(0.1)


@dataclass
class Times:
    """Seconds from each signal."""

    to_leader: list[float] = field(default_factory=list[float])
    to_lease: list[float] = field(default_factory=list[float])


async def another_leads(pool: Pool, former: str, began: float, out: list[float]) -> None:
    """Ask the servers that are left, again and again, until one knows of another leader."""
    while True:
        for connection in list(pool.connections.by_server.values()):
            with suppress(GpupoolError):
                answer = await connection.call(m.GetView(), timeout_s=0.1)
                if answer.view.raft.leader not in ("", former):
                    out.append(time.perf_counter() - began)
                    return
        await trio.sleep(0.005)


async def one_failover(pool: Pool, servers: Servers, number: signal.Signals, out: Times) -> None:
    leader = await whole(pool, servers)
    began = time.perf_counter()
    servers.processes[leader].send_signal(number)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(another_leads, pool, leader, began, out.to_leader)
        hold = await pool.allocate(request(pool, 1, 0.5), wait_s=30)
        out.to_lease.append(time.perf_counter() - began)
    await hold.release()
    if number is signal.SIGSTOP:
        servers.processes[leader].send_signal(signal.SIGCONT)
    else:
        servers.processes[leader].wait()
        servers.start(leader)


async def one_pool(folder: Path, options: argparse.Namespace, kills: int, out: Times) -> None:
    folder.mkdir()  # noqa: ASYNC240 - takes no time
    servers = Servers(folder, options.servers)
    try:
        await servers.create()
        credentials = load_credentials(folder / "credentials.json")
        async with connect_pool(credentials) as pool:
            for _ in range(kills):
                await whole(pool, servers)
                await trio.sleep(options.idle)
                await one_failover(pool, servers, signal.Signals[f"SIG{options.signal}"], out)
    finally:
        servers.stop()


def figures(times: list[float]) -> tuple[float, float, float]:
    """Return the median, the 99th percentile and the longest of times."""
    times.sort()
    return statistics.median(times), times[min(len(times) - 1, int(0.99 * len(times)))], times[-1]


async def run(folder: Path, options: argparse.Namespace, results: Results) -> None:
    times = Times()
    shares = [options.kills // options.pools] * options.pools
    shares[0] += options.kills - sum(shares)
    folder.chmod(0o711)  # noqa: ASYNC240 - for servers that give up their privileges, as theirs
    async with trio.open_nursery() as nursery:
        for number, share in enumerate(shares):
            nursery.start_soon(one_pool, folder / f"pool-{number}", options, share, times)
    print(
        f"{options.servers} servers, SIG{options.signal} of the leader after {options.idle:g} s "
        f"idle, {len(times.to_lease)} times, {options.pools} pools side by side",
        flush=True,
    )
    for what, each in (("the next lease", times.to_lease), ("another leader", times.to_leader)):
        median, p99, longest = figures(each)
        print(f"  until {what}: median {median:.3f} s  p99 {p99:.3f} s  max {longest:.3f} s")
        case = f"{what} after SIG{options.signal} of the leader, {options.servers} servers"
        results.add(f"{case}, {len(each)} times", "p50", median, "s")
        budget = "0.6 s" if options.signal == "STOP" else "0.5 s"
        results.add(f"{case}, {len(each)} times", "p99", p99, "s", budget=budget)
        results.add(f"{case}, {len(each)} times", "max", longest, "s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", type=int, default=5)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--idle", type=float, default=10, help="seconds")
    parser.add_argument("--pools", type=int, default=1)
    parser.add_argument("--signal", choices=("KILL", "STOP"), default="KILL")
    parser.add_argument("--directory", type=Path)
    add_options(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        trio.run(run, Path(name), options, Results.of("failover.py", options))


if __name__ == "__main__":
    main()
