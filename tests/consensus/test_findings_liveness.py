"""How pysyncobj 0.3.17 gets stuck (findings L1 to L6), and that this does not.

L4, a full disk, is in ``test_findings_full_disk.py``.
"""

from random import Random
from typing import Any

import pytest
from bare_library import Bare, append, command, library
from bare_library import time as bare_time
from lone_node import Lone, entry, take
from pysyncobj.tcp_connection import CONNECTION_STATE, TcpConnection
from raft_world import Faults, World

from gpupool.consensus.core.library import LEADER
from gpupool.consensus.protocol.membership import encode_voters
from gpupool.consensus.protocol.raft_settings import (
    COMMAND_BYTES_MAX,
    IN_FLIGHT_BYTES_MAX,
    SNAPSHOT_CHUNK_BYTES,
    ConsensusSettings,
)
from gpupool.consensus.storage.snapshot import Snapshot
from gpupool.consensus.storage.store import MEMBERSHIP_TYPE, Storage
from gpupool.pool.model.ids import Plain, ServerId
from gpupool.pool.ports import Committed, NotCommitted
from gpupool.simulations.kernel.simulated_disk import SimulatedDisk

# --- L1: a divergent follower far behind -----------------------------------------------------


def test_l1_the_library_never_catches_up_behind_pipelined_rejections() -> None:
    leader = Bare("a", ["b", "c"], appendEntriesBatchSizeBytes=2000)
    follower = Bare("b", ["a", "c"])
    leader.take("c", append(5, 1, 0, [(command(i), i, 5) for i in range(2, 402)]))
    follower.take("c", append(4, 1, 0, [(command("fork"), 2, 4)]))
    leader.win("c")
    assert exchange_for_30_s(leader, follower) < 400, "after 300 heartbeats"


def exchange_for_30_s(leader: Bare, follower: Bare) -> int:
    """Let heartbeats and answers of one link flow, as over TCP with 20 ms delay."""
    flying: list[tuple[float, Any, str, Any]] = []
    for _ in range(1500):
        for node, other, sender in ((leader, follower, "a"), (follower, leader, "b")):
            due = bare_time.now + 0.02
            flying += [(due, other, sender, m) for to, m in node.wire.sent if to != "c"]
            node.wire.sent.clear()
        bare_time.now += 0.02
        while flying and flying[0][0] <= bare_time.now:
            _, target, sender, message = flying.pop(0)
            target.take(sender, message)
        acknowledged = {"type": "next_node_idx", "reset": False, "success": True}
        leader.take("c", {**acknowledged, "next_node_idx": leader.log()[-1][1] + 1})
        leader.tick()
    return int(follower.log()[-1][1])


def test_l1_ours_catches_up_at_once() -> None:
    world = World(3)
    world.run_until(lambda: world.leader() is not None)
    old = world.leader()
    assert old is not None
    # An ex-leader with entries that nobody else has misses 2,000 commands of 200 bytes.
    world.block([[old], [name for name in world.names if name != old]])
    for number in range(50):
        world.propose(old, ["fork", number], ttl_s=0.2)
    world.run(2.0)
    new = world.leader()
    assert new is not None and new != old
    for number in range(2000):
        world.propose(new, [number, b"x" * 200], ttl_s=5)
    world.run(1.0)
    world.heal()
    began = world.now
    target = world.node(new).core.commit_index
    world.run_until(lambda: world.node(old).core.applied_index >= target, 3.0)
    assert world.now - began < 1.0


