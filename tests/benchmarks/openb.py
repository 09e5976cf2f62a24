"""Alibaba's openb trace of 2023, replayed on pools of several sizes: the laboratory has its tables.

The trace is not a part of the project. Name the folder of its ``openb_pod_list_default.csv``; run
it from the root of the repository::

    .venv/bin/python -m tests.benchmarks.openb ../shared/traces
"""

import argparse
import time
from pathlib import Path

from tests.benchmarks.academic_traces import read_files

from gpupool.monitoring.analysis.demand import Mode
from gpupool.monitoring.analysis.sizing import Goal, tried
from gpupool.pool.values import duration_text

PODS, NODES = "openb_pod_list_default.csv", "openb_node_list_gpu_node.csv"
SIZES = (48, 52, 56, 60, 62, 64, 65, 66, 68, 70, 72, 80)
STRICT_SIZES = (56, 64, 72)


def main() -> None:
    """Read the trace, and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    trace = read_files("openb2023", [str(folder / name) for name in (PODS, NODES)])
    left_out = ", ".join(f"{name} {count:,}" for name, count in trace.notes.items())
    print(f"{len(trace.jobs):,} jobs with GPUs; {left_out}")
    for title, goal, sizes in (
        ("the pool's rules", Goal(), SIZES),
        ("strict queue", Goal(strict=True), STRICT_SIZES),
    ):
        began = time.process_time()
        rows = tried(trace, Mode.RECORDED.value, goal, sizes)
        worked = time.process_time() - began
        print(f"\n{title}: {len(trace.jobs) * len(sizes) / worked:,.0f} jobs a processor second\n")
        print("| GPUs | p95 wait | longest | sum | use |\n| --- | --- | --- | --- | --- |")
        for row in rows:
            print(
                f"| {row.gpu_count} | {duration_text(row.p95_s)} | {duration_text(row.max_s)}"
                f" | {row.sum_s / 3600:,.1f} h | {100 * row.use:.0f}% |"
            )


if __name__ == "__main__":
    main()
