"""Elections message by message: prevotes, grants, votes and waits."""

import logging
from typing import Any

import pytest
from core_alone import SETTINGS, Alone, commands, of_kind

from gpupool.consensus.core.library import CANDIDATE, FOLLOWER, LEADER, NEVER
from gpupool.consensus.core.raft_core import VOTE_LOST
from gpupool.consensus.protocol.raft_settings import ConsensusSettings
from gpupool.pool.model.ids import ServerId

HEARTBEAT_S = SETTINGS.heartbeat_s
MIN_S = SETTINGS.election_min_s


def late_s(alone: Alone) -> float:
    """Return the lateness that the server allows for."""
    core: Any = alone.core
    return core._lateness.recent_s(alone.now)


def follower(term: int = 5, voters: tuple[str, ...] = ("me", "b", "c")) -> Alone:
    """Return a follower of "b" that heard of it just now."""
    alone = Alone(voters, entries=commands([1, 1]), term=term)
    alone.follow(term=term)
    return alone


# --- when a server asks ----------------------------------------------------------------------


@pytest.mark.parametrize(("after_s", "asks"), [(-0.001, False), (0.0, False), (0.001, True)])
def test_a_follower_asks_around_after_its_timeout(after_s: float, asks: bool) -> None:
    alone = follower()
    due = alone.core.next_step_at()
    assert due == pytest.approx(alone.now + 0.3), "half-way between the least and the most"
    alone.now = due + after_s
    sent = of_kind(alone.tick(), "request_prevote")
    expected = {"type": "request_prevote", "term": 6, "last_log_index": 3, "last_log_term": 1}
    assert sent == ([("b", expected), ("c", expected)] if asks else [])
    assert (alone.core.leader is None) is asks


@pytest.mark.parametrize("drawn", [0.0, 0.25, 0.75])
def test_a_server_that_is_late_waits_for_one_to_two_heartbeats_and_once(drawn: float) -> None:
    alone = follower()
    alone.chance.drawn = drawn
    assert alone.tick(0.55) == []
    assert alone.core.next_step_at() == pytest.approx(alone.now + HEARTBEAT_S * (1 + drawn))
    assert late_s(alone) == pytest.approx(0.25)
    assert of_kind(alone.tick(0.55), "request_prevote"), "not a second time"


@pytest.mark.parametrize(("late", "waits"), [(0.029, False), (0.031, True)])
def test_a_server_is_late_from_half_a_heartbeat_on(late: float, waits: bool) -> None:
    alone = follower()
    alone.now = alone.core.next_step_at() + late
    assert (of_kind(alone.tick(), "request_prevote") == []) is waits


def test_a_heartbeat_lets_a_late_server_wait_again() -> None:
    alone = follower()
    for _ in range(3):
        assert alone.tick(0.55) == []
        alone.follow()


def test_a_server_that_asks_in_vain_does_so_every_second_or_two() -> None:
    alone = follower()
    alone.chance.drawn = 0.0
    times: list[float] = []
    while len(times) < 60:
        if of_kind(alone.ask_around(), "request_prevote"):
            times.append(alone.now)
    assert times[16] - times[0] < 5
    assert times[-1] - times[18] == pytest.approx(41 * 16 * HEARTBEAT_S, rel=0.1)
    alone.connect("b")
    assert alone.core.next_step_at() - alone.now < 1
    before = alone.now
    for _ in range(2):
        alone.ask_around()
    assert alone.now - before < 1 + MIN_S, "somebody who may know a leader"


def test_a_server_without_an_answer_asks_ever_more_seldom_down_to_every_16_heartbeats() -> None:
    settings = ConsensusSettings(heartbeat_s=0.01, election_min_s=0.3, election_max_s=0.6)
    alone = Alone(settings=settings)
    alone.chance.drawn = 0.0
    alone.follow()
    asked = 0
    waits: list[float] = []
    while asked < 8:
        asked += bool(of_kind(alone.ask_around(), "request_prevote"))
        waits.append(round((alone.core.next_step_at() - alone.now) / 0.01))
    assert waits == [1, 2, 4, 8, 16, 16, 16, 16]
    alone.follow(term=6)
    alone.ask_around()
    assert round((alone.core.next_step_at() - alone.now) / 0.01) == 1, "a leader was heard of"


@pytest.mark.parametrize("drawn", [0.0, 0.5])
def test_when_the_leaders_connection_breaks_a_follower_asks_within_a_heartbeat(
    drawn: float,
) -> None:
    alone = follower()
    alone.chance.drawn = drawn
    before = alone.core.next_step_at()
    alone.disconnect("c")
    assert alone.core.next_step_at() == before
    assert alone.core.leader == "b"
    alone.disconnect("b")
    assert alone.core.leader is None
    assert alone.core.next_step_at() == NEVER, "nobody is there to be asked"
    alone.connect("c")
    assert alone.core.next_step_at() == alone.now + HEARTBEAT_S * drawn
    assert of_kind(alone.ask_around(), "request_prevote")


