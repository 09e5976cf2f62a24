"""The bytes of every record stay the same: those sent by the library, and read by the worker.

The samples were written by ``golden.py --write``.
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from golden import NAMES, RUNS, Run, all_samples, decoded, tapped

SAMPLES = all_samples()

WITHOUT_SAMPLE = {
    "COPY_2D": "neither end has it: boxes of the driver's two kinds travel as COPY_3D",
    "LANES": "only a server gives a session more connections: test_cuda_door_leases.py has them",
}
"""Records of which there are no bytes to compare, and why."""

USUAL = ("everything", "graphs", "records")
"""Programs of the default run; together they send half of the records."""


def test_there_are_samples_of_every_record() -> None:
    """Except those named above, with the reason; each new record needs a sample."""
    sampled = {NAMES[sample.op] for samples in SAMPLES.values() for sample in samples}
    assert set(NAMES.values()) - sampled == set(WITHOUT_SAMPLE)
    assert set(SAMPLES) <= {of.name for of in RUNS}


def test_samples_say_something() -> None:
    """Not all words of a record are masked, but for the one that a request has to itself."""
    for name, samples in SAMPLES.items():
        for sample in samples:
            told = sample.words[sample.flags & 1 :]
            assert not told or any(word is not None for word in told), (name, NAMES[sample.op])


@pytest.mark.parametrize(
    "of",
    [
        pytest.param(of, id=of.name, marks=() if of.name in USUAL else pytest.mark.long)
        for of in RUNS
    ],
)
def test_the_library_sends_these_bytes(of: Run, library: Path, tmp_path: Path) -> None:
    sent = tapped(of, library, tmp_path / "run")
    for sample in SAMPLES.get(of.name, ()):
        found = [one for one in sent if one.op == sample.op]
        if not any(map(sample.fits, found)):
            near = [(one.flags, one.bulk, one.body.hex(" ", 8)) for one in found[:20]]
            pytest.fail("\n".join([*sample.lines(), *map(str, near)]))


def test_the_worker_reads_these_bytes(tmp_path: Path) -> None:
    """Each record reaches the function that it reached, with the same words."""
    samples = [sample for found in SAMPLES.values() for sample in found]
    assert decoded(tmp_path, samples) == [sample.does for sample in samples]
