"""A trace in Philly's form and of Philly's size: how long it takes to read and to replay.

Philly's files cannot be had here, so jobs are drawn (``philly_form.py``), traps included. Run it
from the root of the repository::

    .venv/bin/python -m tests.benchmarks.philly --jobs 117325 --gpus 480
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

from tests.benchmarks.academic_traces import read_files
from tests.benchmarks.philly_form import PhillyTrace

from gpupool.monitoring.analysis.demand import Mode
from gpupool.monitoring.analysis.sizing import Goal, tried
from gpupool.monitoring.analysis.trace_form import Trace


def imported(jobs: int, minutes: int) -> Trace:
    """Write a trace, read it, and print its size, its content and the read time."""
    with tempfile.TemporaryDirectory() as folder:
        made = PhillyTrace(jobs)
        paths = [str(path) for path in made.write(Path(folder), readings=minutes)]
        size = sum(Path(path).stat().st_size for path in paths)
        began, processor = time.monotonic(), time.process_time()
        trace = read_files("philly", paths)
    took, worked = time.monotonic() - began, time.process_time() - processor
    known = made.known
    right = len(trace.jobs) == known.jobs and trace.notes == known.notes
    print(f"{size / 1e6:.0f} MB, {len(trace.jobs):,} jobs, {len(trace.samples):,} readings")
    print(f"read in {took:.1f} s, {worked:.1f} s of a processor; as it was made: {right}")
    return trace


def main() -> None:
    """Read and replay."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=117_325)
    parser.add_argument("--minutes", type=int, default=0, help="readings of 480 GPUs")
    parser.add_argument("--gpus", type=int, default=480)
    arguments = parser.parse_args()
    trace = imported(arguments.jobs, arguments.minutes)
    began, processor = time.monotonic(), time.process_time()
    [row] = tried(trace, Mode.RECORDED.value, Goal(), [arguments.gpus])
    took, worked = time.monotonic() - began, time.process_time() - processor
    print(f"{row.gpu_count} GPUs: {100 * row.use:.0f} % in use, p95 of waits {row.p95_s:.0f} s")
    print(f"replayed in {took:.0f} s, {worked:.0f} s of a processor: {len(trace.jobs) / worked:.0f}"
          " jobs for each of the latter")  # fmt: skip
    print(f"at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
