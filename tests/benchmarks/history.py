"""The history at full size: its size, its cap, and the duration of queries.

Thirty simulated days of 8 GPUs and 50 leases are fed as fast as the disk takes them, slot by slot
into the real store, with its roll-ups and its retention. Run it from the root of the repository::

    .venv/bin/python tests/benchmarks/history.py --days 30
"""

import argparse
import random
import sqlite3
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from gpupool.monitoring.history.history_reader import read_history
from gpupool.monitoring.history.history_settings import HistorySettings
from gpupool.monitoring.history.history_store import FILE_NAME, HistoryStore
from gpupool.monitoring.history.series import (
    GPU,
    LEASE,
    SERVER,
    SLOT_S,
    TABLES,
    TIERS,
)
from gpupool.monitoring.history.time_slots import Row, Slot, reason_mark
from gpupool.monitoring.sample import GpuBooks, LeaseBooks
from gpupool.pool.history_query import HistoryQuery
from gpupool.pool.model.ids import GpuId, LeaseId, Milliseconds
from gpupool.pool.model.units import DAY_S

START = 1_790_000_000 // DAY_S * DAY_S
H200_MIB = 140 << 10
LEASE_SLOTS = 430
"""Slots for which a lease runs: 1,000 ends a day of 50 at a time."""

HELD_DOWN = 0.2
"""Of the slots of a GPU: those in which its power limit held its clocks down."""

SPECIFIED = {"10s": 50.5, "1m": 60.6, "1h": 60.6}
"""Bytes a row of GPUs and leases."""


def gpu_books(index: int) -> GpuBooks:
    """Return the books of one GPU."""
    name = GpuId(f"GPU-{index:08d}")
    return GpuBooks(
        gpu=name, index=index, model="NVIDIA H200", memory_total=H200_MIB << 20,
        capacity=H200_MIB << 20, granted=0, foreign=0, leases=6, state="mix", pci_bus_id="",
        parent="", emulated=False, fault="",
    )  # fmt: skip


