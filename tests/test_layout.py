"""The shape of the project: who may import whom, and that the wheel has every folder."""

import ast
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("pool", "consensus", "remoting", "cli", "simulations")
STDLIB_WITH_IO = {"socket", "ssl", "subprocess", "threading", "time", "random", "os", "select"}

# Each folder, with the folders and the outside packages that it may import.
MAY_IMPORT: dict[str, tuple[set[str], set[str]]] = {
    "pool": (set(), set()),
    "consensus": ({"pool"}, {"pysyncobj", "cbor2", "trio"}),
    "remoting": ({"pool"}, {"cbor2", "trio", "cryptography", "numpy", "cupy", "cuda", "pynvml"}),
    "cli": ({"pool", "consensus", "remoting", "simulations"}, {"click", "rich", "trio"}),
    "simulations": ({"pool", "consensus", "remoting"}, {"pysyncobj", "trio"}),
}
# The floors of pool/, lowest first: a module imports its own floor and those below it. The modules
# beside the folders stand above all of them, except the invariants, which are sampled below.
POOL_FLOORS = ("model", "policy", "invariants", "scheduling", "transitions")
# The drop-in lives in the program's own environment, where gpupool may not be installed at all.
DROPIN = ROOT / "remoting" / "array_api" / "dropin"
DROPIN_MAY_IMPORT = {"numpy", "cupy"}
MODULES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def imports_of(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_downwards(path: Path) -> None:
    folder = path.relative_to(ROOT).parts[0]
    inside, outside = MAY_IMPORT[folder]
    if path.is_relative_to(DROPIN):
        tops = {name.partition(".")[0] for name in imports_of(path)}
        assert tops <= DROPIN_MAY_IMPORT | sys.stdlib_module_names
        return
    for name in imports_of(path):
        top, *rest = name.split(".")
        if top == "gpupool":
            assert not rest or rest[0] in {folder, *inside}, f"{folder} imports {name}"
        elif top in sys.stdlib_module_names:
            assert folder != "pool" or top not in STDLIB_WITH_IO, f"{folder} imports {name}"
        else:
            assert top in outside, f"{folder} imports {name}"


@pytest.mark.parametrize("floor", POOL_FLOORS)
def test_a_floor_of_the_pool_imports_no_higher_one(floor: str) -> None:
    below = POOL_FLOORS[: POOL_FLOORS.index(floor) + 1]
    allowed = tuple(f"gpupool.pool.{name}" for name in below)
    folder = ROOT / "pool" / floor
    paths = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
    assert paths
    for path in paths:
        inside = {name for name in imports_of(path) if name.startswith("gpupool.pool")}
        too_high = {name for name in inside if not name.startswith(allowed)}
        assert not too_high, f"{path.name} imports {too_high}"


def test_pyproject_lists_every_package() -> None:
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    # Every folder with a module in it, so that no file is missing from the wheel.
    found = {"gpupool"} | {
        ".".join(("gpupool", *path.parent.relative_to(ROOT).parts)) for path in MODULES
    }
    assert set(setuptools["packages"]) == found
    assert set(setuptools["package-dir"]) == {"gpupool", *(f"gpupool.{name}" for name in FOLDERS)}


@pytest.mark.parametrize("folder", FOLDERS)
def test_link_leads_to_the_folder(folder: str) -> None:
    assert (ROOT / "src" / "gpupool" / folder).resolve() == ROOT / folder
