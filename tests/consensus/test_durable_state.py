"""Journal and snapshots: data read back, data refused, and leftovers of a crash."""

import random
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lone_node import Lone, entry, install, take
from raft_world import Register
from tests.properties import examples

from gpupool.consensus.protocol.membership import encode_voters
from gpupool.consensus.recovery import Survivor, recover, replay
from gpupool.consensus.storage import store as storage_module
from gpupool.consensus.storage.journal import (
    JOURNAL,
    PLACEHOLDER,
    Entry,
    Journal,
    decode_entries,
    encode_entries,
)
from gpupool.consensus.storage.snapshot import (
    Snapshot,
    SnapshotReceiver,
    SnapshotSender,
    SnapshotStore,
    decode_snapshot,
    encode_snapshot,
)
from gpupool.consensus.storage.store import Storage, bootstrap, open_storage
from gpupool.pool.errors import RemoteProtocolError, StorageError
from gpupool.pool.model.ids import ServerId
from gpupool.simulations.kernel.simulated_disk import PAGE_BYTES, PowerLostError, SimulatedDisk

ME = ServerId("me")


def new_disk(seed: int = 7) -> SimulatedDisk:
    return SimulatedDisk(random.Random(seed))


def filled(disk: SimulatedDisk, *, batches: int = 10) -> Journal:
    journal = Journal.create(disk)
    journal.begin()
    for number in range(batches):
        for position in range(3):
            index = 2 + 3 * number + position
            journal.append(*entry([number, b"x" * 50], index, 1 + number // 3))
        journal.set_vote(1 + number // 3, "b" if number % 2 else None)
        journal.sync()
    return journal


def facts(journal: Journal) -> tuple[Any, ...]:
    return (journal.entries, journal.term, journal.vote, journal.boot)


# --- the journal -----------------------------------------------------------------------------


def test_a_journal_is_read_back() -> None:
    disk = new_disk()
    journal = filled(disk)
    journal.truncate(20)
    journal.append(*entry("other", 20, 9))
    journal.set_vote(9, None)
    journal.sync()
    assert facts(Journal.open(disk)) == facts(journal)
    journal.rewrite(15, 2, keep=True)
    journal.append(*entry("later", 21, 9))
    journal.sync()
    again = Journal.open(disk)
    assert facts(again) == facts(journal)
    assert again.base_index == 15
    journal.close()
    assert facts(Journal.open(disk)) == facts(again)


def test_one_sync_for_many_records() -> None:
    disk = new_disk()
    journal = filled(disk)
    before = disk.counts["sync"]
    for index in range(32, 200):
        journal.append(*entry(index, index, 4))
    assert journal.sync()
    assert not journal.sync()
    assert disk.counts["sync"] == before + 1


def test_there_is_one_journal_for_life() -> None:
    disk = new_disk()
    with pytest.raises(StorageError, match="the journal is missing"):
        Journal.open(disk)
    Journal.create(disk)
    with pytest.raises(StorageError, match="exists already"):
        Journal.create(disk)


def test_every_start_is_counted() -> None:
    disk = new_disk()
    Journal.create(disk)
    assert [Journal.open(disk).begin() for _ in range(3)] == [1, 2, 3]


def test_a_torn_tail_is_cut_wherever_it_tears(caplog: pytest.LogCaptureFixture) -> None:
    disk = new_disk()
    journal = filled(disk)
    before = facts(Journal.open(disk))
    whole = len(disk.read(JOURNAL))
    journal.append(*entry(b"y" * 9000, 32, 9))
    journal.sync()
    data = disk.read(JOURNAL)
    for size in (*range(whole, whole + 60), *range(whole + 60, len(data), 997), len(data) - 1):
        disk.put(JOURNAL, data[:size])
        caplog.clear()
        assert facts(Journal.open(disk)) == before
        assert len(caplog.records) == (1 if size > whole else 0)


def test_a_page_that_never_reached_the_disk_is_a_torn_tail() -> None:
    disk = new_disk()
    journal = filled(disk)
    before = facts(Journal.open(disk))
    whole = len(disk.read(JOURNAL))
    for index in range(32, 36):
        journal.append(*entry(b"y" * 9000, index, 9))
    journal.sync()
    data = disk.read(JOURNAL)
    for start in range(whole, len(data), PAGE_BYTES):
        torn = bytearray(data)
        torn[start : start + PAGE_BYTES] = bytes(len(torn[start : start + PAGE_BYTES]))
        disk.put(JOURNAL, torn)
        assert facts(Journal.open(disk)) == before


def test_every_flipped_byte_of_a_sealed_journal_is_noticed() -> None:
    disk = new_disk()
    filled(disk).close()
    data = disk.read(JOURNAL)
    noticed = 0
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << (position % 8)
        disk.put(JOURNAL, flipped)
        try:
            Journal.open(disk)
        except StorageError as error:
            noticed += "damaged at byte" in str(error) and bool(error.hint)
    # Only the seal itself, an empty batch of 24 bytes that holds nothing, may be cut off.
    assert noticed == len(data) - 24


@pytest.mark.parametrize("name", ["empty", "header cut", "zeroed page", "gone in the middle"])
def test_damage_is_refused_with_a_clear_sentence(name: str) -> None:
    disk = new_disk()
    filled(disk, batches=200).close()
    data = bytearray(disk.read(JOURNAL))
    if name == "empty":
        del data[:]
    elif name == "header cut":
        del data[10:]
    elif name == "zeroed page":
        data[PAGE_BYTES : 2 * PAGE_BYTES] = bytes(PAGE_BYTES)
    else:
        del data[PAGE_BYTES : 2 * PAGE_BYTES]
    disk.put(JOURNAL, data)
    with pytest.raises(StorageError, match=r"the journal is damaged at byte \d+") as caught:
        Journal.open(disk)
    assert caught.value.hint.startswith("do not delete it")


def test_a_command_cannot_pass_for_a_batch() -> None:
    """A command that contains a batch's bytes does not make a torn tail look like damage."""
    disk = new_disk()
    journal = filled(disk)
    inside = disk.read(JOURNAL)
    whole = len(inside)
    journal.append(b"\x00" + inside, 32, 9)
    journal.sync()
    disk.flip(JOURNAL, whole + 5)
    assert Journal.open(disk).last_index == 31


@pytest.mark.parametrize("first", [0, 1])
def test_a_journal_that_says_to_remove_its_base_is_damaged(first: int) -> None:
    disk = new_disk()
    journal = Journal.create(disk)
    journal.entries[0] = (PLACEHOLDER, first - 1, 0)  # What no journal is in this state.
    journal.truncate(first)
    journal.sync()
    with pytest.raises(StorageError, match=r"damaged at byte \d+") as caught:
        Journal.open(disk)
    assert "the base would be removed" in caught.value.why


def test_a_journal_may_say_to_remove_all_but_its_base() -> None:
    disk = new_disk()
    journal = filled(disk)
    journal.truncate(2)
    journal.sync()
    assert Journal.open(disk).entries == [(PLACEHOLDER, 1, 0)]


def test_a_newer_format_is_named() -> None:
    disk = new_disk()
    Journal.create(disk)
    data = bytearray(disk.read(JOURNAL))
    data[8:12] = (7).to_bytes(4, "little")
    data[12:16] = zlib.crc32(data[:12]).to_bytes(4, "little")
    disk.put(JOURNAL, data)
    with pytest.raises(StorageError, match="format 7"):
        Journal.open(disk)


Operations = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 6)),
        st.tuples(st.just("truncate"), st.integers(0, 5)),
        st.tuples(st.just("vote"), st.sampled_from([None, "a", "b"])),
        st.tuples(st.just("sync"), st.none()),
        st.tuples(st.just("seal"), st.none()),
        st.tuples(st.just("rewrite"), st.integers(0, 5)),
    ),
    max_size=40,
)


