"""The swarm over many fresh seeds, on all cores that it is given, for a given time.

    PYTHONPATH=src:. python tests/benchmarks/many_cores.py --out swarm.jsonl
        [--first 1000000] [--seeds 100000] [--seconds 540] [--jobs CORES]

Each line of ``--out`` is a block of seeds that were run: its first seed, how many, the sums of
their virtual and processor seconds, one hash over their traces, and each failed seed with its
verdict.
The next run with the same ``--out`` begins where the last one ended. 100,000 seeds are 1 MB.

Nothing needs to be installed but what the simulator imports, and a seed is one process's work.
"""

import argparse
import json
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.simulations.search import SeedResult, Totals, summary

from gpupool.simulations.tools.runner import run
from gpupool.simulations.tools.scenarios import options_of

BLOCK = 25
"""Seeds on one line: 100,000 make 4,000 lines of some 200 bytes."""


@dataclass(frozen=True, slots=True)
class Block:
    """Seeds that follow each other; as a line, those that were run."""

    first: int
    count: int


@dataclass(slots=True)
class Sums:
    """Sums over the lines of a file."""

    seeds: int = 0
    virtual_s: float = 0.0
    processor_s: float = 0.0
    grants: int = 0
    histories: int = 0
    converged_s_max: float = 0.0

    def __str__(self) -> str:
        """Return the sums as a sentence."""
        rate = self.virtual_s / max(self.processor_s, 1e-9)
        return (
            f"{self.seeds} seeds, {self.virtual_s:.0f} virtual s in {self.processor_s:.0f} "
            f"processor s ({rate:.1f}), {self.grants} grants, {self.histories} histories, "
            f"converged within {self.converged_s_max:.1f} s"
        )


def run_block(block: Block, scenario: str, end: float) -> dict[str, object] | None:
    """Run the seeds of a block until ``end``; return its line, or None when none was run."""
    totals, verdicts = Totals(), dict[str, str]()
    for seed in range(block.first, block.first + block.count):
        if time.time() >= end:
            break
        result = run_one(scenario, seed)
        totals.add(result)
        if result.failure:
            verdicts[str(seed)] = result.failure[:300]
    if not totals.seeds:
        return None
    plain = totals.plain()
    line: dict[str, object] = {"first": block.first, **plain, "failed": verdicts}
    return {**line, "digest": totals.digest[:16]}


def run_one(scenario: str, seed: int) -> SeedResult:
    """Run one seed; an error of the simulator itself is a failure with its text."""
    began = time.process_time()
    try:
        return summary(run(options_of(scenario, seed)), time.process_time() - began)
    except Exception as error:  # noqa: BLE001
        failure = f"{type(error).__name__}: {error}"
        took = time.process_time() - began
        return SeedResult(seed, os.getpid(), failure, "", 0.0, took, 0, 0.0, 0, 0)


def left(first: int, count: int, done: list[Block]) -> Iterator[Block]:
    """Yield the blocks of a range of seeds without those that were run."""
    counts = {block.first: block.count for block in done}
    seed, end = first, first + count
    while seed < end:
        if seed in counts:
            seed += counts[seed]
            continue
        stop = min(end, first + ((seed - first) // BLOCK + 1) * BLOCK)
        stop = min([stop, *(each for each in range(seed, stop) if each in counts)])
        yield Block(seed, stop - seed)
        seed = stop


def read(path: Path) -> list[dict[str, object]]:
    """Return the lines of a file; a last one that was cut short is taken off it."""
    found: list[dict[str, object]] = []
    if path.exists():
        whole, _, cut = path.read_text(encoding="utf-8").rpartition("\n")
        found = [json.loads(line) for line in whole.splitlines()]
        if cut:
            path.write_text(f"{whole}\n" if whole else "", encoding="utf-8")
    return found


def begin() -> None:
    """Leave Ctrl-C to the process that started the search, and silence the logs of servers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable(logging.CRITICAL)


def report(lines: list[dict[str, object]]) -> bool:
    """Print the sums of all lines and the failed seeds; tell whether there were none."""
    sums, failed = Sums(), dict[str, str]()
    for line in lines:
        numbers = {key: value for key, value in line.items() if isinstance(value, int | float)}
        sums.seeds += int(numbers["seeds"])
        sums.virtual_s += numbers["virtual_s"]
        sums.processor_s += numbers["processor_s"]
        sums.grants += int(numbers["grants"])
        sums.histories += int(numbers["histories"])
        sums.converged_s_max = max(sums.converged_s_max, numbers["converged_s_max"])
        verdicts = line["failed"]
        assert isinstance(verdicts, dict)
        failed |= verdicts
    for seed, verdict in sorted(failed.items(), key=lambda each: int(each[0])):
        print(f"seed {seed} failed: {verdict}")
    print(f"{sums}; {len(failed)} failed", flush=True)
    return not failed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scenario", default="swarm")
    parser.add_argument("--first", type=int, default=1_000_000)
    parser.add_argument("--seeds", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=540, help="no seed begins after them")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    end = time.time() + options.seconds
    lines = read(options.out)
    done = [Block(int(str(line["first"])), int(str(line["seeds"]))) for line in lines]
    blocks = list(left(options.first, options.seeds, done))
    work = partial(run_block, scenario=options.scenario, end=end)
    # A fresh interpreter for each: what a fork inherits could differ between two searches.
    context = multiprocessing.get_context("spawn")
    with (
        context.Pool(options.jobs, initializer=begin) as pool,
        options.out.open("a", encoding="utf-8") as file,
    ):
        for line in pool.imap_unordered(work, blocks):
            if line is not None:
                lines.append(line)
                file.write(json.dumps(line, separators=(",", ":")) + "\n")
                file.flush()
    return 0 if report(lines) else 1


if __name__ == "__main__":
    sys.exit(main())
