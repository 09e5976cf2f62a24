"""The CUDA door's graphs: built node by node, captured, changed, and launched."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fake_cuda.control import Control
from test_cuda_door import KERNELS, compiled, right, run

pytestmark = pytest.mark.long  # CI runs these with sanitizers, too


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


@pytest.mark.long
def test_functions_beside_copies(library: Path, tmp_path: Path) -> None:
    """Host nodes in graphs that copy the host's memory, and refused ones."""
    program = compiled("host_copies", tmp_path, library)
    with Control(tmp_path) as control:
        right(run(library, control, [str(program), str(KERNELS / "test_kernels.sm_90.cubin")]))
        assert control.missing_calls() == 0


@pytest.mark.parametrize("options", [(), ("--no-launcher",)], ids=["launcher", "python"])
@pytest.mark.parametrize("hosts", [0, 2])
def test_a_launch_that_fails_leaves_memory_alone(
    hosts: int, options: tuple[str, ...], library: Path, tmp_path: Path
) -> None:
    """Remains of an earlier launch in the worker's memory are not taken for its bytes."""
    program = compiled("failed_launch", tmp_path, library)
    with Control(tmp_path) as control:
        control.set_fault("cuGraphLaunch", 1, after=1, times=1)
        done = run(library, control, [str(program), str(hosts)], *options)
    assert done.stdout == "results right\n", done.stderr


@pytest.mark.long
def test_functions_of_graphs_come_and_go(library: Path, tmp_path: Path) -> None:
    """70,000, of which the library holds 65,536 at a time: they end behind their last launch."""
    program = compiled("host_nodes", tmp_path, library)
    with Control(tmp_path) as control:
        right(run(library, control, [str(program), "20"]))


def test_graphs_that_kernels_launch(library: Path, tmp_path: Path) -> None:
    """A kernel's graph argument is the server's handle, which the program also uses."""
    program = compiled("device_graphs", tmp_path, library)
    images = [str(KERNELS / name) for name in ("test_kernels.sm_90.cubin", "graph_kernels.ptx")]
    with Control(tmp_path) as control:
        right(run(library, control, [str(program), *images]))
        assert control.missing_calls() == 0
