"""Runs chaos on real processes: ``python -m tests.simulations.chaos --seed N``."""

import argparse
import sys
import time

import trio
from tests.simulations.chaos.real_chaos import Chaos, RealReport


def main() -> int:
    """Run the seed that the command line names; return the exit status."""
    parser = argparse.ArgumentParser(description="Real servers and clients under faults.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--duration", type=float, default=30.0, help="seconds with faults")
    asked = parser.parse_args()
    began = time.monotonic()

    def tell(text: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {text}", flush=True)

    chaos = Chaos(
        asked.seed,
        servers=asked.servers,
        clients=asked.clients,
        duration_s=asked.duration,
        say=tell,
    )
    report = trio.run(chaos.run)
    print(*report.failures or [_verdict(report)], sep="\n")
    if report.failures:
        print(f"everything that the processes left is in {report.folder}")
    return 1 if report.failures else 0


def _verdict(report: RealReport) -> str:
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(report.faults.items()))
    return (
        f"passed: {sum(report.faults.values())} faults ({kinds}), "
        f"{report.ended_by_full_disk} servers ended by a full disk, "
        f"{report.refused} old copies refused, {report.rejoined} rejoined, "
        f"{sum(report.orders.values())} orders, {report.granted} leases granted, "
        f"{report.entries} log entries, healed within {report.converged_s:.1f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
