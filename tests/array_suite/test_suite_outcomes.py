"""The list of expected outcomes of CuPy's tests: reasons, patterns of families, the comparison."""

import json
from pathlib import Path

import pytest
from tests.array_suite import suite_outcomes as so

ONE = "cupy_tests/fft_tests/test_fft.py::TestPlan_param_3_{n=None}::test_plan[float32]"
TWO = "cupy_tests/fft_tests/test_fft.py::TestPlan_param_4_{n=5}::test_plan"
THREE = "cupy_tests/core_tests/test_ndarray.py::TestCopy::test_copy"


def failed(test: str, error: str) -> so.Outcome:
    return so.Outcome(test, "failed", error)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("InternalsUsed: internals of CuPy: cupy.fft._fft._fft", so.INTERNALS),
        ("NotImplementedError: an emulated GPU has none", so.EMULATION),
        ("AttributeError: `gpupool run --door cuda` runs captured graphs", so.LEFT),
        ("AssertionError: \nNot equal to tolerance", so.OTHER),
    ],
)
def test_the_record_says_the_reason_or_else_the_message(error: str, reason: str) -> None:
    assert so.reason_of({}, failed(THREE, error)) == reason
    assert so.reason_of({THREE: so.DECIDED}, failed(THREE, error)) == so.DECIDED


def test_a_family_that_fails_as_a_whole_is_one_pattern() -> None:
    one, two, right = (
        failed(ONE, "ValueError"),
        failed(TWO, "ValueError"),
        so.Outcome(TWO, "passed"),
    )
    whole, part = so.patterns([one, two], {}), so.patterns([one, right], {})
    assert whole == {"cupy_tests/fft_tests/test_fft.py::TestPlan::test_plan*": so.OTHER}
    assert so.expected_reason(whole, one) == so.OTHER
    assert part == {ONE: so.OTHER}
    assert so.expected_reason(part, right) is None


def test_a_failure_that_the_record_lacks_is_new(tmp_path: Path) -> None:
    record = tmp_path / "record.xz"
    so.write_record({ONE: so.INTERNALS, THREE: so.DECIDED}, record)
    expected = so.read_record(record)
    outcomes = [failed(ONE, ""), failed(TWO, ""), so.Outcome(THREE, "passed")]
    rows = [line.split(" | ") for line in so.table(outcomes, expected)]
    heads, core, fft = rows[0], rows[2], rows[3]
    assert (core[0], core[1]) == ("| cupy_tests/core_tests", "1")
    assert core[heads.index("now pass")] == "1"
    assert [fft[heads.index(so.INTERNALS)], fft[heads.index("new")]] == ["1", "1"]
    assert so.without_internals(outcomes, expected) == 0.5


def test_the_last_outcome_of_a_test_counts_and_addresses_do_not(tmp_path: Path) -> None:
    lines = tmp_path / "outcomes.jsonl"
    fields = {"id": "a/b_tests::t[<f at 0x7f01>]", "outcome": "failed", "type": "E", "error": "x"}
    again = {**fields, "id": "a/b_tests::t[<f at 0x7fff>]", "outcome": "passed", "type": ""}
    lines.write_text(json.dumps(fields) + "\n" + json.dumps(again) + "\n")
    assert so.read_outcomes(lines) == [so.Outcome("a/b_tests::t[<f at 0x>]", "passed", "x")]


def test_the_record_has_a_reason_for_each_test() -> None:
    record = so.read_record()
    assert len(record) > 400
    assert set(record.values()) <= set(so.REASONS)
    assert so.OTHER not in record.values()


def test_folders_that_run_are_taken_out_of_the_list() -> None:
    sparse = "cupyx_tests/scipy_tests/sparse_tests/t.py::T"
    other = "cupy_tests/fft_tests/test_fft.py::T"
    expected = {sparse: "a", other: "b"}
    assert so.without(expected, ["cupyx_tests/scipy_tests/sparse_tests"]) == {other: "b"}
    assert so.without(expected, ["cupy_tests/math_tests"]) == expected
    assert [so.Outcome(test, "passed").folder for test in expected] == [
        *("cupyx_tests/scipy_tests/sparse_tests", "cupy_tests/fft_tests")
    ]
