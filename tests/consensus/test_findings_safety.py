"""How pysyncobj 0.3.17 loses or forks history (findings S1 to S9), and that this does not.

Each finding is shown twice: on the unmodified library, so that the test would notice if the
danger went away, and on ours.
"""

import contextlib
import gc
import os
import random
from pathlib import Path
from typing import Any

import pytest
from bare_library import LEADER as BARE_LEADER
from bare_library import Bare, append, command, library
from lone_node import Lone, entry, take
from pysyncobj.journal import FileJournal
from tests.simulations.mutations.broken_consensus import truncates_blindly

from gpupool.consensus.core.library import LEADER
from gpupool.consensus.protocol.membership import encode_voters
from gpupool.consensus.storage.snapshot import Snapshot
from gpupool.consensus.storage.store import MEMBERSHIP_TYPE, Storage
from gpupool.pool.model.ids import ServerId
from gpupool.pool.ports import NotCommitted
from gpupool.simulations.kernel.simulated_disk import PowerLostError, SimulatedDisk

# The library does not close the files that it reads.
LEAKY = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


def bare_entries(first: int, last: int, term: int = 1) -> list[Any]:
    return [(command(index), index, term) for index in range(first, last + 1)]


def our_entries(first: int, last: int, term: int = 1) -> list[Any]:
    return [entry(index, index, term) for index in range(first, last + 1)]


def nothing(_position: int) -> None:
    return


# --- S1: a crash between snapshot and compaction ---------------------------------------------


@LEAKY
def test_s1_the_library_wipes_a_journal_that_does_not_start_at_its_dump(tmp_path: Path) -> None:
    files = {"journalFile": str(tmp_path / "journal"), "fullDumpFile": str(tmp_path / "dump")}
    bare = Bare("me", [], useFork=False, **files)
    bare.tick()
    bare.campaign()
    for value in range(30):
        bare.put(value)
    bare.tick()
    bare.tick()
    bare.forceLogCompaction()
    bare.private("raftLog").deleteEntriesTo = nothing  # The process dies here.
    bare.tick()
    for value in range(30, 40):
        bare.put(value)
    bare.tick()
    bare.tick()
    assert bare.values == list(range(40))
    bare.private("raftLog")._destroy()

    again = Bare("me", [], useFork=False, **files)
    again.tick()
    assert len(again.log()) == 2, "42 entries were there, 10 of them nowhere else"
    again.private("raftLog")._destroy()
    gc.collect()


def test_s1_ours_keeps_every_entry_behind_the_snapshot() -> None:
    disk = SimulatedDisk(random.Random(7))
    storage = Storage(disk, create=True)
    for item in our_entries(2, 41):
        storage.journal.append(*item)
    storage.journal.sync()
    # The process dies after the snapshot was renamed and before the journal was rewritten.
    storage.snapshots.save(Snapshot(31, 1, (ServerId("me"),), []))
    again = Storage(disk, create=False)
    assert again.snapshots.latest is not None
    assert again.snapshots.latest.index == 31
    assert [item[1] for item in again.journal.entries] == list(range(1, 42))


# --- S2: compaction --------------------------------------------------------------------------


@LEAKY
def test_s2_the_library_loses_the_tail_when_compaction_is_interrupted(tmp_path: Path) -> None:
    path = str(tmp_path / "journal")
    journal: Any = FileJournal(path)
    for item in bare_entries(1, 100):
        journal.add(*item)
    added = 0
    adding = journal.add

    def add_until_killed(*item: Any) -> None:
        nonlocal added
        added += 1
        if added > 3:
            raise KeyboardInterrupt
        adding(*item)

    journal.add = add_until_killed
    with pytest.raises(KeyboardInterrupt):
        journal.deleteEntriesTo(50)
    journal._destroy()
    again: Any = FileJournal(path)
    assert len(again) == 3, "50 entries should have been kept"
    again._destroy()
    gc.collect()


def disk_with_snapshots(seed: int) -> tuple[SimulatedDisk, Storage]:
    disk = SimulatedDisk(random.Random(seed))
    storage = Storage(disk, create=True)
    for item in our_entries(2, 100):
        storage.journal.append(*item)
    storage.journal.sync()
    take(storage, Snapshot(40, 1, (ServerId("me"),), "forty"))
    return disk, storage


