"""Records of ended leases for tests, and the file that a server writes of them."""

import logging
import random
from pathlib import Path

from gpupool.pool.model.ids import GpuId, LeaseId, Milliseconds, ServerId
from gpupool.pool.model.policy import UNIT
from gpupool.pool.model.state import LeaseRecord, RecordedGpu
from gpupool.remoting.daemon.record_files import LeaseLog

LOG = logging.getLogger("test")
START_MS = 1_790_000_000_000
GIB = 1 << 30
USERS = {"ada": ("lab", "physics"), "bob": ("lab", "history"), "eve": ("", "")}


def record(number: int, **more: object) -> LeaseRecord:
    """Return one record; its numbers follow from its own."""
    draw = random.Random(number)
    user = draw.choice(list(USERS))
    granted = START_MS + 60_000 * number
    server = draw.choice("abc")
    fields: dict[str, object] = {
        "number": number,
        "lease": LeaseId(10 + 2 * number),
        "server": ServerId(server * 12),
        "server_name": f"gpu-{server}",
        "user": user,
        "user_class": USERS[user][0],
        "department": USERS[user][1],
        "client": f"{user}@laptop",
        "program": "train.py",
        "gpus": (RecordedGpu(GpuId(f"GPU-{server}"), "NVIDIA H200", 70 * GIB, UNIT // 2),),
        "requested_at": Milliseconds(granted - draw.choice([0, 0, 5000])),
        "granted_at": Milliseconds(granted),
        "ended_at": Milliseconds(granted + 3_600_000),
        "freed_at": Milliseconds(granted + 3_600_017),
        "reason": "released",
        "idle_timeout_ms": 0,
    }
    return LeaseRecord(**(fields | more))  # type: ignore[arg-type]


def write(state_dir: Path, records: list[LeaseRecord]) -> None:
    """Append records as a server does."""
    log = LeaseLog(state_dir, LOG)
    log.record(tuple(records))
    log.flush()
