"""The journal at its bounds: its counts, its refusals, and its reports of damage."""

import errno
import logging
import random
from functools import partial
from typing import Any

import pytest
from lone_node import entry

from gpupool.consensus.storage import journal as journal_module
from gpupool.consensus.storage.journal import (
    JOURNAL,
    PLACEHOLDER,
    RESERVE,
    Journal,
    Superblock,
    decode_entries,
    encode_entries,
)
from gpupool.pool.errors import StorageError
from gpupool.simulations.kernel.simulated_disk import Operation, SimulatedDisk

HEADER_BYTES = 16
INSIDE: Any = journal_module
ENTRY_BYTES = 21


def new_disk() -> SimulatedDisk:
    return SimulatedDisk(random.Random(7))


def made_of(*payloads: bytes) -> SimulatedDisk:
    """Return a disk with these batches in its journal."""
    disk = new_disk()
    Journal.create(disk)
    data = INSIDE.pack_file_header()
    for sequence, payload in enumerate(payloads):
        data += INSIDE.pack_batch(payload, sequence, len(data))
    disk.put(JOURNAL, data)
    return disk


def refusal(disk: SimulatedDisk) -> StorageError:
    with pytest.raises(StorageError) as caught:
        Journal.open(disk)
    return caught.value


BASE = b"\x01" + (1).to_bytes(8, "little") + (0).to_bytes(8, "little")


def record(index: int, command: bytes = b"\x00x", *, length: int | None = None) -> bytes:
    size = len(command) if length is None else length
    return (
        b"\x02"
        + size.to_bytes(4, "little")
        + index.to_bytes(8, "little")
        + (1).to_bytes(8, "little")
        + command
    )


def test_the_bytes_since_the_last_rewriting_are_those_that_the_file_has_grown_by() -> None:
    disk = new_disk()
    journal = Journal.create(disk)
    assert journal.bytes_since_rewrite == 0
    for index in range(2, 5):
        journal.append(*entry(index, index, 1))
        size = len(disk.read(JOURNAL))
        before = journal.bytes_since_rewrite
        journal.sync()
        assert journal.bytes_since_rewrite - before == len(disk.read(JOURNAL)) - size > 0
    journal.rewrite(3, 1, keep=True)
    assert journal.bytes_since_rewrite == 0


WAYS_TO_FAIL: list[tuple[Operation, bool]] = [
    ("append", False),
    ("sync", False),
    ("write", True),
    ("sync", True),
    ("rename", True),
    ("sync_directory", True),
]


@pytest.mark.parametrize(("operation", "anew"), WAYS_TO_FAIL)
def test_a_journal_that_failed_once_is_not_written_again_and_gives_its_reserve_back(
    operation: Operation, anew: bool
) -> None:
    disk = new_disk()
    journal = Journal.create(disk)
    journal.append(*entry("a", 2, 1))
    journal.sync()
    assert RESERVE in disk.names()
    journal.append(*entry("b", 3, 1))
    disk.fail(operation, errno.EIO)
    write = partial(journal.rewrite, 2, 1, keep=True) if anew else journal.sync
    with pytest.raises(StorageError, match="the journal cannot be written"):
        write()
    assert RESERVE not in disk.names()
    before = disk.read(JOURNAL)
    journal.append(*entry("c", 4, 1))
    with pytest.raises(StorageError, match="an earlier write failed") as caught:
        journal.sync()
    assert str(caught.value).startswith("the journal cannot be written")
    journal.close()
    assert disk.read(JOURNAL) == before
    Journal.open(disk)
    assert RESERVE in disk.names(), "the next start keeps one again"


def test_a_reserve_that_cannot_be_given_back_hides_no_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = new_disk()
    journal = Journal.create(disk)
    journal.append(*entry("a", 2, 1))
    disk.fail("sync", errno.EIO)
    disk.fail("remove", errno.EACCES)
    with pytest.raises(StorageError, match="the journal cannot be written"):
        journal.sync()
    assert "the reserve file could not be removed" in caplog.text


def test_a_journal_that_is_closed_takes_nothing_more() -> None:
    disk = new_disk()
    journal = Journal.create(disk)
    journal.append(*entry("a", 2, 1))
    journal.close()
    journal.close()
    with pytest.raises(StorageError, match="the journal is closed"):
        journal.sync()
    assert Journal.open(disk).last_index == 2


@pytest.mark.parametrize(
    ("size", "why"),
    [
        (0, "it is empty"),
        (1, "its header is cut short"),
        (HEADER_BYTES - 1, "its header is cut short"),
        (HEADER_BYTES, "its first batch is missing"),
        (HEADER_BYTES + 1, "its first batch is broken"),
        (HEADER_BYTES + 24, "its first batch is broken"),
    ],
)
def test_a_journal_cut_at_its_start_is_damaged_and_says_how(size: int, why: str) -> None:
    disk = new_disk()
    Journal.create(disk)
    disk.put(JOURNAL, disk.read(JOURNAL)[:size])
    said = str(refusal(disk))
    assert f"the journal is damaged at byte {HEADER_BYTES if size >= HEADER_BYTES else 0}" in said
    assert why in said


@pytest.mark.parametrize("position", [0, 7, 8, 12, 15])
def test_a_header_that_is_broken_is_called_that(position: int) -> None:
    disk = new_disk()
    Journal.create(disk)
    disk.flip(JOURNAL, position)
    assert "its header is broken" in str(refusal(disk))


