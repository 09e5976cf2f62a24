"""A leader that hands over its leadership, with a core played by the test."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from gpupool.consensus.core.library import FOLLOWER, LEADER
from gpupool.consensus.protocol.raft_settings import ConsensusSettings
from gpupool.consensus.voter_changes import VoterChanges
from gpupool.pool.model.ids import ServerId
from gpupool.pool.ports import Committed, NotCommitted, Outcome

ME, B, C, D = (ServerId(name) for name in ("me", "b", "c", "d"))
SETTINGS = ConsensusSettings(election_max_s=0.5, hand_over_retry_s=1.0, stopgap_retry_s=64.0)


class Frames(frozenset[ServerId]):
    """Connections, and the messages that were sent over them."""

    def __init__(self, _servers: Iterable[ServerId]) -> None:
        self.sent: list[tuple[ServerId, dict[str, Any]]] = []

    def connected(self) -> set[ServerId]:
        return set(self)

    def send(self, peer: ServerId, message: dict[str, Any]) -> None:
        if peer in self:
            self.sent.append((peer, message))


@dataclass
class Around:
    """The node, its core, its followers and its connections, as far as voters need them."""

    voters: tuple[ServerId, ...] = (B, C, ME)
    connected: Frames = field(default_factory=lambda: Frames((B, C)))
    servers: tuple[ServerId, ...] = ()
    leader: ServerId | None = None
    followed_by: frozenset[ServerId] = frozenset((ME, B, C))
    matches: dict[ServerId, int] = field(default_factory=dict[ServerId, int])
    server_id: ServerId = ME
    state: int = LEADER
    settled: bool = True
    applied_index: int = 9
    commit_index: int = 9
    now: float = 100.0
    settings: ConsensusSettings = SETTINGS
    able: bool = True
    outcome: Outcome = NotCommitted("too early")
    asked: list[ServerId] = field(default_factory=list[ServerId])
    steps: list[tuple[ServerId, ...]] = field(default_factory=list[tuple[ServerId, ...]])

    @property
    def core(self) -> "Around":
        return self

    @property
    def frames(self) -> Frames:
        return self.connected

    def caught_up(self) -> set[ServerId]:
        return set()

    def is_followed_by(self, voter: ServerId) -> bool:
        return voter in self.followed_by

    def match_index(self, peer: ServerId) -> int:
        return self.matches.get(peer, 0)

    def hand_over(self, peer: ServerId) -> bool:
        self.asked.append(peer)
        return self.able

    def set_voters(self, voters: Sequence[ServerId], callback: Callable[[Outcome], None]) -> None:
        self.steps.append(tuple(voters))
        callback(self.outcome)


def changes_of(around: Around) -> VoterChanges:
    node: Any = around
    return VoterChanges(node, node, dict[ServerId, str])


@pytest.mark.parametrize(
    ("matches", "successor"), [({B: 7, C: 6}, B), ({B: 6, C: 7}, C), ({B: 7, C: 7}, C)]
)
def test_the_voter_with_the_longest_log_succeeds(
    matches: dict[ServerId, int], successor: ServerId
) -> None:
    around = Around(matches=matches)
    changes = changes_of(around)
    assert changes.begin_hand_over(around.voters)
    changes.step()
    changes.step()
    assert around.asked == [successor]


def test_a_successor_without_the_whole_log_is_asked_again() -> None:
    around = Around(able=False)
    changes = changes_of(around)
    changes.begin_hand_over([B])
    changes.step()
    changes.step()
    assert around.asked == [B, B]


@pytest.mark.parametrize(
    "around",
    [
        Around(state=FOLLOWER),
        Around(connected=Frames(())),
        Around(connected=Frames((ME,))),
        Around(connected=Frames((D,))),
    ],
)
def test_nobody_succeeds_a_server_that_does_not_lead_or_is_alone(around: Around) -> None:
    changes = changes_of(around)
    assert not changes.begin_hand_over(around.voters)
    assert not changes.is_handing_over
    assert changes.due_at() == float("inf")


def test_a_successor_that_does_not_lead_is_given_up_and_the_next_attempt_waits() -> None:
    around = Around()
    changes = changes_of(around)
    changes.begin_hand_over([B])
    assert changes.due_at() == 100.5
    around.now = 100.4
    changes.step()
    assert changes.is_handing_over
    around.now = 100.5
    changes.step()
    assert not changes.is_handing_over
    around.now = 101.4
    assert not changes.begin_hand_over([B])
    around.now = 101.5
    assert changes.begin_hand_over([B])


def test_a_leader_that_is_not_desired_hands_over_to_a_desired_voter_only() -> None:
    """No vote can be taken or given: D has not caught up, and C is needed meanwhile."""
    around = Around(matches={B: 5, C: 9}, followed_by=frozenset((ME, C)))
    changes = changes_of(around)
    changes.desire([B, D])
    changes.step()
    assert (around.steps, around.asked) == ([], [B])


@pytest.mark.parametrize(("applied", "settled"), [(8, True), (9, False)])
def test_a_leader_that_is_behind_changes_nothing(applied: int, settled: bool) -> None:
    around = Around(applied_index=applied, settled=settled)
    changes = changes_of(around)
    changes.desire([B, C])
    changes.step()
    assert not changes.is_handing_over
    around.applied_index, around.settled = 9, True
    changes.step()
    assert changes.is_handing_over


def test_a_stopgap_waits_long_after_an_attempt_that_failed() -> None:
    around = Around()
    changes = changes_of(around)
    changes.desire([ME, B, C], [ME])
    began: list[float] = []
    for quarter in range(4 * 140):
        around.now = 100.0 + quarter / 4
        was = changes.is_handing_over
        changes.step()
        if changes.is_handing_over and not was:
            began.append(around.now)
    assert began == [100.0, 164.0, 228.0]


def test_a_stopgap_that_leads_again_tries_at_once() -> None:
    around = Around()
    changes = changes_of(around)
    changes.desire([ME, B, C], [ME])
    changes.step()
    around.state = FOLLOWER
    changes.step()
    assert not changes.is_handing_over
    around.state, around.now = LEADER, 102.0
    changes.step()
    assert changes.is_handing_over


def test_a_hand_over_under_way_goes_on_with_the_same_successor() -> None:
    around = Around(able=False)
    changes = changes_of(around)
    assert changes.begin_hand_over([B])
    around.now = 100.25
    assert changes.begin_hand_over([C])
    changes.step()
    assert (around.asked, changes.due_at()) == ([B], 100.5)


@pytest.mark.parametrize(
    ("unfit", "steps"), [({}, [(B, ME)]), ({B: "it was restored from an old copy"}, [])]
)
def test_no_voter_leaves_when_one_that_stays_is_unfit(
    unfit: dict[ServerId, str], steps: list[tuple[ServerId, ...]]
) -> None:
    around = Around()
    node: Any = around
    changes = VoterChanges(node, node, lambda: unfit)
    changes.desire([ME, B, B])
    changes.step()
    assert around.steps == steps


def test_without_a_wish_the_voters_stay() -> None:
    around = Around()
    changes = changes_of(around)
    changes.desire([ME, B])
    changes.desire(None)
    changes.step()
    assert (around.steps, changes.is_handing_over) == ([], False)


def test_a_server_that_does_not_lead_changes_nothing() -> None:
    around = Around(state=FOLLOWER)
    changes = changes_of(around)
    changes.desire([ME, B])
    changes.step()
    assert around.steps == []


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (Committed(7, None), "the voters are b, me"),
        (NotCommitted("too early"), "the voters are b, me (not yet: too early)"),
    ],
)
def test_a_change_of_the_voters_is_said(
    outcome: Outcome, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    changes = changes_of(Around(outcome=outcome))
    changes.desire([ME, B])
    changes.step()
    assert caplog.messages == [said]


# --- reach ------------------------------------------------------------------------------------


def asked_for(around: Around, changes: VoterChanges, seconds: int, **counts: int) -> list[float]:
    """Let voters answer questions for a while; return when this server began to hand over."""
    began: list[float] = []
    for _ in range(seconds):
        around.now += 1.0
        was = changes.is_handing_over
        changes.step()
        if changes.is_handing_over and not was:
            began.append(around.now)
        for peer, message in around.connected.sent:
            if message["type"] == "reach" and peer in counts:
                changes.reach.on_reach(peer, {"type": "reach", "count": counts[peer]})
        around.connected.sent.clear()
    return began


def test_a_leader_that_is_cut_off_from_a_server_lets_a_voter_lead_that_reaches_it() -> None:
    around = Around(connected=Frames((B,)), servers=(B, C))
    changes = changes_of(around)
    assert asked_for(around, changes, 8, b=2) == []
    assert asked_for(around, changes, 72, b=2) == [109.0, 173.0], "not again at once"
    assert around.asked[0] == B


@pytest.mark.parametrize("count", [0, 1], ids=["fewer", "as many"])
def test_a_leader_stays_where_nobody_reaches_more(count: int) -> None:
    """So that the leadership does not go in a circle."""
    around = Around(connected=Frames((B,)), servers=(B, C))
    assert asked_for(around, changes_of(around), 60, b=count) == []


def test_nobody_is_asked_while_all_are_reached() -> None:
    around = Around(servers=(B, C))
    changes = changes_of(around)
    for _ in range(9):
        around.now += 1.0
        changes.step()
    assert around.connected.sent == []


def test_a_voter_answers_its_leader_alone() -> None:
    around = Around(state=FOLLOWER, leader=B, servers=(B, C))
    reach = changes_of(around).reach
    for peer in (B, C):
        reach.on_reach(peer, {"type": "reach", "count": 1})
    assert around.connected.sent == [(B, {"type": "reach", "count": 2})]


def test_a_stopgap_leads_on_while_no_other_voter_reaches_as_many() -> None:
    around = Around(state=FOLLOWER, leader=B, servers=(B, C))
    changes = changes_of(around)
    changes.desire([ME, B, C], [ME])
    for peer in (B, C):
        changes.reach.on_reach(peer, {"type": "reach", "count": 1})
    around.state = LEADER
    assert asked_for(around, changes, 200, b=1, c=1) == []
    assert asked_for(around, changes, 10, b=2, c=1) != []
    assert around.asked[0] == B
