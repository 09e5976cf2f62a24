"""gpupool without NumPy: all but emulated GPUs, of which the commands say how they are had."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT = """
import importlib.util, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numpy", "scipy"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "numpy" else find_spec(name, *rest)
"""
ROOT = Path(__file__).resolve().parent.parent.parent
WORKERS = ("remoting/worker", "remoting/devices", "remoting/array_api", "remoting/driver_api")
"""Rooms of the workers' processes: some of their modules compute."""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Give the environment of a Python that has no NumPy."""
    (tmp_path / "sitecustomize.py").write_text(WITHOUT, encoding="utf-8")
    own = {name: value for name, value in os.environ.items() if not name.startswith("GPUPOOL_")}
    folder = str(tmp_path)
    return (
        own
        | dict.fromkeys(("PYTHONPATH", "HOME", "TMPDIR", "XDG_CONFIG_HOME"), folder)
        | {"PYTHONDONTWRITEBYTECODE": "1"}
    )


def run(environment: dict[str, str], *argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *argv]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_command_line_and_the_server_need_no_numpy(environment: dict[str, str]) -> None:
    paths = [
        path.relative_to(ROOT)
        for room in ("cli", "consensus", "monitoring", "pool", "remoting", "simulations")
        for path in (ROOT / room).rglob("*.py")
        if not str(path.relative_to(ROOT)).startswith(WORKERS)
    ]
    names = [".".join(("gpupool", *path.with_suffix("").parts)) for path in paths]
    names += ["gpupool.remoting.host.measuring.nvml", "gpupool.remoting.worker.worker_main"]
    assert len(names) > 400
    program = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"
    done = run(environment, "-c", f"{program}\nassert 'numpy' not in sys.modules", *names)
    assert done.returncode == 0, done.stderr
    done = run(environment, "-m", "gpupool.cli.main", "--help")
    assert "One pool of the GPUs of many servers." in done.stdout


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has GPUs")
def test_a_server_without_gpus_says_so(environment: dict[str, str], tmp_path: Path) -> None:
    where = ("--state-dir", str(tmp_path / "state"), "--listen", "127.0.0.1:0")
    done = run(environment, "-m", "gpupool.cli.main", "join", *where)
    assert done.returncode == 1
    assert "this machine has no GPU to offer" in done.stderr


@pytest.mark.parametrize("command", [("join", "--emulate", "1:4G"), ("up",), ("demo",)])
def test_emulated_gpus_need_numpy(
    environment: dict[str, str], command: tuple[str, ...], tmp_path: Path
) -> None:
    done = run(environment, "-m", "gpupool.cli.main", *command)
    assert done.returncode == 1
    said = "emulated GPUs need NumPy, which computes for them"
    assert done.stderr.startswith(f"gpupool: {said}")
    assert f"{sys.executable} -m pip install numpy scipy" in done.stderr
    assert not [each for each in tmp_path.rglob("*") if "gpupool" in each.name]  # nothing begun
