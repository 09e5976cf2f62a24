"""The scripts of `examples` on an emulated GPU: each compares with NumPy itself."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"program_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
