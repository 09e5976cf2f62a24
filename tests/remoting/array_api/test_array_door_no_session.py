"""Without a GPU session the drop-in raises CuPy's error for no device, which libraries catch."""

import os
import subprocess
import sys
from pathlib import Path

_DROPIN = Path(__file__).parents[3] / "remoting" / "array_api" / "dropin"
_PROGRAM = """
import cupy
assert not cupy.cuda.is_available()
for ask in (cupy.cuda.runtime.getDeviceCount, cupy.cuda.Device(0).use):
    try:
        ask()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        assert error.status == 100, error
        print(error)
"""


def test_a_program_without_a_session_sees_no_device(tmp_path: Path) -> None:
    for agent in ({}, {"GPUPOOL_AGENT": str(tmp_path / "gone")}):
        kept = {k: v for k, v in os.environ.items() if k != "GPUPOOL_AGENT"}
        ran = subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            env={**kept, **agent, "PYTHONPATH": str(_DROPIN)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.count("cudaErrorNoDevice: ") == 2
        assert ran.stdout.count("gpupool run") == 2
