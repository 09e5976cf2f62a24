"""The library's part: rounds, and applying committed entries; and calls kept from it."""

import ast
import importlib.util
import logging
import sys
from collections import defaultdict
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from core_alone import Alone, commands, of_kind

from gpupool.consensus.core import library_copy
from gpupool.consensus.core.library import LEADER
from gpupool.consensus.core.raft_log import SafetyError
from gpupool.consensus.protocol.membership import encode_voters
from gpupool.consensus.protocol.raft_settings import APPLIED_AT_ONCE_MAX, APPLYING_S_MAX
from gpupool.consensus.storage.store import MEMBERSHIP_TYPE
from gpupool.pool.model.ids import ServerId
from gpupool.pool.ports import Outcome
from gpupool.simulations.kernel.swarm_options import swarm
from gpupool.simulations.tools.runner import run


class Watch:
    """Shows a time that goes on by so much with each entry that is applied."""

    def __init__(self, entry_s: float) -> None:
        self.entry_s = entry_s
        self.applied: list[int] = []

    def __call__(self) -> float:
        return self.entry_s * len(self.applied)


def behind(entry_s: float, *, entries: int = 250) -> Alone:
    """Return a server with so many entries that are not applied, each of which takes so long."""
    watch = Watch(entry_s)
    alone = Alone(entries=commands([1] * entries), stopwatch=watch)
    watch.applied = alone.applied
    return alone


# --- applying --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry_s", "count"),
    [
        (0.0, APPLIED_AT_ONCE_MAX),
        (APPLYING_S_MAX / 4, 4),
        (APPLYING_S_MAX / 2, 2),
        (0.75 * APPLYING_S_MAX, 2),
        (APPLYING_S_MAX, 1),
        (60.0, 1),
    ],
)
def test_a_step_of_a_follower_applies_so_much_and_the_next_ones_the_rest(
    entry_s: float, count: int
) -> None:
    alone = behind(entry_s, entries=150)
    alone.follow(commit=151)
    alone.tick()
    assert len(alone.applied) == count
    assert (alone.core.applied_index, alone.core.commit_index) == (1 + count, 151)
    while len(alone.applied) < 150:
        alone.tick()
    assert alone.applied == list(range(2, 152))
    alone.tick()
    assert len(alone.applied) == 150


def test_a_new_leader_applies_what_came_before_without_regard_to_time() -> None:
    """It changes the voters as its table wants, which is not current before."""
    alone = behind(60.0, entries=5)
    alone.win("b")
    alone.acknowledge("b", 7)
    alone.tick()
    assert alone.applied == [2, 3, 4, 5, 6]
    assert alone.core.applied_index == 7
    for _ in range(3):
        alone.core.append(b"\x00y", None)
    alone.journal.sync()
    alone.core.synced()
    alone.acknowledge("b", 10)
    alone.tick()
    assert alone.applied[5:] == [8]
    alone.tick()
    assert alone.applied[5:] == [8, 9]


def test_a_new_leader_applies_as_many_entries_in_a_step_as_any_other() -> None:
    alone = behind(60.0)
    alone.win("b")
    alone.acknowledge("b", alone.journal.last_index)
    alone.tick()
    assert len(alone.applied) == APPLIED_AT_ONCE_MAX


def test_only_commands_are_applied() -> None:
    voters = MEMBERSHIP_TYPE + encode_voters([ServerId("me"), ServerId("b"), ServerId("c")])
    entries = [(voters, 2, 1), (b"\x01", 3, 1), (b"", 4, 1), (b"\x00x", 5, 1)]
    alone = Alone(entries=entries)
    alone.follow(commit=5)
    alone.tick()
    assert alone.applied == [5]
    assert alone.core.applied_index == 5


def test_a_log_that_ends_before_what_is_committed_stops_the_server() -> None:
    alone = Alone(entries=commands([1] * 5))
    alone.follow(commit=6)
    alone.journal.truncate(4)
    with pytest.raises(SafetyError) as stopped:
        alone.tick()
    assert "entry 6 is committed, and the log here ends at 3" in str(stopped.value)
    assert alone.applied == []


# --- commits ---------------------------------------------------------------------------------