@pytest.mark.parametrize("operation", range(1, 12))
def test_s2_ours_survives_a_power_loss_in_any_step_of_compaction(operation: int) -> None:
    for seed in range(20):
        disk, storage = disk_with_snapshots(seed)
        disk.power_fails_after = operation
        with contextlib.suppress(PowerLostError):
            take(storage, Snapshot(80, 1, (ServerId("me"),), "eighty"))
        disk.lose_power()
        again = Storage(disk, create=False)
        assert again.snapshots.latest is not None
        assert again.snapshots.latest.index in (40, 80)
        assert again.journal.last_index == 100
        assert again.journal.base_index <= again.snapshots.latest.index


# --- S3: truncation --------------------------------------------------------------------------


def test_s3_the_library_drops_entries_it_acknowledged() -> None:
    bare = Bare("me", ["b", "c"])
    bare.take("b", append(1, 1, 0, bare_entries(2, 9)))
    acknowledged = bare.wire.of_type("next_node_idx")[-1][1]
    assert acknowledged["next_node_idx"] == 10
    # The leader sends the first half again, as it does when an acknowledgement moved nextIndex
    # back; it crashes before it sends the second half.
    bare.take("b", append(1, 1, 0, bare_entries(2, 5)))
    assert bare.log()[-1][1] == 5


def test_s3_ours_truncates_only_where_entries_differ() -> None:
    lone = Lone(("me", "b", "c"))
    sent = lone.append(2, 1, our_entries(3, 9, 5))
    assert sent[-1][1]["next_node_idx"] == 10
    lone.append(2, 1, our_entries(3, 5, 5))
    assert lone.journal.last_index == 9
    lone.append(2, 1, [])
    assert lone.journal.last_index == 9
    # A real conflict still gives way.
    lone.append(4, 5, our_entries(5, 6, 6), term=6, leader="c")
    assert [item[2] for item in lone.log()] == [0, 1, 5, 5, 6, 6]


def an_older_prefix_cuts_nothing() -> None:
    """Take every append that a leader may send again, late; the log stays, on the disk too."""
    lone = Lone(("me", "b", "c"))
    lone.append(2, 1, our_entries(3, 9, 5), commit=7)
    whole = lone.log()
    for previous in range(1, 10):
        term = {1: 0, 2: 1}.get(previous, 5)
        for last in range(previous, 10):
            sent = lone.append(previous, term, whole[previous:last], commit=min(previous, 7))
            assert lone.log() == whole
            # It speaks for what the message showed to match, and for no more.
            assert sent[-1][1]["success"]
            assert sent[-1][1]["next_node_idx"] == last + 1
    assert lone.node.core.commit_index == 7
    lone.restart()
    assert lone.log() == whole


def test_s3_ours_keeps_its_log_when_an_older_prefix_comes() -> None:
    an_older_prefix_cuts_nothing()


def test_s3_blind_truncation_fails_for_an_older_prefix() -> None:
    with truncates_blindly(), pytest.raises(AssertionError):
        an_older_prefix_cuts_nothing()
    with truncates_blindly(), pytest.raises(AssertionError):
        test_s3_ours_truncates_only_where_entries_differ()


# --- S4: acknowledgements of an earlier leadership -------------------------------------------


def test_s4_the_library_counts_an_acknowledgement_of_an_earlier_term() -> None:
    bare = Bare("me", ["b", "c", "d", "e"])
    bare.win("b", "c")
    bare.put("new")
    bare.tick()
    last = bare.log()[-1][1]
    stale = {"type": "next_node_idx", "next_node_idx": last + 1, "reset": False, "success": True}
    for peer in ("b", "c"):
        bare.take(peer, stale)  # Sent years ago, to an entry that b and c do not have any more.
    bare.tick()
    assert bare.values == ["new"], "committed with one copy of five"


def test_s4_ours_asks_for_the_term() -> None:
    lone = Lone(("me", "b", "c", "d", "e"))
    term = lone.win("b", "c")
    lone.propose("new")
    lone.tick()
    last = lone.journal.last_index
    for peer in ("b", "c", "d", "e"):
        lone.acknowledge(peer, last, term=term - 1)
    lone.tick()
    assert lone.machine.log == []
    for peer in ("b", "c"):
        lone.acknowledge(peer, last)
    lone.tick()
    assert lone.machine.log == ["new"]


def test_s4_ours_ignores_acknowledgements_of_entries_that_do_not_exist() -> None:
    lone = Lone()
    lone.win("b")
    lone.propose("x")
    lone.tick()
    lone.acknowledge("b", lone.journal.last_index + 1000)
    lone.tick()
    assert lone.machine.log == []


