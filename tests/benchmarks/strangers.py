"""The cost of unauthenticated peers to one real server: memory and processor time until refusal.

    python tests/benchmarks/strangers.py [--kinds silent,hello] [--counts 500,10000] [--csv FILE]

For each kind and count a new server (`gpupool join --emulate 1:1G`) is started. Strangers from 100
loopback addresses then hold that many connections for ``--seconds``; one that is closed is opened
again. Memory is the growth of the server's peak of resident memory, by the connections that were
held at once; processor time is the server's, without what it takes in peace, by the connections
that were opened. A server's exporter and its other processes count as the server. Eight logins are
tried meanwhile. `tests/attacks` has what users of a pool notice.
"""

import argparse
import http.client
import os
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path

import trio
from results import Results, add_options

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "attacks"))

import attack_pool
from failover import Servers, whole
from slow_https import SlowClients

from gpupool.pool.errors import GpupoolError
from gpupool.remoting.client.credentials import Credentials, load_credentials
from gpupool.remoting.client.pool_client import connect_pool

LOGINS = 8
SETTLE_S = 2.0
FLOODS = 128, 500, 10_000
"""So many have TLS at once; more than those; and a flood."""


def greeting(ports: list[int], seconds: float, count: int) -> int:
    """Do the whole handshake, and say nothing then but a byte now and then."""
    return SlowClients(ports, count, "control.gpupool").run(seconds)


def https(ports: list[int], seconds: float, count: int) -> int:
    """Do the whole handshake with the web page's name, and send a request byte by byte."""
    return SlowClients(ports, count).run(seconds)


def silent(ports: list[int], seconds: float, count: int) -> int:
    """Say nothing."""
    return attack_pool.Strangers(ports, count, lambda _one: True).run(seconds)


def one_byte(ports: list[int], seconds: float, count: int) -> int:
    """Send one byte of a TLS record."""
    return attack_pool.Strangers(ports, count, lambda one: one.send(b"\x16") == 1).run(seconds)


def hello(ports: list[int], seconds: float, count: int) -> int:
    """Send a ClientHello, and leave the answer alone."""
    opening = attack_pool.hello()
    return attack_pool.Strangers(ports, count, lambda one: one.send(opening) > 0).run(seconds)


KINDS = {each.__name__: each for each in (silent, one_byte, hello, greeting, https)}


@dataclass
class Usage:
    """A process at one moment."""

    cpu_s: float
    resident: int
    peak: int


def usage(pid: int) -> Usage:
    """Return a process's processor time and memory."""
    proc = Path("/proc") / str(pid)
    stat = (proc / "stat").read_text().rpartition(")")[2].split()
    status = dict(
        line.split(":\t", 1) for line in (proc / "status").read_text().splitlines() if ":\t" in line
    )
    resident, peak = (1024 * int(status[name].split()[0]) for name in ("VmRSS", "VmHWM"))
    return Usage((int(stat[11]) + int(stat[12])) / attack_pool.CLOCK_TICKS, resident, peak)


def whole_usage(pids: Iterable[int]) -> Usage:
    """Return a server's resource use, with its exporter and its other processes."""
    found = [usage(pid) for pid in pids]
    return Usage(*(sum(figures) for figures in zip(*map(astuple, found), strict=True)))


def browse(port: int) -> None:
    """Ask once, so that no unauthenticated peer pays for the exporter's lazy imports."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context)
    connection.request("GET", "/healthz")
    connection.getresponse().read()
    connection.close()


async def log_in(credentials: Credentials, seconds: float) -> list[float]:
    """Try the logins, spread over the time; return the seconds of those that worked."""
    times: list[float] = []
    for _ in range(LOGINS):
        before = time.perf_counter()
        try:
            async with connect_pool(credentials, timeout_s=5) as pool:
                await pool.view()
            times.append(time.perf_counter() - before)
        except (GpupoolError, ExceptionGroup) as error:
            print(f"  no login: {error}", flush=True)
        await trio.sleep(seconds / LOGINS)
    return times


async def measure(folder: Path, kind: str, count: int, seconds: float, results: Results) -> None:
    """Measure one kind of unauthenticated peer at a separate server."""
    servers = Servers(folder, 1, "1:1G")
    try:
        await servers.create()
        credentials = load_credentials(folder / "credentials.json")
        async with connect_pool(credentials) as pool:
            await whole(pool, servers)
        ((name, process),) = servers.processes.items()
        # The exporter has the TLS and the requests of strangers who speak HTTPS.
        pids = [int(each.name) for each in attack_pool.family(Path("/proc") / str(process.pid))]
        await trio.to_thread.run_sync(browse, servers.ports[name])
        quiet = whole_usage(pids).cpu_s
        await trio.sleep(SETTLE_S)
        for pid in pids:
            (Path("/proc") / str(pid) / "clear_refs").write_text("5")  # the peak begins anew
        before = whole_usage(pids)
        quiet_share = (before.cpu_s - quiet) / SETTLE_S
        command = [sys.executable, __file__, "--attack", kind, "--seconds", str(seconds)]
        command += ["--counts", str(count), "--port", str(servers.ports[name])]
        start = partial(subprocess.Popen, command, stdout=subprocess.PIPE, text=True)
        attacker = await trio.to_thread.run_sync(start)
        began = time.perf_counter()
        logins = await log_in(credentials, seconds - 2)
        said, _ = await trio.to_thread.run_sync(attacker.communicate)
        after, took = whole_usage(pids), time.perf_counter() - began
    finally:
        servers.stop()
    opened = int(said)
    cpu_ms = 1000 * (after.cpu_s - before.cpu_s - quiet_share * took) / opened
    grown = (after.peak - before.resident) / 1024
    case = f"{kind}, {count}"
    figures = {
        "memory of each": (grown / count, "KiB"),
        "memory of all": (grown / 1024, "MiB"),
        "processor time of each": (cpu_ms, "ms"),
        "opened": (float(opened), ""),
        "logins": (float(len(logins)), f"of {LOGINS}"),
        "slowest login": (1000 * max(logins, default=float("nan")), "ms"),
    }
    for metric, (figure, unit) in figures.items():
        results.add(case, metric, figure, unit)
    words = "  ".join(f"{name} {figure:.2f} {unit}" for name, (figure, unit) in figures.items())
    print(f"{case:16} {words}  load {os.getloadavg()[0]:.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--counts", default=",".join(map(str, FLOODS)))
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--attack", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    add_options(parser)
    options = parser.parse_args()
    counts = [int(count) for count in options.counts.split(",")]
    if options.attack:
        print(KINDS[options.attack]([options.port], options.seconds, counts[0]))
        return
    results = Results.of("strangers.py", options)
    for kind in options.kinds.split(","):
        for count in counts:
            with tempfile.TemporaryDirectory() as name:
                trio.run(measure, Path(name), kind, count, options.seconds, results)


if __name__ == "__main__":
    main()
