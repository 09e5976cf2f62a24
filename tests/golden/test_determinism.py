"""Recorded bytes do not depend on the process that writes them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
from hashlib import sha256
from tests.golden import consensus_samples, control_samples, data_samples, table_samples
for samples in (control_samples, table_samples, consensus_samples, data_samples):
    for name, data in samples.everything().items():
        print(name, sha256(data).hexdigest())
"""


@pytest.mark.long
def test_every_process_writes_the_same_bytes() -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed, "TZ": zone},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed, zone in (("1", "UTC"), ("777", "Asia/Tokyo"))
    ]
    first, second = (process.communicate(timeout=60)[0].splitlines() for process in processes)
    assert [process.returncode for process in processes] == [0, 0]
    assert len(first) > 300
    assert first == second
