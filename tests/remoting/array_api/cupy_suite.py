"""Runs CuPy's own tests against the drop-in: an outside check, by hand, not part of the suite.

    python cupy_suite.py SOURCES WHEEL [FILE...]

SOURCES is an unpacked source tree of CuPy (its ``tests/cupy_tests``), WHEEL the site-packages
folder where the real CuPy of the same version is installed (its ``cupy/testing``). Both are only
read. The tests compare CuPy with NumPy, so on an emulated device they check the proxy, not the
arithmetic. Tests of CuPy's own internals fail here, as they must; nothing is skipped for that.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
SKIPPED = ("cuda_tests", "fusion_tests", "testing_tests", "polynomial_tests")
TIMEOUT_S = 300

CONFTEST = '''
import importlib.abc, importlib.machinery, os, subprocess, sys, types

worker = subprocess.Popen([sys.executable, {kit!r}, "2"], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True)
os.environ["GPUPOOL_AGENT"] = worker.stdout.readline().strip()
# Errors must come back where the tests expect them.
os.environ["GPUPOOL_BLOCKING"] = "1"
sys.path.insert(0, {dropin!r})
import cupy
import cupy._core
cupy.__path__.append({overlay!r})


class Anything:
    def __init__(self, *args, **kwargs): pass
    def __call__(self, *args, **kwargs): return self
    def __getattr__(self, name):
        if name.startswith("__"): raise AttributeError(name)
        return self
    def __lt__(self, other): return True
    def __le__(self, other): return True
    def __gt__(self, other): return False
    def __ge__(self, other): return False


class Module(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"): raise AttributeError(name)
        return Anything()


class Internals(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules of CuPy that only its tests import; tests that really use them fail."""

    names = ("cupy_backends", "cupyx.cusolver", "cupyx.cusparse", "cupyx.cutensor", "cupyx.linalg",
             "cupyx.scipy", "cupy.cublas", "cupy._environment", "cupy._util", "cupy._core.core",
             "cupy._core.flags", "cupy._core.internal", "cupy._core._accelerator",
             "cupy._core._kernel", "cupy._core._routines_linalg", "cupy._core._ufuncs",
             "cupy.cuda.driver", "cupy.cuda.compiler", "cupy.cuda.cufft", "cupy.cuda.cusolver",
             "cupy.cuda.cublas", "cupy.cuda.curand", "cupy.fft._fft", "cupy.fft._cache",
             "cupy.linalg._util", "cupy.linalg._decomposition", "cupy.lib._routines_poly")

    def find_spec(self, name, path, target=None):
        if any(name == known or name.startswith(known + ".") for known in self.names):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec): return Module(spec.name)
    def exec_module(self, module): pass


sys.meta_path.append(Internals())
for name in ("driver", "compiler", "cufft", "cusolver", "cublas"):
    setattr(cupy.cuda, name, importlib.import_module("cupy.cuda." + name))
for name in ("core", "flags", "internal"):
    setattr(cupy._core, name, importlib.import_module("cupy._core." + name))
import math
cupy._core.internal.prod = math.prod
cupy._core.core.ndarray = cupy._core.ndarray = cupy.ndarray
cupy._core.get_compute_type = lambda dtype: 0
cupy._core.set_compute_type = lambda dtype, kind: None
cupy.cuda.device.get_compute_capability = lambda: "90"
import cupyx
cupyx.scipy = importlib.import_module("cupyx.scipy")
cupyx.scipy.sparse = importlib.import_module("cupyx.scipy.sparse")
cupyx.scipy.sparse.issparse = lambda value: False
cupy.testing = importlib.import_module("cupy.testing")


def pytest_configure(config):
    for mark in ("slow", "thread_unsafe", "gpu", "multi_gpu"):
        config.addinivalue_line("markers", mark + ": of CuPy")
'''


def main() -> int:
    """Run the files one after the other; print a line each, and the totals."""
    sources, wheel, *wanted = sys.argv[1:]
    totals: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(Path(sources) / "tests" / "cupy_tests", folder / "cupy_tests")
        shutil.copytree(Path(wheel) / "cupy" / "testing", folder / "overlay" / "testing")
        dropin = HERE.parents[2] / "remoting" / "array_api" / "dropin"
        text = CONFTEST.format(
            kit=str(HERE / "door_kit.py"), dropin=str(dropin), overlay=str(folder / "overlay")
        )
        (folder / "conftest.py").write_text(text)
        files = wanted or sorted(
            str(path.relative_to(folder))
            for path in (folder / "cupy_tests").rglob("test_*.py")
            if not any(part in SKIPPED for part in path.parts)
        )
        for file in files:
            command = [sys.executable, "-m", "pytest", "-q", "--tb=line", "-W", "ignore"]
            command += ["-p", "no:cacheprovider", "-m", "not slow", file]
            try:
                done = subprocess.run(
                    command,
                    cwd=folder,
                    env={**os.environ},
                    capture_output=True,
                    text=True,
                    timeout=TIMEOUT_S,
                    check=False,
                )
                tail = [line for line in done.stdout.splitlines() if " in " in line][-1:]
            except subprocess.TimeoutExpired:
                tail = ["0 passed, 1 timed-out in 300s"]
            summary = tail[0] if tail else "no result"
            print(f"{file}: {summary}", flush=True)
            for count, kind in re.findall(r"(\d+) ([a-z-]+)", summary.partition(" in ")[0]):
                totals[kind.removesuffix("s")] += int(count)
    print(dict(totals))
    judged = totals["passed"] + totals["failed"]
    print(f"{totals['passed'] / max(judged, 1):.1%} of {judged:,} passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
