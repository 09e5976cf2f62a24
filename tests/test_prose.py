"""The rules about the style of documents find their targets; make lint applies them."""

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

CHECK = Path(__file__).parent.parent / "packaging" / "site" / "prose.py"
BAD = {
    "a sentence of 31 words": "Word " * 30 + "end.",
    "'whoever': say who": "Whoever\nreads this knows it.",
    "'of whom': make two sentences": "| users | those of whom it is known |",
    "'will': use the present tense": "- The server will end.",
    "'such': name the thing": "Such a lease ends.",
    "'is told': say who tells it": "The user is told so.",
    "'in order to': write: to": "Wait in order to see it.",
    "'it is believed that': say who does it": "It is believed that servers end.",
    "two spaces": "The server  ends.",
    "'of what': name it": "Keep a list of what servers sent.",
    "'what was': name it": "It keeps what was measured.",
    "'shows who': name it": "The page shows who waits.",
    "'has the lease go': say who does it": "The command has the lease go on.",
    "'of its own': write": "It has a thread of its own.",
    "'what': begin with the noun": "What cannot be moved stays.",
}
GOOD = """\
Servers such as this one end; there is no such lease. `gpupool will` is code, "whoever" is quoted.

```
whoever leverages this will simply be told
```

It has cupy, numpy, scipy, torch, jax, flax, optax, diffrax, numpyro, triton, timm, peft, cuBLAS,
cuFFT, cuSPARSE, cuSOLVER, cuRAND, NCCL, Thrust, CUB, numba, pynvml, Liger, torchao, bitsandbytes,
accelerate, lightning, cuda.core, torchaudio, torchdiffeq, GPyTorch, nvmath.
"""


ERRORS = {
    "a sentence of 31 words": ("word " * 31, ""),
    "an error ends without a full stop": ("the server ends.", ""),
    "an error begins with a small letter, behind our name": ("The server ends", ""),
    "a command stands between double quotes": ("it ends", "`gpupool status` shows it"),
    "a hint names what is on the machine, and no page": ("it ends", "see docs/health.md"),
    "a clause of 25 words": ("it ends", "word " * 25),
}
GOOD_ERROR = ("CuPy is missing: no token", '"gpupool token create" makes one, see gpupool-...')


@pytest.fixture(scope="module")
def prose() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(CHECK.parent), *sys.path])
        yield importlib.import_module("prose")


@pytest.mark.parametrize("fault", ERRORS)
def test_faults_of_error_sentences_are_found(prose: ModuleType, fault: str) -> None:
    assert any(each.startswith(fault) for each in prose.error_problems(*ERRORS[fault]))
    assert list(prose.error_problems(*GOOD_ERROR)) == []


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the check's findings on each bad text and on the good one, from one process."""
    page = tmp_path_factory.mktemp("pages") / "page.md"
    page.write_text("\n\n".join([*BAD.values(), GOOD]), encoding="utf-8")
    argv = [sys.executable, str(CHECK), str(page)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == f"{len(BAD)} findings about style in 1 files\n"
    return [line.partition(": ")[2].lower() for line in done.stdout.splitlines()]


@pytest.mark.parametrize("said", BAD)
def test_a_fault_is_found(found: list[str], said: str) -> None:
    assert any(line.startswith(said) for line in found), found


@pytest.mark.parametrize(
    ("sentence", "is_found"),
    [
        ("Return the limits of a lease.", False),
        ("Return the index up to which the log is applied.", False),
        ("Return the leader, which may be another server.", False),
        ("Return what a lease may use.", True),
        ("Say which server leads.", True),
        ("Notes who waits, on a thread of its own.", True),
        ("Have the lease go on.", True),
    ],
)
def test_a_docstring_begins_with_nouns(prose: ModuleType, sentence: str, is_found: bool) -> None:
    assert bool(prose.pronouns(sentence)) is is_found
