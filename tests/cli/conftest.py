"""Hand-made views for all that draws; terminals with a process in them; a real pool."""

import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests import commands
from tests.commands import GPUPOOL
from tests.pools import Spawned, exporters_of, view_of, wrong_with
from tests.shared import Shared

from gpupool.pool.model.ids import GpuId, Incarnation, LeaseId, Milliseconds, ServerId
from gpupool.pool.model.state import Event, Partition
from gpupool.pool.read_model.figures import Rate
from gpupool.pool.read_model.pool_snapshot import PoolSnapshot
from gpupool.pool.telemetry import GpuTelemetry, SessionTelemetry, Telemetry
from gpupool.pool.view import GpuView, LeaseView, PoolView, RaftView, ServerView, WaitingView
from gpupool.remoting.client.credentials import load_credentials, save_credentials
from gpupool.remoting.protocol.addresses import parse_address

GIB = 1 << 30


def gpu(server: int, index: int, granted: int = 0, **changes: object) -> GpuView:
    made = GpuView(
        id=GpuId(f"GPU-{server}-{index}"),
        index=index,
        name="NVIDIA H200",
        memory_total=141 * GIB,
        capacity=140 * GIB,
        memory_granted=granted,
        memory_foreign=0,
        memory_free=140 * GIB - granted,
        compute_capability="9.0",
        pci_bus_id=f"0000:0{index}:00.0",
        emulated=False,
        mig=False,
        fault="",
        leases=(LeaseId(0x7F3A),) if granted else (),
    )
    return replace(made, **changes)  # pyright: ignore[reportArgumentType]


def server(number: int, gpus: tuple[GpuView, ...], **changes: object) -> ServerView:
    made = ServerView(
        id=ServerId(f"{number:012x}"),
        name=f"server-{'abcdefgh'[number]}",
        address=f"10.0.0.{number}:7470",
        state="mix" if any(g.memory_granted for g in gpus) else "idle",
        reason="",
        voter=True,
        witness=False,
        leader=number == 0,
        incarnation=Incarnation(1),
        version="0.1.0",
        driver_version="580.1",
        cuda_version="13.0",
        labels={},
        gpus=gpus,
        lease_count=len({lease for g in gpus for lease in g.leases}),
        joined_at=Milliseconds(0),
    )
    return replace(made, **changes)  # pyright: ignore[reportArgumentType]


def pool(*servers: ServerView, quorum: bool = True) -> PoolView:
    voters = tuple(each.id for each in servers)
    return PoolView(
        schema=1,
        name="lab",
        cluster_id="c0ffee",
        answered_by=voters[0],
        now=Milliseconds(1_700_000_000_000),
        data_encryption="tls",
        raft=RaftView(
            role="leader" if quorum else "candidate",
            leader="server-a" if quorum else "",
            term=12,
            commit_index=40,
            applied_index=40,
            voters=voters,
            connected=voters[1:] if quorum else (),
            quorum=quorum,
            majority_age_s=0.0 if quorum else 31.0,
            elections=1,
        ),
        servers=servers,
        leases=(
            LeaseView(
                id=LeaseId(0x7F3A),
                name="7f3a",
                user="ada",
                client="ada@laptop",
                program="train.py",
                state="held",
                reason="",
                partitions=(
                    Partition(voters[0], GpuId("GPU-0-0"), 70 * GIB),
                    Partition(voters[0], GpuId("GPU-0-1"), 70 * GIB),
                ),
                granted_at=Milliseconds(1_699_999_900_000),
                age_s=100.0,
            ),
        ),
        waiting=(
            WaitingView("abcd1234", "bob", "bob@desk", "big.py", 8, 1.0, 0, 12.0, "2 of 8 idle"),
        ),
        events=(Event(Milliseconds(1_699_999_900_000), "granted", "7f3a", "2 GPU(s) to ada"),),
        warnings=() if quorum else ("this server is not in touch with a majority",),
    )


def telemetry(view: PoolView) -> dict[ServerId, Telemetry]:
    return {
        each.id: Telemetry(
            each.id,
            view.now,
            tuple(GpuTelemetry(g.id, 5 * GIB, 0.42, 61.0, 350.0, 1e6, 0) for g in each.gpus),
        )
        for each in view.servers
    }