def test_a_leader_is_settled_when_its_own_entry_and_its_voters_are_committed() -> None:
    alone = Alone(entries=commands([1, 1]))
    assert not alone.core.settled
    alone.win("b")
    assert not alone.core.settled
    alone.acknowledge("b", 3)
    alone.tick()
    assert alone.core.commit_index == 1, "an entry of an earlier term alone commits nothing"
    assert not alone.core.settled
    alone.acknowledge("b", 4)
    alone.tick()
    assert (alone.core.commit_index, alone.core.settled) == (4, True)
    outcomes: list[Outcome] = []
    voters = [ServerId(name) for name in ("me", "b", "c", "d")]
    alone.do(lambda: alone.core.set_voters(voters, outcomes.append))
    assert not alone.core.settled
    alone.journal.sync()
    alone.core.synced()
    for peer in ("b", "c"):
        alone.acknowledge(peer, 5)
    alone.tick()
    assert (alone.core.commit_index, alone.core.settled) == (5, True)
    alone.follow("b", term=alone.core.term + 1, commit=5)
    assert not alone.core.settled


@pytest.mark.parametrize(
    ("synced", "matches", "committed"),
    [
        (False, (5, 5), 5),
        (False, (5, 4), 4),
        (True, (5, 4), 5),
        (True, (4, 4), 4),
        (False, (4, 4), 4),
    ],
)
def test_what_a_majority_has_on_its_disks_is_committed(
    synced: bool, matches: tuple[int, int], committed: int
) -> None:
    alone = Alone(entries=commands([1, 1]))
    alone.win("b")
    alone.core.append(b"\x00y", None)
    if synced:
        alone.journal.sync()
        alone.core.synced()
    for peer, match in zip("bc", matches, strict=True):
        alone.acknowledge(peer, match)
    alone.tick()
    assert alone.core.commit_index == committed
    assert alone.core.synced_index == (5 if synced else 4)


def test_a_leader_that_nobody_answers_gives_up_its_office() -> None:
    alone = Alone(entries=commands([1, 1]))
    alone.win("b")
    for _ in range(9):
        alone.tick(0.06)
        assert alone.core.state == LEADER
    for _ in range(3):
        alone.tick(0.06)
    assert alone.core.state != LEADER
    assert alone.core.leader is None


def test_who_is_connected_is_told_in_one_order() -> None:
    alone = Alone(("me", "c", "b", "d"))
    assert alone.core.connected == ("b", "c", "d")
    alone.disconnect("c")
    assert alone.core.connected == ("b", "d")
    alone.connect("a")
    assert alone.core.connected == ("a", "b", "d")
    alone.disconnect("d")
    alone.connect("e")
    assert alone.core.connected == ("a", "b", "e")


def test_heartbeats_go_out_once_a_period_to_who_is_connected() -> None:
    alone = Alone(("me", "b", "c", "d"), entries=commands([1, 1]))
    alone.win("b", "c")
    alone.disconnect("d")
    due = alone.core.next_step_at()
    alone.now = due - 0.001
    assert alone.tick() == []
    alone.now = due + 0.001
    assert [peer for peer, _ in of_kind(alone.tick(), "append_entries")] == ["b", "c"]
    assert alone.core.next_step_at() == pytest.approx(alone.now + 0.06)


# --- what is kept from the library -----------------------------------------------------------


def test_the_librarys_own_ways_to_change_anything_are_shut() -> None:
    alone = Alone(("me",))
    alone.tick()
    alone.tick(5.0)
    assert alone.core.state == LEADER
    before = alone.journal.last_index
    core: Any = alone.core
    for change in (
        lambda: core._applyCommand(b"x", None),
        lambda: core._SyncObj__loadDumpFile(clearJournal=True),
        lambda: core._SyncObj__changeCluster(["add", "b"]),
        lambda: core._SyncObj__doChangeCluster(["add", "b"]),
    ):
        with pytest.raises(NotImplementedError):
            change()
    for voter in ("b", "me"):
        with pytest.raises(TypeError, match="not plain"):
            core.addNodeToCluster(voter)
        with pytest.raises(TypeError, match="not plain"):
            core.removeNodeFromCluster(voter)
    alone.tick(1.0)
    assert alone.journal.last_index == before
    assert alone.core.voters == ("me",)


