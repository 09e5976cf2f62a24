"""One server's memory of the others: its content, its writes, and its repair."""

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from gpupool.consensus.core.library import FOLLOWER, LEADER
from gpupool.consensus.persisted_votes import PersistedVotes
from gpupool.consensus.protocol.raft_messages import Message
from gpupool.consensus.storage.journal import Floor, Superblock
from gpupool.consensus.storage.peer_memory import PeerMemory, Remembered, Start
from gpupool.pool.errors import StorageError
from gpupool.pool.model.ids import ServerId
from gpupool.simulations.kernel.simulated_disk import SimulatedDisk

ME, B, C = ServerId("me"), ServerId("b"), ServerId("c")


class CountedMemory(PeerMemory):
    """A memory that counts how often it is written."""

    saves = 0

    def save(self) -> None:
        super().save()
        self.saves += 1


@dataclass
class Around:
    """The node, its core, its log, its disk and its connections, as far as promises need them."""

    terms: dict[int, int] = field(default_factory=dict[int, int])
    server_id: ServerId = ME
    now: float = 100.0
    state: int = FOLLOWER
    term: int = 5
    last_index: int = 9
    base_index: int = 1
    commit_index: int = 1
    matched_index: int = 9
    abstains: bool = False
    alarm: str = ""
    sent: list[tuple[ServerId, Message]] = field(default_factory=list[tuple[ServerId, Message]])
    did: list[object] = field(default_factory=list[object])

    def __post_init__(self) -> None:
        disk = SimulatedDisk(Random(7))
        self.memory, self.superblock = CountedMemory(disk), Superblock(disk)

    @property
    def core(self) -> "Around":
        return self

    storage = journal = frames = core

    def connected(self) -> set[ServerId]:
        return {B, C}

    def send(self, peer: ServerId, message: Message) -> None:
        self.sent.append((peer, message))

    def term_at(self, index: int) -> int | None:
        return self.terms.get(index)

    def forget(self, why: str) -> None:
        self.did.append(why)

    def forget_match(self, peer: ServerId) -> None:
        self.did.append(peer)

    def forget_votes_up_to(self, term: int) -> None:
        self.did.append(term)


def promises_of(around: Around) -> PersistedVotes:
    node: Any = around
    return PersistedVotes(node, Start(3, 33))


def hello(boot: int = 4, *, repairing: bool = False) -> Message:
    said = {"boot": boot, "incarnation": 44, "term": 5, "last_index": 9}
    return {"type": "hello", **said, "repairing": repairing}


def entries(*, term: int = 5, previous: int = 9, commit: int = 9) -> Message:
    told = {"term": term, "prevLogIdx": previous, "commit_index": commit}
    return {"type": "append_entries", **told}


def pass_time(around: Around, promises: PersistedVotes, seconds: float) -> None:
    for _ in range(round(seconds * 4)):
        around.now += 0.25
        promises.synced()


# --- what is remembered ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "term", "index"),
    [
        ({"type": "next_node_idx", "term": 6, "next_node_idx": 8, "success": True}, 6, 7),
        ({"type": "next_node_idx", "term": 6, "next_node_idx": 8, "success": False}, 6, 0),
        (entries(term=6, previous=4, commit=7), 6, 7),
        (entries(term=6, previous=7, commit=4), 6, 7),
        ({"type": "commit", "term": 6, "commit_index": 7}, 6, 7),
        ({"type": "request_vote", "term": 6}, 6, 0),
        ({"type": "response_vote", "term": 6}, 6, 0),
        ({"type": "heartbeat", "term": 6}, 6, 0),
        ({"type": "pulled", "term": 6, "commit_index": 7}, 6, 0),
        ({"type": "snapshot", "term": 6, "index": 7}, 6, 0),
        ({"type": "request_prevote", "term": 6}, 0, 0),
        ({"type": "response_prevote", "term": 6, "current_term": 5}, 0, 0),
        ({"type": "snapshot_ack", "term": 6, "index": 7}, 0, 0),
        ({"type": "timeout_now", "term": 6}, 0, 0),
        ({"type": "pull", "next_index": 7}, 0, 0),
    ],
)
def test_each_message_promises_as_much_as_its_kind_says(
    message: Message, term: int, index: int
) -> None:
    around = Around()
    promises_of(around).took(B, message)
    assert around.memory.of(B) == Remembered(term=term, index=index)


@pytest.mark.parametrize("kind", ["request_vote", "request_prevote", "timeout_now", "heartbeat"])
@pytest.mark.parametrize("repairing", [False, True])
def test_a_server_in_repair_takes_no_part_in_elections(kind: str, repairing: bool) -> None:
    around = Around()
    if repairing:
        around.superblock.lose(Floor(5, 9))
    promises = promises_of(around)
    assert promises.admits(B, {"type": kind}) == (not repairing or kind == "heartbeat")
    assert around.abstains == repairing
    assert set(promises.unfit()) == ({ME} if repairing else set())


