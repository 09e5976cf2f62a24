"""An emulated GPU computes the same as a GPU, also at the corners of its types."""

import math
import re
import warnings
from pathlib import Path
from typing import Any

import door_kit
import numpy as np
import pytest
from tests.gpu import corners_check

FLOAT_NAMES = {"half": "e", "float": "f", "double": "d"}
WHOLE_NAMES = {"int": "i", "uint": "I", "ll": "q", "ull": "Q"}
CONVERSION = re.compile(
    r"(array|full slice|flat|copyto|ascontiguousarray|asfortranarray|require|add out"
    r"|concatenate|stack"
    r"|raw|elementwise implicit|elementwise|reduction|fuse|astype) ([efdFD])->([bBhHiIqQ])"
)
INTRINSIC = re.compile(r"intrinsic __(half|float|double)2(int|uint|ll|ull)_(rn|rz|ru|rd)")
RECORDED = Path(__file__).resolve().parents[2] / "testdata" / "corners.txt.xz"

# As the table "What differs" of docs/array-door.md has it.
KNOWN = re.compile(
    r"arange [fd]->[BIQ]|fuse [fd]->[bIQ]|unique [ef]|percentile [efd]|around f 1|unwrap f"
    r"|nextafter ff|power ff|ldexp f|(count_)?nonzero f|(log\w*|exp\w*|(arc)?(sin|cos|tan)h?) [FD]"
    r"|(reciprocal|sign) [FD]|(true_divide|power|maximum|less) (FF|DD)"
)
ROUNDINGS = {"rn": np.rint, "rz": np.trunc, "ru": np.ceil, "rd": np.floor}


def converted(value: float, kind: str, source: str) -> int:
    """Return a float as a GPU converts it, computed in Python's exact numbers."""
    register = np.iinfo({"b": "i", "h": "i", "B": "I", "H": "I"}.get(kind, kind))
    if math.isnan(value):
        whole = 1 << register.bits - 1 if source in "dD" or register.bits == 64 else 0
    elif math.isinf(value):
        whole = int(register.max if value > 0 else register.min)
    else:
        whole = min(max(int(value), int(register.min)), int(register.max))
    limits = np.iinfo(kind)
    return (whole - int(limits.min)) % (1 << limits.bits) + int(limits.min)


def without_tiny(name: str, case: Any) -> Any:
    """Return a case without the last number of the list, if that is too small for a float32."""
    if name.endswith((" f", " ff")):
        if isinstance(case, list) and len(case) in (20, 200):
            return case[: len(case) * 19 // 20]
        if isinstance(case, list):
            return [without_tiny(name, part) for part in case]
    return case


def meant(name: str) -> tuple[str, list[int]] | None:
    """Return the dtype and the values of a case that only converts."""
    rounding: Any = np.trunc
    if found := CONVERSION.fullmatch(name):
        source, kind = found[2], found[3]
    elif found := INTRINSIC.fullmatch(name):
        source, kind = FLOAT_NAMES[found[1]], WHOLE_NAMES[found[2]]
        rounding = ROUNDINGS[found[3]]
    else:
        return None
    with np.errstate(all="ignore"):
        floats: Any = np.array(corners_check.FLOATS).astype(source)
        values = rounding(floats.real.astype("d"))
    made = [converted(float(value), kind, source) for value in values]
    twice = found.re is CONVERSION and found[1] in ("concatenate", "stack")
    return np.dtype(kind).name, made * 2 if twice else made


@pytest.fixture(scope="module")
def found(dropin: Any) -> dict[str, Any]:
    with warnings.catch_warnings(action="ignore"):  # of imaginary parts that are lost
        return corners_check.compute(dropin)


@pytest.mark.skipif(not door_kit.HAS_COMPILER, reason="kernels need a compiler")
def test_floats_become_whole_numbers_by_cudas_rule_in_every_way(found: dict[str, Any]) -> None:
    compared = wrong = 0
    for name, result in found.items():
        want = meant(name)
        if want is None:
            continue
        for kind, values in result if isinstance(result[0], list) else [result]:
            compared += 1
            if (kind, list(np.ravel(np.array(values, object)))) != want:
                wrong += 1
                print(name, kind, values[:8], want[1][:8])
    assert wrong == 0
    assert compared > 300


@pytest.mark.skipif(not door_kit.HAS_COMPILER, reason="kernels need a compiler")
def test_only_known_corners_differ_from_a_real_card(found: dict[str, Any]) -> None:
    real = corners_check.read(RECORDED)
    assert real.keys() == found.keys()
    first, second = ({n: without_tiny(n, case) for n, case in t.items()} for t in (real, found))
    differ = {name for name, _, _ in corners_check.different(first, second)}
    unknown = [name for name in differ if not KNOWN.fullmatch(name)]
    assert unknown == []
    assert len(real) > 1400


@pytest.mark.skipif(not door_kit.HAS_COMPILER, reason="kernels need a compiler")
@pytest.mark.parametrize("kind", "bBhHiIqQ")
def test_division_by_zero_in_a_kernel_ends_no_worker(dropin: Any, kind: str) -> None:
    least, most = (int(limit) for limit in (np.iinfo(kind).min, np.iinfo(kind).max))
    name, all_bits = np.dtype(kind).name, -1 if least else most
    kernel = dropin.ElementwiseKernel(
        f"{name} a, {name} b", f"{name} c, {name} d", "c = a / b; d = a % b", "divided"
    )
    x = dropin.array([7, least, most, 0, most], kind)
    y = dropin.array([0, 0, 2, 3, -1 if least else most], kind)
    quotients, rests = kernel(x, y)
    assert quotients.tolist() == [all_bits, all_bits, most // 2, 0, -most if least else 1]
    assert rests.tolist() == [all_bits, all_bits, 1, 0, 0]
