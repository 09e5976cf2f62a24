"""The simulated disk's chosen faults: single operations, a crash at the n-th, rot, lost copies."""

import errno
import os
from collections import Counter
from random import Random

import pytest

from gpupool.consensus.storage.journal import JOURNAL, SUPERBLOCK
from gpupool.consensus.storage.store import Storage
from gpupool.pool.errors import StorageError
from gpupool.simulations.kernel.simulated_disk import Operation, PowerLostError, SimulatedDisk


def disk_with(content: bytes, seed: int = 1) -> SimulatedDisk:
    disk = SimulatedDisk(Random(seed))
    disk.write("file", content)
    disk.sync("file")
    disk.sync_directory()
    return disk


def do(disk: SimulatedDisk, operation: Operation) -> None:
    match operation:
        case "read":
            disk.read("file")
        case "append":
            disk.append("file", b"-new")
        case "overwrite":
            disk.overwrite("file", 1, b"x")
        case "write":
            disk.write("file", b"other")
        case "sync":
            disk.sync("file")
        case "rename":
            disk.rename("file", "renamed")
            disk.rename("renamed", "file")
        case "remove":
            disk.remove("file")
            disk.write("file", b"kept")
        case "sync_directory":
            disk.sync_directory()
        case "reserve":
            disk.reserve("reserve", 100)


ALL: tuple[Operation, ...] = (
    "read",
    "append",
    "overwrite",
    "write",
    "sync",
    "rename",
    "remove",
    "sync_directory",
    "reserve",
)


def storage_on(disk: SimulatedDisk, *, entries: int) -> Storage:
    """Return a new storage with so many entries, each synced, and the last one sealed."""
    storage = Storage(disk, create=True)
    storage.journal.begin()
    for index in range(2, 2 + entries):
        storage.journal.append(b"\0" + b"x" * 100, index, 1)
        storage.journal.sync()
    storage.journal.seal()
    storage.journal.sync()
    return storage


# --- single operations ----------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ALL)
def test_the_chosen_operation_fails_does_nothing_and_the_next_one_works(
    operation: Operation,
) -> None:
    disk = disk_with(b"kept")
    disk.fail(operation, errno.EIO, nth=3)
    count = disk.counts[operation]
    before = disk.image()
    while disk.counts[operation] < count + 2:
        before = disk.image()
        do(disk, operation)
    before = disk.image()
    with pytest.raises(OSError, match=os.strerror(errno.EIO)) as caught:
        do(disk, operation)
    assert caught.value.errno == errno.EIO
    if operation != "rename":  # The one that fails may be the way back.
        assert disk.image() == before
    assert disk.counts[operation] == count + 3


def test_a_lasting_failure_ends_with_the_repair() -> None:
    disk = disk_with(b"kept")
    disk.fail("append", errno.ENOSPC, lasting=True)
    for _ in range(3):
        with pytest.raises(OSError, match="No space left"):
            disk.append("file", b"-new")
    disk.sync("file")
    disk.repair()
    disk.append("file", b"-new")
    assert disk.read("file") == b"kept-new"


def test_operations_are_counted_by_kind() -> None:
    disk = disk_with(b"kept")
    disk.read("file")
    disk.append("file", b"1")
    disk.append("file", b"2")
    disk.sync("file")
    expected = {"write": 1, "sync": 2, "sync_directory": 1, "read": 1, "append": 2}
    assert disk.counts == expected


# --- a crash at the n-th operation ----------------------------------------------------------------


@pytest.mark.parametrize(("kept", "found"), [(0.0, b"kept"), (0.5, b"kept-n"), (1.0, b"kept-new")])
def test_a_crash_leaves_the_chosen_part_of_what_was_not_synced(kept: float, found: bytes) -> None:
    for seed in range(20):
        disk = disk_with(b"kept", seed)
        disk.append("file", b"-new")
        disk.power_fails_after, disk.unsynced_kept = 1, kept
        with pytest.raises(PowerLostError):
            disk.sync("file")
        disk.lose_power()
        assert disk.read("file") == found
        assert disk.unsynced_kept is None, "the next loss is drawn again"


@pytest.mark.parametrize(("kept", "names"), [(0.0, ["file"]), (0.5, ["one"]), (1.0, ["two"])])
def test_a_crash_leaves_the_chosen_part_of_the_directory(kept: float, names: list[str]) -> None:
    disk = disk_with(b"kept")
    disk.rename("file", "one")
    disk.rename("one", "two")
    disk.unsynced_kept = kept
    disk.lose_power()
    assert disk.names() == names
    assert disk.read(names[0]) == b"kept"


def test_a_chosen_part_of_a_rewritten_file_is_kept_over_the_old_bytes() -> None:
    disk = disk_with(b"old content")
    disk.write("file", b"NEW")
    disk.unsynced_kept = 2 / 3
    disk.lose_power()
    assert disk.read("file") == b"NEd content"


