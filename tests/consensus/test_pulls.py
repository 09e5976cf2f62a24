"""Pulls and their answers, with a core and connections that are played by the test."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from gpupool.consensus.core.raft_log import Stored
from gpupool.consensus.followers import (
    OUTSTANDING_MAX,
    UNANSWERED_MAX,
    Puller,
    PullResponder,
    source_weight,
)
from gpupool.consensus.protocol.raft_messages import Message
from gpupool.consensus.protocol.raft_settings import WAITING_PULLS_MAX, ConsensusSettings
from gpupool.consensus.storage.journal import encode_entries
from gpupool.pool.model.ids import ServerId

ME = ServerId("me")
ORDER = sorted((ServerId(name) for name in "bcd"), key=lambda peer: source_weight(ME, peer))
FIRST, SECOND, THIRD = ORDER
SETTINGS = ConsensusSettings(
    pull_wait_s=0.5, pull_timeout_s=1.5, lost_s=5.0, alive_s=1.0, learner_lag_max=100
)


@dataclass
class Around:
    """The node, its core, its log and its connections, as far as pulls need them."""

    voters: tuple[ServerId, ...] = (FIRST, SECOND)
    servers: tuple[ServerId, ...] = ()
    peers: set[ServerId] = field(default_factory=lambda: set(ORDER))
    votes: bool = False
    abstains: bool = False
    leader_heard_at: float = 100.0
    server_id: ServerId = ME
    now: float = 100.0
    term: int = 5
    leader: ServerId | None = None
    commit_index: int = 9
    applied_index: int = 9
    base_index: int = 1
    fits: bool = True
    settings: ConsensusSettings = SETTINGS
    held_up_s: list[float] = field(default_factory=list[float])
    sent: list[tuple[ServerId, Message]] = field(default_factory=list[tuple[ServerId, Message]])

    @property
    def core(self) -> "Around":
        return self

    storage = journal = core

    @property
    def frames(self) -> "Around":
        return self

    def connected(self) -> set[ServerId]:
        return set(self.peers)

    def __bool__(self) -> bool:
        return bool(self.peers)

    def send(self, peer: ServerId, message: Message, *, leading: bool = False) -> None:
        assert not leading
        self.sent.append((peer, message))

    def observe_leader(self, _leader: object, _message: Message, held_up_s: float) -> None:
        self.held_up_s.append(held_up_s)

    def store(self, previous: int, _term: int, entries: list[object]) -> Stored:
        return Stored(previous + len(entries) if self.fits else None)

    def commit_to(self, index: int) -> None:
        self.commit_index = max(self.commit_index, index)

    def encoded_entries(self, _first: int, _last: int, _bytes_max: int) -> tuple[int, bytes]:
        return 0, b""

    def term_at(self, _index: int) -> int:
        return 5

    def clock_ms(self) -> int:
        return -7

    def majority_age_ms(self) -> int:
        return 40

    def taken(self, kind: str) -> list[ServerId]:
        """Return who was sent messages of one kind since the last time."""
        found = [peer for peer, message in self.sent if message["type"] == kind]
        self.sent.clear()
        return found


def puller_of(around: Around) -> Puller:
    node: Any = around
    return Puller(node)


def responder_of(around: Around, snapshots: Any = None) -> PullResponder:
    node: Any = around
    return PullResponder(node, snapshots or node)


def answer(*, count: int = 0, age_ms: int = 0, previous: int = 9, commit: int = 99) -> Message:
    entries = [(b"\x00x", previous + 1 + each, 5) for each in range(count)]
    return {
        "type": "pulled",
        "term": 5,
        "commit_index": commit,
        "prevLogIdx": previous,
        "prevLogTerm": 5,
        "entries": encode_entries(entries),
        "leader": None,
        "clock_ms": 0,
        "majority_age_ms": age_ms,
    }


# --- the end that pulls ----------------------------------------------------------------------


def test_sources_are_the_voters_and_only_when_these_are_silent_all_servers() -> None:
    around = Around(servers=(THIRD,))
    puller = puller_of(around)
    asked: list[ServerId] = []
    for _ in range(40):
        puller.step()
        asked += around.taken("pull")
        if around.now <= 105.0:
            assert THIRD not in asked
            assert not puller.is_lost
        around.now += 0.25
    assert puller.is_lost
    assert THIRD in asked


def test_a_server_whose_source_answers_is_not_lost() -> None:
    around = Around()
    puller = puller_of(around)
    puller.step()
    around.taken("pull")
    for _ in range(20):
        around.now += 0.5
        puller.on_pulled(FIRST, answer())
        assert not puller.is_lost
        assert around.taken("pull") == [FIRST]


@pytest.mark.parametrize(("age_ms", "asked"), [(0, FIRST), (4999, FIRST), (5000, SECOND)])
def test_a_source_that_is_out_of_touch_for_as_long_as_one_is_lost_is_left(
    age_ms: int, asked: ServerId
) -> None:
    around = Around()
    puller = puller_of(around)
    puller.step()
    around.taken("pull")
    puller.on_pulled(FIRST, answer(age_ms=age_ms))
    assert around.taken("pull") == [asked]


def test_a_source_that_has_new_entries_helps_however_long_it_is_out_of_touch() -> None:
    around = Around()
    puller = puller_of(around)
    puller.step()
    around.taken("pull")
    puller.on_pulled(FIRST, answer(count=2, age_ms=60_000))
    assert around.commit_index == 11
    assert around.sent == [(FIRST, {"type": "pull", "next_index": 12})]


def test_no_more_is_committed_than_the_source_has_committed() -> None:
    around = Around()
    puller = puller_of(around)
    puller.step()
    puller.on_pulled(FIRST, answer(count=5, commit=11))
    assert around.commit_index == 11


def test_after_entries_that_do_not_fit_the_next_source_is_asked_a_little_later() -> None:
    around = Around(fits=False)
    puller = puller_of(around)
    puller.step()
    around.taken("pull")
    puller.on_pulled(FIRST, answer(count=2))
    assert puller.due_at() == 100.5
    around.now = 100.4
    puller.step()
    assert not around.taken("pull")
    around.now = 100.5
    puller.step()
    assert around.taken("pull") == [SECOND]


def test_answers_of_servers_that_were_not_asked_say_nothing() -> None:
    around = Around()
    puller = puller_of(around)
    puller.step()
    around.taken("pull")
    puller.on_pulled(SECOND, answer(count=2))
    assert (around.commit_index, around.sent, around.held_up_s) == (9, [], [])


@pytest.mark.parametrize(("after_s", "held_up_s"), [(0.25, 0.0), (0.5, 0.0), (1.25, 0.75)])
def test_an_answer_that_comes_late_was_held_up(after_s: float, held_up_s: float) -> None:
    around = Around()
    puller = puller_of(around)
    puller.step()
    around.now += after_s
    puller.on_pulled(FIRST, answer())
    assert around.held_up_s == [held_up_s]


def test_an_answer_that_nobody_asked_for_may_be_of_any_age() -> None:
    around = Around()
    puller = puller_of(around)
    assert puller.answered(FIRST) == float("-inf")
    puller.pull(FIRST)
    around.now += 1
    puller.pull(FIRST)
    assert [puller.answered(FIRST) for _ in range(3)] == [100.0, 101.0, float("-inf")]


@pytest.mark.parametrize(
    ("pulls", "anew"), [(UNANSWERED_MAX, False), (UNANSWERED_MAX + 1, False), (4, True)]
)
def test_a_connection_with_too_many_pulls_without_an_answer_is_made_anew(
    pulls: int, anew: bool
) -> None:
    puller = puller_of(Around())
    for _ in range(pulls):
        puller.pull(FIRST)
    puller.answered(FIRST)
    assert puller.anew == ({FIRST} if anew else set())
    puller.disconnected(FIRST)
    assert not puller.anew
    assert puller.answered(FIRST) == float("-inf")


def test_a_connection_that_answers_nothing_at_all_is_made_anew() -> None:
    puller = puller_of(Around())
    for _ in range(OUTSTANDING_MAX):
        puller.pull(FIRST)
    assert not puller.anew
    puller.pull(FIRST)
    assert puller.anew == {FIRST}


def test_a_piece_of_a_snapshot_gives_the_source_time_and_is_a_sign_of_life() -> None:
    around = Around()
    puller = puller_of(around)
    puller.step()
    for _ in range(20):
        around.now += 1.0
        puller.snapshot_piece_arrived()
        puller.step()
        assert not puller.is_lost
    assert around.taken("pull") == [FIRST], "nobody else"
    around.now += 1.5
    puller.step()
    assert around.taken("pull") == [SECOND]


def test_a_voter_that_is_told_that_it_lost_its_vote_pulls_once_for_each_wait() -> None:
    around = Around(votes=True)
    puller = puller_of(around)
    puller.pull(SECOND)  # it had no vote until just now
    puller.configuration_changed()
    around.taken("pull")
    asked: list[tuple[float, ServerId]] = []
    for tick in range(9):
        around.now = 100.0 + tick / 4
        puller.excluded(FIRST)
        asked += [(around.now, peer) for peer in around.taken("pull")]
    assert asked == [(100.0, FIRST), (101.5, FIRST)]


def test_a_voter_that_is_contradicted_does_not_pull_any_more() -> None:
    around = Around(votes=True)
    puller = puller_of(around)
    puller.excluded(FIRST)
    assert puller.takes_from(FIRST)
    assert not puller.takes_from(SECOND)
    puller.on_pulled(FIRST, answer())
    assert not puller.takes_from(FIRST)
    assert around.taken("pull") == [FIRST]


@pytest.mark.parametrize(
    ("votes", "abstains", "peers", "due_at"),
    [
        (False, False, {FIRST}, 100.0),
        (False, False, set[ServerId](), float("inf")),
        (True, False, {FIRST}, float("inf")),
        (True, True, {FIRST}, 101.5),
    ],
)
def test_only_a_connected_server_that_needs_it_pulls(
    votes: bool, abstains: bool, peers: set[ServerId], due_at: float
) -> None:
    around = Around(votes=votes, abstains=abstains, peers=peers)
    puller = puller_of(around)
    assert puller.due_at() == due_at
    puller.step()
    assert bool(around.taken("pull")) == (due_at == 100.0)
    around.now = 101.5
    puller.step()
    assert bool(around.taken("pull")) == (due_at <= 101.5)


def test_a_server_that_follows_says_every_second_how_far_it_is() -> None:
    around = Around()
    puller = puller_of(around)
    said: list[tuple[float, ServerId]] = []
    for tick in range(9):
        around.now = 100.0 + tick / 4
        puller.step()
        said += [(around.now, peer) for peer in around.taken("alive")]
    assert said == [(now, peer) for now in (100.0, 101.0, 102.0) for peer in (FIRST, SECOND)]


# --- the end that answers --------------------------------------------------------------------


@pytest.mark.parametrize(("lag", "near"), [(0, True), (100, True), (101, False)])
@pytest.mark.parametrize("by", ["alive", "pull"])
def test_a_follower_has_caught_up_when_it_lacks_a_few_entries(
    lag: int, near: bool, by: str
) -> None:
    around = Around(commit_index=1000)
    responder = responder_of(around)
    if by == "alive":
        responder.on_alive(FIRST, {"applied_index": 1000 - lag})
    else:
        responder.on_pull(FIRST, {"next_index": 1001 - lag})
    assert responder.caught_up() == ({FIRST} if near else set())
    around.peers.remove(FIRST)
    assert responder.caught_up() == set()
    around.peers.add(FIRST)
    responder.forget(FIRST)
    assert responder.caught_up() == set()


def test_no_more_pulls_wait_than_may_and_those_that_wait_are_renewed() -> None:
    around = Around()
    responder = responder_of(around)
    names = [ServerId(f"s{number:04}") for number in range(WAITING_PULLS_MAX + 1)]
    for name in names:
        responder.on_pull(name, {"next_index": 10})
    assert not around.sent
    responder.on_pull(names[0], {"next_index": 10})
    assert around.taken("pulled") == [names[0]], "the one that waited"
    around.now += 0.5
    responder.answer()
    assert around.taken("pulled") == names[:-1]


@pytest.mark.parametrize(("next_index", "at_once"), [(9, True), (10, False), (11, False)])
def test_a_pull_waits_when_nothing_is_new(next_index: int, at_once: bool) -> None:
    around = Around()
    responder = responder_of(around)
    assert responder.due_at() == float("inf")
    responder.on_pull(FIRST, {"next_index": next_index})
    assert responder.due_at() == 100.5
    responder.answer()
    assert around.taken("pulled") == ([FIRST] if at_once else [])
    around.now = 100.4
    responder.answer()
    assert not around.sent
    around.now = 100.5
    responder.answer()
    assert around.taken("pulled") == ([] if at_once else [FIRST])


def test_a_pull_by_a_connection_that_is_gone_is_not_answered() -> None:
    around = Around()
    responder = responder_of(around)
    responder.on_pull(FIRST, {"next_index": 10})
    responder.disconnected(FIRST)
    around.now = 200.0
    responder.answer()
    assert not around.sent


class Snapshots:
    """Notes who gets one."""

    def __init__(self) -> None:
        self.to: list[ServerId] = []

    def send(self, peer: ServerId, *, leading: bool) -> None:
        assert not leading
        self.to.append(peer)


@pytest.mark.parametrize(
    ("next_index", "previous"), [(-5, None), (0, None), (5, None), (6, 5), (9, 8), (10, 9), (99, 9)]
)
def test_a_follower_whose_next_entry_is_gone_gets_a_snapshot(
    next_index: int, previous: int | None
) -> None:
    around, snapshots = Around(base_index=5), Snapshots()
    responder = responder_of(around, snapshots)
    responder.on_pull(FIRST, {"next_index": next_index})
    around.now += 1
    responder.answer()
    if previous is None:
        assert (snapshots.to, around.sent) == ([FIRST], [])
    else:
        [(peer, message)] = around.sent
        assert (snapshots.to, peer, message["prevLogIdx"]) == ([], FIRST, previous)
        assert (message["commit_index"], message["clock_ms"]) == (9, 0)
