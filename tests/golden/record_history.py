"""Record a ``history.db``, and its answers: ``python tests/golden/record_history.py``.

``history-1.db.xz`` and ``history-1.json`` were made at b3fa9b0, when rows of hours were rows of
SQLite; those of number 3 at 573d38cd, when leases had no calls and GPUs no marks; those of number 4
at f0eb0f3a, the last form that packs hours. A file of a later form gets a number of its own;
recorded ones stay as they are.
"""

import json
import lzma
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.golden.recorded import GOLDEN
from tests.monitoring.samples import START_MS, gpu_id, sample, table

from gpupool.monitoring.history.history_reader import read_history
from gpupool.monitoring.history.history_settings import HistorySettings
from gpupool.monitoring.history.history_store import FILE_NAME, SCHEMA
from gpupool.monitoring.history.history_writer import HistoryWriter
from gpupool.pool.history_query import HistoryPage, HistoryQuery
from gpupool.pool.model.ids import Milliseconds
from gpupool.pool.model.units import DAY_S

T0 = START_MS // 1000 // DAY_S * DAY_S
HOURS = 80

Question = tuple[str, str, str, int, int]
LONG = 17 * DAY_S  # so long that hours are asked for
QUESTIONS: tuple[Question, ...] = (
    ("gpu", "busy", gpu_id(1), 0, LONG),
    ("gpu", "temperature", gpu_id(0), 5 * 3600, LONG),
    ("server", "memory", "", 0, LONG),
    ("server", "power", "", 0, 2000 * 3600 * 3),
    ("server", "cpu", "", 0, LONG),
    ("pool", "granted", "", 0, LONG),
    ("lease", "busy", "4", 0, LONG),
    ("user", "busy", "bob", 0, LONG),
    ("user", "rtt", "bob", 0, 2000 * 3600 * 3),
    ("user", "waits", "ada", 30 * 3600, LONG),
    *(("sums", by, "", 0, 90 * 3600) for by in ("user", "day", "lease", "model", "server")),
    ("sums", "client", "", 3600, 70 * 3600),
    ("sums", "user", "", 7 * 3600 + 1810, 51 * 3600 + 20),
    ("sums", "day", "4", 30 * 3600, 31 * 3600),
)


LATER = {"capacity", "episodes", "storage"}


def answer(folder: Path, question: Question) -> Any:
    """Return a history's answer in the form of JSON."""
    of, metric, name, since, until = question
    query = HistoryQuery(
        of, metric, name, Milliseconds(1000 * (T0 + since)), Milliseconds(1000 * (T0 + until))
    )
    page: HistoryPage = read_history(folder, query)
    assert not page.problem and not page.more
    # What came to pages later, and is no answer to these questions.
    later = {name: value for name, value in asdict(page).items() if name in LATER}
    assert not any(later.values())
    return json.loads(json.dumps({k: v for k, v in asdict(page).items() if k not in LATER}))


def feed(folder: Path) -> None:
    """Write twenty seconds of each half hour, of leases that come and go."""
    keeper = HistoryWriter(folder, HistorySettings(), print, disk_full=lambda _: False)
    for half in range(2 * HOURS):
        state = table(gpus=2, leases=1 + half // 10 % 5)
        at = T0 + 1800 * half
        busy = 0.1 * (half % 9)
        keeper.take(sample(state, 1000 * (at + second), busy) for second in range(0, 25, 5))
    keeper.close()


def main() -> None:
    """Write both files."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        feed(folder)
        answers = [answer(folder, each) for each in QUESTIONS]
        data = (folder / FILE_NAME).read_bytes()
    (GOLDEN / f"history-{SCHEMA}.db.xz").write_bytes(lzma.compress(data, preset=9))
    (GOLDEN / f"history-{SCHEMA}.json").write_text(json.dumps(answers) + "\n")


if __name__ == "__main__":
    main()
