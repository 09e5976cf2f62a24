"""Durable commits and grants, rejoin and failover over mutual TLS, beside bare pysyncobj.

    python tests/benchmarks/consensus.py [--voters 3,5,7] [--seconds 3] [--failovers 10]
        [--csv FILE]

Every server is a process of its own, with a journal on the disk of ``--directory``, connected over
loopback by TLS 1.3 with certificates made for the occasion. The client runs in the process of the
server that it asks. Bare pysyncobj runs with its defaults (no journal, no encryption) in the same
way. ``failover.py`` measures whole servers instead, after idle seconds.
"""

import argparse
import contextlib
import datetime
import ipaddress
import json
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Tests load this file as a module, without its folder on the path.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from results import Results, add_options

SERVER = Path(__file__).with_name("consensus_server.py")
REJOIN_S_MAX = 60.0


# Below the ports that Linux gives to connections, so that no connection of a cluster beside this
# one takes a port between its choice and its use.
PORTS = iter(random.sample(range(12_000, 32_000), 20_000))


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on, another one each time."""
    for port in PORTS:
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise RuntimeError("no free port below 32,000")


class Process:
    def __init__(self, mode: str, name: str, ports: dict[str, int], directory: Path) -> None:
        arguments = [sys.executable, str(SERVER), mode, name, json.dumps(ports), str(directory)]
        self.process = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, **request: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def do(self, **request: object) -> Any:
        self.ask(**request)
        return self.answer()


class Cluster:
    def __init__(
        self,
        mode: str,
        voters: int,
        directory: Path,
        *,
        table: bool = False,
        more: Sequence[str] = (),
    ) -> None:
        """Start the servers; ``more`` gets certificates too."""
        self.names = [f"server-{number}" for number in range(voters)]
        ports = {name: free_port() for name in self.names}
        make_certificates([*self.names, *more], directory)
        if table:
            (directory / "table").touch()
        self.mode, self.ports, self.directory = mode, ports, directory
        self.processes = {name: self.start(name) for name in self.names}

    def start(self, name: str) -> Process:
        return Process(self.mode, name, self.ports, self.directory)

    def leader(self) -> str:
        """Return the leader, once all servers know that all of them vote.

        Until then, the others may be no majority of the voters that they know.
        """
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            health = {name: process.do(do="health") for name, process in self.processes.items()}
            leaders = [name for name, (leads, *_) in health.items() if leads]
            if leaders and all(len(voters) == len(health) for _, voters, *_ in health.values()):
                return leaders[0]
            time.sleep(0.1)
        raise TimeoutError("no leader of all voters within 30 s")

    def follower(self) -> str:
        """Return a server that does not lead."""
        leader = self.leader()
        return next(name for name in self.names if name != leader)

    def cpu_seconds(self) -> float:
        return sum(process.do(do="health")[3] for process in self.processes.values())

    def stop(self) -> None:
        for process in self.processes.values():
            process.process.kill()
            process.process.wait()


def make_certificates(names: Sequence[str], directory: Path) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    now = datetime.datetime.now(datetime.UTC)
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "benchmark")])
    issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())

    def sign(subject: x509.Name, key: Any, extension: x509.ExtensionType) -> x509.Certificate:
        signs = key is ca_key
        usage = x509.KeyUsage(
            digital_signature=not signs, key_cert_sign=signs, crl_sign=signs,
            content_commitment=False, key_encipherment=False, data_encipherment=False,
            key_agreement=False, encipher_only=False, decipher_only=False,
        )  # fmt: skip
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(ca_name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
            # Python 3.13 and later check certificates strictly, and want these.
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .add_extension(issuer_id, False)
            .add_extension(usage, True)
            .sign(ca_key, hashes.SHA256())
        )

    def pem(certificate: x509.Certificate) -> bytes:
        return certificate.public_bytes(serialization.Encoding.PEM)

    ca = sign(ca_name, ca_key, x509.BasicConstraints(ca=True, path_length=None))
    (directory / "ca.pem").write_bytes(pem(ca))
    for name in names:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        loopback = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        alternative = x509.SubjectAlternativeName([x509.DNSName(name), loopback])
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        (directory / f"{name}.pem").write_bytes(private + pem(sign(subject, key, alternative)))


def record(results: Results, mode: str, case: str, metric: str, figure: float, unit: str) -> None:
    """Add a figure of one mode; figures of bare pysyncobj have separate rows."""
    if mode == "bare":
        results.add(case, metric, None, unit, native=figure)
    else:
        results.add(case, metric, figure, unit)


def record_load(
    results: Results, mode: str, case: str, rate: float, median: float, p99: float
) -> None:
    """Add a load's rate and its latency percentiles."""
    record(results, mode, case, "rate", rate, "1/s")
    record(results, mode, case, "p50", median, "ms")
    record(results, mode, case, "p99", p99, "ms")


