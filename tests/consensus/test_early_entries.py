"""A leader's entries leave before its own sync, and nothing that promises something does."""

from typing import Any

from lone_node import ME, Lone, entry

from gpupool.consensus.protocol.raft_messages import decode_message
from gpupool.consensus.protocol.raft_settings import BATCH_BYTES_MAX
from gpupool.pool.model.ids import ServerId
from gpupool.pool.ports import Committed

Sent = list[tuple[str, dict[str, Any]]]


def decoded(lone: Lone, frames: list[tuple[ServerId, bytes]]) -> Sent:
    found: Sent = []
    for peer, frame in frames:
        body = lone.readers[peer].body(frame)
        assert body is not None, "frames leave in the order of their numbers"
        found.append((peer, decode_message(body)))
    return found


def early(lone: Lone) -> Sent:
    """Step, and return the messages that leave before the sync."""
    lone.node.step(lone.now)
    return decoded(lone, lone.node.early())


def late(lone: Lone) -> Sent:
    """Sync, and return the messages that leave only after the sync."""
    ready = lone.node.ready()
    for callback, outcome in ready.resolved:
        callback(outcome)
    return decoded(lone, ready.frames)


def leading() -> Lone:
    lone = Lone()
    lone.win("b", "c")
    for peer in ("b", "c"):
        lone.acknowledge(peer, lone.journal.last_index)
    lone.tick()
    return lone


def test_entries_leave_before_the_sync_and_count_as_the_leaders_own_after_it() -> None:
    lone = leading()
    before = lone.node.core.commit_index
    lone.propose("x")
    sent = early(lone)
    assert {(peer, message["type"]) for peer, message in sent} == {
        ("b", "append_entries"),
        ("c", "append_entries"),
    }
    assert all(message["entries"] for _, message in sent)
    assert lone.journal.dirty, "its own disk has not begun"
    assert lone.node.core.synced_index == before
    assert late(lone) == []
    assert lone.outcomes == []
    lone.acknowledge("b", lone.journal.last_index)
    assert isinstance(lone.outcomes[0], Committed)


def test_a_leader_that_has_not_synced_does_not_count_itself() -> None:
    lone = leading()
    last = lone.node.core.commit_index
    lone.propose("x")
    early(lone)
    frame = lone.frame(
        "b",
        "next_node_idx",
        term=lone.node.core.term,
        next_node_idx=last + 2,
        success=True,
        rejected=-1,
    )
    lone.node.receive(ServerId("b"), frame, lone.now)
    lone.node.step(lone.now)
    assert lone.node.core.commit_index == last, "one of three has it on its disk"
    late(lone)
    lone.tick()
    assert lone.node.core.commit_index == last + 1


def test_with_nothing_to_sync_nothing_leaves_early() -> None:
    lone = leading()
    lone.now = lone.node.next_step_at()
    assert early(lone) == []
    assert {message["type"] for _, message in late(lone)} == {"append_entries"}


def test_entries_behind_unsynced_ones_wait() -> None:
    """Followers remember the entry before those sent as one that the leader has."""
    lone = leading()
    synced = lone.node.core.synced_index
    for letter in "abc":
        lone.propose(letter * 30_000, ttl_s=60)
    while lone.journal.last_index - synced < 2 * BATCH_BYTES_MAX // 30_000:
        lone.propose("x" * 30_000, ttl_s=60)
        lone.node.step(lone.now)
    sent = decoded(lone, lone.node.early())
    sent += decoded(lone, lone.node.early())
    assert {message["prevLogIdx"] for _, message in sent} == {synced}
    rest = late(lone)
    assert rest
    assert all(message["prevLogIdx"] > synced for _, message in rest)


def test_a_leader_that_lost_power_behind_its_early_entries_is_not_taken_for_an_old_copy() -> None:
    """A follower remembers the leader's entry before the early ones, and not the early ones."""
    follower = Lone(term=1)
    follower.append(2, 1, [entry("x", 3, 5)], term=5, commit=2)
    assert follower.journal.last_index == 3
    assert follower.node.storage.memory.of(ServerId("b")).index == 2


def test_a_leader_whose_vote_is_not_durable_sends_nothing_early() -> None:
    lone = leading()
    lone.propose("x")
    lone.journal.synced_vote = (lone.node.core.term, None)
    assert early(lone) == []
    lone.journal.synced_vote = (lone.node.core.term - 1, ME)
    assert early(lone) == []
    assert {message["type"] for _, message in late(lone)} == {"append_entries"}


def test_a_message_that_waits_holds_up_those_behind_it_to_the_same_peer() -> None:
    lone = leading()
    lone.propose("x")
    lone.node.send(ServerId("b"), {"type": "timeout_now", "term": lone.node.core.term})
    assert [peer for peer, _ in early(lone)] == ["c"]
    assert [(p, m["type"]) for p, m in late(lone)] == [
        ("b", "timeout_now"),
        ("b", "append_entries"),
    ]


def test_votes_and_acknowledgements_wait_for_the_sync() -> None:
    lone = Lone()
    lone.node.receive(
        ServerId("b"),
        lone.frame("b", "request_vote", term=7, last_log_index=9, last_log_term=6, hand_over=True),
        lone.now,
    )
    assert early(lone) == []
    assert [message["type"] for _, message in late(lone)] == ["response_vote"]
    answers = lone.append(2, 1, [entry("x", 3, 7)], term=7)
    assert [message["type"] for _, message in answers] == ["ask_clock", "next_node_idx"]
    lone = Lone()
    lone.now = lone.node.next_step_at()
    follower_log = lone.journal.last_index
    lone.node.receive(
        ServerId("b"),
        lone.frame(
            "b",
            "append_entries",
            term=7,
            commit_index=1,
            prevLogIdx=follower_log,
            prevLogTerm=1,
            entries=b"",
            clock_ms=0,
            majority_age_ms=0,
        ),
        lone.now,
    )
    assert lone.journal.dirty, "the term is new"
    assert [message["type"] for _, message in early(lone)] == ["ask_clock"]
    assert [message["type"] for _, message in late(lone)] == ["next_node_idx"]