@settings(max_examples=examples(150), deadline=None)
@given(operations=Operations, seed=st.integers(0, 10_000))
def test_power_loss_leaves_the_last_sync_or_a_later_state(
    operations: list[tuple[str, Any]], seed: int
) -> None:
    disk = new_disk(seed)
    journal = Journal.create(disk)
    synced = facts_copy(journal)
    for name, argument in operations:
        last = journal.last_index
        match name:
            case "append":
                for _ in range(argument):
                    index = journal.last_index + 1
                    journal.append(*entry([seed, index], index, journal.term))
            case "truncate" if last - argument > journal.base_index:
                journal.truncate(last - argument)
            case "vote":
                journal.set_vote(journal.term + 1, argument)
            case "sync":
                journal.sync()
                synced = facts_copy(journal)
            case "seal":
                journal.seal()
            case "rewrite" if last - argument > journal.base_index:
                term = journal.term_at(last - argument)
                assert term is not None
                journal.rewrite(last - argument, term, keep=True)
                synced = facts_copy(journal)
            case _:
                pass
    disk.lose_power()
    assert facts_copy(Journal.open(disk)) == synced


def facts_copy(journal: Journal) -> tuple[Any, ...]:
    return (list(journal.entries), journal.term, journal.vote, journal.boot)


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.integers(1, 99), st.integers(0, 9)))
)
def test_entries_travel_unchanged(entries: list[Entry]) -> None:
    assert decode_entries(encode_entries(entries)) == entries