def _three_servers(*, quorum: bool = True) -> PoolSnapshot:
    view = pool(
        server(0, (gpu(0, 0, 70 * GIB), gpu(0, 1, 70 * GIB))),
        server(1, (gpu(1, 0), gpu(1, 1)), state="drain", reason="new fan"),
        server(2, (), witness=True),
        quorum=quorum,
    )
    measured = telemetry(view)
    session = SessionTelemetry(LeaseId(0x7F3A), 1, 9, 8, 7, 0)
    measured[view.answered_by] = replace(measured[view.answered_by], sessions=(session,))
    return PoolSnapshot(
        view,
        telemetry=measured,
        telemetry_age_s=dict.fromkeys(measured, 0.2),
        ping_s=dict.fromkeys(measured, 0.0004),
        rates={(view.servers[0].id, LeaseId(0x7F3A)): Rate(31_000.0, 12.5e6, 0.0)},
    )


def _many_servers(count: int) -> PoolSnapshot:
    view = pool(*(server(n % 8, tuple(gpu(n, i) for i in range(8))) for n in range(count)))
    named = tuple(
        replace(each, id=ServerId(f"{n:012x}"), name=f"server-{n:03d}")
        for n, each in enumerate(view.servers)
    )
    return PoolSnapshot(replace(view, servers=named))


@pytest.fixture(autouse=True)
def interrupts_as_before() -> Generator[None]:
    """Restore the handler of Ctrl-C: commands that end change it."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def snapshot() -> PoolSnapshot:
    """Three servers: one with a lease, one drained, one witness."""
    return _three_servers()


@pytest.fixture
def minority() -> PoolSnapshot:
    """Return the same as seen by a server that lost the majority."""
    return _three_servers(quorum=False)


@pytest.fixture
def large() -> PoolSnapshot:
    """64 servers of 8 GPUs, without measurements."""
    return _many_servers(64)


# --- terminals ------------------------------------------------------------------------------------

DEADLINE_S = 60.0
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
TAKE_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
slave = os.open(sys.argv[1], os.O_RDWR)
fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
for each in (0, 1, 2):
    os.dup2(slave, each)
os.close(slave)
os.execvp(sys.argv[2], sys.argv[2:])
"""


class Terminal:
    """A pseudo-terminal with one process in its foreground."""

    def __init__(self) -> None:
        self.fd, self._slave = pty.openpty()
        self.process: subprocess.Popen[bytes] | None = None
        self.text = ""

    def spawn(
        self, argv: Sequence[str], env: Mapping[str, str] | None = None, *, rows: int = 40
    ) -> None:
        """Start a process that has this terminal as its own."""
        self.resize(rows, 120)
        # A launcher of its own, because forking from a process with threads is asking for trouble.
        launcher = [sys.executable, "-c", TAKE_TERMINAL, os.ttyname(self._slave), *argv]
        self.process = subprocess.Popen(launcher, env=env)

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of the window; the process in the foreground gets SIGWINCH."""
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def modes(self) -> list[object]:
        """Return the modes of the terminal."""
        return termios.tcgetattr(self._slave)

    @property
    def plain(self) -> str:
        """The printed text without escape sequences."""
        return ESCAPES.sub("", self.text)

    def type(self, data: bytes) -> None:
        """Press keys."""
        os.write(self.fd, data)

    def read_until(self, *words: str) -> None:
        """Read the output, apart from colours, until every one of ``words`` has come."""
        end = time.monotonic() + DEADLINE_S
        while not all(word in self.plain for word in words):
            assert time.monotonic() < end, f"{words!r} did not come: {self.plain[-3000:]}"
            if select.select([self.fd], [], [], 0.2)[0]:
                self.text += os.read(self.fd, 65536).decode(errors="replace")

    def wait(self) -> int:
        """Return the exit code, minus the signal that ended the process; drain the output."""
        assert self.process is not None
        end = time.monotonic() + DEADLINE_S
        while self.process.poll() is None:
            assert time.monotonic() < end, f"the process does not end: {self.text[-3000:]!r}"
            if select.select([self.fd], [], [], 0.05)[0]:
                self.text += os.read(self.fd, 65536).decode(errors="replace")
        while select.select([self.fd], [], [], 0)[0]:
            self.text += os.read(self.fd, 65536).decode(errors="replace")
        return self.process.returncode

    def close(self) -> None:
        """Kill the process if it still runs, and close the terminal."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        os.close(self.fd)
        os.close(self._slave)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    """Open a pseudo-terminal of 40 lines of 120 columns."""
    opened = Terminal()
    yield opened
    opened.close()


