"""Programs of the array door run in Pythons that gpupool itself does not need.

``GPUPOOL_TEST_PYTHONS`` names interpreters with colons between them, such as
``/usr/bin/python3.9:/usr/bin/python3.14``. Each gets an environment with NumPy and nothing else.
"""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PYTHONS = [each for each in os.environ.get("GPUPOOL_TEST_PYTHONS", "").split(":") if each]
NAMES = ("kmeans.py", "image_filter.py", "solver.py")
DIFFERENCE = re.compile(r"largest difference [^:]*: (\S+)")
"""Largest difference from NumPy's results; each example prints it."""


@pytest.mark.parametrize("python", PYTHONS or ["none"])
def test_the_examples_run_in_other_pythons(python: str, live_pool: Any, tmp_path: Path) -> None:
    if python == "none":
        pytest.skip("GPUPOOL_TEST_PYTHONS names no interpreter")
    venv = tmp_path / "venv"
    subprocess.run([python, "-m", "venv", str(venv)], check=True)
    pip = [str(venv / "bin/python"), "-m", "pip", "install", "--quiet", "numpy"]
    subprocess.run(pip, check=True)
    for name in NAMES:
        words = ["run", "-p", "0.5", "--", str(venv / "bin/python"), str(EXAMPLES / name)]
        done = live_pool.run(*words, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, ""), name
        found = DIFFERENCE.search(done.stdout)
        assert found is not None, done.stdout
        assert float(found[1]) < 1e-6, done.stdout
