"""A small run of the fuzzer of arrays, and its rule of differences."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

import re
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from tests.fuzz import arrays


def test_few_cases_and_programs_agree_with_numpy() -> None:
    command = [sys.executable, arrays.__file__, "--cases=300", "--programs=40", "--seed=45"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    agreed = {name: int(count) for name, count in re.findall(r"^(\w+) +(\d+) ", done.stdout, re.M)}
    assert agreed["programs"] == 40
    assert sum(agreed[kind] for kind in arrays.KINDS) > 235


@pytest.mark.parametrize(
    ("want", "got", "found"),
    [
        (np.array([1, 2]), np.array([1, 3]), "[1, 3] for [1, 2]"),
        (np.array([1]), np.array([1], "i"), "int32 of (1,) for int64 of (1,)"),
        (np.zeros(2), np.zeros((2, 1)), "float64 of (2, 1) for float64 of (2,)"),
        (np.array(0.0), np.array(-0.0), "-0.0 for 0.0"),
        (np.array([1, np.nan]), np.array([1 + 1e-14, np.nan]), ""),
        (np.array([1.0, 2.0]), np.array([1.0, 2.5]), "[1.0, 2.5] for [1.0, 2.0]"),
        ([np.zeros(1), np.ones(1)], [np.zeros(1)], "another number of results"),
        ([np.zeros(1), np.ones(1)], [np.zeros(1), np.zeros(1)], "[0.0] for [1.0]"),
    ],
)
def test_values_types_shapes_and_signs_of_zeros_count(
    want: object, got: object, found: str
) -> None:
    assert arrays.difference(want, got, signs=True) == found


def test_a_program_that_shows_a_difference_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    fuzzer = object.__new__(arrays.Fuzzer)
    fuzzer.cupy, fuzzer.counts, fuzzer.apart = np.random, Counter(), Counter()
    lines = ["made = 1 if 'random' in xp.__name__ else 2"]
    fuzzer.run("ufuncs", "template", lines)
    assert fuzzer.counts == {("ufuncs", "WRONG"): 1}
    assert capsys.readouterr().out.splitlines()[-1].strip() == lines[0]