# --- a real pool ----------------------------------------------------------------------------------


class LiveServer:
    """One real ``gpupool join`` with two emulated GPUs of 8 GiB."""

    def __init__(self, name: str, folder: Path, env: Mapping[str, str]) -> None:
        self.name = name
        self.env = env
        self.state_dir = folder / name
        self.out = folder / f"{name}.out"
        self.log = folder / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str, join: Sequence[str] = (*GPUPOOL, "join")) -> None:
        """Start it; the same state directory makes it the same server again, at its address."""
        argv = [*join, "--emulate", "2:8G", "--name", self.name]
        argv += ["--state-dir", str(self.state_dir), "--log-format", "json", *arguments]
        if not self.state_dir.exists():
            argv += ["--listen", "127.0.0.1:0"]
        with self.out.open("ab") as out, self.log.open("ab") as log:
            self.process = commands.start(argv, env=self.env, stdout=out, stderr=log, text=False)

    def wait_for_log(self, word: str) -> None:
        """Wait until a line of the log has ``word`` in it."""
        assert self.process is not None
        end = time.monotonic() + DEADLINE_S
        while word not in self.log.read_text():
            assert self.process.poll() is None, self.log.read_text()[-2000:]
            assert time.monotonic() < end, self.log.read_text()[-2000:]
            time.sleep(0.02)

    def end(self, number: int) -> int:
        """Send a signal and return how the process ended, once its exporter has ended too.

        The exporter of a killed server ends by itself. It may write to the state directory until
        then, which tests remove or replace.
        """
        assert self.process is not None
        self.process.send_signal(number)
        status = self.process.wait(DEADLINE_S)
        end = time.monotonic() + DEADLINE_S
        while exporters_of(self.state_dir):
            assert time.monotonic() < end, f"the exporter of {self.name} does not end"
            time.sleep(0.01)
        return status


