"""Whole pools under faults: they hold, they repeat, and broken ones are caught."""

import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.simulations import __main__ as searching
from tests.simulations.mutations.catalogue import MUTATIONS
from tests.simulations.mutations.mutation import Mutation
from tests.simulations.search import Totals, search
from tests.simulations.shrink import reproduce, shrink

from gpupool.cli.commands.simulate import SCENARIOS as NAMES
from gpupool.cli.commands.simulate import command
from gpupool.pool.errors import ExitCode
from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.state import Server
from gpupool.pool.transitions import servers as server_entries
from gpupool.simulations.checkers import safety_checkers
from gpupool.simulations.kernel.swarm_options import Options, swarm
from gpupool.simulations.tools.runner import Report, run
from gpupool.simulations.tools.scenarios import SCENARIOS, options_of

TESTDATA = Path(__file__).parent.parent / "testdata"
SEARCH_COUNT_MAX = 100
"""A broken build must be caught within so many seeds."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Leave out logs of servers, which are killed and cut off all the time."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def table(name: str) -> dict[str, list[str]]:
    """Return a file of testdata by the first word of its lines."""
    lines = (TESTDATA / name).read_text(encoding="utf-8").splitlines()
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    return {row[0]: row[1:] for row in rows}


def passed(report: Report) -> None:
    assert report.failure is None, "\n".join(
        [*report.options.lines(), *map(str, report.lines[-60:]), reproduce(report.options)]
    )


@pytest.mark.parametrize(
    "name",
    [
        # A swarm draws all faults.
        name if name == "swarm" else pytest.param(name, marks=pytest.mark.long)
        for name in SCENARIOS
    ],
)
def test_scenario_holds(name: str) -> None:
    report = run(replace(options_of(name, 1, clients=8, fault_s=8.0), heal_s=6.0))
    passed(report)
    assert report.granted > 5
    assert any(line.subject == "nemesis" for line in report.lines)


@pytest.mark.long
def test_what_was_only_just_committed_may_still_be_on_its_way_at_the_end() -> None:
    """In this seed, as recorded, the last look fell between two servers that applied a command."""
    options = replace(swarm(8, servers=3, clients=20), think_s=0.3, hold_s=1.0)
    passed(run(replace(options, fault_s=1.0, heal_s=14.0)))


@pytest.mark.long
def test_votes_move_to_followers_that_are_there_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine servers, seven votes: voters that are away for more than 10 s lose theirs."""
    successors: list[str] = []
    choose = getattr(server_entries, "_successor")  # noqa: B009

    def successor(servers: dict[ServerId, Server]) -> Server | None:
        found: Server | None = choose(servers)
        if found is not None:
            successors.append(found.name)
        return found

    monkeypatch.setattr(server_entries, "_successor", successor)
    options = replace(swarm(2, servers=9, clients=3), faults=(("pause", 1.0), ("deaf", 3.0)))
    report = run(replace(options, fault_s=15.0, heal_s=8.0))
    passed(report)
    assert successors
    assert report.granted > 5


@pytest.mark.long
def test_a_server_that_was_refused_comes_back_as_a_new_member() -> None:
    """Its directory is replaced by a copy from before its last start, of which the others know."""
    drawn = swarm(0)
    report = run(replace(drawn, faults=(*drawn.faults, ("old-copy", 3.0))))
    passed(report)
    texts = [f"{line.subject} {line.kind} {line.text}" for line in report.lines]
    restored = next(i for i, text in enumerate(texts) if text.startswith("nemesis restored"))
    machine = texts[restored].split()[2]
    behind = texts[restored:]
    assert any(text.startswith(f"{machine} stopped") and "may not take" in text for text in behind)
    assert f"{machine} removed joins again as another server" in behind
    assert any(text.startswith("operator confirmed remove") for text in behind)


def test_command_line_knows_every_scenario() -> None:
    assert set(NAMES) == set(SCENARIOS)


SCRIPT = """
import logging
logging.disable(logging.CRITICAL)
from dataclasses import replace
from gpupool.simulations.kernel.swarm_options import swarm
from gpupool.simulations.tools.runner import run
print(run(replace(swarm(8), fault_s=6.0, heal_s=3.0)).digest)
"""


