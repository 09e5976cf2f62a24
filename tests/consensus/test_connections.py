"""Effects of a connection's begin or end on messages, ages, pulls and servers left behind."""

from random import Random
from typing import Any

import pytest
from lone_node import Lone, entry, take

from gpupool.consensus.peer_frames import PeerFrames
from gpupool.consensus.protocol.raft_messages import (
    FrameReader,
    FrameWriter,
    Message,
    decode_message,
    encode_message,
)
from gpupool.consensus.recovery import recover
from gpupool.consensus.storage.snapshot import Snapshot
from gpupool.consensus.storage.store import Storage
from gpupool.pool.model.ids import ServerId
from gpupool.simulations.kernel.simulated_disk import SimulatedDisk

ME, B, C, D = (ServerId(name) for name in ("me", "b", "c", "d"))


def test_a_new_connection_carries_nothing_that_waited_for_the_old_one() -> None:
    frames = PeerFrames(1)
    frames.connect(B)
    frames.connect(C)
    for peer in (B, C):
        frames.send(peer, {"type": "timeout_now", "term": 1})
    frames.connect(B)
    assert [peer for peer, _ in frames.take()] == [C]
    frames.send(B, {"type": "timeout_now", "term": 2})
    [(peer, frame)] = frames.take()
    body = FrameReader().body(frame)
    assert body is not None
    assert (peer, decode_message(body)) == (B, {"type": "timeout_now", "term": 2})


def test_a_late_frame_of_the_former_connection_is_dropped() -> None:
    frames, writer = PeerFrames(1), FrameWriter(5)
    first, late = (writer.frame(encode_message({"type": "pull", "next_index": n})) for n in (1, 2))
    frames.connect(B)
    assert frames.read(B, first) == {"type": "pull", "next_index": 1}
    assert frames.read(B, first) is None
    frames.connect(B)
    assert frames.read(B, late) is None
    newer = FrameWriter(6).frame(encode_message({"type": "pull", "next_index": 3}))
    assert frames.read(B, newer) == {"type": "pull", "next_index": 3}


def test_nothing_waits_for_a_server_that_is_not_connected() -> None:
    frames = PeerFrames(1)
    frames.send(B, {"type": "timeout_now", "term": 1})
    assert not frames.waiting
    frames.connect(B)
    frames.send(B, {"type": "timeout_now", "term": 1})
    assert frames.waiting
    frames.disconnect(B)
    assert (frames.take(), bool(frames), B in frames) == ([], False, False)


def test_what_waits_for_the_sync_holds_up_what_follows_to_the_same_peer_only() -> None:
    frames = PeerFrames(1)
    for peer in (B, C):
        frames.connect(peer)
    for peer, kind in ((B, "pull"), (B, "alive"), (C, "pull"), (B, "pull")):
        field = "next_index" if kind == "pull" else "applied_index"
        frames.send(peer, {"type": kind, field: 1})

    def may_leave(message: Message) -> bool:
        return message["type"] == "pull"

    assert [peer for peer, _ in frames.take_early(may_leave)] == [B, C]
    assert [peer for peer, _ in frames.take()] == [B, B]


def test_a_server_that_connects_was_heard_just_then() -> None:
    lone = Lone()
    lone.node.set_servers([B, C])
    lone.tick(50.0)
    lone.node.disconnected(B, lone.now)
    lone.node.connected(B, lone.now)
    lone.tick(2.0)
    ages = lone.node.health(lone.now).contact_age_s
    assert (ages[B], ages[C]) == (2.0, 52.0)


def test_a_frame_of_a_server_that_is_not_connected_changes_nothing() -> None:
    lone = Lone()
    lone.node.disconnected(B, lone.now)
    lone.take("b", "response_vote", term=9)
    assert lone.node.storage.memory.of(B).term == 0
    lone.node.connected(B, lone.now)
    lone.writers[B] = FrameWriter(9)
    lone.take("b", "response_vote", term=9)
    assert lone.node.storage.memory.of(B).term == 9


def kinds(sent: list[tuple[str, dict[str, Any]]], peer: str) -> list[str]:
    return [message["type"] for to, message in sent if to == peer]


@pytest.mark.parametrize("end", ["disconnected", "connected"])
def test_a_pull_is_answered_by_its_own_connection_or_not_at_all(end: str) -> None:
    lone = Lone(("me", "b", "c"), peers=("b", "c", "d"))
    lone.node.set_servers([B, C, D])
    assert "pulled" not in kinds(lone.take("d", "pull", next_index=9), "d")
    if end == "disconnected":
        lone.node.disconnected(D, lone.now)
    lone.node.connected(D, lone.now)
    assert "pulled" not in kinds(lone.tick(0.6), "d")
    lone.writers[D] = FrameWriter(9)
    lone.take("d", "pull", next_index=9)
    assert "pulled" in kinds(lone.tick(0.6), "d")


def test_a_node_takes_the_time_from_whatever_is_reported() -> None:
    lone, told = Lone(), list[object]()
    lone.node.propose("x", 5.0, told.append, 100.5)
    assert lone.node.next_step_at() == 100.5
    lone.node.barrier(5.0, told.append, 100.75)
    assert lone.node.next_step_at() == 100.75


def test_a_voter_that_has_the_log_needs_no_snapshot_until_it_is_behind_again() -> None:
    log = [entry(index, index, 1) for index in range(3, 60)]
    lone = Lone(("me", "b", "c"), entries=log)
    lone.win("c")
    lone.acknowledge("c", lone.journal.last_index)
    storage, core = lone.node.storage, lone.node.core
    assert core.applied_index > 50
    take(storage, Snapshot(50, 1, core.voters, ["x" * 1_200_000]))
    lone.node._snapshots.send(B, leading=True)  # pyright: ignore[reportPrivateUsage]
    assert [m["offset"] for p, m in lone.tick() if m["type"] == "snapshot" and p == "b"] == [0]
    lone.acknowledge("b", lone.journal.last_index)
    lone.node._snapshots.send(B, leading=True)  # pyright: ignore[reportPrivateUsage]
    assert [m["offset"] for p, m in lone.tick() if m["type"] == "snapshot" and p == "b"] == [0]


def test_a_server_that_is_recovered_does_not_leave_itself_behind() -> None:
    storage = Storage(SimulatedDisk(Random(1)), create=True)
    recover(storage, ME, [], others=[B, ME, C], why="it burnt")
    assert storage.memory.fenced == {B: False, C: False}
    assert storage.memory.why_fenced == "it burnt"
