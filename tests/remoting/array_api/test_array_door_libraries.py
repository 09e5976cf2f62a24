"""Libraries that compute with any arrays take the drop-in's: scikit-learn and xarray.

They are not dependencies of the project, so their tests are slow ones, and say how to get them.
"""

import importlib.util
from pathlib import Path

import door_kit
import pytest

PROGRAMS = Path(__file__).parent / "libraries"
PACKAGES = {
    "with_scikit_learn": ("sklearn", "pip install scikit-learn"),
    "with_xarray": ("xarray", "pip install xarray"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PACKAGES)
def test_a_library_gives_with_device_arrays_what_it_gives_with_numpys(name: str) -> None:
    module, advice = PACKAGES[name]
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        pytest.skip(f"{module} is not installed here: {advice}")
    source = (PROGRAMS / f"{name}.py").read_text(encoding="utf-8")
    with door_kit.pool() as agent:
        done = door_kit.run_program(agent, source, timeout_s=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("as NumPy:")
