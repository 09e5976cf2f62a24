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
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"$(if $(THOROUGH),--hypothesis-profile={THOROUGH})" in makefile
    assert "CHOSEN := not slow and not gpu$(if $(THOROUGH),, and not long)\n" in makefile
    chosen = re.findall(r"-m '(.*)'", recipe(makefile, "tests"))
    assert chosen == ["$(CHOSEN) and not process", "$(CHOSEN) and process"]
    assert f"COMPLETE := --hypothesis-profile={THOROUGH} -m 'not slow and not gpu'\n" in makefile
    assert f"--hypothesis-profile={THOROUGH}" in recipe(makefile, "slow-tests")
    for target in ("root-tests", "sanitized-tests", "client-tests", "coverage"):
        assert "$(COMPLETE)" in recipe(makefile, target), target


def test_workflows_run_each_step_of_ci() -> None:
    run = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "export LOCKED=1 THOROUGH=1\n" in run
    listed = re.search(r"(?s)steps=\((.*?)\n\)", run)
    assert listed is not None
    steps = set(re.findall(r"(?m)^  ([a-z-]+)", listed[1]))
    folder = ROOT / ".github" / "workflows"
    workflows = "".join((folder / f"{name}.yml").read_text() for name in ("ci", "nightly"))
    matrix = re.search(r"step: \[(.*)\]", workflows)
    assert matrix is not None
    called = {*matrix[1].split(", "), *re.findall(r"\.ci/run ([a-z-]+)", workflows)}
    assert called == steps - {"test"} | {"lint", "tests"}  # its two parts
