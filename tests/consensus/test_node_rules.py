"""One RaftNode's handling of proposals, deadlines, learners, voters and health."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lone_node import Lone, entry, take
from raft_world import Faults, World

from gpupool.consensus.core.library import LEADER
from gpupool.consensus.core.raft_log import SafetyError
from gpupool.consensus.peer_frames import PeerFrames
from gpupool.consensus.protocol import closed_cbor, membership
from gpupool.consensus.protocol.membership import Configuration, Configurations
from gpupool.consensus.protocol.raft_messages import (
    FrameReader,
    FrameWriter,
    Message,
    decode_message,
    encode_message,
)
from gpupool.consensus.protocol.raft_settings import (
    QUEUE_COMMANDS_MAX,
    UNCOMMITTED_ENTRIES_MAX,
    VOTERS_MAX,
    ConsensusSettings,
)
from gpupool.consensus.storage.journal import encode_entries
from gpupool.consensus.storage.snapshot import Snapshot
from gpupool.consensus.storage.store import MEMBERSHIP_TYPE
from gpupool.pool.errors import RemoteProtocolError
from gpupool.pool.model.ids import Plain, ServerId
from gpupool.pool.ports import Committed, NotCommitted, Outcome, Refusal, Role, Unknown
from gpupool.simulations.kernel.simulated_network import FrameChances


def forwards(sent: list[tuple[str, Message]]) -> list[Message]:
    return [message for _, message in sent if message["type"] == "forward"]


# --- proposals and their time ----------------------------------------------------------------


def test_a_command_whose_time_is_up_is_not_appended() -> None:
    lone = Lone()
    lone.win("b")
    last = lone.journal.last_index
    lone.propose("late", ttl_s=0.01)
    lone.tick(0.02)
    assert lone.outcomes == [NotCommitted("the time was up before it could be sent")]
    assert lone.journal.last_index == last


def test_an_appended_command_without_an_answer_is_unknown() -> None:
    lone = Lone()
    lone.win("b")
    lone.propose("x", ttl_s=0.1)
    lone.tick()
    lone.tick(0.05)
    assert lone.outcomes == []
    lone.tick(0.06)
    assert lone.outcomes == [Unknown("no answer in time")]
    lone.acknowledge("b", lone.journal.last_index)
    lone.tick()
    assert lone.machine.log == ["x"]
    assert len(lone.outcomes) == 1, "one outcome for one proposal"


def test_a_forwarded_command_states_its_deadline_on_the_leaders_clock() -> None:
    lone = Lone()
    lone.append(2, 1, [])  # The leader's clock shows 0 now.
    lone.now += 3.0
    lone.append(2, 1, [])  # This heartbeat was held up for 3 s: erring on the early side.
    lone.propose("x", ttl_s=2.0)
    (forward,) = forwards(lone.tick())
    assert forward["deadline_ms"] == 2000


def test_a_server_without_a_vote_states_deadlines_on_the_leaders_clock_too() -> None:
    lone = Lone(("b", "c"))
    answer = {"term": 5, "commit_index": 2, "prevLogIdx": 2, "prevLogTerm": 1, "entries": b""}
    while not any(message["type"] == "pull" for peer, message in lone.tick(1.0) if peer == "b"):
        pass
    lone.take("b", "pulled", leader="c", clock_ms=7000, majority_age_ms=0, **answer)
    lone.now += 3.0  # the leader's clock shows 10 s
    lone.propose("x", ttl_s=2.0)
    (forward,) = forwards(lone.tick())
    assert forward["deadline_ms"] == 12000


@pytest.mark.parametrize(
    ("term_offset", "deadline_s", "reason"),
    [
        (0, -0.001, "the time was up before it could be appended"),
        (-1, 5.0, "the server asked does not lead any more"),
        (1, 5.0, "the server asked does not lead any more"),
    ],
)
def test_a_leader_refuses_what_comes_late(term_offset: int, deadline_s: float, reason: str) -> None:
    lone = Lone()
    term = lone.win("b")
    last = lone.journal.last_index
    sent = lone.take(
        "b",
        "forward",
        term=term + term_offset,
        request_id=7,
        command=entry("late", 1, 1)[0],
        deadline_ms=lone.node.core.clock_ms() + int(1000 * deadline_s),
    )
    answers = [message for _, message in sent if message["type"] == "forward_response"]
    assert [(m["request_id"], m["refused"]) for m in answers] == [(7, reason)]
    assert lone.journal.last_index == last


def test_a_leader_appends_no_command_whose_time_its_clock_refuses() -> None:
    """Its own or a forwarded one; a later attempt with another stamp may be taken."""
    lone = Lone()
    term = lone.win("b")
    last = lone.journal.last_index
    lone.clock_refusal = "400 days ahead"
    lone.propose("mine")
    sent = lone.tick()
    sent += lone.take(
        "b",
        "forward",
        term=term,
        request_id=7,
        command=entry("theirs", 1, 1)[0],
        deadline_ms=lone.node.core.clock_ms() + 5000,
    )
    (answer,) = (message for _, message in sent if message["type"] == "forward_response")
    assert answer["refused"] == "the command's time is ahead of the voters' clocks"
    assert lone.outcomes == [NotCommitted("400 days ahead", Refusal.CLOCK)]
    assert not NotCommitted("", Refusal.CLOCK).final
    assert lone.journal.last_index == last
    lone.clock_refusal = None
    lone.propose("mine")
    lone.tick()
    assert lone.journal.last_index == last + 1


def test_a_follower_learns_that_its_stamp_was_refused() -> None:
    lone = Lone()
    lone.append(2, 1, [])
    lone.propose("mine")
    (forward,) = forwards(lone.tick())
    answer = {"request_id": forward["request_id"], "log_idx": 0, "log_term": 0}
    reason = "the command's time is ahead of the voters' clocks"
    lone.take("b", "forward_response", refused=reason, **answer)
    lone.tick()
    assert lone.outcomes == [NotCommitted(reason, Refusal.CLOCK)]


def test_a_frame_held_up_in_the_network_never_fires_late() -> None:
    world = World(2)
    world.run_until(lambda: world.leader() is not None)
    world.run(0.5)
    leader = world.leader()
    assert leader is not None
    follower = next(name for name in world.names if name != leader)
    # The network goes dark without breaking the connection; what is in it arrives much later.
    world.block([[follower], [name for name in world.names if name != follower]])
    outcomes: list[Outcome] = []
    world.propose(follower, "late", ttl_s=0.3, then=outcomes.append)
    world.run(0.4)
    assert isinstance(outcomes[0], Unknown)
    world.run(20.0)
    world.heal()
    world.run(1.0)
    assert "late" not in world.servers[leader].machine.log


def test_a_follower_gets_its_own_result() -> None:
    lone = Lone()
    lone.append(2, 1, [])
    lone.propose("mine")
    (forward,) = forwards(lone.tick())
    answer = {"request_id": forward["request_id"], "log_idx": 3, "log_term": 5}
    lone.take("b", "forward_response", refused=None, **answer)
    lone.append(2, 1, [(forward["command"], 3, 5)], commit=3)
    lone.tick()
    assert lone.outcomes == [Committed(3, 1)]


def test_a_replaced_command_is_refused_definitely() -> None:
    lone = Lone()
    lone.append(2, 1, [])
    lone.propose("mine")
    (forward,) = forwards(lone.tick())
    answer = {"request_id": forward["request_id"], "log_idx": 3, "log_term": 5}
    lone.take("b", "forward_response", refused=None, **answer)
    lone.append(2, 1, [entry("other", 3, 6)], commit=3, term=6, leader="c")
    lone.tick()
    assert isinstance(lone.outcomes[0], NotCommitted)


def test_answers_of_other_servers_decide_nothing() -> None:
    lone = Lone()
    lone.append(2, 1, [])
    lone.propose("mine")
    (forward,) = forwards(lone.tick())
    answer = {"request_id": forward["request_id"], "log_idx": 0, "log_term": 0}
    lone.take("c", "forward_response", refused="no", **answer)
    assert lone.outcomes == []
    lone.node.disconnected(ServerId("b"), lone.now)
    lone.tick()
    assert lone.outcomes == [Unknown("the leader changed")]


def test_too_many_commands_are_refused() -> None:
    lone = Lone()
    for number in range(QUEUE_COMMANDS_MAX + 5):
        lone.propose(number)
    lone.tick()
    refused = [o for o in lone.outcomes if "waiting already" in str(o)]
    assert len(refused) == 5


def test_commands_that_are_decided_make_room_for_others() -> None:
    lone = Lone()
    for _ in range(3):
        for number in range(QUEUE_COMMANDS_MAX + 1):
            lone.propose(number)
        lone.tick()
        assert len(lone.outcomes) == QUEUE_COMMANDS_MAX + 1, "no leader is known"
        assert sum("waiting already" in str(outcome) for outcome in lone.outcomes) == 1
        lone.outcomes.clear()


def test_a_leader_without_answers_stops_appending() -> None:
    lone = Lone()
    lone.win("b")
    for number in range(QUEUE_COMMANDS_MAX):
        lone.propose(number, ttl_s=60)
    lone.tick()
    for _ in range(3):
        lone.propose("more", ttl_s=60)
    lone.tick()
    waiting = lone.journal.last_index - lone.node.core.commit_index
    assert waiting == UNCOMMITTED_ENTRIES_MAX
    assert all(isinstance(outcome, NotCommitted) for outcome in lone.outcomes)


def test_a_single_voter_commits_only_after_its_own_sync() -> None:
    lone = Lone(("me",))
    lone.tick(1.0)
    lone.tick()
    lone.propose("x")
    lone.node.step(lone.now)
    assert lone.machine.log == []
    before = lone.disk.counts["sync"]
    lone.node.ready()
    assert lone.disk.counts["sync"] == before + 1
    assert lone.node.next_step_at() <= lone.now + 0.001
    lone.tick()
    assert lone.machine.log == ["x"]


# --- health ----------------------------------------------------------------------------------


def test_health_of_a_leader() -> None:
    lone = Lone()
    lone.node.set_servers([ServerId(name) for name in ("me", "b", "c", "d")])
    term = lone.win("b")
    lone.tick(0.05)
    lone.acknowledge("b", lone.journal.last_index)
    lone.tick()
    lone.tick(0.02)
    health = lone.node.health(lone.now + 0.01)
    assert (health.role, health.leader, health.term) == (Role.LEADER, "me", term)
    assert health.voters == ("b", "c", "me")
    assert health.connected == ("b", "c")
    assert health.majority_age_s == pytest.approx(0.08), 'since what "b" has answered was sent'
    assert health.contact_age_s[ServerId("b")] == pytest.approx(0.03)
    assert set(health.contact_age_s) == {"b", "c", "d"}


def test_a_leader_that_falls_back_was_in_touch_until_just_now() -> None:
    """It said for how long it had not heard of another leader: for as long as it had led."""
    lone = Lone()
    lone.win("b")
    for _ in range(50):
        lone.tick(0.05)
        lone.acknowledge("b", lone.journal.last_index)
    heard = lone.now
    while lone.node.health(lone.now).role is Role.LEADER:
        lone.tick(0.05)
    lone.tick(1.0)
    assert lone.node.health(lone.now).majority_age_s == pytest.approx(lone.now - heard)


def test_a_new_leader_does_not_take_silence_between_followers_for_absence() -> None:
    world = World(11, voters=5)
    world.run_until(lambda: world.leader() is not None)
    world.run(60.0)
    old = world.leader()
    assert old is not None
    world.crash(old)
    world.run_until(lambda: world.leader() is not None)
    new = world.leader()
    assert new is not None
    for _ in range(50):
        world.run(0.02)
        ages = world.node(new).health(world.local(world.servers[new])).contact_age_s
        assert all(age < 1.1 for name, age in ages.items() if name != old)
    world.run(10)
    ages = world.node(new).health(world.local(world.servers[new])).contact_age_s
    assert ages[old] > 10


def test_a_follower_adds_the_leaders_own_doubts() -> None:
    lone = Lone()
    lone.append(2, 1, [])
    lone.tell_clock(clock_ms=0, majority_age_ms=400)
    lone.tick(0.11)
    lone.take(
        "b",
        "append_entries",
        term=5,
        commit_index=1,
        prevLogIdx=2,
        prevLogTerm=1,
        entries=b"",
        clock_ms=110,
        majority_age_ms=400,
    )
    lone.tick(0.11)
    assert lone.node.health(lone.now).majority_age_s == pytest.approx(0.51)


# --- servers without a vote ------------------------------------------------------------------


def test_a_server_without_a_vote_never_campaigns_and_pulls_in_turn() -> None:
    lone = Lone((), peers=("b", "c"))
    lone.node.set_servers([ServerId("b"), ServerId("c")])
    asked: list[str] = []
    for _ in range(400):
        sent = lone.tick(0.02)
        asked += [peer for peer, message in sent if message["type"] == "pull"]
        assert not [m for _, m in sent if "vote" in m["type"]]
    assert asked[:4] in (["b", "c", "b", "c"], ["c", "b", "c", "b"])
    assert lone.node.core.elections == 0
    assert lone.node.health(lone.now).role is Role.LEARNER


def test_another_source_is_asked_when_the_one_that_was_hangs_up_and_not_before() -> None:
    lone = Lone((), peers=("b", "c"))
    lone.node.set_servers([ServerId("b"), ServerId("c")])
    pulls: list[str] = []
    while not pulls:
        pulls = [peer for peer, message in lone.tick(0.02) if message["type"] == "pull"]
    [source] = pulls
    other = "c" if source == "b" else "b"
    for hangs_up, asked in ((other, []), (source, [other])):
        lone.node.disconnected(ServerId(hangs_up), lone.now)
        sent = lone.tick()
        assert [peer for peer, message in sent if message["type"] == "pull"] == asked
        if hangs_up == other:
            lone.node.connected(ServerId(other), lone.now)
            lone.tick()


def test_a_removed_server_says_so_once_it_has_no_vote() -> None:
    lone = Lone(("me", "b", "c"))
    others = [ServerId("b"), ServerId("c")]
    lone.node.set_servers(others, removed=True)
    assert lone.node.health(lone.now).role is Role.FOLLOWER, "its vote still counts"
    lone.append(2, 1, [(MEMBERSHIP_TYPE + membership.encode_voters(others), 3, 1)])
    assert lone.node.health(lone.now).role is Role.REMOVED
    for _ in range(100):
        assert not [m for _, m in lone.tick(0.02) if "vote" in m["type"]]
    lone.node.set_servers([*others, ServerId("me")])
    assert lone.node.health(lone.now).role is Role.LEARNER


@pytest.mark.parametrize("learners", [1, 4])
def test_servers_without_a_vote_follow_through_faults(learners: int) -> None:
    settings = ConsensusSettings(snapshot_entries=50)
    world = World(
        4,
        learners=learners,
        settings=settings,
        faults=Faults(jitter_s=0.0025, frames=FrameChances(reset=0.005)),
    )
    world.load(seconds=4, rate=100)
    for second in range(4):
        name = world.names[3 + second % learners]
        world.at(0.5 + second, lambda name=name: world.crash(name, power=True))
        world.at(0.9 + second, lambda name=name: world.boot(name))
    world.run(5)
    world.settle()
    for name in world.names[3:]:
        assert not world.node(name).core.votes


def test_a_server_whose_voters_were_all_replaced_finds_the_others() -> None:
    lone = Lone((), peers=("b", "c", "d"))
    lone.append(1, 0, [(MEMBERSHIP_TYPE + membership.encode_voters([ServerId("b")]), 2, 1)])
    lone.node.set_servers([ServerId(name) for name in ("b", "c", "d")])
    assert lone.node.peers() == ("b",)
    lone.node.disconnected(ServerId("b"), lone.now)
    asked: set[str] = set()
    for _ in range(500):
        asked |= {peer for peer, message in lone.tick(0.02) if message["type"] == "pull"}
    assert lone.node.peers() == ("b", "c", "d")
    assert asked >= {"c", "d"}


@pytest.mark.parametrize(("age_ms", "next_source"), [(100, "b"), (6000, "c")])
def test_a_source_that_is_out_of_touch_is_left(age_ms: int, next_source: str) -> None:
    lone = Lone((), peers=("b", "c"))
    lone.node.set_servers([ServerId("b"), ServerId("c")])
    lone.now += 2.0
    asked = [peer for peer, message in lone.tick() if message["type"] == "pull"]
    while asked != ["b"]:
        asked = [peer for peer, message in lone.tick(2.0) if message["type"] == "pull"]
    lone.tick(0.2)  # A server that stood for 2 s does not believe what may have waited for it.
    answer = {"term": 3, "commit_index": 1, "prevLogIdx": 1, "prevLogTerm": 0, "entries": b""}
    sent = lone.take("b", "pulled", leader="c", clock_ms=0, majority_age_ms=age_ms, **answer)
    assert [peer for peer, message in sent if message["type"] == "pull"] == [next_source]
    # Gossip of a leader must not keep this server from answering a candidate.
    assert lone.node.health(lone.now).majority_age_s == pytest.approx(age_ms / 1000)


def test_news_reach_a_server_without_a_vote_at_once() -> None:
    world = World(6, learners=1)
    world.run_until(lambda: world.leader() is not None)
    world.run(2.0)
    leader, learner = world.leader(), world.names[3]
    assert leader is not None
    for number in range(20):
        world.propose(leader, number)
        began = world.now
        log = world.servers[learner].machine.log
        world.run_until(lambda number=number, log=log: bool(log) and log[-1] == number, 1.0)
        # One way to the follower that it pulls from and back, the commit, and the way here.
        assert world.now - began < 0.02


def test_the_leader_sends_entries_to_voters_only() -> None:
    world = World(8, learners=3)
    world.run_until(lambda: world.leader() is not None)
    seen: set[tuple[str, str]] = set()

    def watch(_source: str, target: str, frame: bytes) -> bytes:
        seen.add((target, decode_message(frame[17:])["type"]))
        return frame

    world.frames.tamper = watch
    world.load(seconds=1, rate=50)
    world.run(2)
    for learner in world.names[3:]:
        assert (learner, "append_entries") not in seen
        assert (learner, "pulled") in seen


def test_a_far_behind_voter_gets_a_snapshot() -> None:
    world = World(12, settings=ConsensusSettings(snapshot_entries=100))
    world.run_until(lambda: world.leader() is not None)
    victim = next(name for name in world.names if name != world.leader())
    world.crash(victim)
    world.load(seconds=4, rate=400, size=2000)
    world.run(5)
    leader = world.leader()
    assert leader is not None
    assert world.node(leader).storage.journal.base_index > 100
    world.boot(victim)
    target = world.node(leader).core.commit_index
    world.run_until(lambda: world.node(victim).core.applied_index >= target, 3.0)
    world.settle()


def test_a_snapshot_on_its_way_gives_way_to_one_that_can_be_continued() -> None:
    """A transfer that stalled must not be taken up again when its successors are gone."""
    lone = Lone(("me",), entries=[entry(i, i, 1) for i in range(3, 300)], peers=("x",))
    lone.tick(1.0)
    for _ in range(3):
        lone.tick()
    assert lone.node.core.applied_index > 290
    storage, voters = lone.node.storage, lone.node.core.voters

    def offered() -> list[int]:
        sent = lone.take("x", "pull", next_index=5)
        return [message["index"] for _, message in sent if message["type"] == "snapshot"]

    for index in (50, 100):
        take(storage, Snapshot(index, 1, voters, "table"))
    assert offered() == [100]
    take(storage, Snapshot(150, 1, voters, "table"))
    lone.now += 1.0
    assert offered() == [100], "it can be continued with entry 101"
    take(storage, Snapshot(200, 1, voters, "table"))
    lone.now += 1.0
    assert storage.journal.base_index == 150
    assert offered() == [200]


# --- voters ----------------------------------------------------------------------------------


def test_voters_change_one_step_at_a_time() -> None:
    world = World(13, voters=1, learners=4)
    first = world.names[0]
    world.run_until(lambda: world.leader() == first)
    world.run(1.0)
    world.node(first).reconcile_voters(world.names)
    seen: list[tuple[ServerId, ...]] = []
    world.run(3.0)
    history = world.node(first).core.configurations
    for index in range(1, world.node(first).core.commit_index + 1):
        voters = history.at(index).voters
        if voters and (not seen or seen[-1] != voters):
            seen.append(voters)
    assert [len(voters) for voters in seen] == [1, 2, 3, 4, 5]
    world.settle()


def test_a_server_that_is_away_gets_no_vote() -> None:
    world = World(14, voters=1, learners=2)
    first, second, third = world.names
    world.run_until(lambda: world.leader() == first)
    world.crash(third)
    world.node(first).reconcile_voters(world.names)
    world.run(3.0)
    assert world.node(first).core.voters == (first, second)
    world.boot(third)
    world.run(3.0)
    assert world.node(first).core.voters == (first, second, third)


def test_a_lost_voter_is_replaced() -> None:
    world = World(15, voters=3, learners=1)
    world.run_until(lambda: world.leader() is not None)
    lost = next(name for name in world.names[:3] if name != world.leader())
    world.crash(lost)
    desired = [name for name in world.names if name != lost]
    for server in world.alive():
        assert server.node is not None
        server.node.reconcile_voters(desired)
    world.run(4.0)
    for name in desired:
        assert world.node(name).core.voters == tuple(desired)


def test_a_leader_that_is_not_wanted_hands_over_first() -> None:
    world = World(16)
    world.run_until(lambda: world.leader() is not None)
    old = world.leader()
    assert old is not None
    desired = [name for name in world.names if name != old]
    world.load(seconds=1.5, rate=1500)  # So that something is always on its way.
    world.run(0.1)
    for server in world.alive():
        assert server.node is not None
        server.node.reconcile_voters(desired)
    world.run(1.0)
    assert world.leader() in desired
    world.run(1.0)
    assert world.leader() in desired
    assert not world.node(old).core.votes
    assert world.node(old).health(world.local(world.servers[old])).role is Role.LEARNER
    world.settle()


def with_stopgaps(world: World, *stopgaps: ServerId) -> None:
    for server in world.alive():
        assert server.node is not None
        server.node.reconcile_voters(world.names, stopgaps=stopgaps)


def test_a_stopgap_leads_only_while_no_other_voter_can() -> None:
    world = World(17, voters=3)
    world.run_until(lambda: world.leader() is not None)
    witness = world.leader()
    assert witness is not None
    others = [name for name in world.names if name != witness]
    with_stopgaps(world, witness)
    world.run_until(lambda: world.leader() in others)
    world.run(5.0)
    assert world.leader() in others, "it does not come back"
    for name in others:
        world.crash(name)
        world.boot(name)
        with_stopgaps(world, witness)
        world.run(2.0)
        assert world.leader() in others
    world.settle()


def test_a_stopgap_goes_on_when_its_successor_does_not_lead() -> None:
    """The successor is connected, and does nothing, like a server with a hanging disk."""
    world = World(18, voters=3)
    world.run_until(lambda: world.leader() is not None)
    old = world.leader()
    assert old is not None
    other = next(name for name in world.names if name != old)
    stopgaps = [name for name in world.names if name != other]
    with_stopgaps(world, *world.names)
    world.run(5.0)
    assert world.leader() == old, "there is nobody else"
    world.pause(other, 3.0)
    with_stopgaps(world, *stopgaps)
    world.run(1.0)
    assert world.leader() == old
    proposed = world.node(old).core.commit_index
    world.load(seconds=1.0, rate=10)
    world.run(1.5)
    assert world.node(old).core.commit_index > proposed
    world.run(1.5)
    assert world.leader() == other
    world.settle()


@pytest.mark.parametrize("other", ["b", "c"])
def test_a_stopgap_hands_over_to_no_other_stopgap(other: str) -> None:
    lone = Lone()
    lone.win("b", "c")
    for peer in ("b", "c"):
        lone.acknowledge(peer, lone.journal.last_index)
    names = [ServerId(name) for name in ("me", "b", "c")]
    stopgaps = [name for name in names if name != other]
    lone.node.reconcile_voters(names, stopgaps=stopgaps)
    asked = [peer for peer, message in lone.tick() if message["type"] == "timeout_now"]
    assert asked == [other]


NAMES = [ServerId(name) for name in "abcdefghij"]


@given(
    current=st.sets(st.sampled_from(NAMES), min_size=1, max_size=VOTERS_MAX),
    desired=st.sets(st.sampled_from(NAMES), min_size=1, max_size=VOTERS_MAX),
)
def test_single_steps_lead_from_any_voters_to_any_others(
    current: set[ServerId], desired: set[ServerId]
) -> None:
    voters = tuple(sorted(current))
    for _ in range(40):
        leader = next((v for v in voters if v in desired), voters[0])
        everyone = set(NAMES)
        step = membership.next_step(
            voters, sorted(desired), ready=everyone, able=everyone, leader=leader
        )
        if step is None:
            break
        assert membership.objection(voters, step) is None
        assert leader in step
        assert len(step) >= min(len(current), len(desired), VOTERS_MAX - 1)
        voters = step
    assert set(voters) == desired


@pytest.mark.parametrize(
    ("able", "step"),
    [("abc", "ac"), ("ab", None), ("ac", "ac"), ("a", None)],
)
def test_a_voter_that_is_needed_is_not_removed_yet(able: str, step: str | None) -> None:
    """Seed 1146: it was removed while the only other voter had lost its persisted votes."""
    voters = tuple(NAMES[:3])
    desired = (NAMES[0], NAMES[2])
    found = membership.next_step(
        voters, desired, ready=(), able={*map(ServerId, able)}, leader=NAMES[0]
    )
    assert found == (tuple(step) if step else None)


def test_the_voters_that_are_away_are_removed_first() -> None:
    voters = tuple(NAMES[:3])
    found = membership.next_step(voters, NAMES[:1], ready=(), able=set(NAMES[:2]), leader=NAMES[0])
    assert found == ("a", "b")


@given(
    voters=st.sets(st.sampled_from(NAMES), min_size=1, max_size=6),
    server=st.sampled_from(NAMES),
)
def test_majorities_of_one_step_share_a_voter(voters: set[ServerId], server: ServerId) -> None:
    other = voters ^ {server}
    both = voters | other
    # Two majorities that share nobody would need more voters than there are.
    assert (len(voters) // 2 + 1) + (len(other) // 2 + 1) > len(both)


def test_configurations_follow_the_log() -> None:
    known = Configurations(Configuration(5, (NAMES[0],)))
    known.append(8, tuple(NAMES[:2]))
    known.append(11, tuple(NAMES[:3]))
    assert [known.at(i).index for i in (5, 7, 8, 10, 11, 99)] == [5, 5, 8, 8, 11, 11]
    known.truncate(11)
    assert known.current.index == 8
    known.truncate(6)
    assert known.current.index == 5
    known.append(9, tuple(NAMES[:2]))
    known.reset(Configuration(8, (NAMES[0],)))
    assert known.current.index == 9


# --- messages and the codec ------------------------------------------------------------------

Plains = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.binary(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(Plains)
def test_plain_values_travel_unchanged(value: Plain) -> None:
    again = closed_cbor.decode(closed_cbor.encode(value))
    assert again == value
    assert type(again) is type(value)


@given(st.binary(max_size=60))
def test_no_bytes_break_the_decoder(data: bytes) -> None:
    try:
        value = closed_cbor.decode(data)
    except RemoteProtocolError:
        return
    closed_cbor.encode(value)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x01\x00", id="trailing bytes"),
        pytest.param(b"\x9f\x01\xff", id="indefinite length"),
        pytest.param(b"\xa2\x61a\x01\x61a\x02", id="duplicate key"),
        pytest.param(b"\xa1\x01\x02", id="key that is no text"),
        pytest.param(b"\xf7", id="undefined"),
        pytest.param(b"\xf8\x63", id="simple value"),
        pytest.param(b"\x81" * 40 + b"\x01", id="too deep"),
        pytest.param(b"\x5b\xff\xff\xff\xff\xff\xff\xff\xff", id="length of 2**64"),
        pytest.param(b"\x9b\x00\xff\xff\xff\xff\xff\xff\xff", id="huge list"),
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x61\xff", id="broken text"),
    ],
)
def test_the_codec_is_strict(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        closed_cbor.decode(data)


@pytest.mark.parametrize("value", [(1,), {1: 2}, {"x"}, object(), 1 << 64, bytearray(b"x")])
def test_only_plain_values_are_encoded(value: Any) -> None:
    with pytest.raises(TypeError):
        closed_cbor.encode(value)


def test_messages_are_checked_field_by_field() -> None:
    good: Message = {"type": "response_vote", "term": 3}
    assert decode_message(encode_message(good)) == good
    bad_ones: list[Plain] = [[2], [2, 3, 4], [2, True], [2, "3"], [2, -5], [2, 1 << 63], 7]
    bad_ones.extend(([99, 1], [], {}))
    for bad in bad_ones:
        with pytest.raises(RemoteProtocolError):
            decode_message(closed_cbor.encode(bad))


@given(st.binary(max_size=80))
def test_no_frame_breaks_a_node(data: bytes) -> None:
    lone = _SHARED
    lone.node.receive(ServerId("b"), data, lone.now)
    lone.node.receive(ServerId("stranger"), data, lone.now)
    lone.take_frame("b", lone.writers[ServerId("b")].frame(data or b"x"))


_SHARED = Lone()


def test_old_and_repeated_frames_are_dropped() -> None:
    first, second = FrameWriter(1 << 32 | 1), FrameWriter(1 << 32 | 2)
    reader = FrameReader()
    frames = [first.frame(b"a"), first.frame(b"b"), second.frame(b"c"), first.frame(b"d")]
    assert [reader.body(f) for f in frames] == [b"a", b"b", b"c", None]
    assert reader.body(frames[1]) is None
    for bad in (b"", b"\x01" * 17, b"\x02" + frames[0][1:]):
        with pytest.raises(RemoteProtocolError):
            reader.body(bad)


def test_frames_of_a_later_start_are_read_however_many_connections_the_former_one_had() -> None:
    one, other = ServerId("one"), ServerId("other")
    reader = PeerFrames(1)
    for boot, connections in ((1, 3), (2, 1), (3, 2)):
        writer = PeerFrames(boot)
        for _ in range(connections):
            reader.connect(one)
            writer.connect(other)
            for number in range(2):
                writer.send(other, {"type": "alive", "applied_index": number})
                [(_, frame)] = writer.take()
                assert reader.read(one, frame) == {"type": "alive", "applied_index": number}
                assert reader.read(one, frame) is None


def test_two_leaders_of_one_term_are_not_believed() -> None:
    lone = Lone()
    lone.append(2, 1, [entry("x", 3, 5)])
    assert lone.append(2, 1, [entry("y", 3, 5)], leader="c") == []
    assert lone.node.core.leader == "b"
    assert lone.log()[-1] == entry("x", 3, 5)


def test_a_candidate_that_lost_its_vote_cannot_win() -> None:
    """The library counts itself among the voters; one of two would be taken for two of three."""
    lone = Lone()
    lone.campaign()
    asked = lone.node.core.term + 1
    promise = {"term": asked, "current_term": 1, "member": True}
    lone.take("b", "response_prevote", granted=True, **promise)
    lone.tick()
    assert lone.node.health(lone.now).role is Role.CANDIDATE
    lone.take("c", "response_prevote", granted=False, **{**promise, "member": False})
    command = MEMBERSHIP_TYPE + membership.encode_voters([ServerId("b"), ServerId("c")])
    lone.take(
        "c",
        "pulled",
        term=1,
        commit_index=3,
        prevLogIdx=1,
        prevLogTerm=0,
        entries=encode_entries([lone.log()[1], (command, 3, 1)]),
        leader=None,
        clock_ms=0,
        majority_age_ms=0,
    )
    assert lone.node.core.voters == ("b", "c")
    lone.take("b", "response_vote", term=asked)
    assert lone.node.core.state != LEADER
    assert lone.node.health(lone.now).role is Role.LEARNER


def test_a_deposed_leader_is_told() -> None:
    lone = Lone()
    lone.append(2, 1, [], term=7)
    sent = lone.append(2, 1, [], term=6, leader="c")
    assert [(peer, m["type"], m["term"]) for peer, m in sent] == [("c", "next_node_idx", 7)]
    leader = Lone()
    term = leader.win("b")
    fields = {"next_node_idx": 0, "success": False, "rejected": -1}
    leader.take("c", "next_node_idx", term=term + 3, **fields)
    assert leader.node.core.state != LEADER
    assert leader.node.core.term == term + 3


def test_a_leader_that_contradicts_a_committed_entry_stops_the_server() -> None:
    lone = Lone()
    lone.append(2, 1, [entry("x", 3, 5)], commit=3)
    with pytest.raises(SafetyError, match="committed entry 3 would be replaced"):
        lone.append(2, 1, [entry("y", 3, 6)], term=6, leader="c")


def test_a_commit_beyond_the_log_stops_the_server_with_a_reason() -> None:
    """The server tried to apply missing entries at every step, without a pause or a message."""
    lone = Lone(("me", "b", "c"), entries=[entry("one", 3, 1)])
    last = lone.journal.last_index
    setattr(lone.node.core, "_SyncObj__raftCommitIndex", last + 2)  # noqa: B010
    with pytest.raises(SafetyError, match=f"the log here ends at {last}"):
        lone.tick()


# --- handing over ----------------------------------------------------------------------------


def test_a_leader_hands_over_to_a_peer_with_the_whole_log_only() -> None:
    lone = Lone()
    core = lone.node.core
    b, c = ServerId("b"), ServerId("c")
    assert not core.hand_over(b), "it does not lead"
    lone.win("b")
    lone.acknowledge("b", lone.journal.last_index)
    assert not core.hand_over(c)
    assert core.hand_over(b)
    asked = [(peer, m["type"]) for peer, m in lone.tick() if m["type"] == "timeout_now"]
    assert asked == [("b", "timeout_now")]


def test_a_hand_over_under_way_is_one_and_the_same() -> None:
    lone = Lone()
    assert not lone.node.hand_over(lone.now)
    lone.win("b")
    lone.acknowledge("b", lone.journal.last_index)
    assert lone.node.hand_over(lone.now)
    assert lone.node.hand_over(lone.now)
    asked = [m["type"] for _, m in (*lone.tick(), *lone.tick(0.01))]
    assert asked.count("timeout_now") == 1


def test_a_server_that_left_the_pool_says_anew_how_far_it_is() -> None:
    lone = Lone(peers=("b", "c", "d"))
    b, c, d = (ServerId(name) for name in "bcd")
    lone.node.set_servers([b, c, d])
    lone.win("b")
    lone.acknowledge("b", lone.journal.last_index)
    lone.tick()
    lone.take("d", "alive", applied_index=lone.journal.last_index)
    lone.node.disconnected(d, lone.now)
    lone.node.set_servers([b, c])
    lone.tick()
    lone.node.set_servers([b, c, d])
    lone.node.connected(d, lone.now)
    lone.writers[d], lone.readers[d] = FrameWriter(lone.epoch + 1), FrameReader()
    last = lone.journal.last_index
    lone.node.reconcile_voters([ServerId("me"), b, c, d])
    lone.tick(0.01)
    assert lone.journal.last_index == last, "it may be another server by this name"
    lone.take("d", "alive", applied_index=last)
    lone.tick(0.01)
    assert lone.journal.last_index == last + 1


def test_an_acknowledgement_of_an_entry_that_does_not_exist_is_ignored() -> None:
    lone = Lone()
    lone.win("b")
    lone.propose("x")
    lone.tick()
    last, known = lone.journal.last_index, lone.node.core.match_index(ServerId("b"))
    lone.acknowledge("b", last + 1)
    lone.tick()
    assert lone.node.core.match_index(ServerId("b")) == known < last
    assert lone.machine.log == []
    lone.acknowledge("b", last)
    lone.tick()
    assert lone.machine.log == ["x"]


def test_a_late_rejection_moves_no_probe() -> None:
    lone = Lone()
    term = lone.win("b")
    probed = lone.node.core._SyncObj__raftNextIndex[lone.node.core._peer(ServerId("c"))] - 1  # pyright: ignore[reportPrivateUsage]
    answer = {"term": term, "next_node_idx": 2, "success": False}
    late = lone.take("c", "next_node_idx", rejected=probed + 1, **answer)
    assert not [m for peer, m in late if peer == "c"]
    fresh = lone.take("c", "next_node_idx", rejected=probed, **answer)
    assert [m["prevLogIdx"] for peer, m in fresh if peer == "c"] == [1]


def test_elections_are_counted_and_ages_travel_in_milliseconds() -> None:
    lone = Lone()
    assert lone.node.health(lone.now).elections == 0
    lone.win("b")
    assert lone.node.health(lone.now).elections == 1
    lone.acknowledge("b", lone.journal.last_index)
    lone.tick(0.1)
    age_s = lone.node.core.majority_age_s()
    assert age_s > 0.09
    assert lone.node.core.majority_age_ms() == int(1000 * age_s)