def test_the_first_batch_is_never_taken_for_one_that_a_crash_tore() -> None:
    disk = new_disk()
    Journal.create(disk)
    data = disk.read(JOURNAL)
    first = len(data) - 24
    disk.put(JOURNAL, data[: first - 1])
    assert "its first batch is broken" in str(refusal(disk))


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (record(3), "an entry is out of place"),
        (record(1), "an entry is out of place"),
        (record(2) + record(2), "an entry is out of place"),
        (record(2, b"\x00x", length=3), "an entry is out of place"),
        (record(2)[: ENTRY_BYTES - 1], "requires a buffer"),
        (b"\x03" + (1).to_bytes(8, "little"), "the base would be removed"),
        (b"\x09", "kind 9 is unknown"),
        (BASE, "kind 1 is unknown"),
    ],
)
@pytest.mark.parametrize("later", [False, True])
def test_a_record_that_makes_no_sense_is_damage(payload: bytes, why: str, later: bool) -> None:
    disk = made_of(BASE, payload) if later else made_of(BASE + payload)
    said = str(refusal(disk))
    assert f"damaged at byte {HEADER_BYTES + (24 + len(BASE) if later else 0)}" in said
    assert "a record makes no sense" in said
    assert why in said


def test_records_of_one_batch_and_of_several_are_the_same_log() -> None:
    batches = [BASE, record(2), record(3), b"\x03" + (3).to_bytes(8, "little"), record(3, b"\0y")]
    one, many = Journal.open(made_of(b"".join(batches))), Journal.open(made_of(*batches))
    assert one.entries == many.entries == [(PLACEHOLDER, 1, 0), (b"\0x", 2, 1), (b"\0y", 3, 1)]


def test_an_entry_without_a_command_is_no_entry() -> None:
    with pytest.raises(ValueError, match="an entry is malformed"):
        decode_entries(encode_entries([(b"\x00", 2, 1), (b"", 3, 1)]))


@pytest.mark.parametrize("cut", range(1, ENTRY_BYTES + 2))
def test_entries_that_are_cut_short_are_refused(cut: int) -> None:
    data = encode_entries([(b"\x00", 2, 1), (b"\x01", 3, 1)])
    assert len(data) == 2 * (ENTRY_BYTES + 1)
    why = "an entry is malformed" if cut == 1 else "an entry is cut short"
    if cut <= ENTRY_BYTES:
        with pytest.raises(ValueError, match=why):
            decode_entries(data[:-cut])
    else:
        assert decode_entries(data[:-cut]) == [(b"\x00", 2, 1)]


def test_entries_of_another_kind_are_refused() -> None:
    data = encode_entries([(b"\x00", 2, 1)])
    with pytest.raises(ValueError, match="an entry is malformed"):
        decode_entries(b"\x01" + data[1:])
    assert decode_entries(b"") == []


class _Long(bytes):
    """Bytes that say of themselves that they are many."""

    said = 0

    def __len__(self) -> int:
        return self.said


@pytest.mark.parametrize(("size", "fits"), [((1 << 31) - 1, True), (1 << 31, False)])
def test_a_batch_has_less_than_two_gibibytes(size: int, fits: bool) -> None:
    payload = _Long(b"x")
    payload.said = size
    if fits:
        assert INSIDE.pack_batch(payload, 2, HEADER_BYTES)
    else:
        with pytest.raises(AssertionError, match="a batch is too long"):
            INSIDE.pack_batch(payload, 2, HEADER_BYTES)


@pytest.mark.parametrize("lost", [0, 1, 2, 3])
def test_synced_batches_that_are_gone_are_counted_and_their_promises_kept(
    lost: int, caplog: pytest.LogCaptureFixture
) -> None:
    disk = new_disk()
    superblock = Superblock(disk)
    superblock.keep()
    journal = Journal.create(disk, superblock)
    ends: list[int] = []
    for index in range(2, 6):
        journal.append(*entry(index, index, index))
        journal.set_vote(index, f"v{index}")
        journal.begin()
        ends.append(len(disk.read(JOURNAL)))
    disk.put(JOURNAL, disk.read(JOURNAL)[: ends[-1 - lost]])
    caplog.clear()
    known = Superblock(disk)
    again = Journal.open(disk, known)
    assert again.last_index == 5 - lost
    assert (again.term, again.vote, again.boot) == (5, "v5", 4)
    errors = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    if lost:
        assert len(errors) == 1
        assert f"newest {lost} synced batches, up to entry 5" in errors[0]
        assert known.floor is not None
        assert (known.floor.term, known.floor.index) == (5, 5)
    else:
        assert (errors, known.floor) == ([], None)


def test_a_superblock_of_another_journal_says_nothing_of_this_one() -> None:
    disk, other = new_disk(), new_disk()
    superblock = Superblock(other)
    superblock.keep()
    journal = Journal.create(other, superblock)
    for index in range(2, 6):
        journal.append(*entry(index, index, 9))
        journal.set_vote(9, "v")
        journal.sync()
    mine = Journal.create(disk)
    mine.append(*entry("mine", 2, 1))
    mine.sync()
    Journal.open(disk)
    again = Journal.open(disk, superblock)
    assert (again.term, again.vote, superblock.floor) == (0, None, None)