@given(st.binary(max_size=80))
def test_no_bytes_break_the_reader_of_entries(data: bytes) -> None:
    try:
        entries = decode_entries(data)
    except ValueError:
        return
    assert encode_entries(entries) == data


# --- snapshots -------------------------------------------------------------------------------


def snapshot(index: int, *, size: int = 200) -> Snapshot:
    return Snapshot(index, 3, (ME, ServerId("b")), {"table": [b"z" * size, index]})


def test_a_snapshot_under_the_name_of_another_is_damaged() -> None:
    disk = new_disk()
    SnapshotStore(disk).save(snapshot(10))
    disk.rename("snapshot-00000000000000000010", "snapshot-00000000000000000011")
    found = SnapshotStore(disk)
    assert found.latest is None
    assert found.damaged == {"snapshot-00000000000000000011": "its name does not fit its content"}


def test_two_snapshots_are_kept() -> None:
    disk = new_disk()
    store = SnapshotStore(disk)
    for index in (10, 20, 30):
        store.save(snapshot(index))
    assert [name for name in disk.names() if name.startswith("snapshot")] == [
        "snapshot-00000000000000000020",
        "snapshot-00000000000000000030",
    ]
    again = SnapshotStore(disk)
    assert again.latest == snapshot(30)
    assert again.oldest_index == 20
    assert again.encoded_latest() == encode_snapshot(snapshot(30))


def test_every_flipped_byte_of_a_snapshot_is_noticed() -> None:
    data = encode_snapshot(snapshot(10, size=40))
    assert decode_snapshot(data) == snapshot(10, size=40)
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << (position % 8)
        with pytest.raises(ValueError, match=r"it|its"):
            decode_snapshot(bytes(flipped))
    for size in range(len(data)):
        with pytest.raises(ValueError, match=r"it|its"):
            decode_snapshot(data[:size])


def with_two_snapshots(seed: int = 7) -> tuple[SimulatedDisk, Storage]:
    disk = new_disk(seed)
    storage = Storage(disk, create=True)
    for index in range(2, 101):
        storage.journal.append(*entry(index, index, 3))
    storage.journal.sync()
    take(storage, snapshot(40))
    take(storage, snapshot(80))
    return disk, storage


def test_a_damaged_snapshot_gives_way_to_the_one_before(caplog: pytest.LogCaptureFixture) -> None:
    disk, storage = with_two_snapshots()
    assert storage.journal.base_index == 40
    disk.flip("snapshot-00000000000000000080", 50)
    again = Storage(disk, create=False)
    assert again.snapshots.latest == snapshot(40)
    assert again.journal.last_index == 100
    assert "snapshot-00000000000000000080 is damaged" in caplog.text


