"""Findings of a consensus audit (H3, H5, H6, H7), as shown, and their fixes."""

import math
from random import Random
from typing import Any

import pytest
from lone_node import Lone, entry

from gpupool.consensus.core.freshness import TableAge
from gpupool.consensus.core.library import COMMAND_TYPE
from gpupool.consensus.core.progress import Progress
from gpupool.consensus.protocol import closed_cbor
from gpupool.consensus.protocol.membership import encode_voters
from gpupool.consensus.protocol.raft_messages import FrameWriter
from gpupool.consensus.storage.store import MEMBERSHIP_TYPE, Storage
from gpupool.consensus.table_comparison import ApplyError
from gpupool.pool.model.ids import Plain, ServerId
from gpupool.simulations.kernel.simulated_disk import SimulatedDisk


def forward(lone: Lone, value: Plain) -> bytes:
    """Return the frame by which "b" forwards a command to the leader."""
    command = COMMAND_TYPE + closed_cbor.encode(value)
    term = lone.node.core.term
    return lone.frame("b", "forward", term=term, request_id=1, command=command, deadline_ms=10**9)


# --- H3: an error that one server alone has ----------------------------------------------------


@pytest.mark.parametrize("error", [MemoryError(), RecursionError("deep"), KeyError("a bug")])
def test_h3_a_foreign_error_in_apply_stops_the_server(error: Exception) -> None:
    lone = Lone(("me", "b", "c"), term=5)
    real = lone.machine.apply

    def apply(index: int, command: Plain) -> Plain:
        if command == "grant":
            raise error
        return real(index, command)

    lone.machine.apply = apply  # type: ignore[method-assign]
    lone.append(2, 1, [entry("grant", 3, 5), entry("b", 4, 5)], term=5, commit=2)
    with pytest.raises(ApplyError) as raised:
        lone.append(4, 5, [], term=5, commit=4)
    assert "entry 3" in str(raised.value)
    assert type(error).__name__ in str(raised.value)
    assert lone.node.core.applied_index == 2
    assert lone.machine.log == []
    lone.restart()  # Now there is memory.
    lone.append(4, 5, [], term=5, commit=4)
    assert lone.machine.log == ["grant", "b"]


