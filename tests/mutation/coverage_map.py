"""The map from lines to the tests that run them, recorded by coverage and kept in a file.

It is recorded anew when a module or a test has changed. Tests that fail without a mutant, that take
long, or that look only at other processes, are not in it.
"""

import hashlib
import json
import re
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import coverage
import pytest
from tests.mutation import trial
from tests.mutation.operators import ROOT, Mutant

FILE = ROOT / ".coverage-data" / "mutation-map.json"
TESTS = (
    "tests/pool",
    "tests/consensus",
    "tests/golden/test_table_bytes.py",
    "tests/golden/test_consensus_bytes.py",
    "tests/golden/test_control_bytes.py",
    "tests/golden/test_state_dirs.py",
    "tests/test_decoders.py",
    "tests/remoting/control",
    "tests/monitoring",
    "tests/cli/test_detail.py",
    "tests/cli/test_dry_run.py",
    "tests/cli/test_files.py",
    "tests/cli/test_health_panel.py",
    "tests/cli/test_lease_lines.py",
    "tests/cli/test_output.py",
    "tests/cli/test_screen.py",
    "tests/cli/test_settings.py",
    "tests/cli/test_smi_query.py",
    "tests/cli/test_top.py",
    "tests/cli/test_trends.py",
    "tests/cli/test_usage.py",
    "tests/cli/test_values.py",
    "tests/cli/test_waiting_line.py",
)
LEFT_OUT = (
    "tests/remoting/control/test_ca_signer.py",
    "tests/remoting/control/test_certificate_renewal.py",
    "tests/remoting/control/test_control_processes.py",
    "tests/remoting/control/test_control_raft.py",
    "tests/monitoring/analysis/test_recorder.py",
    "tests/monitoring/web/test_browser.py",
    "tests/monitoring/web/test_live_pool_browser.py",
    "tests/monitoring/web/test_server_page_browser.py",
)
"""Of these folders: tests that look mostly at other processes, which no mutant reaches."""
SWARM = "swarm"
SWARM_SEEDS = range(3)
LONGEST_S = 20.0  # of a test under coverage
RECORD_CPU_S = 1200.0


@dataclass(frozen=True, slots=True)
class CoverageMap:
    """The tests of each line, and each test's duration."""

    seconds: dict[str, float]
    lines: dict[str, dict[int, list[str]]]  # by path and line; "" is what importing runs

    def tests(self, mutant: Mutant) -> list[str]:
        """Return the tests that run the changed lines, the quickest first.

        What only importing runs, such as a constant, is tested by all that use the module; if no
        test runs a line of it, by all that use the modules which import it.
        """
        run = self._that_run(mutant)
        found, used = run - {"", SWARM}, self._that_use(mutant.path)
        if not used:
            found = {test for path in importers(mutant.path) for test in self._that_use(path)}
        elif not found and "" in run:
            found = used
        return sorted(found, key=lambda test: (self.seconds.get(test, 0.0), test))

    def in_swarm(self, mutant: Mutant) -> bool:
        """Say whether recorded seeds of the swarm run the changed lines, or import them.

        Without a map, any mutant may matter.
        """
        if not self.lines:
            return True
        found = self._that_run(mutant)
        return SWARM in found or ("" in found and not found - {""})

    def _that_use(self, path: str) -> set[str]:
        lines = self.lines.get(path, {})
        return {test for tests in lines.values() for test in tests} - {"", SWARM}

    def _that_run(self, mutant: Mutant) -> set[str]:
        """Return the tests, imports and swarm that run the changed lines.

        Where Python has no code for them, as for ``while True``, the next line with code counts.
        """
        lines = self.lines.get(mutant.path, {})
        first, last = mutant.lines
        found = {t for line in range(first, last + 1) for t in lines.get(line, ())}
        behind = min((line for line in lines if line > last), default=0)
        return found or set(lines.get(behind, ()))


@cache
def importers(path: str) -> tuple[str, ...]:
    """Return the modules of ``pool`` and ``consensus`` that import the one at ``path``."""
    name = ".".join(("gpupool", *Path(path).with_suffix("").parts))
    pattern = re.compile(rf"^(from|import) {re.escape(name)}\b", re.MULTILINE)
    return tuple(
        str(each.relative_to(ROOT))
        for folder in ("pool", "consensus")
        for each in sorted((ROOT / folder).rglob("*.py"))
        if pattern.search(each.read_text(encoding="utf-8"))
    )


def load() -> CoverageMap:
    """Return the map of the files as they are; record it if there is none."""
    digest = _digest()
    if FILE.exists():
        kept: Any = json.loads(FILE.read_text(encoding="utf-8"))
        if kept["digest"] == digest:
            return _map(kept)
    return record(digest)


def load_old() -> CoverageMap:
    """Return the map as it was last recorded, although files may have changed."""
    return _map(json.loads(FILE.read_text(encoding="utf-8")))


def record(digest: str, tests: Sequence[str] = TESTS) -> CoverageMap:
    """Run all tests and a few seeds under coverage."""
    kept = trial.in_a_process(lambda: _recorded(tests), RECORD_CPU_S)
    if "lines" not in kept:
        raise RuntimeError(f"the map could not be recorded: {kept}")
    kept["digest"] = digest
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps(kept), encoding="utf-8")
    return _map(kept)


def _map(kept: dict[str, Any]) -> CoverageMap:
    names: list[str] = kept["tests"]
    lines: dict[str, dict[int, list[str]]] = {
        path: {int(line): [names[n] for n in numbers] for line, numbers in each.items()}
        for path, each in kept["lines"].items()
    }
    return CoverageMap(kept["seconds"], lines)


def _digest() -> str:
    digest = hashlib.sha256()
    for name in ("pool", "consensus", "simulations", *TESTS):
        place = ROOT / name
        for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


class _Contexts:
    """A plugin of pytest: gives each test a context, and takes its time."""

    def __init__(self, measured: coverage.Coverage) -> None:
        self._measured = measured
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()

    def pytest_configure(self, config: pytest.Config) -> None:
        config.workerinput = {}  # type: ignore[attr-defined] - see ``trial.Watcher``

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._measured.switch_context(item.nodeid)
        began = time.process_time()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = round(time.process_time() - began, 4)
            self._measured.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)


def _recorded(tests: Sequence[str]) -> dict[str, Any]:
    measured = coverage.Coverage(
        data_file=None, config_file=False, source=[str(ROOT / "pool"), str(ROOT / "consensus")]
    )
    measured.start()
    plugin = _Contexts(measured)
    ignored = (f"--ignore={each}" for each in LEFT_OUT)
    trial.run_pytest(tests, [plugin], *ignored)
    measured.switch_context(SWARM)
    for seed in SWARM_SEEDS:
        trial.run_seed(seed)
    measured.stop()
    too_long = {name for name, seconds in plugin.seconds.items() if seconds > LONGEST_S}
    left_out = plugin.failed | too_long
    names = [name for name in ("", SWARM, *plugin.seconds) if name not in left_out]
    numbers = {name: number for number, name in enumerate(names)}
    data = measured.get_data()
    lines: dict[str, dict[str, list[int]]] = {}
    for file in data.measured_files():
        path = trial.path_of(file).resolve().relative_to(ROOT).as_posix()
        lines[path] = {
            str(line): sorted(numbers[each] for each in contexts if each in numbers)
            for line, contexts in data.contexts_by_lineno(file).items()
        }
    return {
        "tests": names,
        "seconds": plugin.seconds,
        "lines": lines,
        "left_out": sorted(left_out),
    }
