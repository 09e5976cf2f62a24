"""A log's entries from another server, and a repair's findings from them."""

from random import Random

import pytest
from lone_node import Lone, entry, install

from gpupool.consensus.core.progress import Mode, Progress
from gpupool.consensus.core.raft_log import RaftLog, SafetyError, Stored
from gpupool.consensus.protocol.membership import Configuration, encode_voters
from gpupool.consensus.protocol.raft_settings import IN_FLIGHT_BYTES_MAX
from gpupool.consensus.storage.journal import Entry, Floor, Journal, encode_entries
from gpupool.consensus.storage.snapshot import Snapshot
from gpupool.consensus.storage.store import MEMBERSHIP_TYPE
from gpupool.pool.errors import RemoteProtocolError
from gpupool.pool.model.ids import ServerId
from gpupool.pool.ports import Unknown
from gpupool.simulations.kernel.simulated_disk import SimulatedDisk


@pytest.mark.parametrize("indexes", [(4,), (3, 5), (3, 3), (4, 3)])
def test_entries_out_of_order_stop_the_server_before_any_is_stored(
    indexes: tuple[int, ...],
) -> None:
    lone = Lone()
    with pytest.raises(SafetyError, match="out of order"):
        lone.append(2, 1, [entry("x", index, 5) for index in indexes])
    assert lone.journal.last_index == 2


def test_a_server_in_repair_takes_in_what_others_remember_of_its_promises() -> None:
    lone = Lone()
    lone.node.storage.superblock.lose(Floor(1, 2))
    lone.take("b", "promised", term=7, index=40)
    assert lone.node.storage.superblock.floor == Floor(7, 40)
    assert lone.node.core.term == 7
    lone.take("c", "promised", term=6, index=50)
    assert lone.node.storage.superblock.floor == Floor(7, 50), "the highest of each counts"


@pytest.mark.parametrize("told", [0, 40])
def test_a_repair_ends_by_what_a_leader_committed_in_its_own_term(told: int) -> None:
    """Seed 10130639: others knew the leader's term and no entry, and the repair did not end.

    An index would be too little. Others know that of the last term alone, and what this server
    acknowledged in an earlier one may be committed and lie behind.
    """
    lone = Lone(entries=[entry("x", 3, 4)], term=5)
    superblock = lone.node.storage.superblock
    superblock.lose(Floor(4, 60))
    lone.take("c", "promised", term=5, index=told)
    behind = [entry("x", index, 4) for index in range(4, 51)]
    lone.append(3, 4, behind, commit=50)
    assert superblock.floor is not None, "committed by an earlier leader"
    lone.append(50, 4, [entry("x", 51, 5)], commit=50)
    assert superblock.floor is not None, "not committed yet"
    lone.append(51, 5, [], commit=51)
    assert superblock.floor is None


def test_a_server_that_lost_nothing_is_not_repaired_by_a_late_answer() -> None:
    lone = Lone()
    lone.take("b", "promised", term=7, index=40)
    assert lone.node.storage.superblock.floor is None


def test_the_bytes_on_the_way_are_counted_exactly_from_the_start_and_anew() -> None:
    progress = Progress()
    for mode in (Mode.REPLICATE, Mode.PROBE, Mode.REPLICATE):
        progress.sent(3, IN_FLIGHT_BYTES_MAX - 1)
        assert progress.has_room()
        progress.sent(4, 1)
        assert not progress.has_room()
        progress.become(mode)
        assert progress.has_room()


def log_behind(base: int, last: int) -> RaftLog:
    """Return a log with entries of term 1 in a snapshot up to ``base``."""
    journal = Journal.create(SimulatedDisk(Random(1)))
    for index in range(2, last + 1):
        journal.append(*entry("x", index, 1))
    journal.rewrite(base, 1, keep=True)
    return RaftLog(journal, Configuration(base, ()))


@pytest.mark.parametrize("term", [1, 9])
@pytest.mark.parametrize("last", [3, 4, 5])
def test_entries_that_are_all_in_a_snapshot_are_there_already(last: int, term: int) -> None:
    log = log_behind(5, 6)
    before = list(log.journal.entries)
    sent = [entry("x", index, term) for index in range(4, last + 1)]
    assert log.store(3, 1, sent, commit_index=5) == Stored(5)
    assert log.journal.entries == before


@pytest.mark.parametrize("last", [6, 7, 8])
@pytest.mark.parametrize("previous", [2, 3, 4, 5])
def test_of_entries_that_begin_in_a_snapshot_those_behind_it_are_stored(
    previous: int, last: int
) -> None:
    """As far as the snapshot reaches, every leader's log has the same."""
    log = log_behind(5, 6)
    sent = [entry("x", index, 1) for index in range(previous + 1, last + 1)]
    assert log.store(previous, 1, sent, commit_index=5) == Stored(last)
    assert log.journal.last_index == last