# --- who grants ------------------------------------------------------------------------------


def asks_me(alone: Alone, peer: str = "c", *, index: int = 3, term: int = 1, at: int = 6) -> bool:
    """Let a peer ask whether it may campaign; return the answer."""
    log = {"last_log_index": index, "last_log_term": term}
    ((to, answer),) = alone.take(peer, "request_prevote", term=at, **log)
    assert (to, answer["type"], answer["term"]) == (peer, "response_prevote", at)
    assert answer["current_term"] == alone.core.term
    assert answer["member"] is (peer in alone.core.voters)
    return answer["granted"]


@pytest.mark.parametrize(
    ("peer", "index", "term", "granted"),
    [
        ("c", 3, 1, True),
        ("c", 2, 1, False),
        ("c", 4, 1, True),
        ("c", 2, 2, True),
        ("c", 9, 0, False),
        ("x", 3, 1, False),
        ("x", 4, 1, True),
        ("x", 2, 2, True),
    ],
)
def test_who_has_at_least_the_same_log_may_campaign(
    peer: str, index: int, term: int, granted: bool
) -> None:
    """A stranger needs a newer one, which may have the entry that gave it its vote."""
    alone = Alone(entries=commands([1, 1]), term=5)
    assert asks_me(alone, peer, index=index, term=term) is granted


@pytest.mark.parametrize(("at", "granted"), [(4, False), (5, False), (6, True), (9, True)])
def test_only_a_newer_term_is_granted(at: int, granted: bool) -> None:
    alone = Alone(entries=commands([1, 1]), term=5)
    assert asks_me(alone, at=at) is granted
    assert alone.core.term == 5


@pytest.mark.parametrize(("silence_s", "granted"), [(0.0, False), (0.199, False), (0.201, True)])
def test_nobody_may_campaign_while_a_leader_is_heard_of(silence_s: float, granted: bool) -> None:
    alone = follower()
    alone.now += silence_s
    assert asks_me(alone) is granted


def test_a_leader_grants_nothing() -> None:
    alone = Alone(entries=commands([1, 1]))
    alone.win("b")
    alone.now += 0.5
    assert not asks_me(alone, index=99, term=99, at=99)


def test_a_grant_lets_the_other_one_try_first_and_a_refusal_does_not() -> None:
    alone = follower()
    due = alone.core.next_step_at()
    alone.now = due - 0.01
    assert not asks_me(alone, index=2)
    assert alone.core.next_step_at() == due
    assert asks_me(alone)
    assert alone.core.next_step_at() == alone.now + MIN_S / 2


def test_a_grant_brings_no_election_nearer() -> None:
    alone = Alone(entries=commands([1, 1]), term=5)
    alone.tick()
    due = alone.core.next_step_at()
    assert due > alone.now + MIN_S / 2
    assert asks_me(alone)
    assert alone.core.next_step_at() == due


# --- who campaigns ---------------------------------------------------------------------------


FIVE = ("me", "b", "c", "d", "e")


def test_a_majority_that_would_vote_lets_a_server_campaign() -> None:
    alone = Alone(FIVE, term=5)
    alone.ask_around()
    for voter in ("b", "b", "x"):
        alone.prevote(voter)
        assert of_kind(alone.tick(), "request_vote") == []
    alone.prevote("c")
    sent = of_kind(alone.tick(), "request_vote")
    assert sorted(peer for peer, _ in sent) == ["b", "c", "d", "e"]
    assert all(message["hand_over"] is False for _, message in sent)
    assert (alone.core.term, alone.core.state) == (6, CANDIDATE)


@pytest.mark.parametrize(
    "fields", [{"granted": False}, {"term": 5}, {"term": 7}, {"current_term": 6}]
)
def test_other_answers_let_nobody_campaign(fields: dict[str, Any]) -> None:
    alone = Alone(term=5)
    alone.ask_around()
    alone.prevote("b", **fields)
    assert of_kind(alone.tick(), "request_vote") == []
    assert alone.core.state == FOLLOWER


def test_a_leader_that_is_heard_of_meanwhile_ends_a_campaign_that_was_allowed() -> None:
    alone = Alone(FIVE, entries=commands([1, 1]), term=5)
    alone.ask_around()
    for voter in ("b", "c"):
        alone.prevote(voter)
    alone.follow("d", term=5)
    alone.prevote("e")
    assert alone.tick() == []
    assert (alone.core.term, alone.core.leader) == (5, "d")


