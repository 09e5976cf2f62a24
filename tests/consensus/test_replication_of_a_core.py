"""A leader's messages to each follower after its answers, and a follower's use of them."""

import logging

import pytest
from core_alone import ME, SETTINGS, Alone, Sent, commands, of_kind

from gpupool.consensus.core.library import FOLLOWER, LEADER, Peer
from gpupool.consensus.protocol.membership import encode_voters
from gpupool.consensus.protocol.raft_messages import Message
from gpupool.consensus.storage.journal import decode_entries
from gpupool.consensus.storage.store import MEMBERSHIP_TYPE
from gpupool.pool.model.ids import Plain, ServerId
from gpupool.pool.ports import Committed, NotCommitted, Outcome, Unknown

B, C = ServerId("b"), ServerId("c")
FIVE = ("me", "b", "c", "d", "e")
HEARTBEAT_S = SETTINGS.heartbeat_s * 1.001


def leader(voters: tuple[str, ...] = ("me", "b", "c"), *, entries: int = 8) -> Alone:
    """Return a leader of term 2 with the entries 2 to ``entries`` + 1 of term 1, and its own."""
    alone = Alone(voters, entries=commands([1] * entries))
    alone.win(*voters[1 : len(voters) // 2 + 1])
    return alone


def to(sent: Sent, peer: str) -> list[Message]:
    return [message for receiver, message in sent if receiver == peer]


def spans(sent: Sent, peer: str) -> list[tuple[int, int]]:
    """Return the entries that a peer gets: the index before them, and the last."""
    messages = to(of_kind(sent, "append_entries"), peer)
    return [
        (m["prevLogIdx"], m["prevLogIdx"] + len(decode_entries(m["entries"]))) for m in messages
    ]


# --- a leader and one follower ---------------------------------------------------------------


def test_a_follower_that_is_not_known_yet_gets_one_message_until_it_answers() -> None:
    alone = leader(entries=3)
    alone.core.append(b"\x00y", None)
    assert alone.replicate() == [], "the first message is on its way"
    assert spans(alone.tick(HEARTBEAT_S), "b") == [(4, 4)], "a sign of life"
    alone.acknowledge("b", 4)
    assert alone.core.is_followed_by(B)
    assert spans(alone.replicate(), "b") == [(4, 6)]
    alone.core.append(b"\x00y", None)
    assert spans(alone.replicate(), "b") == [(6, 7)], "without waiting for an answer"
    assert alone.replicate() == []


def test_a_rejected_follower_is_probed_at_once_where_it_says() -> None:
    alone = leader()
    assert spans(alone.reject("b", 9, 5), "b") == [(4, 10)]
    assert alone.reject("b", 9, 3) == [], "an answer to what was sent before"
    assert spans(alone.reject("b", 4, 2), "b") == [(1, 10)]
    alone.acknowledge("b", 10)
    assert alone.core.match_index(B) == 10
    assert spans(alone.replicate(), "b") == []


@pytest.mark.parametrize(("hint", "previous"), [(2, 5), (5, 5), (6, 5), (7, 6), (8, 7), (9, 7)])
def test_a_leader_goes_back_no_further_than_what_a_follower_has(hint: int, previous: int) -> None:
    alone = leader()
    alone.acknowledge("b", 5)
    assert spans(alone.replicate(), "b") == [(5, 10)]
    ((first, _),) = spans(alone.reject("b", 8, hint), "b")
    assert first == previous
    assert alone.core.match_index(B) == 5
    assert alone.core.alarm == ""


@pytest.mark.parametrize("rejected", [5, 4, 2])
def test_a_voter_that_rejects_what_it_acknowledged_has_lost_it(rejected: int) -> None:
    alone = leader()
    alone.acknowledge("b", 5)
    assert spans(alone.reject("b", rejected, 2), "b") == [(1, 10)]
    assert alone.core.match_index(B) == 0
    alarm = "server b has lost entries up to 5 that it had acknowledged"
    assert alone.core.alarm == alarm


@pytest.mark.parametrize("match", [11, 40])
def test_an_entry_that_does_not_exist_is_not_acknowledged(match: int) -> None:
    alone = leader()
    alone.acknowledge("b", match)
    assert alone.core.match_index(B) == 0
    assert not alone.core.is_followed_by(B)
    alone.acknowledge("b", 10)
    assert alone.core.match_index(B) == 10


def test_what_a_follower_has_only_grows() -> None:
    alone = leader()
    for match, known in ((7, 7), (5, 7), (10, 10), (3, 10)):
        alone.acknowledge("b", match)
        assert alone.core.match_index(B) == known
    assert alone.core.match_index(C) == 0
    assert alone.core.match_index(ServerId("x")) == 0


@pytest.mark.parametrize("term", [1, 3])
def test_an_answer_counts_in_its_term_only(term: int) -> None:
    alone = leader()
    assert alone.core.term == 2
    alone.acknowledge("b", 10, term=term)
    assert alone.core.match_index(B) == 0
    assert (alone.core.state, alone.core.term) == ((LEADER, 2) if term < 2 else (FOLLOWER, 3))


def test_a_voter_that_forgot_begins_at_the_end_of_the_log_again() -> None:
    alone = leader()
    alone.reject("b", 9, 3)
    alone.acknowledge("b", 6)
    alone.do(lambda: alone.core.forget_match(B))
    assert alone.core.match_index(B) == 0
    assert not alone.core.is_followed_by(B)
    assert spans(alone.replicate(), "b") == [(10, 10)]
    alone.do(lambda: alone.core.forget_match(ServerId("x")))


def test_who_accepted_by_its_present_connection_and_answers_is_a_follower() -> None:
    alone = leader(FIVE)
    peers = [ServerId(name) for name in "bcdex"]
    alone.acknowledge("b", 10)
    alone.acknowledge("c", 10)
    alone.reject("d", 9, 3)
    assert [alone.core.is_followed_by(peer) for peer in peers] == [True, True, *[False] * 3]
    alone.disconnect("c")
    alone.connect("c")
    assert [alone.core.is_followed_by(peer) for peer in peers] == [True, *[False] * 4]
    alone.wait(SETTINGS.leader_fallback_s - 0.001)
    assert alone.core.is_followed_by(B)
    alone.wait(0.002)
    assert [alone.core.is_followed_by(peer) for peer in peers] == [False] * 5


def test_a_new_connection_begins_behind_what_a_follower_has() -> None:
    alone = leader()
    alone.acknowledge("b", 6)
    assert spans(alone.replicate(), "b") == [(6, 10)]
    alone.disconnect("b")
    assert to(alone.replicate(), "b") == [], "nobody is there"
    assert to(alone.tick(HEARTBEAT_S), "b") == []
    alone.connect("b")
    assert spans(alone.replicate(), "b") == [(6, 10)]


def test_a_new_leadership_begins_without_knowing_what_followers_have() -> None:
    alone = leader()
    alone.acknowledge("b", 10)
    assert alone.core.is_followed_by(B)
    alone.follow("c", term=3)
    assert alone.win("c") == 4
    assert alone.core.match_index(B) == 0
    assert not alone.core.is_followed_by(B)


def test_a_commit_index_is_sent_once_to_who_has_all_entries() -> None:
    alone = leader()
    for peer in "bc":
        alone.acknowledge(peer, 10)
        alone.replicate()
    alone.tick()
    assert alone.core.commit_index == 10
    sent = [message for peer in "bc" for message in to(alone.sent, peer)]
    sent += [message for _, message in alone.replicate()]
    assert sent == [{"type": "commit", "term": 2, "commit_index": 10}] * 2
    assert alone.replicate() == []
    assert spans(alone.tick(HEARTBEAT_S), "b") == [(10, 10)]


# --- a follower whose entries are gone -------------------------------------------------------


def leader_with_a_snapshot() -> Alone:
    """Return a leader with a journal that begins behind entry 6; its follower "b" has 3."""
    alone = leader()
    alone.acknowledge("c", 10)
    alone.tick()
    assert alone.core.applied_index == 10
    alone.journal.rewrite(6, 1, keep=True)
    assert alone.reject("b", 9, 4) == []
    assert alone.snapshots == ["b"]
    return alone


def test_who_lacks_entries_that_are_gone_gets_a_snapshot_and_signs_of_life() -> None:
    alone = leader_with_a_snapshot()
    alone.replicate()
    assert alone.snapshots == ["b", "b"]
    sent = to(alone.tick(HEARTBEAT_S), "b")
    assert [(m["type"], m["term"], m["majority_age_ms"]) for m in sent] == [("heartbeat", 2, 60)]
    alone.acknowledge("b", 6)
    assert spans(alone.replicate(), "b") == [(6, 10)]


def test_an_answer_to_a_sign_of_life_is_as_young_as_that() -> None:
    alone = leader_with_a_snapshot()
    alone.disconnect("c")
    assert of_kind(alone.tick(0.2), "heartbeat")
    alone.now += 0.1
    alone.take("b", "next_node_idx", term=2, next_node_idx=0, success=False, rejected=-1)
    assert alone.core.majority_age_s() == pytest.approx(0.1)


def test_a_snapshot_that_arrived_is_no_answer_to_a_sign_of_life() -> None:
    alone = leader_with_a_snapshot()
    alone.disconnect("c")
    assert of_kind(alone.tick(0.2), "heartbeat")
    alone.now += 0.1
    alone.acknowledge("b", 6)
    assert alone.core.majority_age_s() == pytest.approx(0.3)


def test_late_rejections_do_not_hurry_a_snapshot() -> None:
    alone = leader_with_a_snapshot()
    assert alone.reject("b", 3, 2) == []
    assert alone.snapshots == ["b"]


# --- how fresh a leader is -------------------------------------------------------------------


def committed(voters: tuple[str, ...], *contact_s: float) -> Alone:
    """Return a leader; its followers answered messages of these instants, 0.5 s later."""
    alone = leader(voters)
    peers = voters[1:]
    for peer in peers:
        alone.acknowledge(peer, 10)
    alone.tick()
    assert alone.core.applied_index == 10
    start = alone.now
    for peer, after_s in sorted(zip(peers, contact_s, strict=True), key=lambda pair: pair[1]):
        for other in peers:
            if other != peer:
                alone.disconnect(other)
        alone.now = start + after_s
        alone.connect(peer)
        alone.replicate()
        alone.acknowledge(peer, 10)
    alone.now = start + 0.5
    alone.wait(0.0)
    return alone


@pytest.mark.parametrize(
    ("voters", "contact_s", "age_s"),
    [
        (("me", "b"), (0.1,), 0.4),
        (("me", "b", "c"), (0.1, 0.4), 0.1),
        (("me", "b", "c", "d"), (0.1, 0.2, 0.4), 0.3),
        (FIVE, (0.1, 0.2, 0.3, 0.4), 0.2),
        (FIVE, (0.4, 0.1, 0.1, 0.1), 0.4),
        (FIVE, (0.4, 0.4, 0.1, 0.1), 0.1),
    ],
)
def test_a_leader_is_as_fresh_as_its_contact_with_a_majority(
    voters: tuple[str, ...], contact_s: tuple[float, ...], age_s: float
) -> None:
    alone = committed(voters, *contact_s)
    assert alone.core.majority_age_s() == pytest.approx(age_s)
    assert alone.core.majority_age_ms() == pytest.approx(1000 * age_s, abs=1.0)


def leader_that_was_cut_off() -> Alone:
    """Return a leader with followers that have all; only "b" is connected again."""
    alone = leader()
    for peer in "bc":
        alone.acknowledge(peer, 10)
    alone.tick()
    alone.disconnect("b")
    alone.disconnect("c")
    alone.connect("b")
    return alone


def test_an_answer_counts_from_when_the_message_was_sent_that_it_fits() -> None:
    """The first message had an entry more, and its answer was lost."""
    alone = leader_that_was_cut_off()
    alone.core.append(b"\x00y", None)
    assert spans(alone.replicate(), "b") == [(10, 11)]
    assert spans(alone.tick(0.1), "b") == [(10, 10)]
    alone.now += 0.1
    alone.acknowledge("b", 10)
    assert alone.core.majority_age_s() == pytest.approx(0.1)


def test_a_rejection_counts_from_when_the_message_was_sent_that_it_rejects() -> None:
    alone = leader_that_was_cut_off()
    assert spans(alone.tick(0.1), "b") == [(10, 10)]
    alone.now += 0.1
    alone.reject("b", 10, 9)
    assert alone.core.majority_age_s() == pytest.approx(0.1)


def test_a_server_that_heard_of_nobody_says_that_its_table_is_30_years_old() -> None:
    assert Alone().core.majority_age_ms() == 10**12


def test_a_leader_that_stops_remembers_when_it_last_heard_from_a_majority(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    alone = leader()
    alone.acknowledge("b", 10)
    alone.tick()
    began_at = alone.now
    alone.now += 0.3
    alone.follow("c", term=3)
    assert "leads no more in term 3: a majority answered 0.30 s ago" in caplog.text
    assert alone.core.majority_age_s() == pytest.approx(alone.now - began_at)
    caplog.clear()
    alone.now += 0.1
    alone.follow("c", term=3)
    assert "leads no more" not in caplog.text
    assert alone.core.leader_heard_at == alone.now


# --- a follower ------------------------------------------------------------------------------


def answer(sent: Sent, kind: str = "next_node_idx") -> Message:
    ((_, message),) = of_kind(sent, kind)
    return {name: value for name, value in message.items() if name != "type"}


def test_a_follower_answers_how_far_its_log_is_the_leaders() -> None:
    alone = Alone(entries=commands([1, 1, 1]), term=5)
    got = answer(alone.append("b", commands([5, 5], first=4), commit=9))
    assert got == {"term": 5, "next_node_idx": 6, "success": True, "rejected": -1}
    assert (alone.core.matched_index, alone.core.commit_index) == (5, 5)
    assert alone.journal.last_index == 5
    alone.follow("b", commit=4)
    assert alone.core.commit_index == 5, "it does not go back"


def test_a_follower_says_where_its_log_ends() -> None:
    alone = Alone(entries=commands([1, 1, 1]), term=5)
    fields = {"commit_index": 1, "entries": b"", "clock_ms": 0, "majority_age_ms": 0}
    sent = alone.take("b", "append_entries", term=5, prevLogIdx=9, prevLogTerm=1, **fields)
    assert answer(sent) == {"term": 5, "next_node_idx": 5, "success": False, "rejected": 9}
    assert alone.core.matched_index == 0


def test_a_deposed_leader_is_told_of_the_newer_term() -> None:
    alone = Alone(entries=commands([1, 1, 1]), term=5)
    told = {"term": 5, "next_node_idx": 0, "success": False, "rejected": -1}
    assert answer(alone.append("b", commands([4], first=5), term=4)) == told
    assert alone.core.leader is None
    assert alone.journal.last_index == 4


def test_two_leaders_of_one_term_are_not_believed(caplog: pytest.LogCaptureFixture) -> None:
    alone = Alone(term=5)
    alone.follow("b")
    assert alone.follow("c") == []
    assert alone.core.leader == "b"
    assert "both lead in term 5" in caplog.text
    authority = {"type": "heartbeat", "clock_ms": 0, "majority_age_ms": 0}
    believed: list[object] = []
    for peer, term in ((C, 5), (B, 4), (B, 5), (C, 6)):
        message: Message = {**authority, "term": term}
        alone.do(lambda p=peer, m=message: believed.append(alone.core.follow(p, m)))
    assert believed == [False, False, True, True]
    assert alone.core.leader == "c"


@pytest.mark.parametrize(("index", "committed"), [(4, 4), (2, 3), (1, 3)])
def test_a_commit_reaches_as_far_as_the_log_is_known_to_be_the_leaders(
    index: int, committed: int
) -> None:
    """A snapshot is the leader's log up to its end, and earlier knowledge stays known."""
    alone = Alone(entries=commands([1, 1, 1, 1]), term=5)
    alone.take("b", "heartbeat", term=5, clock_ms=0, majority_age_ms=0)
    alone.append("b", commands([1], first=3), commit=1)
    assert alone.core.matched_index == 3
    sent = alone.do(lambda: alone.core.acknowledge_snapshot(B, index))
    assert answer(sent)["next_node_idx"] == index + 1
    alone.take("c", "commit", term=5, commit_index=9)
    alone.take("b", "commit", term=4, commit_index=9)
    assert alone.core.commit_index == 1
    alone.take("b", "commit", term=5, commit_index=9)
    assert alone.core.commit_index == committed


def test_a_leader_in_another_term_has_its_log_compared_anew() -> None:
    alone = Alone(entries=commands([1, 1]), term=5)
    alone.follow("b")
    assert alone.core.matched_index == 3
    alone.take("b", "heartbeat", term=6, clock_ms=0, majority_age_ms=0)
    assert alone.core.matched_index < 1
    alone.take("b", "commit", term=6, commit_index=3)
    assert alone.core.commit_index == 1


def test_only_entries_that_name_other_voters_change_them() -> None:
    alone = Alone(entries=commands([1, 1]), term=5)
    alone.append("b", commands([5], first=4))
    alone.follow("b")
    assert alone.changes == 0
    alone.append("b", [(MEMBERSHIP_TYPE + encode_voters([ME, B]), 5, 5)])
    assert alone.changes == 1
    assert alone.core.voters == ("b", "me")


# --- what waits for a place in the log -------------------------------------------------------


@pytest.mark.parametrize("index", [1, 2, 9, 10])
def test_a_place_that_was_decided_earlier_tells_nothing(index: int) -> None:
    alone = leader()
    alone.acknowledge("b", 10)
    alone.tick()
    assert alone.core.applied_index == 10
    found: list[Outcome] = []
    alone.core.await_commit(index, 2, found.append)
    assert found == [Unknown("the command's place in the log was decided earlier")]


@pytest.mark.parametrize("term", [2, 3])
def test_a_place_that_is_decided_tells_whose_it_became(term: int) -> None:
    alone = leader()
    alone.acknowledge("b", 10)
    alone.tick()
    found: list[Outcome] = []
    alone.core.await_commit(11, term, found.append)
    assert alone.core.append(b"\x00y", None) == (11, 2)
    assert found == []
    alone.journal.sync()
    alone.core.synced()
    alone.acknowledge("b", 11)
    alone.tick()
    why = "another leader put another command in its place"
    assert found == [Committed(11, 11) if term == 2 else NotCommitted(why)]


# --- what may leave before the sync ----------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "may"),
    [
        ({"type": "append_entries", "term": 2, "prevLogIdx": 10, "commit_index": 1}, True),
        ({"type": "append_entries", "term": 2, "prevLogIdx": 11, "commit_index": 1}, False),
        ({"type": "append_entries", "term": 2, "prevLogIdx": 1, "commit_index": 11}, False),
        ({"type": "append_entries", "term": 1, "prevLogIdx": 1, "commit_index": 1}, False),
        ({"type": "commit", "term": 2, "commit_index": 10}, True),
        ({"type": "commit", "term": 2, "commit_index": 11}, False),
        ({"type": "commit", "term": 3, "commit_index": 1}, False),
        ({"type": "heartbeat", "term": 2}, True),
        ({"type": "heartbeat", "term": 3}, False),
        ({"type": "clock", "term": 2}, True),
        ({"type": "clock", "term": 1}, False),
        ({"type": "ask_clock"}, True),
        ({"type": "forward_response", "log_term": 2}, True),
        ({"type": "forward_response", "log_term": 3}, False),
        ({"type": "next_node_idx", "term": 2}, False),
        ({"type": "response_vote", "term": 2}, False),
    ],
)
def test_what_rests_on_nothing_that_a_power_loss_undoes_may_leave_early(
    message: dict[str, Plain], may: bool
) -> None:
    alone = leader()
    alone.core.append(b"\x00y", None)
    assert alone.core.may_leave_early(message) is may


def test_nothing_rests_on_a_vote_that_is_not_durable_or_for_another() -> None:
    alone = Alone(entries=commands([1, 1]))
    alone.campaign("b")
    assert not alone.core.may_leave_early({"type": "heartbeat", "term": 2})
    alone.journal.sync()
    assert alone.core.may_leave_early({"type": "heartbeat", "term": 2})
    alone.journal.set_vote(3, "b")
    alone.journal.sync()
    assert not alone.core.may_leave_early({"type": "heartbeat", "term": 3})


def test_two_servers_with_one_name_are_one_peer() -> None:
    assert {Peer(B), Peer(B)} == {Peer(B)}


def test_a_sign_of_life_leaves_what_is_known_of_the_leaders_log() -> None:
    alone = Alone(entries=commands([1, 1]), term=5)
    alone.follow("b")
    for _ in range(2):
        alone.take("b", "heartbeat", term=5, clock_ms=0, majority_age_ms=0)
        assert alone.core.matched_index == 3
    alone.take("b", "commit", term=5, commit_index=9)
    assert alone.core.commit_index == 3