# --- S5: membership --------------------------------------------------------------------------


def test_s5_the_library_commits_alone_after_two_changes_at_once() -> None:
    bare = Bare("me", ["b", "c"])
    bare.win("b")
    noop = bare.log()[-1][1]
    bare.take(
        "b", {"type": "next_node_idx", "next_node_idx": noop + 1, "reset": False, "success": True}
    )
    bare.tick()
    # From here on the leader hears from nobody.
    bare.removeNodeFromCluster(library.Node("b"))
    bare.removeNodeFromCluster(library.Node("c"))
    bare.put("forked")
    bare.tick()
    bare.tick()
    assert bare.values == ["forked"], "while b and c may have another leader"


def test_s5_ours_changes_one_voter_at_a_time() -> None:
    lone = Lone()
    lone.win("b")
    refused: list[Any] = []
    lone.set_voters([ServerId("me"), ServerId("b")], refused.append)
    lone.tick()
    assert isinstance(refused[-1], NotCommitted), "its own no-op is not committed yet"
    lone.acknowledge("b", lone.journal.last_index)
    lone.tick()
    lone.set_voters([ServerId("me")], refused.append)
    lone.tick()
    assert refused[-1].reason == "voters change one at a time"
    lone.set_voters([ServerId("me"), ServerId("c")], lambda _: None)
    lone.set_voters([ServerId("me")], refused.append)
    lone.propose("forked?")
    lone.tick()
    lone.tick()
    assert refused[-1].reason == "an earlier change is not committed yet"
    assert lone.machine.log == []


# --- S6: nothing durable by default ----------------------------------------------------------


def request_vote(term: int) -> dict[str, Any]:
    return {"type": "request_vote", "term": term, "last_log_index": 1, "last_log_term": 0}


def test_s6_the_library_votes_twice_in_one_term_by_default() -> None:
    votes: list[Any] = []
    for candidate in ("b", "c"):  # A restart lies between the two.
        bare = Bare("me", ["b", "c"])
        bare.take(candidate, request_vote(1))
        votes += bare.wire.of_type("response_vote")
    assert [peer for peer, _ in votes] == ["b", "c"]


def test_s6_ours_remembers_its_vote() -> None:
    lone = Lone()
    fields = {"term": 9, "last_log_index": 50, "last_log_term": 8, "hand_over": False}
    sent = lone.take("b", "request_vote", **fields)
    assert [(peer, m["type"]) for peer, m in sent] == [("b", "response_vote")]
    lone.disk.lose_power()
    lone.restart()
    assert lone.take("c", "request_vote", **fields) == []


# --- S7: power loss --------------------------------------------------------------------------


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    made: list[int] = []
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, made.append)
    return made


@LEAKY
def test_s7_the_library_acknowledges_what_is_not_on_the_disk(
    tmp_path: Path, syncs: list[int]
) -> None:
    bare = Bare("me", ["b", "c"], journalFile=str(tmp_path / "journal"))
    bare.take("b", append(1, 1, 0, bare_entries(2, 9)))
    assert bare.wire.of_type("next_node_idx")[-1][1]["success"]
    bare.take("c", request_vote(7))
    assert syncs == []
    # An empty .meta, which a rename without a sync leaves behind, is taken for no vote at all.
    bare.private("raftLog")._destroy()
    (tmp_path / "journal.meta").write_bytes(b"")
    again: Any = FileJournal(str(tmp_path / "journal"))
    assert again.getCurrentTerm() == 0
    assert again.getVotedForNodeId() is None
    again._destroy()
    gc.collect()


def test_s7_ours_syncs_once_and_only_then_lets_frames_out() -> None:
    lone = Lone()
    before = lone.disk.counts["sync"]
    sent = lone.append(2, 1, our_entries(3, 40, 5))
    assert sent[-1][1]["success"]
    assert lone.disk.counts["sync"] == before + 1
    for _ in range(20):
        lone.disk.lose_power()
        lone.restart()
        assert lone.journal.last_index == 40
        assert lone.journal.term == 5


def test_s7_ours_lets_nothing_out_when_the_sync_fails() -> None:
    lone = Lone()
    lone.node.receive(
        ServerId("b"),
        lone.frame("b", "request_vote", term=9, last_log_index=9, last_log_term=8, hand_over=False),
        lone.now,
    )
    lone.node.step(lone.now)
    lone.disk.power_fails_after = 1
    with pytest.raises(PowerLostError):
        lone.node.ready()


