"""A running pool is upgraded from an earlier commit, server by server, and no lease is lost."""

import subprocess
import sys

import pytest
from tests.packaging.conftest import ROOT, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def upgrade(*commits: str) -> None:
    said = run(sys.executable, ROOT / "tests" / "packaging" / "upgrade_pool.py", *commits)
    assert said.count("is upgraded") == 3
    assert "none failed" in said


def test_a_pool_is_upgraded_under_load() -> None:
    upgrade("HEAD", "next")


def test_a_pool_of_the_last_release_is_upgraded_under_load() -> None:
    describe = ["git", "-C", str(ROOT), "describe", "--tags", "--abbrev=0", "--match", "v*"]
    tag = subprocess.run(describe, capture_output=True, text=True, check=False).stdout.strip()
    if not tag:
        pytest.skip("nothing has been released yet: there is no tag")
    upgrade(tag, "HEAD")
