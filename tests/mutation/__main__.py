"""Mutates modules: ``python -m tests.mutation --sample 200 --seed 1 --modules pool,consensus``.

Each mutant is one small wrong change at one place. It is tried first under the tests that run the
changed lines, then under seeds of the swarm. One that all of them pass has survived: either it
changes nothing that matters, or a test is missing.
"""

import argparse
import csv
import math
import multiprocessing
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from tests.mutation import coverage_map, trial
from tests.mutation.attempt import Attempt, Verdict, attempt
from tests.mutation.operators import ROOT, Mutant, mutants_of
from tests.mutation.reasons import load_reasons


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the mutants that the command line names; return 1 if one survived without a reason."""
    options = parser().parse_args(arguments)
    chosen = chosen_mutants(options)
    if options.list:
        for each in chosen:
            print(f"{each.path}:{each.line}: {each.key}")
        return 0
    trial.prepare()
    mapped = _map(options)
    began, cpu_s = time.monotonic(), 0.0
    attempts: list[Attempt] = []
    for done in _attempts(chosen, mapped, options):
        attempts.append(done)
        cpu_s += done.cpu_s
        if options.verbose or done.verdict is Verdict.SURVIVED:
            print(_line(done), flush=True)
        if options.csv:
            _write_csv(options.csv, attempts)
        spent = options.cpu_minutes and cpu_s > options.cpu_minutes * 60
        if spent or time.monotonic() - began > options.seconds:
            print(f"ended after {len(attempts)} of {len(chosen)}: the time is spent")
            break
    print(*_table(attempts), sep="\n")
    print(f"{cpu_s:.0f} s of CPU, {time.monotonic() - began:.0f} s")
    return int(any(each.verdict is Verdict.SURVIVED for each in attempts))


def _attempts(
    chosen: Sequence[Mutant], mapped: coverage_map.CoverageMap, options: argparse.Namespace
) -> Iterator[Attempt]:
    """Try mutants in so many processes side by side; those that are begun end with the last."""
    one = partial(
        attempt,
        mapped=mapped,
        seeds=range(options.seeds),
        tests=options.tests,
        reasons=load_reasons(),
    )
    # Forked, because a trial is forked from a process that has imported what is not ours.
    with multiprocessing.get_context("fork").Pool(options.jobs) as pool:
        yield from pool.imap_unordered(one, chosen)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    options = argparse.ArgumentParser(description="Try small wrong changes of modules.")
    options.add_argument("--modules", default="pool,consensus", help="folders or files, by commas")
    options.add_argument("--function", default="", help="only functions whose name has this in it")
    options.add_argument("--key", default="", help="only mutants whose key has this in it")
    options.add_argument("--sample", type=int, help="how many, drawn at random; all by default")
    options.add_argument("--seed", type=int, default=0, help="of the sample")
    options.add_argument("--seeds", type=int, default=5, help="of the swarm, for what tests pass")
    options.add_argument("--tests", nargs="*", help="these tests instead of those of the map")
    options.add_argument("--old-map", action="store_true", help="do not record the map anew")
    options.add_argument("--cpu-minutes", type=float, help="end when mutants have used so much")
    options.add_argument("--seconds", type=float, default=math.inf, help="end after so long")
    options.add_argument("--jobs", type=int, default=1, help="so many processes side by side")
    options.add_argument("--csv", type=Path, help="write each mutant as a row")
    options.add_argument("--list", action="store_true", help="only print the mutants")
    options.add_argument("--verbose", action="store_true", help="print those that are caught, too")
    return options


def _map(options: argparse.Namespace) -> coverage_map.CoverageMap:
    if options.tests is not None:
        return coverage_map.CoverageMap({}, {})
    return coverage_map.load_old() if options.old_map else coverage_map.load()


def chosen_mutants(options: argparse.Namespace) -> list[Mutant]:
    """Return the mutants that the options name, or a sample of them."""
    paths: list[Path] = []
    for name in options.modules.split(","):
        place = ROOT / name
        paths += [place] if place.is_file() else sorted(place.rglob("*.py"))
    found = [
        mutant
        for path in paths
        for mutant in mutants_of(path)
        if options.function in mutant.function and options.key in mutant.key
    ]
    if options.sample is None or options.sample >= len(found):
        return found
    return random.Random(options.seed).sample(found, options.sample)


def _line(done: Attempt) -> str:
    mutant = done.mutant
    by = f" by {done.by}" if done.by else ""
    return f"{mutant.path}:{mutant.line}: {done.verdict.value}{by}: {mutant.key}"


def _write_csv(path: Path, attempts: Iterable[Attempt]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            ("path", "line", "function", "operator", "before", "after", "verdict", "by", "cpu_s")
        )
        for done in attempts:
            m = done.mutant
            row = (m.path, m.line, m.function, m.operator, m.before, m.after)
            writer.writerow((*row, done.verdict.value, done.by, f"{done.cpu_s:.1f}"))


def _table(attempts: Sequence[Attempt]) -> list[str]:
    verdicts = Counter(each.verdict for each in attempts)
    lines = [f"{verdict.value:<24} {verdicts[verdict]:>6}" for verdict in Verdict]
    judged = len(attempts) - verdicts[Verdict.EQUIVALENT]
    caught = judged - verdicts[Verdict.SURVIVED]
    share = 100 * caught / judged if judged else 100.0
    lines.append(f"{'tried':<24} {len(attempts):>6}")
    lines.append(f"caught of those that change behaviour: {caught} of {judged}, {share:.1f} %")
    lines.append("")
    lines.append(f"{'operator':<18} {'tried':>6} {'survived':>9}")
    tried = Counter(each.mutant.operator for each in attempts)
    survived = Counter(
        each.mutant.operator for each in attempts if each.verdict is Verdict.SURVIVED
    )
    lines += [f"{name:<18} {tried[name]:>6} {survived[name]:>9}" for name in sorted(tried)]
    return lines


if __name__ == "__main__":
    sys.exit(main())