@pytest.mark.long
def test_same_seed_does_the_same_in_every_process() -> None:
    # Another order of sets than here, in a process without earlier runs.
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "PYTHONHASHSEED": "777"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    digest = run(replace(swarm(8), fault_s=6.0, heal_s=3.0)).digest
    assert result.stdout.strip() == digest
    assert run(replace(swarm(6), fault_s=1.0, heal_s=1.0)).digest != digest


def test_recorded_traces_are_what_every_machine_and_python_does() -> None:
    """Any change of servers' or clients' actions changes them: GPUPOOL_REWRITE=1 records anew."""
    path = TESTDATA / "sim-traces.txt"
    comments = [line for line in path.read_text("utf-8").splitlines() if line.startswith("#")]
    found = {
        seed: run(replace(swarm(int(seed)), fault_s=6.0, heal_s=3.0)).digest
        for seed in table(path.name)
    }
    if os.environ.get("GPUPOOL_REWRITE"):
        rows = [f"{seed:<4} {digest}" for seed, digest in found.items()]
        path.write_text("\n".join([*comments, *rows]) + "\n", encoding="utf-8")
    assert {seed: [digest] for seed, digest in found.items()} == table(path.name)


@pytest.mark.long
def test_search_on_several_processes_finds_what_one_finds() -> None:
    runs = [replace(swarm(seed), fault_s=2.0, heal_s=1.0) for seed in range(3)]
    sums: list[Totals] = []
    for jobs in (1, 2):
        totals = Totals()
        for result in search(runs, jobs=jobs):
            totals.add(result)
        sums.append(totals)
    one, two = sums
    assert one.seeds == two.seeds == 3
    assert (one.digest, one.grants, one.failed) == (two.digest, two.grants, two.failed)
    assert json.loads(json.dumps(one.plain()))["digest"] == one.digest


@pytest.mark.long
def test_faults_left_out_leave_the_others_as_they_were() -> None:
    options = replace(swarm(8), fault_s=3.0, heal_s=2.0)
    whole = run(options)
    assert whole.faults
    none = run(replace(options, keep=()))
    assert none.faults == whole.faults
    assert none.digest != whole.digest
    assert run(replace(options, keep=tuple(f.number for f in whole.faults))).digest == whole.digest


# --- broken builds --------------------------------------------------------------------------------

SEEDS = table("sim-mutations.txt")


def caught(mutation: Mutation, seed: int) -> Report | None:
    report = run(mutation.options(seed), broken=mutation.broken, only=mutation.checker)
    # A run that cannot go on ends with a failure of its own, which proves nothing here.
    noticed = report.failure is not None and report.failure.checker == mutation.checker
    return report if noticed else None


@pytest.mark.long
@pytest.mark.timeout(600)  # a recorded seed that no longer serves costs up to 40 others
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_broken_build_is_caught(mutation: Mutation) -> None:
    # A change elsewhere may move everything that happens in a seed, so a few more are tried.
    recorded = int(SEEDS[mutation.name][0])
    seeds = [recorded, *(s for s in range(40) if s != recorded)]
    assert any(caught(mutation, seed) for seed in seeds), f"{mutation.rule}: nobody noticed"


def test_run_that_cannot_go_on_ends_whichever_checker_was_asked_for() -> None:
    """Three million events passed before such a run ended."""
    mutation = next(m for m in MUTATIONS if m.checker == "no-progress")
    mutation = replace(mutation, checker="logs-agree")
    report = run(mutation.options(0), broken=mutation.broken, only=mutation.checker)
    assert report.failure is not None
    assert report.failure.checker == "no-progress"
    assert report.virtual_s < 31
    assert report.event_count < 50_000
    assert caught(mutation, 0) is None, "it is no proof that the checker works"


def test_every_broken_build_has_a_recorded_seed() -> None:
    assert set(SEEDS) == {mutation.name for mutation in MUTATIONS}


