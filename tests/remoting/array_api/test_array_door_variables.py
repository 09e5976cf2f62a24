"""Variables of CUDA and CuPy at the array door; ``docs/variables.md`` has them all."""

import ast
import json
import re
import socket
import subprocess
import sys
from pathlib import Path

from tests.remoting.array_api import door_kit

from gpupool.remoting.protocol.driver_variables import ALLOWED, LIBRARIES, allowed_environment

PAGE = Path(__file__).resolve().parents[3] / "docs" / "variables.md"
HEEDED = {
    "CUDA_VISIBLE_DEVICES": "tests/cli/test_visible_devices.py",
    "CUDA_LAUNCH_BLOCKING": "test_launches_that_block",
    "CUPY_SEED": "test_array_door_like_cupy.py",
    "CUPY_GPU_MEMORY_LIMIT": "test_a_limit_of_memory",
    "CUPY_EXPERIMENTAL_SLICE_COPY": "test_copies_by_an_empty_slice",
}


def test_what_the_page_calls_heeded_is_tried() -> None:
    rows = re.findall(r"^\| (`\w[^|]*) \| (?:[^|]* \| )?heeded\b[^|]* \|$", PAGE.read_text(), re.M)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.split(" | ")[0])}
    assert named == set(HEEDED)


def test_all_that_is_passed_on_is_sent(tmp_path: Path) -> None:
    values = dict.fromkeys((*ALLOWED, *LIBRARIES), "1")
    values |= {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "CUDA_AUTO_BOOST": "no word"}
    with socket.socket(socket.AF_UNIX) as agent:
        agent.bind(str(tmp_path / "agent"))
        agent.listen()
        environment = door_kit.program_environment(None) | {
            "GPUPOOL_AGENT": str(tmp_path / "agent"),
            "CUDA_VISIBLE_DEVICES": "1,0",
        }
        program = subprocess.Popen(
            [sys.executable, "-c", "import cupy; cupy.ones(1)"],
            env=environment | values,
            stderr=subprocess.DEVNULL,
        )
        asking, _ = agent.accept()
        with asking, asking.makefile("rb") as lines:
            request = json.loads(lines.readline())
            asking.sendall(b'{"ok":false}\n')
        program.wait(30)
    del values["CUDA_AUTO_BOOST"]
    assert request["visible"] == "1,0"
    assert allowed_environment(request["settings"]) == values


def test_launches_that_block() -> None:
    source = """
import cupy as cp
x = cp.linalg.pinv(cp.eye(3))
x = cp.linalg.pinv(cp.nan * cp.eye(3))
y = 1
print(x)
"""
    with door_kit.pool(1) as agent:
        done = door_kit.run_program(agent, source, CUDA_LAUNCH_BLOCKING="1")
    assert "line 4, in <module>\n" in done.stderr
    assert "line 6, in <module>\n" not in done.stderr


def test_a_limit_of_memory() -> None:
    source = """
import cupy as cp
print([cp.cuda.Device(at).__enter__() and cp.get_default_memory_pool().get_limit() >> 20
       for at in (0, 1)])
try:
    cp.empty(17 << 20, "u1")
except cp.cuda.memory.OutOfMemoryError:
    print("refused")
"""
    with door_kit.pool(2, memory=64 * door_kit.MIB) as agent:
        said = [
            door_kit.run_program(agent, source, CUPY_GPU_MEMORY_LIMIT=limit)
            for limit in ("25%", str(16 << 20), "0", "x")
        ]
    texts = [ast.literal_eval(done.stdout.split("\n")[0] or "None") for done in said]
    assert texts == [[16, 16], [16, 16], [0, 0], None]
    assert ["refused" in done.stdout for done in said] == [True, True, False, False]
    assert "ValueError" in said[3].stderr


def test_copies_by_an_empty_slice() -> None:
    source = """
import cupy as cp, numpy as np
x = cp.zeros(3)
try:
    x[:] = np.ones(3)
except TypeError:
    print("refused")
print(float(x.sum()))
"""
    with door_kit.pool(1) as agent:
        said = [
            door_kit.run_program(agent, source, CUPY_EXPERIMENTAL_SLICE_COPY=value).stdout
            for value in ("1", "0", "")
        ]
    assert said == ["3.0\n", "refused\n0.0\n", "refused\n0.0\n"]
