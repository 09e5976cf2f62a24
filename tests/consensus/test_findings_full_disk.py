"""What pysyncobj 0.3.17 does when its disk is full (finding L4), and that this does not.

A real disk that is full, or a file that may not grow, needs a process of its own:
``full_disk.py`` commits until nothing more is taken.
"""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
from lone_node import Lone, entry

from gpupool.consensus.storage.journal import RESERVE, Journal
from gpupool.pool.errors import StorageError
from gpupool.simulations.kernel.simulated_disk import Operation, SimulatedDisk

HERE = Path(__file__).parent
AS_ROOT = [] if os.geteuid() == 0 else ["--map-root-user", "--user"]
UNSHARE = ["unshare", "--mount", *AS_ROOT]
NO_SPACE = "the journal cannot be written: No space left on device"


def process(
    *arguments: str | Path, inside: list[str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run ``full_disk.py`` to its end."""
    return subprocess.run(
        [*(inside or []), sys.executable, HERE / "full_disk.py", *arguments],
        env=os.environ | {"PYTHONPATH": str(HERE.parents[1] / "src")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def on_a_small_disk(kind: str, folder: Path, size: str) -> dict[str, Any]:
    mount = [*UNSHARE, "mount", "-t", "tmpfs", "tmpfs", str(folder)]
    if shutil.which("unshare") is None or subprocess.run(mount, check=False).returncode:
        pytest.skip("needs a namespace of its own for a small file system")
    done = process(kind, folder, "mount", size, inside=UNSHARE)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.long
def test_l4_the_library_is_killed_by_a_full_disk(tmp_path: Path) -> None:
    found = on_a_small_disk("library", tmp_path, "128k")
    assert found["end"] == -signal.SIGBUS
    assert found["said"] == "", "nobody is told why"
    assert len(found["acknowledged"]) > 20


@pytest.mark.long
def test_l4_ours_says_that_the_disk_is_full_and_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    found = on_a_small_disk("ours", tmp_path, "8448k")  # 8 MiB are the reserve
    assert found["end"] == 1
    assert NO_SPACE in found["said"]
    assert len(found["acknowledged"]) > 20
    assert found["kept"] == found["acknowledged"]


@pytest.mark.long
def test_l4_the_library_goes_on_without_an_answer_when_its_file_cannot_grow(tmp_path: Path) -> None:
    done = process("library", tmp_path, "limit")
    assert done.returncode == 0, "it would take commands for ever"
    assert 20 < len(done.stdout.split()) < 60, "and neither commits nor refuses the others"
    assert "refused" not in done.stdout


def test_l4_ours_stops_when_its_file_cannot_grow(tmp_path: Path) -> None:
    done = process("ours", tmp_path, "limit")
    assert done.returncode == 1
    assert "the journal cannot be written: File too large" in done.stderr
    acknowledged = done.stdout.split()
    assert len(acknowledged) > 20
    assert process("ours", tmp_path, "kept").stdout.split() == acknowledged


def test_l4_ours_stops_with_a_clear_error_and_gives_the_reserve_back() -> None:
    lone = Lone()
    assert RESERVE in lone.disk.names()
    lone.disk.fail("append", errno.ENOSPC, lasting=True)
    with pytest.raises(StorageError, match="No space left") as caught:
        lone.append(2, 1, [entry("x", 3, 5)])
    assert "free some disk space" in caught.value.hint
    assert RESERVE not in lone.disk.names()
    lone.disk.repair()
    with pytest.raises(StorageError, match="an earlier write failed"):
        lone.append(2, 1, [entry("x", 3, 5)])


@pytest.mark.parametrize("operation", ["append", "sync"])
def test_l4_a_failed_write_is_never_tried_again(operation: Operation) -> None:
    disk = SimulatedDisk(Random(7))
    journal = Journal.create(disk)
    disk.fail(operation, errno.EIO, lasting=True)
    journal.set_vote(3, "b")
    with pytest.raises(StorageError):
        journal.sync()
    disk.repair()
    journal.set_vote(4, "c")
    with pytest.raises(StorageError):
        journal.sync()


def test_l4_a_start_without_room_for_the_reserve_is_refused() -> None:
    disk = SimulatedDisk(Random(7))
    Journal.create(disk).close()
    disk.fail("reserve", errno.ENOSPC)
    with pytest.raises(StorageError, match="MiB of disk cannot be reserved"):
        Journal.open(disk)
