"""Leaders on a busy host: how often three servers change theirs while compilers run beside them.

    python tests/benchmarks/leaders.py [--servers 3] [--minutes 10] [--compilers 2] [--nice 10]
        [--csv FILE]

The servers are real ones (`gpupool join --emulate 1`), on loopback, at ``--nice``. The compilers
run at the usual priority and translate the CUDA door's sources again and again, with ``cc -O3``.
A change is a term in which another server leads than before. The reasons are what the servers' logs
say of votes that were asked for, and of leaders that gave up.
"""

import argparse
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import trio
from failover import Servers, whole
from results import Results, add_options

from gpupool.pool.errors import GpupoolError
from gpupool.remoting.client.credentials import load_credentials
from gpupool.remoting.client.pool_client import Pool, connect_pool
from gpupool.remoting.protocol import messages as m

ROOT = Path(__file__).resolve().parents[2]
LOOK_S = 0.25
REASON = re.compile(r"asks for votes in term|leads no more in term|link to server .* is down")


def compile_on(compiler: str) -> subprocess.Popen[bytes]:
    """Start a compiler that begins again whenever it is done."""
    sources = " ".join(str(path) for path in sorted(ROOT.glob("remoting/**/*.c")))
    each = f'for s in {sources}; do {compiler} -O3 -c "$s" -o /dev/null 2> /dev/null; done'
    return subprocess.Popen(["sh", "-c", f"while :; do {each}; done"], start_new_session=True)


async def watch(pool: Pool, seconds: float) -> list[tuple[int, str]]:
    """Return the terms with their leaders, in the order in which they were seen."""
    seen: list[tuple[int, str]] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for connection in list(pool.connections.by_server.values()):
            with suppress(GpupoolError):
                answer = await connection.call(m.GetView(), timeout_s=1.0)
                raft = answer.view.raft
                if raft.leader and (not seen or raft.term > seen[-1][0]):
                    seen.append((raft.term, raft.leader))
        await trio.sleep(LOOK_S)
    return seen


def lower(servers: Servers, nice: int) -> None:
    """Give the servers a priority: all their threads, which on Linux have one each."""
    for process in servers.processes.values():
        for task in Path(f"/proc/{process.pid}/task").iterdir():
            os.setpriority(os.PRIO_PROCESS, int(task.name), nice)


def reasons(servers: Servers, offsets: dict[str, int]) -> list[str]:
    """Return the reasons in the logs since ``offsets``, in the order of time."""
    found: list[str] = []
    for name in servers.names:
        text = (servers.folder / f"{name}.log").read_text(errors="replace")[offsets[name] :]
        for line in filter(REASON.search, text.splitlines()):
            instant, _, rest = line.partition(" ")
            found.append(f"{instant} {name}: {rest.strip()}")
    return sorted(found)


async def run(folder: Path, options: argparse.Namespace, results: Results) -> None:
    servers = Servers(folder, options.servers)
    compilers: list[subprocess.Popen[bytes]] = []
    try:
        await servers.create()
        async with connect_pool(load_credentials(folder / "credentials.json")) as pool:
            await whole(pool, servers)
            lower(servers, options.nice)
            offsets = {
                name: len((folder / f"{name}.log").read_text(errors="replace"))
                for name in servers.names
            }
            compilers = [compile_on(options.compiler) for _ in range(options.compilers)]
            seen = await watch(pool, 60 * options.minutes)
        for line in reasons(servers, offsets):
            print(line)
    finally:
        for compiler in compilers:
            os.killpg(compiler.pid, 9)
            compiler.wait()
        servers.stop()
    changes = sum(one[1] != other[1] for one, other in itertools.pairwise(seen))
    terms = seen[-1][0] - seen[0][0]
    load = " ".join(f"{each:.1f}" for each in os.getloadavg())
    case = f"{options.servers} servers at nice {options.nice}, {options.compilers} compilers beside"
    print(f"{case}, {options.minutes:g} minutes: {changes} changes of the leader, {terms} terms")
    print(f"leaders: {', '.join(f'{name} in term {term}' for term, name in seen)}; load {load}")
    budget = "1 in 10 minutes"
    results.add(f"{case}, {options.minutes:g} min", "changes", changes, "", budget=budget)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--compilers", type=int, default=2)
    parser.add_argument("--nice", type=int, default=10, help="of the servers")
    parser.add_argument("--compiler", default=shutil.which("cc") or "")
    parser.add_argument("--directory", type=Path)
    add_options(parser)
    options = parser.parse_args()
    if not options.compiler:
        sys.exit("no C compiler is installed: say --compiler PATH")
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        trio.run(run, Path(name), options, Results.of("leaders.py", options))


if __name__ == "__main__":
    main()
