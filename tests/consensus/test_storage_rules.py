"""Snapshots, the superblock, the memory of peers, and the storage that they make together."""

import errno
import hashlib
import random
import struct
import zlib
from typing import Any

import pytest
from lone_node import entry, install, take

from gpupool.consensus.protocol import cbor_pieces, closed_cbor
from gpupool.consensus.storage.journal import REPAIR, SUPERBLOCK, Floor, Superblock, Synced
from gpupool.consensus.storage.peer_memory import MEMORY, PeerMemory, Remembered, Start
from gpupool.consensus.storage.snapshot import (
    Snapshot,
    SnapshotStore,
    decode_in_pieces,
    decode_snapshot,
    encode_snapshot,
)
from gpupool.consensus.storage.store import Storage, bootstrap
from gpupool.pool.errors import StorageError
from gpupool.pool.model.ids import Plain, ServerId
from gpupool.pool.model.state import PoolState
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.simulations.kernel.simulated_disk import SimulatedDisk

ME = ServerId("me")
NEVER = 1 << 40
"""Bytes that no journal here grows by."""


def new_disk() -> SimulatedDisk:
    return SimulatedDisk(random.Random(7))


def snapshot(index: int, *, term: int = 1) -> Snapshot:
    return Snapshot(index, term, (ME,), f"the table after {index}")


def logged(last: int, *, term: int = 1) -> Storage:
    """Return a storage with a log up to ``last``."""
    storage = Storage(new_disk(), create=True)
    for index in range(2, last + 1):
        storage.journal.append(*entry(index, index, term))
    storage.journal.set_vote(term, "b")
    storage.journal.sync()
    return storage


def again(storage: Storage) -> Storage:
    disk = storage.disk
    assert isinstance(disk, SimulatedDisk)
    return Storage(disk, create=False)


def file_of(body: bytes) -> bytes:
    digest = hashlib.sha256(body).digest()
    return struct.pack("<8sIQ32s", b"gpupoolS", 1, len(body), digest) + body


# --- snapshots -------------------------------------------------------------------------------


def test_a_voter_that_is_no_name_is_left_out() -> None:
    wrong: Any = (ServerId("a"), 7, ServerId("b"), None)
    assert decode_snapshot(encode_snapshot(Snapshot(5, 1, wrong, []))).voters == ("a", "b")


@pytest.mark.parametrize(
    "wrong",
    [
        {"index": "5"},
        {"term": None},
        {"voters": "ab"},
    ],
)
def test_fields_of_another_kind_are_not_those_of_a_snapshot(wrong: dict[str, Plain]) -> None:
    fields: dict[str, Plain] = {"index": 5, "term": 1, "voters": ["a"], "state": 1}
    assert decode_snapshot(file_of(closed_cbor.encode(fields))) == Snapshot(
        5, 1, (ServerId("a"),), 1
    )
    with pytest.raises(ValueError, match="its fields are not those of a snapshot"):
        decode_snapshot(file_of(closed_cbor.encode({**fields, **wrong})))
    for name in fields:
        less = {each: value for each, value in fields.items() if each != name}
        with pytest.raises(ValueError, match="its fields are not those of a snapshot"):
            decode_snapshot(file_of(closed_cbor.encode(less)))


@pytest.mark.parametrize("name", ["index", "term", "voters", "state"])
def test_a_field_that_is_there_twice_is_refused_in_pieces(name: str) -> None:
    machine = PoolMachine(PoolState())
    fields: dict[str, Plain] = {
        "index": 5,
        "term": 1,
        "voters": ["a"],
        "state": machine.snapshot(),
    }
    pairs = [closed_cbor.encode(each) + closed_cbor.encode(value) for each, value in fields.items()]
    whole = file_of(cbor_pieces.map_head(4) + b"".join(pairs))
    assert list(decode_in_pieces(whole, machine.restoring()))
    twice = closed_cbor.encode(name) + closed_cbor.encode(fields[name])
    body = cbor_pieces.map_head(5) + b"".join(pairs) + twice
    with pytest.raises(ValueError, match=f"it has '{name}' twice"):
        list(decode_in_pieces(file_of(body), machine.restoring()))


