"""Runs a broken build: ``python -m tests.simulations.mutations NAME --seed N``.

Without a name it lists all of them with their checkers. With ``--seeds`` it tries several seeds and
ends at the first that is caught. The exit status is 0 when the checker noticed, and 1 when not.
"""

import argparse
import logging
import sys

from tests.simulations.mutations.catalogue import MUTATIONS

from gpupool.simulations.tools.runner import run


def main() -> int:
    """Run the broken build that the command line names."""
    parser = argparse.ArgumentParser(description="Run a broken build under the simulator.")
    parser.add_argument("name", nargs="?", choices=[m.name for m in MUTATIONS], metavar="NAME")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many to try")
    parser.add_argument("--transcript", action="store_true", help="print every event of the run")
    arguments = parser.parse_args()
    if arguments.name is None:
        for each in MUTATIONS:
            print(f"{each.name:<24} {each.checker:<20} {each.rule}")
        return 0
    mutation = next(each for each in MUTATIONS if each.name == arguments.name)
    # Servers that are killed and cut off log many errors, all of them expected.
    logging.disable(logging.CRITICAL)
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        report = run(mutation.options(seed), broken=mutation.broken, only=mutation.checker)
        if report.failure is None:
            continue
        if report.failure.checker != mutation.checker:
            print(f"seed {seed} ended early: {report.failure}")
            continue
        if arguments.transcript:
            print(*report.options.lines(), "", *report.lines, sep="\n")
        print(f"seed {seed}: {report.failure}")
        return 0
    print(f"{mutation.checker} did not notice: {mutation.rule}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
