"""A leader's allowed sends to one follower, and a follower's known age of its table."""

import pytest
from core_alone import Alone, of_kind
from lone_node import Lone

from gpupool.consensus.core.freshness import (
    ASK_AGAIN_S,
    NEVER,
    POINTS_MAX,
    QUESTIONS_MAX,
    LeaderClock,
    TableAge,
)
from gpupool.consensus.core.progress import ASKED_MAX, REJECTIONS_AT_ONCE, Mode, Progress
from gpupool.consensus.protocol.raft_messages import Message
from gpupool.consensus.protocol.raft_settings import IN_FLIGHT_BYTES_MAX, IN_FLIGHT_MESSAGES_MAX
from gpupool.pool.model.ids import ServerId

# --- flow control ----------------------------------------------------------------------------


def test_as_many_messages_are_on_the_way_as_are_allowed_and_no_more() -> None:
    progress = Progress()
    for index in range(1, IN_FLIGHT_MESSAGES_MAX + 1):
        assert progress.has_room()
        progress.sent(index, 1)
    assert not progress.has_room()
    progress.acknowledged(0)
    assert not progress.has_room()
    progress.acknowledged(1)
    assert progress.has_room()
    progress.sent(IN_FLIGHT_MESSAGES_MAX + 1, 1)
    assert not progress.has_room()


