"""The script that makes mutants: changed code, unchanged code, and the findings of trials."""

import ast
import csv
import subprocess
import sys
from pathlib import Path

import pytest
from tests.mutation import __main__ as command
from tests.mutation import trial
from tests.mutation.attempt import Verdict
from tests.mutation.coverage_map import SWARM, CoverageMap, importers
from tests.mutation.operators import ROOT, Mutant, mutants_of, mutated
from tests.mutation.reasons import load_reasons

PRICES = ROOT / "pool" / "policy" / "prices.py"
NOTHING: set[str] = set()


def mutants_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> list[Mutant]:
    monkeypatch.setattr("tests.mutation.operators.ROOT", tmp_path)
    path = tmp_path / "sample.py"
    path.write_text(source, encoding="utf-8")
    return mutants_of(path)


@pytest.mark.parametrize(
    ("source", "changes"),
    [
        ("a < b", {"a <= b", "a >= b"}),
        ("a < b == c", {"a <= b == c", "a >= b == c", "a < b != c"}),
        ("a and b", {"a or b"}),
        ("not a", {"a"}),
        ("a + b", {"a - b"}),
        ("a + 'b'", NOTHING),
        ("f(1)", {"f(2)", "f(0)"}),
        ("f(True)", {"f(False)"}),
        ("min(a)", {"max(a)"}),
        ("any(a)", {"all(a)"}),
        ("a if b else c", {"a if True else c", "a if False else c"}),
        ("f'{a + b}'", NOTHING),
    ],
)
def test_expressions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, changes: set[str]
) -> None:
    found = mutants_in(tmp_path, monkeypatch, f"x = {source}")
    assert {ast.unparse(mutated(each)) for each in found} == {f"x = {each}" for each in changes}


@pytest.mark.parametrize(
    ("source", "changes"),
    [
        ("    f()", {"pass"}),
        ("    raise KeyError", {"pass"}),
        ("    a.b = c", {"pass"}),
        ("    a += b", {"a -= b", "pass"}),
        ("    _log.info('x')", NOTHING),
        ("    assert a < b", NOTHING),
        ("    b: int | None = c", NOTHING),
        ("    for x in a:\n        break", {"for x in a:\n        continue"}),
        ("    f()\n    g()", {"pass\n    g()", "f()\n    pass", "return"}),
    ],
)
def test_statements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, changes: set[str]
) -> None:
    found = mutants_in(tmp_path, monkeypatch, f"def m() -> None:\n{source}")
    bodies = {
        ast.unparse(mutated(each)).removeprefix("def m() -> None:\n").strip() for each in found
    }
    assert bodies == changes


def test_a_value_is_not_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [found] = mutants_in(tmp_path, monkeypatch, "def m(a: int) -> int:\n    return a")
    assert ast.unparse(mutated(found)).endswith("return None")
    assert found.function == "m"
    assert found.key == "sample.py m return None: return a => return None"


def test_every_mutant_of_a_module_differs_and_compiles() -> None:
    plain = ast.unparse(ast.parse(PRICES.read_text(encoding="utf-8")))
    found = mutants_of(PRICES)
    texts = [ast.unparse(mutated(each)) for each in found]
    assert len(found) > 10
    assert plain not in texts
    for each in found:
        compile(mutated(each), each.path, "exec")


@pytest.mark.long
def test_a_sample_repeats() -> None:
    options = command.parser().parse_args(["--sample", "5", "--seed", "3", "--modules", "pool"])
    assert command.chosen_mutants(options) == command.chosen_mutants(options)
    assert len(command.chosen_mutants(options)) == 5


@pytest.mark.long
def test_reasons_name_mutants_that_exist(tmp_path: Path) -> None:
    keys = {
        mutant.key
        for folder in ("pool", "consensus")
        for path in (ROOT / folder).rglob("*.py")
        for mutant in mutants_of(path)
    }
    assert set(load_reasons()) <= keys
    file = tmp_path / "reasons.txt"
    for text in ("key\n", "  reason\n", "key\nother\n  reason\n"):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match="without a"):
            load_reasons(file)


def test_a_line_without_code_of_its_own_is_tested_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "def m() -> None:\n    while True:\n        f()\n"
    found = mutants_in(tmp_path, monkeypatch, source)
    [loop] = [each for each in found if each.key.endswith("True => False")]
    lines = {1: [""], 3: ["test_m", SWARM], 9: ["test_other"]}
    known = CoverageMap({}, {loop.path: lines})
    assert known.tests(loop) == ["test_m"]
    assert known.in_swarm(loop)


def test_a_constant_is_tested_where_its_module_is_used_or_where_that_is_imported() -> None:
    settings = "consensus/protocol/raft_settings.py"
    [constant, *_] = mutants_of(ROOT / settings)
    assert "consensus/driver.py" in importers(settings)
    lines = {"consensus/driver.py": {5: ["test_d", SWARM, ""]}, "pool/errors.py": {1: ["test_e"]}}
    assert CoverageMap({}, lines).tests(constant) == ["test_d"]
    lines[settings] = {constant.line: [""], 90: ["test_s"]}
    assert CoverageMap({}, lines).tests(constant) == ["test_s"]


@pytest.mark.slow
def test_a_small_sample_of_mutants_dies(tmp_path: Path) -> None:
    """Eight of one module under its own tests, so that the script itself stays alive."""
    rows = tmp_path / "mutants.csv"
    options = "--modules pool/model/tables.py --sample 8 --seed 1 --seeds 0 --tests"
    argv = [sys.executable, "-m", "tests.mutation", "--csv", str(rows), *options.split()]
    done = subprocess.run(
        [*argv, "tests/pool/test_persistent_map.py"], cwd=ROOT, capture_output=True, text=True
    )
    table = csv.DictReader(rows.read_text(encoding="utf-8").splitlines())
    verdicts = [row["verdict"] for row in table]
    assert len(verdicts) == 8
    assert verdicts.count(Verdict.SURVIVED.value) <= 1, done.stdout
    assert verdicts.count(Verdict.BY_TEST.value) >= 5, done.stdout


@pytest.mark.long
@pytest.mark.parametrize(
    ("source", "ended"),
    [
        ("while True: pass", "time"),
        ("1 / 0", "ZeroDivisionError: division by zero (<string>:1)"),
        ("import os; os._exit(1)", "status"),
    ],
)
def test_a_trial_that_does_not_return_is_ended(source: str, ended: str) -> None:
    def work() -> trial.Result:
        exec(source)
        return {}

    assert trial.in_a_process(work, 0.5)["ended"].startswith(ended)


@pytest.mark.long
def test_a_trial_without_a_mutant_passes_and_says_which_test_failed() -> None:
    """In a separate process, because pytest does not run within pytest.

    What follows the tests, such as seeds, has more time than ``tests/limits.py`` leaves a process
    after its last test. The map of lines was never recorded, because it takes longer than that.
    """
    program = """
import time
from tests import limits
from tests.mutation import trial
limits.EXIT_S = 0.1
trial.prepare()
def work(name):
    done = trial.under_tests(None, [f"tests/pool/{name}"])
    time.sleep(0.3)
    return done
for name in ("test_shallow_json.py", "test_that_is_not_there.py"):
    print(trial.in_a_process(lambda: work(name), 60))
"""
    argv = [sys.executable, "-c", program]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    clean, missing = done.stdout.splitlines()
    assert "'caught': ''" in clean
    assert "'passed': 0" not in clean
    assert "'missing': 'tests/pool/test_that_is_not_there.py'" in missing