def measure(mode: str, voters: int, seconds: float, directory: Path, results: Results) -> None:
    """Measure commits of 64 bytes, through the leader and through a follower."""
    cluster = Cluster(mode, voters, directory)
    try:
        leader = cluster.leader()
        time.sleep(0.5)
        through = {"leader": leader} | ({"follower": cluster.follower()} if voters > 1 else {})
        for place, name in through.items():
            for in_flight in (1, 64):
                before = cluster.cpu_seconds()
                rate, median, p99 = cluster.processes[name].do(
                    do="load", in_flight=in_flight, seconds=seconds
                )
                # On a busy machine this says more than the rate does.
                cpu_us = 1e6 * (cluster.cpu_seconds() - before) / (rate * seconds)
                row = f"{mode:5} {voters} voters {place:8} {in_flight:3} in flight"
                latency = f"p50 {median:7.2f} ms  p99 {p99:7.2f} ms"
                print(f"{row} {rate:9.0f}/s  {latency}  {cpu_us:6.0f} us of CPU in all", flush=True)
                case = f"commits through the {place}, {voters} voters, {in_flight} in flight"
                record_load(results, mode, case, rate, median, p99)
        if mode == "ours":
            measure_rest(cluster, results)
    finally:
        cluster.stop()


def measure_rest(cluster: Cluster, results: Results) -> None:
    """Print each server's share of a core at rest."""
    time.sleep(1)
    before = {name: process.do(do="health")[3] for name, process in cluster.processes.items()}
    time.sleep(5)
    shares = [
        (process.do(do="health")[3] - before[name]) / 5
        for name, process in cluster.processes.items()
    ]
    text = ", ".join(f"{100 * share:.1f} %" for share in shares)
    case = f"at rest, {len(shares)} voters"
    results.add(case, "highest share of a core", 100 * max(shares), "%")
    print(f"ours  {len(shares)} voters at rest: {text} of a core", flush=True)


def measure_grants(
    mode: str, voters: int, seconds: float, directory: Path, results: Results
) -> None:
    """Grant, end and free leases, three commits each, in the table of a pool with 64 GPUs."""
    cluster = Cluster(mode, voters, directory, table=True)
    try:
        process = cluster.processes[cluster.leader()]
        time.sleep(0.5)
        for in_flight in (1, 64):
            rate, median, p99, journal = process.do(
                do="grants", in_flight=in_flight, seconds=seconds
            )
            written = (
                f"{journal:.0f} bytes of journal each, with end and free"
                if journal > 0
                else "no journal"
            )
            row = f"{mode:5} {voters} voters grants   {in_flight:3} in flight"
            print(
                f"{row} {rate:9.0f}/s  p50 {median:7.2f} ms  p99 {p99:7.2f} ms  {written}",
                flush=True,
            )
            case = f"grants with end and free, {voters} voters, {in_flight} in flight"
            record_load(results, mode, case, rate, median, p99)
    finally:
        cluster.stop()