def test_nothing_works_between_the_power_loss_and_the_next_start() -> None:
    disk = disk_with(b"kept")
    disk.power_fails_after = 1
    for operation in ("append", "read", "sync", "write"):
        with pytest.raises(PowerLostError):
            do(disk, operation)
    disk.lose_power()
    do(disk, "append")


# --- rot, lost tails, old copies, clones ----------------------------------------------------------


def test_rot_flips_bits_of_what_is_durable_and_says_where() -> None:
    places = set[int]()
    for seed in range(50):
        disk = disk_with(b"0123456789")
        disk.append("file", b"unsynced")
        [(name, position)] = disk.rot(Random(seed))
        assert name == "file"
        assert position < 10
        found = disk.read("file")
        assert [at for at in range(18) if found[at] != b"0123456789unsynced"[at]] == [position]
        assert (found[position] ^ b"0123456789"[position]).bit_count() == 1
        disk.sync("file")
        disk.unsynced_kept = 0.0
        disk.lose_power()
        assert disk.read("file") == found, "it is on the platter"
        places.add(position)
    assert len(places) > 5
    assert SimulatedDisk(Random(1)).rot(Random(1), bits=3) == []


def test_rot_does_not_touch_what_a_program_has_just_written() -> None:
    disk = disk_with(b"0123456789")
    disk.write("file", b"0123456789")
    disk.rot(Random(1), bits=4)
    assert disk.read("file") == b"0123456789"
    disk.sync("file")
    disk.lose_power()
    assert disk.read("file") == b"0123456789", "the sync has mended it"


def test_rot_leaves_the_disk_s_own_chance_as_it_was() -> None:
    found = list[bytes]()
    for rots in (False, True):
        disk = disk_with(b"a" * 9000)
        if rots:
            disk.rot(Random(7), bits=1)
        disk.append("file", b"b" * 9000)
        disk.lose_power()
        found.append(disk.read("file")[9000:])
    assert found[0] == found[1]


def test_a_sealed_journal_notices_rot() -> None:
    """A bit of the newest batch is missing to the superblock; rot in that one is no harm."""
    noticed: Counter[str] = Counter()
    for seed in range(200):
        disk = SimulatedDisk(Random(seed))
        storage_on(disk, entries=20)
        ((name, _position),) = disk.rot(Random(seed))
        try:
            storage = Storage(disk, create=False)
        except StorageError as error:
            noticed[name] += "damaged" in str(error)
        else:
            repairing = storage.superblock.floor is not None
            assert repairing == (name == JOURNAL), f"seed {seed}"
            noticed["repaired"] += repairing
    assert noticed[JOURNAL] > 30
    assert noticed["repaired"] > 0
    assert SUPERBLOCK not in noticed


def test_a_lost_tail_is_gone_though_it_was_synced_and_sealed() -> None:
    disk = SimulatedDisk(Random(1))
    storage_on(disk, entries=20)
    whole = disk.read(JOURNAL)
    disk.lose_tail(JOURNAL, len(whole) // 3)
    left = whole[: len(whole) - len(whole) // 3]
    assert disk.read(JOURNAL) == left
    disk.lose_power()
    assert disk.read(JOURNAL) == left


def test_an_old_copy_of_a_directory_comes_back_whole() -> None:
    disk = SimulatedDisk(Random(1))
    storage = storage_on(disk, entries=5)
    copy = disk.image()
    old = storage.journal.last_index
    storage.journal.append(b"\0later", old + 1, 1)
    storage.journal.sync()
    disk.write("later", b"no part of the copy")
    disk.restore(copy)
    assert disk.image() == copy
    disk.lose_power()
    assert disk.image() == copy, "it is durable"
    again = Storage(disk, create=False)
    assert again.journal.last_index == old
    assert again.journal.begin() == storage.journal.boot + 1, "it starts for the second time"


def test_a_cloned_directory_runs_twice_each_on_its_own() -> None:
    disk = SimulatedDisk(Random(1))
    storage_on(disk, entries=5)
    other = disk.clone(Random(2))
    one, two = Storage(disk, create=False), Storage(other, create=False)
    assert one.journal.begin() == two.journal.begin(), "both take themselves for the next boot"
    one.journal.append(b"\0one", 7, 1)
    one.journal.sync()
    assert (one.journal.last_index, two.journal.last_index) == (7, 6)
    two.journal.set_vote(5, "b")
    two.journal.sync()
    disk.lose_power()
    other.lose_power()
    assert Storage(disk, create=False).journal.vote is None
    assert Storage(other, create=False).journal.vote == "b"


def test_an_erased_file_does_not_come_back_with_a_power_loss() -> None:
    disk = disk_with(b"kept")
    disk.rename("file", "renamed")
    disk.erase("renamed")
    disk.lose_power()
    assert disk.names() == []
