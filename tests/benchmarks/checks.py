"""A server's self-checks: their processor time per second.

    python tests/benchmarks/checks.py [--seconds 2000]

Server ``a`` of a healthy pool of three, with eight GPUs that say everything; the readings are made
before, since the telemetry has them anyway.
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.monitoring.health.healthy_pool import Machine


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=2000)
    arguments = parser.parse_args()
    machine, took = Machine(), list[float]()
    for _ in range(arguments.seconds):
        machine.now_s += 1.0
        readings = machine.readings()
        before = time.process_time()
        found = machine.monitor.round(readings)
        took.append(1e3 * (time.process_time() - before))
        assert not found
    mean = sum(took) / len(took)
    took.sort()
    p50, p99 = took[len(took) // 2], took[len(took) * 99 // 100]
    print(f"checks, processor time a second: mean {mean:.3f} ms, p50 {p50:.3f}, p99 {p99:.3f}")


if __name__ == "__main__":
    main()