def test_a_server_that_was_left_behind_is_refused_and_nothing_of_it_is_remembered() -> None:
    around = Around()
    around.memory.fence([B], "the pool was recovered without it")
    promises = promises_of(around)
    assert not promises.admits(B, {"type": "heartbeat"})
    promises.on_hello(B, hello(4, repairing=True))
    assert around.sent == [
        (B, {"type": "refused", "boot": 4, "reason": "the pool was recovered without it"})
    ]
    assert promises.refused == {B: "the pool was recovered without it; on it: gpupool rejoin"}
    assert set(promises.unfit()) == {B}
    assert around.memory.of(B) == Remembered()


@pytest.mark.parametrize("boot", [2, 4])
def test_a_refusal_of_another_start_is_not_meant(boot: int) -> None:
    around = Around()
    promises_of(around).on_refused(B, {"type": "refused", "boot": boot, "reason": "an old copy"})
    assert around.did == []


def test_a_refusal_of_this_start_ends_it() -> None:
    around = Around()
    with pytest.raises(StorageError, match="may not take part") as raised:
        promises_of(around).on_refused(B, {"type": "refused", "boot": 3, "reason": "x" * 999})
    assert raised.value.why == f"server b says: {'x' * 500}"
    assert around.did == [raised.value.why]


@pytest.mark.parametrize(("state", "forgets"), [(LEADER, [B]), (FOLLOWER, [])])
def test_a_server_in_repair_is_told_what_it_promised(state: int, forgets: list[object]) -> None:
    around = Around(state=state)
    promises = promises_of(around)
    promises.took(B, {"type": "commit", "term": 5, "commit_index": 8})
    promises.on_hello(B, hello(repairing=True))
    assert around.sent == [(B, {"type": "promised", "term": 5, "index": 8})]
    assert around.did == forgets
    assert set(promises.unfit()) == {B}
    promises.on_hello(B, {**hello(), "last_index": 8})
    assert not promises.unfit()


def test_a_refusal_ends_when_the_right_start_is_heard(caplog: pytest.LogCaptureFixture) -> None:
    around = Around()
    promises = promises_of(around)
    promises.on_hello(B, hello(5))
    for _ in range(2):
        promises.on_hello(B, hello(4))
    assert set(promises.refused) == {B}
    assert not promises.admits(B, {"type": "heartbeat"})
    assert [message["boot"] for _, message in around.sent] == [4, 4]
    assert caplog.text.count("server b is refused") == 1
    promises.on_hello(B, hello(5))
    assert promises.refused == {}
    assert promises.admits(B, {"type": "heartbeat"})


def test_a_new_connection_is_greeted_with_what_this_server_has() -> None:
    around = Around()
    promises_of(around).connected(B)
    has = {"boot": 3, "incarnation": 33, "term": 5, "last_index": 9, "repairing": False}
    assert around.sent == [(B, {"type": "hello", **has})]


@pytest.mark.parametrize(("pause_s", "waits"), [(0.0, True), (0.25, False)])
def test_a_start_that_takes_the_place_of_a_living_connection_is_on_probation(
    pause_s: float, waits: bool
) -> None:
    around = Around()
    promises = promises_of(around)
    promises.on_hello(B, hello(4))
    promises.disconnected(B)
    around.now += pause_s
    promises.connected(B)
    promises.on_hello(B, hello(5))
    believed = [promises.admits(B, {"type": "heartbeat"})]
    for seconds in (2.25, 0.25):
        pass_time(around, promises, seconds)
        believed.append(promises.admits(B, {"type": "heartbeat"}))
    assert believed == [not waits, not waits, True]
    assert promises.anew == ({B} if waits else set())
    assert around.memory.of(B).start.boot == 5
    promises.disconnected(B)
    assert not promises.anew


# --- when it is written ----------------------------------------------------------------------


def test_starts_are_written_at_once_and_promises_every_five_seconds() -> None:
    around = Around()
    promises = promises_of(around)
    promises.synced()
    promises.on_hello(B, hello())
    pass_time(around, promises, 0.25)
    assert around.memory.saves == 1
    for commit in range(1, 21):
        promises.took(B, {"type": "commit", "term": 5, "commit_index": commit})
        pass_time(around, promises, 0.25)
        assert around.memory.saves == 1 + commit // 20


def test_a_server_to_which_nothing_happens_writes_nothing() -> None:
    around = Around(terms={1: 0, 7: 4}, commit_index=7)
    promises = promises_of(around)
    promises.synced()
    assert (around.memory.committed, around.memory.saves) == ((4, 7), 1)
    pass_time(around, promises, 20)
    assert around.memory.saves == 1


