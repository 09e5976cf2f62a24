"""Attack a pool of three real servers, and measure the effect on its users.

    python tests/attacks/attack_pool.py [--seconds 60] [--only silent,drip] [--quiet] [--csv FILE]

The pool's users ask for GPUs, log in and ping all the time, and run 20 programs: first without an
attack, and then during each one. An attack passes when no server was silent for longer than 1 s, no
leader was deposed, every login worked, every program had the right results, and the servers'
memory and descriptors stayed within their bounds. The attackers are strangers, a user, and code in
that user's workers; they run at nice 10, because they share the machine. Code in a worker tries to
kill all processes: try it in a process namespace of its own (``unshare -pf --mount-proc``).
``--seconds 115`` takes half an hour.
"""

import argparse
import contextlib
import os
import resource
import selectors
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from failover import Servers, whole
from hostile_workers import WORKERS_CODE, hostile_workers
from results import Results, add_options
from sinks import Sinks, Work
from slow_https import slow_https
from tests.remoting.control.control_cluster import request

from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.state import TokenKind
from gpupool.pool.transitions.policy_versions import pack_text
from gpupool.remoting.client.credentials import (
    Credentials,
    load_credentials,
    save_credentials,
)
from gpupool.remoting.client.enrolment import login
from gpupool.remoting.client.pool_client import Pool as Client
from gpupool.remoting.client.pool_client import connect_pool
from gpupool.remoting.privileges.first_process import leave_first_place
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.protocol.addresses import Address
from gpupool.remoting.server.server_settings import ServerSettings
from gpupool.remoting.transport.connections import explain, innermost

HERE = Path(__file__).resolve().parent
SERVER_COUNT = 3
GPUS = "8:1G"
PROGRAM_COUNT = 20
PROGRAM_S = 60.0
"""A program must start, and end when it is told to, within that time."""

PROGRAM = """
import pathlib, sys, time
import numpy, cupy
stop = pathlib.Path(sys.argv[1])
rng = numpy.random.default_rng(int(sys.argv[2]))
while not stop.exists():
    before = time.perf_counter()
    a, b = rng.random((64, 64)), rng.random((64, 64))
    assert numpy.allclose((cupy.asarray(a) @ cupy.asarray(b)).get(), a @ b)
    print(time.perf_counter() - before, flush=True)
    time.sleep(0.25)
"""
SOURCE_COUNT = 100
PIPELINED = 200
"""Calls that a hostile user sends at once, without waiting for an answer."""

SILENT_MAX_S = 1.0
GROWTH_MAX = 128 * 2**20
"""Bytes that each server may have more than at first: TLS of strangers, and users' own."""

DESCRIPTORS_MAX = 2 * ServerSettings().unauthenticated_count_max + 512
"""For each server: a stranger's at the server and at its exporter."""

LEFT_MAX = 64
"""Descriptors that each server may have more than at first when nobody attacks."""

THIS_AND_CHILDREN = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


# --- what users notice ----------------------------------------------------------------------------


@dataclass
class Noticed:
    """The users' measurements during one attack; times in seconds."""

    grants: list[float] = field(default_factory=list[float])
    pings: list[float] = field(default_factory=list[float])
    logins: list[float] = field(default_factory=list[float])
    failures: list[str] = field(default_factory=list[str])
    terms: list[int] = field(default_factory=list[int])
    cpu_s: float = 0.0
    memory: int = 0
    descriptors: int = 0
    attempts: int = 0
    attacker_s: float = 0.0  # processor time
    stall: float = 0.0  # of a program

    def verdict(self) -> list[str]:
        """Return the failures; empty when the pool held."""
        wrong = list(dict.fromkeys(self.failures))[:3]
        if max(self.pings, default=0.0) > SILENT_MAX_S:
            wrong.append(f"a server was silent for {max(self.pings):.1f} s")
        if len(set(self.terms)) > 1:
            wrong.append(f"a leader was deposed: terms {min(self.terms)} to {max(self.terms)}")
        return wrong


def out_of_bounds(first: Noticed, noticed: Noticed, *, is_quiet: bool) -> list[str]:
    """Return the bounds of memory and descriptors that all servers together exceed."""
    wrong: list[str] = []
    if noticed.memory - first.memory > SERVER_COUNT * GROWTH_MAX:
        wrong.append(f"memory grew by {(noticed.memory - first.memory) / 2**20:.0f} MiB")
    most = first.descriptors + SERVER_COUNT * LEFT_MAX
    if noticed.descriptors > (most if is_quiet else SERVER_COUNT * DESCRIPTORS_MAX):
        wrong.append(f"{noticed.descriptors} descriptors")
    return wrong


