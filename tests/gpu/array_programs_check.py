"""Runs programs of the array door on a real GPU, natively and behind the door.

    python tests/gpu/array_programs_check.py

Needs CuPy, SciPy and a GPU. Each program of `tests/gpu/array_programs` is compared
with NumPy. The values that an emulated GPU takes from CuPy's formulas (`emulated_arithmetic.py`)
are compared with the GPU's own. Exit status 0 means that all were equal in both runs.
"""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import importlib
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
DROPIN = ROOT / "remoting" / "array_api" / "dropin"
PROGRAMS = ROOT / "tests" / "gpu" / "array_programs"
WORKER = ROOT / "tests" / "gpu" / "array_door_check.py"
INF, NAN = float("inf"), float("nan")


def check_program(cp: Any, name: str) -> None:
    """Compare a program's results with NumPy's."""
    sys.path.insert(0, str(PROGRAMS))
    run = importlib.import_module(name).run
    for mine, theirs in zip(run(cp), run(np), strict=True):
        found = cp.asnumpy(mine)
        assert found.shape == np.shape(theirs), (found.shape, np.shape(theirs))
        # CuPy's sums of single precision have other roundings than NumPy's, natively as well.
        np.testing.assert_allclose(found, theirs, rtol=1e-6, atol=1e-5)


def check_formulas(cp: Any) -> None:
    """Compare the emulation's deviations from NumPy with the GPU's results."""
    x, y = cp.asarray([INF, -INF, 3.0, -3.0]), cp.asarray([2.0, 2.0, -INF, INF])
    np.testing.assert_array_equal((x // y).get(), [INF, -INF, -0.0, -0.0])
    np.testing.assert_array_equal(cp.divmod(x, y)[0].get(), [INF, -INF, -0.0, -0.0])
    for made in (x % y, cp.divmod(x, y)[1]):
        assert np.isnan(made.get()).all(), made
    powers = cp.expm1(cp.asarray([complex(INF, 0), complex(NAN, 0), complex(-INF, NAN)])).get()
    np.testing.assert_array_equal(powers.real, [INF, NAN, -1.0])
    for kind, wanted in (("f", "F"), ("d", "D"), ("i", "D"), ("F", "F")):
        values, vectors = cp.linalg.eig(cp.asarray([[2, 1], [0, 3]], kind))
        assert (values.dtype.char, vectors.dtype.char) == (wanted, wanted), kind
        assert cp.linalg.eigvals(cp.asarray([[2, 1], [0, 3]], kind)).dtype.char == wanted, kind


def check() -> int:
    """Run everything with the `cupy` that is found first; return how many failed."""
    cp: Any = importlib.import_module("cupy")
    checks: dict[str, Any] = {"formulas": lambda: check_formulas(cp)}
    for name in sorted(path.stem for path in PROGRAMS.glob("*.py")):
        checks[name] = lambda name=name: check_program(cp, name)
    failed = 0
    for name, call in checks.items():
        try:
            call()
            print(f"  {name}: right", flush=True)
        except Exception:  # noqa: BLE001 - the next check tells something, too
            failed += 1
            print(f"  {name}: WRONG", flush=True)
            traceback.print_exc()
    return failed


def main() -> int:
    """Run the checks natively, then behind the door of a worker."""
    if sys.argv[1:] == ["check"]:
        return check()
    argv = [sys.executable, __file__, "check"]
    print("natively", flush=True)
    failed = subprocess.run(argv, check=False).returncode
    worker = subprocess.Popen(
        [sys.executable, str(WORKER), "--mode", "worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        agent = worker.stdout.readline().strip()
        assert agent, "the worker did not start"
        print("behind the door", flush=True)
        door = {"GPUPOOL_AGENT": agent, "PYTHONPATH": str(DROPIN)}
        failed += subprocess.run(argv, env={**os.environ, **door}, check=False).returncode
        worker.stdin.close()
    return failed


if __name__ == "__main__":
    sys.exit(main())