@pytest.mark.parametrize(
    ("previous", "answer"), [(4, Stored(7)), (5, Stored(None, 6)), (6, Stored(None, 6))]
)
def test_a_log_of_another_term_is_not_met_from_the_end_of_the_snapshot_on(
    previous: int, answer: Stored
) -> None:
    log = log_behind(5, 6)
    sent = [entry("x", index, 1) for index in range(previous + 1, 8)]
    assert log.store(previous, 8, sent, commit_index=5) == answer


@pytest.mark.parametrize("previous", [7, 9])
def test_a_log_that_is_shorter_asks_for_what_is_behind_its_end(previous: int) -> None:
    sent = [entry("x", previous + 1, 1)]
    assert log_behind(5, 6).store(previous, 1, sent, commit_index=5) == Stored(None, 7)


def test_voters_that_make_no_sense_are_refused_before_any_entry_is_stored() -> None:
    log = log_behind(5, 6)
    before = list(log.journal.entries)
    good = (MEMBERSHIP_TYPE + encode_voters([ServerId("b")]), 7, 1)
    for bad in (MEMBERSHIP_TYPE, MEMBERSHIP_TYPE + b"\x01"):
        with pytest.raises(RemoteProtocolError):
            log.store(6, 1, [good, (bad, 8, 1)], commit_index=5)
        assert log.journal.entries == before
    assert log.store(6, 1, [good], commit_index=5) == Stored(7, reconfigured=True)


@pytest.mark.parametrize("commit", [1, 4, 8])
def test_a_snapshot_commits_nothing_that_is_behind_it(commit: int) -> None:
    """The entries that stay behind it may still give way to others."""
    names = tuple(ServerId(name) for name in ("me", "b", "c"))
    lone = Lone(names, entries=[entry("x", index, 1) for index in range(3, 13)])
    core = lone.node.core
    core.commit_to(commit)
    install(lone.node.storage, Snapshot(8, 1, names, []))
    core.installed(8, names)
    assert (core.commit_index, core.applied_index) == (8, 8)
    assert lone.journal.last_index == 12
    lone.append(8, 1, [entry("y", 9, 5)], commit=8)
    assert lone.log()[-1] == entry("y", 9, 5)


@pytest.mark.parametrize("covered", [0, 1, 2])
def test_whose_place_in_the_log_a_snapshot_covers_is_told_so_and_nobody_else(covered: int) -> None:
    names = tuple(ServerId(name) for name in ("me", "b", "c"))
    lone = Lone(names)
    term = lone.win("b")
    before = lone.journal.last_index
    for number in range(2):
        lone.propose(number)
    lone.tick()
    assert lone.journal.last_index == before + 2
    install(lone.node.storage, Snapshot(before + covered, term, names, []))
    lone.node.core.installed(before + covered, names)
    lone.tick()
    why = "a snapshot covers the command's place in the log"
    assert lone.outcomes == [Unknown(why)] * covered


def test_a_leader_begins_anew_at_its_end_with_a_voter_that_has_lost_entries() -> None:
    lone = Lone()
    term = lone.win("b", "c")
    last = lone.journal.last_index
    for peer in ("b", "c"):
        lone.acknowledge(peer, last)
    assert lone.node.core.match_index(ServerId("b")) == last
    start = {"boot": 5, "incarnation": 0, "term": term, "last_index": 2, "repairing": True}
    sent = lone.take("b", "hello", **start) + lone.tick(1.0)
    assert lone.node.core.match_index(ServerId("b")) == 0
    asked = [m["prevLogIdx"] for peer, m in sent if (peer, m["type"]) == ("b", "append_entries")]
    assert set(asked) == {last}


def log_of(entries: list[Entry], base: Configuration) -> RaftLog:
    journal = Journal.create(SimulatedDisk(Random(1)))
    for each in entries:
        journal.append(*each)
    return RaftLog(journal, base)


def voters_entry(names: str, index: int, term: int = 1) -> Entry:
    voters = [ServerId(name) for name in names]
    return (MEMBERSHIP_TYPE + encode_voters(voters), index, term)


@pytest.mark.parametrize(("limit", "last"), [(1, 2), (9, 2), (10, 2), (19, 2), (20, 3), (39, 4)])
def test_as_many_entries_are_sent_as_fit_and_one_at_least(limit: int, last: int) -> None:
    entries: list[Entry] = [(bytes(10), index, 1) for index in (2, 3, 4, 5)]
    log = log_of(entries, Configuration(0, ()))
    for _ in range(2):
        assert log.encoded(2, 5, limit) == (last, encode_entries(entries[: last - 1]))
        log.forget_encoded()
    assert log.encoded(4, 5, 100) == (5, encode_entries(entries[2:]))
    assert log.encoded(3, 4, 100) == (4, encode_entries(entries[1:3]))
    assert log.encoded(5, 5, limit)[0] == 5


