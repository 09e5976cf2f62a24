"""The cost of ``gpupool top``: frames of a large pool, and the start for a real pool.

    python tests/benchmarks/top.py [--servers 5] [--starts 5] [--seconds 20]

The large pool is made up, of 1,000 servers of 8 GPUs and 10,000 leases; its frames are timed in
processor time. The real pool has emulated GPUs, on this machine, and the view runs in a
pseudo-terminal. The first full frame is the one with a line of GPUs from the history.
"""

import argparse
import fcntl
import os
import pty
import select
import statistics
import struct
import sys
import termios
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks.full_table import full_machine
from tests.benchmarks.scale import server_id
from tests.emulated_pool import COMMAND, EmulatedPool

from gpupool.cli.lib.columns import Glyphs
from gpupool.cli.tui.answers import Answers
from gpupool.cli.tui.keys import Mode, UiState
from gpupool.cli.tui.screen import render
from gpupool.pool.model.ids import Milliseconds
from gpupool.pool.ports import RaftHealth, Role
from gpupool.pool.read_model.pool_snapshot import PoolSnapshot
from gpupool.pool.telemetry import GpuTelemetry, SessionTelemetry, Telemetry
from gpupool.pool.view import LeaseView
from gpupool.pool.view_building import build_view

WIDTH, HEIGHT = 160, 50
FILLED = ("\u2800", "\u28ff")
DEADLINE_S = 60.0
GIB = 1 << 30
NOW = Milliseconds(1_700_000_000_000)


def large_pool(servers: int, leases: int) -> PoolSnapshot:
    """Return a pool in which each lease has a part of one GPU, with measurements of everything."""
    health = RaftHealth(Role.LEADER, server_id(0), 3, 9, 9, (), (), 0.0, {}, 0)
    view = build_view(full_machine(servers, leases).state, health, server_id(0), NOW)
    of_users = (replace(lease, user=f"user-{at % 50}") for at, lease in enumerate(view.leases))
    view = replace(view, leases=tuple(of_users))
    held: dict[str, list[LeaseView]] = {}
    for lease in view.leases:
        held.setdefault(lease.partitions[0].server, []).append(lease)
    told = {
        row.id: Telemetry(
            row.id,
            NOW,
            tuple(GpuTelemetry(each.id, 5 * GIB, 0.5, 61.0, 350.0, 1e6, 0) for each in row.gpus),
            tuple(SessionTelemetry(each.id, 1, 9, 8, 7, GIB) for each in held.get(row.id, ())),
        )
        for row in view.servers
    }
    return PoolSnapshot(view, telemetry=told, telemetry_age_s=dict.fromkeys(told, 0.2))


def frames(count: int = 20) -> None:
    """Print the processor time of a frame of the large pool, by panel or mode."""
    snapshot = large_pool(1000, 10_000)
    shown = {name: UiState(panel=name) for name in ("servers", "gpus", "leases")}
    shown["detail"] = UiState(mode=Mode.DETAIL, detail=("server", snapshot.view.servers[500].id))
    shown["sorted leases"] = UiState(panel="leases", sort=(-1, -1, 2))
    shown["tree"] = UiState(mode=Mode.TREE)
    for name, ui in shown.items():
        times: list[float] = []
        for _ in range(count):
            fresh = replace(snapshot)  # its rows are made anew, as in each frame
            begun = time.process_time()
            render(fresh, ui, WIDTH, HEIGHT, Glyphs(), Answers())
            times.append(1000 * (time.process_time() - begun))
        print(
            f"frame {WIDTH}x{HEIGHT}, {name}: p50 {statistics.median(times):.1f} ms, "
            f"max {max(times):.1f} ms of processor"
        )


class View:
    """One ``gpupool top`` in a pseudo-terminal."""

    def __init__(self, pool: EmulatedPool, arguments: Sequence[str] = ()) -> None:
        self.text, self.begun = "", time.monotonic()
        self.pid, self.fd = pty.fork()
        if not self.pid:
            os.execve(sys.executable, [*COMMAND, "top", *arguments], {**pool.env, "TERM": "xterm"})
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))

    def read(self, seconds: float) -> None:
        """Read the output for so long."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if select.select([self.fd], [], [], min(left, 0.01))[0]:
                try:
                    self.text += os.read(self.fd, 65536).decode(errors="replace")
                except OSError:  # it has ended, and its terminal with it
                    return

    def until_filled(self) -> float:
        """Return the seconds from the start to the first frame with a history in its lines."""
        while time.monotonic() - self.begun < DEADLINE_S:
            self.read(0.005)
            line = [each for each in self.text.split("\n") if "Emulated" in each]
            dots = [sum(FILLED[0] < c <= FILLED[1] for c in each) for each in line]
            if max(dots, default=0) >= 3:
                return time.monotonic() - self.begun
        raise SystemExit(self.text[-3000:])

    def cpu_s(self) -> float:
        """Return the seconds that it has computed."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    def close(self) -> None:
        """Leave it."""
        os.write(self.fd, b"q")
        self.read(0.2)
        os.waitpid(self.pid, 0)
        os.close(self.fd)


def live(servers: int, starts: int, seconds: float) -> None:
    """Print times for a real pool: from start to first full frame, and for 2 frames a second."""
    with EmulatedPool(servers) as pool:
        pool.spawn("alloc", "-p", "0.5", "--", "sleep", "3600")
        time.sleep(60)  # the history has some slots of 10 s
        times: list[float] = []
        cpu: list[float] = []
        for _ in range(starts):
            view = View(pool)
            times.append(1000 * view.until_filled())
            cpu.append(1000 * view.cpu_s())
            view.close()
        view = View(pool)
        view.until_filled()
        before, begun = view.cpu_s(), time.monotonic()
        view.read(seconds)
        share = (view.cpu_s() - before) / (time.monotonic() - begun)
        view.close()
        print(
            f"start to first full frame, {servers} servers: p50 {statistics.median(times):.0f} ms,"
            f" least {min(times):.0f} ms; {statistics.median(cpu):.0f} ms of processor"
        )
        print(f"at 2 updates a second: {100 * share:.1f} % of a core")


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", type=int, default=5)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    frames()
    if arguments.servers:
        live(arguments.servers, arguments.starts, arguments.seconds)


if __name__ == "__main__":
    main()
