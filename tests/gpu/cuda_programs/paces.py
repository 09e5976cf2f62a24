"""Times one step of the workloads named as arguments: ``RESULT NAME milliseconds``, a median.

For checks that run the same program twice and compare, as ``confinement_check.py`` does.
"""

import os
import statistics
import sys
import time

from workloads import forget, number, seeded
from workloads_kit import Made

WARM, ROUNDS, ROUND_S = 8, 7, 0.5


def pace(made: Made) -> float:
    """Return the milliseconds of one step: the median of rounds of half a second."""
    step, settle = made
    for _ in range(WARM):
        number(step())
    settle()
    start = time.perf_counter()
    step()
    settle()
    steps = max(1, round(ROUND_S / (time.perf_counter() - start)))
    took: list[float] = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(steps):
            step()
        settle()
        took.append((time.perf_counter() - start) / steps * 1e3)
    return statistics.median(took)


def main() -> None:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    made: dict[str, Made] = {}
    for name in sys.argv[1:]:
        forget(made)
        made[name] = seeded(name)
        print("RESULT", name, f"{pace(made[name]):.5f}", flush=True)


if __name__ == "__main__":
    main()