@pytest.mark.parametrize(
    ("noted", "terms", "commit", "then"),
    [
        ((0, 0), {1: 0}, 1, (0, 0)),
        ((0, 0), {2: 1}, 2, (1, 2)),
        ((9, 2), {3: 9}, 3, (9, 3)),
        ((4, 7), {6: 5}, 6, (4, 7)),
        ((4, 7), {7: 5}, 7, (4, 7)),
        ((4, 7), {8: 5}, 8, (5, 8)),
        ((4, 7), {}, 8, (4, 7)),
    ],
)
def test_the_last_entry_that_was_committed_is_noted(
    noted: tuple[int, int], terms: dict[int, int], commit: int, then: tuple[int, int]
) -> None:
    around = Around(terms=terms, commit_index=commit)
    around.memory.committed = noted
    promises_of(around).synced()
    assert around.memory.committed == then
    assert around.memory.saves == (noted != then)


def test_a_server_left_behind_is_dialled_for_two_seconds_after_it_was_told() -> None:
    around = Around()
    around.memory.fence([B, C], "the pool was recovered without it")
    around.memory.save()
    promises = promises_of(around)
    promises.on_hello(B, hello())
    for now, left in ((100.5, [B, C]), (102.0, [B, C]), (102.25, [C]), (110.0, [C])):
        around.now = now
        promises.synced()
        assert promises.to_tell() == left
    assert around.memory.saves == 2
    promises.on_hello(B, hello())
    assert around.sent[-1][1]["type"] == "refused", "it is told again"
    around.now = 120.0
    promises.synced()
    assert around.memory.saves == 2, "and that is nothing new"


# --- entries that are missing ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("terms", "base", "alarm"),
    [
        ({7: 4}, 1, False),
        ({7: 5}, 1, True),
        ({}, 1, True),
        ({}, 6, True),
        ({}, 7, False),
        ({}, 8, False),
    ],
)
@pytest.mark.parametrize("repairing", [False, True])
def test_a_committed_entry_that_gave_way_raises_the_alarm(
    terms: dict[int, int],
    base: int,
    alarm: bool,
    repairing: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In repair an entry may be missing, and it comes back."""
    around = Around(terms=terms, base_index=base)
    around.memory.committed = (4, 7)
    if repairing:
        around.superblock.lose(Floor(9, 9))
    promises = promises_of(around)
    assert not promises.alarm()
    for _ in range(2):
        promises.took(B, entries())
    raised = alarm and not repairing
    assert promises.alarm().startswith("entry 7 of term 4 was committed and is lost") == raised
    assert caplog.text.count("is lost") == raised


@pytest.mark.parametrize(("commit", "watched"), [(6, True), (7, False), (8, False)])
def test_an_entry_is_watched_until_it_is_committed_here_again(commit: int, watched: bool) -> None:
    around = Around(terms={7: 4}, commit_index=commit)
    around.memory.committed = (4, 7)
    promises = promises_of(around)
    promises.took(B, entries())
    around.terms = {7: 5}
    promises.took(B, entries())
    assert bool(promises.alarm()) == watched
    around.terms = {7: 4}
    promises.took(B, entries())
    assert bool(promises.alarm()) == watched, "it does not go away"


@pytest.mark.parametrize(
    ("floor", "message", "terms", "matched", "repaired"),
    [
        (Floor(5, 9), entries(), {9: 5}, 9, True),
        (Floor(4, 9), entries(), {9: 5}, 10, True),
        (Floor(6, 9), entries(), {9: 5}, 9, False),
        (Floor(5, 9), entries(term=4), {9: 4}, 9, False),
        (Floor(5, 9), entries(), {9: 4}, 9, False),
        (Floor(5, 9), entries(), {9: 5}, 8, False),
        (Floor(5, 9), entries(commit=8), {8: 5}, 8, True),
    ],
)
def test_a_repair_ends_with_an_entry_of_the_leaders_own_term(
    floor: Floor, message: Message, terms: dict[int, int], matched: int, repaired: bool
) -> None:
    around = Around(terms=terms, matched_index=matched)
    around.superblock.lose(floor)
    promises = promises_of(around)
    promises.took(B, message)
    assert promises.repairing, "nothing ends before the sync"
    promises.synced()
    assert promises.repairing == around.abstains == (not repaired)
    said = [(peer, told["type"], told["repairing"]) for peer, told in around.sent]
    assert said == ([(B, "hello", False), (C, "hello", False)] if repaired else [])
    promises.synced()
    assert len(around.sent) == len(said)


@pytest.mark.parametrize("repairing", [False, True])
def test_a_server_in_repair_learns_what_it_promised(repairing: bool) -> None:
    around = Around()
    if repairing:
        around.superblock.lose(Floor(5, 9))
    promises_of(around).on_promised(B, {"type": "promised", "term": 7, "index": 12})
    assert around.superblock.floor == (Floor(7, 12) if repairing else None)
    assert around.did == ([7] if repairing else [])