def test_nothing_is_sent_from_behind_the_end_or_into_no_bytes() -> None:
    log = log_behind(5, 8)
    assert log.encoded(9, 8, 100) == (8, b"")
    assert log.encoded(7, 8, 0) == (6, b"")
    assert log.encoded(6, 8, 100) == (8, encode_entries(log.journal.entries[1:]))


def test_what_was_encoded_is_made_anew_after_the_log_changed() -> None:
    log = log_of([entry("x", index, 1) for index in (2, 3)], Configuration(0, ()))
    before = log.encoded(2, 3, 1000)
    assert log.store(2, 1, [entry("y", 3, 2)], commit_index=2) == Stored(3)
    log.forget_encoded()
    after = log.encoded(2, 3, 1000)
    assert after == (3, encode_entries([entry("x", 2, 1), entry("y", 3, 2)]))
    assert after != before


@pytest.mark.parametrize(
    ("previous", "commit", "hint"),
    [
        *((index, 1, 6) for index in (6, 7, 8, 9)),
        *((index, 1, 4) for index in (4, 5)),
        *((index, 1, 2) for index in (2, 3)),
        *((9, commit, commit + 1) for commit in (5, 6, 7, 8)),
        *((5, commit, commit + 1) for commit in (3, 4)),
    ],
)
def test_a_leader_tries_next_where_the_term_that_conflicts_begins(
    previous: int, commit: int, hint: int
) -> None:
    """No further back than the committed entries: those are the same in both logs."""
    terms = {2: 1, 3: 1, 4: 2, 5: 2, 6: 3, 7: 3, 8: 3, 9: 3}
    log = log_of([entry("x", i, term) for i, term in terms.items()], Configuration(0, ()))
    assert log.store(previous, 9, [], commit_index=commit) == Stored(None, hint)


@pytest.mark.parametrize(("base", "voters"), [(2, "bc"), (3, "a"), (4, "a")])
def test_a_snapshot_has_the_voters_of_the_entries_that_it_covers(base: int, voters: str) -> None:
    names = tuple(ServerId(name) for name in "a")
    log = log_of([entry("x", 2, 1), voters_entry("bc", 3)], Configuration(base, names))
    assert log.configurations.current.voters == tuple(voters)
    assert log.configurations.current.index == max(base, 3)


@pytest.mark.parametrize(("changed_at", "kept"), [(9, True), (10, False), (11, False), (13, False)])
def test_voters_go_with_the_entries_that_a_snapshot_replaces(changed_at: int, kept: bool) -> None:
    """The journal ends at entry 9, and the snapshot covers everything up to entry 8."""
    journal = Journal.create(SimulatedDisk(Random(1)))
    for index in range(2, 14):
        command = voters_entry("bcd", index) if index == changed_at else entry("x", index, 1)
        journal.append(*command)
    log = RaftLog(journal, Configuration(0, (ServerId("a"),)))
    assert log.configurations.current.index == changed_at
    journal.truncate(10)
    log.installed(8, (ServerId("z"),))
    assert log.configurations.current.voters == (tuple("bcd") if kept else ("z",))
    assert log.configurations.at(8) == Configuration(8, (ServerId("z"),))


@pytest.mark.parametrize(
    ("sent", "changed"),
    [
        ([entry("y", 4, 2)], True),
        ([entry("y", 4, 2), voters_entry("b", 5, 2)], True),
        ([voters_entry("bd", 4, 2)], True),
        ([voters_entry("bc", 4, 2)], False),
        ([entry("x", 3, 1), voters_entry("bc", 4, 1)], False),
        ([entry("y", 5, 2)], False),
    ],
)
def test_voters_change_with_the_entries_that_name_them(sent: list[Entry], changed: bool) -> None:
    base = Configuration(0, (ServerId("a"),))
    log = log_of([entry("x", 2, 1), entry("x", 3, 1), voters_entry("bc", 4)], base)
    stored = log.store(sent[0][1] - 1, 1, sent, commit_index=2)
    assert stored == Stored(sent[-1][1], reconfigured=changed)


@pytest.mark.parametrize("commit", [2, 3, 4])
def test_a_committed_entry_gives_way_to_nothing(commit: int) -> None:
    log = log_of([entry("x", index, 1) for index in (2, 3, 4)], Configuration(0, ()))
    before = list(log.journal.entries)
    if commit < 3:
        assert log.store(2, 1, [entry("y", 3, 2)], commit_index=commit) == Stored(3)
        return
    with pytest.raises(SafetyError, match="the committed entry 3 would be replaced"):
        log.store(2, 1, [entry("y", 3, 2)], commit_index=commit)
    assert log.journal.entries == before
    assert log.store(4, 1, [entry("y", 5, 2)], commit_index=4) == Stored(5)