def test_without_the_library_a_server_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_name: str) -> ModuleSpec | None:
        return None

    copy: Any = library_copy
    monkeypatch.setattr(importlib.util, "find_spec", nothing)
    with pytest.raises(ImportError, match="pysyncobj is not installed"):
        copy._load_library()


def test_a_library_without_a_name_that_is_replaced_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = importlib.util.find_spec("gpupool.pool.errors")

    def another(_name: str) -> ModuleSpec | None:
        return other

    copy: Any = library_copy
    monkeypatch.setattr(importlib.util, "find_spec", another)
    with pytest.raises(ImportError, match=r"has no monotonicTime: this is not version 0\.3\.17"):
        copy._load_library()


@pytest.mark.parametrize(
    ("synced", "matches", "committed"),
    [
        (False, (5, 5, 4), 4),
        (False, (5, 5, 5), 5),
        (True, (5, 5, 4), 5),
        (True, (5, 4, 4), 4),
        (False, (5, 5, 4, 4), 4),
        (True, (5, 5, 4, 4), 5),
        (False, (5, 5, 5, 4), 5),
        (True, (5, 4, 4, 4), 4),
    ],
)
def test_half_of_the_voters_is_no_majority(
    synced: bool, matches: tuple[int, ...], committed: int
) -> None:
    """A leader that has not synced its own entry does not count for it."""
    peers = "bcde"[: len(matches)]
    alone = Alone(("me", *peers), entries=commands([1, 1]))
    alone.win("b", "c")
    alone.core.append(b"\x00y", None)
    if synced:
        alone.journal.sync()
        alone.core.synced()
    for peer, match in zip(peers, matches, strict=True):
        alone.acknowledge(peer, match)
    alone.tick()
    assert alone.core.commit_index == committed


def test_only_entries_that_are_taken_have_to_be_synced() -> None:
    alone = Alone(entries=commands([1, 1, 1]), term=5)
    assert alone.core.synced_index == 4
    fields = {"commit_index": 1, "entries": b"", "clock_ms": 0, "majority_age_ms": 0}
    for previous, term in ((2, 1), (3, 4), (9, 1)):
        message = {"term": 5, "prevLogIdx": previous, "prevLogTerm": term}
        alone.take("b", "append_entries", **message, **fields)
        assert alone.core.synced_index == 4
    alone.append("b", commands([1, 5], first=4))
    assert alone.core.synced_index == 3
    alone.core.synced()
    assert alone.core.synced_index == 5


def test_an_answer_to_an_old_sign_of_life_does_not_slow_a_follower_down() -> None:
    alone = Alone()
    alone.win("b")
    alone.acknowledge("b", 2)
    assert alone.core.is_followed_by(ServerId("b"))
    alone.reject("b", -1, 0)
    assert alone.core.is_followed_by(ServerId("b"))
    assert alone.core.match_index(ServerId("b")) == 2


# --- what of it runs -------------------------------------------------------------------------

IN_ROUNDS = """
_onTick __applyLogEntries __connectedToAnyone __generateRaftTimeout __getCurrentLogTerm
__getEntries __onBecomeLeader __onLeaderChanged __onMessageReceived __setCurrentTerm __setState
"""
WHEN_MADE = """
__init__ __onSetCodeVersion conf encryptor hasQuorum otherNodes raftCommitIndex raftCurrentTerm
raftLastApplied readonlyNodes selfNode
"""


def test_the_library_runs_what_adr_0005_says_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pool under faults: it elects, loses leaders, changes voters, installs snapshots."""
    path = str(library_copy.LIBRARY.__file__)
    ran: defaultdict[str, set[int]] = defaultdict(set)

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        if frame.f_code.co_filename != path:
            return None
        name = frame.f_code.co_name
        ran[name].update([frame.f_lineno] if event == "line" else [])
        return trace

    monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        assert run(replace(swarm(10), fault_s=4.0, heal_s=2.0)).failure is None
    finally:
        sys.settrace(before)
    nodes = ast.walk(ast.parse(Path(path).read_text("utf-8")))
    begins = {node.lineno for node in nodes if isinstance(node, ast.stmt)}
    methods = {name: lines & begins for name, lines in ran.items() if name.isidentifier()}
    assert methods.keys() - {"iteritems"} == {*IN_ROUNDS.split(), *WHEN_MADE.split()}
    assert 100 < sum(len(methods[name]) for name in IN_ROUNDS.split()) <= 136
