"""How long ago others were heard, and voters that a leader must not take away."""

from lone_node import Lone

from gpupool.pool.model.ids import ServerId
from gpupool.pool.ports import NotCommitted, Outcome

B, C = ServerId("b"), ServerId("c")


def test_a_voter_that_hung_up_was_heard_when_it_was_heard() -> None:
    lone = Lone()
    lone.tick(50.0)
    lone.take("b", "response_vote", term=1)
    lone.node.disconnected(B, lone.now)
    lone.node.set_servers([B, C])
    lone.tick(2.0)
    ages = lone.node.health(lone.now).contact_age_s
    assert (ages[B], ages[C]) == (2.0, 52.0)


def test_a_leader_does_not_take_its_own_vote_away() -> None:
    lone = Lone()
    lone.win("b")
    lone.acknowledge("b", lone.journal.last_index)
    told: list[Outcome] = []
    lone.set_voters([B, C], told.append)
    lone.tick()
    assert told == [NotCommitted("the leader must hand over before it is removed")]


def test_a_leader_has_heard_nobody_since_it_leads_and_not_since_it_campaigned() -> None:
    lone = Lone()
    lone.campaign()
    term = lone.node.core.term
    granted = {"term": term + 1, "current_term": term, "granted": True, "member": True}
    lone.take("b", "response_prevote", **granted)
    lone.tick(0.125)
    lone.take("b", "response_vote", term=term + 1)
    assert lone.node.leads
    lone.tick(0.25)
    assert lone.node.health(lone.now).contact_age_s[C] == 0.25


def test_a_voter_stays_connected_to_everyone_and_others_to_the_voters() -> None:
    d = ServerId("d")
    voter = Lone(("me", "b"), peers=("b",))
    voter.node.set_servers([C, ServerId("me"), d])
    assert voter.node.peers() == (B, C, d)
    voter.node.set_servers([d])
    assert voter.node.peers() == (B, d)
    other = Lone(("b", "c"), peers=("b",))
    other.node.set_servers([d])
    assert other.node.peers() == (B, C)
