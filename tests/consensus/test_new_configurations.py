"""A node's configuration after a snapshot with other voters, and after it began to lead."""

from lone_node import Lone, entry

from gpupool.consensus.protocol.membership import encode_voters
from gpupool.consensus.protocol.raft_settings import ConsensusSettings
from gpupool.consensus.storage.journal import Entry, encode_entries
from gpupool.consensus.storage.store import MEMBERSHIP_TYPE
from gpupool.pool.model.ids import ServerId
from gpupool.pool.ports import Role


def test_the_voters_of_a_snapshot_are_those_that_are_asked() -> None:
    lone = Lone(peers=("b", "c", "d"))
    assert {peer for peer, _ in lone.campaign()} == {"b", "c"}
    core = lone.node.core
    core.installed(10, (ServerId("me"), ServerId("b"), ServerId("d")))
    assert {peer for peer, _ in lone.campaign()} == {"b", "d"}


def test_a_snapshot_has_the_voters_of_its_index_and_not_those_that_may_be_undone() -> None:
    """A mutant of an audit, which put the newest voters there, survived all tests."""
    lone = Lone(("me", "b", "c"), settings=ConsensusSettings(snapshot_entries=4))
    commands = [entry(number, number, 5) for number in range(3, 12)]
    voters = [*lone.peers, ServerId("me"), ServerId("d")]
    newest: Entry = (MEMBERSHIP_TYPE + encode_voters(voters), 12, 5)
    lone.append(2, 1, [*commands, newest], commit=11)
    lone.tick()
    assert set(lone.node.core.voters) == {"me", "b", "c", "d"}, "in force as soon as it is appended"
    latest = lone.node.storage.snapshots.latest
    assert latest is not None
    assert latest.index == 11
    assert set(latest.voters) == {"me", "b", "c"}


def test_a_new_leader_counts_silence_from_the_beginning_of_its_term() -> None:
    lone = Lone(("me", "b", "c", "d", "e"))
    for _ in range(50):
        lone.append(1, 1, [])
        lone.tick(0.1)
    lone.win("b", "c")
    ages = lone.node.health(lone.now).contact_age_s
    assert ages[ServerId("d")] < 1.0


def test_a_newcomer_stays_with_its_source_through_configurations_of_long_ago() -> None:
    """Seeds 5011 and 5025: each piece of an old log cost it ``lost_s`` until it asked anew."""
    lone = Lone((), peers=("b", "c"))
    lone.node.set_servers([ServerId("b"), ServerId("c")])
    source = next(peer for peer, message in lone.tick(2.0) if message["type"] == "pull")
    for index, gone in enumerate(("x", "y", "z"), start=2):
        entry: Entry = (MEMBERSHIP_TYPE + encode_voters([ServerId(gone)]), index, 1)
        sent = lone.take(
            source,
            "pulled",
            term=5,
            commit_index=100,
            prevLogIdx=index - 1,
            prevLogTerm=1 if index > 2 else 0,
            entries=encode_entries([entry]),
            leader="b",
            clock_ms=0,
            majority_age_ms=0,
        )
        assert [peer for peer, message in sent if message["type"] == "pull"] == [source]
        assert lone.node.core.commit_index == index
        assert source in lone.node.peers(), "it hangs up on the only one that helps"


def test_a_server_whose_voters_have_all_left_pulls_from_those_that_are_there() -> None:
    """Seed 10211808: it crashed in the midst of an old log, and asked nobody for ``lost_s``."""
    lone = Lone(("x", "y"), peers=("b", "c"))
    asked: list[str] = []
    for _ in range(20):
        sent = lone.tick(0.2)
        asked += [peer for peer, message in sent if message["type"] == "pull"]
    assert set(asked) == {"b", "c"}
    voter = Lone(("x", "y", "me"), peers=("b", "c"))
    assert not [m for _ in range(20) for _, m in voter.tick(0.2) if m["type"] == "pull"]


def test_a_server_that_lost_its_vote_while_it_was_away_follows_at_once() -> None:
    """Seed 700044: each piece of the log cost the server one election timeout."""
    lone = Lone(("me", "b", "c"))
    while not (asked := [m for _, m in lone.tick(0.02) if m["type"] == "request_prevote"]):
        pass
    refusal = {"term": asked[0]["term"], "current_term": 5, "granted": False, "member": False}
    sent = lone.take("b", "response_prevote", **refusal)
    for index in range(3, 8):
        (source,) = [peer for peer, message in sent if message["type"] == "pull"]
        # Its vote counts as far as it knows: that it lost it comes with the last of these.
        others = encode_voters([ServerId("b"), ServerId("c")])
        command = MEMBERSHIP_TYPE + others if index == 7 else entry(index, index, 1)[0]
        sent = lone.take(
            source,
            "pulled",
            term=5,
            commit_index=100,
            prevLogIdx=index - 1,
            prevLogTerm=1,
            entries=encode_entries([(command, index, 1)]),
            leader="c",
            clock_ms=0,
            majority_age_ms=0,
        )
        assert lone.node.core.commit_index == index
    assert lone.node.health(lone.now).role is Role.LEARNER


def test_a_voter_that_has_not_answered_does_not_count_when_another_one_leaves() -> None:
    """Seed 1284: it had only just connected, and said then that it had lost its journal's end."""
    lone = Lone(("me", "b", "c"))
    lone.win("b", "c")
    last = lone.journal.last_index
    lone.acknowledge("b", last)
    lone.node.reconcile_voters([ServerId("me"), ServerId("c")])
    lone.tick()
    assert lone.node.core.settled
    assert set(lone.node.core.voters) == {"me", "b", "c"}
    lone.acknowledge("c", last)
    lone.tick()
    assert set(lone.node.core.voters) == {"me", "c"}


def test_a_piece_of_a_snapshot_from_a_deposed_leader_is_refused_with_the_newer_term() -> None:
    lone = Lone(("me", "b", "c"), term=5)
    piece = {"index": 9, "total": 100, "offset": 0, "data": b"piece"}
    sent = lone.take("b", "snapshot", term=4, leading=True, **piece)
    assert [(message["type"], message["term"]) for _, message in sent] == [("next_node_idx", 5)]
    sent = lone.take("b", "snapshot", term=5, leading=True, **piece)
    assert "snapshot_ack" in [message["type"] for _, message in sent]