@dataclass
class Pool:
    """The servers under attack, the credentials of their users, and the programs."""

    servers: Servers
    folder: Path
    program_count: int
    programs: list["subprocess.Popen[bytes]"] = field(
        default_factory=list["subprocess.Popen[bytes]"]
    )

    def credentials(self, user: str) -> Credentials:
        return load_credentials(self.folder / f"{user}.json")

    @property
    def addresses(self) -> tuple[Address, ...]:
        return tuple(Address("127.0.0.1", port) for port in self.servers.ports.values())

    async def start(self) -> None:
        """Start the servers, log the users in, and start the programs."""
        await self.servers.create()
        operator = load_credentials(Path(self.servers.env["GPUPOOL_CREDENTIALS"]))
        async with connect_pool(operator) as pool:
            await whole(pool, self.servers)
            for user in ("ada", "mallory"):
                token = await pool.create_token(TokenKind.USER, user, 7200)
                save_credentials(self.folder / f"{user}.json", await login(token))
        ports = (str(port) for port in self.servers.ports.values())
        (self.folder / "ports").write_text(" ".join(ports))
        self.start_programs()
        with trio.fail_after(PROGRAM_S):
            while not all(self.progress()):  # noqa: ASYNC110 - by others
                await trio.sleep(0.2)

    def start_programs(self) -> None:
        env = self.servers.env | {"GPUPOOL_CREDENTIALS": str(self.folder / "ada.json")}
        for number in range(self.program_count):
            argv = [*(sys.executable, "-m", "gpupool.cli.main", "run", "-q", "-p", "0.25", "--")]
            argv += [sys.executable, "-c", PROGRAM, str(self.folder / "stop"), str(number)]
            with (self.folder / f"program{number}").open("wb") as out:
                self.programs.append(
                    subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=out)
                )

    def progress(self) -> list[list[float]]:
        """Return the seconds of each program's rounds."""
        files = (self.folder / f"program{number}" for number in range(self.program_count))
        return [[float(line) for line in file.read_text().split("\n")[:-1]] for file in files]

    def end_programs(self) -> list[str]:
        """Tell the programs to end; return the failures among their exit statuses."""
        (self.folder / "stop").touch()
        wrong: list[str] = []
        for number, process in enumerate(self.programs):
            try:
                status = process.wait(PROGRAM_S)
            except subprocess.TimeoutExpired:
                process.kill()
                status = "none"
            if status != 0:
                wrong.append(f"program {number} ended with {status}")
        return wrong


async def use_pool(servers: Pool, noticed: Noticed, seconds: float) -> None:
    """Be the pool's users for a while."""
    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_for_gpus, servers, noticed)
            nursery.start_soon(log_in, servers, noticed)
            for address in servers.addresses:
                nursery.start_soon(ping, servers, address, noticed)


async def ask_for_gpus(servers: Pool, noticed: Noticed) -> None:
    async with connect_pool(servers.credentials("ada")) as pool:
        while True:
            before = time.perf_counter()
            try:
                hold = await pool.allocate(request(pool, 1, 0.5), wait_s=5)
            except GpupoolError as error:
                noticed.failures.append(f"no grant: {error}")
                continue
            noticed.grants.append(time.perf_counter() - before)
            await hold.release()
            noticed.terms.append((await pool.view()).raft.term)
            await trio.sleep(0.05)


async def log_in(servers: Pool, noticed: Noticed) -> None:
    while True:
        before = time.perf_counter()
        try:
            async with connect_pool(servers.credentials("ada"), timeout_s=5) as pool:
                await pool.view()
            noticed.logins.append(time.perf_counter() - before)
        except (GpupoolError, ExceptionGroup) as error:
            noticed.failures.append(f"no login: {explain(error)}: {innermost(error)}")
        await trio.sleep(0.5)


async def ping(servers: Pool, address: Address, noticed: Noticed) -> None:
    async with connect_pool(servers.credentials("ada"), [address]) as pool:
        connection = next(iter(pool.connections.by_server.values()))
        while True:
            before = time.perf_counter()
            try:
                await connection.call(m.Ping(), timeout_s=20)
            except GpupoolError as error:
                await trio.lowlevel.checkpoint()  # at the end of the attack, we hang up ourselves
                noticed.failures.append(f"a client in peace was hung up on: {error}")
                return
            noticed.pings.append(time.perf_counter() - before)
            await trio.sleep(0.02)


