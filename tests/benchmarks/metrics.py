"""Metrics: series, size and time of a scrape while grants are in flight, and its cost to them.

    python tests/benchmarks/metrics.py [--seconds 10] [--rounds 4] [--clients 64] [--csv FILE]

One ``gpupool join`` with eight emulated GPUs holds 50 leases, while the clients of this process
take and give back others as fast as they can. Times with a scrape each second and times without
take turns, so that what else the machine does falls on both. No worker is started.

A web server that does nothing but answer the same number of bytes from memory is scraped half a
second after each scrape: what it takes is the machine's part. Prometheus keeps its connection, so
the first answer over each one has a row of its own: it has TLS in it, and the first of all the
exporter's imports.
"""

import argparse
import json
import os
import re
import signal
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import trio
from results import Results, add_options

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.monitoring.http.web_kit import get
from tests.remoting.control.control_cluster import request

from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.state import TokenKind
from gpupool.remoting.client.credentials import Credentials, credentials_path, load_credentials
from gpupool.remoting.client.pool_client import Pool, connect_pool

HELD = 50
HELD_SHARE, TAKEN_SHARE = 0.01, 0.005


class Server:
    """One server in a process, with a separate home."""

    def __init__(self, folder: Path, program: Sequence[str] = ("-m", "gpupool.cli.main")) -> None:
        self.folder = folder
        self._environment = {**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
        self._log = (folder / "log").open("w")
        command = [sys.executable, *program, "join", "--emulate", "8:16G"]
        command += ["--listen", "127.0.0.1:0", "--state-dir", str(folder / "state")]
        self.process = subprocess.Popen(command, env=self._environment, stderr=self._log)

    def credentials(self) -> Credentials:
        """Wait until it is up, and return its operator's."""
        path = credentials_path(self._environment)
        for _ in range(300):
            if path.exists():
                return load_credentials(path)
            time.sleep(0.1)
        raise SystemExit((self.folder / "log").read_text())

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()
        self._log.close()


class Plain(BaseHTTPRequestHandler):
    """Answers 45 kB from memory."""

    protocol_version = "HTTP/1.1"
    body = bytes(45_000)

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


def serve_plain() -> None:
    """Serve one connection at a time, and print the port."""
    with HTTPServer(("127.0.0.1", 0), Plain) as server:
        print(server.server_port, flush=True)
        server.serve_forever()


async def scrape(ca_file: str, address: str, token: str, plain_port: int, seconds: float) -> None:
    """Scrape once a second over one connection, and print the times and the last text."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=ca_file)
    stream = await trio.open_ssl_over_tcp_stream(
        host, int(port), ssl_context=context, https_compatible=True
    )
    plain = await trio.open_tcp_stream("127.0.0.1", plain_port)
    times, plain_times, end = list[float](), list[float](), trio.current_time() + seconds
    body = b""
    async with stream, plain:
        await get(plain, "/")
        while (began := trio.current_time()) < end:
            status, body = await get(stream, "/metrics", token)
            assert status == 200, (status, body)
            times.append(trio.current_time() - began)
            await trio.sleep_until(began + 0.5)
            began_plain = trio.current_time()
            await get(plain, "/")
            plain_times.append(trio.current_time() - began_plain)
            await trio.sleep_until(began + 1)
    print(json.dumps({"times": times, "plain": plain_times, "body": body.decode()}))


class Scraper:
    """Scrapes in a separate process, so that this process's load does not affect the times."""

    def __init__(self, credentials: Credentials, folder: Path, token: str) -> None:
        self._ca_file = folder / "trusted.pem"
        self._ca_file.write_text(credentials.ca_pem)
        self._rest = [str(credentials.addresses[0]), token]
        self.times: list[float] = []
        self.first: list[float] = []
        self.plain: list[float] = []
        self.body = b""

    async def run(self, seconds: float) -> None:
        async with trio.open_nursery() as nursery:
            serve = [sys.executable, __file__, "--plain"]
            plain = await nursery.start(
                partial(trio.run_process, serve, stdout=subprocess.PIPE, check=False)
            )
            assert plain.stdout is not None
            port = bytes(await plain.stdout.receive_some()).decode().strip()
            command = [sys.executable, __file__, "--scrape", str(self._ca_file), *self._rest, port]
            done = await trio.run_process([*command, str(seconds)], capture_stdout=True)
            plain.kill()
        said = json.loads(done.stdout)
        self.first.append(said["times"][0])
        self.times += said["times"][1:]
        self.plain += said["plain"]
        self.body = said["body"].encode()


async def grants(pools: list[Pool], seconds: float) -> list[float]:
    """Return how long each grant took; every pool has one under way at a time."""
    times: list[float] = []

    async def client(pool: Pool, scope: trio.CancelScope) -> None:
        while not scope.cancel_called and trio.current_time() < end:
            began = trio.current_time()
            try:
                hold = await pool.allocate(request(pool, fraction=TAKEN_SHARE), wait_s=0)
            except GpupoolError as error:
                print(f"no grant: {error}")
                continue
            times.append(trio.current_time() - began)
            await hold.release()

    end = trio.current_time() + seconds
    async with trio.open_nursery() as nursery:
        for pool in pools:
            nursery.start_soon(client, pool, nursery.cancel_scope)
    return times


def p99(times: list[float]) -> float:
    return 1000 * statistics.quantiles(times, n=100, method="inclusive")[98]


def said_of_requests(body: bytes) -> str:
    """Return the exporter's own count of its answers by how long they took, without the way."""
    found = re.findall(r"request_duration_seconds_bucket\{(.*)\} (\S+)", body.decode())
    buckets = [(labels, count) for labels, count in found if '"/metrics"' in labels]
    bounds = [re.sub(r'.*le="([^"]*)".*', r"\1", labels) for labels, _ in buckets]
    counts = [int(float(count)) for _, count in buckets]
    return ", ".join(f"{count} in {bound} s" for bound, count in zip(bounds, counts, strict=True))


async def measure(server: Server, options: argparse.Namespace) -> None:
    credentials = server.credentials()
    results = Results.of("metrics", options)
    with_scrapes: list[float] = []
    without: list[float] = []
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(connect_pool(credentials))
        token = await first.create_token(TokenKind.VIEWER, "bench", 3600.0)
        for _ in range(HELD):
            await first.allocate(request(first, fraction=HELD_SHARE), wait_s=0)
        pools = [
            await stack.enter_async_context(connect_pool(credentials))
            for _ in range(options.clients)
        ]
        scraper = Scraper(credentials, server.folder, token)
        await grants(pools, 2)
        for _ in range(options.rounds):
            without += await grants(pools, options.seconds)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(scraper.run, options.seconds)
                with_scrapes += await grants(pools, options.seconds)
    series = [line for line in scraper.body.splitlines() if not line.startswith(b"#")]
    case = f"8 emulated GPUs, {HELD} leases, {options.clients} grants in flight"
    rows = [
        ("series", float(len(series)), "", "1200"),
        ("body", float(len(scraper.body)), "B", "120000"),
        ("scrape p50", 1000 * statistics.median(scraper.times), "ms", ""),
        ("scrape p99", p99(scraper.times), "ms", "50"),
        ("first of a connection", 1000 * statistics.median(scraper.first), "ms", ""),
        ("plain server p50", 1000 * statistics.median(scraper.plain), "ms", ""),
        ("plain server p99", p99(scraper.plain), "ms", ""),
        ("grant p99 without scraping", p99(without), "ms", ""),
        ("grant p99 with scraping", p99(with_scrapes), "ms", ""),
        ("ratio of the two", p99(with_scrapes) / p99(without), "", "1.05"),
        ("grants a second without", len(without) / options.rounds / options.seconds, "/s", ""),
        ("grants a second with", len(with_scrapes) / options.rounds / options.seconds, "/s", ""),
    ]
    for metric, value, unit, budget in rows:
        print(f"{metric:28} {value:10.2f} {unit:3} {f'(at most {budget})' if budget else ''}")
        results.add(case, metric, value, unit, budget=budget)
    slowest = ", ".join(f"{1000 * each:.0f}" for each in sorted(scraper.times)[-5:])
    print(f"{len(scraper.times)} scrapes, the slowest took {slowest} ms")
    print(f"within the exporter: {said_of_requests(scraper.body)}")
    print(f"{len(without)} and {len(with_scrapes)} grants")


def main() -> None:
    if sys.argv[1:2] == ["--plain"]:
        serve_plain()
        return
    if sys.argv[1:2] == ["--scrape"]:
        ca_file, address, token, port, seconds = sys.argv[2:7]
        trio.run(scrape, ca_file, address, token, int(port), float(seconds))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--clients", type=int, default=64)
    add_options(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))
        try:
            trio.run(measure, server, options)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
