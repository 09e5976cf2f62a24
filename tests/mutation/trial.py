"""Trials: one mutant in a separate process, under tests or under seeds of the swarm.

The process is forked from one that has imported what is not ours, so that a trial takes as long as
its tests do. An import hook gives the mutated module; no file is changed.
"""

import ast
import faulthandler
import importlib
import importlib.abc
import importlib.util
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest
from hypothesis import Phase, settings
from tests.mutation.operators import ROOT, Mutant, mutated

OUTSIDE = ("trio", "cbor2", "cryptography.x509", "numpy", "pysyncobj", "trio.testing")
PROFILE = "mutation"
MEMORY_BYTES = 3 << 30
TEST_LIMIT_S = 120
WALL_PER_CPU = 4  # other programs use this machine, too

Result = dict[str, Any]


def prepare() -> None:
    """Import the modules that every trial needs and no mutant changes."""
    for name in OUTSIDE:
        importlib.import_module(name)
    # Always the same examples, none kept, and none made smaller: only the verdict counts.
    settings.register_profile(
        PROFILE,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.explicit, Phase.generate),
    )


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, tree: ast.Module) -> None:
        super().__init__(name, path)
        self._tree = tree

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._tree, self.path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._name = mutant.module
        self._path = str(ROOT / mutant.path)
        self._tree = mutated(mutant)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        loader = _Loader(fullname, self._path, self._tree)
        return importlib.util.spec_from_file_location(fullname, self._path, loader=loader)


def install(mutant: Mutant) -> None:
    """Let imports give the mutated module from now on."""
    assert mutant.module not in sys.modules
    sys.meta_path.insert(0, _Finder(mutant))


def in_a_process(work: Callable[[], Result], cpu_s: float) -> Result:
    """Return the result of work in a forked process; ``{"ended": why}`` if it does not return."""
    read, write = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        _child(work, write, cpu_s)
    os.close(write)
    text, late = _read_all(read, cpu_s * WALL_PER_CPU)
    if late:
        os.killpg(pid, signal.SIGKILL)
    _, status, usage = os.wait4(pid, 0)
    cpu = usage.ru_utime + usage.ru_stime
    if text and not late:
        return {**json.loads(text), "cpu_s": cpu}
    by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    ended = "time" if late or by in {signal.SIGXCPU, signal.SIGKILL} else f"status {status}"
    return {"ended": ended, "cpu_s": cpu}


def _child(work: Callable[[], Result], write: int, cpu_s: float) -> None:
    try:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s) + 1, int(cpu_s) + 5))
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        text = json.dumps(work()).encode()
        while text:
            text = text[os.write(write, text) :]
    except BaseException as error:  # noqa: BLE001 - the parent says it
        os.write(write, json.dumps({"ended": _told(error)}).encode())
    finally:
        os._exit(0)


def _told(error: BaseException) -> str:
    """Return an error and where it was raised: a trial has no other output."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"[:2000]


def _read_all(read: int, seconds: float) -> tuple[bytes, bool]:
    """Return the bytes until the other end closed, and whether that took too long."""
    until = time.monotonic() + seconds
    text = b""
    try:
        while True:
            ready, _, _ = select.select([read], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                return text, True
            part = os.read(read, 1 << 16)
            if not part:
                return text, False
            text += part
    finally:
        os.close(read)


class Watcher:
    """A plugin of pytest: remembers the first failure, and that other plugins need not compile."""

    def __init__(self) -> None:
        self.failed = ""
        self.passed = 0

    def pytest_configure(self, config: pytest.Config) -> None:
        config.workerinput = {}  # type: ignore[attr-defined] - as in a process of pytest-xdist

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.failed:
            self.failed = f"{report.nodeid} (import)"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid
        if report.when == "call" and report.passed:
            self.passed += 1


def run_pytest(tests: Sequence[str], plugins: Sequence[object], *more: str) -> int:
    """Run tests in this process."""
    quiet = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=no", "-W", "ignore")
    limits = (f"--timeout={TEST_LIMIT_S}", f"--hypothesis-profile={PROFILE}")
    os.chdir(ROOT)
    try:
        return int(pytest.main([*quiet, *limits, *more, *tests], plugins=list(plugins)))
    finally:
        # tests/limits.py ends the process a minute after the last test; a trial goes on with seeds.
        faulthandler.cancel_dump_traceback_later()


def under_tests(mutant: Mutant | None, tests: Sequence[str]) -> Result:
    """Run tests until the first failure: ``caught`` names it, and is empty if all passed."""
    if mutant is not None:
        install(mutant)
    watcher = Watcher()
    status = run_pytest(tests, [watcher], "-x")
    if status == pytest.ExitCode.USAGE_ERROR:
        # The mutant may be in the names of the parameters.
        status = run_pytest(sorted({each.split("[")[0] for each in tests}), [watcher], "-x")
    missing = [each for each in tests if not is_there(each)]
    if status == pytest.ExitCode.USAGE_ERROR and missing:
        return {"caught": "", "passed": 0, "missing": missing[0]}
    caught = watcher.failed or ("" if status == 0 else f"pytest's status {status}")
    return {"caught": caught, "passed": watcher.passed}


def is_there(test: str) -> bool:
    """Return whether a test is in its file, with any parameters."""
    file, *names = test.split("[")[0].split("::")
    path = ROOT / file
    return path.exists() and all(name in path.read_text(encoding="utf-8") for name in names)


def under_seeds(mutant: Mutant | None, seeds: Sequence[int]) -> Result:
    """Run seeds of the swarm until the first failure."""
    if mutant is not None:
        install(mutant)
    import logging

    logging.disable(logging.CRITICAL)
    for seed in seeds:
        try:
            failure = run_seed(seed)
        except Exception as error:  # noqa: BLE001 - a simulator that cannot go on has noticed
            failure = type(error).__name__
        if failure:
            return {"caught": f"seed {seed}: {failure}"}
    return {"caught": ""}


def run_seed(seed: int) -> str:
    """Return the checker that failed in one run of the swarm, or nothing."""
    # Only now, because a mutant must be installed before anything of ours is imported.
    from gpupool.simulations.kernel.swarm_options import swarm
    from gpupool.simulations.tools.runner import run

    failure = run(swarm(seed)).failure
    return failure.checker if failure else ""


def path_of(name: str) -> Path:
    """Return a path of the repository."""
    return ROOT / name