# --- S8: duplicates --------------------------------------------------------------------------


def test_s8_the_library_counts_one_vote_twice() -> None:
    bare = Bare("me", ["b", "c", "d", "e"])
    bare.campaign()
    vote = {"type": "response_vote", "term": bare.raftCurrentTerm}
    bare.take("b", vote)
    bare.take("b", vote)
    assert bare.private("raftState") == BARE_LEADER, "with two votes of five"


def test_s8_the_library_applies_a_repeated_command_twice() -> None:
    bare = Bare("me", [])
    bare.campaign()
    forwarded = {"type": "apply_command", "command": command("once"), "request_id": 1}
    bare.take("b", forwarded)
    bare.take("b", forwarded)
    for _ in range(3):
        bare.tick()
    assert bare.values == ["once", "once"]


def test_s8_ours_counts_one_vote_once() -> None:
    lone = Lone(("me", "b", "c", "d", "e"))
    lone.campaign()
    asked = lone.node.core.term + 1
    for voter in ("b", "b", "b"):
        lone.take(voter, "response_prevote", term=asked, current_term=1, granted=True, member=True)
    lone.tick()
    assert lone.node.core.term == asked - 1, "one promise of five, however often it comes"
    lone.take("c", "response_prevote", term=asked, current_term=1, granted=True, member=True)
    lone.tick()
    assert lone.node.core.term == asked
    for _ in range(3):
        lone.take("b", "response_vote", term=asked)
    assert lone.node.core.state != LEADER
    lone.take("c", "response_vote", term=asked)
    assert lone.node.core.state == LEADER


def test_s8_ours_counts_no_votes_of_strangers() -> None:
    lone = Lone(("me", "b", "c"), peers=("b", "c", "x", "y"))
    lone.tick(1.0)
    asked = lone.node.core.term + 1
    for voter in ("x", "y"):
        lone.take(voter, "response_prevote", term=asked, current_term=1, granted=True, member=True)
    lone.tick()
    assert lone.node.core.term == asked - 1
    lone.take("b", "response_prevote", term=asked, current_term=1, granted=True, member=True)
    lone.tick()
    for voter in ("x", "y"):
        lone.take(voter, "response_vote", term=asked)
    assert lone.node.core.state != LEADER


def test_s8_ours_takes_a_repeated_frame_once() -> None:
    lone = Lone(("me", "b"))
    lone.win("b")
    core = lone.node.core
    frame = lone.frame(
        "b",
        "forward",
        term=core.term,
        request_id=1,
        command=entry("once", 1, 1)[0],
        deadline_ms=core.clock_ms() + 1000,
    )
    for _ in range(3):
        lone.take_frame("b", frame)
    lone.acknowledge("b", lone.journal.last_index)
    lone.tick()
    assert lone.machine.log == ["once"]


# --- S9: reordering --------------------------------------------------------------------------


def test_s9_the_library_truncates_on_a_late_message() -> None:
    bare = Bare("me", ["b", "c"])
    late = append(1, 1, 0, bare_entries(2, 2))
    bare.take("b", append(1, 1, 0, bare_entries(2, 9)))
    bare.take("b", late)
    assert bare.log()[-1][1] == 2


def test_s9_ours_drops_late_frames() -> None:
    lone = Lone()
    late = lone.frame("b", "alive", applied_index=1)
    lone.append(2, 1, our_entries(3, 9, 5))
    before = lone.node.health(lone.now).contact_age_s[ServerId("b")]
    lone.now += 0.01
    lone.node.receive(ServerId("b"), late, lone.now)
    after = lone.node.health(lone.now).contact_age_s[ServerId("b")]
    assert after > before, "a late frame does not even count as a sign of life"


def test_an_entry_of_an_unknown_configuration_changes_nothing() -> None:
    lone = Lone()
    bad = (MEMBERSHIP_TYPE + b"\xff", 3, 5)
    lone.append(2, 1, [bad])
    assert lone.journal.last_index == 2
    good = (MEMBERSHIP_TYPE + encode_voters([ServerId("b"), ServerId("c")]), 3, 5)
    lone.append(2, 1, [good])
    assert lone.node.core.voters == ("b", "c")
    assert not lone.node.core.votes
