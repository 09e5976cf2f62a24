"""What a node goes by after a snapshot brought other voters, and after it began to lead."""

from lone_node import Lone

from gpupool.pool.model.ids import ServerId


def test_the_voters_of_a_snapshot_are_those_that_are_asked() -> None:
    lone = Lone(peers=("b", "c", "d"))
    assert {peer for peer, _ in lone.campaign()} == {"b", "c"}
    core = lone.node.core
    core.installed(10, (ServerId("me"), ServerId("b"), ServerId("d")))
    assert {peer for peer, _ in lone.campaign()} == {"b", "d"}


def test_a_new_leader_counts_silence_from_the_beginning_of_its_term() -> None:
    lone = Lone(("me", "b", "c", "d", "e"))
    for _ in range(50):
        lone.append(1, 1, [])
        lone.tick(0.1)
    lone.win("b", "c")
    ages = lone.node.health(lone.now).contact_age_s
    assert ages[ServerId("d")] < 1.0
