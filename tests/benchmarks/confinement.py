"""Confinement: grants and copies with everything on, and with less.

    python tests/benchmarks/confinement.py [--rounds 80] [--grants 5] [--mib 64] [--named]
        [--tcp] [--csv FILE]

Two real servers (`gpupool join --emulate 1:1G`) run at once, each with a program of its own. One
confines nothing (``bare_join.py``): no privilege separation, no uids of workers, no Landlock, no
filter of system calls, no namespaces or control groups. With ``--named`` it leaves out what
``GPUPOOL_UNCONFINED`` can name. They are measured in turns, so that what else the machine does
meets both. A grant is ``Pool.allocate`` without a program. A copy goes from the program to the
worker and back, over the Unix socket of one machine, or by TLS over TCP with ``--tcp``.

The bar is 5 %, for grants' p50 and p99 and for copies (median). It is judged by all rounds; the
ratios of ten parts of them show how much of a difference is noise.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import trio
from failover import Servers
from results import Results, add_options

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.remoting.control.control_cluster import request

from gpupool.remoting.client.credentials import load_credentials
from gpupool.remoting.client.pool_client import Pool, connect_pool
from gpupool.remoting.host.isolation.confinement import HELD, PROPERTIES, VARIABLE

HERE = Path(__file__).resolve().parent
BAR = 1.05
PARTS = 10

PROGRAM = """
import json, sys, time
import numpy, cupy
data = numpy.ones(int(sys.argv[1]) << 20, numpy.uint8)
there = cupy.asarray(data)
print("ready", flush=True)
for _line in sys.stdin:
    times = []
    for _ in range(4):
        before = time.perf_counter()
        there.set(data)
        there.get(out=data)
        times.append(time.perf_counter() - before)
    print(json.dumps(times), flush=True)
"""


@dataclass
class Side:
    """One server, its program, and their measurements."""

    servers: Servers
    program: "subprocess.Popen[str]"
    grants: list[float] = field(default_factory=list[float])  # seconds
    copies: list[float] = field(default_factory=list[float])  # seconds there and back


async def start(folder: Path, mib: int, *, confined: bool, named: bool, tcp: bool) -> Side:
    """Start a server and its program."""
    await trio.Path(folder).mkdir()
    servers = Servers(folder, 1, "1:1G")
    if tcp:
        long = folder / ("too-long-for-the-path-of-a-socket-" * 4)[:110]
        await trio.Path(long).mkdir()
        servers.env["RUNTIME_DIRECTORY"] = str(long)
    if not confined:
        if named:
            servers.env[VARIABLE] = ",".join(PROPERTIES)
        else:
            servers.program = (str(HERE / "bare_join.py"),)
            servers.env[VARIABLE] = HELD
    await servers.create()
    argv = [sys.executable, "-m", "gpupool.cli.main", "run", "-q", "-p", "0.5", "--"]
    argv += [sys.executable, "-c", PROGRAM, str(mib)]
    begin = partial(
        subprocess.Popen,
        argv,
        env=servers.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    side = Side(servers, await trio.to_thread.run_sync(begin))
    assert await say(side, "") == "ready"
    ((name, server),) = servers.processes.items()
    status = (Path("/proc") / str(server.pid) / "status").read_text()
    uid = status.partition("\nUid:\t")[2].split()[0]
    log = (folder / f"{name}.log").read_text()
    said = [line for line in log.splitlines() if "confined" in line]
    print(f"{folder.name}: the server has uid {uid}.", *said, sep="\n  ", flush=True)
    return side


async def say(side: Side, line: str) -> str:
    """Send a line, if any, to the program; return its next output line."""

    def ask() -> str:
        assert side.program.stdin is not None
        assert side.program.stdout is not None
        if line:
            side.program.stdin.write(line + "\n")
            side.program.stdin.flush()
        return side.program.stdout.readline().strip()

    return await trio.to_thread.run_sync(ask)


async def measure(side: Side, pool: Pool, grants: int) -> None:
    """Measure one round."""
    for _ in range(grants):
        before = time.perf_counter()
        hold = await pool.allocate(request(pool, 1, 0.25), wait_s=10)
        side.grants.append(time.perf_counter() - before)
        await hold.release()
    side.copies += json.loads(await say(side, "again"))


def figures(grants: list[float], copies: list[float], mib: int) -> dict[str, float]:
    """Return the measured grant times and copy rates."""
    ordered = sorted(grants)
    return {
        "grant p50, ms": 1000 * statistics.median(ordered),
        "grant p99, ms": 1000 * ordered[int(0.99 * (len(ordered) - 1))],
        "copy, best, GB/s": 2 * mib * 2**20 / min(copies) / 1e9,
        "copy, median, GB/s": 2 * mib * 2**20 / statistics.median(copies) / 1e9,
    }


def part(times: list[float], number: int) -> list[float]:
    """Return one of the parts of the times of a run."""
    return times[number * len(times) // PARTS : (number + 1) * len(times) // PARTS]


def show(on: Side, off: Side, mib: int, results: Results) -> bool:
    """Print and record the figures; return whether they are within the bar."""
    confined, bare = (figures(side.grants, side.copies, mib) for side in (on, off))
    parts = [
        tuple(figures(part(s.grants, n), part(s.copies, n), mib) for s in (on, off))
        for n in range(PARTS)
    ]
    held = True
    for metric, value in confined.items():
        unit = metric.rpartition(" ")[2]
        results.add("confined", metric, value, unit, native=bare[metric])
        ratio = value / bare[metric]
        worse = ratio if unit == "ms" else 1 / ratio
        ratios = sorted(one[metric] / other[metric] for one, other in parts)
        held = held and (worse <= BAR or metric == "copy, best, GB/s")
        print(
            f"{metric:20} on {value:8.2f}  off {bare[metric]:8.2f}  ratio {ratio:.3f}"
            f"  parts {ratios[0]:.2f} to {ratios[-1]:.2f}, median {statistics.median(ratios):.3f}"
        )
    print(
        f"load {os.getloadavg()[0]:.1f}, {len(on.grants)} grants on each side, within 5 %: {held}"
    )
    return held


async def run(folder: Path, options: argparse.Namespace, results: Results) -> bool:
    """Measure both sides in turns."""
    sides: list[Side] = []
    try:
        for name, confined in (("on", True), ("off", False)):
            how = {"named": options.named, "tcp": options.tcp}
            one = await start(folder / name, options.mib, confined=confined, **how)
            sides.append(one)
        credentials = [load_credentials(side.servers.folder / "credentials.json") for side in sides]
        async with connect_pool(credentials[0]) as one, connect_pool(credentials[1]) as two:
            for number in range(options.rounds):
                order = [(sides[0], one), (sides[1], two)]
                for side, pool in order if number % 2 else reversed(order):
                    await measure(side, pool, options.grants)
    finally:
        for side in sides:
            side.program.kill()
            side.servers.stop()
    return show(sides[0], sides[1], options.mib, results)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--grants", type=int, default=5, help="of each round")
    parser.add_argument("--mib", type=int, default=64, help="size of a copy")
    parser.add_argument("--named", action="store_true", help="leave out less")
    parser.add_argument("--tcp", action="store_true", help="copies by TLS over TCP")
    add_options(parser)
    options = parser.parse_args()
    results = Results.of("confinement.py", options)
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o711)
        return 0 if trio.run(run, Path(name), options, results) else 1


if __name__ == "__main__":
    sys.exit(main())
