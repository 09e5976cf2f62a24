"""Leaders stay on busy machines, and are replaced soon when they hang."""

import itertools
import math
from typing import Any

import pytest
from lone_node import Lone

from gpupool.consensus.core.punctuality import HALF_LIFE_S, LATENESS_MAX_S, Lateness


def asks(lone: Lone, seconds: float) -> bool:
    """Let a punctual server step at its timers for so long; tell whether it asked for votes."""
    end, asked = lone.now + seconds, False
    while (due := lone.node.next_step_at()) <= end:
        sent = lone.tick(max(due - lone.now, 0.001))
        asked = asked or any(m["type"] == "request_prevote" for _, m in sent)
    lone.now = max(lone.now, end)
    return asked


def heartbeat(lone: Lone) -> None:
    lone.append(2, 1, [], term=5, commit=2, clock_runs=True)


def test_a_server_that_is_late_itself_waits_for_one_more_heartbeat() -> None:
    lone = Lone(("me", "b", "c"), term=5)
    heartbeat(lone)
    lone.now += 0.55  # The machine was busy; what "b" has sent meanwhile is not read yet.
    assert lone.tick() == []
    heartbeat(lone)
    assert not asks(lone, 0.2)
    lone = Lone(("me", "b", "c"), term=5)
    heartbeat(lone)
    lone.now += 0.55
    assert lone.tick() == []
    assert asks(lone, 0.13), "nothing was there to be read"


def test_a_leader_whose_heartbeats_come_late_again_and_again_is_waited_for() -> None:
    lone = Lone(("me", "b", "c"), term=5)
    heartbeat(lone)
    assert asks(lone, 0.45), "it was punctual so far"
    for _ in range(10):
        heartbeat(lone)
        asks(lone, 0.35)
    assert not asks(lone, 0.0)
    for _ in range(10):
        heartbeat(lone)
        assert not asks(lone, 0.35)
    answers = lone.take("c", "request_prevote", term=6, last_log_index=2, last_log_term=1)
    assert [m["granted"] for _, m in answers if m["type"] == "response_prevote"] == [False]
    assert asks(lone, 1.0), "but not for ever"


def test_a_leader_that_was_late_itself_hears_answers_before_it_gives_up() -> None:
    lone = Lone(("me", "b", "c"), term=1)
    lone.win("b", "c")
    lone.acknowledge("b", lone.journal.last_index)
    lone.tick(0.06)
    lone.now += 0.6
    sent = lone.tick()
    assert lone.node.leads
    assert {peer for peer, m in sent if m["type"] == "append_entries"} == {"b", "c"}
    lone.acknowledge("b", lone.journal.last_index)
    lone.acknowledge("b", lone.journal.last_index)
    assert lone.node.majority_age_s(lone.now) < 0.1
    asks(lone, 2.0)
    assert not lone.node.leads


def test_a_candidate_asks_again_before_its_next_timeout_and_ever_more_seldom() -> None:
    """Its first question came a little too early for a server that heard the leader later."""
    lone = Lone(("me", "b", "c"), term=5)
    heartbeat(lone)
    at: list[float] = []
    end = lone.now + 3.0
    while lone.now < end:
        sent = lone.tick(lone.node.next_step_at() - lone.now)
        if any(m["type"] == "request_prevote" for _, m in sent):
            at.append(lone.now)
    gaps = [later - earlier for earlier, later in itertools.pairwise(at)]
    assert 0.06 <= gaps[0] <= 0.13
    assert all(0.2 <= gap <= 0.41 for gap in gaps[3:])


def test_lateness_fades_and_a_stop_is_none() -> None:
    lateness = Lateness()
    assert lateness.recent_s(100.0) == 0.0
    lateness.note(0.3, 100.0)
    lateness.note(0.1, 101.0)
    assert lateness.recent_s(100.0) == pytest.approx(0.3)
    later = 100.0 + HALF_LIFE_S
    assert lateness.recent_s(later) == pytest.approx(0.15)
    lateness.note(LATENESS_MAX_S + 0.1, later)
    lateness.note(math.inf, later)
    assert lateness.recent_s(later) == pytest.approx(0.15)


def stopped(lone: Lone, seconds: float) -> None:
    """Let the process stand still for so long, and step once afterwards."""
    lone.now += seconds
    lone.node.step(lone.now)
    lone.node.ready()


def refuses_prevotes_for_s(lone: Lone) -> float:
    """Return for how long after the leader's last word "c" may not campaign; 10 ms exact."""
    silence_s = 0.0
    while silence_s < 2.0:
        silence_s += 0.01
        lone.now += 0.01
        term = lone.node.core.term + 1
        answers = lone.take("c", "request_prevote", term=term, last_log_index=9, last_log_term=9)
        if [m["granted"] for _, m in answers if m["type"] == "response_prevote"] == [True]:
            return silence_s
    return silence_s


def late_s(lone: Lone) -> float:
    """Return the lateness that the server allows for."""
    core: Any = lone.node.core
    return core._lateness.recent_s(lone.now)