def test_a_gap_between_snapshot_and_journal_is_refused() -> None:
    disk, _ = with_two_snapshots()
    for name in disk.names():
        if name.startswith("snapshot"):
            disk.put(name, b"")
    with pytest.raises(StorageError, match="the journal starts after entry 40"):
        Storage(disk, create=False)


def test_a_snapshot_without_a_journal_is_refused() -> None:
    disk, _ = with_two_snapshots()
    disk.erase(JOURNAL)
    for create in (False, True):
        with pytest.raises(StorageError, match="journal"):
            Storage(disk, create=create)


def test_an_installed_snapshot_keeps_the_log_behind_it_if_it_fits() -> None:
    _, storage = with_two_snapshots()
    install(storage, snapshot(90))
    assert storage.journal.last_index == 100
    install(storage, Snapshot(95, 4, (ME,), None))  # Another term there: the log disagrees.
    assert storage.journal.entries == [(b"\x01", 95, 4)]
    install(storage, snapshot(200))
    assert storage.journal.entries == [(b"\x01", 200, 3)]


@pytest.mark.parametrize("operation", range(1, 14))
@pytest.mark.parametrize("action", ["install", "take"])
def test_power_loss_in_any_step_with_snapshots(operation: int, action: str) -> None:
    for seed in range(10):
        disk, storage = with_two_snapshots(seed)
        storage.journal.set_vote(3, None)  # A server is in the term of what it is sent.
        storage.journal.sync()
        disk.power_fails_after = operation
        try:
            if action == "take":
                take(storage, snapshot(95))
            else:
                install(storage, snapshot(150))
        except PowerLostError:
            pass
        disk.lose_power()
        again = Storage(disk, create=False)
        assert again.snapshots.latest is not None
        covered = max(again.journal.last_index, again.snapshots.latest.index)
        assert covered >= 100
        assert again.journal.term == storage.journal.term


def test_a_snapshot_travels_in_pieces() -> None:
    original = snapshot(10, size=1_300_000)
    sender = SnapshotSender(original, encode_snapshot(original))
    receiver = SnapshotReceiver(ME, 10, sender.total)
    pieces = 0
    while sender.offset < sender.total:
        offset, piece = sender.offset, sender.piece(0.0)
        receiver.add(offset, piece)
        receiver.add(offset, piece)  # Repeated, and out of place by now.
        receiver.add(offset + 1_000_000, piece)
        assert sender.acknowledged(10, receiver.received)
        assert not sender.acknowledged(10, receiver.received)
        assert not sender.acknowledged(11, 0)
        pieces += 1
    data = receiver.complete()
    assert data is not None
    assert decode_snapshot(data) == original
    assert pieces == 3
    with pytest.raises(RemoteProtocolError):
        SnapshotReceiver(ME, 10, 1 << 40)


def test_too_large_a_table_stops_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = new_disk()
    monkeypatch.setattr("gpupool.consensus.storage.snapshot.SNAPSHOT_BYTES_MAX", 1000)
    with pytest.raises(StorageError, match="too large"):
        SnapshotStore(disk).save(snapshot(10, size=2000))
    assert disk.names() == []


# --- a real directory ------------------------------------------------------------------------


def test_a_real_directory_does_what_the_fake_does(tmp_path: Path) -> None:
    storage = open_storage(tmp_path, create=True)
    bootstrap(storage, ME)
    for index in range(3, 50):
        storage.journal.append(*entry(index, index, 1))
    storage.journal.sync()
    take(storage, snapshot_of(storage, 20))
    take(storage, snapshot_of(storage, 40))
    with pytest.raises(StorageError, match="is in use"):
        open_storage(tmp_path)
    entries = list(storage.journal.entries)
    storage.close()
    directory = tmp_path / storage_module.DIRECTORY
    assert sorted(path.name for path in directory.iterdir()) == [
        "journal",
        "reserve",
        "snapshot-00000000000000000020",
        "snapshot-00000000000000000040",
        "superblock",
    ]
    assert {path.stat().st_mode & 0o077 for path in directory.iterdir()} == {0}
    again = open_storage(tmp_path)
    assert again.journal.entries == entries
    assert again.journal.base_index == 20
    with pytest.raises(StorageError, match="empty storage"):
        bootstrap(again, ME)
    again.close()
    with pytest.raises(StorageError, match="exists already"):
        open_storage(tmp_path, create=True)


