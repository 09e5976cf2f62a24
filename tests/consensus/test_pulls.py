"""A server that pulls, with a core and connections that are played by the test."""

import pytest
from around_pulls import FIRST, SECOND, THIRD, Around, answer, puller_of

from gpupool.consensus.followers import OUTSTANDING_MAX, UNANSWERED_MAX
from gpupool.pool.model.ids import ServerId


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


@pytest.mark.parametrize("leader", [None, SECOND])
def test_an_answer_names_the_leader_or_none(leader: ServerId | None) -> None:
    around = Around(leader=THIRD)
    puller = puller_of(around)
    puller.step()
    puller.on_pulled(FIRST, {**answer(), "leader": leader})
    assert around.leader == leader


def test_entries_that_cannot_be_read_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    around = Around()
    puller = puller_of(around)
    puller.step()
    around.taken("pull")
    puller.on_pulled(FIRST, {**answer(), "entries": b"x"})
    assert (around.commit_index, around.sent, around.held_up_s) == (9, [], [])
    assert f"entries from {FIRST} cannot be read" in caplog.text


def test_after_one_failed_the_first_in_order_is_asked_again_after_half_a_minute() -> None:
    around = Around()
    puller = puller_of(around)
    puller.step()
    puller.on_pulled(FIRST, answer(age_ms=6000))
    around.taken("pull")
    asked: list[ServerId] = []
    for _ in range(40):
        around.now += 1.0
        puller.on_pulled(asked[-1] if asked else SECOND, answer())
        asked += around.taken("pull")
    assert asked == [SECOND] * 29 + [FIRST] * 11


def test_the_next_in_order_comes_after_the_last_one_again() -> None:
    around = Around(voters=(FIRST, SECOND, THIRD))
    puller = puller_of(around)
    asked: list[ServerId] = []
    for _ in range(4):
        puller.step()
        asked += around.taken("pull")
        around.now += 1.5
    assert asked == [FIRST, SECOND, THIRD, FIRST]


def test_a_source_that_is_no_voter_any_more_gives_way_to_the_first() -> None:
    around = Around(voters=(THIRD,))
    puller = puller_of(around)
    puller.step()
    assert puller.source == THIRD
    around.voters = (FIRST, SECOND)
    around.now += 1.5
    puller.step()
    assert puller.source == FIRST


@pytest.mark.parametrize(("votes", "lonely"), [(False, [THIRD]), (True, [])])
def test_when_no_voter_is_connected_a_server_that_follows_asks_who_is(
    votes: bool, lonely: list[ServerId]
) -> None:
    around = Around(peers={THIRD}, votes=votes, abstains=True)
    puller = puller_of(around)
    around.now += 1.5
    puller.step()
    assert around.taken("pull") == lonely


def test_without_anyone_to_ask_a_server_looks_again_later() -> None:
    around = Around(peers=set())
    puller = puller_of(around)
    puller.step()
    assert puller.source is None
    around.peers = {SECOND}
    around.now += 1.25
    puller.step()
    assert not around.taken("pull")
    puller.connected()
    puller.step()
    assert around.taken("pull") == [SECOND]
    around.peers.add(FIRST)
    puller.connected()
    puller.step()
    assert not around.taken("pull"), "another source is being asked"
    around.peers.remove(SECOND)
    puller.disconnected(SECOND)
    puller.step()
    assert around.taken("pull") == [FIRST]


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


@pytest.mark.parametrize(("gone", "asked"), [(FIRST, [SECOND]), (SECOND, [])])
def test_only_a_source_that_is_gone_gives_way(gone: ServerId, asked: list[ServerId]) -> None:
    around = Around()
    puller = puller_of(around)
    puller.step()
    around.taken("pull")
    around.peers.remove(gone)
    puller.disconnected(gone)
    puller.step()
    assert around.taken("pull") == asked
