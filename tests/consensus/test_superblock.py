"""The superblock and a loss of power; and the lock on a directory that could not be opened."""

from pathlib import Path
from random import Random

import pytest

from gpupool.consensus.storage.store import open_storage
from gpupool.consensus.storage.superblock import Superblock, Synced
from gpupool.pool.errors import StorageError
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