@pytest.mark.parametrize(
    ("granted", "member", "told"),
    [(False, False, ["b"]), (False, True, []), (True, False, []), (True, True, [])],
)
def test_a_refusal_tells_a_server_that_it_is_no_voter_any_more(
    granted: bool, member: bool, told: list[str]
) -> None:
    alone = Alone(term=5)
    alone.ask_around()
    alone.prevote("b", granted=granted, member=member)
    assert alone.excluded_by == told


def test_an_answer_of_a_newer_term_makes_a_follower_that_was_not_late() -> None:
    alone = follower()
    assert alone.tick(0.55) == []
    assert late_s(alone) > 0.0
    alone.prevote("c", granted=False, current_term=7)
    assert (alone.core.term, alone.core.state, alone.core.leader) == (7, FOLLOWER, None)
    assert late_s(alone) == 0.0
    alone.prevote("c", granted=False, current_term=6)
    assert alone.core.term == 7


def test_a_campaign_leaves_the_last_word_of_a_leader_as_it_was(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    alone = follower()
    heard_at = alone.now
    assert alone.core.leader_heard_at == heard_at
    alone.campaign("c")
    assert alone.core.state == CANDIDATE
    assert alone.core.leader_heard_at == heard_at
    assert "no word of a leader for 0.30 s" in caplog.text
    assert "leads no more" not in caplog.text


# --- who votes -------------------------------------------------------------------------------


def votes_for(alone: Alone, peer: str, term: int, *, hand_over: bool = False) -> bool:
    log = {"last_log_index": 3, "last_log_term": 1}
    sent = alone.take(peer, "request_vote", term=term, hand_over=hand_over, **log)
    assert sent in ([], [(peer, {"type": "response_vote", "term": term})])
    return bool(sent)


def test_a_server_votes_once_in_a_term() -> None:
    alone = Alone(entries=commands([1, 1]), term=5)
    assert votes_for(alone, "b", 6)
    assert not votes_for(alone, "c", 6)
    assert (alone.journal.term, alone.journal.vote) == (6, "b")
    assert votes_for(alone, "c", 7)


@pytest.mark.parametrize("hand_over", [False, True])
def test_a_follower_votes_beside_its_leader_only_if_that_asks_for_it(hand_over: bool) -> None:
    alone = follower()
    assert votes_for(alone, "c", 6, hand_over=hand_over) is hand_over
    assert alone.core.term == (6 if hand_over else 5)
    assert alone.core.leader == (None if hand_over else "b")


@pytest.mark.parametrize(("up_to", "votes"), [(4, True), (5, False), (6, False)])
def test_a_server_that_may_have_voted_does_not_vote_again(up_to: int, votes: bool) -> None:
    alone = Alone(entries=commands([1, 1]), term=5)
    alone.do(lambda: alone.core.forget_votes_up_to(up_to))
    term = max(up_to, 5)
    assert alone.core.term == term
    assert alone.journal.vote == (None if votes else VOTE_LOST), "it is remembered by the disk"
    assert votes_for(alone, "b", term) is votes
    assert votes_for(alone, "b", term + 1)


def test_a_vote_that_is_known_is_not_forgotten() -> None:
    alone = Alone(entries=commands([1, 1]), term=5)
    assert votes_for(alone, "b", 6)
    alone.do(lambda: alone.core.forget_votes_up_to(6))
    assert alone.journal.vote == "b"


def test_each_voter_is_counted_once_and_nobody_else() -> None:
    alone = Alone(FIVE, entries=commands([1, 1]), term=5)
    alone.campaign("b", "c")
    for voter, term in (("b", 6), ("b", 6), ("me", 6), ("x", 6), ("c", 5), ("d", 7)):
        alone.take(voter, "response_vote", term=term)
        assert alone.core.state == CANDIDATE
    alone.take("c", "response_vote", term=6)
    assert alone.core.state == LEADER


@pytest.mark.parametrize("voters", [("me", "b"), ("b", "c")])
def test_a_candidate_that_loses_its_vote_is_none_any_more(voters: tuple[str, ...]) -> None:
    alone = Alone(entries=commands([1, 1]), term=5)
    alone.campaign("b")
    assert alone.core.state == CANDIDATE
    names = tuple(ServerId(voter) for voter in voters)
    alone.do(lambda: alone.core.installed(3, names))
    assert alone.core.state == (CANDIDATE if "me" in voters else FOLLOWER)
    assert (alone.core.next_step_at() < NEVER) is ("me" in voters)


def test_a_leader_that_was_replaced_measures_no_lateness_of_its_own() -> None:
    alone = Alone(entries=commands([1, 1]))
    term = alone.win("b") + 1
    for _ in range(8):
        alone.now += 0.05
        alone.follow("b", term=term, commit=1)
    alone.append("b", commands([term], first=5), term=term, commit=5)
    alone.tick()
    assert alone.core.applied_index == 5
    assert late_s(alone) == 0.0


@pytest.mark.parametrize(
    ("peer", "term", "campaigns"),
    [("b", 5, True), ("c", 5, False), ("b", 4, False), ("b", 6, False)],
)
def test_only_its_leader_lets_a_follower_campaign_at_once(
    peer: str, term: int, campaigns: bool
) -> None:
    alone = follower()
    alone.take(peer, "timeout_now", term=term)
    asked = of_kind(alone.tick(), "request_vote")
    assert [message["hand_over"] for _, message in asked] == [True, True] * campaigns
    assert (alone.core.term, alone.core.elections) == ((6, 1) if campaigns else (5, 0))


def test_heartbeats_do_not_put_off_an_election_that_the_leader_asked_for() -> None:
    alone = follower()
    alone.take("b", "timeout_now", term=5)
    alone.follow()
    assert len(of_kind(alone.tick(), "request_vote")) == 2
    alone.follow("c", term=7)
    assert alone.tick() == []
    assert of_kind(alone.campaign("c"), "request_vote")[0][1]["hand_over"] is False


@pytest.mark.parametrize(("match", "asks"), [(4, True), (3, False), (2, False)])
def test_a_leader_hands_over_to_a_voter_with_its_whole_log_only(match: int, asks: bool) -> None:
    alone = Alone(entries=commands([1, 1]))
    term = alone.win("b")
    alone.acknowledge("c", match)
    sent = alone.do(lambda: alone.core.hand_over(ServerId("c")))
    assert sent == ([("c", {"type": "timeout_now", "term": term})] if asks else [])
    assert alone.core.hand_over(ServerId("c")) is asks
    assert alone.core.hand_over(ServerId("b")) is False
    assert follower().core.hand_over(ServerId("b")) is False


def test_a_single_voter_asks_nobody_and_leads() -> None:
    alone = Alone(("me",), entries=commands([1, 1]))
    alone.tick()
    alone.tick(5.0)
    assert (alone.core.state, alone.core.term, alone.core.elections) == (LEADER, 2, 1)
    assert alone.core.leader == "me"


@pytest.mark.parametrize("why", ["abstains", "has no vote", "has no connection"])
def test_who_may_not_campaign_waits_for_ever(why: str) -> None:
    alone = Alone(("b", "c") if why == "has no vote" else ("me", "b", "c"))
    alone.core.abstains = why == "abstains"
    if why == "has no connection":
        alone.disconnect("b")
        alone.disconnect("c")
    alone.tick()
    assert alone.core.next_step_at() == NEVER
    assert alone.tick(60.0) == []
    assert (alone.core.state, alone.core.term) == (FOLLOWER, 1)


def test_who_may_campaign_again_waits_for_a_whole_timeout() -> None:
    alone = Alone()
    alone.core.abstains = True
    alone.tick(60.0)
    alone.core.abstains = False
    assert alone.tick() == []
    assert alone.core.next_step_at() == pytest.approx(alone.now + 0.3)


@pytest.mark.parametrize(
    ("peer", "index", "term", "votes"),
    [
        ("b", 3, 1, True),
        ("b", 2, 1, False),
        ("b", 9, 0, False),
        ("x", 3, 1, False),
        ("x", 4, 1, True),
    ],
)
def test_who_may_not_be_voted_for_does_not_even_raise_the_term(
    peer: str, index: int, term: int, votes: bool
) -> None:
    alone = Alone(entries=commands([1, 1]), term=5)
    log = {"last_log_index": index, "last_log_term": term}
    sent = alone.take(peer, "request_vote", term=9, hand_over=True, **log)
    assert sent == [(peer, {"type": "response_vote", "term": 9})] * votes
    assert alone.core.term == (9 if votes else 5)


def test_a_request_in_the_term_of_a_leader_does_not_make_it_forgotten() -> None:
    alone = follower()
    assert alone.tick(0.55) == []
    allowed_s = late_s(alone)
    votes_for(alone, "c", 5, hand_over=True)
    assert alone.core.leader == "b"
    assert late_s(alone) == allowed_s


def test_who_was_not_voted_for_asks_around_before_the_next_campaign() -> None:
    alone = Alone(term=5)
    assert len(of_kind(alone.campaign("b"), "request_vote")) == 2
    sent = alone.ask_around() + alone.tick()
    assert [message["type"] for _, message in sent] == ["request_prevote"] * 2
    assert (alone.core.term, alone.core.elections) == (6, 1)
