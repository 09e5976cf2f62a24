"""Hand-made views of a pool, for all that draws them; and a terminal with a process in it."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pytest

from gpupool.cli.tables import Rate, Seen
from gpupool.pool.ids import GpuId, Incarnation, LeaseId, Milliseconds, ServerId
from gpupool.pool.state import Event, Partition
from gpupool.pool.view import (
    GpuTelemetry,
    GpuView,
    LeaseView,
    PoolView,
    RaftView,
    ServerView,
    Telemetry,
    WaitingView,
)

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


def _three_servers(*, quorum: bool = True) -> Seen:
    view = pool(
        server(0, (gpu(0, 0, 70 * GIB), gpu(0, 1, 70 * GIB))),
        server(1, (gpu(1, 0), gpu(1, 1)), state="drain", reason="new fan"),
        server(2, (), witness=True),
        quorum=quorum,
    )
    measured = telemetry(view)
    return Seen(
        view,
        telemetry=measured,
        telemetry_age_s=dict.fromkeys(measured, 0.2),
        ping_s=dict.fromkeys(measured, 0.0004),
        rates={LeaseId(0x7F3A): Rate(12.5e6, 31_000.0)},
    )


def _many_servers(count: int) -> Seen:
    view = pool(*(server(n % 8, tuple(gpu(n, i) for i in range(8))) for n in range(count)))
    named = tuple(
        replace(each, id=ServerId(f"{n:012x}"), name=f"server-{n:03d}")
        for n, each in enumerate(view.servers)
    )
    return Seen(replace(view, servers=named))


@pytest.fixture
def seen() -> Seen:
    """Three servers: one with a lease, one drained, one witness."""
    return _three_servers()


@pytest.fixture
def minority() -> Seen:
    """Return the same as seen by a server that lost the majority."""
    return _three_servers(quorum=False)


@pytest.fixture
def large() -> Seen:
    """64 servers of 8 GPUs, without measurements."""
    return _many_servers(64)


# --- terminals ------------------------------------------------------------------------------------

DEADLINE_S = 20.0
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
        """Return what was printed without escape sequences."""
        return ESCAPES.sub("", self.text)

    def type(self, data: bytes) -> None:
        """Press keys."""
        os.write(self.fd, data)

    def read_until(self, *words: str) -> None:
        """Read what is printed, apart from colours, until every one of ``words`` has come."""
        end = time.monotonic() + DEADLINE_S
        while not all(word in self.plain for word in words):
            assert time.monotonic() < end, f"{words!r} did not come: {self.plain[-3000:]}"
            if select.select([self.fd], [], [], 0.2)[0]:
                self.text += os.read(self.fd, 65536).decode(errors="replace")

    def wait(self) -> int:
        """Return the exit code, minus the signal that ended it; drain what is printed."""
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
        """End what still runs."""
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
