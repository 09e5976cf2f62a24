"""The superblock and a loss of power; and the lock on a directory that could not be opened."""

from pathlib import Path
from random import Random

import pytest

from gpupool.consensus.storage.journal import REPAIR, Floor, Superblock, Synced
from gpupool.consensus.storage.peer_memory import PeerMemory, Remembered, Start
from gpupool.consensus.storage.store import open_storage
from gpupool.pool.errors import StorageError
from gpupool.pool.model.ids import ServerId
from gpupool.simulations.kernel.simulated_disk import SimulatedDisk


def test_a_note_that_was_synced_outlives_a_loss_of_power() -> None:
    for seed in range(20):
        disk = SimulatedDisk(Random(seed))
        superblock = Superblock(disk)
        superblock.keep()
        disk.sync_directory()
        noted = Synced(journal=1, batches=2, boot=3, term=4, vote="b", last_index=5)
        superblock.note(noted)
        superblock.sync()
        disk.lose_power()
        assert Superblock(disk).known == noted


def test_a_directory_that_cannot_be_opened_is_not_left_locked(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(StorageError, match="the journal is missing"):
            open_storage(tmp_path)
    open_storage(tmp_path, create=True).close()


@pytest.mark.parametrize("size", [1, 28])
def test_a_damaged_note_of_a_repair_says_that_something_is_missing_and_no_more(size: int) -> None:
    disk = SimulatedDisk(Random(1))
    Superblock(disk).lose(Floor(3, 9))
    assert len(disk.read(REPAIR)) == 28
    disk.put(REPAIR, disk.read(REPAIR)[:size])
    disk.flip(REPAIR, size - 1)
    superblock = Superblock(disk)
    assert superblock.floor == Floor(0, 0)
    superblock.lose(Floor(2, 0))
    assert Superblock(disk).floor == Floor(2, 0)


def test_of_a_server_that_was_never_heard_of_nothing_is_remembered() -> None:
    memory = PeerMemory(SimulatedDisk(Random(1)))
    none = Start(boot=0, incarnation=0)
    assert memory.of(ServerId("b")) == Remembered(none, former=none, clone=none, term=0, index=0)
    memory.promised(ServerId("b"), 0, 0)
    assert not memory.dirty