@pytest.mark.parametrize("error", [MemoryError, RecursionError])
def test_h3_a_command_that_this_server_alone_cannot_read_stops_it(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    lone = Lone(("me", "b", "c"), term=5)
    lone.append(2, 1, [entry("unread", 3, 5)], term=5, commit=2)

    def decoder(*_arguments: object, **_options: object) -> Any:
        raise error

    monkeypatch.setattr(closed_cbor.cbor2, "CBORDecoder", decoder)
    closed_cbor.decode_command.cache_clear()
    lone.node.core.commit_to(3)
    with pytest.raises(ApplyError):
        lone.tick()


def test_h3_what_no_server_can_read_or_the_rules_refuse_is_a_result() -> None:
    lone = Lone(("me", "b", "c"), term=5)
    broken = (COMMAND_TYPE + b"\xff", 3, 5)
    lone.append(2, 1, [broken, entry("raise", 4, 5), entry("b", 5, 5)], term=5, commit=5)
    assert lone.machine.log == ["half done", "b"]


# --- H5: how far a follower may commit --------------------------------------------------------


def test_h5_what_matched_in_an_earlier_term_of_a_leader_is_not_committed_in_a_later_one() -> None:
    lone = Lone(("me", "b", "c"), term=5)
    entries = [entry("a", 3, 5), entry("b", 4, 5), entry("old", 5, 5), entry("older", 6, 5)]
    lone.append(2, 1, entries, term=5, commit=4)
    assert lone.machine.log == ["a", "b"]
    # In term 6 "c" led, and wrote other entries at 5 and 6. Now "b" leads again: its probe
    # arrives, the entries do not, and then it says how far it has committed.
    assert lone.append(4, 5, [], term=7, commit=4)[-1][1]["success"]
    lone.take("b", "commit", term=7, commit_index=7)
    assert lone.machine.log == ["a", "b"]
    assert lone.node.core.commit_index == 4


def test_h5_a_commit_goes_no_further_than_the_log_is_known_to_match() -> None:
    old = [entry("old", 3, 2), entry("older", 4, 2), entry("oldest", 5, 2)]
    lone = Lone(("me", "b", "c"), term=2, entries=old)
    lone.take("b", "heartbeat", term=5, clock_ms=0, majority_age_ms=0)
    lone.take("b", "commit", term=5, commit_index=5)
    assert lone.machine.log == [], "nothing of this leader's log has arrived"
    lone.append(3, 2, [], term=5, commit=1)
    lone.take("b", "commit", term=5, commit_index=5)
    assert lone.machine.log == ["old"], "up to 3 the logs are the same; 4 and 5 may differ"
    lone.append(5, 2, [], term=5, commit=1)
    lone.take("c", "commit", term=5, commit_index=5)
    lone.take("b", "commit", term=4, commit_index=5)
    assert lone.machine.log == ["old"], "of another server, and of another term"
    lone.take("b", "commit", term=5, commit_index=5)
    assert lone.machine.log == ["old", "older", "oldest"]


# --- H7: nothing is applied before this server has synced it -----------------------------------


def test_h7_a_single_voter_applies_a_forwarded_command_after_its_own_sync() -> None:
    lone = Lone(("me",), peers=("b",))
    lone.tick(1.0)
    lone.tick()
    lone.tick()
    lone.node.receive(ServerId("b"), forward(lone, "x"), lone.now)
    lone.node.step(lone.now)
    assert lone.machine.log == []
    lone.node.ready()
    assert lone.node.next_step_at() <= lone.now + 0.001
    lone.node.step(lone.now)
    assert lone.machine.log == ["x"]


def test_h7_a_single_voter_applies_nothing_of_its_old_log_before_it_is_synced_again() -> None:
    lone = Lone(("me",), entries=[entry("old", 3, 1)])
    lone.now += 1.0
    lone.node.step(lone.now)
    assert lone.node.leads
    assert lone.machine.log == [], "the vote and the first entry of the term are not on the disk"
    lone.node.ready()
    lone.node.step(lone.now)
    assert lone.machine.log == ["old"]


def test_h7_a_leader_counts_its_own_log_as_far_as_it_is_synced() -> None:
    """Two voters: the other one has the entry, this one has not synced it."""
    lone = Lone(("me", "b"))
    term = lone.win("b")
    lone.acknowledge("b", lone.journal.last_index)
    lone.tick()
    lone.node.receive(ServerId("b"), forward(lone, "x"), lone.now)
    index = lone.journal.last_index
    answer = {"term": term, "next_node_idx": index + 1, "success": True, "rejected": -1}
    lone.node.receive(ServerId("b"), lone.frame("b", "next_node_idx", **answer), lone.now)
    lone.node.step(lone.now)
    assert lone.machine.log == []
    lone.tick()
    lone.tick()
    assert lone.machine.log == ["x"]


def test_h7_entries_that_replaced_synced_ones_are_not_synced() -> None:
    """A follower that becomes the leader in the step in which entries gave way to others."""
    disk = SimulatedDisk(Random(1))
    journal = Storage(disk, create=True).journal
    names = [ServerId(name) for name in ("me", "b", "c")]
    journal.append(MEMBERSHIP_TYPE + encode_voters(names), 2, 1)
    journal.append(*entry("gives way", 3, 1))
    journal.set_vote(1, None)
    journal.sync()
    lone = Lone(("me", "b", "c"), disk=disk)
    assert lone.node.core.synced_index == 3
    lone.node.core.store(2, 1, [entry("new", 3, 2)])
    assert lone.node.core.synced_index == 2
    lone.tick()
    assert lone.node.core.synced_index == 3


# --- H6: how old the table is -------------------------------------------------------------------


def age_s(lone: Lone) -> float:
    return lone.node.majority_age_s(lone.now)


def test_h6_heartbeats_alone_do_not_make_an_old_table_young() -> None:
    lone = Lone(("me", "b", "c"), term=5)
    for number in range(100):
        lone.tick(0.06)
        lone.append(100_000, 5, [], term=5, commit=100_000, clock_runs=True)
        if number == 0:
            lone.tell_clock(commit=100_000)
    assert age_s(lone) == math.inf, "1 of 100,000 entries is applied"


def test_h6_a_follower_is_as_young_as_the_newest_heartbeat_up_to_which_it_is_applied() -> None:
    lone = Lone(("me", "b", "c"), term=5)
    lone.append(2, 1, [entry("a", 3, 5)], term=5, commit=3, clock_runs=True)
    lone.tell_clock(commit=3)
    for number in range(1, 31):
        lone.now += 0.1
        # Ever more is committed, and the entries do not come.
        lone.append(3, 5, [], term=5, commit=3 + number // 10, clock_runs=True)
    assert lone.node.core.applied_index == 3
    assert age_s(lone) == pytest.approx(2.1), "since then there is an entry that it lacks"
    lone.append(
        3,
        5,
        [entry(number, number, 5) for number in range(4, 6)],
        term=5,
        commit=6,
        clock_runs=True,
    )
    assert age_s(lone) == pytest.approx(0.1), "as of the last heartbeat before the third one"
    lone.append(5, 5, [entry(6, 6, 5)], term=5, commit=6, clock_runs=True)
    assert age_s(lone) == 0.0


def test_h6_a_follower_far_behind_remembers_few_heartbeats() -> None:
    age = TableAge()
    for number in range(10_000):
        age.said(number, float(number))
    assert age.as_of(40) == 40.0
    assert age.as_of(9_998) == 62.0
    assert age.as_of(9_999) == 9_999.0


def test_h6_a_leader_that_was_stopped_believes_no_answer_that_waited_for_it() -> None:
    lone = Lone(("me", "b", "c"), term=1)
    term = lone.win("b", "c")
    lone.acknowledge("b", lone.journal.last_index)
    lone.tick(0.1)
    assert age_s(lone) <= 0.1
    last = lone.journal.last_index
    answer = {"term": term, "next_node_idx": last + 1, "success": True, "rejected": -1}
    waiting = lone.frame("b", "next_node_idx", **answer)
    lone.now += 30.0  # The others have elected somebody in a later term, long ago.
    lone.node.receive(ServerId("b"), waiting, lone.now)
    assert age_s(lone) >= 30.0
    lone.node.step(lone.now)
    assert not lone.node.leads
    assert age_s(lone) >= 30.0


def test_h6_a_leader_counts_an_answer_from_when_its_question_was_sent() -> None:
    lone = Lone(("me", "b", "c"), term=1)
    lone.win("b", "c")
    lone.acknowledge("b", lone.journal.last_index)
    lone.acknowledge("c", lone.journal.last_index)
    sent_at = lone.now
    for _ in range(2):
        lone.tick(0.1)  # Two heartbeats to each, which "b" gets, and answers late.
    lone.now += 0.3
    lone.acknowledge("b", lone.journal.last_index)
    assert age_s(lone) == pytest.approx(lone.now - sent_at - 0.1)
    lone.acknowledge("b", lone.journal.last_index)
    assert age_s(lone) == pytest.approx(lone.now - sent_at - 0.2)


def test_h6_answers_fit_their_messages_in_order() -> None:
    progress = Progress()
    progress.asked(0, 5, 1.0)
    progress.asked(-1, -1, 2.0)
    progress.asked(5, 9, 3.0)
    progress.asked(9, 9, 4.0)
    assert progress.sent_at(rejected=7) is None, "an answer to nothing proves nothing"
    assert progress.sent_at(rejected=-1) == 2.0, "the answer before it was lost"
    assert progress.sent_at(match=5) is None
    assert progress.sent_at(rejected=5) == 3.0
    assert progress.sent_at(match=20) == 4.0, "a follower's log may be longer"
    progress.asked(9, 9, 5.0)
    progress.connection_begins()
    assert progress.sent_at(match=9) is None


def test_h6_answers_of_an_earlier_connection_are_dropped() -> None:
    lone = Lone(("me", "b", "c"), term=1)
    term = lone.win("b", "c")
    last = lone.journal.last_index
    answer = {"term": term, "next_node_idx": last + 1, "success": True, "rejected": -1}
    late = lone.frame("b", "next_node_idx", **answer)
    lone.take("b", "alive", applied_index=1)
    later = lone.frame("b", "next_node_idx", **answer)
    lone.node.connected(ServerId("b"), lone.now)
    for frame in (late, later):
        lone.take_frame("b", frame)
    assert lone.node.core.match_index(ServerId("b")) == 0


def test_h6_a_new_leader_has_an_old_table_until_its_own_entry_is_applied() -> None:
    lone = Lone(("me", "b", "c"), term=5)
    lone.append(2, 1, [], term=5, commit=1, clock_runs=True)
    lone.tell_clock()
    lone.tick(0.11)
    lone.append(2, 1, [entry("revoked", 3, 5)], term=5, commit=2, clock_runs=True)
    heard_at = lone.now
    lone.win("b", "c")
    assert age_s(lone) == pytest.approx(lone.now - heard_at), "3 may be committed, and is unknown"
    lone.acknowledge("b", lone.journal.last_index)
    assert lone.machine.log == ["revoked"]
    assert age_s(lone) < 0.1


def test_h6_a_heartbeat_that_was_held_up_is_as_old_as_its_way_was_long() -> None:
    lone = Lone(("me", "b", "c"), term=5)
    clock_ms = 1_000_000

    def heartbeat() -> None:
        lone.take(
            "b",
            "append_entries",
            term=5,
            commit_index=2,
            prevLogIdx=2,
            prevLogTerm=1,
            entries=b"",
            clock_ms=clock_ms,
            majority_age_ms=0,
        )

    for number in range(100):
        lone.now += 0.06
        clock_ms += 57  # Its clock is 5 % slower than this one's.
        heartbeat()
        if number == 0:
            assert age_s(lone) == math.inf, "the first may have waited"
            lone.tell_clock(clock_ms=clock_ms)
        assert age_s(lone) == 0.0
    for _ in range(10):
        lone.tick(0.3)  # It was sent at the beginning, and the network is dark for 3 s.
    heartbeat()
    assert 2.5 < age_s(lone) <= 3.0


def test_h6_a_follower_that_was_stopped_believes_no_heartbeat_that_waited_for_it() -> None:
    lone = Lone(("me", "b", "c"), term=5)
    for seconds in (0.06, 30.0):  # The second one is of a new leader, with another clock.
        lone.now += seconds
        leader = "b" if seconds < 1 else "c"
        lone.append(2, 1, [], term=5 + (leader == "c"), commit=1, leader=leader, clock_runs=True)
    assert age_s(lone) == math.inf, "both were the first of their leaders"
    lone.tell_clock("c", term=6)
    assert age_s(lone) == 0.0


def test_h6_what_waited_while_a_follower_stood_still_is_believed_after_an_answer_alone() -> None:
    """The same leader goes on, and this server's own clock may have stood as well."""
    lone = Lone(("me", "b", "c"), term=5)
    lone.append(2, 1, [], clock_runs=True)
    lone.tell_clock()
    waiting = [lone.now + 0.06 * number for number in range(1, 40)]
    lone.now += 2.6
    for sent_at in waiting:
        lone.append(2, 1, [], sent_at=sent_at)
    assert age_s(lone) == pytest.approx(2.6)
    lone.tick(0.1)
    assert age_s(lone) == pytest.approx(2.7)
    lone.tell_clock()
    assert age_s(lone) == pytest.approx(0.1), "as of the question"


def test_a_new_leaders_heartbeats_from_behind_a_partition_are_not_believed() -> None:
    """They waited since the partition began, and nothing of this leader was heard before.

    A slow disk lets the follower read them one after the other, for seconds (seed 7043).
    """
    lone = Lone(("me", "b", "c"), term=5)
    lone.append(2, 1, [], leader="b", clock_runs=True)
    lone.tell_clock("b")
    assert age_s(lone) == 0.0
    for _ in range(12):
        lone.tick(0.25)
    began = lone.now - 3.0
    for number in range(1, 6):
        lone.append(2, 1, [], term=6, leader="c", sent_at=began + 0.06 * number)
        assert age_s(lone) == pytest.approx(3.0 + 0.5 * (number - 1))
        lone.tick(0.5)
    lone.tell_clock("c", term=6)
    assert age_s(lone) == pytest.approx(0.5), "as of the newest of five questions"


def test_a_lost_question_is_asked_again_and_a_late_answer_counts_from_its_own() -> None:
    lone = Lone(("me", "b", "c"), term=5)
    lone.append(2, 1, [], clock_runs=True)
    first, asked_at = lone.asked_clock["b"], lone.now
    lone.tick(0.4)
    lone.append(2, 1, [], clock_runs=True)
    assert lone.asked_clock["b"] == first, "it may still be answered"
    lone.tick(0.2)
    lone.append(2, 1, [], clock_runs=True)
    assert lone.asked_clock["b"] == first + 1
    lone.asked_clock["b"] = first + 7
    lone.tell_clock()
    assert age_s(lone) == math.inf, "an answer to nothing"
    lone.asked_clock["b"] = first
    lone.tell_clock()
    assert age_s(lone) == pytest.approx(lone.now - asked_at)


def test_an_answer_to_a_question_that_waited_gives_way_to_later_ones() -> None:
    """One direction was dark for 4 s, and then it carried all questions at once (seed 710559)."""
    lone = Lone(("me", "b", "c"), term=5)
    lone.append(2, 1, [], clock_runs=True)
    first = lone.asked_clock["b"]
    for _ in range(6):
        lone.tick(0.6)
        lone.append(2, 1, [], clock_runs=True)
    newest = lone.asked_clock["b"]
    lone.tick(0.1)
    for number, age in ((first, 3.7), (first + 3, 1.9), (first + 1, 1.9), (newest, 0.1)):
        lone.asked_clock["b"] = number
        lone.tell_clock()
        assert age_s(lone) == pytest.approx(age)
    asked = lone.asked_clock["b"]
    lone.tick(0.6)
    lone.append(2, 1, [], clock_runs=True)
    assert age_s(lone) < 0.1
    assert lone.asked_clock["b"] == asked, "it knows enough"


def test_a_late_answer_is_followed_by_another_question() -> None:
    """Both directions were dark, so no message of the leader prompted a question meanwhile."""
    lone = Lone(("me", "b", "c"), term=5)
    lone.append(2, 1, [], clock_runs=True)
    first = lone.asked_clock["b"]
    for _ in range(8):
        lone.tick(0.5)
    lone.tell_clock()
    assert age_s(lone) == pytest.approx(4.0), "until an answer is quicker"
    assert lone.asked_clock["b"] == first + 1
    lone.tick(0.1)
    lone.tell_clock()
    assert age_s(lone) == pytest.approx(0.1)
    lone.tick(0.6)
    lone.append(2, 1, [], clock_runs=True)
    assert age_s(lone) < 0.1
    assert lone.asked_clock["b"] == first + 1


def test_a_question_that_went_with_its_connection_is_asked_again_at_once() -> None:
    lone = Lone(("me", "b", "c"), term=5)
    lone.append(2, 1, [], clock_runs=True)
    first = lone.asked_clock["b"]
    lone.node.disconnected(ServerId("b"), lone.now)
    lone.writers[ServerId("b")] = FrameWriter(lone.epoch + 1)
    lone.node.connected(ServerId("b"), lone.now)
    lone.append(2, 1, [], clock_runs=True)
    assert lone.asked_clock["b"] == first + 1


def test_leaders_alone_answer_a_question_for_their_clock() -> None:
    lone = Lone(("me", "b", "c"), term=1)
    assert lone.take("b", "ask_clock", number=7) == []
    term = lone.win("b", "c")
    ((peer, answer),) = lone.take("b", "ask_clock", number=7)
    assert (peer, answer["type"], answer["number"], answer["term"]) == ("b", "clock", 7, term)
    assert answer["clock_ms"] == int(1000 * lone.now)


PULLED: dict[str, Any] = {
    "term": 3,
    "commit_index": 1,
    "prevLogIdx": 1,
    "prevLogTerm": 0,
    "entries": b"",
    "leader": "c",
    "clock_ms": 0,
    "majority_age_ms": 100,
}
"""An answer to a pull, of a voter that heard from its leader 0.1 s before."""


def without_a_vote(*voters: str) -> Lone:
    lone = Lone((), peers=voters)
    lone.node.set_servers([ServerId(each) for each in voters])
    return lone


def test_h6_an_answer_to_a_pull_is_no_younger_than_it_can_be() -> None:
    lone = without_a_vote("b", "c")
    while ("b", "pull") not in [(peer, message["type"]) for peer, message in lone.tick(0.5)]:
        pass
    lone.tick(0.7)
    lone.tick(0.7)  # The voter holds it back for 0.5 s; so 0.9 s went by on the way.
    lone.take("b", "pulled", **PULLED)
    assert age_s(lone) == pytest.approx(1.0)
    lone.tick(0.4)
    lone.take("b", "pulled", **PULLED)
    assert age_s(lone) == pytest.approx(0.1)


def pulls_until(lone: Lone, peer: str) -> float:
    """Let time pass until a server is asked; return that instant."""
    while (peer, "pull") not in [(to, message["type"]) for to, message in lone.tick(0.1)]:
        pass
    return lone.now


def test_an_answer_may_be_to_a_pull_that_was_given_up() -> None:
    """Seed 10070228: cut off, it asked another source, and then the first one anew."""
    lone = without_a_vote("b", "c")
    first = pulls_until(lone, "b")
    pulls_until(lone, "c")
    second = pulls_until(lone, "b")
    assert second > first + 2
    lone.take("b", "pulled", **PULLED)  # that of the first pull: it says nothing of the time since
    assert age_s(lone) == pytest.approx(lone.now - first - 0.5 + 0.1)
    lone.take("b", "pulled", **PULLED)
    assert age_s(lone) == pytest.approx(0.1)
    lone.take("b", "pulled", **PULLED)  # to the one that followed the first answer
    lone.tick(3.0)
    lone.take("b", "pulled", **PULLED)  # to that which followed the second
    assert age_s(lone) > 2.5


def answers_by_a_new_connection(lone: Lone) -> None:
    """Connect "b" again, and see that its first answer is one to the pull that was just made."""
    lone.writers[ServerId("b")] = FrameWriter(lone.epoch + 1)
    lone.node.connected(ServerId("b"), lone.now)
    pulls_until(lone, "b")
    lone.take("b", "pulled", **PULLED)
    assert age_s(lone) == pytest.approx(0.1)


def test_a_connection_that_leaves_pulls_unanswered_is_made_anew() -> None:
    """Else its table would seem older by a pull for each of these, for good."""
    lone = without_a_vote("b")
    for lost in range(2):  # It was asked once before, when it connected.
        for _ in range(lost):
            pulls_until(lone, "b")
        pulls_until(lone, "b")
        assert lone.node.peers() == ("b",)
        lone.take("b", "pulled", **PULLED)
    assert lone.node.peers() == ()
    lone.node.disconnected(ServerId("b"), lone.now)
    assert lone.node.peers() == ("b",)
    answers_by_a_new_connection(lone)


def test_a_new_connection_brings_no_answers_of_the_former_one() -> None:
    lone = without_a_vote("b", "c")
    pulls_until(lone, "b")
    pulls_until(lone, "c")
    lone.node.disconnected(ServerId("b"), lone.now)
    answers_by_a_new_connection(lone)


def test_each_pull_has_an_answer_of_its_own() -> None:
    lone = Lone(("me", "b", "c"), peers=("b", "c", "d"), term=1)
    lone.win("b", "c")
    answers = [
        message
        for _ in range(3)
        for to, message in lone.take("d", "pull", next_index=100)
        if (to, message["type"]) == ("d", "pulled")
    ]
    assert len(answers) == 2
    later = [m for to, m in lone.tick(0.6) if (to, m["type"]) == ("d", "pulled")]
    assert len(later) == 1