def usage(servers: Servers) -> tuple[float, int, int]:
    """Return processor seconds, resident bytes and descriptors of all servers, without workers."""
    cpu_s, memory, descriptors = 0.0, 0, 0
    for process in servers.processes.values():
        for proc in family(Path("/proc") / str(process.pid)):
            with contextlib.suppress(OSError):
                stat = (proc / "stat").read_text().rpartition(")")[2].split()
                cpu_s += (int(stat[11]) + int(stat[12])) / CLOCK_TICKS
                memory += int((proc / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
                descriptors += len(list((proc / "fd").iterdir()))
    return cpu_s, memory, descriptors


def family(proc: Path) -> list[Path]:
    """Return a server's processes: itself, and its descendants that are no workers."""
    try:
        if b"worker_main" in (proc / "cmdline").read_bytes():
            return []
    except OSError:  # it has ended
        return []
    found = [proc]
    # Each thread has the children that it started; the exporter is another thread's.
    for path in proc.glob("task/*/children"):
        with contextlib.suppress(OSError):
            for pid in path.read_text().split():
                found += family(proc.parent / pid)
    return found


# --- strangers ------------------------------------------------------------------------------------


def hello() -> bytes:
    """Return a large TLS ClientHello for the control server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["x" * 200] * 10)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="control.gpupool").do_handshake()
    return outgoing.read()


class Strangers:
    """Connections from many addresses to all servers; one that ends is opened again."""

    def __init__(self, ports: list[int], count: int, act: Callable[[socket.socket], bool]) -> None:
        self.ports, self.count, self.act = ports, count, act
        self.selector = selectors.DefaultSelector()
        self.opened = 0

    def open(self) -> None:
        one = socket.socket()
        one.setblocking(False)
        one.bind((f"127.0.1.{1 + self.opened % SOURCE_COUNT}", 0))
        one.connect_ex(("127.0.0.1", self.ports[self.opened % len(self.ports)]))
        self.selector.register(one, selectors.EVENT_WRITE)
        self.opened += 1

    def run(self, seconds: float) -> int:
        """Attack for a while; return how many connections were opened."""
        end = time.monotonic() + seconds
        for _ in range(self.count):
            self.open()
        while time.monotonic() < end:
            for key, events in self.selector.select(0.2):
                one = key.fileobj
                assert isinstance(one, socket.socket)
                try:
                    if events & selectors.EVENT_WRITE:
                        if self.act(one):
                            self.selector.modify(one, selectors.EVENT_READ)
                    elif not one.recv(4096):
                        raise ConnectionError
                except BlockingIOError:
                    continue
                except OSError:
                    self.selector.unregister(one)
                    one.close()
                    self.open()
        return self.opened


def silent(ports: list[int], seconds: float) -> int:
    """Hold 10,000 connections from 100 addresses, and say nothing."""
    return Strangers(ports, 10_000, lambda _one: True).run(seconds)


def one_byte(ports: list[int], seconds: float) -> int:
    """Hold connections with one byte of a TLS record, which was polled for before."""
    return Strangers(ports, 2_000, lambda one: one.send(b"\x16") == 1).run(seconds)


def forgetful(ports: list[int], seconds: float) -> int:
    """Connect, send one byte, and hang up."""

    def act(one: socket.socket) -> bool:
        one.send(b"\x16")
        raise ConnectionError

    return Strangers(ports, 200, act).run(seconds)


def drip(ports: list[int], seconds: float) -> int:
    """Send a ClientHello byte by byte."""
    opening, sent = hello(), dict[int, int]()

    def act(one: socket.socket) -> bool:
        at = sent.get(id(one), 0)
        sent[id(one)] = 0 if at > len(opening) - 3 else at + one.send(opening[at : at + 1])
        if at > len(opening) - 3:
            raise ConnectionError
        return False

    return Strangers(ports, 250, act).run(seconds)


def handshakes(ports: list[int], seconds: float) -> int:
    """Begin as many TLS handshakes as there is room for."""
    opening = hello()
    return Strangers(ports, 500, lambda one: one.send(opening) > 0).run(seconds)


def many_handshakes(ports: list[int], seconds: float) -> int:
    """Hold 10,000 connections from 100 addresses, each of which begins a handshake."""
    opening = hello()
    return Strangers(ports, 10_000, lambda one: one.send(opening) > 0).run(seconds)


# --- a hostile user -------------------------------------------------------------------------------

DRAFTS = (
    "a" + ".a" * 100_000 + " = 1\n",
    "x = " + "[" * 100_000,
    "".join(f'[[window]]\nzone = "Etc/GMT+{n % 12}"\nfrom = "01:00"\n' for n in range(400)),
    "".join(f"[user.u{n}]\nclass = 'k{n}'\n[class.c{n}]\nmax_gpus = 1\n" for n in range(2500)),
)


async def hostile_user(folder: Path, seconds: float, kind: str) -> int:
    """Send drafts, subscribe, or connect, as often as the servers let a user."""
    credentials = load_credentials(folder / "mallory.json")
    count = 0

    async def drafts() -> None:
        nonlocal count
        async with connect_pool(credentials) as pool:
            connections = list(pool.connections.by_server.values())
            while True:
                for connection in connections:
                    call = m.CheckPolicy("ada", None, pack_text(DRAFTS[count % len(DRAFTS)]))
                    count += 1
                    try:
                        await connection.call(call, timeout_s=20)
                    except GpupoolError:
                        await trio.sleep(0.01)

    async def subscriptions() -> None:
        nonlocal count
        async with connect_pool(credentials) as pool:
            for connection in list(pool.connections.by_server.values()):
                count += 1
                with contextlib.suppress(GpupoolError):
                    await connection.call(m.Subscribe(0.1), timeout_s=20)
            await trio.sleep_forever()

    async def pipelined(message: Callable[[Client], m.Call]) -> None:
        """Send as many calls at once as a read of a server takes; answers are thrown away."""
        nonlocal count
        async with connect_pool(credentials) as pool:
            calls = range(10**6, 10**6 + PIPELINED)
            frames = [m.to_frame(each, message(pool), size_max=2**16) for each in calls]
            async with trio.open_nursery() as sending:
                for connection in list(pool.connections.by_server.values()):
                    sending.start_soon(keep_sending, connection.transport, b"".join(frames))

    async def keep_sending(stream: trio.abc.Stream, data: bytes) -> None:
        nonlocal count
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while True:
                await stream.send_all(data)
                count += PIPELINED

    attack, times = {
        "drafts": (drafts, 8),
        "subscriptions": (subscriptions, 200),
        "pings": (partial(pipelined, lambda _pool: m.Ping()), 40),
        "verdicts": (partial(pipelined, lambda pool: m.CheckPolicy("", request(pool))), 40),
        "waits": (partial(pipelined, lambda pool: m.AwaitGpus(request(pool, 8), "busy")), 40),
    }[kind]

    async def again() -> None:
        while True:
            with contextlib.suppress(GpupoolError, ExceptionGroup):  # refused: it has too many
                await attack()
            await trio.sleep(0.5)

    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            for _ in range(times):
                nursery.start_soon(again)
                await trio.sleep(0.01)
    return count


STRANGERS = {
    each.__name__: each
    for each in (silent, one_byte, forgetful, drip, handshakes, many_handshakes, slow_https)
}
ELSEWHERE = {
    "elsewhere": (silent, Work.HOLD),
    "answered_elsewhere": (handshakes, Work.ANSWER),
    "handshakes_elsewhere": (handshakes, Work.HANDSHAKE),
    "many_elsewhere": (many_handshakes, Work.HANDSHAKE),
    "slow_https_elsewhere": (slow_https, Work.HANDSHAKE),
}
"""Attacks on ports without a server, each with its sink's work: an attack's cost to the machine
alone."""

USERS = ("drafts", "subscriptions", "pings", "verdicts", "waits")
ATTACKS = (*STRANGERS, *ELSEWHERE, *USERS, *WORKERS_CODE)


def attack(kind: str, folder: Path, seconds: float) -> int:
    """Run one attacker, as a separate process; return its number of attempts."""
    if kind in ELSEWHERE:
        act, work = ELSEWHERE[kind]
        with Sinks(SERVER_COUNT, work) as ports:  # which run at the priority of servers
            os.nice(10)
            return act(ports, seconds)
    os.nice(10)
    if kind in USERS:
        return trio.run(hostile_user, folder, seconds, kind)
    if kind in WORKERS_CODE:
        return trio.run(hostile_workers, folder, seconds, kind)
    ports = [int(port) for port in (folder / "ports").read_text().split()]
    return STRANGERS[kind](ports, seconds)


# --- the run --------------------------------------------------------------------------------------


async def measure(pool: Pool, kind: str, seconds: float) -> Noticed:
    """Use the pool during one attack, or without one; return the measurements."""
    noticed = Noticed()
    before, programs = usage(pool.servers), pool.progress()
    process = None
    if kind:
        command = [sys.executable, __file__, "--attack", kind, "--directory", str(pool.folder)]
        command += ["--seconds", str(seconds)]
        start = partial(subprocess.Popen, command, stdout=subprocess.PIPE, text=True)
        process = await trio.to_thread.run_sync(start)
        await trio.sleep(1)
    await use_pool(pool, noticed, seconds - 1 if kind else seconds)
    after = usage(pool.servers)
    noticed.cpu_s, noticed.memory, noticed.descriptors = after[0] - before[0], after[1], after[2]
    if process is not None:
        said, _ = await trio.to_thread.run_sync(process.communicate)
        attempts, attacker_s = (said or "0 0").split()
        noticed.attempts, noticed.attacker_s = int(attempts), float(attacker_s)
    for number, (then, now) in enumerate(zip(programs, pool.progress(), strict=True)):
        noticed.stall = max(noticed.stall, *now[len(then) :], 0.0)
        if len(now) == len(then) or pool.programs[number].poll() is not None:
            noticed.failures.append(f"program {number} did not go on")
    return noticed


def show(kind: str, noticed: Noticed, results: Results) -> bool:
    """Print and record one line; return whether the pool held."""

    def at(times: list[float], share: float) -> float:
        ordered = sorted(times) or [float("nan")]
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    figures = {
        "grant p50": (at(noticed.grants, 0.5), "ms"),
        "grant p99": (at(noticed.grants, 0.99), "ms"),
        "ping p50": (at(noticed.pings, 0.5), "ms"),
        "longest silence": (at(noticed.pings, 1), "ms"),
        "login p50": (at(noticed.logins, 0.5), "ms"),
        "processor": (noticed.cpu_s, "s"),
        "memory": (noticed.memory / 2**20, "MiB"),
        "descriptors": (float(noticed.descriptors), ""),
        "attempts": (float(noticed.attempts), ""),
        "attacker's processor": (noticed.attacker_s, "s"),
        "longest round": (1000 * noticed.stall, "ms"),
    }
    for metric, (figure, unit) in figures.items():
        results.add(kind or "quiet", metric, figure, unit)
    wrong = noticed.verdict()
    words = "  ".join(
        f"{name} {figure:.1f} {unit}".rstrip() for name, (figure, unit) in figures.items()
    )
    print(f"{kind or 'quiet':14} {'held' if not wrong else 'FAILED'}  {words}", flush=True)
    for line in wrong:
        print(f"{'':14} {line}", flush=True)
    return not wrong


async def run(folder: Path, options: argparse.Namespace, results: Results) -> bool:
    """Run each attack for its share of the time; return whether the pool held in all."""
    servers = Servers(folder, SERVER_COUNT, GPUS, (str(HERE / "hostile_join.py"),))
    path = (str(HERE.parent / "remoting" / "host"), os.environ.get("PYTHONPATH"))
    servers.env["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    pool = Pool(servers, folder, options.programs)
    held = True
    try:
        await pool.start()
        kinds = [kind for kind in options.only.split(",") if kind]
        quiet = chain.from_iterable(("", kind) for kind in kinds)
        first = None
        for kind in (*(quiet if options.quiet else ("", *kinds)), ""):
            noticed = await measure(pool, kind, options.seconds)
            first = first or noticed
            noticed.failures += out_of_bounds(first, noticed, is_quiet=not kind)
            held = show(kind, noticed, results) and held
        for line in pool.end_programs():
            print(line)
            held = False
    finally:
        for process in pool.programs:
            process.kill()
        servers.stop()
    return held


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each attack")
    parser.add_argument(
        "--only", default=",".join(kind for kind in ATTACKS if kind not in ELSEWHERE)
    )
    parser.add_argument("--quiet", action="store_true", help="as much time without any before each")
    parser.add_argument("--programs", type=int, default=PROGRAM_COUNT)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--attack", choices=ATTACKS, help=argparse.SUPPRESS)
    add_options(parser)
    options = parser.parse_args()
    if options.attack:
        attempts = attack(options.attack, options.directory, options.seconds)
        print(attempts, sum(sum(resource.getrusage(who)[:2]) for who in THIS_AND_CHILDREN))
        return 0
    leave_first_place()  # it reaps what code in workers leaves behind
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        held = trio.run(run, Path(name), options, Results.of("attack_pool.py", options))
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