def snapshot_of(storage: Storage, index: int) -> Snapshot:
    term = storage.journal.term_at(index)
    assert term is not None
    return Snapshot(index, term, (ME,), index)


def test_a_missing_storage_is_not_created_silently(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="the journal is missing"):
        open_storage(tmp_path)


def test_recovery_keeps_the_log_and_makes_the_survivor_the_only_voter(tmp_path: Path) -> None:
    storage = open_storage(tmp_path, create=True)
    storage.journal.append(b"\x02" + voters("me", "b", "c"), 2, 1)
    for index in range(3, 30):
        storage.journal.append(*entry(index, index, 1))
    storage.journal.set_vote(7, "b")
    storage.journal.sync()
    take(storage, Snapshot(20, 1, (ServerId("b"), ServerId("c"), ME), list(range(3, 21))))
    storage.close()
    storage = open_storage(tmp_path)
    found = Register()
    survivor = replay(storage, found)
    assert survivor == Survivor(29, 1, (ServerId("b"), ServerId("c"), ME))
    assert found.log == list(range(3, 30))
    before = len(storage.journal.entries)
    assert replay(storage, Register()) == survivor
    assert len(storage.journal.entries) == before, "looking changes nothing"
    recover(storage, ME, ["first", "second"])
    storage.close()
    again = open_storage(tmp_path)
    assert again.journal.term == 8
    assert replay(again, Register()).voters == (ME,)
    lone = Lone.__new__(Lone)
    lone.now, lone.settings, lone.peers, lone.outcomes = 5.0, None, [], []
    lone.stopwatch = float
    lone.disk = again.disk  # type: ignore[assignment]
    again.journal.close()
    lone.restart()
    for _ in range(3):
        lone.tick(1.0)
    assert lone.node.leads
    assert lone.node.core.voters == (ME,)
    assert lone.machine.log == [*range(3, 30), "first", "second"]
    lone.node.storage.close()


@pytest.mark.parametrize("kept", [None, 0.0, 0.5, 1.0])
@pytest.mark.parametrize("operation", range(1, 4))
def test_recovery_that_is_cut_short_is_whole_or_nothing(operation: int, kept: float | None) -> None:
    former, outcomes = (ServerId("b"), ME), set[tuple[ServerId, ...]]()
    for seed in range(40):
        disk = new_disk(seed)
        storage = Storage(disk, create=True)
        storage.journal.append(b"\x02" + voters("me", "b"), 2, 1)
        storage.journal.append(*entry("kept", 3, 1))
        storage.journal.sync()
        disk.power_fails_after, disk.unsynced_kept = operation, kept
        with suppress(PowerLostError):
            recover(storage, ME, [b"c" * 6000, b"d" * 6000])
        disk.lose_power()
        machine = Register()
        left = replay(Storage(disk, create=False), machine)
        whole = ["kept", b"c" * 6000, b"d" * 6000]
        assert machine.log == (["kept"] if left.voters == former else whole)
        outcomes.add(left.voters)
    # It appends, and it syncs, and either may be done when the power fails; a third operation is
    # never reached.
    cut_short = {None: {former, (ME,)}, 0.0: {former}, 0.5: {former}, 1.0: {(ME,)}}[kept]
    assert outcomes == (cut_short if operation < 3 else {(ME,)})


def voters(*names: str) -> bytes:
    return encode_voters([ServerId(name) for name in names])
