"""The superblock and a loss of power."""

from random import Random

from gpupool.consensus.storage.superblock import Superblock, Synced
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
