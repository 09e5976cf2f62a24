"""Seed inputs and earlier findings of fuzzing, under AddressSanitizer and UBSan.

Any C compiler with these sanitizers will do; ``make fuzz`` looks for more, with clang's libFuzzer.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import fuzz

COMPILER = shutil.which("gcc") or shutil.which("clang") or ""


def sanitizes(folder: Path) -> bool:
    """Return whether the machine's compiler has the sanitizers' libraries."""
    source = folder / "empty.c"
    source.write_text("int main(void) { return 0; }\n")
    command = [COMPILER, "-fsanitize=address,undefined", "-o", str(folder / "empty"), str(source)]
    done = subprocess.run(command, capture_output=True, check=False)
    return done.returncode == 0 and subprocess.run([folder / "empty"], check=False).returncode == 0


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder where the library's files are compiled once."""
    return tmp_path_factory.mktemp("fuzz")


@pytest.mark.long
@pytest.mark.parametrize("target", fuzz.TARGETS, ids=lambda target: target.name)
def test_seeds_and_what_was_found_are_read_without_a_fault(
    target: fuzz.Target, objects: Path, tmp_path: Path
) -> None:
    if not COMPILER or not sanitizes(tmp_path):
        pytest.skip("no C compiler with AddressSanitizer here")
    made = fuzz.build(target, objects, COMPILER, "")
    inputs = sorted(fuzz.corpus_of(target, tmp_path).iterdir())
    assert inputs
    done = subprocess.run(
        [str(made), *map(str, inputs)],
        env={"ASAN_OPTIONS": "detect_leaks=0"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