class Load:
    """GPUs that are busy in different degrees, and leases that come and go."""

    def __init__(self, gpus: int, leases: int, seed: int) -> None:
        self.draw = random.Random(seed)
        self.gpus = [gpu_books(index) for index in range(gpus)]
        self.leases = leases
        self.busy = [self.draw.random() for _ in range(leases)]

    def slot(self, number: int) -> Slot:
        """Return the rows of one slot."""
        draw, slot = self.draw, Slot(START + SLOT_S * number)
        for books in self.gpus:
            slot.gpu_books[books.gpu] = books
            slot.gpus[books.gpu] = Row(
                n=10, granted=1_200_000 + draw.randrange(50_000), leases=60, memory_n=10,
                memory=1_100_000 + draw.randrange(100_000), busy_n=10, busy=draw.randrange(10_000),
                power_n=10, power=draw.randrange(1_500, 7_000), temperature_n=10,
                temperature=draw.randrange(400, 800), activity_n=1, sm=draw.randrange(1000),
                tensor=draw.randrange(1000), bandwidth=draw.randrange(1000), busy_max=1000,
                memory_max=120_000 + draw.randrange(10_000), power_max=700, temperature_max=80,
            )  # fmt: skip
            if draw.random() < HELD_DOWN:
                slot.marks[books.gpu, reason_mark("power") or 0] = Row(amount=draw.randrange(9000))
        for at in range(self.leases):
            self._lease(slot, number, at)
        slot.server = Row(
            n=10, cpu_n=10, cpu=draw.randrange(10_000), host_memory_n=10,
            host_memory=3_000_000 + draw.randrange(100_000), network_n=10,
            network_in=draw.randrange(10**6), network_out=draw.randrange(10**6), disk_n=10,
            disk_free=5_000_000, lag=draw.randrange(10_000), leases=500, connections=600,
            commits=20, commit_time=draw.randrange(100_000), link_rtt_n=10,
            link_rtt=draw.randrange(5_000), resident=4_000, lag_max=draw.randrange(5_000),
            link_rtt_max=draw.randrange(1_000),
        )  # fmt: skip
        slot.pool = Row(
            n=10, servers=30, gpus=10 * 24, capacity=240 * H200_MIB, granted=200 * H200_MIB,
            leases=1500, waiting=draw.randrange(50), oldest_wait=draw.randrange(10**6),
            waiting_max=5, oldest_wait_max=draw.randrange(10**5),
        )  # fmt: skip
        slot.models["NVIDIA H200"] = Row(
            n=10, gpus=240_000_000, granted=200_000_000 + draw.randrange(10**6),
            outside=10**6, drained=10**6, down=8_000_000,
        )  # fmt: skip
        return slot

    def _lease(self, slot: Slot, number: int, at: int) -> None:
        draw = self.draw
        turn = (number + at * LEASE_SLOTS // self.leases) // LEASE_SLOTS
        lease, gpu = LeaseId(100_000 + 7 * (turn * self.leases + at)), self.gpus[at % 8].gpu
        user = f"user{(turn * 13 + at) % 40}"
        slot.lease_books[lease] = LeaseBooks(
            lease=lease, user=user, user_class="lab", department="physics", client=f"{user}@host",
            program="train.py", granted_at=Milliseconds(1000 * slot.t), ending=False, granted={},
        )  # fmt: skip
        works = draw.random() < self.busy[at]
        slot.leases[lease, gpu] = Row(
            n=10, memory=150_000 + draw.randrange(10_000), granted=200_000, slots=1,
            idle=int(not works), busy_n=10, busy=draw.randrange(2_000) if works else 0,
            bytes_in=draw.randrange(20_000) if works else 0,
            bytes_out=draw.randrange(20_000) if works else 0,
            waits=draw.randrange(1_000) if works else 0, rtt_n=10, rtt=draw.randrange(900, 2_000),
            busy_max=draw.randrange(1_000) if works else 0, memory_max=16_000,
            calls=draw.randrange(100_000) if works else 0,
            wait_time=draw.randrange(100_000) if works else 0,
        )  # fmt: skip


def feed(folder: Path, arguments: argparse.Namespace, settings: HistorySettings) -> None:
    """Write all slots as the exporter does, and look at the size before and after each."""
    store = HistoryStore(folder / FILE_NAME, settings)
    load, largest, refused = Load(arguments.gpus, arguments.leases, 7), 0, 0
    took: list[float] = []
    began = time.monotonic()
    for number in range(arguments.days * DAY_S // SLOT_S):
        slot = load.slot(number)
        before = time.perf_counter()
        if store.make_room():
            store.add(slot, "gpu-1")
        else:
            refused += 1
        if number % 6 == 0:
            store.expire(slot.t)
        if number % 30 == 0:
            store.checkpoint()
        took.append(time.perf_counter() - before)
        largest = max(largest, store.size())
    store.close()
    took.sort()
    print(f"fed {len(took):,} slots in {time.monotonic() - began:.0f} s")
    p50, p99, most = (1e3 * took[int(len(took) * at / 100)] for at in (50, 99, 99.999))
    print(f"a slot with its roll-ups: p50 {p50:.2f} ms, p99 {p99:.1f} ms, most {most:.0f} ms")
    print(f"largest at any slot {largest / 1e6:.1f} MB of {settings.size_max / 1e6:.1f} MB,"
          f" refused {refused}")  # fmt: skip
    assert largest <= settings.size_max


def sizes(folder: Path) -> None:
    """Print the rows and bytes of each tier beside the specified ones."""
    db = sqlite3.connect(folder / FILE_NAME)
    page = db.execute("PRAGMA page_size").fetchone()[0]
    free = db.execute("PRAGMA freelist_count").fetchone()[0] * page
    print(f"history.db {(folder / FILE_NAME).stat().st_size / 1e6:.1f} MB, {free / 1e6:.1f} free")
    try:
        found = dict(db.execute("SELECT name, sum(pgsize) FROM dbstat GROUP BY name"))
    except sqlite3.Error:
        found = {}
    for tier in TIERS:
        rows = {t: db.execute(f"SELECT count(*) FROM {t.at(tier)}").fetchone()[0] for t in TABLES}
        main = rows[GPU] + rows[LEASE]
        size = found.get(GPU.at(tier), 0) + found.get(LEASE.at(tier), 0)
        rest = sum(found.get(t.at(tier), 0) for t in TABLES) - size
        specified = main * SPECIFIED[tier.name]
        print(f"{tier.name:>4}: {main:,} rows, {size / 1e6:.1f} MB, {size / max(1, main):.1f} B a"
              f" row, {size / max(1, specified):.2f} of the specified; other rows"
              f" {rest / 1e6:.1f} MB")  # fmt: skip
        if tier is TIERS[-1]:
            days = rows[SERVER] / 24
            print(f"      two years of them: {731 * size / days / 1e6:.1f} MB (bar 62 MB)")
    names = found.get("lease", 0)
    print(f"      names of leases: {names / 1e6:.1f} MB")
    db.close()


def identity(folder: Path) -> None:
    """Assert that the tiers are each other's sums, where both are complete."""
    db = sqlite3.connect(folder / FILE_NAME)
    rolled = dict(db.execute("SELECT * FROM rolled"))
    for table in TABLES:
        totals = ", ".join(f"sum({each})" for each in (*table.sums, *table.later))
        for at, (finer, coarser) in enumerate(pairwise(TIERS)):
            begin = db.execute(f"SELECT min(t) FROM {table.at(finer)}").fetchone()[0]
            begin = -(-begin // coarser.step_s) * coarser.step_s
            found = [
                db.execute(
                    f"SELECT {totals} FROM {table.at(TIERS[step])} WHERE t >= ? AND t < ?",
                    (begin, rolled[finer.name]),
                ).fetchone()
                for step in (at, at + 1)
            ]
            assert found[0] == found[1], (table.name, finer.name)
    print("roll-up identity: sum(1 h) = sum(1 min) = sum(10 s), exactly")
    db.close()


def timed(what: str, ask: Callable[[], object], times: int, limit_ms: float) -> None:
    """Print the p50 and p95 of a question, and of its processor time."""
    took, computed = list[float](), list[float]()
    for _ in range(times):
        before, computed_before = time.perf_counter(), time.process_time()
        ask()
        computed.append(1e3 * (time.process_time() - computed_before))
        took.append(1e3 * (time.perf_counter() - before))
    for word, figures in (("processor", computed), ("time", took)):
        figures.sort()
        print(f"{what}, {word}: p50 {figures[times // 2]:.1f} ms,"
              f" p95 {figures[times * 95 // 100]:.1f} ms (bar {limit_ms:g} ms)")  # fmt: skip


def questions(folder: Path, days: int) -> None:
    """Time the queries of typical users."""
    end = START + days * DAY_S

    def query(of: str, metric: str, seconds: int, name: str = "") -> HistoryQuery:
        return HistoryQuery(
            of, metric, name, Milliseconds(1000 * (end - seconds)), Milliseconds(1000 * end)
        )

    gpu = gpu_books(3).gpu
    month = days * DAY_S
    timed("1 GPU x 1 h", lambda: read_history(folder, query("gpu", "busy", 3600, gpu)), 100, 10)
    timed("8 GPUs x 30 d", lambda: read_history(folder, query("server", "busy", month)), 20, 150)
    timed("report by user over 30 d",
          lambda: read_history(folder, query("sums", "user", month)), 10, 1000)  # fmt: skip
    own = query("user", "busy", 6 * 3600, "user7")
    timed("one user's busy x 6 h", lambda: read_history(folder, own), 20, 150)


def main() -> None:
    """Run it all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--leases", type=int, default=50)
    parser.add_argument("--size-max", type=int, default=1 << 30)
    parser.add_argument("--folder", type=Path, help="kept, and fed only once")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = arguments.folder or Path(made)
        if not (folder / FILE_NAME).exists():
            feed(folder, arguments, HistorySettings(size_max=arguments.size_max))
        sizes(folder)
        identity(folder)
        questions(folder, arguments.days)


if __name__ == "__main__":
    main()
