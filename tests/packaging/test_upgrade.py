"""A running pool is upgraded from an earlier commit, server by server, and no lease is lost."""

import sys

import pytest
from tests.packaging.conftest import ROOT, run


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_pool_is_upgraded_under_load() -> None:
    said = run(sys.executable, ROOT / "tests" / "packaging" / "upgrade_pool.py")
    assert said.count("is upgraded") == 3
    assert "none failed" in said