def test_every_checker_catches_something() -> None:
    """Each reason of the simulator to fail a run is met by some broken build."""
    found = set[str]()
    for path in Path(safety_checkers.__file__).parents[1].rglob("*.py"):
        found |= set(re.findall(r"\bfail\(\s*\"([a-z-]+)\"", path.read_text("utf-8")))
    assert len(found) >= 20
    assert found == {mutation.checker for mutation in MUTATIONS}


@pytest.mark.long
def test_patches_of_a_broken_build_are_undone() -> None:
    mutation = next(m for m in MUTATIONS if m.name == "space-unchecked")
    assert caught(mutation, int(SEEDS[mutation.name][0]))
    passed(run(replace(mutation.options(int(SEEDS[mutation.name][0])), fault_s=5.0)))


@pytest.mark.long
def test_failure_is_made_smaller_and_can_be_repeated() -> None:
    mutation = next(m for m in MUTATIONS if m.name == "freed-too-early")

    def broken_run(options: Options) -> Report:
        return run(options, broken=mutation.broken, only=mutation.checker)

    report = broken_run(mutation.options(0))
    assert report.failure is not None
    smaller = shrink(report, broken_run, runs_max=25)
    assert smaller.failure is not None
    assert smaller.failure.checker == report.failure.checker
    assert len(smaller.options.keep or ()) <= len(report.faults)
    assert smaller.options.clients <= report.options.clients
    assert broken_run(smaller.options).digest == smaller.digest
    assert f"--seed {report.options.seed}" in reproduce(smaller.options)


@pytest.mark.long
def test_command_prints_options_phases_and_verdict_of_one_seed() -> None:
    done = CliRunner().invoke(command, ["--seed", "10"], standalone_mode=False)
    assert done.return_value == ExitCode.DONE
    lines = done.output.splitlines()
    assert lines[0] == "SEED=10"
    assert lines[-4:-2] == ["safety phase", "liveness phase"]
    assert lines[-2].startswith("PASSED: ")


@pytest.mark.long
def test_a_failure_is_printed_and_how_to_repeat_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mutation = next(m for m in MUTATIONS if m.name == "space-unchecked")
    monkeypatch.setattr(searching, "shrink", partial(shrink, runs_max=3))

    def searched(*arguments: str) -> str:
        with mutation.broken():
            assert searching.main([*arguments]) == 1
        return capsys.readouterr().out

    output = searched("--seed", "1", "--seeds", "9")
    *lines, hint = output.splitlines()
    again = hint.removeprefix("  hint: python -m tests.simulations ")
    assert again.startswith("--scenario swarm --seed 1 --servers ")
    trace = lines.pop()
    events = lines[lines.index("") + 1 : -1]
    # When, who, what: columns of fixed width; the last event is the failure.
    assert all(re.match(r"[ \d]{3}\d\.\d{6}  \S{1,8} *  \S{1,12} *  ", line) for line in events)
    assert len({line.index(line.split()[1]) for line in events}) == 1
    assert "FAILED" in events[-1]
    assert trace in searched(*again.split())
    with mutation.broken():
        done = CliRunner().invoke(command, ["--seed", "1"], standalone_mode=False)
    assert done.return_value == ExitCode.FAILED
    assert "FAILED: " in done.output.splitlines()[-2]
    found = searched("--seed", "1", "--seeds", "2", "--keep-going", "--duration", "3")
    summary = json.loads(found)
    assert summary["ok"] is False
    assert 1 in summary["failed"]
    assert summary["seeds"] == 2 == sum(each["seeds"] for each in summary["processes"])


# --- long ones ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_search_catches_broken_build(mutation: Mutation) -> None:
    assert any(caught(mutation, seed) for seed in range(SEARCH_COUNT_MAX))


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_many_seeds_hold(name: str) -> None:
    for seed in range(100):
        passed(run(options_of(name, seed)))


@pytest.mark.slow
def test_speed() -> None:
    """Five servers and 20 clients: 25 virtual seconds a second on one core that is not shared."""
    rates: list[float] = []
    for seed in range(3):
        began = time.process_time()
        rates.append(run(Options(seed=seed)).virtual_s / (time.process_time() - began))
    assert max(rates) > 25.0, rates
