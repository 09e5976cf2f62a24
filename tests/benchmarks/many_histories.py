"""A usage report over the histories of 100 servers: each server's answer, and the merge.

    python tests/benchmarks/many_histories.py [--servers 100] [--days 30]

Each history is a file of its own, with 8 GPUs and 50 leases. Servers answer at the same time, each
by itself; here they answer in turn, so the wait of a user is the slowest answer, and the decoding
and merging of all of them. The network is not among the figures.
"""

import argparse
import tempfile
import time
from pathlib import Path

from history import START, Load

from gpupool.monitoring.frames import EXPORTER, HistoryAnswered
from gpupool.monitoring.history.history_reader import read_history
from gpupool.monitoring.history.history_settings import HistorySettings
from gpupool.monitoring.history.history_store import FILE_NAME, HistoryStore
from gpupool.monitoring.history.sample_figures import merged
from gpupool.monitoring.history.series import SLOT_S
from gpupool.pool.history_query import HistoryQuery
from gpupool.pool.model.ids import Milliseconds
from gpupool.pool.model.units import DAY_S

HOUR_SLOTS = 3600 // SLOT_S
BAR_S = 3.0
PATIENCE_S = 600.0
"""Processor time is measured, so a busy machine may take as long as it likes."""


def feed(folder: Path, days: int, seed: int) -> None:
    """Write one slot of each hour, with the rows of hours that it makes."""
    folder.mkdir()
    store, load = HistoryStore(folder / FILE_NAME, HistorySettings()), Load(8, 50, seed)
    for hour in range(days * 24):
        store.add(load.slot(hour * HOUR_SLOTS), f"gpu-{seed}")
    store.close()


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", type=int, default=100)
    parser.add_argument("--days", type=int, default=30)
    arguments = parser.parse_args()
    end = START + arguments.days * DAY_S
    query = HistoryQuery("sums", "user", "", Milliseconds(1000 * START), Milliseconds(1000 * end))
    answers, frames = list[float](), list[bytes]()
    with tempfile.TemporaryDirectory() as made:
        for number in range(arguments.servers):
            folder = Path(made) / str(number)
            feed(folder, arguments.days, number)
            before = time.process_time()
            page = read_history(folder, query, PATIENCE_S)
            answers.append(time.process_time() - before)
            assert page.sums and not page.more
            frames.append(EXPORTER.encode(HistoryAnswered(number, page)))
    before = time.process_time()
    reader = EXPORTER.reader()
    for frame in frames:
        reader.feed(frame)
    pages = [EXPORTER.decode(HistoryAnswered, each) for each in reader.frames()]
    sums = merged(s for page in pages for s in page.page.sums)
    took = time.process_time() - before
    print(f"{len(frames)} servers, {sum(map(len, frames)) / 1e6:.2f} MB of answers,"
          f" {len(sums)} users")  # fmt: skip
    print(f"slowest answer {1e3 * max(answers):.0f} ms, decoding and merging {1e3 * took:.0f} ms,"
          f" together {max(answers) + took:.2f} s of processor (bar {BAR_S:g} s)")  # fmt: skip


if __name__ == "__main__":
    main()
