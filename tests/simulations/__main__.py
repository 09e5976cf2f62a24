"""Searches seeds for failures: ``python -m tests.simulations --seed N --seeds COUNT --jobs J``.

The first failure ends the search, unless ``--keep-going`` is given. It is made smaller, and printed
with its transcript and the command that repeats it.
"""

import argparse
import json
import logging
import sys
import time
from collections.abc import Iterator

from tests.simulations.search import SeedResult, Totals, search
from tests.simulations.shrink import reproduce, shrink

from gpupool.simulations.kernel.swarm_options import Options
from gpupool.simulations.tools.runner import run
from gpupool.simulations.tools.scenarios import SCENARIOS, options_of


def main(words: list[str] | None = None) -> int:
    """Search as the command line says; return the exit status."""
    parser = argparse.ArgumentParser(description="Run whole pools under faults, in virtual time.")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--scenario", choices=SCENARIOS, default="swarm")
    parser.add_argument("--servers", type=int, help="instead of a draw")
    parser.add_argument("--clients", type=int, help="instead of a draw")
    parser.add_argument("--duration", type=float, help="virtual seconds with faults")
    parser.add_argument("--keep", type=_numbers, help="numbers of the faults that happen")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--keep-going", action="store_true", help="run all, and list failures")
    asked = parser.parse_args(words)
    # Servers that are killed and cut off log many errors, all of them expected.
    logging.disable(logging.CRITICAL)
    by_seed = {
        seed: options_of(
            asked.scenario,
            seed,
            servers=asked.servers,
            clients=asked.clients,
            fault_s=asked.duration,
            keep=asked.keep,
        )
        for seed in range(asked.seed, asked.seed + asked.seeds)
    }
    totals, by_process, began = Totals(), dict[int, Totals](), time.monotonic()
    for result in _told(search([*by_seed.values()], jobs=asked.jobs)):
        totals.add(result)
        by_process.setdefault(result.process, Totals()).add(result)
        if result.failure and not asked.keep_going:
            _print_smaller(by_seed[result.seed], shrunk_already=asked.keep is not None)
            return 1
    processes = [by_process[key].plain() for key in sorted(by_process)]
    real_s = round(time.monotonic() - began, 3)
    found = {"ok": not totals.failed, **totals.plain(), "real_s": real_s, "processes": processes}
    print(json.dumps(found, indent=2))
    return 1 if totals.failed else 0


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",")) if text != "none" else ()


def _told(results: Iterator[SeedResult]) -> Iterator[SeedResult]:
    for result in results:
        if result.failure:
            print(f"seed {result.seed} failed: {result.failure}", file=sys.stderr)
        yield result


def _print_smaller(options: Options, *, shrunk_already: bool) -> None:
    report = run(options)
    if report.failure is None:
        sys.exit(f"seed {options.seed} failed once, and passed when it was repeated")
    if not shrunk_already:
        report = shrink(report, run)
    print(*report.options.lines(), "", *report.lines, sep="\n")
    print(f"FAILED: {report.failure}\n  trace {report.digest}")
    print(f"  hint: {reproduce(report.options)}")


if __name__ == "__main__":
    sys.exit(main())
