"""The fault of pysyncobj 0.3.17 on a full disk (finding L4), absent here.

A real disk that is full, or a file that may not grow, needs a process of its own:
``full_disk.py`` commits until nothing more is taken.
"""

import contextlib
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
from lone_node import Lone, entry, take

from gpupool.consensus.protocol.raft_settings import ConsensusSettings
from gpupool.consensus.storage.journal import RESERVE, Entry, Journal
from gpupool.consensus.storage.peer_memory import PeerMemory
from gpupool.consensus.storage.snapshot import Snapshot
from gpupool.consensus.storage.store import Storage
from gpupool.pool.errors import NoRoomError, StorageError
from gpupool.pool.model.ids import ServerId
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


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("operation", ["append", "sync"])
def test_l4_ours_says_so_gives_the_reserve_back_and_goes_on_once_there_is_room(
    operation: Operation, error: int
) -> None:
    lone = Lone()
    assert RESERVE in lone.disk.names()
    lone.disk.fail(operation, error, lasting=True)
    with pytest.raises(NoRoomError, match=os.strerror(error)) as caught:
        lone.append(2, 1, [entry("x", 3, 5)])
    assert "free some disk space" in caught.value.hint
    assert RESERVE not in lone.disk.names()
    with pytest.raises(NoRoomError):
        lone.node.ready()
    lone.disk.repair()
    [(peer, message)] = [each for each in lone.tick() if each[1]["type"] == "next_node_idx"]
    assert (peer, message["next_node_idx"]) == ("b", 4)
    lone.disk.lose_power()
    lone.restart()
    assert lone.log()[-1] == entry("x", 3, 5)
    assert RESERVE in lone.disk.names()


@pytest.mark.parametrize("seed", range(40))
def test_a_journal_whose_disk_is_full_now_and_then_keeps_all_that_it_synced(seed: int) -> None:
    random = Random(seed)
    disk = SimulatedDisk(random)
    storage = Storage(disk, create=True)
    kept: list[Entry] = []
    for number in range(80):
        journal = storage.journal
        disk.full = random.random() < 0.4
        if random.random() < 0.1:
            disk.fail("sync", errno.ENOSPC)
        journal.append(b"\0" + bytes([number]), journal.last_index + 1, 1)
        with contextlib.suppress(NoRoomError):
            if random.random() < 0.1 and storage.journal.term_at(journal.last_index - 2):
                snapshot = Snapshot(journal.last_index - 2, 1, (), None)
                take(storage, snapshot)  # drops what is before the one before it
            storage.sync()
            kept = journal.entries[:]
        if random.random() < 0.15:
            disk.repair()
            disk.lose_power()
            storage = Storage(disk, create=False)
            assert storage.superblock.floor is None
            found = {entry[1]: entry for entry in storage.journal.entries[1:]}
            missing = [each for each in kept[1:] if found.get(each[1]) != each]
            assert all(each[1] <= storage.journal.base_index for each in missing)
            assert storage.journal.last_index >= (kept[-1][1] if kept else 1)


def test_what_is_known_of_the_others_waits_for_room() -> None:
    """It ended the server, with all programs, although it is written now and then only."""
    lone = Lone()
    lone.disk.fail("write", errno.ENOSPC, lasting=True)
    for index in range(3, 6):
        sent = lone.append(index - 1, 5 if index > 3 else 1, [entry("x", index, 5)])
        assert "next_node_idx" in [message["type"] for _, message in sent]
        lone.tick(6.0)
    assert lone.node.storage.memory.dirty
    lone.disk.repair()
    lone.tick(6.0)
    assert not lone.node.storage.memory.dirty
    assert PeerMemory(lone.disk).of(ServerId("b")).index == 4


def test_a_snapshot_waits_for_room() -> None:
    lone = Lone(settings=ConsensusSettings(snapshot_entries=4))
    lone.disk.fail("write", errno.ENOSPC, lasting=True)
    for index in range(3, 40):
        if index == 20:
            assert not [name for name in lone.disk.names() if name.startswith("snapshot")]
            lone.disk.repair()
        lone.append(index - 1, 5 if index > 3 else 1, [entry("x", index, 5)], commit=index)
    assert [name for name in lone.disk.names() if name.startswith("snapshot-")]


def test_a_journal_that_cannot_be_written_anew_is_appended_to() -> None:
    disk = SimulatedDisk(Random(7))
    storage = Storage(disk, create=True)
    for index in range(2, 8):
        storage.journal.append(b"\0x", index, 1)
    storage.sync()
    for index in (3, 5):
        storage.snapshots.save(Snapshot(index, 1, (), None))
    storage.taken()
    storage.journal.append(b"\0y", 8, 1)
    disk.fail("write", errno.ENOSPC, lasting=True)
    storage.sync()
    assert storage.journal.base_index == 1
    disk.repair()
    disk.lose_power()
    assert Storage(disk, create=False).journal.last_index == 8


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
