"""The default run tries a part of the examples, and CI leaves out neither those nor long tests."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from tests.properties import DEFAULT, FEWEST, THOROUGH, examples

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def profile_as_before() -> Iterator[None]:
    before = settings.get_current_profile_name()
    yield
    settings.load_profile(before)


def test_the_default_run_tries_a_quarter_and_never_too_few() -> None:
    settings.load_profile(DEFAULT)
    assert [examples(count) for count in (400, 60, 20, 5)] == [100, 15, FEWEST, 5]


def test_a_thorough_run_tries_all() -> None:
    settings.load_profile(THOROUGH)
    assert [examples(count) for count in (400, 60, 20, 5)] == [400, 60, 20, 5]


def recipe(makefile: str, target: str) -> str:
    found = re.search(rf"(?m)^{target}: .*\n((?:\t.*\n)+)", makefile)
    assert found is not None, target
    return found[1]


def test_ci_runs_what_the_default_run_leaves_out() -> None:
    ci = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    assert "- run: make long-tests\n" in ci
    assert "make --no-print-directory long-tests\n" in (ROOT / ".ci" / "run").read_text()
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("long-tests", "slow-tests"):
        assert f"--hypothesis-profile={THOROUGH}" in recipe(makefile, target), target
    assert "-m '(long or hypothesis) and not slow and not gpu'" in recipe(makefile, "long-tests")
    assert f"COMPLETE := --hypothesis-profile={THOROUGH} -m 'not slow and not gpu'\n" in makefile
    for target in ("root-tests", "sanitized-tests", "client-tests", "coverage"):
        assert "$(COMPLETE)" in recipe(makefile, target), target