def test_how_far_a_journal_may_forget_is_told_by_the_older_of_two_snapshots() -> None:
    store = SnapshotStore(new_disk())
    assert store.oldest_index == 1
    for index, oldest in ((10, 1), (20, 10), (30, 20)):
        store.save(snapshot(index))
        assert store.oldest_index == oldest
        assert store.latest == snapshot(index)
        assert store.encoded_latest() == encode_snapshot(snapshot(index))


def test_what_is_read_back_travels_as_it_was_written() -> None:
    disk = new_disk()
    for index in (10, 20):
        SnapshotStore(disk).save(snapshot(index))
    store = SnapshotStore(disk)
    assert (store.latest, store.oldest_index) == (snapshot(20), 10)
    assert store.encoded_latest() == encode_snapshot(snapshot(20))


@pytest.mark.parametrize("room", [0, 1])
def test_a_snapshot_may_have_as_many_bytes_as_are_allowed_and_no_more(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(encode_snapshot(snapshot(10)))
    monkeypatch.setattr("gpupool.consensus.storage.snapshot.SNAPSHOT_BYTES_MAX", size - 1 + room)
    disk = new_disk()
    store = SnapshotStore(disk)
    if room:
        store.save(snapshot(10))
        assert SnapshotStore(disk).latest == snapshot(10)
    else:
        with pytest.raises(StorageError, match=f"too large for a snapshot: {size} bytes"):
            store.save(snapshot(10))
        assert store.latest is None


# --- the whole storage -----------------------------------------------------------------------


@pytest.mark.parametrize("what", ["an entry", "a term", "a snapshot"])
def test_storage_that_has_anything_is_not_empty_and_starts_no_pool(what: str) -> None:
    storage = Storage(new_disk(), create=True)
    assert storage.empty
    if what == "an entry":
        storage.journal.append(*entry("x", 2, 0))
    elif what == "a term":
        storage.journal.set_vote(1, None)
    else:
        install(storage, Snapshot(1, 0, (ME,), "a table"))
        assert (storage.journal.last_index, storage.journal.term) == (1, 0)
    assert not storage.empty
    with pytest.raises(StorageError, match="empty storage"):
        bootstrap(storage, ME)


def test_a_pool_starts_in_its_first_term_with_one_entry_and_no_vote() -> None:
    storage = Storage(new_disk(), create=True)
    bootstrap(storage, ME)
    for each in (storage, again(storage)):
        assert (each.journal.term, each.journal.vote) == (1, None)
        assert [(index, term) for _, index, term in each.journal.entries] == [(1, 0), (2, 1)]


@pytest.mark.parametrize(("term", "vote"), [(4, None), (5, "b"), (6, "b")])
def test_a_snapshot_takes_no_vote_away_but_that_of_an_earlier_term(
    term: int, vote: str | None
) -> None:
    storage = logged(3, term=term)
    install(storage, snapshot(20, term=5))
    for each in (storage, again(storage)):
        assert (each.journal.term, each.journal.vote) == (max(term, 5), vote)
        assert (each.journal.base_index, each.journal.last_index) == (20, 20)
        assert each.journal.term_at(20) == 5


def test_a_snapshot_that_fits_the_log_keeps_what_is_behind_it() -> None:
    storage = logged(30)
    install(storage, snapshot(20))
    assert (storage.journal.base_index, storage.journal.last_index) == (1, 30)
    install(storage, snapshot(25, term=2))
    assert (storage.journal.base_index, storage.journal.last_index) == (25, 25)


def test_storage_that_must_not_be_used_again_says_why_for_good() -> None:
    storage = logged(3)
    storage.forget("it was removed by ada")
    storage.close()
    disk = storage.disk
    assert isinstance(disk, SimulatedDisk)
    disk.lose_power()
    for create in (True, False):
        with pytest.raises(StorageError, match="may not take part any more") as caught:
            Storage(disk, create=create)
        assert caught.value.why == "it was removed by ada"
        assert "gpupool rejoin" in caught.value.hint


def test_no_sync_is_long_before_there_is_something_to_drop() -> None:
    storage = logged(30)
    assert not storage.sync_is_long
    storage.taken()
    assert not storage.sync_is_long
    storage.snapshots.save(snapshot(10))
    storage.taken()
    assert not storage.sync_is_long, "one snapshot may yet turn out to be damaged"
    storage.snapshots.save(snapshot(20))
    storage.taken()
    assert storage.sync_is_long
    storage.sync()
    assert not storage.sync_is_long
    assert storage.journal.base_index == 10
    storage.taken()
    assert not storage.sync_is_long


@pytest.mark.parametrize("entries", [9, 10, 11])
@pytest.mark.parametrize("more_bytes", [-1, 0, 1])
def test_the_journal_is_written_anew_for_enough_entries_or_enough_bytes(
    entries: int, more_bytes: int
) -> None:
    """From its base at 10 to the older snapshot at 20 there are ten entries."""
    storage = logged(40)
    for index in (10, 20):
        take(storage, snapshot(index))
    assert storage.journal.base_index == 10
    storage.snapshots.save(snapshot(30))
    storage.journal.append(*entry("new", 41, 1))
    storage.journal.sync()
    grown = storage.journal.bytes_since_rewrite
    assert grown > 0
    storage.taken(drop_entries_min=entries, drop_bytes_min=grown + more_bytes)
    assert storage.sync_is_long == (entries <= 10 or more_bytes <= 0)


def test_taking_a_snapshot_drops_a_single_entry_unless_it_is_told_otherwise() -> None:
    storage = logged(40)
    take(storage, snapshot(2), drop_bytes_min=NEVER)
    take(storage, snapshot(10), drop_bytes_min=NEVER)
    assert storage.journal.base_index == 2
    take(storage, snapshot(20), drop_entries_min=9, drop_bytes_min=NEVER)
    assert storage.journal.base_index == 2
    take(storage, snapshot(30), drop_entries_min=18, drop_bytes_min=NEVER)
    assert storage.journal.base_index == 20
    assert storage.journal.last_index == 40


@pytest.mark.parametrize("takes", [True, False])
def test_without_a_bound_of_bytes_a_file_that_has_not_grown_is_written_anew(takes: bool) -> None:
    storage = logged(40)
    storage.snapshots.save(snapshot(10))
    storage = again(storage)
    assert storage.journal.bytes_since_rewrite == 0
    if takes:
        take(storage, snapshot(20), drop_entries_min=99)
        assert storage.journal.base_index == 10
    else:
        storage.snapshots.save(snapshot(20))
        storage.taken(drop_entries_min=99)
        assert storage.sync_is_long


def test_by_default_the_next_sync_drops_a_single_entry() -> None:
    storage = logged(40)
    storage.snapshots.save(snapshot(2))
    storage.snapshots.save(snapshot(10))
    storage.taken(drop_bytes_min=NEVER)
    assert storage.sync_is_long


# --- the superblock --------------------------------------------------------------------------


def note(number: int) -> Synced:
    return Synced(journal=7, batches=number, boot=3, term=4, vote="b", last_index=number)


def test_a_superblock_is_on_the_disk_with_the_name_of_its_file() -> None:
    disk = new_disk()
    superblock = Superblock(disk)
    superblock.keep()
    superblock.keep()
    assert disk.counts["write"] == disk.counts["sync"] == 1
    disk.sync_directory()
    disk.unsynced_kept = 0.0
    disk.lose_power()
    assert disk.read(SUPERBLOCK) == bytes(8192)
    assert Superblock(disk).known is None


@pytest.mark.parametrize("notes", [2, 3, 4, 5])
def test_a_note_that_is_damaged_leaves_the_one_before_it(notes: int) -> None:
    disk = new_disk()
    superblock = Superblock(disk)
    superblock.keep()
    for number in range(1, notes + 1):
        superblock.note(note(number))
        assert superblock.known == Superblock(disk).known == note(number)
    superblock.sync()
    assert len(disk.read(SUPERBLOCK)) == 8192
    disk.flip(SUPERBLOCK, 4096 * (notes % 2) + 20)
    assert Superblock(disk).known == note(notes - 1)
    disk.flip(SUPERBLOCK, 4096 * ((notes + 1) % 2) + 20)
    assert Superblock(disk).known is None


@pytest.mark.parametrize("size", [0, 1, 4096, 8191])
def test_a_superblock_of_another_size_is_made_anew(size: int) -> None:
    disk = new_disk()
    superblock = Superblock(disk)
    superblock.keep()
    superblock.note(note(1))
    disk.put(SUPERBLOCK, disk.read(SUPERBLOCK)[:size])
    other = Superblock(disk)
    assert other.known == (note(1) if size == 8191 else None)
    other.keep()
    assert disk.read(SUPERBLOCK) == bytes(8192)


def test_what_is_missing_is_told_by_a_file_of_its_own_kind_only() -> None:
    disk = new_disk()
    superblock = Superblock(disk)
    superblock.lose(Floor(3, 9))
    superblock.lose(Floor(2, 12))
    superblock.lose(Floor(5, 1))
    assert Superblock(disk).floor == superblock.floor == Floor(5, 12)
    data = b"gpupoolX" + disk.read(REPAIR)[8:-4]
    disk.put(REPAIR, data + zlib.crc32(data).to_bytes(4, "little"))
    assert Superblock(disk).floor == Floor(0, 0)
    superblock.found()
    assert superblock.floor is None
    assert REPAIR not in disk.names()
    assert Superblock(disk).floor is None


def test_a_note_of_another_kind_of_file_is_no_note() -> None:
    disk = new_disk()
    superblock = Superblock(disk)
    superblock.keep()
    superblock.note(note(1))
    data = disk.read(SUPERBLOCK)[4096:]
    end = struct.calcsize("<8sQIQQQQB") + 1
    other = b"gpupoolX" + data[8:end]
    whole = other + zlib.crc32(other).to_bytes(4, "little")
    disk.put(SUPERBLOCK, (bytes(4096) + whole).ljust(8192, b"\0"))
    assert Superblock(disk).known is None


# --- what is known of peers ------------------------------------------------------------------


def test_what_is_known_of_peers_is_read_back_and_only_changes_are_written() -> None:
    disk = new_disk()
    memory = PeerMemory(disk)
    assert (memory.committed, memory.fenced, memory.why_fenced) == ((0, 0), {}, "")
    assert not memory.dirty
    known = Remembered(Start(1, 2), former=Start(3, 4), clone=Start(5, 6), term=7, index=8)
    memory.set(ServerId("b"), known)
    assert memory.dirty
    memory.committed = (7, 5)
    memory.save()
    assert not memory.dirty
    memory.fence([ServerId("c"), ServerId("d")], "left behind")
    assert memory.dirty
    memory.fenced[ServerId("d")] = True
    memory.save()
    found = PeerMemory(disk)
    assert found.servers == {ServerId("b"): known}
    assert found.fenced == {ServerId("c"): False, ServerId("d"): True}
    assert (found.why_fenced, found.committed, found.dirty) == ("left behind", (7, 5), False)


@pytest.mark.parametrize(
    ("term", "index", "after"),
    [
        (4, 99, (5, 10)),
        (5, 9, (5, 10)),
        (5, 10, (5, 10)),
        (5, 11, (5, 11)),
        (6, 2, (6, 2)),
    ],
)
def test_a_promise_is_remembered_by_its_term_first(
    term: int, index: int, after: tuple[int, int]
) -> None:
    memory = PeerMemory(new_disk())
    memory.promised(ServerId("b"), 5, 10)
    memory.save()
    memory.promised(ServerId("b"), term, index)
    known = memory.of(ServerId("b"))
    assert (known.term, known.index) == after
    assert memory.dirty == (after != (5, 10))


def test_a_memory_that_cannot_be_written_is_still_to_be_written() -> None:
    disk = new_disk()
    memory = PeerMemory(disk)
    memory.promised(ServerId("b"), 5, 10)
    disk.fail("sync", errno.EIO)
    with pytest.raises(StorageError, match="what is known of the other servers cannot be written"):
        memory.save()
    assert memory.dirty
    assert MEMORY not in disk.names()


def test_any_flipped_byte_of_the_memory_makes_it_forget(caplog: pytest.LogCaptureFixture) -> None:
    disk = new_disk()
    memory = PeerMemory(disk)
    memory.promised(ServerId("b"), 5, 10)
    memory.save()
    data = disk.read(MEMORY)
    for position in range(len(data)):
        disk.put(MEMORY, data)
        disk.flip(MEMORY, position)
        caplog.clear()
        assert PeerMemory(disk).servers == {}
        assert "what was known of the other servers is lost" in caplog.text