def leader_of_two_steps() -> Lone:
    lone = Lone(("me", "b", "c"), term=1)
    lone.win("b", "c")
    for _ in range(3):
        lone.tick(0.06)
        for peer in ("b", "c"):
            lone.acknowledge(peer, lone.journal.last_index)
    return lone


def test_a_leader_that_was_stopped_and_replaced_was_not_late() -> None:
    """Its vote is needed when the next leader hangs, too: it must not wait for it longer."""
    lone = leader_of_two_steps()
    stopped(lone, 0.45)
    assert lone.node.leads, "it does not know yet"
    lone.take("b", "heartbeat", term=lone.node.core.term + 1, clock_ms=0, majority_age_ms=0)
    assert not lone.node.leads
    assert refuses_prevotes_for_s(lone) == pytest.approx(0.2, abs=0.011)


def test_what_a_leader_was_late_before_it_was_stopped_is_remembered() -> None:
    lone = leader_of_two_steps()
    stopped(lone, 0.36)
    for peer in ("b", "c"):
        lone.acknowledge(peer, lone.journal.last_index)
    lone.acknowledge("b", lone.journal.last_index)
    lone.acknowledge("c", lone.journal.last_index)
    was_late_s = late_s(lone)
    assert 0.3 <= was_late_s <= 0.36, "it leads on: the machine was busy"
    stopped(lone, 0.55)
    assert late_s(lone) > 0.4
    lone.take("b", "heartbeat", term=lone.node.core.term + 1, clock_ms=0, majority_age_ms=0)
    faded_s = was_late_s * 0.5 ** (0.55 / HALF_LIFE_S)
    assert late_s(lone) == pytest.approx(faded_s, abs=0.01)


def test_a_follower_that_was_stopped_while_leaders_changed_was_not_late() -> None:
    lone = Lone(("me", "b", "c"), term=5)
    heartbeat(lone)
    lone.now += 0.55
    assert lone.tick() == [], "it waits for what may be in its sockets"
    lone.append(2, 1, [], term=6, commit=2, leader="c", clock_runs=True)
    assert late_s(lone) == 0.0
    lone = Lone(("me", "b", "c"), term=5)
    heartbeat(lone)
    lone.now += 0.55
    assert lone.tick() == []
    lone.take("c", "request_vote", term=6, last_log_index=9, last_log_term=9, hand_over=True)
    assert lone.node.core.term == 6
    assert late_s(lone) == 0.0


def test_a_stop_forgets_every_note_that_was_made_during_it() -> None:
    lateness = Lateness()
    lateness.note(0.2, 100.0)
    lateness.note(0.4, 101.0)
    lateness.note(0.5, 101.05)  # the same standstill, seen by another timer
    lateness.ended_in_newer_term(heard_at=100.6)
    later = 100.0 + HALF_LIFE_S
    assert lateness.recent_s(later) == pytest.approx(0.1)
    lateness.ended_in_newer_term(heard_at=later - 1.0)
    assert lateness.recent_s(later) == pytest.approx(0.1), "that one ended long ago"


def test_lateness_up_to_the_bound_is_noted() -> None:
    for late_s, noted in ((0.6, True), (0.601, False), (30.0, False)):
        lateness = Lateness()
        lateness.note(late_s, 100.0)
        assert lateness.recent_s(100.0) == (late_s if noted else 0.0)


def test_a_stop_before_anything_was_late_leaves_a_punctual_past() -> None:
    lateness = Lateness()
    lateness.ended_in_newer_term(heard_at=-math.inf)
    assert lateness.recent_s(0.0) == 0.0
    assert lateness.recent_s(100.0) == 0.0
    lateness.note(0.3, 100.0)
    lateness.ended_in_newer_term(heard_at=-math.inf)
    assert lateness.recent_s(100.0) == 0.0


@pytest.mark.parametrize("late_s", [0.1, 0.2])
def test_what_is_no_later_than_known_changes_nothing(late_s: float) -> None:
    lateness = Lateness()
    lateness.note(0.4, 100.0)
    later = 100.0 + HALF_LIFE_S
    lateness.note(late_s, later)
    assert lateness.recent_s(later) == 0.2
    lateness.ended_in_newer_term(heard_at=99.0)
    assert lateness.recent_s(later) == 0.0


@pytest.mark.parametrize(("heard_at", "left_s"), [(99.9, 0.0), (100.0, 0.25), (100.1, 0.25)])
def test_only_what_was_noted_since_a_leader_was_heard_is_forgotten(
    heard_at: float, left_s: float
) -> None:
    lateness = Lateness()
    lateness.note(0.25, 100.0)
    lateness.ended_in_newer_term(heard_at)
    assert lateness.recent_s(100.0) == left_s


@pytest.mark.parametrize(("seen_at", "left_s"), [(100.4, 0.0), (100.5, 0.25), (100.6, 0.25)])
def test_a_standstill_that_began_after_the_last_note_is_another_one(
    seen_at: float, left_s: float
) -> None:
    lateness = Lateness()
    lateness.note(0.25, 100.0)
    lateness.note(0.5, seen_at)
    lateness.ended_in_newer_term(heard_at=100.2)
    assert lateness.recent_s(100.0) == left_s
