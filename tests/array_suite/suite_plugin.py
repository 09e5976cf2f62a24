"""A pytest plugin: CuPy's tests import the drop-in as `cupy`, and each outcome becomes a line.

`run_suite.py` starts pytest with it. GPUPOOL_SUITE_OVERLAY names a folder that has CuPy's own
`testing` package, GPUPOOL_SUITE_OUTCOMES the file for the outcomes, GPUPOOL_SUITE_DEVICES what
computes: `emulated` devices, a `gpu` behind the door, or the `native` CuPy without the drop-in.
GPUPOOL_SUITE_PART is `1/4` for the second test of each four.
"""

import atexit
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import suite_shims

ROOT = Path(__file__).resolve().parents[2]
KIT = ROOT / "tests" / "remoting" / "array_api" / "door_kit.py"
GPU_CHECK = ROOT / "tests" / "gpu" / "array_door_check.py"
DROPIN = ROOT / "remoting" / "array_api" / "dropin"
MARKS = ("slow", "thread_unsafe", "gpu", "multi_gpu", "no_gpu")
LONGEST = 300  # of an error, at either end: CuPy's helpers put a traceback between the two


def _start() -> Any:
    """Start a worker with two emulated devices, or real ones, and import the drop-in."""
    devices = os.environ["GPUPOOL_SUITE_DEVICES"]
    if devices == "native":
        return None
    emulated = [str(KIT), "2"]
    argv = emulated if devices == "emulated" else [str(GPU_CHECK), "--mode", "worker"]
    worker = subprocess.Popen(
        [sys.executable, *argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert worker.stdout is not None
    assert worker.stdin is not None
    atexit.register(worker.wait)
    atexit.register(worker.stdin.close)
    os.environ["GPUPOOL_AGENT"] = worker.stdout.readline().strip()
    sys.path.insert(0, str(DROPIN))
    dropin: Any = importlib.import_module("cupy")
    dropin.__path__.insert(0, os.environ["GPUPOOL_SUITE_OVERLAY"])
    suite_shims.install(dropin)
    dropin.testing = importlib.import_module("cupy.testing")
    return dropin


CUPY = _start()


def _ends(text: str) -> str:
    return text if len(text) <= 2 * LONGEST else f"{text[:LONGEST]} ... {text[-LONGEST:]}"


class Outcomes:
    """Writes one JSON line for each test."""

    def __init__(self) -> None:
        self._path = Path(os.environ["GPUPOOL_SUITE_OUTCOMES"])

    def _write(self, line: dict[str, str]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        del item
        suite_shims.running = True
        try:
            return (yield)
        finally:
            suite_shims.running = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        failed_early = call.when == "setup" and report.outcome != "passed"
        if call.when != "call" and not failed_early:
            return report
        line: dict[str, str] = {
            "id": item.nodeid,
            "outcome": report.outcome,
            "type": "",
            "error": "",
        }
        if call.excinfo is not None:
            line["type"] = call.excinfo.type.__name__
            line["error"] = _ends(str(call.excinfo.value))
        elif report.outcome == "failed":
            line["error"] = _ends(str(report.longrepr))  # a strict xfail that passes
        if hasattr(report, "wasxfail"):
            line["outcome"] = "skipped"
        self._write(line)
        return report

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out the tests of the other parts."""
        index, _, of = os.environ["GPUPOOL_SUITE_PART"].partition("/")
        items[:] = items[int(index) :: int(of)]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            text = str(report.longrepr).strip().splitlines()[-1][:LONGEST]
            line = {"id": report.nodeid, "outcome": "failed", "type": "Import", "error": text}
            self._write(line)

    def pytest_runtest_teardown(self) -> None:
        """Begin the next test with a session that works, and with no error of this one."""
        if CUPY is None:
            return
        CUPY._door.state.reset()
        for session in CUPY._door.pool.sessions():
            try:
                session.synchronize()
            except Exception:  # noqa: BLE001 - this test's own late error, which it has shown
                if session.failure is not None:
                    CUPY._door.pool.reset()


def pytest_configure(config: pytest.Config) -> None:
    """Register the hooks, and the marks of CuPy's tests."""
    for mark in MARKS:
        config.addinivalue_line("markers", mark + ": of CuPy")
    config.pluginmanager.register(Outcomes())
