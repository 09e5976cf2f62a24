"""The comparison of programs that others wrote, natively and behind the door."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "gpu"))

import others_check as check
from leasing import Outcome

REPORT = """<testsuites><testsuite>
<testcase classname="a.T" name="right"/><testcase classname="a.T" name="wrong"><failure/></testcase>
<testcase classname="a.T" name="left"><skipped/></testcase><testcase classname="b" name="gone"/>
</testsuite></testsuites>"""


def outcome(code: int, output: str) -> Outcome:
    return Outcome(code, 1.0, {}, output)


@pytest.mark.parametrize(
    ("native", "remote", "counts", "same"),
    [
        ((0, "Result = PASS 1.5 ms"), (0, "gpupool: no result\nResult = PASS 2e-3 ms"), True, True),
        ((0, "time 1\nTest passed"), (0, "time 2\nmore words\nTest passed"), True, True),
        ((0, "Result = PASS"), (0, "Result = FAIL"), True, False),
        ((0, "PASS"), (1, "PASS"), True, False),
        ((0, "PASS"), (-11, "PASS"), True, False),
        ((0, "PASS\nPASS"), (0, "PASS"), True, False),
        ((1, "FAILED at 0xff"), (1, "FAILED at 0x17"), False, True),
        ((124, ""), (124, ""), False, True),
    ],
)
def test_a_program_is_the_same_when_it_says_the_same(
    native: tuple[int, str], remote: tuple[int, str], counts: bool, same: bool
) -> None:
    verdict = check.compared("x", outcome(*native), outcome(*remote))
    assert (verdict.counts, verdict.same) == (counts, same)


def test_each_test_of_a_suite_is_compared() -> None:
    native = check.cases(REPORT)
    assert native == {
        "a.T::right": "pass",
        "a.T::wrong": "failure",
        "a.T::left": "skipped",
        "b::gone": "pass",
    }
    remote = {"a.T::right": "pass", "a.T::wrong": "pass", "a.T::left": "skipped"}
    verdicts = check.compared_cases("cupy", native, remote)
    assert [each.name for each in verdicts if each.counts and not each.same] == ["cupy b::gone"]
    said = "1 of 2 that pass natively are the same; 2 do not pass natively"
    assert check.summary(verdicts) == said


def test_folders_that_are_projects_are_built(tmp_path: Path) -> None:
    """Sources may lie deeper than the project's own file."""
    for name, text in {
        "0_Intro/CMakeLists.txt": "add_subdirectory(vectorAdd)",
        "0_Intro/vectorAdd/CMakeLists.txt": "cmake_minimum_required(VERSION 3.20)",
        "0_Intro/vectorAdd/src/vectorAdd.cu": "",
        "Common/helper.h": "",
    }.items():
        path = tmp_path / "Samples" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = list(check.of_cmake(tmp_path / "Samples", tmp_path / "built"))
    assert [name for name, *_ in found] == ["Samples/0_Intro/vectorAdd"]
    assert check.chosen(["Samples/a", "Samples/b"], "*/a,x") == {"Samples/a"}
    assert check.chosen(["a", "b"], "") == {"a", "b"}


def test_programs_have_the_words_that_they_are_given(tmp_path: Path) -> None:
    """In the form of cuda-samples' `test_args.json`."""
    programs = [check.Program(f"S/{n}", (f"/b/{n}",), tmp_path) for n in ("a", "b", "c", "d")]
    given = {
        "b": {"args": ["-x"]},
        "c": {"runs": [{"args": ["1"]}, {"args": ["2"]}]},
        "d": {"skip": True},
    }
    made = [(each.name, each.words) for each in check.with_arguments(programs, given)]
    assert made == [
        ("S/a", ("/b/a",)),
        ("S/b", ("/b/b", "-x")),
        ("S/c (1)", ("/b/c", "1")),
        ("S/c (2)", ("/b/c", "2")),
    ]
