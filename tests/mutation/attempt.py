"""An attempt to catch one mutant: quick tests, then the others, then seeds of the swarm."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial

from tests.mutation import trial
from tests.mutation.coverage_map import CoverageMap
from tests.mutation.operators import Mutant

QUICK_COUNT = 12
QUICK_S = 2.0
TESTS_S_MAX = 20.0
"""Of tests for one mutant, by the time that they take alone. Longer ones are left out."""
START_S = 12.0
CPU_FACTOR = 4.0
SEED_S = 30.0


class Verdict(Enum):
    """The outcome of a mutant."""

    BY_TEST = "caught by a test"
    BY_TIME = "caught by the time limit"
    BY_END = "caught: the process ended"
    BY_SEED = "caught by a seed"
    EQUIVALENT = "equivalent, by reason"
    SURVIVED = "survived"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One mutant, and the test, seed or limit that caught it."""

    mutant: Mutant
    verdict: Verdict
    by: str
    cpu_s: float


def attempt(
    mutant: Mutant,
    mapped: CoverageMap,
    *,
    seeds: Sequence[int],
    tests: Sequence[str] | None = None,
    reasons: Mapping[str, str],
) -> Attempt:
    """Try to catch a mutant."""
    cpu_s = 0.0
    for batch in _batches(mapped, mapped.tests(mutant)) if tests is None else [list(tests)]:
        limit = START_S + CPU_FACTOR * sum(mapped.seconds.get(test, 5.0) for test in batch)
        result = trial.in_a_process(partial(trial.under_tests, mutant, batch), limit)
        cpu_s += result["cpu_s"]
        if found := _found(result, Verdict.BY_TEST):
            return Attempt(mutant, *found, cpu_s)
    if seeds and mapped.in_swarm(mutant):
        limit = START_S + SEED_S * len(seeds)
        result = trial.in_a_process(partial(trial.under_seeds, mutant, seeds), limit)
        cpu_s += result["cpu_s"]
        if found := _found(result, Verdict.BY_SEED):
            return Attempt(mutant, *found, cpu_s)
    if reason := reasons.get(mutant.key):
        return Attempt(mutant, Verdict.EQUIVALENT, reason, cpu_s)
    return Attempt(mutant, Verdict.SURVIVED, "", cpu_s)


def _found(result: trial.Result, by: Verdict) -> tuple[Verdict, str] | None:
    if "missing" in result:
        raise LookupError(f"there is no test {result['missing']}: record the map anew")
    if ended := result.get("ended"):
        return (Verdict.BY_TIME if ended == "time" else Verdict.BY_END), ended
    return (by, result["caught"]) if result["caught"] else None


def _batches(mapped: CoverageMap, tests: Sequence[str]) -> list[list[str]]:
    """Return a first batch that is quick, and one with the others: most mutants die in the first.

    Files of tests are imported before the first test runs, so a batch with few files is quicker.
    """
    quick: list[str] = []
    rest: list[str] = []
    seconds = total = 0.0
    for test in tests:
        took = mapped.seconds.get(test, 0.0)
        if len(quick) < QUICK_COUNT and seconds + took <= QUICK_S:
            seconds += took
            quick.append(test)
        elif total + took <= TESTS_S_MAX:
            total += took
            rest.append(test)
    return [batch for batch in (quick, rest) if batch]
