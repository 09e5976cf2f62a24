"""Clients of the array door that mean harm end their own session at most."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("hostile_client.py")


def run(first: int, count: int) -> str:
    """Serve sessions in a process with separate bounds; return its output."""
    command = [sys.executable, "-W", "ignore", str(PROGRAM), str(first), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.long
def test_hostile_sessions_end_by_the_doors_rules_and_leave_nothing() -> None:
    assert run(0, 60).startswith("60 sessions, ")


@pytest.mark.slow
def test_a_thousand_hostile_sessions() -> None:
    assert run(1000, 1000).startswith("1000 sessions, ")
