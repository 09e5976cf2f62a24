"""Programs as users of CuPy write them: on an emulated GPU they give NumPy's results.

`programs` has those of this test; each has a function that takes the module to compute with.
The scripts of `examples` compare with NumPy themselves.
"""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parents[2] / "examples"
PROGRAMS = sorted(path.stem for path in (HERE / "programs").glob("*.py"))


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"program_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_computes_what_numpy_computes(cp: Any, name: str) -> None:
    if name.startswith("sparse"):
        pytest.importorskip("scipy")
    run = _load(HERE / "programs" / f"{name}.py").run
    found, wanted = run(cp), run(np)
    assert len(found) == len(wanted)
    for mine, theirs in zip(found, wanted, strict=True):
        if isinstance(mine, cp.ndarray):
            assert (mine.dtype, mine.shape) == (np.asarray(theirs).dtype, np.shape(theirs))
            mine = mine.get()
        np.testing.assert_allclose(mine, theirs, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("solver", ["32", "10"]), ("kmeans", ["500", "4"]), ("image_filter", ["48"])],
)
def test_an_example_computes_what_numpy_computes(
    cp: Any, monkeypatch: pytest.MonkeyPatch, name: str, arguments: list[str]
) -> None:
    assert cp.cuda.runtime.getDeviceCount() == 2
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    assert _load(EXAMPLES / f"{name}.py").main() == 0