class LivePool:
    """Three servers, and commands as a user of this pool would type them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.chmod(0o711)  # workers have users of their own
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("GPUPOOL_")}
        self.env |= {
            "GPUPOOL_CREDENTIALS": str(folder / "operator.json"),
            "HOME": str(folder),
            "LOGNAME": "root",  # the operator's name, whoever runs the tests
            "XDG_CONFIG_HOME": str(folder / "config"),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "TMPDIR": str(folder),
            "RUNTIME_DIRECTORY": str(folder),
        }
        self.env.pop("XDG_RUNTIME_DIR", None)
        self.servers = {name: LiveServer(name, folder, self.env) for name in ("a", "b", "c")}
        self._spawned = Spawned()

    def start(self) -> None:
        """Start all three and wait until they vote."""
        first, *others = self.servers.values()
        first.start("--pool-name", "lab")
        first.wait_for_log("is listening")
        for server in others:
            server.start("--token", self.token("--server"))
            server.wait_for_log("is listening")
        self.wait_until(self.is_whole)

    def token(self, *options: str) -> str:
        """Create a token. On a busy machine servers may be out of touch for a moment."""
        end = time.monotonic() + 30
        while True:
            made = self.run("token", "create", *options, "--json")
            if made.returncode == 0:
                return str(json.loads(made.stdout)["token"])
            assert "no-quorum" in made.stdout and time.monotonic() < end, made.stdout
            time.sleep(0.2)

    @staticmethod
    def is_whole(pool: dict[str, Any]) -> bool:
        """Return whether all three servers vote and are idle."""
        idle = [s for s in pool["servers"] if s["state"] == "idle"]
        return len(idle) == 3 == len(pool["raft"]["voters"]) and pool["raft"]["quorum"]

    def run(
        self, *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run one command to its end, without a terminal."""
        words, variables = [*GPUPOOL, *arguments], self.env | dict(env or {})
        return commands.finish(words, env=variables, cwd=cwd, timeout=2 * DEADLINE_S)

    def only(self, server: LiveServer) -> dict[str, str]:
        """Return the environment of one command that asks this server; it learns of the others."""
        addresses = {each["name"]: each["address"] for each in self.view()["servers"]}
        credentials = load_credentials(Path(self.env["GPUPOOL_CREDENTIALS"]))
        path = self.folder / f"only-{server.name}.json"
        save_credentials(path, credentials.at((parse_address(addresses[server.name]),)))
        return {"GPUPOOL_CREDENTIALS": str(path)}

    def spawn(
        self, *arguments: str, env: Mapping[str, str] | None = None
    ) -> "subprocess.Popen[str]":
        """Start one command in a separate session, without a terminal; it ends with its test."""
        return self._spawned.start([*GPUPOOL, *arguments], self.env | dict(env or {}))

    def wrong(self) -> str:
        """End a test's processes, and return the pool's difference from its state before."""
        self._spawned.end()
        processes = {name: server.process for name, server in self.servers.items()}
        return wrong_with(processes, self.env["GPUPOOL_CREDENTIALS"])

    def view(self) -> dict[str, Any]:
        """Return the view of ``status --json``, without another process for each look."""
        return view_of(self.env["GPUPOOL_CREDENTIALS"])

    def granted(self) -> int:
        """Return the bytes that are granted in the whole pool."""
        return sum(g["memory_granted"] for s in self.view()["servers"] for g in s["gpus"])

    def wait_until(
        self, condition: Callable[[dict[str, Any]], bool], *, within_s: float = DEADLINE_S
    ) -> dict[str, Any]:
        """Look again and again until ``condition`` holds for the view."""
        end = time.monotonic() + within_s
        while not condition(pool := self.view()):
            assert time.monotonic() < end, self.logs()
            time.sleep(0.05)
        return pool

    def logs(self) -> str:
        """Return the end of every server's log."""
        started = [server for server in self.servers.values() if server.log.exists()]
        return "\n".join(f"{each.name}: {each.log.read_text()[-2000:]}" for each in started)

    def stop(self) -> None:
        """End all commands and servers."""
        self._spawned.end()
        for server in self.servers.values():
            if server.process is not None and server.process.poll() is None:
                server.process.terminate()
        for server in self.servers.values():
            if server.process is not None:
                try:
                    server.process.wait(10)
                except subprocess.TimeoutExpired:
                    server.process.kill()
                    server.process.wait()


@contextmanager
def running() -> Generator[LivePool]:
    """Run a pool of three servers."""
    # Not below pytest's own folder, which other users may not enter, and short for sockets.
    pool = LivePool(Path(tempfile.mkdtemp(prefix="gpupool-test-")))
    try:
        pool.start()
        yield pool
    finally:
        pool.stop()
        shutil.rmtree(pool.folder, ignore_errors=True)


RUNNING = Shared(running, LivePool.wrong)


@pytest.fixture
def live_pool(request: pytest.FixtureRequest) -> Iterator[LivePool]:
    """Lend a pool of three servers; every test leaves it whole, idle and undrained."""
    yield from RUNNING.lend(request)


def uses_pool(item: pytest.Item | None) -> bool:
    return isinstance(item, pytest.Function) and "live_pool" in item.fixturenames


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let this folder's tests of the pool run one after the other, before the others."""
    here = [at for at, item in enumerate(items) if item.nodeid.startswith("tests/cli/")]
    ordered = sorted((items[at] for at in here), key=lambda item: not uses_pool(item))
    for at, item in zip(here, ordered, strict=True):
        items[at] = item


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """End the pool with the last test of it: three idle servers take a tenth of a core."""
    try:
        return (yield)
    finally:
        if not uses_pool(nextitem):
            RUNNING.end()


def pytest_sessionfinish() -> None:
    """End it as well where the run was broken off."""
    RUNNING.end()
