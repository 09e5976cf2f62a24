"""The cost of monitoring to a server: grants, processor and memory, with and without it.

    python tests/benchmarks/seeing.py [--grants 300] [--rest 30] [--csv FILE]

Two servers of eight emulated GPUs hold 50 leases each. One has its exporter, the history, the
checks, the slow readings and HTTPS, and is scraped each second; the other has none of that. One
client takes and gives back leases, one of the first server and one of the second in turn, so that
what else the machine does falls on both. Processor times do not depend on what else it does.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import trio
from metrics import HELD, HELD_SHARE, TAKEN_SHARE, Scraper, Server
from results import Results, add_options

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.remoting.control.control_cluster import request

from gpupool.pool.model.state import TokenKind
from gpupool.remoting.client.pool_client import Pool, connect_pool

UNSEEN = Path(__file__).with_name("unseen_join.py")
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
MEASURE_IMPORTS = """
import importlib, subprocess, sys
from contextlib import suppress
names = subprocess.run(
    [sys.executable, "-c", "import gpupool.remoting.daemon.compose, sys; print(*sys.modules)"],
    capture_output=True, text=True, check=True,
).stdout.split()
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1])
for name in names:
    if not name.startswith(("gpupool.monitoring", "gpupool.remoting.daemon", "__main__")):
        with suppress(ImportError):
            importlib.import_module(name)
assert "gpupool.monitoring" not in sys.modules
before = resident()
import gpupool.remoting.daemon.compose
print(resident() - before)
"""


def computed_s(pid: int) -> float:
    """Return the seconds that a process has computed."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident_mb(pid: int) -> float:
    """Return the memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE / 1e6


def exporter_of(server: int) -> int | None:
    """Return the exporter's process."""
    with suppress(OSError):
        for task in Path(f"/proc/{server}/task").iterdir():  # a thread starts it
            for child in (task / "children").read_text().split():
                if b"monitoring.exporter" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
    return None


@dataclass
class Seen:
    """One of the two servers, and its measurements."""

    name: str
    server: Server
    pool: Pool
    grants: list[float] = field(default_factory=list[float])
    rest_s: float = 0.0
    memory_mb: float = 0.0
    grants_cpu_s: float = 0.0

    @property
    def pid(self) -> int:
        """Return the server's process."""
        return self.server.process.pid

    async def grant(self) -> None:
        """Take a lease, and give it back."""
        began = time.perf_counter()
        hold = await self.pool.allocate(request(self.pool, fraction=TAKEN_SHARE), wait_s=0)
        self.grants.append(time.perf_counter() - began)
        await hold.release()


def quantile_ms(times: list[float], share: int) -> float:
    """Return a quantile, in percent, in milliseconds."""
    return 1000 * statistics.quantiles(times, n=100)[share - 1]


async def at_rest(both: list[Seen], seconds: float) -> float | None:
    """Leave both alone for a while; return the exporter's processor seconds per second."""
    exporter = exporter_of(both[0].pid)
    before = [computed_s(each.pid) for each in both]
    watched = computed_s(exporter) if exporter else 0.0
    await trio.sleep(seconds)
    for each, then in zip(both, before, strict=True):
        each.rest_s = (computed_s(each.pid) - then) / seconds
        each.memory_mb = resident_mb(each.pid)
    return (computed_s(exporter) - watched) / seconds if exporter else None


async def take_turns(both: list[Seen], count: int) -> None:
    """Let both grant in turn, and record the processor time of each per grant."""
    for each in both:
        await each.grant()  # the first one of each warms up
        each.grants.clear()
    began, before = time.monotonic(), [computed_s(each.pid) for each in both]
    for number in range(count):
        for each in both if number % 2 else reversed(both):
            await each.grant()
    took = time.monotonic() - began
    for each, then in zip(both, before, strict=True):
        each.grants_cpu_s = (computed_s(each.pid) - then - took * each.rest_s) / count


async def measure(servers: dict[str, Server], options: argparse.Namespace) -> None:
    """Measure, and print."""
    results = Results.of("seeing.py", options)
    both: list[Seen] = []
    async with AsyncExitStack() as stack:
        for name, server in servers.items():
            credentials = server.credentials()
            pool = await stack.enter_async_context(connect_pool(credentials))
            both.append(Seen(name, server, pool))
        print(f"load {os.getloadavg()[0]:.1f} at the start")
        await trio.sleep(5)  # they have started
        exporter_s = await at_rest(both, options.rest)
        memory = [each.memory_mb for each in both]
        exporter = exporter_of(both[0].pid)
        exporter_mb = resident_mb(exporter) if exporter else float("nan")
        for each in both:
            for _ in range(HELD):
                await each.pool.allocate(request(each.pool, fraction=HELD_SHARE), wait_s=0)
        token = await both[0].pool.create_token(TokenKind.VIEWER, "bench", 3600.0)
        scraper = Scraper(both[0].server.credentials(), both[0].server.folder, token)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scraper.run, 36_000.0)
            await trio.sleep(2)
            await at_rest(both, options.rest)
            await take_turns(both, options.grants)
            nursery.cancel_scope.cancel()
    done = await trio.run_process([sys.executable, "-c", MEASURE_IMPORTS], capture_stdout=True)
    imported_mb = int(done.stdout) * PAGE / 1e6
    on, off = both
    rows = [
        ("grant p50", *(quantile_ms(each.grants, 50) for each in both), "ms", 1.05),
        ("grant p99", *(quantile_ms(each.grants, 99) for each in both), "ms", 1.05),
        ("processor of the server, a grant", 1e3 * on.grants_cpu_s, 1e3 * off.grants_cpu_s, "ms",
         1.05),
        ("processor at rest, 50 leases, scraped", 1e3 * on.rest_s, 1e3 * off.rest_s, "ms/s", 0),
    ]  # fmt: skip
    for metric, seen, without, unit, limit in rows:
        print(f"{metric:38} with {seen:8.2f} {unit}, without {without:8.2f} {unit}, ratio"
              f" {seen / without:.3f}{f' (at most {limit})' if limit else ''}")  # fmt: skip
        results.add("with", metric, seen, unit, native=without)
    more = memory[0] - memory[1] + imported_mb
    print(f"memory of the server at rest: with {memory[0]:.1f} MB, without {memory[1]:.1f} MB;"
          f" modules {imported_mb:.1f} MB; {more:.1f} MB more (at most 20)")  # fmt: skip
    results.add("with", "memory more", more, "MB", budget="20")
    print(f"exporter at rest, without leases: {100 * (exporter_s or 0):.2f} % of a core"
          f" (at most 1), {exporter_mb:.1f} MB (at most 94)")  # fmt: skip
    print(
        f"{len(on.grants)} and {len(off.grants)} grants; load {os.getloadavg()[0]:.1f} at the end"
    )


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grants", type=int, default=300)
    parser.add_argument("--rest", type=float, default=30.0)
    add_options(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        servers: dict[str, Server] = {}
        try:
            for each, program in (("on", ("-m", "gpupool.cli.main")), ("off", (str(UNSEEN),))):
                folder = Path(name) / each
                folder.mkdir()
                servers[each] = Server(folder, program)
            trio.run(measure, servers, options)
        finally:
            for server in servers.values():
                server.stop()


if __name__ == "__main__":
    main()
