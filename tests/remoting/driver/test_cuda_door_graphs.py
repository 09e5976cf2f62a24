"""The CUDA door's graphs: built node by node, captured, changed, and launched."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fake_cuda.build import build as build_driver
from fake_cuda.control import Control, process_environment
from test_cuda_door import HERE, KERNELS, compiled, right, run


def test_graphs_by_node(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each type of node runs, in the order of edges; queries, changes, memory, mistakes."""
    program = compiled("graphs", tmp_path, library)
    monkeypatch.chdir(tmp_path)
    with Control(tmp_path) as control:
        right(run(library, control, [str(program), str(KERNELS / "test_kernels.sm_90.cubin")]))
        assert control.missing_calls() == 0
    drawn = (tmp_path / "graph.dot").read_text()
    assert drawn.startswith("digraph dot {") and drawn.count("subgraph") == 2
    assert "increment" in drawn


def test_captures(library: Path, tmp_path: Path) -> None:
    """The host's memory is read at each launch; a capture's nodes are asked for and changed."""
    program = compiled("captures", tmp_path, library)
    with Control(tmp_path) as control:
        right(run(library, control, [str(program), str(KERNELS / "test_kernels.sm_90.cubin")]))
        assert control.missing_calls() == 0


@pytest.mark.slow
def test_cupy_and_the_bindings(library: Path, tmp_path: Path) -> None:
    """The real CuPy and cuda.bindings at both ends, from their wheels.

    test_fake_cuda_clients.py says how to get these; the environment needs cbor2 and trio as well.
    """
    python = os.environ.get("GPUPOOL_CUDA_PYTHON")
    if python is None:
        pytest.skip("GPUPOOL_CUDA_PYTHON names no interpreter with the CUDA wheels")
    driver = build_driver()
    with Control(tmp_path) as control:
        values = control.environment(driver)
        del values["LD_LIBRARY_PATH"]
        command = [python, str(HERE / "loopback.py"), "--library", str(library)]
        command += ["--driver", str(driver.parent), "--", python]
        command += [str(HERE / "programs" / "graphs_of_cupy.py")]
        environment = process_environment(values)
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=240, check=False
        )
    right(done)
