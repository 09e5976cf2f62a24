"""The part of a fat binary that the server's driver loads, by the variables on compiling PTX."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fake_cuda.control import Control
from fatbins import CODE_KERNEL, LOADS, TEXT_KERNEL, write_images
from test_cuda_door import run

NO_BINARY, JIT_DISABLED = "209", "223"
USUAL = (CODE_KERNEL, CODE_KERNEL, CODE_KERNEL)
FORCED = (TEXT_KERNEL, NO_BINARY, CODE_KERNEL)
DISABLED = (CODE_KERNEL, CODE_KERNEL, JIT_DISABLED)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        pytest.param({}, USUAL, marks=pytest.mark.slow),
        ({"CUDA_FORCE_PTX_JIT": "1"}, FORCED),
        pytest.param({"CUDA_DISABLE_PTX_JIT": "1"}, DISABLED, marks=pytest.mark.long),
        pytest.param({"CUDA_FORCE_JIT": "1"}, FORCED, marks=pytest.mark.slow),
        pytest.param(
            {"CUDA_FORCE_JIT": "1", "CUDA_FORCE_PTX_JIT": "0"}, USUAL, marks=pytest.mark.long
        ),
    ],
)
def test_variables_choose_between_code_and_text(
    variables: dict[str, str],
    expected: tuple[str, ...],
    library: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    images = [str(path) for path in write_images(tmp_path) if path.name in ("both", "code", "text")]
    with Control(tmp_path) as control:
        done = run(library, control, [sys.executable, "-c", LOADS, *images])
    assert tuple(done.stdout.splitlines()) == expected, done.stderr