def test_l1_ours_backs_off_by_terms_not_by_entries() -> None:
    ours = [entry(i, i, 1 + i // 40) for i in range(3, 123)]
    lone = Lone(entries=ours, term=4)
    rounds = 0
    previous, term = 122, 9  # The leader's log has nothing in common with ours but the base.
    while True:
        rounds += 1
        sent = lone.append(previous, term if previous > 1 else 0, [], term=10)
        answer = sent[-1][1]
        if answer["success"]:
            break
        assert answer["next_node_idx"] <= previous
        previous = answer["next_node_idx"] - 1
    assert rounds <= 5, "there are four terms in 121 entries"


# --- L2: idle links --------------------------------------------------------------------------


def test_l2_the_library_drops_a_link_instead_of_sending_the_first_vote_request() -> None:
    sent: list[bytes] = []

    class IdleSocket:
        def close(self) -> None:
            return

        def send(self, data: bytes) -> int:
            sent.append(data)
            return len(data)

        def fileno(self) -> int:
            return -1

    class Poller:
        def subscribe(self, *_: object) -> None:
            return

        def unsubscribe(self, *_: object) -> None:
            return

    connection: Any = TcpConnection(Poller(), socket=None, timeout=3.5)
    connection._TcpConnection__socket = IdleSocket()
    connection._TcpConnection__fileno = 1
    connection._TcpConnection__state = CONNECTION_STATE.CONNECTED
    connection._TcpConnection__lastReadTime -= 10
    connection.send({"type": "request_vote"})
    assert connection.state == CONNECTION_STATE.DISCONNECTED
    assert sent == []


def test_l2_ours_elects_in_the_first_round_after_long_idleness() -> None:
    world = World(4)
    world.run_until(lambda: world.leader() is not None)
    world.run(60.0)
    old = world.leader()
    assert old is not None
    before = sum(world.node(name).core.elections for name in world.names if name != old)
    world.crash(old)
    began = world.now
    world.run_until(lambda: world.leader() is not None, 2.0)
    assert world.now - began < 0.5
    after = sum(world.node(name).core.elections for name in world.names if name != old)
    assert after == before + 1


# --- L3: commands that fail ------------------------------------------------------------------


def test_l3_the_library_executes_a_failing_command_for_ever() -> None:
    bare = Bare("me", [])
    bare.campaign()
    bare.put("raise")
    bare.put("after")
    bare.tick()
    for _ in range(3):
        with pytest.raises(RuntimeError):
            bare.tick()
    assert bare.values == ["half done"] * 3


def test_l3_the_library_applies_twice_when_a_callback_fails() -> None:
    def fail(_result: object, _error: object) -> None:
        raise RuntimeError

    bare = Bare("me", [])
    bare.campaign()
    bare.put("x", callback=fail)
    bare.tick()
    with pytest.raises(RuntimeError):
        bare.tick()
    bare.tick()
    assert bare.values == ["x", "x"]


def test_l3_ours_goes_on_behind_a_failing_command() -> None:
    world = World(5)
    world.run_until(lambda: world.leader() is not None)
    leader = world.leader()
    assert leader is not None
    outcomes: list[Any] = []
    for value in ("before", "raise", "after"):
        world.propose(leader, value, then=outcomes.append)
    world.run(1.0)
    assert [outcome.result for outcome in outcomes] == [1, {"error": "ConflictError"}, 3]
    for server in world.servers.values():
        assert server.machine.log == ["before", "half done", "after"]


# --- L5: a follower that needs a snapshot ----------------------------------------------------


def test_l5_the_library_floods_a_follower_while_its_dump_is_being_written() -> None:
    bare = Bare("me", ["b", "c"])
    bare.take("b", append(1, 1, 0, [(command(i), i, 1) for i in range(2, 50)]))
    bare.win("b")
    bare.private("raftLog").deleteEntriesTo(40)
    bare.private("raftNextIndex")[library.Node("c")] = 5
    bare.private("serializer")._Serializer__pid = 12345  # A dump is in progress.
    bare.wire.sent.clear()
    bare.set_private("raftNextIndex", bare.private("raftNextIndex"))
    bare.private("sendAppendEntries")()
    empty = [m for _, m in bare.wire.sent if "serialized" in m and m["serialized"] is None]
    assert len(empty) > 0


def test_l5_ours_sends_one_piece_and_waits() -> None:
    lone = Lone(entries=[entry(i, i, 1) for i in range(3, 200)])
    storage = lone.node.storage
    lone.win("b")
    lone.acknowledge("b", lone.journal.last_index)
    lone.tick()
    for index in (100, 150):
        state: Plain = [b"x" * 1000 for _ in range(2000)]
        take(storage, Snapshot(index, 1, lone.node.core.voters, state))
    assert lone.journal.base_index == 100
    sent = lone.take(
        "c",
        "next_node_idx",
        term=lone.node.core.term,
        next_node_idx=3,
        success=False,
        rejected=lone.journal.last_index - 1,
    )
    pieces = [m for _, m in sent if m["type"] == "snapshot"]
    assert [len(m["data"]) for m in pieces] == [SNAPSHOT_CHUNK_BYTES]
    for _ in range(4):
        sent = lone.tick(0.07)
        assert [m["type"] for peer, m in sent if peer == "c"] == ["heartbeat"]


def test_l5_ours_limits_what_is_in_flight() -> None:
    lone = Lone()
    term = lone.win("b")
    lone.acknowledge("b", lone.journal.last_index)
    for number in range(1500):
        lone.propose([number, b"x" * 15_000], ttl_s=60)
    sent = sum(len(m.get("entries", b"")) for peer, m in lone.tick() if peer == "b")
    assert IN_FLIGHT_BYTES_MAX <= sent < 1.2 * IN_FLIGHT_BYTES_MAX
    assert sum(len(m.get("entries", b"")) for peer, m in lone.tick() if peer == "b") == 0
    lone.acknowledge("b", lone.journal.last_index - 900, term=term)


# --- L6: large commands ----------------------------------------------------------------------


def test_l6_the_library_breaks_on_an_entry_just_below_two_batches() -> None:
    leader = Bare("a", ["b", "c"], appendEntriesBatchSizeBytes=65536)
    follower = Bare("b", ["a", "c"])
    leader.win("b")
    overhead = len(command(b"x" * 70_000)) - 70_000
    leader.put(b"x" * (2 * 65536 - overhead - 5))
    leader.tick()
    assert 2 * 65536 - 20 < len(leader.log()[-1][0]) < 2 * 65536
    leader.tick(0.2)
    pieces = [m for peer, m in leader.wire.sent if peer == "b" and "transmission" in m]
    assert [m["transmission"] for m in pieces] == ["start", "finish", "finish"]
    follower.take("a", pieces[0])
    with pytest.raises((EOFError, UnicodeDecodeError, library.pickle.pickle.UnpicklingError)):
        follower.take("a", pieces[1])


def test_l6_ours_refuses_large_commands_before_they_enter_the_log() -> None:
    lone = Lone(("me",))
    lone.tick(1.0)
    lone.tick()
    before = lone.journal.last_index
    lone.propose({"x": b"y" * COMMAND_BYTES_MAX})
    lone.propose({"x": b"y" * (COMMAND_BYTES_MAX - 10)})
    for _ in range(3):
        lone.tick()
    refused, committed = lone.outcomes
    assert isinstance(refused, NotCommitted)
    assert isinstance(committed, Committed)
    assert lone.journal.last_index == before + 1


# --- what the findings imply for a leader ----------------------------------------------------


def test_a_leader_without_a_majority_steps_down_in_time() -> None:
    lone = Lone()
    lone.win("b")
    for _ in range(10):
        lone.tick(0.05)
    assert lone.node.core.state == LEADER
    for _ in range(4):
        lone.tick(0.05)
    assert lone.node.core.state != LEADER
    lone.propose("x")
    lone.tick()
    assert lone.outcomes == [NotCommitted("no leader is known")]


@pytest.mark.long
def test_a_silent_partition_is_survived_within_the_budget() -> None:
    """Of three voters that lose one, the two others split their votes in one of 200 seeds."""
    times: list[float] = []
    for seed in range(400):
        world = World(seed, voters=3 if seed % 2 else 5, faults=Faults(jitter_s=0.0005))
        world.run_until(lambda world=world: world.leader() is not None)
        old = world.leader()
        assert old is not None
        world.run(0.3 + world.rng.random())
        others = [name for name in world.names if name != old]
        world.block([[old], others])
        began = world.now
        done: list[Any] = []

        def attempt(
            world: World = world, others: list[Any] = others, done: list[Any] = done
        ) -> None:
            if not any(isinstance(outcome, Committed) for outcome in done):
                world.propose(others[0], "first", ttl_s=1.0, then=done.append)
                world.at(0.005, attempt)

        attempt()
        world.run_until(lambda done=done: any(isinstance(o, Committed) for o in done), 3.0)
        times.append(world.now - began)
    times.sort()
    assert times[len(times) // 2] < 0.35
    assert times[-1 - len(times) // 100] < 0.5, "budget for the 99th percentile"
    assert times[-1] < 0.8, "two rounds, when votes are split"


def test_a_returning_server_does_not_depose_the_leader() -> None:
    world = World(9)
    world.run_until(lambda: world.leader() is not None)
    world.run(0.5)
    leader = world.leader()
    assert leader is not None
    follower = next(name for name in world.names if name != leader)
    term = world.node(leader).core.term
    for _ in range(5):
        world.block([[follower], [name for name in world.names if name != follower]])
        world.run(3.0)
        world.heal()
        world.run(1.0)
    assert world.leader() == leader
    assert world.node(leader).core.term == term


def test_a_removed_server_neither_disturbs_nor_votes_itself_back() -> None:
    world = World(10, voters=4, settings=ConsensusSettings())
    world.run_until(lambda: world.leader() is not None)
    leader = world.leader()
    assert leader is not None
    removed = next(name for name in world.names if name != leader)
    # It does not hear of its removal, and comes back with the old configuration.
    world.block([[removed], [name for name in world.names if name != removed]])
    kept = [name for name in world.names if name != removed]
    for server in world.alive():
        assert server.node is not None
        server.node.reconcile_voters(kept)
    world.run(1.0)
    assert world.node(leader).core.voters == tuple(kept)
    term = world.node(leader).core.term
    world.heal()
    world.run(5.0)
    assert world.leader() == leader
    assert world.node(leader).core.term == term
    assert not world.node(removed).core.votes
    world.propose(leader, "x")
    world.run(1.0)
    assert world.servers[removed].machine.log == ["x"]


def test_a_server_asked_by_an_unknown_candidate_with_a_newer_log_votes() -> None:
    # The candidate is a voter in a configuration that did not arrive here yet.
    lone = Lone(("me", "b"), peers=("b", "c"))
    fields = {"term": 9, "last_log_term": 1, "hand_over": False}
    assert lone.take("c", "request_vote", last_log_index=2, **fields) == []
    sent = lone.take("c", "request_vote", last_log_index=3, **fields)
    assert [(peer, m["type"]) for peer, m in sent] == [("c", "response_vote")]


def test_the_voters_of_the_latest_entry_count_from_the_start_on() -> None:
    disk = SimulatedDisk(Random(7))
    journal = Storage(disk, create=True).journal
    both = [ServerId("me"), ServerId("b")]
    journal.append(MEMBERSHIP_TYPE + encode_voters([ServerId("me")]), 2, 1)
    journal.append(MEMBERSHIP_TYPE + encode_voters(both), 3, 1)
    journal.sync()
    lone = Lone(("me", "b"), disk=disk)
    assert lone.node.core.voters == ("b", "me")
    lone.tick(1.0)
    lone.tick(1.0)
    assert lone.node.core.state != LEADER, "one of two is no majority"