def measure_rejoin(mode: str, missed: int, directory: Path, results: Results) -> None:
    """Kill a follower of three, commit so many commands, and time how soon it has them."""
    cluster = Cluster(mode, 3, directory)
    try:
        name, leader = cluster.follower(), cluster.leader()
        process = cluster.processes[name].process
        process.kill()
        process.wait()
        aim = cluster.processes[leader].do(do="commits", count=missed, in_flight=64)
        cluster.processes[name] = returned = cluster.start(name)
        returned.do(do="applied")  # The start of Python is over once it answers.
        began = time.monotonic()
        while returned.do(do="applied") < aim:
            if time.monotonic() - began > REJOIN_S_MAX:
                print(f"{mode:5} 3 voters rejoin: not within {REJOIN_S_MAX:.0f} s", flush=True)
                return
            time.sleep(0.005)
        took_s = time.monotonic() - began
    finally:
        cluster.stop()
    print(f"{mode:5} 3 voters rejoin after {missed} missed commands: {took_s:.3f} s", flush=True)
    record(results, mode, f"rejoin after {missed} commands, 3 voters", "single", took_s, "s")


def failover_s(cluster: Cluster) -> float:
    """Kill the leader, and return the seconds until the first commit of any survivor."""
    leader = cluster.leader()
    time.sleep(0.5 + 0.1 * random.random())
    survivors = [p for name, p in cluster.processes.items() if name != leader]
    killed = time.monotonic()
    cluster.processes[leader].process.send_signal(signal.SIGKILL)
    for survivor in survivors:
        survivor.ask(do="first_write")
    return float(min(survivor.answer() for survivor in survivors) - killed)


def measure_failover(
    mode: str, voters: int, count: int, directory: Path, at_once: int, results: Results
) -> None:
    """Print how long the first commit takes after the leader is killed, of ``count`` clusters.

    So many clusters start at once; when all have a leader, theirs are killed one after the other.
    """
    times: list[float] = []
    while len(times) < count:
        clusters: list[Cluster] = []
        try:
            for number in range(len(times), min(len(times) + at_once, count)):
                run = directory / f"failover-{mode}-{number}"
                run.mkdir()
                clusters.append(Cluster(mode, voters, run))
            for cluster in clusters:
                cluster.leader()
            for cluster in clusters:
                times.append(failover_s(cluster))
                cluster.stop()
        finally:
            for cluster in clusters:
                cluster.stop()
    times.sort()
    median = statistics.median(times)
    p99 = times[max(0, -(-count * 99 // 100) - 1)]
    text = f"median {median:.3f} s  p99 {p99:.3f} s  max {times[-1]:.3f} s  of {count}"
    print(f"{mode:5} {voters} voters failover after kill -9: {text}", flush=True)
    case = f"failover after kill -9, {voters} voters, {count} kills"
    for metric, figure in (("p50", median), ("p99", p99), ("max", times[-1])):
        record(results, mode, case, metric, figure, "s")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--voters", default="3,5,7")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each row")
    parser.add_argument("--failovers", type=int, default=10)
    parser.add_argument("--failovers-at-once", type=int, default=1, help="clusters started")
    parser.add_argument("--missed", type=int, default=10_000, help="before a rejoin")
    parser.add_argument("--directory", type=Path, help="where the journals go")
    parser.add_argument("--no-bare", action="store_true")
    add_options(parser)
    options = parser.parse_args()
    results = Results.of("consensus.py", options)
    modes = ("ours",) if options.no_bare else ("ours", "bare")
    with tempfile.TemporaryDirectory(dir=options.directory) as name:

        def folder(run: str) -> Path:
            made = Path(name) / run
            made.mkdir()
            return made

        for voters in [int(text) for text in options.voters.split(",")]:
            for mode in modes:
                run = folder(f"commits-{mode}-{voters}")
                measure(mode, voters, options.seconds, run, results)
            for mode in modes:
                run = folder(f"grants-{mode}-{voters}")
                measure_grants(mode, voters, options.seconds, run, results)
        for mode in modes:
            if options.missed:
                measure_rejoin(mode, options.missed, folder(f"rejoin-{mode}"), results)
            if options.failovers:
                at_once = options.failovers_at_once
                measure_failover(mode, 5, options.failovers, Path(name), at_once, results)


if __name__ == "__main__":
    main()
