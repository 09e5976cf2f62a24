"""A follower that rejects appended entries: one repair is quick, an endless one is slow."""

from typing import Any

import pytest
from lone_node import Lone, entry

from gpupool.consensus.core.library import LEADER
from gpupool.consensus.core.progress import REJECTIONS_AT_ONCE
from gpupool.consensus.protocol.raft_settings import ConsensusSettings
from gpupool.consensus.storage.journal import Entry, decode_entries, encode_entries
from gpupool.pool.model.ids import ServerId

B = ServerId("b")
HEARTBEAT_S = 1.001 * ConsensusSettings().heartbeat_s


class Follower:
    """The peer "b" of a leader; "c" has the leader's whole log, and answers everything."""

    def __init__(self, lone: Lone, log: list[Entry], *, forgets: bool = False) -> None:
        self.lone = lone
        self.terms = {index: term for _, index, term in log}
        self.forgets = forgets  # it says that it has what it got, and has lost it a moment later
        self.got = 0
        self.largest = 0

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Answer as a follower does, with the first index of a term that conflicts."""
        previous, last = message["prevLogIdx"], max(self.terms)
        term = self.lone.node.core.term
        if previous > last or self.terms[previous] != message["prevLogTerm"]:
            hint = last + 1
            if previous <= last:
                hint = min(i for i, t in self.terms.items() if t == self.terms[previous])
            return {"term": term, "next_node_idx": hint, "success": False, "rejected": previous}
        entries = decode_entries(message["entries"])
        match = previous + len(entries)
        if not self.forgets:
            self.terms = {i: t for i, t in self.terms.items() if i <= previous}
            self.terms |= {index: its for _, index, its in entries}
        return {"term": term, "next_node_idx": match + 1, "success": True, "rejected": -1}

    def follow(self, sent: list[tuple[str, dict[str, Any]]], *, at_most: int) -> None:
        """Answer all messages, and the replies to the answers, without any time passing."""
        lone = self.lone
        while sent and self.got < at_most:
            peer, message = sent.pop(0)
            if message["type"] != "append_entries":
                continue
            if peer == B:
                self.got += 1
                self.largest = max(self.largest, len(message["entries"]))
                sent += lone.take(B, "next_node_idx", **self.answer(message))
            else:
                match = message["prevLogIdx"] + len(decode_entries(message["entries"]))
                lone.acknowledge("c", match)


def leader_of(entries: list[Entry]) -> tuple[Lone, list[tuple[str, dict[str, Any]]]]:
    """Return a leader with these entries, and its first messages."""
    lone = Lone(entries=entries, term=entries[-1][2])
    lone.win("c")
    lone.acknowledge("c", lone.journal.last_index)
    lone.node.disconnected(B, lone.now)
    lone.tick()
    lone.node.connected(B, lone.now)
    return lone, lone.tick()


@pytest.mark.parametrize("terms", [1, 3, 20, REJECTIONS_AT_ONCE])
def test_a_log_that_differs_is_repaired_at_once_by_a_round_trip_for_each_term(terms: int) -> None:
    lone, sent = leader_of([entry(i, i, 1) for i in range(3, 300)])
    fork = [entry(i, i, 1 if i < 3 else 2 + (i - 3) % terms) for i in range(2, 300)]
    fork.sort(key=lambda each: each[2])
    fork = [(data, index, term) for index, (data, _, term) in enumerate(fork, 2)]
    follower = Follower(lone, fork)
    follower.follow(sent, at_most=1000)
    assert max(follower.terms) == lone.journal.last_index, "no time had to pass"
    assert follower.got <= terms + 3


def test_a_follower_that_forgets_at_once_costs_a_message_a_heartbeat() -> None:
    """It got 64 KiB and a megabyte as fast as it could answer."""
    lone, sent = leader_of([entry("x" * 1000, i, 1) for i in range(3, 300)])
    follower = Follower(lone, [entry(None, 2, 1)], forgets=True)
    follower.follow(sent, at_most=10_000)
    assert 0 < follower.got <= 3 * REJECTIONS_AT_ONCE, "a few are answered at once"
    assert follower.largest > 64 * 1000
    follower.got = 0
    for _ in range(100):
        follower.follow(lone.tick(HEARTBEAT_S), at_most=10_000)
    assert lone.node.core.state == LEADER
    assert 100 <= follower.got <= 4 * 100
    # Once it keeps what it gets, the next heartbeat repairs it.
    follower.forgets = False
    for _ in range(2):
        follower.follow(lone.tick(HEARTBEAT_S), at_most=10_000)
    assert max(follower.terms) == lone.journal.last_index
    assert lone.node.core.match_index(B) == lone.journal.last_index


def test_patience_comes_back_with_the_heartbeats() -> None:
    lone, sent = leader_of([entry("x" * 1000, i, 1) for i in range(3, 300)])
    follower = Follower(lone, [entry(None, 2, 1)], forgets=True)
    follower.follow(sent, at_most=10_000)
    follower.forgets = False
    for _ in range(REJECTIONS_AT_ONCE):
        follower.follow(lone.tick(HEARTBEAT_S), at_most=10_000)
    follower.terms, follower.forgets, follower.got = {2: 1}, True, 0
    follower.follow(lone.tick(HEARTBEAT_S), at_most=10_000)
    assert follower.got > REJECTIONS_AT_ONCE


def test_a_follower_without_a_vote_does_not_ask_for_the_same_without_a_pause() -> None:
    """A source with entries that never fit was asked again as fast as it answered."""
    lone = Lone((), peers=("b", "c"))
    lone.node.set_servers([B, ServerId("c")])
    lone.now += 2.0
    pulls = [peer for peer, message in lone.tick() if message["type"] == "pull"]
    asked = 0
    while lone.now < 120.0:
        while pulls:
            asked += 1
            assert asked < 100, "as fast as it is answered"
            answer = {"term": 3, "commit_index": 9, "prevLogIdx": 8, "prevLogTerm": 3}
            answer |= {"entries": encode_entries([entry("x", 9, 3)]), "leader": "c"}
            sent = lone.take(pulls.pop(), "pulled", clock_ms=0, majority_age_ms=0, **answer)
            pulls += [peer for peer, message in sent if message["type"] == "pull"]
        pulls += [peer for peer, message in lone.tick(0.05) if message["type"] == "pull"]
    assert 18 <= asked <= 40, "18 seconds, and two a second at most"
    # What fits is taken, and more is asked for at once.
    fits = encode_entries([entry("x", 2, 3)])
    answer = {"term": 3, "commit_index": 2, "prevLogIdx": 1, "prevLogTerm": 0, "entries": fits}
    while not pulls:
        pulls = [peer for peer, message in lone.tick(0.05) if message["type"] == "pull"]
    source = pulls[0]
    sent = lone.take(source, "pulled", leader="c", clock_ms=0, majority_age_ms=0, **answer)
    assert [message["next_index"] for _, message in sent if message["type"] == "pull"] == [3]
