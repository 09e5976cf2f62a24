"""Runs one seed of the simulator: ``python -m gpupool.simulations --seed N``.

It prints every option of the run, then each phase as it begins, then the verdict. A failure is made
smaller, and printed with its transcript and the command that repeats it. ``gpupool simulate`` calls
``simulate`` too, after it has searched many seeds.
"""

import argparse
import logging
import sys
from collections.abc import Callable

from gpupool.simulations.kernel.swarm_options import Options
from gpupool.simulations.tools.runner import Report, run
from gpupool.simulations.tools.scenarios import SCENARIOS, options_of
from gpupool.simulations.tools.shrink import reproduce, shrink


def main() -> int:
    """Run the seed that the command line names; return the exit status."""
    parser = argparse.ArgumentParser(description="Run a whole pool under faults, in virtual time.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scenario", choices=SCENARIOS, default="swarm")
    arguments = parser.parse_args()
    # Servers that are killed and cut off log many errors, all of them expected.
    logging.disable(logging.CRITICAL)
    report = simulate(options_of(arguments.scenario, arguments.seed), _write_line)
    return 0 if report.failure is None else 1


def simulate(
    options: Options,
    write: Callable[[str], None],
    *,
    transcript: Callable[[str], None] | None = None,
    smaller: bool = True,
) -> Report:
    """Run one seed and write its options, phases and verdict, line by line.

    Args:
        options: of the run; its seed is the first line.
        write: takes each line.
        transcript: takes the options and events of a failed run; ``write`` unless given.
        smaller: shrink a failed run before its transcript is written.
    """
    for line in options.lines():
        write(line)
    report = run(options, begin_phase=lambda phase: write(f"{phase} phase"))
    if report.failure is None:
        write(f"PASSED: {report.summary()}")
        write(f"trace {report.digest}")
        return report
    if smaller:
        write(f"seed {options.seed} failed: {report.failure}; making it smaller")
        report = shrink(report, run)
    for line in (*report.options.lines(), "", *map(str, report.lines)):
        (transcript or write)(line)
    write(f"FAILED: {report.failure}")
    write(f"  trace {report.digest}")
    write(f"  hint: {reproduce(report.options)}")
    return report


def _write_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