@pytest.mark.parametrize(("match", "left"), [(0, 2), (4, 2), (5, 1), (6, 1), (8, 1), (9, 0)])
def test_an_acknowledgement_makes_room_for_what_it_covers(match: int, left: int) -> None:
    """Two messages of half the bytes each, up to entries 5 and 9."""
    progress = Progress()
    for index in (5, 9):
        progress.sent(index, IN_FLIGHT_BYTES_MAX // 2)
    assert not progress.has_room()
    progress.acknowledged(match)
    for number in range(2 - left):
        assert progress.has_room()
        progress.sent(10 + number, IN_FLIGHT_BYTES_MAX // 2)
    assert not progress.has_room()


@pytest.mark.parametrize("mode", list(Mode))
def test_a_new_mode_waits_for_nothing_that_was_sent_before(mode: Mode) -> None:
    progress = Progress()
    progress.sent(5, IN_FLIGHT_BYTES_MAX)
    progress.probe_sent = progress.rests = True
    progress.commit_sent = 7
    progress.become(mode)
    assert progress.mode is mode
    assert progress.has_room()
    assert (progress.probe_sent, progress.rests) == (False, False)
    assert progress.commit_sent < 1, "the commit index is sent anew"


def test_a_probe_rests_after_as_many_rejections_as_are_answered_at_once() -> None:
    progress = Progress()
    assert (progress.mode, progress.rests, progress.probe_sent) == (Mode.PROBE, False, False)
    for _ in range(REJECTIONS_AT_ONCE):
        progress.mode = Mode.REPLICATE
        progress.rejected()
        assert progress.mode is Mode.PROBE
        assert not progress.rests
    for _ in range(3):
        progress.rejected()
        assert progress.rests
    progress.heartbeat()
    progress.rejected()
    assert not progress.rests, "one heartbeat, one rejection"
    progress.rejected()
    assert progress.rests
    for _ in range(REJECTIONS_AT_ONCE + 5):
        progress.heartbeat()
    for _ in range(REJECTIONS_AT_ONCE):
        progress.rejected()
        assert not progress.rests
    progress.rejected()
    assert progress.rests, "patience has an end however long nothing was rejected"


def asked_twice_and_a_heartbeat() -> Progress:
    progress = Progress()
    progress.asked(-1, -1, 1.0)
    progress.asked(4, 6, 2.0)
    progress.asked(6, 6, 3.0)
    progress.asked(6, 9, 4.0)
    return progress


@pytest.mark.parametrize(
    ("match", "rejected", "sent_at"),
    [
        (-1, -1, 1.0),
        (5, -1, None),
        (6, -1, 2.0),
        (8, -1, 2.0),
        (9, -1, 2.0),
        (-1, 4, 2.0),
        (-1, 6, 3.0),
        (-1, 5, None),
        (0, -1, None),
    ],
)
def test_an_answer_is_to_the_first_message_that_it_fits(
    match: int, rejected: int, sent_at: float | None
) -> None:
    progress = asked_twice_and_a_heartbeat()
    assert progress.sent_at(match=match, rejected=rejected) == sent_at


def test_what_was_sent_before_an_answered_message_is_not_answered_later() -> None:
    progress = asked_twice_and_a_heartbeat()
    assert progress.sent_at(match=6, rejected=-1) == 2.0
    assert progress.sent_at(match=-1, rejected=-1) is None, "the heartbeat came before"
    assert progress.sent_at(match=6, rejected=-1) == 3.0
    assert progress.sent_at(match=6, rejected=-1) is None
    assert progress.sent_at(match=9, rejected=-1) == 4.0
    assert progress.sent_at(match=9, rejected=-1) is None


def test_an_answer_that_fits_nothing_takes_nothing() -> None:
    progress = asked_twice_and_a_heartbeat()
    assert progress.sent_at(match=3, rejected=-1) is None
    assert progress.sent_at(match=-1, rejected=-1) == 1.0


def test_of_a_silent_follower_the_oldest_messages_are_remembered() -> None:
    progress = Progress()
    for number in range(1, ASKED_MAX + 10):
        progress.asked(number, number, float(number))
    assert progress.sent_at(match=-1, rejected=ASKED_MAX) == float(ASKED_MAX)
    progress.asked(ASKED_MAX + 1, ASKED_MAX + 1, 0.5)
    assert progress.sent_at(match=-1, rejected=ASKED_MAX + 1) == 0.5


def test_a_new_connection_brings_no_answers_to_the_one_before() -> None:
    progress = asked_twice_and_a_heartbeat()
    progress.connection_begins()
    assert progress.sent_at(match=9, rejected=-1) is None
    assert progress.sent_at(match=-1, rejected=-1) is None


def test_a_leader_waits_for_answers_and_goes_on_with_them() -> None:
    alone = Alone()
    alone.win("b")
    alone.acknowledge("b", 2)

    def appended(count: int) -> int:
        """Append so many entries one by one; return how many of them are sent to "b"."""
        sent = 0
        for _ in range(count):
            alone.core.append(b"\x00y", None)
            sent += len([peer for peer, _ in of_kind(alone.replicate(), "append_entries")])
        return sent

    assert appended(IN_FLIGHT_MESSAGES_MAX + 5) == IN_FLIGHT_MESSAGES_MAX
    alone.acknowledge("b", 2 + IN_FLIGHT_MESSAGES_MAX)
    assert len(of_kind(alone.replicate(), "append_entries")) == 1, "the five that waited"
    assert appended(IN_FLIGHT_MESSAGES_MAX) == IN_FLIGHT_MESSAGES_MAX - 1


# --- the age of a table ----------------------------------------------------------------------


def test_a_table_is_as_of_the_newest_instant_that_it_has_caught_up_with() -> None:
    age = TableAge()
    assert age.as_of(10) == -NEVER
    age.said(5, 1.0)
    age.said(7, 2.0)
    assert age.as_of(4) == -NEVER
    assert age.as_of(5) == 1.0
    assert age.as_of(6) == 1.0
    assert age.as_of(7) == 2.0
    age.said(7, 1.5)
    assert age.as_of(7) == 2.0, "it does not become older"
    age.known(1.0)
    assert age.as_of(7) == 2.0
    age.known(3.0)
    assert age.as_of(0) == 3.0


def test_so_many_instants_wait_for_the_table_and_the_newest_is_one_of_them() -> None:
    age = TableAge()
    for number in range(1, POINTS_MAX + 3):
        age.said(number, float(number))
    assert age.as_of(POINTS_MAX - 1) == POINTS_MAX - 1
    assert age.as_of(POINTS_MAX + 1) == POINTS_MAX - 1, "left out"
    assert age.as_of(POINTS_MAX + 2) == POINTS_MAX + 2


# --- the leader's clock ----------------------------------------------------------------------

NOW = 100.0


def answered_clock(took_s: float = 0.0, ahead_s: float = 50.0) -> LeaderClock:
    """Return the clock of leader "b", which is ahead, after one answer that took so long."""
    clock = LeaderClock()
    number = clock.question("b", NOW)
    assert number is not None
    clock.answered("b", number, NOW + ahead_s, NOW + took_s)
    return clock


def test_a_leader_is_asked_for_its_clock_until_it_answers() -> None:
    clock = LeaderClock()
    first = clock.question("b", NOW)
    assert first is not None
    assert clock.question("b", NOW) is None
    assert clock.question("b", NOW + ASK_AGAIN_S - 0.001) is None
    again = clock.question("b", NOW + ASK_AGAIN_S)
    assert again is not None
    assert again != first
    assert clock.delay_s("b", 0.0, NOW) is None, "nothing is known before an answer"
    clock.answered("b", again, NOW, NOW + ASK_AGAIN_S)
    for later in (0.6, 1.0, 100.0):
        assert clock.question("b", NOW + later) is None


@pytest.mark.parametrize(
    ("took_s", "asks"), [(0.0, False), (ASK_AGAIN_S - 0.001, False), (ASK_AGAIN_S, True)]
)
def test_an_answer_that_was_slow_bounds_and_a_closer_one_is_asked_for(
    took_s: float, asks: bool
) -> None:
    clock = answered_clock(took_s)
    assert clock.delay_s("b", NOW + 50.0 + took_s, NOW + took_s) == 0.0
    assert (clock.question("b", NOW + took_s + 10.0) is not None) is asks


def test_another_leadership_is_asked_anew_and_nothing_is_known_of_its_clock() -> None:
    clock = answered_clock()
    assert clock.delay_s("c", NOW + 50.0, NOW) is None
    number = clock.question("c", NOW)
    assert number is not None, "though the other one was asked just now"
    clock.answered("b", number, NOW, NOW)
    assert clock.delay_s("c", NOW, NOW) is None, "an answer of the leadership before"
    clock.answered("c", number + 1, NOW, NOW)
    assert clock.delay_s("c", NOW, NOW) is None, "an answer to no question"
    clock.answered("c", number, NOW - 20.0, NOW)
    assert clock.delay_s("c", NOW - 20.0, NOW) == 0.0
    assert clock.delay_s("b", NOW + 50.0, NOW) is None


@pytest.mark.parametrize("since_s", [0.0, 2.0, 8.0])
@pytest.mark.parametrize("late_s", [0.5, 30.0])
def test_a_message_was_held_up_for_what_it_states_too_little(since_s: float, late_s: float) -> None:
    """Less the possible drift of two clocks since the last punctual message."""
    now = NOW + since_s
    clock = answered_clock()
    found = clock.delay_s("b", now + 50.0 - late_s, now)
    assert found == max(0.0, late_s - 0.125 * since_s)
    assert clock.delay_s("b", now + 60.0, now) == 0.0, "faster than any before"
    assert clock.delay_s("b", now + 59.0, now) == 1.0, "which is the measure from then on"
    assert clock.delay_s("b", now + 57.5, now + 1.0) == 3.5 - 0.125


def test_of_two_answers_the_lower_bound_counts() -> None:
    """Questions that waited together are answered together, and the oldest says too much."""
    clock = LeaderClock()
    numbers = [clock.question("b", NOW + wait_s) for wait_s in (0.0, 1.0)]
    assert None not in numbers
    first, second = (number for number in numbers if number is not None)
    clock.answered("b", first, NOW + 52.0, NOW + 2.0)
    assert clock.delay_s("b", NOW + 2.0 + 50.0, NOW + 2.0) == 2.0
    clock.answered("b", second, NOW + 52.0, NOW + 2.0)
    assert clock.delay_s("b", NOW + 2.0 + 50.0, NOW + 2.0) == 1.0
    clock = LeaderClock()
    numbers = [clock.question("b", NOW + wait_s) for wait_s in (0.0, 1.0)]
    first, second = (number for number in numbers if number is not None)
    clock.answered("b", second, NOW + 52.0, NOW + 2.0)
    clock.answered("b", first, NOW + 52.0, NOW + 2.0)
    assert clock.delay_s("b", NOW + 2.0 + 50.0, NOW + 2.0) == 1.0


def test_no_more_questions_wait_for_answers_than_are_useful() -> None:
    clock = LeaderClock()
    numbers = [clock.question("b", NOW + second) for second in range(QUESTIONS_MAX + 1)]
    oldest, *others = (number for number in numbers if number is not None)
    assert len(others) == QUESTIONS_MAX
    clock.answered("b", oldest, NOW, NOW + 20.0)
    assert clock.delay_s("b", NOW, NOW + 20.0) is None
    clock.answered("b", others[0], NOW, NOW + 20.0)
    assert clock.delay_s("b", NOW, NOW + 20.0) is not None


def test_a_stop_makes_a_server_forget_the_clock_and_ask_again() -> None:
    clock = answered_clock()
    clock.forget()
    assert clock.delay_s("b", NOW + 50.0, NOW) is None
    assert clock.question("b", NOW) is not None
    clock = LeaderClock()
    number = clock.question("b", NOW)
    assert number is not None
    clock.forget()
    clock.answered("b", number, NOW, NOW)
    assert clock.delay_s("b", NOW, NOW) is None, "an answer to a question of before"
    assert clock.question("b", NOW) not in (None, number), "no number is used twice"


@pytest.mark.parametrize(
    ("still_s", "asks"), [(0.6, False), (1.4, False), (1.6, True), (9.0, True)]
)
def test_a_server_that_stood_still_asks_for_its_leaders_clock(still_s: float, asks: bool) -> None:
    lone = Lone(term=5)
    lone.append(2, 1, [], clock_runs=True)
    lone.tell_clock()
    lone.now += still_s
    sent = lone.append(2, 1, [], clock_runs=True)
    assert any(message["type"] == "ask_clock" for _, message in sent) is asks


# --- what a server without a vote is told of the leader --------------------------------------


def told(leader: str | None, *, term: int = 5, age_ms: int = 0, delay_s: float = 0.0) -> Alone:
    """Return a server without a vote to which a voter said so; the leader's clock shows 7 s."""
    alone = Alone(("b", "c"), term=5)
    message: Message = {"term": term, "clock_ms": 7000, "majority_age_ms": age_ms}
    message["commit_index"] = 1
    name = None if leader is None else ServerId(leader)
    alone.do(lambda: alone.core.observe_leader(name, message, delay_s))
    return alone


@pytest.mark.parametrize(
    ("leader", "term", "believed"),
    [("b", 5, True), ("b", 6, True), ("b", 4, False), (None, 5, False), ("me", 5, False)],
)
def test_gossip_of_a_leader_counts_in_its_term(
    leader: str | None, term: int, believed: bool
) -> None:
    alone = told(leader, term=term)
    assert alone.core.term == max(term, 5)
    assert alone.core.leader == (leader if believed else None)
    assert alone.core.leader_heard_at == (alone.now if believed else -NEVER)
    assert (alone.core.majority_age_s() == 0.0) is believed
    assert alone.core.leader_clock_ms(alone.now + 2.0) == (9000 if believed else 102_000)


def test_gossip_is_as_old_as_what_the_voter_has_heard_and_was_held_up() -> None:
    alone = told("b", age_ms=250, delay_s=0.5)
    assert alone.core.leader_heard_at == alone.now - 0.25
    assert alone.core.majority_age_s() == 0.75
    assert alone.core.majority_age_ms() == 750
    assert alone.core.clock_ms() == 7000
    alone.wait(1.0)
    assert alone.core.majority_age_s() == 1.75
    assert alone.core.clock_ms() == 8000
